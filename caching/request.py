"""Where the rows of a list of ids come from: this rank, its cache, other ranks.

A request says what is asked of whom, before anything is sent::

    ids              7 2 9 4 5          this rank owns 0..4, another 5..9; id 9 is cached in slot 3

    local            2 4                positions among the own rows       local_places    1 3
    cached           3                  slots of the cache                 cached_places   2
    remote           7 5                ids, grouped by owner (0 | 2)      remote_places   0 4

Every row has one place, so the three together fill the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.caching.store_kernels import classify, sort_by_source
from windrow.comm.errors import DataError
from windrow.comm.rows import group_by_owner

__all__ = ["RowRequest", "index_cache", "plan_request"]


def index_cache(ids: Tensor, num_ids: int) -> npt.NDArray[np.int32]:
    """Slots of ids that are cached: position i of `ids`, int64 [c] on the CPU, is slot i.

    Returns:
        int32 [num_ids], the slot of each id or -1; empty where nothing is cached.

    Raises:
        DataError: an id is out of range or given twice.
    """
    array = ids.contiguous().numpy()
    outside = (array < 0) | (array >= num_ids)
    if outside.any():
        position = int(outside.argmax())
        raise DataError(
            f"cached id {array[position]} at position {position} is out of range: ids are 0 to {num_ids - 1}. "
            "Check that the ids are in the numbering of this partition"
        )
    index = np.full(num_ids if len(array) else 0, -1, np.int32)
    slots = np.arange(len(array), dtype=np.int32)
    index[array] = slots
    # Of an id that stands twice one slot has lost.
    overwritten = index[array] != slots
    if overwritten.any():
        raise DataError(
            f"cached id {array[overwritten.argmax()]} is given twice: give each id once, as torch.unique does"
        )
    return index


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class RowRequest:
    """Where the rows of a list of ids come from, and where they belong; all tensors int64 on the CPU.

    In each group ids keep their order.
    """

    num_rows: int
    """Ids that were asked for."""
    local: Tensor
    """Positions among the rows that this rank owns."""
    local_places: Tensor
    """Where each of them stands in the list of ids."""
    cached: Tensor
    """Slots of the cache."""
    cached_places: Tensor
    """Where each of them stands in the list of ids."""
    remote: Tensor
    """Ids that other ranks are asked for, grouped by owner in rank order."""
    remote_places: Tensor
    """Where each of them stands in the list of ids."""
    remote_counts: list[int]
    """How many of `remote` each rank is asked for; 0 for this rank."""
    kept: Tensor | None = None
    """Positions, among the rows that come as messages, of those that the cache holds from then on; None: it stays."""
    kept_slots: Tensor | None = None
    """Where in the cache each of them goes."""


def plan_request(ids: Tensor, offsets: Sequence[int], rank: int, index: npt.NDArray[np.int32]) -> RowRequest:
    """Split a list of ids by where their rows come from. Makes no collective; any thread may call it, at any time.

    `ids`, int64 [n] on the CPU, come in any order; one that repeats is asked for as often. Rank r owns the ids from
    offsets[r] to offsets[r + 1], `rank` is this one, and `index`, made by `index_cache`, what it has cached of others'.

    Raises:
        DataError: nobody owns an id; names it and its position.

    Cost:
        About log2(ranks) + 4 passes over the ids, without the interpreter lock.
    """
    array = ids.contiguous().numpy()
    boundaries = np.asarray(offsets, np.int64)
    num_ranks = len(boundaries) - 1
    source, slots = np.empty(len(array), np.int32), np.empty(len(array), np.int32)
    counts = np.zeros(num_ranks + 1, np.int64)
    outside = classify(array, boundaries, rank, index, source, slots, counts)
    if outside >= 0:
        group_by_owner(ids, offsets)  # It says which id.
    num_local, num_cached = int(counts[rank]), int(counts[num_ranks])
    num_remote = len(array) - num_local - num_cached
    remote_counts = counts[:num_ranks].copy()
    remote_counts[rank] = 0
    # Groups stand in this order: remote by owner, local, cached.
    cursors = np.zeros(num_ranks + 1, np.int64)
    cursors[1:] = np.cumsum(remote_counts)
    cursors[rank] = num_remote
    cursors[num_ranks] = num_remote + num_local
    values, places = np.empty(len(array), np.int64), np.empty(len(array), np.int64)
    sort_by_source(array, source, slots, int(boundaries[rank]), rank, cursors, values, places)
    sizes = [num_remote, num_local, num_cached]
    remote, local, cached = torch.from_numpy(values).split(sizes)
    remote_places, local_places, cached_places = torch.from_numpy(places).split(sizes)
    return RowRequest(
        num_rows=len(array),
        local=local,
        local_places=local_places,
        cached=cached,
        cached_places=cached_places,
        remote=remote,
        remote_places=remote_places,
        remote_counts=remote_counts.tolist(),
    )
