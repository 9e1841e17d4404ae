"""What every part must have: its share of the weights, and a training vertex."""

import numpy as np
import pytest

from windrow.comm.errors import RecipeError
from windrow.partition.constraints import ensure_members, vertex_weights

INDPTR = np.array([0, 2, 2, 5, 6], np.int64)


def test_columns_of_salient():
    weights = vertex_weights(INDPTR, train_ids=np.array([0, 2]), validation_ids=np.array([3]))
    assert {name: column.tolist() for name, column in weights.items()} == {
        "train": [1, 0, 1, 0],
        "validation": [0, 0, 0, 1],
        "other": [0, 1, 0, 0],
        "degree": [2, 0, 3, 1],
    }
    assert list(weights) == ["train", "validation", "other", "degree"]
    assert {column.dtype for column in weights.values()} == {np.dtype(np.int32)}


def test_columns_without_weight_are_left_out():
    assert list(vertex_weights(INDPTR)) == ["other", "degree"]
    assert list(vertex_weights(INDPTR, balance=("train",))) == ["vertices"]
    assert vertex_weights(INDPTR, balance=())["vertices"].tolist() == [1] * 4


@pytest.mark.parametrize("balance", [("degre",), ("train", "train")])
def test_unknown_or_repeated_names_are_refused(balance):
    with pytest.raises(RecipeError, match="expected different names of train"):
        vertex_weights(INDPTR, balance=balance)


@pytest.mark.parametrize("seed", range(6))
def test_every_part_gets_a_training_vertex(random_csc, seed):
    indptr, indices = random_csc(seed, 30, 90)
    generator = np.random.default_rng(seed)
    train = generator.choice(30, 6, replace=False)
    start = generator.integers(0, 2, 30).astype(np.int32)
    kept = start.copy()
    repaired = ensure_members(indptr, indices, start, 6, train_ids=train)
    assert sorted(repaired[train].tolist()) == list(range(6))
    assert (np.delete(repaired, train) == np.delete(start, train)).all()
    assert (start == kept).all()


def test_empty_parts_are_filled_and_whole_ones_left_alone(random_csc):
    indptr, indices = random_csc(0, 10, 30)
    filled = ensure_members(indptr, indices, np.zeros(10, np.int32), 4, train_ids=None)
    assert np.bincount(filled, minlength=4).min() == 1
    dealt = np.arange(10, dtype=np.int32) % 4
    assert (ensure_members(indptr, indices, dealt, 4, train_ids=None) == dealt).all()


def test_moves_the_vertex_with_most_ties():
    # Vertex 1 has its only in-neighbour, 3, in part 1, which holds no training vertex.
    indptr = np.array([0, 0, 1, 1, 1], np.int64)
    assignment = np.array([0, 0, 0, 1], np.int32)
    repaired = ensure_members(indptr, np.array([3], np.int32), assignment, 2, train_ids=np.array([0, 1, 2]))
    assert repaired.tolist() == [0, 1, 0, 1]
