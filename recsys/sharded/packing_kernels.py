"""The loops behind `windrow.recsys.sharded.packing`.

Where several take them: `lengths` [features, samples], `ids` [n] and `weights` [n], or [0] for none, are a batch's;
`starts` [features + 1] says where each feature's ids begin; `requests` [r, 4] are feature, first row, row of
`bag_lengths` or -1 for all ids, and whether samples without ids are left out; `features`, `bounds`, `first_asked` and
`asked` are those of `IndexMap`.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import mix64

__all__ = ["count_requests", "number_ids", "pack_requests", "place_requests", "renumber_copied", "summarise"]

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@numba.njit(nogil=True, cache=True)
def summarise(
    lengths: npt.NDArray[Any], ids: npt.NDArray[Any], limits: Ints, starts: Ints, one_each: npt.NDArray[np.bool_]
) -> bool:
    """Find where each feature's ids begin, whether it has one for each sample, and whether all is valid.

    Fills `starts` and `one_each` [features]. Ids must be below `limits` [features]; a negative one: this feature is not
    looked up.

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


_FEW_PIECES = 48


@numba.njit(nogil=True, cache=True, inline="always")
def _piece_of(bounds: Ints, first: Any, stop: Any, row: Any) -> Any:
    """The last of the pieces [first, stop) that begins at or before a row; the first one begins at 0."""
    # Without branches, which would be mispredicted half of the time.
    size = stop - first
    while size > 1:
        half = size // 2
        first += half * (bounds[first + half] <= row)
        size -= half
    return first


@numba.njit(nogil=True, cache=True)
def _find_pieces(ids: npt.NDArray[Any], bounds: Ints, first: int, stop: int, found: Small) -> None:
    """Which of the pieces [first, stop) each id is in."""
    if stop - first > _FEW_PIECES:
        for i in range(len(ids)):
            found[i] = _piece_of(bounds, first, stop, np.int64(ids[i]))
        return
    # A few bounds are compared with many ids at once faster than each id is searched.
    found[:] = first
    for piece in range(first + 1, stop):
        bound = bounds[piece]
        for i in range(len(ids)):
            found[i] += ids[i] >= bound


@numba.njit(nogil=True, cache=True)
def count_requests(
    lengths: npt.NDArray[Any],
    ids: npt.NDArray[Any],
    starts: Ints,
    requests: Ints,
    features: Ints,
    bounds: Ints,
    first_asked: Ints,
    asked: Ints,
    counts: Ints,
    bags: Ints,
    one_each: npt.NDArray[np.bool_],
    bag_lengths: Small,
    pieces: Small,
) -> None:
    """Count the ids of every request into `counts` [r], and its bags into `bags` [r].

    Bags are samples, or those that have ids. Of cut tables, whether each has one goes into `one_each` [r], ids by
    sample into `bag_lengths` [cut requests, samples], and the piece of each id of `features`, one feature after
    another, into `pieces` [n].
    """
    bag_lengths[:] = 0
    num_samples = lengths.shape[1]
    begin = 0
    for cut in range(len(features)):
        feature, first, stop = features[cut]
        end = begin + starts[feature + 1] - starts[feature]
        found, position = pieces[begin:end], 0
        _find_pieces(ids[starts[feature] : starts[feature + 1]], bounds, first, stop, found)
        in_piece = np.zeros((stop - first, num_samples), np.int32)
        for sample in range(num_samples):
            for _ in range(lengths[feature, sample]):
                in_piece[found[position] - first, sample] += 1
                position += 1
        for piece in range(first, stop):
            for number in range(first_asked[piece], first_asked[piece + 1]):
                bag_lengths[requests[asked[number], 2]] += in_piece[piece - first]
        begin = end
    for request in range(len(requests)):
        feature, _, cut, left_out = requests[request]
        if cut < 0:
            counts[request] = starts[feature + 1] - starts[feature]
            bags[request] = num_samples
        else:
            total = filled = 0
            for sample in range(num_samples):
                total += bag_lengths[cut, sample]
                filled += bag_lengths[cut, sample] > 0
            counts[request], bags[request] = total, filled if left_out else num_samples
            one_each[request] = total == filled == bags[request]


@numba.njit(nogil=True, cache=True, inline="always")
def _pack_id(
    ids: npt.NDArray[Any],
    weights: Floats,
    i: int,
    request: Any,
    packed_ids: npt.NDArray[Any],
    packed_weights: Floats,
    next_place: tuple[Ints, Ints, Ints],
) -> None:
    """Write an id, less the request's first row, and its weight where there are any."""
    next_ids, next_weights, first_rows = next_place
    packed_ids[next_ids[request]] = np.int64(ids[i]) - first_rows[request]
    next_ids[request] += 1
    if len(weights) > 0:
        packed_weights[next_weights[request]] = weights[i]
        next_weights[request] += 1


@numba.njit(nogil=True, cache=True)
def pack_requests(
    lengths: npt.NDArray[Any],
    ids: npt.NDArray[Any],
    weights: Floats,
    starts: Ints,
    requests: Ints,
    features: Ints,
    first_asked: Ints,
    asked: Ints,
    places: Ints,
    bag_lengths: Small,
    pieces: Small,
    first_bags: Ints,
    filled: Ints,
    packed_ids: npt.NDArray[Any],
    packed_weights: Floats,
    packed_lengths: Small,
) -> None:
    """Write what all owners are asked for: ids less the request's first row, weights, and lengths where needed.

    `places` [r, 3] say where ids, weights, and lengths (or -1 for none) of each request begin in `packed_ids`,
    `packed_weights` and `packed_lengths`, which are one memory. `bag_lengths` and `pieces` are of `count_requests`.
    `first_bags` [r + 1] says where the samples of each go in `filled`, where those without ids are left out.
    """
    num_samples = lengths.shape[1]
    weighted = len(weights) > 0
    for request in range(len(requests)):
        feature, _, cut, left_out = requests[request]
        place, place_of_weights, place_of_lengths = places[request]
        if cut < 0:
            start = starts[feature]
            count = starts[feature + 1] - start
            for i in range(count):
                packed_ids[place + i] = ids[start + i]
            if weighted:
                packed_weights[place_of_weights : place_of_weights + count] = weights[start : start + count]
        if left_out:
            bag = first_bags[request]
            for sample in range(num_samples):
                if bag_lengths[cut, sample] > 0:
                    filled[bag] = sample
                    if place_of_lengths >= 0:
                        packed_lengths[place_of_lengths + bag - first_bags[request]] = bag_lengths[cut, sample]
                    bag += 1
        elif place_of_lengths >= 0:
            for sample in range(num_samples):
                length = lengths[feature, sample] if cut < 0 else bag_lengths[cut, sample]
                packed_lengths[place_of_lengths + sample] = length
    begin = 0
    next_place = places[:, 0].copy(), places[:, 1].copy(), requests[:, 1].copy()
    for cut in range(len(features)):
        feature, first, stop = features[cut]
        own = ids[starts[feature] : starts[feature + 1]]
        found = pieces[begin : begin + len(own)]
        begin += len(own)
        own_weights = weights[starts[feature] : starts[feature + 1]] if weighted else weights
        one_request_each = True
        for piece in range(first, stop):
            one_request_each &= first_asked[piece + 1] - first_asked[piece] == 1
        if one_request_each:
            # As usual, and faster without a loop for each id.
            for i in range(len(own)):
                _pack_id(own, own_weights, i, asked[first_asked[found[i]]], packed_ids, packed_weights, next_place)
        else:
            for i in range(len(own)):
                for number in range(first_asked[found[i]], first_asked[found[i] + 1]):
                    _pack_id(own, own_weights, i, asked[number], packed_ids, packed_weights, next_place)


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
    """Put what one rank asks for, as `pack_requests` wrote it, into the owner's batch of lookups.

    `lookups` [lookups, 6]: where its ids begin in the packed ones, how many, where its lengths begin or -1 for one id
    in each bag, its bags, where its ids go in `values`, and where its first offset goes in `offsets`. Each has
    `num_bags` bags for the rank that asks; those past its own stay empty. `values`, `weights` ([0] for none) and
    `offsets` are filled in part.
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


@numba.njit(nogil=True, cache=True, inline="always")
def _count_bits(word: Any) -> Any:
    """How many bits are set, by sums of 2, 4 and 8 neighbours, and of all bytes in the highest."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@numba.njit(nogil=True, cache=True)
def renumber_copied(
    ids: npt.NDArray[Any], bits: npt.NDArray[np.uint64], before: Small, places: Small, first: int
) -> None:
    """Change ids [n] that have a bit in `bits` to `first` and the place of theirs.

    `before` says how many bits there are before each word, `places` the place of each bit.
    """
    for position in range(len(ids)):
        row = np.uint64(np.int64(ids[position]))
        word, bit = row >> np.uint64(6), row & np.uint64(63)
        found = bits[word]
        if (found >> bit) & np.uint64(1):
            below = found & ((np.uint64(1) << bit) - np.uint64(1))
            ids[position] = first + places[before[word] + _count_bits(below)]


@numba.njit(nogil=True, cache=True)
def number_ids(ids: npt.NDArray[Any], slots: Small, distinct: npt.NDArray[Any], places: Ints) -> int:
    """Number the distinct ones of some ids in the order in which they first come; how many there are.

    `distinct` [n] gets them, `places` [n] the number of each id. `slots`, a power of two above 2 n of them, are -1, and
    get numbers.
    """
    found, last = 0, np.uint64(len(slots) - 1)
    for position in range(len(ids)):
        wanted = ids[position]
        slot = mix64(np.uint64(wanted)) & last
        while slots[slot] >= 0 and distinct[slots[slot]] != wanted:
            slot = (slot + np.uint64(1)) & last
        if slots[slot] < 0:
            slots[slot] = found
            distinct[found] = wanted
            found += 1
        places[position] = slots[slot]
    return found
