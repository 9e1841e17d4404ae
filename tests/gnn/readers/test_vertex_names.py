"""Vertices known by names."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.gnn.readers.edge_list import look_up, number_names

pa = pytest.importorskip("pyarrow")
EDGES = st.lists(st.tuples(st.text("abc", max_size=3), st.text("abc", max_size=3)), max_size=30)


@given(EDGES, st.integers(1, 7), st.sampled_from(["first-appearance", "sorted"]))
def test_numbering_equals_a_dictionary(edges: list[tuple[str, str]], batch: int, order: str) -> None:
    starts = range(0, len(edges), batch)
    sources = [pa.array([edge[0] for edge in edges[start : start + batch]]) for start in starts]
    destinations = [pa.array([edge[1] for edge in edges[start : start + batch]]) for start in starts]
    names, source_numbers, destination_numbers = number_names(sources, destinations, order)
    met = list(dict.fromkeys(name for edge in edges for name in edge))
    expected = sorted(met) if order == "sorted" else met
    assert names.to_pylist() == expected
    assert source_numbers.tolist() == [expected.index(edge[0]) for edge in edges]
    assert destination_numbers.tolist() == [expected.index(edge[1]) for edge in edges]


def test_integers_sort_as_numbers() -> None:
    names, sources, _ = number_names([pa.array([10, 9])], [pa.array([100, 9])], "sorted")
    assert names.to_pylist() == [9, 10, 100]
    assert sources.tolist() == [1, 0]


def test_look_up_across_batches() -> None:
    names = pa.array(["b", "a"])
    assert np.array_equal(look_up(names, [pa.array(["a"]), pa.array(["b", "a"])], "f"), [1, 0, 1])
    with pytest.raises(
        DataError, match=r"e.csv, row 3: 'z' is not in the vertex file; add it there or remove the edge"
    ):
        look_up(names, [pa.array(["a", "b"]), pa.array(["z"])], "e.csv")
