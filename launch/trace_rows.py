"""The rows of a timeline: in which one a span belongs, and in which order they stand.

A row is either this rank's own work or one kind of message. Rows stand in the order in which a minibatch meets them,
so that a step reads from the upper left to the lower right.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from windrow.comm.trace import Span

__all__ = ["ALL_REDUCE", "EPOCH", "GRAPH_ROWS", "LOG_ROWS", "OTHER_TRAFFIC", "Row", "row_of", "sorted_rows"]

EPOCH = "epoch"
"""Row of whole epochs, whose spans are called "epoch 1" and so on."""

ALL_REDUCE = "all-reduce"
"""Row of sums over all ranks, whatever they are for."""

OTHER_TRAFFIC = "other traffic"
"""Row of messages that belong to no minibatch: figures, checkpoints, evaluation."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row, and the stages that it shows."""

    name: str
    work: tuple[str, ...] = ()
    """Stages of the stopwatch."""
    messages: tuple[str, ...] = ()
    """What stands after the last ": " in the stage of an exchange: "rows" for "features: rows"."""


GRAPH_ROWS = (
    Row(EPOCH),
    Row("sample", work=("sample",)),
    Row("wait for samples", work=("wait for samples",)),
    Row("fetch", work=("fetch",)),
    Row("request", messages=("ids",)),
    Row("reply", messages=("rows",)),
    Row("forward", work=("forward",)),
    Row("backward", work=("backward",)),
    Row(ALL_REDUCE),
    Row("wait", work=("wait",)),
    Row("update", work=("update",)),
    Row("evaluate", work=("evaluate",)),
)
"""Training on a graph."""

LOG_ROWS = (
    Row(EPOCH),
    Row("read", work=("read",)),
    Row("pack", work=("ids",)),
    Row("counts", messages=("counts",)),
    Row("ids", messages=("ids",)),
    Row("lookup", work=("lookup",)),
    Row("vectors", messages=("vectors",)),
    Row("unpack", work=("pooled",)),
    Row("forward", work=("forward",)),
    Row("backward", work=("backward",)),
    Row("gradients", messages=("gradients",)),
    Row(ALL_REDUCE),
    Row("wait", work=("wait",)),
    Row("update", work=("update",)),
    Row("evaluate", work=("evaluate",)),
)
"""Training on a click log."""


def row_of(span: Span, data: Literal["graph", "log"]) -> str:
    """The name of a span's row.

    Args:
        span: any; the work of a stage that is not known gets a row of its own.
        data: what is learnt from.
    """
    rows = _rows(data)
    match span.operation:
        case "all_reduce":
            return ALL_REDUCE
        case "exchange":
            kind = span.stage.rpartition(": ")[2]
            return next((row.name for row in rows if kind in row.messages), OTHER_TRAFFIC)
    if span.stage.startswith(f"{EPOCH} "):
        return EPOCH
    return next((row.name for row in rows if span.stage in row.work), span.stage)


def sorted_rows(names: Iterable[str], data: Literal["graph", "log"]) -> list[str]:
    """Rows from top to bottom: those known, then others by name, and traffic that belongs to no minibatch.

    Args:
        names: from `row_of`.
        data: what is learnt from.
    """
    places = {row.name: place for place, row in enumerate(_rows(data))}
    last = len(places) + 1
    return sorted(
        names, key=lambda name: (last if name == OTHER_TRAFFIC else places.get(name, last - 1), name)
    )


def _rows(data: Literal["graph", "log"]) -> tuple[Row, ...]:
    return GRAPH_ROWS if data == "graph" else LOG_ROWS
