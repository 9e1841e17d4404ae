"""Proof, before each use, that what ranks say to each other crosses the links and that these keep their rates.

Started by mpirun, one rank on each host, before the command of the cluster, this module as a program plays ping-pong
over each link and counts bytes; the process that started it judges what it prints. Nothing here loads PyTorch, since it
runs at the start of each cluster.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.emulated_cluster.network import INTERFACE, ClusterError, ClusterOptions, SetUp, format_rate, link_shape

__all__ = ["judge", "main", "message_bytes", "prove", "ring_pairs"]

LEAST_BURSTS: Final = 40
"""A message is at least so many bursts of its link long. An idle link passes a burst at once, and with it the packet
that overdraws the bucket, which is nearly as long: together at most 5 % of a message."""

MESSAGE_S: Final = 0.025
"""Seconds that a message takes on its link, where that is longer than the bursts ask for: four hosts are proved in less
than a second."""

MESSAGES: Final = 4
"""Round trips between two hosts. The first one opens the connection; of the others the quickest counts."""

UNLIMITED_BYTES: Final = 4_000_000
"""Length of a message where no link has a rate."""

TOO_FAST: Final = 1.1
TOO_SLOW: Final = 0.5
"""Of the allowed rate: outside of these the links are not what they are called. TCP, IP and Ethernet headers leave
0.96 of it to messages; a machine that does other work at the same time loses some of that."""

WAITING_S: Final = 0.0005
"""Between looks whether it is this rank's turn: short beside a message's time."""

LINES_SHOWN: Final = 8
"""Of what mpirun says when it fails: each rank may print a traceback."""


def ring_pairs(num_hosts: int) -> list[tuple[int, int]]:
    """Neighbours on a ring of at least 2 hosts: with them every link is used in both directions."""
    return [(0, 1)] if num_hosts == 2 else [(host, (host + 1) % num_hosts) for host in range(num_hosts)]


def message_bytes(rate: int | None) -> int:
    """How long a message must be to tell the rate of a link, in bits per second."""
    if rate is None:
        return UNLIMITED_BYTES
    return max(round(rate * MESSAGE_S / 8), LEAST_BURSTS * link_shape(rate).burst_bytes)


def prove(options: ClusterOptions, environment: dict[str, str], set_up: SetUp) -> str:
    """Play ping-pong between neighbouring hosts, with ranks started as those of the command will be; what was found.

    Raises:
        ClusterError: messages went another way, or the links have other rates than they should.
    """
    num_hosts = len(options.hosts)
    lengths = [message_bytes(_slower(options, pair)) for pair in ring_pairs(num_hosts)]
    probe = [sys.executable, "-P", "-m", "benchmarks.emulated_cluster.proof", *map(str, lengths)]
    done = set_up.run("mpirun", "-n", str(num_hosts), *probe, check=False, environment=environment)
    if done.returncode != 0:
        said = "\n".join(done.stderr.strip().splitlines()[-LINES_SHOWN:])
        raise ClusterError(
            f"mpirun could not start ranks on emulated hosts (exit status {done.returncode}); it said:\n{said}"
        )
    printed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    ranks = {found["ranks"] for found in printed}
    if ranks != {num_hosts}:
        raise ClusterError(
            f"{num_hosts} ranks were started for the ping-pong, and they saw {min(ranks, default='no')} rank(s): "
            "mpi4py and mpirun belong to different MPI installations. Use the mpirun of the MPI that mpi4py was built "
            "for (python -c 'from mpi4py import MPI; print(MPI.Get_library_version())')."
        )
    found = printed[0]["pairs"]
    for pair, length, result in zip(ring_pairs(num_hosts), lengths, found, strict=True):
        judge(options, pair, length, **result)
    speeds = sorted(_gigabits(length, result["seconds"]) for length, result in zip(lengths, found, strict=True))
    slowest, fastest = f"{speeds[0]:.2g}", f"{speeds[-1]:.2g}"
    rates = ", ".join(dict.fromkeys(map(format_rate, options.rates)))
    measured = slowest if slowest == fastest else f"{slowest} to {fastest}"
    return (
        f"cluster: {num_hosts} hosts, {rates}; ping-pong between neighbours {measured} Gbit/s, "
        f"{sum(result['counted_bytes'] for result in found) / 1e6:.0f} MB counted on the links"
    )


def _slower(options: ClusterOptions, pair: tuple[int, int]) -> int | None:
    return min((rate for host in pair if (rate := options.rates[host]) is not None), default=None)


def _gigabits(length: int, seconds: float) -> float:
    """Rate of a round trip in 10^9 bits per second."""
    return 2 * length * 8 / seconds / 1e9


def judge(
    options: ClusterOptions, pair: tuple[int, int], length: int, *, hosts: list[str], seconds: float, counted_bytes: int
) -> None:
    """Refuse a cluster that is not what it is called.

    Args:
        options: what it is called.
        pair: of `ring_pairs`.
        length: of the messages that these hosts sent each other, in bytes.
        hosts: as the ranks that played say where they ran.
        seconds: of the quickest round trip.
        counted_bytes: what the kernel counted on the links: the smaller of the two hosts' counts.

    Raises:
        ClusterError: with what was measured, and what to look at.
    """
    names = [options.hosts[host] for host in pair]
    told = f"ping-pong between {names[0]} and {names[1]}"
    if hosts != names:
        raise ClusterError(
            f"{told}: the ranks ran on {hosts[0]} and {hosts[1]}. Does another mpirun come first on the PATH, or does "
            "something set HYDRA_ variables?"
        )
    if counted_bytes < MESSAGES * length:
        raise ClusterError(
            f"{told}: each sent {MESSAGES * length} bytes, but the kernel counted {counted_bytes} on a link, so "
            "messages went another way, past the rates. Was this MPICH built without UCX (mpichversion says with which "
            "device), or does something set UCX_ or MPIR_ variables?"
        )
    rate = _slower(options, pair)
    if rate is None:
        return
    allowed, measured = rate / 1e9, _gigabits(length, seconds)
    told += f": {measured:.3g} Gbit/s over links of {allowed:.3g} Gbit/s"
    if measured > TOO_FAST * allowed:
        raise ClusterError(f"{told}: the links do not keep their rate. Does `tc -s class show` list their queues?")
    if measured < TOO_SLOW * allowed:
        raise ClusterError(
            f"{told}: this machine's processors do not carry that rate, or are busy with other work. Take a lower "
            "--rate, fewer --hosts, or wait."
        )


def main(arguments: list[str]) -> int:
    """Play, with messages of as many bytes for each pair of `ring_pairs` as the arguments say. Collective.

    Rank 0 prints one line of JSON: the number of ranks, and for each pair what `judge` wants to know of it.
    """
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    pairs = ring_pairs(world.size) if world.size > 1 else []
    own = [_ping_pong(world, pair, int(text)) for pair, text in zip(pairs, arguments, strict=False)]
    told = world.gather((MPI.Get_processor_name(), own))
    if world.rank == 0 and told is not None:
        found = [
            {
                "hosts": [told[host][0] for host in pair],
                # The first host of a pair times whole round trips; at the second one they begin too early.
                "seconds": told[pair[0]][1][number][0],
                "counted_bytes": min(told[host][1][number][1] for host in pair),
            }
            for number, pair in enumerate(pairs)
        ]
        print(json.dumps({"ranks": world.size, "pairs": found}), flush=True)
    return 0


def _ping_pong(world: Any, pair: tuple[int, int], length: int) -> tuple[float, int]:
    """Send a message there and back several times: seconds of the quickest, bytes sent by this host. Collective."""
    # Whoever does not play sleeps, since MPI's own waiting would take the players' processors.
    arrived = world.Ibarrier()
    while not arrived.Test():
        time.sleep(WAITING_S)
    if world.rank not in pair:
        return 0.0, 0
    is_first = world.rank == pair[0]
    other = pair[is_first]
    message = bytearray(length)
    sent = Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes")
    seconds = []
    before = int(sent.read_text())
    for _ in range(MESSAGES):
        start = time.perf_counter()
        if is_first:
            world.Send(message, dest=other)
        world.Recv(message, source=other)
        if not is_first:
            world.Send(message, dest=other)
        seconds.append(time.perf_counter() - start)
    # A send may end when its bytes are still to leave this host; once both have come this far, all have arrived.
    world.sendrecv(None, dest=other, source=other)
    return min(seconds[1:]), int(sent.read_text()) - before


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
