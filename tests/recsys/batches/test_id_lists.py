import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.batches.id_lists import IdLists, gathered_lists, lists_of_single_ids, offsets_of_lengths

values = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), max_size=10)


def as_lists(offsets, numbers):
    return [numbers[low:high].tolist() for low, high in itertools.pairwise(offsets)]


@given(values, st.integers(0, 3), st.sampled_from([np.int32, np.int64]), st.data())
def test_gathers_lists_in_any_order_and_number(lists, before, dtype, data):
    """Lists that begin past 0, as those of a slice do."""
    ids = np.array([7] * before + [number for numbers in lists for number in numbers], np.int64)
    offsets = (offsets_of_lengths(np.array([len(numbers) for numbers in lists], np.int64)) + before).astype(
        dtype
    )
    weights = np.arange(len(ids), dtype=np.float32)
    order = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=12)) if lists else []
    found = gathered_lists(IdLists(offsets, ids, weights), np.array(order, np.int64))
    assert found.offsets[0] == 0
    assert as_lists(found.offsets, found.ids) == [lists[row] for row in order]
    of_all = as_lists(offsets, weights)
    assert as_lists(found.offsets, found.weights) == [of_all[row] for row in order]
    assert gathered_lists(IdLists(offsets, ids, None), np.array(order, np.int64)).weights is None


def test_single_ids_are_lists_of_one():
    lists = lists_of_single_ids(np.array([5, 3]))
    assert as_lists(lists.offsets, lists.ids) == [[5], [3]]
    assert lists.weights is None


def test_offsets():
    assert offsets_of_lengths(np.array([2, 0, 3], np.int32)).tolist() == [0, 2, 2, 5]
    assert offsets_of_lengths(np.zeros(0, np.int64)).tolist() == [0]


def test_bytes():
    lists = IdLists(np.zeros(3, np.int32), np.zeros(4, np.int64), np.zeros(4, np.float32))
    assert lists.num_bytes == 12 + 32 + 16
    assert IdLists(lists.offsets, lists.ids, None).num_bytes == 12 + 32
