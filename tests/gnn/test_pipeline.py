"""The pipeline: the same minibatches at any depth, on every world, with every cache."""

import contextlib
import shutil
import subprocess
import sys
import threading

import pytest
import torch

from windrow.caching.cached_store import CachedStore
from windrow.caching.request import index_cache, plan_request
from windrow.comm.errors import DataError, DeadlineError
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter, Stopwatch
from windrow.gnn.pipeline import MinibatchPipeline, PipelineOptions, SeedTask, _DeviceCopy, _MinibatchLoader
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.synthetic import community_graph

VERTICES = 200
STEPS = 7
DEPTHS = (0, 1, 2, 3, 5, 20)
CPU = torch.device("cpu")


def offsets_of(world):
    return [VERTICES * rank // world.size for rank in range(world.size + 1)]


def make_pipeline(world, *, depth, cached=(), threads=1, device=CPU, window=0):
    graph = community_graph(VERTICES, 4, seed=3, num_features=5)
    offsets = offsets_of(world)
    first, last = offsets[world.rank], offsets[world.rank + 1]
    remote = [vertex for vertex in cached if not first <= vertex < last]
    store = CachedStore(
        world,
        offsets,
        graph.features[first:last].clone(),
        cached_ids=torch.tensor(remote, dtype=torch.int64),
        device=device,
    )
    sampler = NeighborSampler(graph.indptr, graph.indices, (4, 3), seed=9)
    pipeline = MinibatchPipeline(
        world,
        sampler,
        store,
        PipelineOptions(depth=depth, sampler_threads=threads),
        device=device,
        stopwatch=Stopwatch(),
        window=window,
    )
    return pipeline, graph


def tasks(world, steps=STEPS):
    for step in range(steps):
        # Rank 1 has no seeds in every third step.
        count = 0 if world.rank == 1 and step % 3 == 1 else 4 + step
        yield SeedTask(seeds=(torch.arange(count) * 7 + step + world.rank * 31) % VERTICES, epoch=1, step=step)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize(
    ("cached", "window"),
    [((), 0), (range(0, VERTICES, 3), 0), (range(0, VERTICES, 3), 2), (range(VERTICES), 2)],
    ids=["none", "third", "third, window", "all"],
)
def test_every_minibatch_gets_its_rows(spmd, depth, cached, window):
    def body(world):
        pipeline, graph = make_pipeline(world, depth=depth, cached=cached, window=window)
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
        found = [as_lists(loaded.minibatch) for loaded in pipeline.run(tasks(world))]
        pipeline.close()
        return found

    def as_lists(minibatch):
        return minibatch.input_ids.tolist(), [block.indices.tolist() for block in minibatch.blocks]

    expected = Loopback.run(2, lambda world: body(world, 0))
    assert all(Loopback.run(2, lambda world, d=depth: body(world, d)) == expected for depth in DEPTHS[1:])


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


def test_an_epoch_may_be_empty_or_shorter_than_the_pipeline(spmd):
    def body(world):
        pipeline, _ = make_pipeline(world, depth=5)
        counts = [len(list(pipeline.run(tasks(world, steps)))) for steps in (0, 1, 2, 6)]
        pipeline.close()
        return counts

    assert all(counts == [0, 1, 2, 6] for counts in spmd(body))


@pytest.mark.parametrize(("depth", "window"), [(0, 0), (3, 0), (0, 4), (3, 4)])
def test_all_ranks_may_stop_early_and_begin_again(spmd, depth, window):
    def body(world):
        pipeline, graph = make_pipeline(world, depth=depth, cached=range(0, VERTICES, 5), window=window)
        for _ in range(3):
            for loaded in pipeline.run(tasks(world)):
                if loaded.task.step == 2:
                    break
            # What was asked for ahead must not be taken for what is asked for later.
            world.barrier(stage="between")
        for loaded in pipeline.run(tasks(world)):
            assert torch.equal(loaded.rows, graph.features[loaded.input_ids])
        assert pipeline._store.under_way == []
        pipeline.close()

    spmd(body)


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_traffic_of_what_is_still_under_way_is_not_counted(depth):
    """A checkpoint after some steps keeps the counts of those steps: the others are made again by who goes on there."""

    def body(world):
        counts = []
        for depth_here in (0, depth):
            world.meter = Meter()
            pipeline, _ = make_pipeline(world, depth=depth_here)
            run, meter = pipeline.run(tasks(world)), world.meter
            counts.append([(meter.totals("rows: rows"), meter.found("rows: rows")) for _ in run])
            pipeline.close()
        return counts

    for one_by_one, ahead in Loopback.run(2, body, deadline_s=60):
        assert ahead == one_by_one
        assert ahead[-1][0].rows_received > ahead[0][0].rows_received > 0


class CopyingBeside:
    """Stands for a GPU: says when copies begin, and that they run beside computing."""

    overlaps = True

    def __init__(self, events):
        self.events, self.copies = events, 0

    def queue(self):
        return contextlib.nullcontext()

    def mark(self):
        self.events.append(("copied", self.copies))
        self.copies += 1
        return self.copies - 1

    def hand_over(self, done, tensors):
        self.events.append(("handed over", done))
        assert len(list(tensors)) >= 3


def test_a_copy_begins_before_the_minibatch_before_it_is_computed():
    def body(world):
        events = []
        pipeline, graph = make_pipeline(world, depth=3)
        pipeline._copies = CopyingBeside(events)
        pipeline._room = lambda num_rows: None
        for loaded in pipeline.run(tasks(world)):
            events.append(("computed", loaded.task.step))
            assert torch.equal(loaded.rows, graph.features[loaded.input_ids])
            world.barrier(stage="between")
        pipeline.close()
        return events

    last = STEPS - 1
    expected = [("copied", 0)]
    for step in range(last):
        expected += [("copied", step + 1), ("handed over", step), ("computed", step)]
    expected += [("handed over", last), ("computed", last)]
    assert Loopback.run(2, body, deadline_s=60) == [expected] * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_gpu_gets_every_row(depth):
    pipeline, graph = make_pipeline(Loopback.single(), depth=depth, device=torch.device("cuda"))
    for loaded in pipeline.run(tasks(Loopback.single())):
        assert torch.equal(loaded.rows.cpu(), graph.features[loaded.input_ids])
        assert loaded.minibatch.blocks[0].device.type == "cuda"
    pipeline.close()


def plan_whole(ids):
    return plan_request(ids, [0, VERTICES], 0, index_cache(torch.empty(0, dtype=torch.int64), VERTICES))


def make_loader(threads, plan=plan_whole, deadline_s=60.0):
    graph = community_graph(VERTICES, 4, seed=3)
    sampler = NeighborSampler(graph.indptr, graph.indices, (3, 2), seed=1)
    return _MinibatchLoader(sampler, plan, threads=threads, deadline_s=deadline_s, stopwatch=Stopwatch())


def seed_tasks(count, drawn=None):
    for step in range(count):
        if drawn is not None:
            drawn.append(step)
        yield SeedTask(seeds=torch.arange(step, step + 5), epoch=0, step=step)


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_it_is_never_far_ahead(threads):
    drawn = []
    loader = make_loader(threads)
    for taken, _ in enumerate(loader.run(seed_tasks(20, drawn)), start=1):
        assert taken <= len(drawn) <= taken + threads
    assert len(drawn) == 20
    loader.close()


def test_what_a_thread_raises_comes_out_where_its_minibatch_is_due():
    def plan(ids):
        if int(ids[0]) == 2:
            raise DataError("row 2 is broken")
        return plan_whole(ids)

    loader = make_loader(2, plan)
    source = loader.run(seed_tasks(6))
    assert [next(source).task.step for _ in range(2)] == [0, 1]
    with pytest.raises(DataError, match="row 2"):
        next(source)
    loader.close()


def test_a_minibatch_that_takes_too_long_is_named():
    go_on = threading.Event()

    def plan(ids):
        go_on.wait(60.0)
        return plan_whole(ids)

    loader = make_loader(1, plan, deadline_s=0.01)
    with pytest.raises(DeadlineError, match=r"epoch 0, step 0 was not sampled after 0.01 s"):
        next(loader.run(seed_tasks(3)))
    go_on.set()
    loader.close()


def test_a_time_out_inside_a_thread_keeps_its_words():
    def plan(ids):
        raise TimeoutError("the disk sleeps")

    loader = make_loader(1, plan)
    with pytest.raises(TimeoutError, match="the disk sleeps"):
        next(loader.run(seed_tasks(3)))
    loader.close()


def test_a_caller_may_stop_early_and_begin_again():
    threads_before = threading.active_count()
    loader = make_loader(1)
    source = loader.run(seed_tasks(50))
    next(source)
    source.close()
    assert [planned.task.step for planned in loader.run(seed_tasks(3))] == [0, 1, 2]
    loader.close()
    assert threading.active_count() == threads_before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_a_gpu_computes_with_has_arrived():
    device = torch.device("cuda")
    copies = _DeviceCopy(device)
    assert copies.overlaps
    for value in range(20):
        source = torch.full((1 << 20,), float(value)).pin_memory()
        with copies.queue():
            assert torch.cuda.current_stream(device) != torch.cuda.default_stream(device)
            arrived = source.to(device, non_blocking=True)
            done = copies.mark()
        copies.hand_over(done, [arrived, source])
        assert float((arrived * 2).sum()) == 2 * value * len(source)


FAILING_JOB = """
import contextlib
import sys
import torch
from windrow.caching.cached_store import CachedStore
from windrow.comm.connect import connect
from windrow.comm.meter import Stopwatch
from windrow.gnn.pipeline import MinibatchPipeline, PipelineOptions, SeedTask
from windrow.gnn.remote_lists import RemoteLists
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.synthetic import community_graph

with connect("mpi", deadline_s=60) as world:
    graph = community_graph(200, 4, seed=3, num_features=5)
    first, last = 100 * world.rank, 100 * world.rank + 100
    store = CachedStore(world, [0, 100, 200], graph.features[first:last].clone())
    remote = None
    if sys.argv[1] == "partitioned":
        lists = graph.indptr.numpy(), graph.indices.numpy()
        remote = RemoteLists(world, [0, 100, 200], *lists, None, {}, stage="neighbours")
    sampler = NeighborSampler(graph.indptr, graph.indices, (4, 3), seed=9, remote=remote)

    class Failing:
        splits_by_type = False
        remote = sampler.remote

        def sample(self, seeds, *, epoch, step):
            if world.rank == 1 and step == 5:
                raise KeyError("the cause")
            return sampler.sample(seeds, epoch=epoch, step=step)

    pipeline = MinibatchPipeline(
        world, Failing(), store, PipelineOptions(depth=3), device=torch.device("cpu"), stopwatch=Stopwatch()
    )
    tasks = (SeedTask(seeds=torch.arange(9), epoch=0, step=step) for step in range(20))
    with contextlib.closing(pipeline):
        for loaded in pipeline.run(tasks):
            world.all_reduce(torch.ones(3), stage="gradients")
    print("never reached")
"""


@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
def test_an_error_in_a_sampling_thread_ends_a_real_job(topology):
    command = [shutil.which("mpirun"), "-n", "2", sys.executable, "-P", "-c", FAILING_JOB, topology]
    # Less than the job's own deadline: nobody waits for that.
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "rank 1 of 2 failed" in done.stderr
    assert "KeyError: 'the cause'" in done.stderr
    assert "never reached" not in done.stdout
