"""Blocks: counts, transposition, moving."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.gnn.message_passing import Block, Minibatch, Transpose, transpose_anywhere


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    num_sources = draw(st.integers(1, 12))
    num_destinations = draw(st.integers(0, num_sources))
    degrees = draw(st.lists(st.integers(0, 5), min_size=num_destinations, max_size=num_destinations))
    sources = st.integers(0, num_sources - 1)
    indices = draw(st.lists(sources, min_size=sum(degrees), max_size=sum(degrees)))
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    indptr = torch.zeros(num_destinations + 1, dtype=torch.int64)
    indptr[1:] = torch.tensor(degrees, dtype=torch.int64).cumsum(0)
    return Block(
        num_sources=num_sources,
        num_destinations=num_destinations,
        indptr=indptr,
        indices=torch.tensor(indices, dtype=dtype),
    )


def transpose_by_loop(block: Block) -> list[list[tuple[int, int]]]:
    groups: list[list[tuple[int, int]]] = [[] for _ in range(block.num_sources)]
    for destination in range(block.num_destinations):
        for edge in range(int(block.indptr[destination]), int(block.indptr[destination + 1])):
            groups[int(block.indices[edge])].append((destination, edge))
    return groups


def groups_of(transpose: Transpose) -> list[list[tuple[int, int]]]:
    pairs = list(zip(transpose.indices.tolist(), transpose.edge_ids.tolist(), strict=True))
    bounds = transpose.indptr.tolist()
    return [pairs[start:stop] for start, stop in pairwise(bounds)]


@given(blocks())
@settings(deadline=None)
def test_transpose_equals_a_loop(block: Block) -> None:
    expected = transpose_by_loop(block)
    for transpose in (block.transpose(), transpose_anywhere(block)):
        assert groups_of(transpose) == expected
        assert transpose.indptr.dtype == torch.int64
        assert transpose.indices.dtype == transpose.edge_ids.dtype == block.indices.dtype


@given(blocks())
@settings(deadline=None)
def test_degrees_count_edges(block: Block) -> None:
    assert int(block.degrees.sum()) == int(block.out_degrees.sum()) == block.num_edges
    assert torch.equal(
        torch.bincount(block.edge_destinations, minlength=block.num_destinations), block.degrees
    )
    assert torch.equal(block.transpose().indptr.diff(), block.out_degrees)


def a_block() -> Block:
    return Block.whole(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 0]))


def test_transpose_is_computed_once() -> None:
    block = a_block()
    assert block.transpose() is block.transpose()


def test_whole_graph_has_as_many_sources_as_destinations() -> None:
    block = a_block()
    assert (block.num_sources, block.num_destinations, block.num_edges) == (2, 2, 3)


def test_moving_to_the_same_device_keeps_the_block() -> None:
    block = a_block()
    assert block.to("cpu") is block


@pytest.mark.parametrize("source_degrees", [None, torch.tensor([5, 6])])
def test_moving_takes_every_array_along(source_degrees: torch.Tensor | None) -> None:
    block = Block(
        num_sources=2,
        num_destinations=1,
        indptr=torch.tensor([0, 1]),
        indices=torch.tensor([1]),
        source_degrees=source_degrees,
    )
    seeds = torch.tensor([7])
    moved = Minibatch(seeds=seeds, input_ids=torch.tensor([7, 8]), blocks=[block]).to("meta")
    (there,) = moved.blocks
    assert {moved.seeds.device.type, moved.input_ids.device.type, there.device.type} == {"meta"}
    assert there.indptr.device.type == "meta"
    assert (there.source_degrees is None) == (source_degrees is None)
    assert (there.num_sources, there.num_destinations) == (2, 1)
