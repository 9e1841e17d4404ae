"""windrow.recsys.log.readers_kernels: against Python's int and float."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.log.readers_kernels import parse_libfm

NUMBER = (
    st.floats(-1e9, 1e9, width=32).map(repr)
    | st.integers(-1000, 1000).map(str)
    | st.sampled_from(["+.5", "2.", "1E3"])
)
PAIRS = st.lists(st.tuples(st.integers(0, 10**17), NUMBER), max_size=5)


@given(st.lists(st.tuples(st.sampled_from(["0", "1", "-1", "1.0"]), PAIRS), min_size=1, max_size=10))
def test_lines_are_those_of_python(rows: list[tuple[str, list[tuple[int, str]]]]) -> None:
    text = "".join(
        label + "".join(f" {index}:{value}" for index, value in pairs) + "\n" for label, pairs in rows
    )
    flat = [pair for _, pairs in rows for pair in pairs]
    labels, offsets = np.empty(len(rows)), np.empty(len(rows) + 1, np.int64)
    ids, weights = np.empty(len(flat), np.int64), np.empty(len(flat), np.float32)
    assert parse_libfm(np.frombuffer(text.encode(), np.uint8), labels, offsets, ids, weights) == (-1, -1)
    assert labels.tolist() == [float(label) for label, _ in rows]
    assert np.diff(offsets).tolist() == [len(pairs) for _, pairs in rows]
    assert ids.tolist() == [index for index, _ in flat]
    assert weights.tolist() == pytest.approx([float(value) for _, value in flat], rel=1e-6)
