"""Compiled loops of `windrow.recsys.log.synthetic.sessions`: the values of samples, each worked out on its own."""

import math
from typing import Any

import numba
import numpy as np

from windrow.comm.inline_kernels import hash_id, mix64
from windrow.comm.random import GOLDEN

__all__ = ["draw_dense", "draw_ids", "id_effects", "walk"]

Array = np.ndarray[Any, np.dtype[Any]]

_GOLDEN = np.uint64(GOLDEN)
_11 = np.uint64(11)
_TO_UNIT = 2.0**-53
_UNIFORM_SCALE = math.sqrt(12.0)


@numba.njit(inline="always", cache=True)
def _unit(number: np.uint64) -> float:
    """A number in [0, 1) from 64 random bits."""
    return float(number >> _11) * _TO_UNIT


@numba.njit(cache=True, nogil=True)
def id_effects(key: np.uint64, ids: Array, effects: Array) -> None:
    """Fill `effects` [n] float64 with what `ids` [n] say about clicks: uniform with mean 0 and deviation 1."""
    for place in range(ids.size):
        effects[place] = (_unit(mix64(np.uint64(ids[place]) ^ key)) - 0.5) * _UNIFORM_SCALE


@numba.njit(cache=True, nogil=True)
def walk(
    key: np.uint64, sessions: Array, places: Array, unchanged: float, shifted: float, versions: Array, shifts: Array
) -> None:
    """Go from the first sample of a session to each sample, and count how a group changed on the way.

    A step from one of the `places` [n] in `sessions` [n] to the next changes nothing by chance `unchanged`; of changes
    the share `shifted` moves lists on by one, at the others everything is drawn anew. Filled: `versions` [n], times
    that it was, and `shifts` [n], times that lists moved on since then; all int64.
    """
    moved_on = unchanged + (1.0 - unchanged) * shifted
    for sample in range(sessions.size):
        state = hash_id(key, np.uint64(sessions[sample]))
        version = shift = 0
        for _ in range(places[sample]):
            state += _GOLDEN
            draw = _unit(mix64(state))
            if draw >= moved_on:
                version += 1
                shift = 0
            elif draw >= unchanged:
                shift += 1
        versions[sample] = version
        shifts[sample] = shift


@numba.njit(cache=True, nogil=True)
def draw_ids(
    key: np.uint64,
    sessions: Array,
    versions: Array,
    shifts: Array,
    offsets: Array,
    rows: int,
    skew: float,
    multiplier: int,
    ids: Array,
) -> None:
    """Draw the ids of a feature: a list is a window into an endless row of ids of its session and version.

    The k-th most frequent of `rows` ids is drawn with the share of a power law of exponent `skew` between k and k + 1,
    by inverting its distribution; then ranks are spread over the table, by a multiplication modulo its rows:
    `multiplier` has no common divisor with `rows`, both are below 2 ** 31. `sessions`, `versions` and `shifts`, where
    windows begin, are [n] int64; ids of sample i become `ids[offsets[i] : offsets[i + 1]]`.
    """
    flat = abs(skew - 1.0) < 1e-9
    span = math.log(rows + 1.0) if flat else (rows + 1.0) ** (1.0 - skew) - 1.0
    power = 1.0 if flat else 1.0 / (1.0 - skew)
    for sample in range(sessions.size):
        state = hash_id(hash_id(key, np.uint64(sessions[sample])), np.uint64(versions[sample]))
        state += np.uint64(shifts[sample]) * _GOLDEN
        for place in range(offsets[sample], offsets[sample + 1]):
            state += _GOLDEN
            draw = _unit(mix64(state))
            quantile = math.exp(draw * span) if flat else math.exp(math.log1p(draw * span) * power)
            ids[place] = (min(int(quantile) - 1, rows - 1) * multiplier) % rows


@numba.njit(cache=True, nogil=True)
def draw_dense(key: np.uint64, sessions: Array, versions: Array, shifts: Array, values: Array) -> None:
    """Fill `values` [n] float32 from the standard normal distribution (Box and Muller); the others are [n] int64."""
    for sample in range(sessions.size):
        state = hash_id(hash_id(key, np.uint64(sessions[sample])), np.uint64(versions[sample]))
        state = hash_id(state, np.uint64(shifts[sample]))
        radius = math.sqrt(-2.0 * math.log(1.0 - _unit(state)))
        values[sample] = radius * math.cos(2.0 * math.pi * _unit(mix64(state + _GOLDEN)))
