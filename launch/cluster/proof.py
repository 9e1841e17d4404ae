"""Proof, before each use, that what ranks say to each other crosses the links and that these keep their rates.

Started by mpirun, one rank on each host, before the command of the cluster, ``python -m windrow.launch.cluster.proof``
plays ping-pong over each link and counts bytes; the process that started it judges what it prints. Nothing here loads
PyTorch, since it runs at the start of each cluster.
"""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from windrow.comm.errors import ClusterError
from windrow.launch.cluster.network import INTERFACE, ClusterOptions, SetUp, describe_rates, link_shape

__all__ = ["PairResult", "expected_seconds", "judge", "main", "message_bytes", "prove", "read_results", "ring_pairs"]

LEAST_BURSTS: Final = 20
"""A message is at least so many times as long as what may pass a link at once: then that is at most 5 % of it."""

MESSAGE_S: Final = 0.025
"""Seconds that a message takes on its link, where that is longer than the bursts ask for: four hosts are proved in less
than a second."""

LINES_SHOWN: Final = 8
"""Of what mpirun says when it fails: each rank may print a traceback."""

UNLIMITED_BYTES: Final = 4_000_000
"""Length of a message where no link has a rate."""

TOO_FAST: Final = 1.1
TOO_SLOW: Final = 0.5
"""Of the allowed rate: outside of these the links are not what they are called. TCP, IP and Ethernet headers leave
0.96 of it to messages; a machine that does other work at the same time loses some of that."""


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """What a ping-pong between two hosts found."""

    hosts: tuple[str, str]
    """As the ranks that played say where they ran."""

    payload_bytes: int
    """What each of the two sent."""

    bits_per_second: float
    """Of the quickest round trip."""

    counted_bytes: int
    """What the kernel counted on the links: the smaller of the two hosts' counts."""


def message_bytes(first: int | None, second: int | None) -> int:
    """How long a message must be to tell the rate of the links between two hosts, in bits per second each."""
    rates = [rate for rate in (first, second) if rate is not None]
    if not rates:
        return UNLIMITED_BYTES
    longest_burst = max(link_shape(rate).burst_bytes for rate in rates)
    return max(round(min(rates) * MESSAGE_S / 8), LEAST_BURSTS * longest_burst)


def expected_seconds(options: ClusterOptions) -> float:
    """How long the messages of the proof take where the links have their rates."""
    total = 0.0
    for one, other in ring_pairs(len(options.hosts)):
        rates = [rate for rate in (options.rates[one], options.rates[other]) if rate is not None]
        if rates:
            total += 2 * MESSAGES * message_bytes(rates[0], rates[-1]) * 8 / min(rates)
    return total


def prove(options: ClusterOptions, environment: dict[str, str], set_up: SetUp) -> str:
    """Play ping-pong between neighbouring hosts, with ranks started as those of the command will be; what was found.

    Raises:
        ClusterError: messages went another way, or the links have other rates than they should.
    """
    num_hosts = len(options.hosts)
    lengths = [message_bytes(options.rates[one], options.rates[other]) for one, other in ring_pairs(num_hosts)]
    probe = [sys.executable, "-P", "-m", "windrow.launch.cluster.proof", *map(str, lengths)]
    done = set_up.run("mpirun", "-n", str(num_hosts), *probe, check=False, environment=environment)
    if done.returncode != 0:
        said = "\n".join(done.stderr.strip().splitlines()[-LINES_SHOWN:])
        raise ClusterError(
            f"mpirun could not start ranks on emulated hosts (exit status {done.returncode}); it said:\n{said}"
        )
    results = read_results(done.stdout, num_hosts)
    judge(options, results)
    speeds = sorted(result.bits_per_second / 1e9 for result in results)
    slowest, fastest = f"{speeds[0]:.2g}", f"{speeds[-1]:.2g}"
    measured = slowest if slowest == fastest else f"{slowest} to {fastest}"
    counted = sum(result.counted_bytes for result in results) / 1e6
    return (
        f"cluster: {num_hosts} hosts, {describe_rates(options.rates)}; ping-pong between neighbours {measured} Gbit/s, "
        f"{counted:.0f} MB counted on the links"
    )


def read_results(printed: str, num_hosts: int) -> list[PairResult]:
    """Read what the probe printed.

    Raises:
        ClusterError: it was not one MPI job of so many ranks.
    """
    found: dict[str, Any] = {}
    for line in printed.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            if found["ranks"] != num_hosts:
                break
    if not found or found["ranks"] != num_hosts:
        raise ClusterError(
            f"{num_hosts} ranks were started for the ping-pong, and they saw {found.get('ranks', 'no')} rank(s): "
            "mpi4py and mpirun belong to different MPI installations. Use the mpirun of the MPI that mpi4py was built "
            "for (python -c 'from mpi4py import MPI; print(MPI.Get_library_version())')."
        )
    return [
        PairResult(
            hosts=(pair["hosts"][0], pair["hosts"][1]),
            payload_bytes=pair["message_bytes"] * pair["messages"],
            bits_per_second=2 * pair["message_bytes"] * 8 / pair["seconds"],
            counted_bytes=min(pair["counted_bytes"]),
        )
        for pair in found["pairs"]
    ]


def judge(options: ClusterOptions, results: list[PairResult]) -> None:
    """Refuse a cluster that is not what it is called, by a result for each pair of `ring_pairs`.

    Raises:
        ClusterError: with what was measured, and what to look at.
    """
    for (first, second), result in zip(ring_pairs(len(options.hosts)), results, strict=True):
        names = (options.hosts[first], options.hosts[second])
        pair = f"ping-pong between {names[0]} and {names[1]}"
        if result.hosts != names:
            raise ClusterError(
                f"{pair}: the ranks ran on {result.hosts[0]} and {result.hosts[1]}. Does another mpirun come first on "
                "the PATH, or does something set HYDRA_ variables?"
            )
        if result.counted_bytes < result.payload_bytes:
            raise ClusterError(
                f"{pair}: each sent {result.payload_bytes} bytes, but the kernel counted {result.counted_bytes} on a "
                "link, so messages went another way, past the rates. Was this MPICH built without UCX (mpichversion "
                "says with which device), or does something set UCX_ or MPIR_ variables?"
            )
        limits = [rate for rate in (options.rates[first], options.rates[second]) if rate is not None]
        if not limits:
            continue
        allowed, measured = min(limits), result.bits_per_second
        told = f"{pair}: {measured / 1e9:.3g} Gbit/s over links of {allowed / 1e9:.3g} Gbit/s"
        if measured > TOO_FAST * allowed:
            raise ClusterError(f"{told}: the links do not keep their rate. Does `tc -s class show` list their queues?")
        if measured < TOO_SLOW * allowed:
            raise ClusterError(
                f"{told}: this machine's processors do not carry that rate, or are busy with other work. Take a lower "
                "--rate, fewer --hosts, or wait."
            )


MESSAGES: Final = 4
"""Round trips between two hosts. The first one opens the connection; of the others the quickest counts."""

WAITING_S: Final = 0.0005
"""Between looks whether it is this rank's turn: short beside a message's time."""

TAG: Final = 7


def ring_pairs(num_hosts: int) -> list[tuple[int, int]]:
    """Neighbours on a ring of at least 2 hosts: with them every link is used in both directions."""
    return [(0, 1)] if num_hosts == 2 else [(host, (host + 1) % num_hosts) for host in range(num_hosts)]


def _sent_bytes() -> int:
    """Bytes that this host has sent to the switch, as the kernel counts them."""
    return int(Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes").read_text())


def main(arguments: list[str]) -> int:
    """Play, with messages of as many bytes for each pair of `ring_pairs` as the arguments say. Collective.

    Rank 0 prints one line of JSON: the number of ranks, and for each pair the names of its hosts, bytes of a message,
    messages that each of the two sent, seconds of the quickest round trip, and bytes counted at each of the two.
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
                "message_bytes": int(text),
                "messages": MESSAGES,
                # The first host of a pair times whole round trips; at the second one they begin too early.
                "seconds": told[pair[0]][1][number][0],
                "counted_bytes": [told[host][1][number][1] for host in pair],
            }
            for number, (pair, text) in enumerate(zip(pairs, arguments, strict=False))
        ]
        print(json.dumps({"ranks": world.size, "pairs": found}), flush=True)
    return 0


def _ping_pong(world: Any, pair: tuple[int, int], message_bytes: int) -> tuple[float, int]:
    """Send a message there and back several times: seconds of the quickest, bytes sent by this host. Collective."""
    import numpy as np

    # Whoever does not play sleeps, since MPI's own waiting would take the players' processors.
    arrived = world.Ibarrier()
    while not arrived.Test():
        time.sleep(WAITING_S)
    if world.rank not in pair:
        return 0.0, 0
    other = pair[1 - pair.index(world.rank)]
    message = np.ones(message_bytes, dtype=np.uint8)
    seconds = []
    before = _sent_bytes()
    for _ in range(MESSAGES):
        start = time.perf_counter()
        if world.rank == pair[0]:
            world.Send(message, dest=other, tag=TAG)
            world.Recv(message, source=other, tag=TAG)
        else:
            world.Recv(message, source=other, tag=TAG)
            world.Send(message, dest=other, tag=TAG)
        seconds.append(time.perf_counter() - start)
    # A send may end when its bytes are still to leave this host; once both have come this far, all have arrived.
    world.sendrecv(None, dest=other, sendtag=TAG, source=other, recvtag=TAG)
    return min(seconds[1:]), _sent_bytes() - before


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
