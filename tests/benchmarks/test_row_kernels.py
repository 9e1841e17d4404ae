"""The loop that says how fast rows can be read at random places reads them."""

import numpy as np
import pytest

from benchmarks.harness.row_kernels import read_rows


@pytest.mark.parametrize(("asked", "kept"), [(12, 12), (12, 4), (13, 5), (30, 1)])
def test_the_last_row_of_each_group_is_kept(asked, kept):
    chance = np.random.default_rng(asked)
    rows = chance.standard_normal((20, 32), dtype=np.float32)
    positions = chance.integers(20, size=asked)
    out = np.zeros((kept, 32), dtype=np.float32)
    read_rows(rows, positions, out)
    last = [max(i for i in range(asked) if i * kept // asked == place) for place in range(kept)]
    np.testing.assert_array_equal(out, rows[positions[last]])
