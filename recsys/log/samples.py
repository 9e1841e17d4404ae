"""Staged rows become samples: mapped, put in order, and written to train, validation and test.

Mapping turns values into ids by the rule of each feature, transforms dense values, and counts all of it. The order of
samples depends on two sections of the recipe::

    [split] by = "time"               each split ends at a time; rows are sorted by time where the log is not
    [deduplication] shard, cluster    rows are sorted by session instead: RecD's O1 and O2
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.recsys.batches.prefetch import prefetch
from windrow.recsys.log.conform import list_lengths
from windrow.recsys.log.options import (
    SPLITS,
    DenseTransform,
    FeatureOptions,
    LogOptions,
    LogSplitOptions,
    parse_instant,
    split_by_time,
)
from windrow.recsys.log.staging import StagedLog
from windrow.recsys.log.store import (
    DENSE_COLUMN,
    LABEL_COLUMN,
    ROW_GROUP_ROWS,
    SESSION_COLUMN,
    TIME_COLUMN,
    WEIGHTS_SUFFIX,
    SplitEntry,
    SplitWriter,
)
from windrow.recsys.log.vocabulary import MISSING_ROW, UNSEEN_ROW, Vocabulary, hashed_rows

__all__ = [
    "Cuts",
    "MappingCounts",
    "SampleMapper",
    "check_splits",
    "find_cuts",
    "sort_by_session",
    "split_code",
    "transform_dense",
    "write_splits",
]

COUNTED = ("missing", "unseen", "truncated", "ids")


@dataclass(slots=True)
class MappingCounts:
    """What mapping met, for the manifest.

    Attributes:
        features: for each feature and split what `COUNTED` names.
        dense_missing: missing values of each dense column.
        positives: samples of label 1 by split.
    """

    features: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    dense_missing: dict[str, int] = field(default_factory=dict)
    positives: dict[str, int] = field(default_factory=dict)

    def add(self, feature: str, split: str, **numbers: int) -> None:
        """Add to the numbers of a feature and split."""
        counts = self.features.setdefault(feature, {}).setdefault(split, dict.fromkeys(COUNTED, 0))
        for name, number in numbers.items():
            counts[name] += number


class SampleMapper:
    """Maps staged rows to samples.

    Args:
        log: the rules.
        vocabularies: of the tables that have one.
        moments: mean and deviation of each dense column over the training split, for "standard".
    """

    def __init__(
        self,
        log: LogOptions,
        vocabularies: Mapping[str, Vocabulary],
        moments: Mapping[str, tuple[float, float]],
    ) -> None:
        self._log = log
        self._vocabularies = dict(vocabularies)
        self._moments = dict(moments)
        self.counts = MappingCounts()

    def table_rows(self, feature: str) -> int:
        """Rows of the table that a feature's ids belong to."""
        options = self._log.features[feature]
        if options.ids == "vocabulary":
            return self._vocabularies[self._log.table_of(feature)].rows
        assert options.rows is not None
        return options.rows

    def map(self, rows: Any, split: str) -> Any:
        """Map some rows.

        Args:
            rows: ``pyarrow.RecordBatch`` of the staged log, all of one split.
            split: its name.

        Returns:
            ``pyarrow.RecordBatch`` with the columns of a prepared log.
        """
        import pyarrow as pa

        staged = dict(zip(rows.schema.names, rows.columns, strict=True))
        label = staged["label"]
        positives = int(np.count_nonzero(label.to_numpy()))
        self.counts.positives[split] = self.counts.positives.get(split, 0) + positives
        columns: dict[str, Any] = {LABEL_COLUMN: label}
        if self._log.dense:
            columns[DENSE_COLUMN] = self._dense(staged, rows.num_rows)
        for name, options in self._log.features.items():
            if options.multi_hot:
                columns |= self._lists(name, options, staged, split)
            else:
                columns[name] = self._single(name, staged[f"id.{name}"], split)
        for name in (TIME_COLUMN, SESSION_COLUMN):
            if name in staged:
                columns[name] = staged[name]
        return pa.RecordBatch.from_pydict(columns)

    def _dense(self, staged: Mapping[str, Any], num_rows: int) -> Any:
        import pyarrow as pa

        matrix = np.empty((num_rows, len(self._log.dense)), np.float32)
        for place, name in enumerate(self._log.dense):
            column = staged[f"dense.{name}"]
            missing = column.is_null().to_numpy(zero_copy_only=False)
            values = column.fill_null(0).to_numpy()
            moments = self._moments.get(f"dense.{name}", (0.0, 1.0))
            matrix[:, place] = np.where(
                missing, 0, transform_dense(values, self._log.dense_transform, moments)
            )
            self.counts.dense_missing[name] = self.counts.dense_missing.get(name, 0) + column.null_count
        return pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), len(self._log.dense))

    def _single(self, name: str, values: Any, split: str) -> Any:
        import pyarrow as pa

        ids = self._ids(name, values)
        self.counts.add(
            name, split, missing=values.null_count, unseen=self._unseen(name, ids), ids=len(values)
        )
        return pa.array(ids)

    def _lists(
        self, name: str, options: FeatureOptions, staged: Mapping[str, Any], split: str
    ) -> dict[str, Any]:
        import pyarrow as pa

        lists = staged[f"id.{name}"]
        ids = self._ids(name, lists.flatten())
        lengths = list_lengths(lists)
        missing = int(np.count_nonzero(lengths == 0))
        kept = np.minimum(lengths, options.max_length or len(ids))
        chosen = _last_of_each(lengths, kept)
        ids = ids[chosen]
        self.counts.add(
            name,
            split,
            missing=missing,
            unseen=self._unseen(name, ids),
            truncated=int(lengths.sum() - kept.sum()),
            ids=len(ids),
        )
        offsets = pa.array(np.concatenate([[0], np.cumsum(kept)]).astype(np.int32))
        found = {name: pa.ListArray.from_arrays(offsets, pa.array(ids))}
        if options.weights:
            weights = staged[f"weights.{name}"].flatten().to_numpy(zero_copy_only=False)[chosen]
            found[name + WEIGHTS_SUFFIX] = pa.ListArray.from_arrays(offsets, pa.array(weights, pa.float32()))
        return found

    def _ids(self, name: str, values: Any) -> npt.NDArray[np.int64]:
        """Row of each value; 0 for a null."""
        options = self._log.features[name]
        table = self._log.table_of(name)
        if options.ids == "rows":
            numbers: npt.NDArray[np.int64] = values.to_numpy()
            return numbers
        known = values.drop_null() if values.null_count else values
        if options.ids == "hash":
            assert options.rows is not None
            found = hashed_rows(known, table, options.rows)
        else:
            found = self._vocabularies[table].rows_of(known)
        if not values.null_count:
            return found
        ids = np.full(len(values), MISSING_ROW, np.int64)
        ids[values.is_valid().to_numpy(zero_copy_only=False)] = found
        return ids

    def _unseen(self, name: str, ids: npt.NDArray[np.int64]) -> int:
        if self._log.features[name].ids != "vocabulary":
            return 0
        return int(np.count_nonzero(ids == UNSEEN_ROW))


def transform_dense(
    values: npt.NDArray[np.float32], transform: DenseTransform, moments: tuple[float, float]
) -> npt.NDArray[np.float32]:
    """Transform dense values.

    Args:
        values: [n].
        transform: "none"; "log1p": log(1 + max(x, 0)); "standard": (x - mean) / deviation.
        moments: mean and deviation of the training split.

    Returns:
        [n] float32, computed in float64.
    """
    if transform == "log1p":
        return np.log1p(np.maximum(values, 0).astype(np.float64)).astype(np.float32)
    if transform == "standard":
        return ((values.astype(np.float64) - moments[0]) / moments[1]).astype(np.float32)
    return values


def _last_of_each(lengths: npt.NDArray[np.int64], kept: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mark the last `kept` elements of each list."""
    from_end = np.repeat(np.cumsum(lengths), lengths) - np.arange(int(lengths.sum()))
    chosen: npt.NDArray[np.bool_] = from_end <= np.repeat(kept, lengths)
    return chosen


Cuts = tuple[int, int] | None
"""Times at which validation and test begin; None where the split of each sample is known already."""


def find_cuts(staged: StagedLog, rows: int, split: LogSplitOptions, *, in_order: bool) -> Cuts:
    """Find out when validation and test begin.

    Args:
        staged: the log.
        rows: of it, at least one.
        split: how it is split.
        in_order: whether rows are in order of time.
    """
    if split.by != "time":
        return None
    if split.instants:
        first, second = (parse_instant(instant) for instant in split.instants)
        return first, second
    train, validation, test = split.fractions
    # One past the last time, where a split has no share and would begin behind the last row.
    end = staged.time_of_row(rows - 1, in_order=in_order) + 1
    bounds = (round(train * rows), round((train + validation) * rows))
    wanted = (validation + test > 0, test > 0)
    first, second = (
        staged.time_of_row(bound, in_order=in_order) if some and bound < rows else end
        for bound, some in zip(bounds, wanted, strict=True)
    )
    return first, second


def split_code(cuts: Cuts) -> str:
    """The code of a row's split, in SQL: what `windrow.recsys.log.samples` works out in NumPy.

    Args:
        cuts: from `find_cuts`.
    """
    return (
        "split"
        if cuts is None
        else f"CASE WHEN time < {cuts[0]} THEN 0 WHEN time < {cuts[1]} THEN 1 ELSE 2 END"
    )


def sort_by_session(
    staged: StagedLog, cuts: Cuts, *, shard: bool, cluster: bool, has_times: bool
) -> dict[int, tuple[int, ...]]:
    """Bring the samples of a session together.

    Args:
        staged: the log, whose rows are put in another order.
        cuts: from `find_cuts`.
        shard: keep them in one file (O1).
        cluster: keep them next to one another (O2), in order of time where there are times.
        has_times: whether the log has times.

    Returns:
        For each split the samples of its files, in their order; empty without `shard`.
    """
    # Shards are in the order that the log would have without them: that of time only where the split is by time.
    times = has_times if cluster else cuts is not None
    return staged.sort_by_session(split_code(cuts), shard=shard, cluster=cluster, times=times)


def write_splits(
    folder: Path,
    staged: Path,
    mapper: SampleMapper,
    cuts: Cuts,
    rows: int,
    report: Callable[[str, float], None],
    *,
    shard_rows: Mapping[int, Sequence[int]],
    clustered: bool,
    repeats: Sequence[tuple[str, str]],
) -> dict[str, SplitEntry]:
    """Map all rows of a staged log and write the splits.

    Args:
        folder: of the store.
        staged: the staged file.
        mapper: from values to ids.
        cuts: times at which validation and test begin; None where rows say their split.
        rows: of the staged file.
        report: told how far it is.
        shard_rows: for each split the samples of its files; empty where files are cut anywhere.
        clustered: whether the samples of a session are neighbours.
        repeats: see `windrow.recsys.log.store.SplitWriter`.

    Returns:
        The entry of each split that has samples.
    """
    import contextlib

    done = 0
    with contextlib.ExitStack() as stack:
        writers = {
            name: stack.enter_context(
                SplitWriter(
                    folder, name, shard_rows=shard_rows.get(code, ()), clustered=clustered, repeats=repeats
                )
            )
            for code, name in enumerate(SPLITS)
        }
        for batch in prefetch(_batches(staged)):
            codes = _codes(batch, cuts)
            for code, name in enumerate(SPLITS):
                chosen = codes == code
                if chosen.any():
                    writers[name].write(mapper.map(_rows(batch, chosen), name))
            done += batch.num_rows
            report("mapping", done / rows)
    report("checksums", 0.0)
    entries: dict[str, SplitEntry] = {}
    for name, writer in writers.items():
        files = writer.files()
        if files:
            entries[name] = SplitEntry(
                rows=sum(file.rows for file in files), positives=mapper.counts.positives[name], files=files
            )
    return entries


def check_splits(entries: Mapping[str, SplitEntry], split: LogSplitOptions) -> None:
    """Refuse a log of which a split that was asked for has no samples.

    Args:
        entries: from `write_splits`.
        split: what was asked for.

    Raises:
        DataError: names the split and the cure.
    """
    for name in split.expected_splits():
        if name not in entries:
            sizes = ", ".join(f"{other} {entry.rows}" for other, entry in entries.items())
            together = ", where samples of one instant stay together" if split.by == "time" else ""
            raise DataError(
                f"the {name} split has no samples ({sizes}): give it a larger share in [split], other instants, or "
                f"more of a log{together}"
            )


def _batches(staged: Path) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(staged) as file:
        yield from file.iter_batches(ROW_GROUP_ROWS)


def _codes(batch: Any, cuts: Cuts) -> npt.NDArray[np.int8]:
    if cuts is None:
        codes: npt.NDArray[np.int8] = batch.column("split").to_numpy()
        return codes
    return split_by_time(batch.column("time").to_numpy(), cuts)


def _rows(batch: Any, chosen: npt.NDArray[np.bool_]) -> Any:
    import pyarrow as pa

    return batch if chosen.all() else batch.filter(pa.array(chosen))
