"""Counter-based randomness: known values, streams that do not meet; the compiled forms of it, and prefetching."""

import itertools

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm import inline_kernels
from windrow.comm.random import FIRST_MULTIPLIER, GOLDEN, Stream, hash_ids, mix64, permuted, stream_key

UNSIGNED = st.integers(0, 2**64 - 1)


def test_mix64_reproduces_published_splitmix64_output() -> None:
    # The first outputs of SplitMix64 started at 1234567, as listed by implementations in many languages.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [mix64(1234567 + step * GOLDEN) for step in range(1, 5)] == expected


@given(UNSIGNED, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_hash_ids_equals_its_formula(key: int, ids: list[int]) -> None:
    drawn = hash_ids(key, np.array(ids, dtype=np.int64))
    assert drawn.dtype == np.uint64
    assert drawn.tolist() == [mix64(key ^ mix64(number + GOLDEN)) for number in ids]


def test_hash_ids_keeps_the_shape_and_takes_any_integer_type() -> None:
    ids = np.arange(12).reshape(3, 4)
    drawn = hash_ids(7, ids)
    assert drawn.shape == (3, 4)
    for dtype in (np.int32, np.uint32, np.uint64):
        np.testing.assert_array_equal(hash_ids(7, ids.astype(dtype)), drawn)


@given(st.integers(-(2**63), 2**64 - 1), st.lists(st.integers(0, 2**63), max_size=4), st.integers(0, 2**63))
def test_stream_key_folds_one_counter_at_a_time(seed: int, counters: list[int], last: int) -> None:
    key = stream_key(seed, *counters)
    assert 0 <= key < 2**64
    assert stream_key(seed, *counters, last) == mix64(key + mix64(last ^ FIRST_MULTIPLIER))


@given(UNSIGNED, st.integers(1, 300))
def test_a_permutation_has_every_number_once(key: int, size: int) -> None:
    everything = permuted(key, np.arange(size), size)
    assert sorted(everything.tolist()) == list(range(size))
    assert permuted(key, np.arange(size)[::3], size).tolist() == everything[::3].tolist()


def test_every_number_is_as_likely_at_every_place_of_a_permutation() -> None:
    drawn = np.stack([permuted(stream_key(key), np.arange(5), 5) for key in range(6000)])
    counts = np.stack([np.bincount(column, minlength=5) for column in drawn.T])
    assert np.abs(counts - 1200).max() < 5 * np.sqrt(6000 * 0.2 * 0.8)
    assert len(np.unique(drawn, axis=0)) == 120


def test_stream_key_tells_all_nearby_counters_apart() -> None:
    keys = {stream_key(*counters) for counters in itertools.product(range(4), Stream, range(10), range(50))}
    assert len(keys) == 4 * len(Stream) * 10 * 50
    assert stream_key(1, 2, 3) != stream_key(1, 3, 2)
    assert stream_key(1, 2) != stream_key(2, 1)
    assert stream_key(0) != stream_key(0, 0)


def test_streams_have_distinct_numbers() -> None:
    assert len({int(stream) for stream in Stream}) == len(Stream)


@numba.njit
def _hash_all(key, ids, drawn):
    for position in range(len(ids)):
        drawn[position] = inline_kernels.hash_id(key, np.uint64(ids[position]))


@given(UNSIGNED, UNSIGNED)
def test_compiled_functions_equal_those_of_python(key: int, number: int) -> None:
    assert int(inline_kernels.mix64(np.uint64(key))) == mix64(key)
    drawn = inline_kernels.hash_id(np.uint64(key), np.uint64(number))
    assert int(drawn) == int(hash_ids(key, np.array([number], dtype=np.uint64))[0])
    ids = np.concatenate((np.arange(-5, 100), [2**31, 2**62]))
    inlined = np.empty(len(ids), np.uint64)
    _hash_all(np.uint64(key), ids, inlined)
    assert np.array_equal(inlined, hash_ids(key, ids))


@numba.njit
def _sum_with_prefetch(values, ahead):
    total = 0
    for position in range(len(values)):
        inline_kernels.prefetch(values, position + ahead)
        total += values[position]
    return total


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
@pytest.mark.parametrize("ahead", [0, 16, 1 << 40, -(1 << 40)])
def test_prefetch_reads_nothing_even_far_outside_the_array(dtype: type, ahead: int) -> None:
    values = np.arange(100, dtype=dtype)
    assert _sum_with_prefetch(values, ahead) == 4950
    assert np.array_equal(values, np.arange(100, dtype=dtype))
