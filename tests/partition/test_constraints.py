import numpy as np
import pytest

from windrow.comm.errors import DataError, RecipeError
from windrow.partition.constraints import vertex_roles, vertex_weights

INDPTR = np.array([0, 2, 2, 5, 6], np.int64)


def test_columns_of_salient():
    constraints = vertex_weights(INDPTR, train_ids=np.array([0, 2]), validation_ids=np.array([3]))
    assert constraints.names == ("train", "validation", "other", "degree")
    assert constraints.weights.tolist() == [[1, 0, 0, 2], [0, 0, 1, 0], [1, 0, 0, 3], [0, 1, 0, 1]]
    assert constraints.weights.dtype == np.int32


def test_columns_without_weight_are_left_out():
    assert vertex_weights(INDPTR).names == ("other", "degree")
    assert vertex_weights(INDPTR, balance=("train",)).names == ("vertices",)
    assert vertex_weights(INDPTR, balance=()).weights.tolist() == [[1]] * 4


@pytest.mark.parametrize("balance", [("degre",), ("train", "train")])
def test_unknown_or_repeated_names_are_refused(balance):
    with pytest.raises(RecipeError, match="expected different names out of train"):
        vertex_weights(INDPTR, balance=balance)


def test_roles_refuse_ids_outside_and_in_both_sets():
    with pytest.raises(DataError, match=r"training id 9 at row 1 is outside \[0, 4\)"):
        vertex_roles(4, np.array([0, 9]), None)
    with pytest.raises(DataError, match="validation id -1 at row 0"):
        vertex_roles(4, None, np.array([-1]))
    with pytest.raises(DataError, match="vertex 2 is both"):
        vertex_roles(4, np.array([1, 2]), np.array([2, 3]))
