"""windrow.recsys.batches.jagged: what is one type for NumPy and torch, against Python's lists."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.recsys.batches import jagged as module
from windrow.recsys.batches.jagged import (
    Deduplicated,
    Jagged,
    Windows,
    check_lists,
    list_positions,
    offsets_of_lengths,
    pack_windows,
    select_by_pytorch,
)

LISTS = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), max_size=10)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@given(lists=LISTS, before=st.integers(0, 3), dtype=st.sampled_from([np.int32, np.int64]), data=st.data())
def test_lists_are_selected_and_cut(kind, lists_from, as_lists, lists, before, dtype, data):
    """Lists that begin past 0, as those of a slice do."""
    made = lists_from(lists, True, before=before, dtype=dtype)
    weighted = replace(made, values=made.weights)
    order = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=12)) if lists else []
    start = data.draw(st.integers(0, len(lists)))
    stop = data.draw(st.integers(start, len(lists)))
    rows = np.array(order, np.int64)
    if kind == "torch":
        made, rows = made.to_torch(), torch.from_numpy(rows)
    assert len(made) == len(lists)
    assert made.lengths.tolist() == [len(one) for one in lists]
    assert made.rows.tolist() == [row for row, one in enumerate(lists) for _ in one]
    found, cut = made.select(rows), made.slice(start, stop)
    assert found.offsets[0] == cut.offsets[0] == 0
    assert as_lists(found) == [lists[row] for row in order]
    assert found.lengths.tolist() == [len(lists[row]) for row in order]
    assert as_lists(cut) == lists[start:stop]
    for part, wanted in ((found, order), (cut, range(start, stop))):
        assert as_lists(replace(part, values=part.weights)) == [as_lists(weighted)[row] for row in wanted]
    assert replace(made, weights=None).select(rows).weights is None


@pytest.mark.parametrize("length", [15, 16, 17, 100])
def test_long_lists_are_copied_whole(length, lists_from, as_lists):
    lists = [list(range(length)), list(range(length, 2 * length))]
    assert as_lists(lists_from(lists).select(np.array([1, 0, 1]))) == [lists[1], lists[0], lists[1]]


def test_arrays_change_hands_without_a_copy(lists_from):
    lists = lists_from([[1, 2], [3]], True)
    assert lists.to_numpy() is lists
    tensors = lists.to_torch()
    assert tensors.to_torch() is tensors
    again = tensors.to_numpy()
    for name in ("values", "offsets", "weights"):
        assert getattr(tensors, name).data_ptr() == getattr(lists, name).ctypes.data
        assert np.shares_memory(getattr(again, name), getattr(lists, name))


def test_lists_of_one_offsets_and_bytes(as_lists):
    assert as_lists(Jagged.of_single(np.array([5, 3]))) == [[5], [3]]
    for lengths, offsets in (([2, 0, 3], [0, 2, 2, 5]), ([], [0])):
        assert offsets_of_lengths(np.array(lengths, np.int32)).tolist() == offsets
        assert offsets_of_lengths(torch.tensor(lengths, dtype=torch.int32)).tolist() == offsets
    lists = Jagged(np.zeros(4, np.int64), np.zeros(3, np.int32), np.zeros(4, np.float32))
    assert lists.num_bytes == 12 + 32 + 16
    assert replace(lists, weights=None).num_bytes == 12 + 32


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@given(data=st.data())
def test_containers_of_torchrec_are_selected_feature_by_feature(dtype, random_groups, jagged_of, lists_of, data):
    jagged = jagged_of(*data.draw(random_groups), dtype=dtype)
    features = list(jagged.keys())
    numbers = st.integers(0, max(jagged.stride() - 1, 0))
    rows = data.draw(st.lists(numbers, max_size=12 * bool(jagged.stride())))
    chosen, lists = torch.tensor(rows, dtype=torch.int64), module.jagged_of(jagged)
    found = Deduplicated(lists, chosen, len(features)).expand()
    selected = module.keyed(features, found.values, found.lengths, found.weights, num_samples=len(rows))
    before = lists_of(jagged)
    assert lists_of(selected) == {feature: [before[feature][row] for row in rows] for feature in features}
    assert selected.lengths().dtype == dtype
    places = torch.cat([chosen + place * jagged.stride() for place in range(len(features))])
    slow = select_by_pytorch(lists, places)
    for loops, pytorch in zip(
        (found.values, found.weights, found.lengths), (slow.values, slow.weights, slow.lengths), strict=True
    ):
        assert (loops is None) == (pytorch is None)
        assert loops is None or loops.numpy().tobytes() == pytorch.numpy().tobytes()


@st.composite
def inverses(draw: st.DrawFn, max_rows: int = 4) -> tuple[int, list[int]]:
    """A number of rows, and the row of each of some samples; no rows, no samples."""
    rows = draw(st.integers(0, max_rows))
    return rows, draw(st.lists(st.integers(0, rows - 1), max_size=8)) if rows else []


def whole_numbers(*shape: int) -> Tensor:
    """Values whose sums are exact, so that orders of adding cannot be told apart."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-50, 50, shape, generator=generator).float().requires_grad_()


@pytest.mark.parametrize("way", ["compiled", "pytorch"])
@given(shape=inverses(), data=st.data())
def test_lists_of_vectors_and_their_gradients(shape: tuple[int, list[int]], data: st.DataObject, way: str) -> None:
    lengths = data.draw(st.lists(st.integers(0, 4), min_size=shape[0], max_size=shape[0]))
    vectors = whole_numbers(sum(lengths), 3)
    inverse = torch.tensor(shape[1], dtype=torch.int64)
    lists = Jagged.of_lengths(vectors, torch.tensor(lengths, dtype=torch.int32))
    held = Deduplicated(lists, inverse)
    assert (held.num_rows, held.num_samples) == (len(lengths), len(inverse))
    with pytest.MonkeyPatch.context() as patch:
        if way == "pytorch":
            patch.setattr(module, "is_compiled", lambda rows: False)
        found = held.expand()
    parts = vectors.split(lengths)
    expected = torch.cat([vectors[:0], *(parts[row] for row in shape[1])])
    assert found.lengths.tolist() == [lengths[row] for row in shape[1]]
    assert torch.equal(found.values, expected)
    upstream = whole_numbers(*expected.shape).detach()
    (mine,) = torch.autograd.grad(found.values, vectors, upstream)
    (slow,) = torch.autograd.grad(expected, vectors, upstream)
    assert torch.equal(mine, slow)
    assert Deduplicated(lists).expand() is lists
    assert Deduplicated(lists).num_samples == len(lengths)


def test_gradients_of_double_precision() -> None:
    rows = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    lengths, inverse = torch.tensor([1, 0, 2]), torch.tensor([2, 0, 2, 2])
    assert torch.autograd.gradcheck(lambda value: Jagged.of_lengths(value, lengths).select(inverse).values, rows)


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_positions_of_lists_that_overlap(make):
    assert list_positions(make([4, 0, 3]), make([2, 0, 3])).tolist() == [4, 5, 3, 4, 5]
    none = make([0])[:0]
    assert list_positions(none, none).tolist() == []


def packed_slowly(lists):
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


@given(st.lists(st.lists(st.integers(0, 1), max_size=8), max_size=8), st.sampled_from([np.int32, np.int64]))
def test_packs_as_comparing_slices_does(lists_from, as_lists, lists, dtype):
    packed, starts = packed_slowly(lists)
    found = pack_windows(lists_from(lists, dtype=dtype).to_torch())
    assert found.values.tolist() == packed
    assert found.starts.tolist() == starts
    assert found.lengths.tolist() == [len(ids) for ids in lists]
    assert as_lists(found.expand()) == lists


def test_a_history_costs_one_value_a_step(lists_from):
    history = list(range(1000))
    lists = [history[max(step - 50, 0) : step] for step in range(1, 1001)]
    assert pack_windows(lists_from(lists).to_torch()).values.tolist() == history


def test_rows_of_windows_add_their_gradients_up(lists_from):
    found = pack_windows(lists_from([[5, 6], [6, 7], []]).to_torch())
    rows = torch.arange(6.0, dtype=torch.float64).view(3, 2).requires_grad_()
    expanded = found.expand(rows).values
    assert expanded.tolist() == [[0, 1], [2, 3], [2, 3], [4, 5]]
    expanded.backward(torch.ones_like(expanded))
    assert rows.grad is not None
    assert rows.grad.tolist() == [[1, 1], [2, 2], [1, 1]]
    with pytest.raises(DataError, match="2 rows for 3"):
        found.expand(rows[:2])


def test_windows_move_and_count_their_bytes(lists_from):
    found = pack_windows(lists_from([[1, 2], [2, 3]]).to_torch())
    assert found.num_bytes == (3 + 2 + 2) * 8
    moved = found.to(torch.device("meta"))
    assert isinstance(moved, Windows)
    assert moved.values.is_meta


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("values", "offsets", "weights", "message"),
    [
        ([1, 2], [1, 2], None, "shop: offsets start at 1: must start at 0; subtract 1"),
        ([1, 2, 3], [0, 2, 1, 3], None, "shop, list 1: offset 1 comes after 2: offsets must never go down"),
        ([1, 2], [0, 3], None, "shop: offsets end at 3, but there are 2 ids"),
        ([1, 2], [], None, "shop: there are no offsets"),
        ([[1], [2]], [0, 2], None, "shop: ids are a 2-dimensional tensor of int64: must be a vector"),
        ([1, 2], [[0, 2]], None, "shop: offsets are a 2-dimensional tensor of int64"),
        ([0.5, 2], [0, 2], None, "shop: ids are a 1-dimensional tensor of float64"),
        ([1, 2], [0, 2], [0.5], "shop: weights of shape [1] for 2 ids: give one number per id"),
        ([1, 2], [0, 2], [1, 2], "shop: weights are int64: must be float32"),
    ],
)
def test_each_broken_law_of_lists_is_named(kind, values, offsets, weights, message):
    of_ints = partial(np.array, dtype=np.int64)
    offsets = of_ints(offsets)
    values = np.array(values)
    good = Jagged(of_ints([1, 2]), of_ints([0, 0, 2]), np.ones(2, np.float32))
    bad = Jagged(values, offsets, None if weights is None else np.array(weights))
    if kind == "torch":
        good, bad, message = good.to_torch(), bad.to_torch(), re.sub("(int64|float64)", r"torch.\1", message)
    check_lists(good, "shop", "list {}".format)
    with pytest.raises(DataError, match=re.escape(message)):
        check_lists(bad, "shop", "list {}".format)
