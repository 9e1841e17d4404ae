"""The decoded row groups of a prepared split, the ones used last kept in memory."""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import StoreError
from windrow.comm.splits import offsets_from_counts
from windrow.recsys.store import DENSE_COLUMN, LABEL_COLUMN, WEIGHTS_SUFFIX, LogSplit
from windrow.recsys.store_manifest import CURE, FeatureEntry

__all__ = ["IdLists", "RowGroup", "RowGroups"]


@dataclass(frozen=True, slots=True)
class IdLists:
    """The ids of a multi-hot feature.

    Attributes:
        offsets: [n + 1] int32 or int64, sample i has the ids offsets[i] .. offsets[i + 1] - 1; may start past 0.
        ids: int64.
        weights: float32, one for each id; None where the feature has none.
    """

    offsets: npt.NDArray[np.integer]
    ids: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Consecutive samples, in the memory that Arrow decoded them to.

    Attributes:
        labels: [n] float32.
        dense: [n, D] float32.
        single: [n] int64 for each feature of one id per sample, in the order of features.
        lists: each multi-hot feature, in the order of features.
        num_bytes: of all.
    """

    labels: npt.NDArray[np.float32]
    dense: npt.NDArray[np.float32]
    single: tuple[npt.NDArray[np.int64], ...]
    lists: tuple[IdLists, ...]
    num_bytes: int


class RowGroups:
    """Reads row groups of a split's files, which are memory-mapped while one is read.

    Args:
        split: of a prepared store.
        features: of the store.
        num_dense: dense values of a sample.
        memory_bytes: decoded row groups kept for later: of those that fit together, the ones used last.

    Raises:
        StoreError: a file has no readable footer, or another number of rows than the manifest says.
    """

    def __init__(
        self, split: LogSplit, features: Sequence[FeatureEntry], *, num_dense: int, memory_bytes: int
    ) -> None:
        self._features = tuple(features)
        self._num_dense = num_dense
        self._memory_bytes = memory_bytes
        footers = [_footer(path, rows) for path, rows in zip(split.files, split.file_rows, strict=True)]
        self._places = [
            (path, footer, group)
            for path, footer in zip(split.files, footers, strict=True)
            for group in range(footer.num_row_groups)
        ]
        self._offsets = offsets_from_counts(
            [footer.row_group(group).num_rows for _, footer, group in self._places]
        )
        self._kept: OrderedDict[int, RowGroup] = OrderedDict()
        self._kept_bytes = 0
        # A reader that was closed early may still be decoding when the next epoch begins.
        self._lock = threading.Lock()

    def covering(self, start: int, stop: int) -> list[tuple[RowGroup, int, int]]:
        """The row groups that hold some rows.

        Args:
            start: first row, number in the split.
            stop: first row after; more than `start`.

        Returns:
            ``(row group, first row in it, first row after)``, in order.

        Raises:
            StoreError: a row group cannot be decoded; names file and row group.
        """
        found = []
        number = bisect_right(self._offsets, start) - 1
        while start < stop:
            first, end = self._offsets[number], min(stop, self._offsets[number + 1])
            if start < end:
                found.append((self._group(number), start - first, end - first))
            start = end
            number += 1
        return found

    def _group(self, number: int) -> RowGroup:
        with self._lock:
            group = self._kept.get(number)
            if group is None:
                group = self._decode(number)
                self._kept[number] = group
                self._kept_bytes += group.num_bytes
            self._kept.move_to_end(number)
            while self._kept_bytes > self._memory_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._kept_bytes -= dropped.num_bytes
            return group

    def _decode(self, number: int) -> RowGroup:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile

        path, footer, group = self._places[number]
        try:
            with ParquetFile(path, metadata=footer, memory_map=True, page_checksum_verification=True) as file:
                return self._arrays(file.read_row_group(group, columns=self._columns()))
        except (ArrowException, OSError, KeyError, ValueError) as error:
            raise StoreError(f"{path}, row group {group}: {error}; {CURE}") from error

    def _columns(self) -> list[str]:
        names = [LABEL_COLUMN] + [DENSE_COLUMN] * (self._num_dense > 0)
        for feature in self._features:
            names += [feature.name] + [feature.name + WEIGHTS_SUFFIX] * feature.weighted
        return names

    def _arrays(self, table: Any) -> RowGroup:
        labels = _one_chunk(table, LABEL_COLUMN).to_numpy()
        if self._num_dense:
            dense = _one_chunk(table, DENSE_COLUMN).flatten().to_numpy().reshape(len(labels), self._num_dense)
        else:
            dense = np.zeros((len(labels), 0), np.float32)
        return RowGroup(
            labels=labels,
            dense=dense,
            single=tuple(
                _one_chunk(table, feature.name).to_numpy()
                for feature in self._features
                if not feature.multi_hot
            ),
            lists=tuple(_id_lists(table, feature) for feature in self._features if feature.multi_hot),
            num_bytes=table.nbytes,
        )


def _footer(path: Path, rows: int) -> Any:
    from pyarrow import ArrowException
    from pyarrow.parquet import read_metadata

    try:
        footer = read_metadata(path)
    except (ArrowException, OSError) as error:
        raise StoreError(f"{path}: {error}; {CURE}") from error
    if footer.num_rows != rows:
        raise StoreError(f"{path} has {footer.num_rows} rows, expected {rows}: {CURE}")
    return footer


def _one_chunk(table: Any, name: str) -> Any:
    column = table.column(name)
    # Joining chunks copies, even a single one.
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _id_lists(table: Any, feature: FeatureEntry) -> IdLists:
    name = feature.name
    lists = _one_chunk(table, name)
    weights = None
    if feature.weighted:
        of_ids = _one_chunk(table, name + WEIGHTS_SUFFIX)
        if not of_ids.offsets.equals(lists.offsets):
            raise ValueError(f"columns {name} and {name}{WEIGHTS_SUFFIX} have lists of different lengths")
        weights = of_ids.values.to_numpy()
    return IdLists(lists.offsets.to_numpy(), lists.values.to_numpy(), weights)
