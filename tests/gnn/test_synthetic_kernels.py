"""The compiled loops of generated graphs against plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.random import hash_ids, stream_key
from windrow.gnn.graph_kernels import csc_from_pairs, draw_features, draw_pairs

SKEW = 2 / 3
CAPPED = 0.1
HEIGHT = 1 / (CAPPED + CAPPED**SKEW * (1 - CAPPED ** (1 - SKEW)) / (1 - SKEW))
"""Makes the weights of a community one on average."""
KEYS = np.array([stream_key(3, number) for number in range(5)], np.uint64)


def draws(sizes: list[int], mixing: float, count: int, first: int = 0, decay: float = 0.0) -> np.ndarray:
    """Both ends of each edge, as places: vertices are not shuffled."""
    starts = np.concatenate(([0], np.cumsum(sizes)))
    community_of = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    capped, heights = np.full(len(sizes), CAPPED), np.full(len(sizes), HEIGHT)
    pairs = np.empty(count, np.int64)
    vertices = np.arange(starts[-1])
    written = draw_pairs(
        first, KEYS, starts, community_of, capped, heights, vertices, SKEW, mixing, decay, pairs
    )
    return np.stack(np.divmod(pairs[:written], starts[-1]), 1)


def test_pairs_are_ordered_and_depend_on_the_number_of_the_draw_alone() -> None:
    pairs = draws([40, 60], 0.5, 2000)
    assert (pairs[:, 0] < pairs[:, 1]).all()
    assert pairs[:, 1].max() < 100
    parts = np.concatenate((draws([40, 60], 0.5, 900), draws([40, 60], 0.5, 1100, first=900)))
    assert np.array_equal(parts, pairs)


@pytest.mark.parametrize("mixing", [0.0, 0.3, 1.0])
def test_as_many_edges_leave_their_community_as_asked_for(mixing: float) -> None:
    pairs = draws([3000, 1000, 2000], mixing, 20_000)
    community = np.searchsorted([3000, 4000], pairs, side="right")
    assert abs((community[:, 0] != community[:, 1]).mean() - mixing) < 0.02
    # Communities take part by their size, away from home too.
    if mixing == 0:
        assert np.allclose(np.bincount(community.ravel()) / 40_000, [1 / 2, 1 / 6, 1 / 3], atol=0.01)


def test_weights_are_level_up_to_the_cap_and_fall_after_it() -> None:
    members = draws([1000], 0.0, 400_000).ravel() / 1000
    assert abs((members < CAPPED).mean() - CAPPED * HEIGHT) < 0.003
    assert abs((members < CAPPED / 2).mean() - CAPPED * HEIGHT / 2) < 0.003
    share = [((low <= members) & (members < low + 0.02)).mean() for low in (0.12, 0.24)]
    assert abs(share[0] / share[1] - (0.13 / 0.25) ** -SKEW) < 0.1


@settings(deadline=None)
@given(st.integers(1, 12), st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=60))
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_csc_from_pairs_equals_lists(dtype: type, num_vertices: int, edges: set[tuple[int, int]]) -> None:
    pairs = sorted({(a, b) for a, b in edges if a < b < num_vertices})
    lists: list[list[int]] = [[] for _ in range(num_vertices)]
    for low, high in pairs:
        lists[low].append(high)
        lists[high].append(low)
    keys = np.array([low * num_vertices + high for low, high in pairs], np.int64)
    indptr, indices = np.full(num_vertices + 1, -1), np.full(2 * len(pairs), -1, dtype)
    csc_from_pairs(keys, indptr, indices)
    found = [indices[indptr[v] : indptr[v + 1]].tolist() for v in range(num_vertices)]
    assert found == [sorted(neighbours) for neighbours in lists]


def test_features_are_noise_of_variance_one_around_a_direction() -> None:
    labels = np.arange(20_000) % 2
    directions = np.array([[0.0, 2.0, -1.0], [5.0, 0.0, 0.5]], np.float32)
    features = np.empty((20_000, 3), np.float32)
    draw_features(np.uint64(9), labels, directions, features)
    noise = features - directions[labels]
    assert np.allclose(noise.mean(0), 0, atol=0.03)
    assert np.allclose(noise.std(0), 1, atol=0.03)
    assert np.abs(np.corrcoef(noise.T) - np.eye(3)).max() < 0.03
    word = int(hash_ids(9, np.array([7 * 3 + 2]))[0])
    pieces = sum((word >> shift) % 2**16 for shift in (0, 16, 32, 48))
    expected = (pieces - 2 * (2**16 - 1)) / ((2**32 - 1) / 3) ** 0.5
    assert abs(noise[7, 2] - expected) < 1e-5
