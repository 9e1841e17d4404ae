"""windrow.comm.inline_kernels: what compiled loops use, against NumPy."""

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.inline_kernels import SIGNED, TURNED, add_signed, high_product, tile, turn

WORDS = st.integers(0, 2**64 - 1)


@numba.njit
def upper(one, other):
    return high_product(one, other)


@given(WORDS, WORDS)
def test_the_upper_half_of_a_product(one, other):
    assert int(upper(np.uint64(one), np.uint64(other))) == one * other >> 64


@numba.njit
def signed(target, i, source, j, signs, weight, adds):
    add_signed(target, i, source, j, signs, weight, adds)


@given(st.integers(0, 5), st.integers(0, 5), WORDS, st.sampled_from([1.0, -0.5]), st.booleans())
def test_signs_are_bits(i, j, signs, weight, adds):
    source, target = np.arange(1, 16, dtype=np.float32), np.full(16, 100, np.float32)
    target[i] = np.nan if not adds else 7
    expected = target.copy()
    chosen = np.array([-1 if signs >> bit & 1 else 1 for bit in range(SIGNED)], np.float32)
    before = expected[i : i + SIGNED] if adds else np.zeros(SIGNED, np.float32)
    expected[i : i + SIGNED] = before + np.float32(weight) * chosen * source[j : j + SIGNED]
    signed(target, i, source, j, np.uint64(signs), np.float32(weight), adds)
    np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize(("rows", "columns"), [(4, 16), (3, 4), (1, 1)])
@pytest.mark.parametrize("inner", [0, 1, 7])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("adds", [False, True])
def test_a_tile_is_a_product(rows, columns, inner, turned, adds):
    add = tile(rows, columns)

    @numba.njit
    def run(c, a, a_row, a_inner, b):
        add(c, 3, columns + 2, a, 1, a_row, a_inner, b, 2, columns + 1, inner, adds)

    draw = np.random.default_rng(inner)
    c, a, b = (draw.normal(size=200).astype(np.float32) for _ in range(3))
    a_row, a_inner = (1, rows + 1) if turned else (inner + 1, 1)
    expected = c.copy()
    for i in range(rows):
        for j in range(columns):
            place = 3 + i * (columns + 2) + j
            total = sum(a[1 + i * a_row + k * a_inner] * b[2 + k * (columns + 1) + j] for k in range(inner))
            expected[place] = total + (c[place] if adds else 0)
    run(c, a, a_row, a_inner, b)
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-5)


@numba.njit
def turned(target, i, target_row, source, j, source_row):
    turn(target, i, target_row, source, j, source_row)


def test_a_block_is_turned():
    source, target = np.arange(200, dtype=np.float32), np.full(200, -1, np.float32)
    expected = target.copy()
    for row in range(TURNED):
        for column in range(TURNED):
            expected[2 + 9 * column + row] = source[3 + 11 * row + column]
    turned(target, 2, 9, source, 3, 11)
    np.testing.assert_array_equal(target, expected)
