"""Rows brought to rank 0 chunk by chunk, against all of them in one place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.loopback import Loopback
from windrow.gnn.inference import rows_in_users_order, wanted_vertices
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.synthetic import community_graph
from windrow.partition.book import PartitionBook

NUM_VERTICES = 40
GRAPH = community_graph(NUM_VERTICES, 3, seed=5, num_features=2)


def make_part(world, assignment):
    book = PartitionBook.from_assignment(assignment.numpy(), world.size)
    return PartitionedGraph.from_graph(GRAPH, book, world.rank)


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
    return [torch.cat(parts) for parts in zip(*chunks, strict=True)] if chunks else []


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
    vertices=st.lists(st.integers(0, NUM_VERTICES - 1), unique=True, min_size=1),
    chunk_rows=st.integers(1, 50),
)
def test_any_vertices_of_any_partition(parts, vertices, chunk_rows):
    """Parts may be empty, and vertices come in any order."""

    def body(world):
        return brought_together(world, torch.tensor(parts), torch.tensor(vertices), chunk_rows)

    assert_in_order(Loopback.run(3, body), torch.tensor(sorted(vertices)))


def test_no_vertices_are_no_chunks():
    nothing = torch.empty(0, dtype=torch.int64)
    assert (
        Loopback.run(2, lambda world: brought_together(world, torch.arange(40) % 2, nothing, 3)) == [[]] * 2
    )
