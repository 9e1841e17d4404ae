"""windrow.launch.trace_events: which row a span is in, and the order of rows."""

import random

import pytest

from windrow.comm.meter import Span
from windrow.launch.trace_events import GRAPH_ROWS, LOG_ROWS, row_of, sorted_rows


def span(stage, operation="work"):
    return Span(stage, 0, 1, operation)


@pytest.mark.parametrize(
    ("data", "stage", "operation", "row"),
    [
        ("graph", "features: ids", "exchange", "request"),
        ("graph", "evaluation: rows", "exchange", "reply"),
        ("graph", "sample", "work", "sample"),
        ("log", "embedding bags: counts", "exchange", "counts"),
        ("log", "embedding rows: ids", "exchange", "ids"),
        ("log", "ids", "work", "pack"),
        ("log", "embedding bags: vectors", "exchange", "vectors"),
        ("log", "pooled", "work", "unpack"),
        ("log", "embedding bags: gradients", "exchange", "gradients"),
        ("log", "gradients", "all_reduce", "all-reduce"),
        ("graph", "loss", "all_reduce", "all-reduce"),
        ("graph", "epoch 12", "work", "epoch"),
        ("log", "checkpoint", "exchange", "other traffic"),
        ("graph", "invented", "work", "invented"),
    ],
)
def test_stages_have_their_row(data, stage, operation, row):
    assert row_of(span(stage, operation), data) == row


@pytest.mark.parametrize(("data", "rows"), [("graph", GRAPH_ROWS), ("log", LOG_ROWS)])
def test_rows_stand_in_the_order_of_a_step(data, rows):
    known = [row.name for row in rows]
    assert len(set(known)) == len(known)
    shuffled = [*known, "other traffic", "a new stage", "zebra"]
    random.Random(3).shuffle(shuffled)
    assert sorted_rows(shuffled, data) == [*known, "a new stage", "zebra", "other traffic"]


@pytest.mark.parametrize("rows", [GRAPH_ROWS, LOG_ROWS])
def test_no_stage_is_in_two_rows(rows):
    for kind in ("work", "messages"):
        stages = [stage for row in rows for stage in getattr(row, kind)]
        assert len(set(stages)) == len(stages)
