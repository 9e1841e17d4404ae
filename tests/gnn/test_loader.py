"""Minibatches made ahead of time: the same ones, in order, never too far ahead, and no error is lost."""

import threading

import pytest
import torch

from windrow.caching.request import CacheIndex, plan_request
from windrow.comm.errors import DataError, DeadlineError
from windrow.comm.meter import Stopwatch
from windrow.gnn.pipeline import MinibatchLoader, SeedTask
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.synthetic import community_graph

DEADLINE_S = 60.0


def plan_whole(ids):
    return plan_request(ids, [0, 200], 0, CacheIndex(torch.empty(0, dtype=torch.int64), 200))


def make_loader(threads, plan=None, deadline_s=DEADLINE_S):
    graph = community_graph(200, 4, seed=3)
    sampler = NeighborSampler(graph.indptr, graph.indices, (3, 2), seed=1)
    return MinibatchLoader(
        sampler, plan or plan_whole, threads=threads, deadline_s=deadline_s, stopwatch=Stopwatch()
    )


def tasks(count, drawn=None):
    for step in range(count):
        if drawn is not None:
            drawn.append(step)
        yield SeedTask(seeds=torch.arange(step, step + 5), epoch=0, step=step)


def test_threads_give_what_the_callers_own_thread_gives():
    inline = list(make_loader(0).run(tasks(12)))
    for threads in (1, 3):
        loader = make_loader(threads)
        for planned, expected in zip(loader.run(tasks(12)), inline, strict=True):
            assert planned.task.step == expected.task.step
            assert torch.equal(planned.minibatch.input_ids, expected.minibatch.input_ids)
            assert torch.equal(planned.request.local, expected.request.local)
            for block, other in zip(planned.minibatch.blocks, expected.minibatch.blocks, strict=True):
                assert torch.equal(block.indices, other.indices)
        loader.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_it_is_never_far_ahead(threads):
    drawn = []
    loader = make_loader(threads)
    for taken, _ in enumerate(loader.run(tasks(20, drawn)), start=1):
        assert len(drawn) <= taken + threads
    assert len(drawn) == 20
    loader.close()


def test_without_threads_nothing_is_done_ahead():
    drawn = []
    source = make_loader(0).run(tasks(3, drawn))
    next(source)
    assert drawn == [0]


def test_what_a_thread_raises_comes_out_where_its_minibatch_is_due():
    def plan(ids):
        if int(ids[0]) == 2:
            raise DataError("row 2 is broken")
        return plan_whole(ids)

    loader = make_loader(2, plan)
    source = loader.run(tasks(6))
    assert [next(source).task.step for _ in range(2)] == [0, 1]
    with pytest.raises(DataError, match="row 2"):
        next(source)
    loader.close()


def test_a_minibatch_that_takes_too_long_is_named():
    go_on = threading.Event()

    def plan(ids):
        go_on.wait(DEADLINE_S)
        return plan_whole(ids)

    loader = make_loader(1, plan, deadline_s=0.01)
    with pytest.raises(DeadlineError, match=r"epoch 0, step 0 was not sampled after 0.01 s"):
        next(loader.run(tasks(3)))
    go_on.set()
    loader.close()


def test_a_time_out_inside_a_thread_keeps_its_words():
    def plan(ids):
        raise TimeoutError("the disk sleeps")

    loader = make_loader(1, plan)
    with pytest.raises(TimeoutError, match="the disk sleeps"):
        next(loader.run(tasks(3)))
    loader.close()


def test_a_caller_may_stop_early_and_begin_again():
    threads_before = threading.active_count()
    loader = make_loader(1)
    source = loader.run(tasks(50))
    next(source)
    source.close()
    assert [planned.task.step for planned in loader.run(tasks(3))] == [0, 1, 2]
    loader.close()
    assert threading.active_count() == threads_before
