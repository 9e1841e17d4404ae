"""The loops behind `windrow.recsys.sharded.packing` and `windrow.recsys.sharded.packing`."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["count_requests", "pack_requests", "place_requests", "summarise"]

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@numba.njit(nogil=True, cache=True)
def summarise(
    lengths: npt.NDArray[Any],
    ids: npt.NDArray[Any],
    limits: Ints,
    starts: Ints,
    one_each: npt.NDArray[np.bool_],
) -> bool:
    """Find where each feature's ids begin, whether it has one for each sample, and whether all is lawful.

    Args:
        lengths: [features, samples].
        ids: [n].
        limits: [features], ids must be below; negative: this feature is not looked up.
        starts: [features + 1] to fill.
        one_each: [features] to fill.

    Returns:
        False where a length is negative, lengths and ids differ in number, or an id is out of range.
    """
    # Loops without branches, which the compiler turns into vector instructions.
    total = 0
    shortest = 0
    for feature in range(lengths.shape[0]):
        starts[feature] = total
        low, high, count = 1, 1, 0
        for sample in range(lengths.shape[1]):
            length = lengths[feature, sample]
            low = min(low, length)
            high = max(high, length)
            count += length
        one_each[feature] = low == 1 and high == 1
        shortest = min(shortest, low)
        total += count
    starts[lengths.shape[0]] = total
    if shortest < 0 or total != len(ids):
        return False
    for feature in range(lengths.shape[0]):
        if limits[feature] < 0:
            continue
        highest = np.uint64(0)
        for position in range(starts[feature], starts[feature + 1]):
            # A negative id is a very large one without sign.
            highest = max(highest, np.uint64(np.int64(ids[position])))
        if starts[feature] < starts[feature + 1] and highest >= np.uint64(limits[feature]):
            return False
    return True


@numba.njit(nogil=True, cache=True)
def count_requests(
    lengths: npt.NDArray[Any],
    ids: npt.NDArray[Any],
    starts: Ints,
    requests: Ints,
    counts: Ints,
    bag_lengths: Small,
) -> None:
    """Count the ids of every request, for those of cut tables also by sample.

    Args:
        lengths: [features, samples].
        ids: [n].
        starts: [features + 1], from `summarise`.
        requests: [r, 4] feature, first row, row after the last, and row of `bag_lengths` or -1 for all ids.
        counts: [r] to fill.
        bag_lengths: [cut requests, samples] to fill.
    """
    for request in range(len(requests)):
        feature, first, stop, cut = requests[request]
        if cut < 0:
            counts[request] = starts[feature + 1] - starts[feature]
            continue
        position = starts[feature]
        total = 0
        for sample in range(lengths.shape[1]):
            inside = 0
            for _ in range(lengths[feature, sample]):
                inside += first <= ids[position] < stop
                position += 1
            bag_lengths[cut, sample] = inside
            total += inside
        counts[request] = total


@numba.njit(nogil=True, cache=True)
def pack_requests(
    lengths: npt.NDArray[Any],
    ids: npt.NDArray[Any],
    weights: Floats,
    starts: Ints,
    requests: Ints,
    send_lengths: npt.NDArray[np.bool_],
    bag_lengths: Small,
    packed_ids: npt.NDArray[Any],
    packed_weights: Floats,
    packed_lengths: Small,
) -> None:
    """Write what one owner is asked for: ids less its first row, weights, and lengths where they are needed.

    Args:
        lengths: [features, samples].
        ids: [n].
        weights: [n], or [0] for none.
        starts: [features + 1], from `summarise`.
        requests: rows of `count_requests` of this owner.
        send_lengths: for each request, whether its lengths are written.
        bag_lengths: from `count_requests`.
        packed_ids: to fill, request after request.
        packed_weights: to fill likewise.
        packed_lengths: to fill, request after request.
    """
    num_samples = lengths.shape[1]
    weighted = len(weights) > 0
    place = 0
    place_of_lengths = 0
    for request in range(len(requests)):
        feature, first, stop, cut = requests[request]
        if cut < 0:
            start = starts[feature]
            count = starts[feature + 1] - start
            for i in range(count):
                packed_ids[place + i] = ids[start + i]
            if weighted:
                packed_weights[place : place + count] = weights[start : start + count]
            place += count
        else:
            for position in range(starts[feature], starts[feature + 1]):
                if first <= ids[position] < stop:
                    packed_ids[place] = ids[position] - first
                    if weighted:
                        packed_weights[place] = weights[position]
                    place += 1
        if send_lengths[request]:
            for sample in range(num_samples):
                length = lengths[feature, sample] if cut < 0 else bag_lengths[cut, sample]
                packed_lengths[place_of_lengths + sample] = length
            place_of_lengths += num_samples


@numba.njit(nogil=True, cache=True)
def place_requests(
    packed_ids: npt.NDArray[Any],
    packed_weights: Floats,
    packed_lengths: Small,
    lookups: Ints,
    num_bags: int,
    values: npt.NDArray[Any],
    weights: Floats,
    offsets: npt.NDArray[Any],
) -> None:
    """Put what one rank asks for into the owner's batch of lookups.

    Args:
        packed_ids: from `pack_requests`.
        packed_weights: likewise, or [0] for none.
        packed_lengths: likewise.
        lookups: [lookups, 6] where its ids begin in the packed ones, how many, where its lengths begin or -1 for one
            id in each row, its rows, where its ids go in `values`, and where its first offset goes in `offsets`.
        num_bags: bags of each lookup for the rank that asks; those past its rows stay empty.
        values: the owner's ids, filled in part.
        weights: the owner's weights, filled in part; [0] for none.
        offsets: where bags begin in `values`, filled in part.
    """
    for lookup in range(len(lookups)):
        start, count, start_of_lengths, rows, place, place_of_offsets = lookups[lookup]
        for i in range(count):
            values[place + i] = packed_ids[start + i]
        if len(weights):
            weights[place : place + count] = packed_weights[start : start + count]
        if start_of_lengths < 0:
            for row in range(rows):
                offsets[place_of_offsets + row] = place + row
        else:
            begin = place
            for row in range(rows):
                offsets[place_of_offsets + row] = begin
                begin += packed_lengths[start_of_lengths + row]
        for row in range(rows, num_bags):
            offsets[place_of_offsets + row] = place + count
