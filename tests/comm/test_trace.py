"""windrow.comm.meter: what is kept, and that worlds record every collective from its posting to its end."""

import threading
from collections import Counter

import pytest
import torch

from windrow.comm.loopback import Loopback
from windrow.comm.meter import Span, Tracer, trace_clock_ns


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


def test_the_clock_never_goes_back():
    moments = [trace_clock_ns() for _ in range(1000)]
    assert moments == sorted(moments)


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


def test_what_debug_mode_asks_is_not_recorded():
    def body(world):
        world.tracer = Tracer()
        world.all_reduce(torch.ones(1), stage="sum")
        return [span.stage for span in world.tracer.spans]

    assert Loopback.run(2, body, debug=True) == [["sum"]] * 2


@pytest.mark.parametrize("posted", [True, False])
def test_a_collective_that_fails_leaves_no_span(posted):
    tracers = {}

    def body(world):
        tracers[world.rank] = world.tracer = Tracer()
        if world.rank == 1:
            raise KeyError("gone")
        if posted:
            world.all_reduce(torch.ones(1), stage="sum")

    with pytest.raises(KeyError):
        Loopback.run(2, body)
    assert tracers[0].spans == []
