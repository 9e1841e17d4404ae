"""Ids that must be vertices."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.gnn.graph import describe_numbering, first_outside


@given(st.lists(st.integers(-3, 12), max_size=20), st.integers(0, 10))
def test_first_outside_equals_a_plain_search(ids: list[int], num_vertices: int) -> None:
    expected = next((place for place, value in enumerate(ids) if not 0 <= value < num_vertices), None)
    assert first_outside(torch.tensor(ids, dtype=torch.int64), num_vertices) == expected


def test_numbering_in_words() -> None:
    assert describe_numbering(5) == "the graph has 5 vertices, numbered 0 to 4"
    assert describe_numbering(0) == "the graph has no vertices"
