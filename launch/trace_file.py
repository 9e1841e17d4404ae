"""The timeline of a run as one file, which Perfetto and Chrome open.

    trace.json      {"displayTimeUnit": "ms",
                     "otherData": {what is known of clocks and of what is missing},
                     "traceEvents": [one line for each event]}

Ranks may be on machines that share no disk: each turns its spans into events, and these travel to rank 0 in pieces.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from windrow.comm.world import World
from windrow.launch.trace_events import RankTrace, event_pieces
from windrow.partition.atomic_file import open_atomically

__all__ = ["write_alone", "write_together"]

STAGE = "trace"


def write_together(world: World, path: Path, trace: RankTrace, *, origin_ns: int) -> OSError | None:
    """Write the spans of all ranks to one file. Collective.

    Args:
        world: its tracer is off by now.
        path: of the file, whose folder exists on the machine of rank 0; nobody else looks at it.
        trace: of this rank.
        origin_ns: the moment 0 of the timeline on the clock of rank 0; must agree.

    Returns:
        On rank 0 what went wrong, in which case there is no new file: training need not end for that. Else None.
    """
    described = world.gather_object(_describe(trace), root=0, stage=STAGE)
    arriving = _gathered(world, event_pieces(trace, origin_ns=origin_ns))
    failure = None
    if world.rank == 0:
        try:
            _write(path, {"complete": True, "ranks": described}, arriving)
        except OSError as error:
            failure = error
    # The others send all that they have, whatever has become of the file.
    for _ in arriving:
        pass
    return failure


def write_alone(path: Path, trace: RankTrace, *, origin_ns: int, reason: str) -> None:
    """Write the spans of this rank, where others may no longer answer.

    Args:
        path: of the file; its folder exists.
        trace: of this rank.
        origin_ns: the moment 0 of the timeline on the clock of rank 0.
        reason: why it is alone.

    Raises:
        OSError: the disk is full, or there is no such folder.
    """
    about = {"complete": False, "ended by": reason, "ranks": [_describe(trace)]}
    _write(path, about, event_pieces(trace, origin_ns=origin_ns))


def _describe(trace: RankTrace) -> dict[str, Any]:
    return {
        "rank": trace.rank,
        "host": trace.host,
        "clock_offset_us": trace.alignment.first.offset_ns / 1000,
        "clock_uncertainty_us": trace.clock_uncertainty_us,
        "spans": len(trace.spans),
        "spans_missing": trace.dropped,
    }


def _gathered(world: World, own: Iterator[bytes]) -> Iterator[bytes]:
    """On rank 0 the pieces of all ranks, one of each at a time in memory; elsewhere nothing. Collective."""
    while True:
        piece = next(own, b"")
        more = world.all_reduce(torch.tensor([len(piece)]), stage=STAGE, op="max")
        if int(more) == 0:
            return
        yield from (other for other in world.gather_object(piece, root=0, stage=STAGE) if other)


def _write(path: Path, about: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
    with open_atomically(path) as file:
        head = json.dumps({"displayTimeUnit": "ms", "otherData": about}).removesuffix("}")
        file.write(f'{head},\n"traceEvents": [\n'.encode())
        separator = b""
        for piece in pieces:
            file.write(separator)
            file.write(piece)
            separator = b",\n"
        file.write(b"\n]}\n")
