import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.batches.deduplication.ikjt import renumber, renumber_by_pytorch


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(10, 30))
def test_numbers_follow_the_order_of_first_occurrence(numbers, limit):
    kinds = list(dict.fromkeys(numbers))
    for function in (renumber, renumber_by_pytorch):
        distinct, renumbered = function(torch.tensor(numbers, dtype=torch.int64), limit)
        assert distinct.tolist() == kinds
        assert renumbered.tolist() == [kinds.index(number) for number in numbers]


def test_nothing_has_no_numbers():
    distinct, renumbered = renumber(torch.zeros(0, dtype=torch.int64), 0)
    assert distinct.tolist() == renumbered.tolist() == []
