import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.sessions import HISTORY, ITEM, make_session_batch


def make(histories, items, **options):
    ids = np.array([item for one in histories for item in one], dtype=np.int64)
    offsets = np.cumsum([0, *map(len, histories)])
    numbers = 100 + np.arange(len(histories))
    return make_session_batch(Jagged(ids, offsets), np.array(items, dtype=np.int64), numbers, **options)


def dense_of(jagged):
    return [values.tolist() for values in jagged.to_dense()]


HISTORIES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=6)


@given(HISTORIES, st.lists(st.integers(0, 5), max_size=4))
def test_rows_are_laid_out_as_drawn(histories, others):
    batch = make(histories, [7] * len(histories) + others)
    rows = len(histories) + len(others)
    assert batch.num_samples == len(histories)
    assert batch.dense.shape == (len(histories), 0)
    assert batch.row_ids.tolist() == [100 + row for row in range(len(histories))]
    assert (batch.deduplicated, batch.windows) == ((), {})
    assert batch.sparse.stride() == rows
    assert dense_of(batch.sparse[HISTORY]) == histories + [[]] * len(others)
    assert dense_of(batch.sparse[ITEM]) == [[7]] * len(histories) + [[item] for item in others]


@given(HISTORIES, st.lists(st.integers(0, 5), max_size=9), st.booleans())
def test_deduplicated_holds_the_same(histories, items, has_targets):
    items = items + [1] * len(histories) if has_targets else items
    plain, batch = make(histories, items), make(histories, items, deduplicated=True)
    (group,) = batch.deduplicated
    assert dense_of(group.expand()[ITEM]) == dense_of(plain.sparse[ITEM])
    assert len(group.unique.values()) == len(set(items))
    packed = batch.windows[HISTORY]
    assert packed.lengths.tolist() == [len(one) for one in histories]
    # What is looked up for the packed ids, row after row, is what windows are cut from.
    assert batch.sparse[HISTORY].values().tolist() == packed.values.tolist()
    assert packed.expand().values.tolist() == plain.sparse[HISTORY].values().tolist()
    assert batch.sparse.stride() == plain.sparse.stride()
    assert torch.equal(batch.expanded().sparse[ITEM].values(), plain.sparse[ITEM].values())


def test_prefixes_of_a_session_are_looked_up_once():
    batch = make([[4], [4, 4], [4, 4, 9], [2], [2, 6]], [4, 9, 9, 6, 9, 4], deduplicated=True)
    assert dense_of(batch.sparse[HISTORY]) == [[4], [4], [9], [2], [6], []]
    assert batch.deduplicated[0].unique.values().tolist() == [4, 9, 6]


def test_an_empty_history_is_refused():
    with pytest.raises(DataError, match="history of sample 101 is empty"):
        make([[1], []], [2, 2])
