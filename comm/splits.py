"""Arithmetic of splitting: who owns which id, which rows go where, how a long message is cut.

Offsets say which ids each rank owns. A rank may own none::

    offsets   0        3  3     5        rank 0 owns 0 1 2, rank 1 nothing, rank 2 owns 3 4
    ids       4  0  3  1                 owners 2 0 2 0
    order     1  3  0  2                 ids[order] is 0 1 | | 4 3, counts 2 0 2
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.comm.splits_kernels import find_owners, sort_by_owner

__all__ = ["chunk_bounds", "group_by_owner", "near_equal_split", "offsets_from_counts", "owners"]


def offsets_from_counts(counts: Sequence[int]) -> list[int]:
    """Turn the sizes of consecutive ranges into their boundaries.

    Args:
        counts: length of each range.

    Returns:
        One entry more than `counts`: range k is offsets[k] .. offsets[k + 1] - 1, and offsets[0] is 0.
    """
    return list(accumulate(counts, initial=0))


def near_equal_split(length: int, parts: int) -> list[int]:
    """Cut a range into parts whose lengths differ by at most one, the longer ones spread evenly.

    Args:
        length: of the range.
        parts: how many, at least 1; where there are more parts than elements, some are empty.

    Returns:
        [parts + 1] offsets: part k is ``length * k // parts .. length * (k + 1) // parts - 1``.

    Raises:
        ValueError: no parts, or a negative length.
    """
    if parts < 1 or length < 0:
        raise ValueError(f"cannot cut {length} elements into {parts} parts")
    return [length * part // parts for part in range(parts + 1)]


def chunk_bounds(length: int, limit: int) -> list[tuple[int, int]]:
    """Cut a range into the fewest chunks that are not longer than a limit.

    Args:
        length: of the range, in any unit (bytes, elements).
        limit: the longest chunk, at least 1, in the same unit.

    Returns:
        ``(start, stop)`` of each chunk, in order; none for length 0. All but the last have length `limit`.

    Raises:
        ValueError: the limit is below 1, or the length is negative.
    """
    if limit < 1 or length < 0:
        raise ValueError(f"cannot cut {length} elements into chunks of {limit}")
    return [(start, min(start + limit, length)) for start in range(0, length, limit)]


def owners(ids: Tensor, offsets: Sequence[int]) -> Tensor:
    """Find the rank that owns each id.

    Args:
        ids: [n] int64, any order and device.
        offsets: [ranks + 1] never falling; rank r owns offsets[r] .. offsets[r + 1] - 1.

    Returns:
        [n] int64 on the device of `ids`.

    Raises:
        DataError: nobody owns an id; names it and its position.
    """
    _check_dtype(ids)
    outside = (ids < offsets[0]) | (ids >= offsets[-1])
    if bool(outside.any()):
        raise _outside(ids, int(outside.nonzero()[0]), offsets)
    return torch.bucketize(ids, torch.tensor(offsets[1:], device=ids.device), right=True)


def group_by_owner(ids: Tensor, offsets: Sequence[int]) -> tuple[Tensor | None, list[int]]:
    """Order ids by the rank that owns them, keeping the order among the ids of one rank.

    Args:
        ids: [n] int64, any order and device; may repeat.
        offsets: [ranks + 1] never falling; rank r owns offsets[r] .. offsets[r + 1] - 1.

    Returns:
        ``(order, counts)``: ``ids[order]`` holds counts[0] ids of rank 0, then counts[1] of rank 1, and so
        on. ``order`` is [n] int64 on the device of `ids`, or None where the ids are grouped already (sorted
        ids are).

    Raises:
        DataError: nobody owns an id; names the first such id and its position.

    Cost:
        On the CPU about log2(ranks) + 2 passes over the ids, and one more where they are not grouped; on a
        GPU a stable sort and one wait for the device.
    """
    _check_dtype(ids)
    return (_group_on_cpu if ids.device.type == "cpu" else _group_with_torch)(ids, offsets)


def _group_on_cpu(ids: Tensor, offsets: Sequence[int]) -> tuple[Tensor | None, list[int]]:
    array = ids.contiguous().numpy()
    owner = np.empty(len(array), np.int32)
    counts = np.zeros(len(offsets) - 1, np.int64)
    grouped, bad_position = find_owners(array, np.asarray(offsets, np.int64), owner, counts)
    if bad_position >= 0:
        raise _outside(ids, bad_position, offsets)
    if grouped:
        return None, counts.tolist()
    order = np.empty(len(array), np.int64)
    sort_by_owner(owner, counts, order)
    return torch.from_numpy(order), counts.tolist()


def _group_with_torch(ids: Tensor, offsets: Sequence[int]) -> tuple[Tensor | None, list[int]]:
    size = len(offsets) - 1
    # The first boundary is included here, so that ids below it can be told from those of rank 0.
    slot = torch.bucketize(ids, torch.tensor(offsets, device=ids.device), right=True)
    histogram = torch.bincount(slot, minlength=size + 2)
    falls = (slot[1:] < slot[:-1]).sum().view(1)
    below, *counts, above, num_falls = torch.cat([histogram, falls]).tolist()
    if below or above:
        outside = (slot == 0) | (slot == size + 1)
        raise _outside(ids, int(outside.nonzero()[0]), offsets)
    return (torch.argsort(slot, stable=True) if num_falls else None), counts


def _check_dtype(ids: Tensor) -> None:
    if ids.dtype != torch.int64 or ids.dim() != 1:
        raise TypeError(f"ids must be a vector of int64, not {ids.dim()}-dimensional {ids.dtype}")


def _outside(ids: Tensor, position: int, offsets: Sequence[int]) -> DataError:
    held = [(start, stop) for start, stop in pairwise(offsets) if start < stop]
    known = f"ids are {held[0][0]} to {held[-1][1] - 1}" if held else "no rank owns any id"
    return DataError(
        f"id {int(ids[position])} at position {position} of {len(ids)} belongs to no rank: {known}. "
        "Check that the ids are in the numbering of this partition"
    )
