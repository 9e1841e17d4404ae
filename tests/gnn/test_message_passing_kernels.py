"""Compiled kernels against loops; their use is tested in test_message_passing."""

import numpy as np
import numpy.typing as npt
import pytest

from windrow.gnn.message_passing_kernels import (
    counting_sort_by_source,
    edge_dot,
    segment_softmax,
    segment_softmax_backward,
)

INDPTR = np.array([0, 2, 2, 5], dtype=np.int64)
"""Three destinations, the middle one without edges."""


def random(*shape: int) -> npt.NDArray[np.float64]:
    return np.random.Generator(np.random.PCG64(len(shape))).normal(size=shape)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_counting_sort_is_a_stable_sort(dtype: type[np.int32] | type[np.int64]) -> None:
    indices: npt.NDArray[np.int32] | npt.NDArray[np.int64] = np.array([3, 0, 3, 3, 1], dtype=dtype)
    indptr, destinations, edge_ids = counting_sort_by_source(INDPTR, indices, 5)
    np.testing.assert_array_equal(indptr, [0, 1, 2, 2, 5, 5])
    np.testing.assert_array_equal(edge_ids, np.argsort(indices, kind="stable"))
    np.testing.assert_array_equal(destinations, np.array([0, 0, 2, 2, 2])[edge_ids])
    assert destinations.dtype == edge_ids.dtype == dtype


def test_edge_dot_multiplies_end_points() -> None:
    indices = np.array([3, 0, 3, 3, 1], dtype=np.int64)
    sources, destinations = random(4, 2, 7), random(3, 2, 7)
    products = np.empty((5, 2))
    edge_dot(INDPTR, indices, sources, destinations, products)
    ends = np.array([0, 0, 2, 2, 2])
    np.testing.assert_allclose(products, np.einsum("ehc,ehc->eh", sources[indices], destinations[ends]))


def test_softmax_and_its_gradient_follow_the_formula() -> None:
    scores, upstream = random(5, 2) * 300, random(5, 2)
    weights, gradient = np.empty((5, 2)), np.empty((5, 2))
    segment_softmax(INDPTR, scores, weights)
    segment_softmax_backward(INDPTR, weights, upstream, gradient)
    for start, stop in ((0, 2), (2, 5)):
        exponentials = np.exp(scores[start:stop] - scores[start:stop].max(0))
        expected = exponentials / exponentials.sum(0)
        np.testing.assert_allclose(weights[start:stop], expected)
        mean = (expected * upstream[start:stop]).sum(0)
        np.testing.assert_allclose(gradient[start:stop], expected * (upstream[start:stop] - mean), atol=1e-12)
