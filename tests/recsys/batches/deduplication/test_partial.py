import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.recsys.batches.deduplication.ikjt import PartialLists, pack_windows


def tensors(lists):
    offsets = torch.tensor([0, *map(len, lists)]).cumsum(0)
    return offsets, torch.tensor([one for ones in lists for one in ones], dtype=torch.int64)


def reference(lists):
    """Packed values and starts, by comparing slices."""
    packed, starts, before, start = [], [], [], 0
    for ids in lists:
        if ids and ids != before:
            tail = packed[max(len(packed) - max(len(ids), len(before)), 0) :]
            first = len(packed) - len(tail)
            whole = [place for place in range(len(tail)) if tail[place : place + len(ids)] == ids]
            shared = max(size for size in range(len(ids) + 1) if tail[len(tail) - size :] == ids[:size])
            start = first + whole[0] if whole else len(packed) - shared
            packed += [] if whole else ids[shared:]
        starts.append(start)
        before = ids
    return packed, starts


LISTS = st.lists(st.lists(st.integers(0, 1), max_size=8), max_size=8)


@given(LISTS)
def test_packs_as_comparing_slices_does(lists):
    packed, starts = reference(lists)
    found = pack_windows(*tensors(lists))
    assert found.values.tolist() == packed
    assert found.starts.tolist() == starts
    assert found.lengths.tolist() == [len(ids) for ids in lists]


@given(LISTS)
def test_lists_of_newest_first_are_packed_as_their_mirror_images(lists):
    packed, starts = reference([ids[::-1] for ids in lists])
    found = pack_windows(*tensors(lists), newest_first=True)
    assert found.values.tolist() == packed[::-1]
    assert found.starts.tolist() == [
        len(packed) - start - len(ids) for start, ids in zip(starts, lists, strict=True)
    ]


@pytest.mark.parametrize("newest_first", [False, True])
@given(lists=LISTS)
def test_expanded_is_the_input(newest_first, lists):
    offsets, values = tensors(lists)
    found = pack_windows(offsets.int(), values, newest_first=newest_first)
    assert found.expand().tolist() == values.tolist()
    assert found.lengths.tolist() == offsets.diff().tolist()


@pytest.mark.parametrize(
    ("lists", "newest_first", "values", "starts"),
    [
        ([[1, 2, 3], [2, 3, 4], [2, 3, 4], [4, 5]], False, [1, 2, 3, 4, 5], [0, 1, 1, 3]),
        ([[1], [1, 2], [1, 2, 3]], False, [1, 2, 3], [0, 0, 0]),
        ([[1], [2, 1], [3, 2, 1]], True, [3, 2, 1], [2, 1, 0]),
        ([[3, 2, 1], [4, 3, 2]], True, [4, 3, 2, 1], [1, 0]),
        ([[1, 2, 3], [1, 2], [2], []], False, [1, 2, 3], [0, 0, 1, 1]),
    ],
)  # fmt: skip
def test_shifted_and_growing_lists_share_values(lists, newest_first, values, starts):
    found = pack_windows(*tensors(lists), newest_first=newest_first)
    assert found.values.tolist() == values
    assert found.starts.tolist() == starts


def test_a_history_costs_one_value_a_step():
    history = list(range(1000))
    lists = [history[max(step - 50, 0) : step] for step in range(1, 1001)]
    assert pack_windows(*tensors(lists)).values.tolist() == history


def test_rows_of_windows_add_their_gradients_up():
    found = pack_windows(*tensors([[5, 6], [6, 7], []]))
    rows = torch.arange(6.0, dtype=torch.float64).view(3, 2).requires_grad_()
    expanded = found.expand_rows(rows)
    assert expanded.tolist() == [[0, 1], [2, 3], [2, 3], [4, 5]]
    expanded.backward(torch.ones_like(expanded))
    assert rows.grad is not None
    assert rows.grad.tolist() == [[1, 1], [2, 2], [1, 1]]
    with pytest.raises(DataError, match="2 rows for 3"):
        found.expand_rows(rows[:2])


def test_moves_and_counts_its_bytes():
    found = pack_windows(*tensors([[1, 2], [2, 3]]))
    assert found.num_bytes == (3 + 2 + 2) * 8
    moved = found.to(torch.device("meta"))
    assert isinstance(moved, PartialLists)
    assert moved.values.is_meta
