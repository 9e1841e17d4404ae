"""Fixtures for tests of recommendation."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from windrow.recsys.batches import arrow_columns as repeats
from windrow.recsys.log.store import MANIFEST_NAME, FeatureEntry, LogManifest, LogStore, SplitEntry, StoreFile


def handed_out(function: Callable[..., Any]) -> Any:
    """Make a fixture of a function: a test that takes it calls it."""
    return pytest.fixture(scope="session", name=function.__name__)(lambda: function)


@handed_out
def write_log(
    folder: Path,
    columns: Mapping[str, Any],
    *,
    num_dense: int = 0,
    row_group_rows: int = 1 << 16,
    file_rows: Sequence[int] | None = None,
    leave_out_repeats: bool = False,
) -> LogStore:
    """Write a store.

    Args:
        folder: where, created.
        columns: Arrow arrays of the store's columns; ``NAME.weights`` after ``NAME``.
        num_dense: values of the column ``dense``.
        row_group_rows: rows of a row group.
        file_rows: rows of each file; one file of all by default.
        leave_out_repeats: write nulls for what the sample before in a row group has.
    """
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table(dict(columns))
    others = {"label", "dense", "session"}
    names = [name for name in columns if name not in others and not name.endswith(".weights")]
    features = tuple(
        FeatureEntry(
            name=name,
            table=name,
            rows=1 << 40,
            multi_hot=pa.types.is_list(table.schema.field(name).type),
            weighted=f"{name}.weights" in columns,
            ids="rows",
            counts={},
        )
        for name in names
    )
    (folder / "train").mkdir(parents=True)
    files = []
    for number, rows in enumerate(file_rows or [len(table)]):
        name = f"train/part-{number:05d}.parquet"
        begin = sum(file.rows for file in files)
        weighted = [(one, f"{one}.weights" if f"{one}.weights" in columns else "") for one in names]
        with parquet.ParquetWriter(folder / name, table.schema, write_page_checksum=True) as writer:
            for start in range(begin, begin + rows, row_group_rows):
                part = table.slice(start, min(row_group_rows, begin + rows - start))
                writer.write_table(repeats.leave_out_repeats(part, weighted if leave_out_repeats else ()))
        files.append(StoreFile(name=name, rows=rows, num_bytes=(folder / name).stat().st_size, sha256=""))
    assert sum(file.rows for file in files) == len(table)
    LogManifest(
        windrow_version="test",
        dense=tuple(f"dense_{index}" for index in range(num_dense)),
        dense_missing={},
        has_time=False,
        has_session="session" in columns,
        features=features,
        splits={"train": SplitEntry(rows=len(table), positives=(0,), files=tuple(files))},
        vocabularies=(),
        origin={},
        fingerprint="",
    ).write(folder / MANIFEST_NAME)
    return LogStore.open(folder)


@handed_out
def jagged_of(
    features: Mapping[str, Sequence[Sequence[int]]],
    weights: Mapping[str, Sequence[Sequence[float]]] | None = None,
    *,
    dtype: Any = None,
) -> Any:
    """A KeyedJaggedTensor.

    Args:
        features: name to a list for each sample.
        weights: likewise.
        dtype: of lengths, int64 by default.
    """
    import torch

    from windrow.recsys.batches.jagged import keyed

    def flat(columns: Mapping[str, Sequence[Sequence[Any]]], dtype: Any) -> Any:
        return torch.tensor([one for lists in columns.values() for ones in lists for one in ones], dtype=dtype)

    lengths = [len(ids) for lists in features.values() for ids in lists]
    return keyed(
        list(features),
        flat(features, torch.int64),
        torch.tensor(lengths, dtype=dtype or torch.int64),
        None if weights is None else flat(weights, torch.float32),
        num_samples=len(next(iter(features.values()))),
    )


@handed_out
def lists_of(jagged: Any) -> dict[str, list[tuple[bytes, ...]]]:
    """For each feature the bytes of each sample's ids, and of its weights where there are any."""
    columns = [jagged.values()] + ([] if jagged.weights_or_none() is None else [jagged.weights()])
    offsets, stride = jagged.offsets().tolist(), jagged.stride()
    assert len(offsets) == len(jagged.keys()) * stride + 1
    return {
        key: [
            tuple(column[offsets[place] : offsets[place + 1]].numpy().tobytes() for column in columns)
            for place in range(number * stride, (number + 1) * stride)
        ]
        for number, key in enumerate(jagged.keys())
    }


@handed_out
def lists_from(lists: Sequence[Sequence[int]], weights: Any = None, *, before: int = 0, dtype: Any = None) -> Any:
    """A Jagged.

    Args:
        lists: of ids.
        weights: of all ids; True: the number of each id among them.
        before: values that belong to no list, in front.
        dtype: of offsets, int64 by default.
    """
    import numpy as np

    from windrow.recsys.batches.jagged import Jagged

    ids = np.array([7] * before + [one for ones in lists for one in ones], np.int64)
    offsets = (np.cumsum([0, *map(len, lists)]) + before).astype(dtype or np.int64)
    return Jagged(ids, offsets, np.arange(len(ids), dtype=np.float32) if weights is True else weights)


@handed_out
def as_lists(lists: Any) -> list[list[Any]]:
    offsets = lists.offsets.tolist()
    return [lists.values[low:high].tolist() for low, high in pairwise(offsets)]
