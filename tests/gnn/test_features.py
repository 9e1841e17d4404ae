"""Vertex features: dense and to scale."""

import numpy as np
import pytest
import scipy.sparse
import torch

from windrow.comm.errors import DataError, RecipeError
from windrow.gnn.vertex_data import dense_features, float_features, standardise_features


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.uint32, np.int64, np.float16, np.float64])
def test_numbers_become_float32_rows(dtype: type) -> None:
    features = float_features(np.array([[0, 1], [1, 0]], dtype=dtype))
    assert features.dtype == torch.float32
    assert features.tolist() == [[0, 1], [1, 0]]


def test_one_number_per_vertex_is_one_column() -> None:
    assert float_features(torch.tensor([1, 2, 3])).shape == (3, 1)


def test_text_is_refused() -> None:
    with pytest.raises(DataError, match="features have dtype <U1; convert them to numbers"):
        float_features(np.array([["a"]]))


def test_sparse_equals_scipy() -> None:
    sparse = scipy.sparse.random(
        20, 7, density=0.3, format="csr", rng=np.random.default_rng(0), dtype=np.float32
    )
    dense = dense_features(sparse.indptr, sparse.indices, sparse.data, (20, 7))
    assert np.array_equal(dense.numpy(), sparse.toarray())


def test_a_broken_sparse_matrix_is_refused() -> None:
    indptr, columns, values = np.array([0, 1, 2]), np.array([0, 5]), np.array([1.0, 1.0])
    with pytest.raises(DataError, match="sparse feature 1 is in column 5, but there are 3 columns; correct"):
        dense_features(indptr, columns, values, (2, 3))
    with pytest.raises(
        DataError, match=r"sparse features of shape \(4, 9\) are inconsistent: 3 offsets, 2 columns"
    ):
        dense_features(indptr, columns, values, (4, 9))


def test_standard_gives_mean_0_and_variance_1() -> None:
    features = torch.tensor([[1.0, 5.0], [3.0, 5.0], [8.0, 5.0]])
    scaled = features.clone()
    standardise_features(scaled, "standard")
    assert torch.allclose(scaled[:, 0].mean(), torch.tensor(0.0), atol=1e-6)
    assert torch.allclose(scaled[:, 0].var(correction=0), torch.tensor(1.0))
    assert scaled[:, 1].tolist() == [0, 0, 0]
    assert scaled.dtype == torch.float32


def test_standard_in_chunks_of_columns_equals_numpy() -> None:
    features = np.random.default_rng(0).normal(3, 5, (30, 150)).astype(np.float32)
    expected = (features - features.mean(0, dtype=np.float64)) / features.std(0, dtype=np.float64)
    scaled = torch.from_numpy(features.copy())
    standardise_features(scaled, "standard")
    assert np.allclose(scaled.numpy(), expected, atol=1e-5)


def test_rows_divides_by_the_sum_of_magnitudes() -> None:
    features = torch.tensor([[1.0, -3.0], [0.0, 0.0]])
    standardise_features(features, "rows")
    assert features.tolist() == [[0.25, -0.75], [0.0, 0.0]]


def test_none_changes_nothing_and_others_are_refused() -> None:
    features = torch.eye(3, 2)
    standardise_features(features, "none")
    assert torch.equal(features, torch.eye(3, 2))
    with pytest.raises(RecipeError, match="standardise is 'zscore'; use 'none', 'standard' or 'rows'"):
        standardise_features(features, "zscore")
