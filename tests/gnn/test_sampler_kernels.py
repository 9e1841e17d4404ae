"""Each compiled pass of the sampler against a few lines of plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.random import GOLDEN, hash_ids, mix64
from windrow.gnn import sampler_kernels

KEY = 0x0123456789ABCDEF


def floyd(key: int, original_id: int, degree: int, count: int) -> list[int]:
    """Positions that a vertex samples, in order."""
    if count == degree:
        return list(range(degree))
    state = int(hash_ids(key, np.array([original_id]))[0])
    chosen: list[int] = []
    for draw in range(count):
        last = degree - count + draw
        position = mix64(state + (draw + 1) * GOLDEN) * (last + 1) >> 64
        chosen.append(last if position in chosen else position)
    return chosen


def draw(degrees: list[int], fanout: int, dtype: type, key: int = KEY) -> list[list[int]]:
    """Sample with one vertex per list, where entry i of the list of vertex v is 1000 * v + i."""
    lengths = np.array(degrees, dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64)
    indices = np.concatenate([1000 * v + np.arange(d) for v, d in enumerate(degrees)]).astype(dtype)
    block_indptr = np.empty(len(degrees) + 1, np.int64)
    total = sampler_kernels.count_edges(lengths, len(degrees), fanout, block_indptr)
    neighbors = np.empty(total, np.int32)
    taken = np.zeros(max(degrees) // 64 + 1, np.uint64)
    inner = np.array([mix64(v + GOLDEN) for v in range(len(degrees))], np.uint64)
    sampler_kernels.draw_neighbors(
        np.uint64(key), indices, starts, lengths, inner, block_indptr, taken, neighbors
    )
    assert not taken.any()
    return [neighbors[block_indptr[v] : block_indptr[v + 1]].tolist() for v in range(len(degrees))]


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(1, 2**32 - 1))
def test_bounded_is_the_high_half_of_the_product(word: int, limit: int) -> None:
    assert int(sampler_kernels.bounded(np.uint64(word), np.uint64(limit))) == word * limit >> 64


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=100), st.sampled_from([-1, 1, 2, 5, 15, 70]))
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_draw_neighbors_equals_floyd_with_a_list(dtype: type, degrees: list[int], fanout: int) -> None:
    expected = [
        [
            1000 * v + position
            for position in floyd(KEY, v, degree, degree if fanout < 0 else min(degree, fanout))
        ]
        for v, degree in enumerate(degrees)
    ]
    assert draw(degrees, fanout, dtype) == expected


@pytest.mark.parametrize("degree", [64, 65, 999])
@pytest.mark.parametrize("fanout", [1, 63, 64])
def test_draw_neighbors_at_the_borders_of_the_bitmap(degree: int, fanout: int) -> None:
    assert draw([degree], fanout, np.int32) == [floyd(KEY, 0, degree, min(degree, fanout))]


@pytest.mark.parametrize(("degree", "fanout"), [(6, 2), (20, 5), (64, 10), (65, 3), (100, 15)])
def test_every_position_and_every_pair_is_equally_likely(degree: int, fanout: int) -> None:
    repeats = 4000
    chosen = np.zeros((repeats, degree))
    for key in range(repeats // 8):
        lists = draw([degree] * 8, fanout, np.int32, mix64(key + 1))
        for vertex, picks in enumerate(lists):
            chosen[8 * key + vertex, np.array(picks) - 1000 * vertex] = 1
    counts = chosen.sum(0)
    share = fanout / degree
    # A sample without replacement: the counts sum to a constant, so the statistic has degree - 1 degrees of
    # freedom once it is divided by the variance of one indicator times degree / (degree - 1).
    variance = repeats * share * (1 - share) * degree / (degree - 1)
    statistic = ((counts - repeats * share) ** 2).sum() / variance
    assert abs(statistic - (degree - 1)) < 4.5 * np.sqrt(2 * (degree - 1))
    pairs = (chosen.T @ chosen)[np.triu_indices(degree, 1)]
    pair_share = share * (fanout - 1) / (degree - 1)
    worst = np.abs(pairs - repeats * pair_share).max()
    assert worst < 5 * np.sqrt(repeats * pair_share * (1 - pair_share))


@pytest.mark.parametrize("renumbered", [False, True])
def test_look_up_vertices_reads_only_the_new_ones(renumbered: bool) -> None:
    indptr = np.array([0, 3, 3, 7, 9])
    frontier = np.array([2, 0, 3])
    original_ids = np.array([40, 30, 20, 10]) if renumbered else None
    starts, degrees = np.full(3, -1), np.full(3, -1)
    hashes = np.zeros(3, np.uint64)
    sampler_kernels.look_up_vertices(indptr, original_ids, frontier, 1, 3, starts, degrees, hashes)
    assert starts.tolist() == [-1, 0, 7]
    assert degrees.tolist() == [-1, 3, 2]
    assert hashes.tolist() == [0, *(mix64(v + GOLDEN) for v in ((40, 10) if renumbered else (0, 3)))]


@pytest.mark.parametrize(("fanout", "expected"), [(-1, [0, 4, 4, 11]), (5, [0, 4, 4, 9]), (1, [0, 1, 1, 2])])
def test_count_edges_adds_up(fanout: int, expected: list[int]) -> None:
    block_indptr = np.empty(4, np.int64)
    assert sampler_kernels.count_edges(np.array([4, 0, 7, 99]), 3, fanout, block_indptr) == expected[-1]
    assert block_indptr.tolist() == expected
