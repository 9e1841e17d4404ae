"""Splitting arithmetic against slow references."""

import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.comm.rows import group_by_owner, near_equal_split, offsets_from_counts
from windrow.comm.transfer import chunk_bounds


@st.composite
def ids_and_offsets(draw):
    """Ranks with and without ids, first id not always 0, and ids that some of them own."""
    counts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=9).filter(any))
    first = draw(st.integers(0, 3))
    offsets = [first + offset for offset in offsets_from_counts(counts)]
    ids = draw(st.lists(st.integers(offsets[0], offsets[-1] - 1), max_size=40))
    if draw(st.booleans()):
        ids.sort()
    return torch.tensor(ids, dtype=torch.int64), offsets


def slow_owner(number, offsets):
    return next(rank for rank in range(len(offsets) - 1) if offsets[rank] <= number < offsets[rank + 1])


@given(ids_and_offsets())
def test_grouping_is_a_stable_sort_by_owner(case):
    ids, offsets = case
    owner = [slow_owner(number, offsets) for number in ids.tolist()]
    order, counts = group_by_owner(ids, offsets)
    assert counts == [owner.count(rank) for rank in range(len(offsets) - 1)]
    assert (order is None) == (owner == sorted(owner))
    if order is not None:
        assert order.dtype == torch.int64
        assert order.tolist() == sorted(range(len(owner)), key=owner.__getitem__)


def test_grouping_many_ids_over_many_ranks_equals_torch():
    offsets = near_equal_split(1_000_003, 300)
    ids = torch.arange(200_000) * 7919 % offsets[-1]
    order, counts = group_by_owner(ids, offsets)
    owner = torch.bucketize(ids, torch.tensor(offsets[1:]), right=True)
    assert counts == torch.bincount(owner, minlength=300).tolist()
    assert torch.equal(order, owner.argsort(stable=True))


def test_grouping_takes_ids_with_gaps_in_memory():
    ids = torch.tensor([[4, 9], [0, 9], [3, 9]])[:, 0]
    order, counts = group_by_owner(ids, [0, 3, 5])
    assert (order.tolist(), counts) == ([1, 0, 2], [1, 2])


@pytest.mark.parametrize("bad", [-1, 10, 2**62, -(2**62)])
def test_an_id_that_nobody_owns_is_named(bad):
    message = f"id {bad} at position 2 of 4 belongs to no rank: ids are 0 to 9"
    with pytest.raises(DataError, match=re.escape(message)):
        group_by_owner(torch.tensor([3, 0, bad, 99]), [0, 0, 10, 10])


def test_an_id_is_refused_where_no_rank_owns_any():
    with pytest.raises(DataError, match="id 0 at position 0 of 1 belongs to no rank: no rank owns any id"):
        group_by_owner(torch.tensor([0]), [0, 0, 0])
    assert group_by_owner(torch.empty(0, dtype=torch.int64), [0, 0, 0]) == (None, [0, 0])


def test_other_dtypes_and_shapes_are_refused():
    with pytest.raises(TypeError, match=re.escape("1-dimensional torch.int32")):
        group_by_owner(torch.tensor([0], dtype=torch.int32), [0, 1])
    with pytest.raises(TypeError, match="2-dimensional"):
        group_by_owner(torch.tensor([[0]]), [0, 1])


@given(st.lists(st.integers(0, 100), max_size=10))
def test_offsets_are_sums_of_the_counts_before(counts):
    assert offsets_from_counts(counts) == [sum(counts[:k]) for k in range(len(counts) + 1)]


@given(st.integers(0, 1000), st.integers(1, 50))
def test_near_equal_parts_differ_by_one_at_most_and_cover_all(length, parts):
    offsets = near_equal_split(length, parts)
    lengths = [stop - start for start, stop in pairwise(offsets)]
    assert (len(lengths), offsets[0], offsets[-1]) == (parts, 0, length)
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(0, 1000), st.integers(1, 50))
def test_chunks_are_consecutive_full_and_as_few_as_can_be(length, limit):
    bounds = chunk_bounds(length, limit)
    assert [position for start, stop in bounds for position in range(start, stop)] == list(range(length))
    assert len(bounds) == -(-length // limit)
    assert all(stop - start == limit for start, stop in bounds[:-1])


def test_impossible_splits_are_refused():
    with pytest.raises(ValueError, match="cannot cut 3 elements into 0 parts"):
        near_equal_split(3, 0)
    with pytest.raises(ValueError, match="cannot cut 3 elements into chunks of 0"):
        chunk_bounds(3, 0)
