"""The compiled functions equal those of `windrow.comm.random` bit for bit."""

import numba
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm import inline_kernels as random_kernels
from windrow.comm import random

UNSIGNED = st.integers(0, 2**64 - 1)


@numba.njit
def _hash_all(key: np.uint64, ids: npt.NDArray[np.int64], drawn: npt.NDArray[np.uint64]) -> None:
    for position in range(len(ids)):
        drawn[position] = random_kernels.hash_id(key, np.uint64(ids[position]))


@settings(deadline=None)  # the first call compiles
@given(UNSIGNED)
def test_mix64_equals_the_python_function(value: int) -> None:
    assert int(random_kernels.mix64(np.uint64(value))) == random.mix64(value)


@settings(deadline=None)  # the first call compiles
@given(UNSIGNED, UNSIGNED)
def test_hash_id_equals_the_array_function(key: int, number: int) -> None:
    drawn = random_kernels.hash_id(np.uint64(key), np.uint64(number))
    assert int(drawn) == int(random.hash_ids(key, np.array([number], dtype=np.uint64))[0])


@pytest.mark.parametrize("key", [0, 1, 2**63, 2**64 - 1])
def test_hash_id_inlined_into_a_loop_equals_the_array_function(key: int) -> None:
    ids = np.concatenate((np.arange(-5, 1000), [2**31, 2**62]))
    drawn = np.empty(len(ids), np.uint64)
    _hash_all(np.uint64(key), ids, drawn)
    np.testing.assert_array_equal(drawn, random.hash_ids(key, ids))
