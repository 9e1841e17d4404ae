"""The samples of a window in the order in which they are read, and batches cut from windows.

Bringing a window into order moves one number for each sample and group; lists of a group stay where the row group has
them until a batch copies those that it needs::

    row groups        distinct rows 0 1 2 ...    distinct rows 0 1 2 ...
    window, ordered   code of each sample: (row group, row)
    batch             codes of all pieces -> numbered in the order of first use -> these rows alone are copied
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.recsys.batches.arrow_columns import Lists
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor
from windrow.recsys.batches.jagged import Jagged, keyed
from windrow.recsys.batches.row_groups import ColumnChoice, RowGroup, SharedGroups
from windrow.recsys.batches.windows_kernels import (
    FIELDS,
    GROUP_FIELDS,
    SOURCE_BITS,
    UNIQUE,
    copy_lists,
    find_lists,
    number_rows,
)
from windrow.recsys.log.store import FeatureEntry

__all__ = [
    "GroupBatches",
    "Piece",
    "WindowColumns",
    "WindowGroups",
    "batch_of_pieces",
    "no_samples",
    "read_window",
    "read_window_groups",
    "sessions_of",
]

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


def read_window_groups(parts: Sequence[tuple[SharedGroups, int, int]], order: IntArray | None) -> WindowGroups:
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
        most = int(group_table[:, :, UNIQUE].sum(axis=0).max(initial=0))
        if len(self._numbers) < most:
            self._numbers = np.full(most, -1, np.int32)
        number_rows(
            codes,
            np.cumsum([stop - start for _, start, stop in pieces]),
            piece_sources,
            table,
            group_table,
            self._bounds,
            self._numbers,
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

    def _jagged(
        self,
        offsets: IntArray,
        ids: IntArray,
        weights: npt.NDArray[np.float32],
        inverse: IntArray,
        counts: Sequence[int],
    ) -> tuple[InverseKeyedJaggedTensor, ...]:
        lengths = torch.from_numpy(np.diff(offsets))
        all_ids, all_weights = torch.from_numpy(ids), torch.from_numpy(weights)
        found = []
        begin = 0
        for keys, weighted, rows, of_samples in zip(self._keys, self._weighted, counts, inverse, strict=True):
            end = begin + len(keys) * rows
            values = slice(int(offsets[begin]), int(offsets[end]))
            own_weights = all_weights[values] if weighted else None
            unique = keyed(keys, all_ids[values], lengths[begin:end], own_weights, num_samples=rows)
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


@dataclass(frozen=True, slots=True)
class WindowColumns:
    """Samples in their final order.

    Attributes:
        rows: [n] int64, their numbers in the split.
        labels: [n] float32; [n, L] of several labels.
        weights: [n] float32 of the samples; None where they have none.
        dense: [n, D] float32.
        single: [features of one id per sample, n] int64.
        lists: each multi-hot feature.
        groups: features whose lists are held once; they are in neither of both.
    """

    rows: npt.NDArray[np.int64]
    labels: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32] | None
    dense: npt.NDArray[np.float32]
    single: npt.NDArray[np.int64]
    lists: tuple[Lists, ...]
    groups: WindowGroups


@dataclass(frozen=True, slots=True)
class Piece:
    """Samples ``start .. stop - 1`` of a window, which go into one batch."""

    window: WindowColumns
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def read_window(
    groups: Sequence[tuple[RowGroup, int, int]], first_row: int, order: npt.NDArray[np.int64] | None
) -> WindowColumns:
    """Bring the rows of a window into order: the one copy between Arrow's memory and a batch's own.

    Args:
        groups: ``(row group, start, stop)``, whose rows one after the other are the window's.
        first_row: number in the split of the first of them.
        order: [n] which row comes first, second and so on; None for the order of rows.
    """
    num_rows = sum(stop - start for _, start, stop in groups)
    single = np.empty((len(groups[0][0].single), num_rows), np.int64)
    for index, ids in enumerate(single):
        _take([group.single[index][start:stop] for group, start, stop in groups], order, ids)
    labels = np.empty((num_rows, *groups[0][0].labels.shape[1:]), np.float32)
    _take([group.labels[start:stop] for group, start, stop in groups], order, labels)
    weights = None
    if given := [group.weights[start:stop] for group, start, stop in groups if group.weights is not None]:
        weights = np.empty(num_rows, np.float32)
        _take(given, order, weights)
    dense = np.empty((num_rows, groups[0][0].dense.shape[1]), np.float32)
    _take([group.dense[start:stop] for group, start, stop in groups], order, dense)
    rows = np.arange(num_rows) if order is None else order
    lists = [
        _in_order([group.lists[index].slice(start, stop) for group, start, stop in groups], order)
        for index in range(len(groups[0][0].lists))
    ]
    shared = read_window_groups([(group.groups, start, stop) for group, start, stop in groups], order)
    return WindowColumns(rows + first_row, labels, weights, dense, single, tuple(lists), shared)


def sessions_of(groups: Sequence[tuple[RowGroup, int, int]]) -> npt.NDArray[np.int64]:
    """[n] int64 session ids of a window's rows, given as `read_window` takes them; their sessions were read."""
    parts = [group.sessions[start:stop] for group, start, stop in groups if group.sessions is not None]
    assert len(parts) == len(groups), "sessions were not read"
    return _one(parts)


def no_samples(choice: ColumnChoice) -> Piece:
    """What a batch of no samples is made of."""
    features = choice.plain
    none = np.zeros(0, np.float32)
    lists: tuple[Lists, ...] = tuple(
        Jagged(np.zeros(0, np.int64), np.zeros(1, np.int64), none if feature.weighted else None)
        for feature in features
        if feature.multi_hot
    )
    columns = WindowColumns(
        rows=np.zeros(0, np.int64),
        labels=none if choice.num_labels == 1 else np.zeros((0, choice.num_labels), np.float32),
        weights=none if choice.sample_weights else None,
        dense=np.zeros((0, choice.num_dense), np.float32),
        single=np.zeros((len(features) - len(lists), 0), np.int64),
        lists=lists,
        groups=WindowGroups((), np.zeros((len(choice.groups), 0), np.int64)),
    )
    return Piece(columns, 0, 0)


def batch_of_pieces(pieces: Sequence[Piece], features: Sequence[FeatureEntry], groups: GroupBatches) -> Batch:
    """Put the samples of a step one after the other, in memory of their own.

    Args:
        pieces: in the order of shards, at least one; any of them may be empty.
        features: that are in no group, in their order. Where any of them has weights, the ids of those without weigh 1.
        groups: what puts groups of features together.
    """
    single = np.concatenate([piece.window.single[:, piece.start : piece.stop] for piece in pieces], axis=1)
    if len(single) == len(features):
        ids, lengths, weights = single.reshape(-1), np.ones(single.size, np.int64), None
    else:
        ids, lengths, weights = _mixed(pieces, single, features)
    sparse = keyed(
        [feature.name for feature in features],
        torch.from_numpy(ids),
        torch.from_numpy(lengths),
        None if weights is None else torch.from_numpy(weights),
        num_samples=single.shape[1],
    )
    dense, labels, rows = (_joined(pieces, name) for name in ("dense", "labels", "rows"))
    sample_weights = None if pieces[0].window.weights is None else _joined(pieces, "weights")
    held_once = groups.batch([(piece.window.groups, piece.start, piece.stop) for piece in pieces])
    return Batch(dense, sparse, labels, rows, held_once, weights=sample_weights)


def _joined(pieces: Sequence[Piece], name: str) -> Tensor:
    columns = (getattr(piece.window, name)[piece.start : piece.stop] for piece in pieces)
    return torch.from_numpy(np.concatenate(list(columns)))


def _mixed(
    pieces: Sequence[Piece], single: npt.NDArray[np.int64], features: Sequence[FeatureEntry]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32] | None]:
    """Ids, lengths and weights where features of one id and multi-hot ones alternate."""
    ids: list[npt.NDArray[np.int64]] = []
    lengths: list[npt.NDArray[np.int64]] = []
    weights: list[npt.NDArray[np.float32]] = []
    weighted = any(feature.weighted for feature in features)
    next_single, next_list = iter(single), count()
    for feature in features:
        if feature.multi_hot:
            index = next(next_list)
            cuts = [piece.window.lists[index].slice(piece.start, piece.stop) for piece in pieces]
            ids += [cut.values for cut in cuts]
            lengths += [cut.lengths for cut in cuts]
            if weighted:
                ones = (np.ones(len(cut.values), np.float32) for cut in cuts)
                weights += [one if cut.weights is None else cut.weights for cut, one in zip(cuts, ones, strict=True)]
        else:
            ids.append(next(next_single))
            lengths.append(np.ones(single.shape[1], np.int64))
            weights += [np.ones(single.shape[1], np.float32)] * weighted
    return np.concatenate(ids), np.concatenate(lengths), np.concatenate(weights) if weighted else None


def _take(parts: Sequence[npt.NDArray[Any]], order: npt.NDArray[np.int64] | None, out: npt.NDArray[Any]) -> None:
    if order is None:
        np.concatenate(parts, out=out)
    else:
        # The mode that checks positions first copies to a buffer.
        np.take(_one(parts), order, axis=0, out=out, mode="clip")


def _one(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _in_order(parts: Sequence[Lists], order: npt.NDArray[np.int64] | None) -> Lists:
    weights = [part.weights for part in parts if part.weights is not None]
    joined = Jagged.of_lengths(
        _one([part.values for part in parts]),
        _one([part.lengths for part in parts]),
        _one(weights) if weights else None,
    )
    return joined if order is None else joined.select(order)
