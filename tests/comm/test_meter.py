"""Counting traffic and time; spans of every collective from its posting to its end."""

import threading
import time
from collections import Counter

import pytest
import torch

from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter, RowsFound, Span, Stopwatch, Tracer, Traffic, trace_clock_ns


def test_amounts_add_up_by_stage_and_peer():
    meter = Meter()
    meter.record_sent("rows", 1, 3, 48)
    meter.record_sent("rows", 1, 2, 32)
    meter.record_sent("rows", 2, 1, 16)
    meter.record_received("rows", 2, 5, 80)
    meter.record_received("ids", 2, 5, 40)
    meter.record_reduced("gradients", 7, 28)
    meter.record_reduced("gradients", 7, 28)
    assert meter.totals("rows") == Traffic(rows_sent=6, bytes_sent=96, rows_received=5, bytes_received=80)
    second = Traffic(rows_sent=1, bytes_sent=16, rows_received=5, bytes_received=80)
    assert meter.totals("rows", peer=2) == second
    assert meter.totals(peer=2).bytes_received == 120
    assert meter.totals("gradients") == Traffic(elements_reduced=14, bytes_reduced=56)
    assert meter.totals("nothing of this name") == Traffic()
    assert meter.totals() == sum(meter.table().values(), start=Traffic())
    meter.record_sent("rows", 3, 0, 0)  # An empty message is none.
    meter.record_received("rows", 3, 0, 0)
    assert set(meter.table()) == {("rows", 1), ("rows", 2), ("ids", 2), ("gradients", None)}


def test_rows_found_add_up_by_stage_and_are_no_traffic():
    meter = Meter()
    meter.record_found("rows", local=3, remote=1)
    meter.record_found("rows", local=0, remote=2)
    meter.record_found("other rows", local=5, cached=4, remote=0)
    meter.record_found("other rows", local=0, cached=2, remote=1)
    assert meter.found("rows") == RowsFound(local=3, remote=3)
    assert meter.found("other rows") == RowsFound(local=5, cached=6, remote=1)
    assert meter.found() == RowsFound(local=8, cached=6, remote=4)
    assert meter.found("nothing of this name") == RowsFound()
    assert meter.table() == {}
    for stage, seconds in (("features", 1.0), ("loss", 0.5), ("features", 2.0)):
        meter.record_waiting(stage, seconds)
    assert meter.waiting_seconds == {"features": 3.0, "loss": 0.5}
    meter.record_sent("rows", 1, 1, 1)
    meter.reset()
    assert (meter.totals(), meter.found(), meter.waiting_seconds) == (Traffic(), RowsFound(), {})


def test_what_is_sent_is_received():
    def body(world):
        world.meter = Meter()
        counts = [(world.rank + peer) % 3 for peer in range(world.size)]
        world.all_to_all(torch.zeros(sum(counts), 4), counts, counts, stage="rows")
        return world.meter

    meters = Loopback.run(4, body)
    for rank, meter in enumerate(meters):
        assert set(meter.waiting_seconds) == {"rows"}
        for peer, other in enumerate(meters):
            there, back = meter.totals("rows", peer=peer), other.totals("rows", peer=rank)
            expected = 0 if peer == rank else (rank + peer) % 3
            assert there.rows_sent == back.rows_received == expected
            assert there.bytes_sent == back.bytes_received == 16 * expected


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves by hand."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_times_of_a_stage_add_up_and_include_inner_ones(clock):
    stopwatch = Stopwatch()
    for _ in range(2):
        with stopwatch.measure("epoch"):
            clock[0] += 1.0
            with stopwatch.measure("step"), stopwatch.measure("epoch"):
                clock[0] += 2.0
        clock[0] += 50.0
    assert stopwatch.seconds == {"step": 4.0, "epoch": 6.0}, "a stage inside itself counts once"
    stopwatch.reset()
    assert stopwatch.seconds == {}


def test_a_stage_that_fails_is_closed(clock):
    stopwatch = Stopwatch()

    def fail():
        with stopwatch.measure("step"):
            clock[0] += 1.5
            raise RuntimeError

    for _ in range(2):
        with pytest.raises(RuntimeError):
            fail()
    assert stopwatch.seconds == {"step": 3.0}


def test_threads_measure_at_the_same_time(clock):
    stopwatch = Stopwatch()
    both_are_in = threading.Barrier(3)
    both_may_leave = threading.Barrier(3)

    def work():
        with stopwatch.measure("sample"):
            both_are_in.wait()
            both_may_leave.wait()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    both_are_in.wait()
    clock[0] += 1.0
    both_may_leave.wait()
    for thread in threads:
        thread.join()
    assert stopwatch.seconds == {"sample": 2.0}


def test_a_tracer_sees_each_stage(clock):
    stopwatch = Stopwatch()
    with stopwatch.measure("before"):
        clock[0] += 1.0
    stopwatch.tracer = Tracer()
    with stopwatch.measure("epoch"):
        clock[0] += 1.0
        with stopwatch.measure("step"), stopwatch.measure("step"):
            clock[0] += 2.0
    with pytest.raises(RuntimeError), stopwatch.measure("failed"):
        raise RuntimeError
    second = 10**9
    assert stopwatch.tracer.spans == [
        Span("step", 102 * second, 104 * second),
        Span("epoch", 101 * second, 104 * second),
        Span("failed", 104 * second, 104 * second),
    ]


def test_spans_are_kept_up_to_the_limit_and_counted_beyond():
    tracer = Tracer(capacity=3)
    for number in range(5):
        tracer.record("sample", number, number + 1)
    assert tracer.spans == [Span("sample", number, number + 1) for number in range(3)]
    assert tracer.dropped == 2


def test_threads_record_at_the_same_time():
    tracer = Tracer()

    def record(name):
        for number in range(2000):
            tracer.record(name, number, number)

    threads = [threading.Thread(target=record, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(span.stage for span in tracer.spans) == dict.fromkeys("abcd", 2000)
    assert tracer.dropped == 0


def test_collectives_are_recorded_from_their_posting_to_their_end(spmd):
    def body(world):
        world.tracer = Tracer()
        before = trace_clock_ns()
        pending = world.start_all_reduce(torch.ones(5), stage="gradients")
        posted = trace_clock_ns()
        rows = torch.zeros(2 * world.size, 3)
        world.all_to_all(rows, [2] * world.size, [2] * world.size, stage="rows")
        waiting = trace_clock_ns()
        pending.wait()
        after = trace_clock_ns()
        spans, world.tracer = world.tracer.spans, None
        world.barrier(stage="unseen")
        return world.size, spans, (before, posted, waiting, after)

    for size, spans, (before, posted, waiting, after) in spmd(body):
        if size == 1:
            assert spans == []
            continue
        exchange, reduction = spans
        travelled = 2 * 3 * 4 * (size - 1)
        assert exchange[3:] == ("exchange", travelled, travelled)
        assert (exchange.stage, reduction.stage) == ("rows", "gradients")
        assert reduction[3:] == ("all_reduce", 20, 20)
        assert before <= reduction.begin_ns <= posted <= exchange.begin_ns
        # Nobody looked at the sum before it was waited for.
        assert exchange.end_ns <= waiting <= reduction.end_ns <= after


def test_transformed_results_are_recorded_once():
    def body(world):
        world.tracer = Tracer()
        counts = world.start_all_to_all_counts([3] * world.size, stage="counts").then(sum)
        assert counts.wait() == counts.wait() == 6
        return [span.stage for span in world.tracer.spans]

    assert Loopback.run(2, body) == [["counts"]] * 2


def test_what_debug_mode_asks_is_neither_recorded_nor_metered():
    def body(world):
        world.tracer, world.meter = Tracer(), Meter()
        world.all_reduce(torch.ones(1), stage="sum")
        return [span.stage for span in world.tracer.spans], list(world.meter.table())

    assert Loopback.run(2, body, debug=True) == [(["sum"], [("sum", None)])] * 2


def test_a_collective_that_fails_leaves_no_span():
    tracers = {}

    def body(world):
        tracers[world.rank] = world.tracer = Tracer()
        if world.rank == 1:
            raise KeyError("gone")
        world.all_reduce(torch.ones(1), stage="sum")

    with pytest.raises(KeyError):
        Loopback.run(2, body)
    assert tracers[0].spans == []
