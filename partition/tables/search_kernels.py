"""Compiled loops of the search for plans: pieces, the costliest first, each to the rank that is cheapest so far."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from windrow.partition.tables.cost_model import CORRECTION, ComputeModel

__all__ = ["Head", "head_of", "place_greedily", "seconds_of"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Head(NamedTuple):
    """What turns the sum of pieces' vectors into seconds: see `ComputeModel`."""

    weighted: bool
    """Whether the design is ``corrected``."""
    base: float
    """Seconds of any set at all."""
    hidden: Floats
    """[units, width - 1] weights of the hidden layer."""
    hidden_bias: Floats
    """[units]"""
    last: Floats
    """[units] weights of the last layer."""
    last_bias: float


def head_of(model: ComputeModel) -> Head:
    """The head of a model as compiled loops want it."""
    (hidden, hidden_bias), (last, last_bias) = model.head
    weights = np.ascontiguousarray(hidden.T), np.ascontiguousarray(hidden_bias), np.ascontiguousarray(last[:, 0])
    return Head(model.design == "corrected", float(model.roof[-1]), *weights, float(last_bias[0]))


@njit(nogil=True, cache=True, fastmath=True)
def seconds_of(total: Floats, head: Head) -> float:
    """Seconds of one set of pieces from the sum [width] of their vectors: `ComputeModel.seconds`."""
    width = len(total) - 1
    weight = total[width]
    if weight <= 0.0:
        return 0.0
    scale = 1.0 / weight if head.weighted else 1.0
    found = head.last_bias
    for unit in range(len(head.last)):
        value = 0.0
        for number in range(width):
            value += head.hidden[unit, number] * total[number]
        value = value * scale + head.hidden_bias[unit]
        if value > 0.0:
            found += value * head.last[unit]
    if head.weighted:
        return float((head.base + weight) * math.exp(min(max(found, -CORRECTION), CORRECTION)))
    return float(max(found, 0.0))


@njit(nogil=True, cache=True, fastmath=True)
def place_greedily(  # numba takes arguments by position
    order: Ints,
    vectors: Floats,
    num_bytes: Ints,
    loads: Floats,
    first: Floats,
    memory: float,
    most_load: float,
    head: Head,
    ranks: Ints,
    sums: Floats,
) -> bool:
    """Give each piece to the rank that computes least so far, among those with room for its bytes and its load.

    Args:
        order: pieces, the costliest first.
        vectors: [pieces, width] what adds up.
        num_bytes: [pieces] memory.
        loads: [pieces] what of a rank's exchanges they take.
        first: [width] what every rank starts with.
        memory: bytes of each rank.
        most_load: of each rank.
        head: what sums mean.
        ranks: [pieces] is written.
        sums: [world size, width] is written.

    Returns:
        Whether all pieces found a place.
    """
    size = len(sums)
    seconds, taken, load = np.empty(size), np.zeros(size), np.zeros(size)
    sums[:] = first
    seconds[:] = seconds_of(first, head)
    for piece in order:
        best = -1
        for rank in range(size):
            if taken[rank] + num_bytes[piece] > memory or load[rank] + loads[piece] > most_load:
                continue
            if (
                best < 0
                or seconds[rank] < seconds[best]
                or (seconds[rank] == seconds[best] and taken[rank] < taken[best])
            ):
                best = rank
        if best < 0:
            return False
        ranks[piece] = best
        taken[best] += num_bytes[piece]
        load[best] += loads[piece]
        sums[best] += vectors[piece]
        seconds[best] = seconds_of(sums[best], head)
    return True
