"""Groups of features in a window and in a batch: which distinct rows samples have, and these rows once each.

Bringing a window into order moves one number for each sample and group; lists stay where the row group has them until
a batch copies those that it needs::

    row groups        distinct rows 0 1 2 ...    distinct rows 0 1 2 ...
    window, ordered   code of each sample: (row group, row)
    batch             codes of all pieces -> numbered in the order of first use -> these rows alone are copied
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from windrow.recsys.group_pieces_kernels import (
    FIELDS,
    GROUP_FIELDS,
    SOURCE_BITS,
    UNIQUE,
    copy_lists,
    find_lists,
    number_rows,
)
from windrow.recsys.ikjt import InverseKeyedJaggedTensor
from windrow.recsys.shared_lists import SharedGroups

__all__ = ["GroupBatches", "WindowGroups", "read_window_groups"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WindowGroups:
    """All groups of features for the samples of a window, in their final order.

    Attributes:
        sources: distinct rows of the row groups that the window lies in.
        codes: [G, n] int64: row of each sample in its row group, plus the position of that in `sources` times
            2 ** `SOURCE_BITS`.
    """

    sources: tuple[SharedGroups, ...]
    codes: IntArray


def read_window_groups(
    parts: Sequence[tuple[SharedGroups, int, int]], order: IntArray | None
) -> WindowGroups:
    """Bring the rows of a window into order.

    Args:
        parts: ``(groups of a row group, start, stop)``: samples that, one after the other, are the window's.
        order: [n] which sample comes first, second and so on; None for theirs.
    """
    joined = np.concatenate(
        [
            shared.inverse[:, start:stop].astype(np.int64) + (source << SOURCE_BITS)
            for source, (shared, start, stop) in enumerate(parts)
        ],
        axis=1,
    )
    codes = joined if order is None else np.take(joined, order, axis=1, mode="clip")
    return WindowGroups(tuple(shared for shared, _, _ in parts), codes)


class GroupBatches:
    """Puts the groups of batches together; keeps memory from one batch to the next, so it is for one thread.

    Args:
        keys: features of each group.
        weighted: for each group whether any of its features has weights; the ids of the others then weigh 1.
    """

    def __init__(self, keys: Sequence[Sequence[str]], weighted: Sequence[bool]) -> None:
        self._keys = [list(names) for names in keys]
        self._weighted = list(weighted)
        self._bounds = np.cumsum([0, *map(len, keys)], dtype=np.int64)
        self._numbers = np.full(0, -1, np.int32)

    def batch(self, pieces: Sequence[tuple[WindowGroups, int, int]]) -> tuple[InverseKeyedJaggedTensor, ...]:
        """Put samples one after the other.

        Args:
            pieces: ``(window, start, stop)``, in order; any may be empty.

        Returns:
            For each group the distinct rows of these samples, in the order of first use, and which one each has. In
            memory of their own.
        """
        if not self._keys:
            return ()
        sources, piece_sources = _numbered_sources([window for window, _, _ in pieces])
        codes = np.concatenate([window.codes[:, start:stop] for window, start, stop in pieces], axis=1)
        table = np.zeros((len(sources), self._bounds[-1], FIELDS), np.int64)
        group_table = np.zeros((len(sources), len(self._keys), GROUP_FIELDS), np.int64)
        for place, shared in enumerate(sources):
            table[place], group_table[place] = shared.table, shared.group_table
        places, rows, inverse = (np.empty(codes.shape, np.int64) for _ in range(3))
        counts = np.empty(len(self._keys), np.int64)
        number_rows(
            codes,
            np.cumsum([stop - start for _, start, stop in pieces]),
            piece_sources,
            table,
            group_table,
            self._bounds,
            self._scratch(int(group_table[:, :, UNIQUE].sum(axis=0).max(initial=0))),
            np.empty(1 << (2 * codes.shape[1]).bit_length(), np.int32),
            places,
            rows,
            inverse,
            counts,
        )
        num_lists = int(np.diff(self._bounds) @ counts)
        weighted = any(self._weighted)
        offsets = np.empty(num_lists + 1, np.int64)
        ids_at, weights_at = np.empty(num_lists, np.int64), np.empty(num_lists if weighted else 0, np.int64)
        find_lists(table, self._bounds, places, rows, counts, offsets, ids_at, weights_at)
        ids = np.empty(offsets[-1], np.int64)
        copy_lists(ids_at, offsets, ids)
        weights = np.ones(offsets[-1] if weighted else 0, np.float32)
        if weighted:
            copy_lists(weights_at, offsets, weights)
        return self._jagged(offsets, ids, weights, inverse, counts.tolist())

    def _scratch(self, size: int) -> npt.NDArray[np.int32]:
        if len(self._numbers) < size:
            self._numbers = np.full(size, -1, np.int32)
        return self._numbers

    def _jagged(
        self,
        offsets: IntArray,
        ids: IntArray,
        weights: npt.NDArray[np.float32],
        inverse: IntArray,
        counts: Sequence[int],
    ) -> tuple[InverseKeyedJaggedTensor, ...]:
        from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

        lengths = torch.from_numpy(np.diff(offsets))
        all_ids, all_weights = torch.from_numpy(ids), torch.from_numpy(weights)
        found = []
        begin = 0
        for keys, weighted, rows, of_samples in zip(self._keys, self._weighted, counts, inverse, strict=True):
            end = begin + len(keys) * rows
            values = slice(int(offsets[begin]), int(offsets[end]))
            unique = KeyedJaggedTensor(
                keys=keys,
                values=all_ids[values],
                weights=all_weights[values] if weighted else None,
                lengths=lengths[begin:end],
                stride=rows,
            )
            found.append(InverseKeyedJaggedTensor(unique, torch.from_numpy(of_samples)))
            begin = end
        return tuple(found)


def _numbered_sources(windows: Sequence[WindowGroups]) -> tuple[list[SharedGroups], IntArray]:
    """Row groups of all windows, each once; for each window and each of its row groups the place among them."""
    sources: list[SharedGroups] = []
    known: dict[int, int] = {}
    places = np.zeros((len(windows), max(len(window.sources) for window in windows)), np.int64)
    for number, window in enumerate(windows):
        for index, shared in enumerate(window.sources):
            place = known.setdefault(id(shared), len(sources))
            if place == len(sources):
                sources.append(shared)
            places[number, index] = place
    return sources, places
