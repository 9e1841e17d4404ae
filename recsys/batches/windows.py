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
from windrow.recsys.batches.jagged import Jagged, empty_array, keyed
from windrow.recsys.batches.row_groups import RowGroup, SharedGroups
from windrow.recsys.batches.windows_kernels import (
    FIELDS,
    GROUP_FIELDS,
    SOURCE_BITS,
    UNIQUE,
    copy_lists,
    find_lists,
    number_rows,
)
from windrow.recsys.log.store import DENSE_COLUMN, LABEL_COLUMN, SAMPLE_WEIGHT_COLUMN, SESSION_COLUMN, FeatureEntry

__all__ = ["GroupBatches", "Piece", "WindowColumns", "WindowGroups", "batch_of_pieces", "read_window"]

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
        """Put samples one after the other: pieces ``(window, start, stop)``, in order; any may be empty.

        For each group the distinct rows of these samples, in the order of first use, and which one each has, in memory
        of their own.
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
        columns: as of a `RowGroup`.
        single: [features of one id per sample, n] int64.
        lists: each multi-hot feature.
        groups: features whose lists are held once; they are in neither of both.
    """

    rows: IntArray
    columns: dict[str, npt.NDArray[Any]]
    single: IntArray
    lists: dict[str, Lists]
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
    first = groups[0][0]
    single = empty_array((len(first.single), num_rows), np.int64)
    for ids, name in zip(single, first.single, strict=True):
        _take([group.single[name][start:stop] for group, start, stop in groups], order, ids)
    codes = [
        group.groups.inverse[:, start:stop].astype(np.int64) + (source << SOURCE_BITS)
        for source, (group, start, stop) in enumerate(groups)
    ]
    return WindowColumns(
        rows=(np.arange(num_rows) if order is None else order) + first_row,
        columns={
            name: _take([group.columns[name][start:stop] for group, start, stop in groups], order)
            for name in first.columns
            if name != SESSION_COLUMN
        },
        single=single,
        lists={
            name: _in_order([(group.lists[name], start, stop) for group, start, stop in groups], order)
            for name in first.lists
        },
        groups=WindowGroups(tuple(group.groups for group, _, _ in groups), _take(codes, order, axis=1)),
    )


def batch_of_pieces(pieces: Sequence[Piece], features: Sequence[FeatureEntry], groups: GroupBatches) -> Batch:
    """Put the samples of a step one after the other, in memory of their own.

    Args:
        pieces: in the order of shards, at least one; any of them may be empty.
        features: that are in no group, in their order. Where any of them has weights, the ids of those without weigh 1.
        groups: what puts groups of features together.
    """
    num_samples = sum(map(len, pieces))
    if any(feature.multi_hot for feature in features):
        ids, lengths, weights = _mixed(pieces, num_samples, features)
    else:
        ids = _take([piece.window.single[:, piece.start : piece.stop] for piece in pieces], None, axis=1).reshape(-1)
        lengths, weights = np.ones(len(ids), np.int64), None
    sparse = keyed(
        [feature.name for feature in features],
        torch.from_numpy(ids),
        torch.from_numpy(lengths),
        None if weights is None else torch.from_numpy(weights),
        num_samples=num_samples,
    )
    columns = {
        name: _joined([piece.window.columns[name][piece.start : piece.stop] for piece in pieces])
        for name in (LABEL_COLUMN, DENSE_COLUMN, SAMPLE_WEIGHT_COLUMN)
        if name in pieces[0].window.columns
    }
    return Batch(
        dense=columns[DENSE_COLUMN],
        sparse=sparse,
        labels=columns[LABEL_COLUMN],
        row_ids=_joined([piece.window.rows[piece.start : piece.stop] for piece in pieces]),
        deduplicated=groups.batch([(piece.window.groups, piece.start, piece.stop) for piece in pieces]),
        weights=columns.get(SAMPLE_WEIGHT_COLUMN),
    )


def _joined(parts: Sequence[npt.NDArray[Any]]) -> Tensor:
    return torch.from_numpy(_take(parts, None))


def _mixed(
    pieces: Sequence[Piece], num_samples: int, features: Sequence[FeatureEntry]
) -> tuple[IntArray, IntArray, npt.NDArray[np.float32] | None]:
    """Ids, lengths and weights where features of one id and multi-hot ones alternate."""
    ids: list[IntArray] = []
    weights: list[npt.NDArray[np.float32] | None] = []
    lengths = empty_array((len(features), num_samples), np.int64)
    next_single = count()
    for feature, of_feature in zip(features, lengths, strict=True):
        if feature.multi_hot:
            cuts = [piece.window.lists[feature.name].slice(piece.start, piece.stop) for piece in pieces]
            ids += [cut.values for cut in cuts]
            weights += [cut.weights for cut in cuts]
            np.concatenate([cut.lengths for cut in cuts], out=of_feature)
        else:
            place = next(next_single)
            ids += [piece.window.single[place, piece.start : piece.stop] for piece in pieces]
            weights += [None] * len(pieces)
            of_feature[:] = 1
    of_ids = None
    if any(feature.weighted for feature in features):
        parts = zip(ids, weights, strict=True)
        of_ids = np.concatenate([np.ones(len(part), np.float32) if own is None else own for part, own in parts])
    return _take(ids, None), lengths.reshape(-1), of_ids


def _in_order(cuts: Sequence[tuple[Lists, int, int]], order: IntArray | None) -> Lists:
    if order is not None and len(cuts) == 1:
        lists, start, _ = cuts[0]
        return lists.select(order + start)
    parts = [lists.slice(start, stop) for lists, start, stop in cuts]
    weights = [part.weights for part in parts if part.weights is not None]
    joined = Jagged.of_lengths(
        _one([part.values for part in parts]),
        _one([part.lengths for part in parts]),
        _one(weights) if weights else None,
    )
    return joined if order is None else joined.select(order)


def _take(
    parts: Sequence[npt.NDArray[Any]], order: IntArray | None, out: npt.NDArray[Any] | None = None, *, axis: int = 0
) -> npt.NDArray[Any]:
    if out is None:
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        out = empty_array(shape, parts[0].dtype)
    if order is None:
        return np.concatenate(parts, axis=axis, out=out)
    # The mode that checks positions first copies to a buffer.
    return np.take(_one(parts, axis), order, axis=axis, out=out, mode="clip")


def _one(parts: Sequence[npt.NDArray[Any]], axis: int = 0) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=axis)
