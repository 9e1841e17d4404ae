"""Random groups of features."""

from typing import Any

import pytest
from hypothesis import strategies as st

FEATURES = ("cart", "sellers", "history")


@pytest.fixture(scope="session")
def random_groups() -> st.SearchStrategy[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Strategy for ``(lists, weights)`` of three features, as fixture `jagged_of` takes them; samples repeat often."""
    return _groups()


@st.composite
def _groups(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any] | None]:
    # A sample is one of few kinds, so that it repeats; one kind may equal another in some features, or in all.
    ids = st.lists(st.integers(0, 1), max_size=3)
    kinds = draw(st.lists(st.tuples(*[ids] * len(FEATURES)), min_size=1, max_size=4))
    samples = draw(st.lists(st.integers(0, len(kinds) - 1), max_size=10))
    lists = {name: [kinds[kind][place] for kind in samples] for place, name in enumerate(FEATURES)}
    if not draw(st.booleans()):
        return lists, None
    weight = st.sampled_from([0.0, -0.0, 1.0, float("nan")])
    weights = {name: [[draw(weight) for _ in one] for one in column] for name, column in lists.items()}
    return lists, weights
