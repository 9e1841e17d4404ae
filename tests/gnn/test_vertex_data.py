"""Features, labels and splits of vertices."""

import re

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError, RecipeError
from windrow.gnn.graph import HAS_COLUMNS
from windrow.gnn.vertex_data import (
    SplitOptions,
    dense_features,
    float_features,
    prepare_labels,
    random_split,
    scale_features,
    split_from_masks,
    standardise_features,
)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.uint32, np.int64, np.float16, np.float64])
def test_numbers_become_float32_rows(dtype):
    features = float_features(np.array([[0, 1], [1, 0]], dtype=dtype))
    assert features.dtype == torch.float32
    assert features.tolist() == [[0, 1], [1, 0]]


def test_one_number_per_vertex_is_one_column_and_text_is_none():
    assert float_features(torch.tensor([1, 2, 3])).shape == (3, 1)
    with pytest.raises(DataError, match="features have dtype <U1; convert them to numbers"):
        float_features(np.array([["a"]]))
    with pytest.raises(DataError, match=r"features have dtype torch\.complex64"):
        float_features(torch.zeros(2, 2, dtype=torch.complex64))
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(float_features(sparse), torch.eye(3))


def test_sparse_equals_scipy():
    rng = np.random.default_rng(0)
    sparse = scipy.sparse.random(20, 7, density=0.3, format="csr", rng=rng, dtype=np.float32)
    dense = dense_features(sparse.indptr, sparse.indices, sparse.data, (20, 7))
    assert np.array_equal(dense.numpy(), sparse.toarray())


def test_a_broken_sparse_matrix_is_refused():
    indptr, columns, values = np.array([0, 1, 2]), np.array([0, 5]), np.array([1.0, 1.0])
    with pytest.raises(DataError, match=r"of shape \(2, 3\) are inconsistent: .* size is 3 but found index 5"):
        dense_features(indptr, columns, values, (2, 3))
    with pytest.raises(DataError, match=r"sparse features of shape \(4, 9\) are inconsistent: repeats"):
        dense_features(indptr, columns, values, (4, 9))
    for broken in (np.array([0, 2, 1]), np.array([0, 1, 3])):
        with pytest.raises(DataError, match=r"inconsistent"):
            dense_features(broken, columns % 3, values, (2, 3))


def test_standard_in_chunks_of_columns_equals_numpy_and_a_constant_becomes_0():
    features = np.random.default_rng(0).normal(3, 5, (30, 150)).astype(np.float32)
    features[:, 7] = 5
    deviation = np.where(np.arange(150) == 7, 1, features.std(0, dtype=np.float64))
    expected = (features - features.mean(0, dtype=np.float64)) / deviation
    scaled = torch.from_numpy(features.copy())
    scaling = standardise_features(scaled, "standard")
    assert np.allclose(scaled.numpy(), expected, atol=1e-5)
    assert not scaled[:, 7].any()
    again = torch.from_numpy(features.copy())
    scale_features(again, scaling)
    assert torch.equal(again, scaled)
    scale_features(again, scaling, back=True)
    assert np.allclose(again.numpy(), features, atol=1e-5)


def test_rows_divides_by_the_sum_of_magnitudes():
    features = torch.tensor([[1.0, -3.0], [0.0, 0.0]])
    standardise_features(features, "rows")
    assert features.tolist() == [[0.25, -0.75], [0.0, 0.0]]


def test_none_changes_nothing():
    features = torch.eye(3, 2)
    standardise_features(features, "none")
    assert torch.equal(features, torch.eye(3, 2))


@pytest.mark.parametrize(
    ("labels", "task", "num_classes"),
    [
        (np.array([0, 1, 1], dtype=np.int16), "binary", 2),
        (np.array([0, 0, 0]), "binary", 2),
        (np.array([0, 2, -1]), "single-label", 3),
        (np.array([[0], [4]]), "single-label", 5),
        (np.array([False, True]), "binary", 2),
        (torch.tensor([[0, 1, 1], [1, 0, 0]]), "multi-label", 3),
        (np.array([2.5, 3, np.nan]), "regression", 1),
        (torch.tensor([[0.0, 1.0], [0.5, 0.0]]), "regression", 2),
    ],
)
def test_auto(labels, task, num_classes):
    prepared, found, classes = prepare_labels(labels)
    assert (found, classes) == (task, num_classes)
    assert prepared.dtype == (torch.float32 if task in HAS_COLUMNS else torch.int64)
    if task == "regression":
        torch.testing.assert_close(
            prepared, torch.as_tensor(labels).float().reshape(len(labels), classes), equal_nan=True
        )


def test_real_labels_may_be_whole_numbers_and_those_of_other_ranks_decide():
    assert prepare_labels(np.array([3, 40]), "regression")[0].tolist() == [[3.0], [40.0]]
    assert prepare_labels(np.array([1.0, 2.0]), largest_of_all=lambda of_this_rank: of_this_rank + 1)[1] == "regression"
    assert prepare_labels(np.array([1.0, 2.0]), largest_of_all=lambda of_this_rank: of_this_rank)[1] == "single-label"


def test_a_stated_task_wins_and_nan_is_unknown():
    assert prepare_labels(np.array([0, 1]), "single-label")[1:] == ("single-label", 2)
    assert prepare_labels(np.array([[0], [1]]), "multi-label")[1:] == ("multi-label", 1)
    assert prepare_labels(np.array([0.0, np.nan, 2.0]))[0].tolist() == [0, -1, 2]
    with pytest.raises(RecipeError, match="task is 'multiclass'; use one of auto"):
        prepare_labels(np.array([0, 1]), "multiclass")


@pytest.mark.parametrize(
    ("labels", "task", "message"),
    [
        (np.array(["a"]), "auto", "labels have dtype <U1; number the classes 0, 1, 2, ..."),
        (np.array([0.0, 1.5]), "single-label", "the label of vertex 1 is 1.5; a class is a whole number"),
        (np.array([0.5, 1e300]), "auto", "the label of vertex 1 is 1e+300, infinite in single precision"),
        (np.array([np.nan]), "regression", "every label is NaN, which is unknown"),
        (np.zeros((2, 2, 2)), "regression", "labels have shape (2, 2, 2); task 'regression' needs one or more"),
        (np.array([0.0, np.inf]), "auto", "the label of vertex 1 is inf; a class is a whole number"),
        (np.array([0, 1, 2]), "binary", "the label of vertex 2 is 2; in task 'binary' a label is 0 or 1"),
        (np.array([-1, -1]), "auto", "every label is unknown; give at least the training vertices a class"),
        (np.array([0, 1]), "multi-label", "labels have shape (2,); task 'multi-label' needs 0 or 1 per"),
        (np.zeros((2, 2)), "single-label", "labels have shape (2, 2); task 'single-label' needs one label"),
    ],
)
def test_contradictions_are_refused(labels, task, message):
    with pytest.raises(DataError, match=re.escape(message)):
        prepare_labels(labels, task)


def everyone(split):
    return torch.cat([split.train_ids, split.validation_ids, split.test_ids]).tolist()


@given(
    st.lists(st.integers(-1, 3), min_size=1, max_size=60),
    st.floats(0.01, 0.6),
    st.floats(0, 0.4),
    st.integers(0, 2**63),
)
def test_fractions_cover_every_labelled_vertex_once(labels, train, validation, seed):
    options = SplitOptions(kind="fractions", train_fraction=train, validation_fraction=validation)
    split = random_split(torch.tensor(labels), options, seed=seed)
    labelled = [vertex for vertex, label in enumerate(labels) if label >= 0]
    assert sorted(everyone(split)) == labelled
    assert len(split.train_ids) == round(len(labelled) * train)


def test_per_class_takes_so_many_of_each():
    labels = torch.arange(300) % 3
    labels[::10] = -1
    options = SplitOptions(train_per_class=20, validation_per_class=30)
    split = random_split(labels, options, seed=1)
    assert torch.bincount(labels[split.train_ids]).tolist() == [20, 20, 20]
    assert torch.bincount(labels[split.validation_ids]).tolist() == [30, 30, 30]
    assert sorted(everyone(split)) == (labels >= 0).nonzero().flatten().tolist()


@pytest.mark.parametrize("kind", ["per-class", "fractions"])
def test_the_seed_alone_decides(kind):
    labels = torch.arange(300) % 3
    options = SplitOptions(kind=kind)
    first = random_split(labels, options, seed=1)
    assert everyone(random_split(labels, options, seed=1)) == everyone(first)
    assert everyone(random_split(labels, options, seed=2)) != everyone(first)
    assert torch.equal(first.train_ids, first.train_ids.sort().values)


def test_several_labels_per_vertex_split_by_fractions_only():
    labels = torch.ones(8, 2)
    assert sorted(everyone(random_split(labels, SplitOptions(), seed=0))) == list(range(8))
    labels[2, 1] = torch.nan
    assert sorted(everyone(random_split(labels, SplitOptions(kind="fractions"), seed=0))) == [0, 1, *range(3, 8)]
    with pytest.raises(RecipeError, match=r"kind 'per-class' needs one class per vertex, but"):
        random_split(labels, SplitOptions(kind="per-class"), seed=0)


def test_a_class_that_is_too_small_is_named():
    labels = torch.tensor([0] * 60 + [2] * 49)
    with pytest.raises(DataError, match=r"class 2 has 49 labelled vertices, but the split takes 50 of each"):
        random_split(labels, SplitOptions(), seed=0)


def test_masks_become_ids():
    masks = torch.eye(3, dtype=torch.bool)
    assert everyone(split_from_masks(masks[2], masks[0], masks[1])) == [2, 0, 1]


def test_shares_above_1_together_are_refused():
    with pytest.raises(RecipeError, match=r"train_fraction is 0.9 and validation_fraction 0.25; use shares that"):
        SplitOptions(train_fraction=0.9)
