"""Ranks that play ping-pong over each link of the cluster and count bytes: ``python -m windrow.launch.cluster.probe``.

Started by mpirun, one rank on each host, before the command of the cluster; `windrow.launch.cluster.proof` judges what
it prints. A program of its own without PyTorch, since it runs at the start of each cluster.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from windrow.launch.cluster.network import INTERFACE

__all__ = ["MESSAGES", "main", "ring_pairs", "sent_bytes"]

MESSAGES: Final = 4
"""Round trips between two hosts. The first one opens the connection; of the others the quickest counts."""

WAITING_S: Final = 0.0005
"""Between looks whether it is this rank's turn: short beside a message's time."""

TAG: Final = 7


def ring_pairs(num_hosts: int) -> list[tuple[int, int]]:
    """Neighbours on a ring of at least 2 hosts: with them every link is used in both directions."""
    return [(0, 1)] if num_hosts == 2 else [(host, (host + 1) % num_hosts) for host in range(num_hosts)]


def sent_bytes(counters: Path = Path("/sys/class/net") / INTERFACE / "statistics") -> int:
    """Bytes that this host has sent to the switch, as the kernel counts them."""
    return int((counters / "tx_bytes").read_text())


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
    before = sent_bytes()
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
    return min(seconds[1:]), sent_bytes() - before


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
