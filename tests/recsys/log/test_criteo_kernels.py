"""windrow.recsys.log.readers_kernels: against Python's int, for any fields."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.log.readers_kernels import parse_criteo

DECIMAL = st.integers(-(10**15), 10**15).map(str) | st.just("")
HEXADECIMAL = (
    st.integers(0, 2**63 - 1).map("{:x}".format) | st.integers(0, 2**32).map("{:08X}".format) | st.just("")
)


@given(
    st.lists(st.tuples(DECIMAL, DECIMAL, HEXADECIMAL, HEXADECIMAL), min_size=1, max_size=20), st.booleans()
)
def test_fields_are_those_of_python(rows: list[tuple[str, ...]], carriage_return: bool) -> None:
    ending = "\r\n" if carriage_return else "\n"
    data = np.frombuffer("".join("\t".join(row) + ending for row in rows).encode(), np.uint8)
    values = np.empty((4, len(rows)), np.int64)
    valid = np.zeros((4, (len(rows) + 7) // 8), np.uint8)
    assert parse_criteo(data, 1, values, valid) == (-1, -1)
    for line, row in enumerate(rows):
        for field, text in enumerate(row):
            assert values[field, line] == (int(text, 10 if field < 2 else 16) if text else 0)
            assert bool(valid[field, line // 8] >> (line % 8) & 1) == bool(text)
