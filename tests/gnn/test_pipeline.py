"""The pipeline: the same minibatches at any depth, on every world, with every cache."""

import pytest
import torch

from windrow.caching.cached_store import CachedStore
from windrow.comm.errors import DataError
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Stopwatch
from windrow.gnn.loader import SeedTask
from windrow.gnn.pipeline import MinibatchPipeline
from windrow.gnn.pipeline_options import PipelineOptions
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.synthetic import community_graph

VERTICES = 200
STEPS = 7
DEPTHS = (0, 1, 2, 3, 5, 20)


def offsets_of(world):
    return [VERTICES * rank // world.size for rank in range(world.size + 1)]


def make_pipeline(world, *, depth, cached=(), threads=1):
    graph = community_graph(VERTICES, 4, seed=3, num_features=5)
    offsets = offsets_of(world)
    first, last = offsets[world.rank], offsets[world.rank + 1]
    remote = [vertex for vertex in cached if not first <= vertex < last]
    store = CachedStore(
        world, offsets, graph.features[first:last].clone(), cached_ids=torch.tensor(remote, dtype=torch.int64)
    )
    sampler = NeighborSampler(graph.indptr, graph.indices, (4, 3), seed=9)
    pipeline = MinibatchPipeline(
        world,
        sampler,
        store,
        PipelineOptions(depth=depth, sampler_threads=threads),
        device=torch.device("cpu"),
        stopwatch=Stopwatch(),
    )
    return pipeline, graph


def tasks(world, steps=STEPS):
    for step in range(steps):
        # Rank 1 has no seeds in every third step.
        count = 0 if world.rank == 1 and step % 3 == 1 else 4 + step
        yield SeedTask(
            seeds=(torch.arange(count) * 7 + step + world.rank * 31) % VERTICES, epoch=1, step=step
        )


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("cached", [(), range(0, VERTICES, 3), range(VERTICES)], ids=["none", "third", "all"])
def test_every_minibatch_gets_its_rows(spmd, depth, cached):
    def body(world):
        pipeline, graph = make_pipeline(world, depth=depth, cached=cached)
        seen = []
        for loaded in pipeline.run(tasks(world)):
            assert torch.equal(loaded.rows, graph.features[loaded.input_ids])
            assert torch.equal(loaded.minibatch.seeds, loaded.task.seeds)
            # What a trainer does between two minibatches must not get in the way.
            world.all_reduce(torch.ones(3), stage="between")
            world.barrier(stage="between")
            seen.append((loaded.task.step, loaded.input_ids.tolist()))
        pipeline.close()
        return seen

    for rank, seen in enumerate(spmd(body)):
        assert [step for step, _ in seen] == list(range(STEPS)), rank


def test_depth_changes_nothing_about_minibatches():
    def body(world, depth):
        pipeline, _ = make_pipeline(world, depth=depth, threads=2)
        found = [loaded.input_ids for loaded in pipeline.run(tasks(world))]
        pipeline.close()
        return found

    expected = Loopback.run(2, lambda world: body(world, 0))
    for depth in DEPTHS[1:]:
        for ids, same in zip(Loopback.run(2, lambda world, d=depth: body(world, d)), expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ids, same, strict=True))


def test_a_stage_holds_as_many_minibatches_as_its_place_says():
    """What is posted before minibatch i is handed over: rows of i + 1, ids of i + 2, counts of i + 3."""
    stages = []

    class Gather:
        def __init__(self, inner, number):
            self.inner, self.number = inner, number

        def send_ids(self):
            stages.append(("ids", self.number))
            self.inner.send_ids()

        def send_rows(self):
            stages.append(("rows", self.number))
            self.inner.send_rows()

        def finish(self, out=None):
            stages.append(("combine", self.number))
            return self.inner.finish(out)

    pipeline, _ = make_pipeline(Loopback.single(), depth=3)
    start, started = pipeline._store.start, []

    def counted(request):
        started.append(request)
        stages.append(("counts", len(started) - 1))
        return Gather(start(request), len(started) - 1)

    pipeline._store.start = counted
    source = pipeline.run(tasks(Loopback.single(), steps=9))
    for _ in range(3):
        next(source)
    stages.clear()
    next(source)
    assert stages == [("combine", 3), ("counts", 6), ("rows", 4), ("ids", 5)]
    source.close()
    pipeline.close()


@pytest.mark.parametrize("depth", [0, 3])
def test_an_error_in_a_sampling_thread_ends_all_ranks(depth):
    def body(world):
        def broken():
            yield from tasks(world, 2)
            bad = VERTICES if world.rank == 0 else 0
            yield SeedTask(seeds=torch.tensor([bad]), epoch=0, step=2)
            yield from tasks(world, 5)

        pipeline, _ = make_pipeline(world, depth=depth)
        try:
            for _ in pipeline.run(broken()):
                pass
        finally:
            pipeline.close()

    with pytest.raises(DataError, match=f"seed {VERTICES}"):
        Loopback.run(2, body, deadline_s=60)


def test_an_epoch_may_be_empty_or_shorter_than_the_pipeline(spmd):
    def body(world):
        pipeline, _ = make_pipeline(world, depth=5)
        counts = [len(list(pipeline.run(tasks(world, steps)))) for steps in (0, 1, 2, 6)]
        pipeline.close()
        return counts

    assert all(counts == [0, 1, 2, 6] for counts in spmd(body))
