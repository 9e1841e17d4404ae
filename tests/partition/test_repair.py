import numpy as np
import pytest

from windrow.comm.errors import DataError
from windrow.partition.constraints import check_members, ensure_members


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
    assert np.bincount(ensure_members(indptr, indices, np.zeros(10, np.int32), 4), minlength=4).min() == 1
    dealt = np.arange(10, dtype=np.int32) % 4
    assert (ensure_members(indptr, indices, dealt, 4) == dealt).all()


def test_moves_the_vertex_with_most_ties():
    # Vertex 1 has its only in-neighbour, 3, in part 1, which holds no training vertex.
    indptr = np.array([0, 0, 1, 1, 1], np.int64)
    repaired = ensure_members(
        indptr, np.array([3], np.int32), np.array([0, 0, 0, 1], np.int32), 2, train_ids=np.array([0, 1, 2])
    )
    assert repaired.tolist() == [0, 1, 0, 1]


def test_too_few_is_refused_with_the_cure():
    with pytest.raises(DataError, match=r"3 vertices cannot be spread over 4 parts.*use at most 3 parts"):
        check_members(3, 4)
    with pytest.raises(
        DataError, match=r"1 training vertices cannot .* at most 1 parts or a larger training set"
    ):
        check_members(9, 2, train_ids=np.array([5, 5]))
    with pytest.raises(DataError, match=r"0 training vertices"):
        check_members(9, 2, train_ids=np.array([], np.int64))
