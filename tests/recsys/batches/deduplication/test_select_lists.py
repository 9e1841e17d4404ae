import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.recsys.batches.deduplication.deduplicate import deduplicate, to_variable_batch
from windrow.recsys.batches.deduplication.ikjt import (
    list_positions,
    places_of,
    select_by_pytorch,
    select_lists,
)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@given(data=st.data())
def test_copies_the_chosen_samples(dtype, random_groups, jagged_of, lists_of, data):
    jagged = jagged_of(*data.draw(random_groups), dtype=dtype)
    features = data.draw(st.lists(st.sampled_from(jagged.keys()), unique=True, min_size=1))
    numbers = st.integers(0, max(jagged.stride() - 1, 0))
    rows = data.draw(st.lists(numbers, max_size=12 * bool(jagged.stride())))
    chosen = torch.tensor(rows, dtype=torch.int64)
    selected = select_lists(jagged, features, chosen)
    before = lists_of(jagged)
    assert lists_of(selected) == {feature: [before[feature][row] for row in rows] for feature in features}
    assert selected.lengths().dtype == dtype
    places = places_of(jagged, features)
    weights = jagged.weights_or_none()
    found = select_by_pytorch(jagged.offsets(), jagged.values(), weights, jagged.stride(), places, chosen)
    for loops, pytorch in zip(
        (selected.values(), selected.weights_or_none(), selected.lengths()), found, strict=True
    ):
        assert (loops is None) == (pytorch is None)
        assert loops is None or loops.numpy().tobytes() == pytorch.numpy().tobytes()


@pytest.mark.parametrize("length", [15, 16, 17, 100])
def test_long_lists_are_copied_whole(length, jagged_of):
    jagged = jagged_of({"a": [range(length), range(length, 2 * length)]})
    assert select_lists(jagged, ["a"], torch.tensor([1, 0, 1])).values().tolist() == [
        *range(length, 2 * length), *range(length), *range(length, 2 * length)
    ]  # fmt: skip


def test_positions_of_lists_that_overlap():
    assert list_positions(torch.tensor([4, 0, 3]), torch.tensor([2, 0, 3])).tolist() == [4, 5, 3, 4, 5]
    assert list_positions(torch.zeros(0), torch.zeros(0, dtype=torch.int64)).tolist() == []


def test_refuses_variable_batches(jagged_of):
    variable = to_variable_batch([deduplicate(jagged_of({"a": [[1], [1], [2]]}), ["a"])])
    with pytest.raises(DataError, match="from_variable_batch"):
        select_lists(variable, ["a"], torch.tensor([0]))
