import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.row_groups import RowGroup, SharedGroups
from windrow.recsys.batches.windows import Piece, batch_of_pieces, no_samples, read_window
from windrow.recsys.log.store import FeatureEntry


def feature(name, *, multi_hot=False, weighted=False):
    return FeatureEntry(
        name=name, table=name, rows=100, multi_hot=multi_hot, weighted=weighted, ids="rows", counts={}
    )


FEATURES = (feature("history", multi_hot=True), feature("item"))


def row_group(lists, first):
    offsets = np.cumsum([0, *map(len, lists)])
    return RowGroup(
        labels=np.arange(len(lists), dtype=np.float32),
        dense=np.arange(first, first + len(lists), dtype=np.float32)[:, None],
        single=(np.arange(first, first + len(lists)),),
        lists=(Jagged(np.array([number for ids in lists for number in ids], np.int64), offsets),),
        groups=SharedGroups((), np.zeros((0, len(lists)), np.int32)),
    )


samples = st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=12)


@given(samples, samples, st.data())
def test_window_is_what_taking_one_sample_at_a_time_gives(left, right, data):
    start = data.draw(st.integers(0, len(left) - 1))
    stop = data.draw(st.integers(1, len(right)))
    groups = [(row_group(left, 0), start, len(left)), (row_group(right, len(left)), 0, stop)]
    chosen = left[start:] + right[:stop]
    order = data.draw(st.none() | st.permutations(range(len(chosen))))
    window = read_window(groups, 1000, None if order is None else np.array(order))
    order = range(len(chosen)) if order is None else order
    lists = window.lists[0]
    assert window.rows.tolist() == [1000 + place for place in order]
    assert window.single[0].tolist() == [start + place for place in order]
    assert window.dense[:, 0].tolist() == [start + place for place in order]
    assert [
        lists.values[low:high].tolist() for low, high in zip(lists.offsets, lists.offsets[1:], strict=False)
    ] == [chosen[place] for place in order]


def test_pieces_follow_one_another_feature_by_feature():
    one = read_window([(row_group([[1, 2], [], [3]], 10), 0, 3)], 0, None)
    two = read_window([(row_group([[4], [5, 6]], 20), 0, 2)], 50, None)
    batch = batch_of_pieces([Piece(one, 1, 3), Piece(two, 0, 1)], FEATURES)
    assert batch.row_ids.tolist() == [1, 2, 50]
    assert batch.sparse["history"].lengths().tolist() == [0, 1, 1]
    assert batch.sparse["history"].values().tolist() == [3, 4]
    assert batch.sparse["item"].values().tolist() == [11, 12, 20]
    assert batch.sparse.weights_or_none() is None


def test_a_batch_does_not_share_memory_with_its_window():
    window = read_window([(row_group([[1], [2]], 0), 0, 2)], 0, None)
    batch = batch_of_pieces([Piece(window, 0, 2)], FEATURES)
    window.single[:] = 77
    window.dense[:] = 77
    assert batch.sparse["item"].values().tolist() == [0, 1]
    assert batch.dense[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize("weighted", [False, True])
def test_no_samples(weighted):
    features = (feature("history", multi_hot=True, weighted=weighted), feature("item"))
    batch = batch_of_pieces([no_samples(features, 3)], features)
    assert batch.num_samples == 0
    assert batch.dense.shape == (0, 3)
    assert batch.sparse.stride() == 0
    assert batch.sparse.keys() == ["history", "item"]
    assert len(batch.sparse["item"].values()) == 0
    assert (batch.sparse.weights_or_none() is not None) == weighted
