"""Fixtures for tests of recommendation."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from windrow.recsys.store import LogStore
from windrow.recsys.store_manifest import MANIFEST_NAME, FeatureEntry, LogManifest, SplitEntry, StoreFile


@pytest.fixture(scope="session")
def write_log() -> Callable[..., LogStore]:
    """Write samples as a prepared log of one split, without all that preparing does: `_write_log`."""
    return _write_log


def _write_log(
    folder: Path,
    columns: Mapping[str, Any],
    *,
    num_dense: int = 0,
    row_group_rows: int = 1 << 16,
    file_rows: Sequence[int] | None = None,
) -> LogStore:
    """Write a store.

    Args:
        folder: where, created.
        columns: Arrow arrays of the store's columns; ``NAME.weights`` after ``NAME``.
        num_dense: values of the column ``dense``.
        row_group_rows: rows of a row group.
        file_rows: rows of each file; one file of all by default.
    """
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table(dict(columns))
    names = [name for name in columns if name not in {"label", "dense"} and not name.endswith(".weights")]
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
        parquet.write_table(
            table.slice(begin, rows),
            folder / name,
            row_group_size=row_group_rows,
            write_page_checksum=True,
        )
        files.append(StoreFile(name=name, rows=rows, num_bytes=(folder / name).stat().st_size, sha256=""))
    assert sum(file.rows for file in files) == len(table)
    LogManifest(
        windrow_version="test",
        dense=tuple(f"dense_{index}" for index in range(num_dense)),
        dense_missing={},
        has_time=False,
        has_session=False,
        features=features,
        splits={"train": SplitEntry(rows=len(table), positives=0, files=tuple(files))},
        vocabularies=(),
        origin={},
        fingerprint="",
    ).write(folder / MANIFEST_NAME)
    return LogStore.open(folder)
