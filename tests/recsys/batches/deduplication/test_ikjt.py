import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.recsys.batches.deduplication.deduplicate import deduplicate
from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor, select_lists

CART = [[7, 3], [7, 3], [], [7, 3], [4]]
SELLERS = [[1, 1], [1, 1], [], [1, 1], [9]]


@pytest.fixture
def group(jagged_of):
    return deduplicate(jagged_of({"cart": CART, "sellers": SELLERS}), ["cart", "sellers"])


def test_is_what_the_docstring_draws(group, lists_of, jagged_of):
    assert group.unique.values().tolist() == [7, 3, 4, 1, 1, 9]
    assert group.unique.lengths().tolist() == [2, 0, 1, 2, 0, 1]
    assert group.inverse.tolist() == [0, 0, 1, 0, 2]
    assert (group.keys, group.num_samples, group.num_unique) == (("cart", "sellers"), 5, 3)
    assert lists_of(group.expand()) == lists_of(jagged_of({"cart": CART, "sellers": SELLERS}))


def test_counts_the_bytes_of_what_it_holds(group, jagged_of):
    # 6 ids, 6 lengths and 5 numbers of 8 bytes.
    assert group.num_bytes == 17 * 8
    weighted = deduplicate(jagged_of({"a": [[1, 2]]}, {"a": [[0.5, 1.0]]}), ["a"])
    assert weighted.num_bytes == 2 * 8 + 2 * 4 + 8 + 8


@given(data=st.data(), kinds=st.lists(st.lists(st.integers(0, 1), max_size=2), max_size=12))
def test_a_slice_is_the_slice_deduplicated(data, kinds, jagged_of, lists_of):
    jagged = jagged_of({"a": kinds, "b": [[sum(ids)] for ids in kinds]})
    start = data.draw(st.integers(0, len(kinds)))
    stop = data.draw(st.integers(start, len(kinds)))
    cut = deduplicate(jagged, ["b", "a"]).slice(start, stop)
    expected = deduplicate(select_lists(jagged, jagged.keys(), torch.arange(start, stop)), ["b", "a"])
    assert cut.inverse.tolist() == expected.inverse.tolist()
    assert lists_of(cut.unique) == lists_of(expected.unique)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 6)])
def test_refuses_samples_that_are_not_there(group, start, stop):
    with pytest.raises(DataError, match=f"samples {start} to {stop} of 5"):
        group.slice(start, stop)


def test_moves_to_a_device(group):
    moved = group.to(torch.device("meta"))
    assert moved.inverse.is_meta
    assert moved.unique.values().is_meta
    assert (moved.keys, moved.num_unique) == (group.keys, 3)


def test_pins_every_tensor(group, monkeypatch):
    pinned = []

    def pin(tensor):
        pinned.append(tensor.data_ptr())
        return tensor.clone()

    # Pinning for real needs a GPU.
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    again = group.pin_memory()
    held = [group.inverse, group.unique.values(), group.unique.lengths()]
    assert {tensor.data_ptr() for tensor in held} <= set(pinned)
    assert again.inverse.tolist() == group.inverse.tolist()
    assert isinstance(again, InverseKeyedJaggedTensor)
