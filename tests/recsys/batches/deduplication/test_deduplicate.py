import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.recsys.batches.deduplication.deduplicate import (
    canonical,
    concatenate,
    deduplicate,
    device_columns,
)
from windrow.recsys.batches.deduplication.distinct_lists import distinct_on_device
from windrow.recsys.batches.deduplication.ikjt import select_lists

GROUP = ("history", "cart")


def rows_of(lists, group):
    """Each sample's lists of a group."""
    return list(zip(*(lists[feature] for feature in group), strict=True))


def first_occurrences(rows):
    kinds = list(dict.fromkeys(rows))
    return kinds, [kinds.index(row) for row in rows]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@given(data=st.data())
def test_holds_each_distinct_row_once_in_order_of_the_first(dtype, random_groups, jagged_of, lists_of, data):
    jagged = jagged_of(*data.draw(random_groups), dtype=dtype)
    found = deduplicate(jagged, GROUP)
    rows, inverse = first_occurrences(rows_of(lists_of(jagged), GROUP))
    assert found.keys == GROUP
    assert found.num_samples == jagged.stride()
    assert rows_of(lists_of(found.unique), GROUP) == rows
    assert found.inverse.tolist() == inverse


@given(data=st.data())
def test_expanded_is_the_input_restricted_to_the_group(random_groups, jagged_of, lists_of, data):
    jagged = jagged_of(*data.draw(random_groups))
    expanded = deduplicate(jagged, GROUP).expand()
    given_lists, lists = lists_of(jagged), lists_of(expanded)
    assert list(lists) == list(GROUP)
    assert lists == {feature: given_lists[feature] for feature in GROUP}


@given(data=st.data())
def test_pytorch_alone_finds_the_same(random_groups, jagged_of, data):
    jagged = jagged_of(*data.draw(random_groups))
    expected, size = deduplicate(jagged, jagged.keys()), jagged.stride()
    bounds = [jagged.offsets()[place * size : (place + 1) * size + 1] for place in range(len(jagged.keys()))]
    columns = device_columns(bounds, jagged.values(), jagged.weights_or_none())
    representatives, inverse = distinct_on_device(columns)
    assert inverse.tolist() == expected.inverse.tolist()
    assert len(representatives) == expected.num_unique


@given(data=st.data())
def test_concatenated_parts_are_the_concatenation_deduplicated(random_groups, jagged_of, lists_of, data):
    whole = jagged_of(*data.draw(random_groups))
    size = whole.stride()
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, size), max_size=3))), size]
    parts = [
        deduplicate(select_lists(whole, whole.keys(), torch.arange(start, stop)), GROUP)
        for start, stop in itertools.pairwise(cuts)
    ]
    found, expected = concatenate(parts), deduplicate(whole, GROUP)
    assert found.inverse.tolist() == expected.inverse.tolist()
    assert lists_of(found.unique) == lists_of(expected.unique)


@given(data=st.data())
def test_rows_in_any_order_become_canonical(random_groups, jagged_of, lists_of, data):
    rows = jagged_of(*data.draw(random_groups))
    numbers = st.integers(0, max(rows.stride() - 1, 0))
    inverse = torch.tensor(data.draw(st.lists(numbers, max_size=8 * bool(rows.stride()))), dtype=torch.int64)
    found = canonical(rows, inverse)
    expected = deduplicate(select_lists(rows, rows.keys(), inverse), rows.keys())
    assert found.inverse.tolist() == expected.inverse.tolist()
    assert lists_of(found.unique) == lists_of(expected.unique)


def test_refuses_groups_that_it_cannot_make(jagged_of):
    jagged = jagged_of({"a": [[1], [2]], "b": [[3], []]})
    with pytest.raises(DataError, match="no features"):
        deduplicate(jagged, [])
    with pytest.raises(DataError, match="'c' is 0 times among the keys a, b"):
        deduplicate(jagged, ["a", "c"])
    with pytest.raises(DataError, match="2 times in a, a"):
        deduplicate(jagged, ["a", "a"])


def test_refuses_parts_that_do_not_fit(jagged_of):
    jagged = jagged_of({"a": [[1]], "b": [[3]]})
    weighted = jagged_of({"a": [[1]]}, {"a": [[0.5]]})
    with pytest.raises(DataError, match="no parts"):
        concatenate([])
    with pytest.raises(DataError, match="different features"):
        concatenate([deduplicate(jagged, ["a"]), deduplicate(jagged, ["b"])])
    with pytest.raises(DataError, match="only some parts of group a have weights"):
        concatenate([deduplicate(jagged, ["a"]), deduplicate(weighted, ["a"])])
