"""Counting traffic and time."""

import threading
import time

import pytest
import torch

from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter, RowsFound, Span, Stopwatch, Tracer, Traffic


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
    assert meter.totals("rows", peer=2) == Traffic(
        rows_sent=1, bytes_sent=16, rows_received=5, bytes_received=80
    )
    assert meter.totals(peer=2).bytes_received == 120
    assert meter.totals("gradients") == Traffic(elements_reduced=14, bytes_reduced=56)
    assert meter.totals("nothing of this name") == Traffic()
    assert meter.totals() == sum(meter.table().values(), start=Traffic())


def test_the_table_has_a_line_for_each_stage_and_peer():
    meter = Meter()
    meter.record_received("rows", 0, 1, 8)
    meter.record_reduced("loss", 1, 4)
    meter.record_sent("rows", 0, 2, 16)
    assert meter.table() == {
        ("rows", 0): Traffic(rows_sent=2, bytes_sent=16, rows_received=1, bytes_received=8),
        ("loss", None): Traffic(elements_reduced=1, bytes_reduced=4),
    }


def test_empty_messages_leave_no_trace():
    meter = Meter()
    meter.record_sent("rows", 1, 0, 0)
    meter.record_received("rows", 1, 0, 0)
    assert meter.table() == {}


def test_reset_forgets():
    meter = Meter()
    meter.record_sent("rows", 1, 1, 1)
    meter.record_found("rows", local=1, remote=2)
    meter.reset()
    assert meter.totals() == Traffic()
    assert meter.found() == RowsFound()


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


def test_what_is_sent_is_received():
    def body(world):
        world.meter = Meter()
        counts = [(world.rank + peer) % 3 for peer in range(world.size)]
        world.all_to_all(torch.zeros(sum(counts), 4), counts, counts, stage="rows")
        return world.meter

    meters = Loopback.run(4, body)
    for rank, meter in enumerate(meters):
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


def test_times_of_a_stage_add_up(clock):
    stopwatch = Stopwatch()
    for seconds in (2.0, 3.0):
        with stopwatch.measure("sample"):
            clock[0] += seconds
        clock[0] += 50.0
    assert stopwatch.seconds == {"sample": 5.0}
    stopwatch.reset()
    assert stopwatch.seconds == {}


def test_an_outer_stage_includes_the_inner_one(clock):
    stopwatch = Stopwatch()
    with stopwatch.measure("epoch"):
        clock[0] += 1.0
        with stopwatch.measure("step"):
            clock[0] += 2.0
    assert stopwatch.seconds == {"step": 2.0, "epoch": 3.0}


def test_a_stage_inside_itself_counts_once(clock):
    stopwatch = Stopwatch()
    with stopwatch.measure("fetch"):
        clock[0] += 1.0
        with stopwatch.measure("fetch"):
            clock[0] += 2.0
    with stopwatch.measure("fetch"):
        clock[0] += 4.0
    assert stopwatch.seconds == {"fetch": 7.0}


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


def test_a_gpu_is_waited_for_at_both_ends_and_a_cpu_never(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    with Stopwatch(torch.device("cpu")).measure("forward"):
        pass
    assert waited == []
    device = torch.device("cuda", 1)
    with Stopwatch(device).measure("forward"):
        assert waited == [device]
    assert waited == [device, device]


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


def test_waiting_is_added_up_by_stage_until_the_reset():
    meter = Meter()
    for stage, seconds in (("features", 1.0), ("loss", 0.5), ("features", 2.0)):
        meter.record_waiting(stage, seconds)
    assert meter.waiting_seconds == {"features": 3.0, "loss": 0.5}
    meter.reset()
    assert meter.waiting_seconds == {}
