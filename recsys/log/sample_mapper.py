"""From conforming columns of a log to samples: dense values transformed, values mapped to rows of tables, counted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.recsys.log.conform import list_lengths
from windrow.recsys.log.options import FeatureOptions, LogOptions
from windrow.recsys.log.store import (
    DENSE_COLUMN,
    LABEL_COLUMN,
    SAMPLE_WEIGHT_COLUMN,
    SESSION_COLUMN,
    TIME_COLUMN,
    WEIGHTS_SUFFIX,
)
from windrow.recsys.log.vocabulary import MISSING_ROW, UNSEEN_ROW, Vocabulary, hashed_rows

__all__ = ["SampleMapper", "read_vocabularies"]

COUNTED = ("missing", "unseen", "truncated", "ids")


class SampleMapper:
    """Maps staged rows to samples.

    Args:
        log: the rules.
        vocabularies: of the tables that have one.
        moments: mean and deviation of each dense column over the training split, for "standard".

    Attributes:
        counts: of what was mapped so far, for each feature and split what `COUNTED` names.
        dense_missing: missing values of each dense column.
        positives: by split, [L] samples of label 1 of each binary label.
        are_text: by feature, whether its values were text.
    """

    def __init__(
        self, log: LogOptions, vocabularies: Mapping[str, Vocabulary], moments: Mapping[str, tuple[float, float]]
    ) -> None:
        self._log = log
        self._vocabularies = dict(vocabularies)
        self.moments = dict(moments)
        self.counts: dict[str, dict[str, dict[str, int]]] = {name: {} for name in log.features}
        self.dense_missing = dict.fromkeys(log.dense, 0)
        self.positives: dict[str, npt.NDArray[np.int64]] = {}
        self.are_text: dict[str, bool] = {}

    def figures(self) -> dict[str, Any]:
        """The attributes of what was mapped, for `add`."""
        return {name: getattr(self, name) for name in ("counts", "dense_missing", "positives", "are_text")}

    def add(self, figures: Mapping[str, Any]) -> None:
        """Count what another one has mapped, too."""
        for name, splits in figures["counts"].items():
            for split, counts in splits.items():
                mine = self.counts[name].setdefault(split, dict.fromkeys(COUNTED, 0))
                for counted, number in counts.items():
                    mine[counted] += number
        for name, missing in figures["dense_missing"].items():
            self.dense_missing[name] += missing
        for split, positives in figures["positives"].items():
            self.positives[split] = self.positives.get(split, 0) + positives
        self.are_text |= figures["are_text"]

    def table_rows(self, feature: str) -> int:
        """Rows of the table that a feature's ids belong to."""
        vocabulary = self._vocabularies.get(self._log.table_of(feature))
        rows = self._log.features[feature].rows if vocabulary is None else vocabulary.rows
        assert rows is not None
        return rows

    def map(self, rows: Any, split: str) -> Any:
        """Map a ``pyarrow.RecordBatch`` of the staged log, all of one split, to one with a prepared log's columns."""
        import pyarrow as pa

        staged = dict(zip(rows.schema.names, rows.columns, strict=True))
        columns: dict[str, Any] = {}
        if self._log.labels:
            labels = np.column_stack([staged[f"label.{name}"].to_numpy() for name in self._log.labels])
            if self._log.label_kind == "binary":
                self.positives[split] = self.positives.get(split, 0) + np.count_nonzero(labels, axis=0)
            num_labels = labels.shape[1]
            flat = pa.array(labels.reshape(-1))
            columns[LABEL_COLUMN] = flat if num_labels == 1 else pa.FixedSizeListArray.from_arrays(flat, num_labels)
        if self._log.sample_weight:
            columns[SAMPLE_WEIGHT_COLUMN] = staged["weight"]
        if self._log.dense:
            columns[DENSE_COLUMN] = self._dense(staged, rows.num_rows)
        for name, options in self._log.features.items():
            kind = staged[f"id.{name}"].type
            self.are_text[name] = pa.types.is_string(kind.value_type if options.multi_hot else kind)
            if options.multi_hot:
                columns |= self._lists(name, options, staged, split)
            else:
                ids = self._ids(name, staged[f"id.{name}"])
                self._count(name, split, missing=staged[f"id.{name}"].null_count, ids=ids)
                columns[name] = pa.array(ids)
        for name in (TIME_COLUMN, SESSION_COLUMN):
            if name in staged:
                columns[name] = staged[name]
        return pa.RecordBatch.from_pydict(columns)

    def _dense(self, staged: Mapping[str, Any], num_rows: int) -> Any:
        import pyarrow as pa

        matrix = np.empty((num_rows, len(self._log.dense)), np.float32)
        for place, name in enumerate(self._log.dense):
            column = staged[f"dense.{name}"]
            values = column.fill_null(0).to_numpy()
            if self._log.dense_transform == "log1p":
                values = np.log1p(np.maximum(values, 0))
            elif self._log.dense_transform == "standard":
                mean, deviation = self.moments.get(name, (0.0, 1.0))
                values = (values - mean) / deviation
            matrix[:, place] = np.where(column.is_null().to_numpy(zero_copy_only=False), 0, values)
            self.dense_missing[name] += column.null_count
        return pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), len(self._log.dense))

    def _lists(self, name: str, options: FeatureOptions, staged: Mapping[str, Any], split: str) -> dict[str, Any]:
        import pyarrow as pa

        lists = staged[f"id.{name}"]
        ids = self._ids(name, lists.flatten())
        lengths = list_lengths(lists)
        missing = int(np.count_nonzero(lengths == 0))
        kept = np.minimum(lengths, options.max_length or len(ids))
        from_end = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(ids))
        chosen = from_end <= np.repeat(kept, lengths)
        ids = ids[chosen]
        self._count(name, split, missing=missing, ids=ids, truncated=int(lengths.sum() - kept.sum()))
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
        if table in self._vocabularies:
            found = self._vocabularies[table].rows_of(known)
        else:
            assert options.rows is not None
            found = hashed_rows(known, table, options.rows)
        if not values.null_count:
            return found
        ids = np.full(len(values), MISSING_ROW, np.int64)
        ids[values.is_valid().to_numpy(zero_copy_only=False)] = found
        return ids

    def _count(self, name: str, split: str, *, missing: int, ids: npt.NDArray[np.int64], truncated: int = 0) -> None:
        has_unseen = self._log.table_of(name) in self._vocabularies
        unseen = int(np.count_nonzero(ids == UNSEEN_ROW)) if has_unseen else 0
        counts = self.counts[name].setdefault(split, dict.fromkeys(COUNTED, 0))
        for counted, number in zip(COUNTED, (missing, unseen, truncated, len(ids)), strict=True):
            counts[counted] += number


def read_vocabularies(files: Mapping[str, Path]) -> dict[str, Vocabulary]:
    """The vocabularies of tables, from their files."""
    import pyarrow as pa
    from pyarrow import parquet

    found = {}
    for table, path in files.items():
        values = parquet.read_table(path, columns=["value"])["value"]
        # One array: positions in it are rows of the table. Text of a billion bytes and more needs wide offsets.
        wide = values.cast(pa.large_string()) if pa.types.is_string(values.type) else values
        found[table] = Vocabulary.of(wide.combine_chunks())
    return found
