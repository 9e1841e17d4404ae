"""Distinct ids against a dictionary."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.rows import distinct_ids


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), max_size=60))
def test_first_appearance_decides_the_order(ids):
    distinct, inverse = distinct_ids(torch.tensor(ids, dtype=torch.int64))
    expected = list(dict.fromkeys(ids))
    assert distinct.tolist() == expected
    assert inverse.tolist() == [expected.index(number) for number in ids]


def test_ids_may_be_a_view():
    ids = torch.tensor([[1, 9], [1, 9], [2, 9]])[:, 0]
    distinct, inverse = distinct_ids(ids)
    assert distinct.tolist() == [1, 2]
    assert inverse.tolist() == [0, 0, 1]
