"""Exact and sampled inference against all in one place, and rows in the user's order."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.caching.cached_store import CachedStore
from windrow.comm.loopback import Loopback
from windrow.gnn.inference import (
    gather_predictions,
    infer_exactly,
    infer_sampled,
    own_vertices,
    rows_in_users_order,
    sampled_steps,
    wanted_vertices,
)
from windrow.gnn.message_passing import Block
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.pipeline import PipelineOptions
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.synthetic import community_graph
from windrow.partition.book import PartitionBook

NUM_VERTICES, SEED, FANOUTS = 90, 5, (4, 3)
GRAPH = community_graph(NUM_VERTICES, 3, seed=3, num_features=6)


def make_part(world, assignment=None):
    if assignment is None:
        assignment = torch.arange(NUM_VERTICES) * 7 % world.size
    book = PartitionBook.from_assignment(assignment.numpy(), world.size)
    return PartitionedGraph.from_graph(GRAPH, book, world.rank)


def make_model(kind="graphsage", **more):
    options = ModelOptions(kind=kind, hidden=8, num_layers=2, dropout=0.5, heads=2, **more)
    return build_model(options, in_features=6, out_features=3, seed=2).eval()


RESIDUAL = {"normalise": "layer", "residual": True}


@pytest.mark.parametrize("kind", ["graphsage", "gcn", "gat", "gin"])
def test_predictions_equal_the_whole_graph_in_one_piece(spmd, kind):
    with torch.no_grad():
        whole = Block.whole(GRAPH.indptr, GRAPH.indices)
        expected = make_model(kind, **RESIDUAL)([whole, whole], GRAPH.features)

    def body(world):
        part = make_part(world)
        own = infer_exactly(world, part, make_model(kind, **RESIDUAL), chunk_vertices=9)
        return gather_predictions(world, part, own)

    for predictions in spmd(body):
        torch.testing.assert_close(predictions, expected, rtol=1e-5, atol=1e-5)


def test_rows_of_some_vertices_come_in_their_order(spmd):
    ids = torch.randperm(NUM_VERTICES, generator=torch.Generator().manual_seed(1))[:17]

    def body(world):
        part = make_part(world)
        own = part.original_ids[own_vertices(part, ids)]
        return gather_predictions(world, part, own, ids), part.original_ids[ids]

    for found, expected_ids in spmd(body):
        assert torch.equal(found, expected_ids)


def test_chunks_change_nothing():
    part = make_part(Loopback.single())
    done = []
    small = infer_exactly(Loopback.single(), part, make_model(), chunk_vertices=7, progress=lambda *it: done.append(it))
    assert done == [("layers", pytest.approx(number / 26)) for number in range(1, 27)]
    torch.testing.assert_close(small, infer_exactly(Loopback.single(), part, make_model()), rtol=1e-5, atol=1e-6)


def make_sampler(graph, model, original_ids=None):
    return NeighborSampler(
        graph.indptr,
        graph.indices,
        FANOUTS,
        seed=SEED,
        original_ids=original_ids,
        source_degrees=model.needs_source_degrees,
    )


def expected(kind="graphsage"):
    """All vertices in one minibatch, in the user's order."""
    model = make_model(kind)
    minibatch = make_sampler(GRAPH, model).sample(torch.arange(NUM_VERTICES), epoch=0, step=0)
    with torch.no_grad():
        return model(minibatch.blocks, GRAPH.features[minibatch.input_ids])


def infer(world, part, wanted, *, kind="graphsage", batch_size=16, depth=3, cached_ids=None):
    """The user's ids of this rank's vertices, their outputs, and how many minibatches there were."""
    steps = []
    ids = None if wanted is None else torch.from_numpy(part.book.old_to_new)[wanted]
    model = make_model(kind)
    outputs = infer_sampled(
        world,
        part,
        model,
        ids,
        sampler=make_sampler(part, model, part.original_ids),
        store=CachedStore(world, part.offsets, part.features, cached_ids=cached_ids),
        options=PipelineOptions(depth=depth, sampler_threads=2),
        batch_size=batch_size,
        progress=lambda _, share: steps.append(share),
    )
    assert len(steps) == sampled_steps(part, ids, batch_size)
    assert steps == sorted(steps)
    assert steps[-1:] in ([], [1.0])
    return part.original_ids[own_vertices(part, ids)], outputs, len(steps)


def assert_right(results, wanted, kind="graphsage"):
    ids = torch.cat([each[0] for each in results])
    assert torch.equal(ids.sort().values, wanted.sort().values)
    rows = torch.cat([each[1] for each in results])
    torch.testing.assert_close(rows, expected(kind)[ids], rtol=1e-5, atol=1e-5)
    assert len({each[2] for each in results}) == 1


def test_any_number_of_ranks_gives_the_same(spmd):
    wanted = torch.arange(NUM_VERTICES)
    assert_right(spmd(lambda world: infer(world, make_part(world), None)), wanted)


@pytest.mark.parametrize("kind", ["gcn", "gat"])
@pytest.mark.parametrize(("depth", "batch_size"), [(0, 7), (1, 1), (5, 1000)])
def test_neither_depth_nor_batch_size_matters(kind, depth, batch_size):
    wanted = torch.tensor([3, 88, 4, 50, 51, 0])

    def body(world):
        return infer(world, make_part(world), wanted, kind=kind, depth=depth, batch_size=batch_size)

    assert_right(Loopback.run(3, body), wanted, kind)


def test_a_cache_changes_nothing():
    def body(world):
        part = make_part(world)
        start, stop = part.own_range
        others = torch.cat([torch.arange(0, start), torch.arange(stop, NUM_VERTICES)])
        plain, cached = infer(world, part, None), infer(world, part, None, cached_ids=others[::2])
        assert torch.equal(plain[1], cached[1])
        return cached

    assert_right(Loopback.run(2, body), torch.arange(NUM_VERTICES))


def test_a_rank_without_vertices_takes_part():
    def body(world):
        # The model gives other outputs than the graph has labels, which a rank without vertices cannot know.
        part = replace(make_part(world, torch.arange(NUM_VERTICES) % 2), num_classes=7)
        return infer(world, part, None)

    results = Loopback.run(3, body)
    assert [len(each[0]) for each in results] == [45, 45, 0]
    assert_right(results, torch.arange(NUM_VERTICES))


def test_nothing_asked_for_is_nothing_done():
    nothing = torch.empty(0, dtype=torch.int64)
    for ids, outputs, steps in Loopback.run(2, lambda world: infer(world, make_part(world), nothing)):
        assert (len(ids), tuple(outputs.shape), steps) == (0, (0, 3), 0)


def brought_together(world, assignment, vertices, chunk_rows):
    """What each rank got: ids and rows of all chunks; the row of the user's vertex v is (v, -v)."""
    part = make_part(world, assignment)
    start, stop = part.own_range
    ids = None if vertices is None else torch.from_numpy(part.book.old_to_new)[vertices]
    own_ids = torch.arange(start, stop) if ids is None else ids[(ids >= start) & (ids < stop)].sort().values
    original = part.original_ids[own_ids]
    rows = torch.stack([original, -original], 1)
    wanted = wanted_vertices(part, ids)
    chunks = list(rows_in_users_order(world, part, wanted, own_ids, rows, chunk_rows=chunk_rows))
    assert all(len(chunk) <= chunk_rows for chunk, _ in chunks)
    return [torch.cat(parts) for parts in zip((wanted[:0], rows[:0]), *chunks, strict=True)]


def assert_in_order(results, expected):
    for rank, (ids, rows) in enumerate(results):
        assert torch.equal(ids, expected)
        wanted = expected if rank == 0 else expected[:0]
        assert torch.equal(rows, torch.stack([wanted, -wanted], 1))


@pytest.mark.parametrize("chunk_rows", [7, 1000])
def test_all_vertices_come_in_the_users_order(spmd, chunk_rows):
    assignment = torch.arange(NUM_VERTICES) * 7 % 3

    def body(world):
        return brought_together(world, assignment % world.size, None, chunk_rows)

    assert_in_order(spmd(body), torch.arange(NUM_VERTICES))


@given(
    parts=st.lists(st.integers(0, 2), min_size=NUM_VERTICES, max_size=NUM_VERTICES),
    vertices=st.lists(st.integers(0, NUM_VERTICES - 1), unique=True),
    chunk_rows=st.integers(1, 50),
)
def test_any_vertices_of_any_partition(parts, vertices, chunk_rows):
    """Parts may be empty, and vertices come in any order."""
    wanted = torch.tensor(vertices, dtype=torch.int64)

    def body(world):
        return brought_together(world, torch.tensor(parts), wanted, chunk_rows)

    assert_in_order(Loopback.run(3, body), wanted.sort().values)
