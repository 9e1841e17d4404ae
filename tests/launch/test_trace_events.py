"""windrow.launch.trace_events: what viewers ask of events, for any spans; which row a span is in."""

import itertools
import json
import random
from collections import defaultdict

import hypothesis.strategies as st
import pytest
from hypothesis import given

from windrow.comm.clock import ClockAlignment, ClockOffset
from windrow.comm.meter import Span
from windrow.launch.trace_events import (
    EVENTS_PER_PIECE,
    GRAPH_ROWS,
    LOG_ROWS,
    RankTrace,
    event_pieces,
    lanes,
    row_of,
    sorted_rows,
)

spans = st.builds(
    lambda stage, begin, length, operation: Span(stage, begin, begin + length, operation, 7, 9),
    st.sampled_from(["sample", "features: ids", "gradients", "invented", "epoch 1"]),
    st.integers(0, 5000),
    st.integers(0, 3000),
    st.sampled_from(["work", "exchange", "all_reduce"]),
)


def make_trace(spans, *, rank=2, dropped=0, offset_ns=0, uncertainty_ns=1500):
    offset = ClockOffset(0, offset_ns, uncertainty_ns)
    return RankTrace(
        rank=rank,
        host="far",
        data="graph",
        spans=spans,
        dropped=dropped,
        alignment=ClockAlignment(offset, offset),
    )


def parse(trace, *, origin_ns=0):
    return json.loads(b"[" + b",".join(event_pieces(trace, origin_ns=origin_ns)) + b"]")


def most_at_once(intervals):
    """The slow way: how many are open just after each begins."""
    return max(
        (sum(b <= begin < e or (b, e) == (begin, begin) for b, e in intervals) for begin, _ in intervals),
        default=0,
    )


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=40))
def test_lanes_are_disjoint_and_as_few_as_can_be(pairs):
    intervals = sorted((begin, begin + length) for begin, length in pairs)
    chosen = lanes(intervals)
    ends = defaultdict(lambda: -1)
    for (begin, end), lane in zip(intervals, chosen, strict=True):
        assert begin >= ends[lane]
        ends[lane] = end
    assert len(ends) == most_at_once(intervals)
    assert set(chosen) == set(range(len(ends)))


@given(st.lists(spans, max_size=60), st.integers(-(10**12), 10**12), st.integers(0, 10**6))
def test_every_span_becomes_one_event_and_threads_hold_disjoint_ones(spans, offset_ns, origin_before_ns):
    origin_ns = offset_ns - origin_before_ns
    events = parse(make_trace(spans, offset_ns=offset_ns), origin_ns=origin_ns)
    complete = [event for event in events if event["ph"] == "X"]
    assert sorted(event["name"] for event in complete) == sorted(span.stage for span in spans)
    by_thread = defaultdict(list)
    for event in complete:
        # What a viewer makes of the numbers: whole nanoseconds, the rest cut off.
        begin_ns, length_ns = event["ts"] * 1000, event["dur"] * 1000
        assert begin_ns == int(begin_ns) >= 0
        assert length_ns == int(length_ns) >= 0
        by_thread[event["tid"]].append((begin_ns, begin_ns + length_ns))
    for intervals in by_thread.values():
        ordered = sorted(intervals)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ordered))
    expected = sorted((span.begin_ns + origin_before_ns) // 125 * 125 for span in spans)
    assert sorted(event["ts"] * 1000 for event in complete) == expected


@given(st.lists(spans, min_size=1, max_size=30))
def test_every_thread_and_process_has_a_name_and_a_place(spans):
    events = parse(make_trace(spans))
    assert {event["pid"] for event in events} == {3}
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    places = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    used = {event["tid"] for event in events if event["ph"] == "X"}
    assert names.keys() == places.keys() == used
    assert len(set(names.values())) == len(names)
    assert sorted(places.values()) == [places[thread] for thread in sorted(places)]
    # Neither 0, which viewers hide, nor the number of a process, which makes it a main thread.
    assert used.isdisjoint(range(10_000))


def test_sums_on_their_way_at_once_have_lanes_of_their_own():
    buckets = [(0, 4000), (1000, 5000), (4000, 6000), (4500, 7000), (4750, 4875)]
    events = parse(make_trace([Span("gradients", *bucket, "all_reduce", 64, 64) for bucket in buckets]))
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    placed = [(names[e["tid"]], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert sorted(placed) == [
        ("all-reduce", 0, 4),
        ("all-reduce", 4, 2),
        ("all-reduce 2", 1, 4),
        ("all-reduce 3", 4.5, 2.5),
        ("all-reduce 4", 4.75, 0.125),
    ]
    assert all(e["args"] == {"bytes reduced": 64} for e in events if e["ph"] == "X")


def test_messages_are_told_from_work():
    [exchange, work] = [
        event
        for event in parse(
            make_trace([Span("features: rows", 0, 9000, "exchange", 10, 20), Span("forward", 0, 9000)])
        )
        if event["ph"] == "X"
    ]
    assert (exchange["cat"], exchange["args"]) == (
        "communication",
        {"bytes sent": 10, "bytes received": 20},
    )
    assert work["cat"] == "work"
    assert "args" not in work


def test_the_process_says_who_it_is_and_what_is_missing():
    events = parse(make_trace([Span("sample", 0, 1)], dropped=12))
    told = {event["name"]: event["args"] for event in events if event["name"].startswith("process_")}
    assert told["process_name"] == {"name": "rank 2 (far)"}
    assert told["process_sort_index"] == {"sort_index": 2}
    assert told["process_labels"]["labels"] == (
        "clock within 1.5 us of rank 0's; recording stopped after 1 spans, 12 more are missing"
    )
    [event] = [event for event in parse(make_trace([])) if event["name"] == "process_labels"]
    assert "missing" not in event["args"]["labels"]


def test_many_events_come_in_pieces():
    many = [Span("sample", 1000 * n, 1000 * n + 500) for n in range(2 * EVENTS_PER_PIECE + 5)]
    pieces = list(event_pieces(make_trace(many), origin_ns=0))
    assert len(pieces) == 3
    assert max(piece.count(b"\n") for piece in pieces) < EVENTS_PER_PIECE
    assert sum(event["ph"] == "X" for event in parse(make_trace(many))) == len(many)


def one_span(stage, operation="work"):
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
    assert row_of(one_span(stage, operation), data) == row


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
