import numpy as np
import pytest

from windrow.recsys.models.interaction_kernels import multiply_pairs, multiply_pairs_backward


@pytest.mark.parametrize(
    ("samples", "count", "dim"), [(0, 3, 4), (1, 1, 4), (2, 2, 1), (5, 4, 3), (3, 9, 16)]
)
def test_against_plain_loops(samples, count, dim):
    numbers = np.random.Generator(np.random.PCG64(1))
    vectors = numbers.normal(size=(samples, count, dim)).astype(np.float32)
    pairs = [(row, column) for row in range(count) for column in range(row)]
    upstream = numbers.normal(size=(samples, len(pairs))).astype(np.float32)
    dots, gradient = np.full_like(upstream, np.nan), np.full_like(vectors, np.nan)
    multiply_pairs(vectors, dots)
    multiply_pairs_backward(vectors, upstream, gradient)

    expected = np.zeros((samples, count, dim))
    for pair, (row, column) in enumerate(pairs):
        np.testing.assert_allclose(
            dots[:, pair], (vectors[:, row] * vectors[:, column]).sum(1), rtol=1e-5, atol=1e-5
        )
        expected[:, row] += upstream[:, pair, None] * vectors[:, column]
        expected[:, column] += upstream[:, pair, None] * vectors[:, row]
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)
