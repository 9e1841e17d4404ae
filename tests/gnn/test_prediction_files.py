"""windrow.gnn.prediction_files: chunks of one table; a file that is whole or the old one."""

import errno
import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from pyarrow import parquet

from windrow.comm.errors import StoreError
from windrow.gnn.graph import Task
from windrow.gnn.prediction_files import prediction_file
from windrow.partition import atomic_writes as atomic_file


def write(path: Path, task: Task, logits: torch.Tensor, *, chunk: int) -> None:
    vertices = torch.arange(len(logits)) * 2
    outputs = logits.shape[1]
    with prediction_file(path, task, outputs, {"epoch": 3}) as append:
        for first in range(0, len(logits), chunk):
            append(vertices[first : first + chunk], logits[first : first + chunk])


@pytest.mark.parametrize(
    ("task", "schema"),
    [
        ("single-label", ["vertex: int64 not null", "prediction: int32 not null", "probability: float not null"]),
        ("binary", ["vertex: int64 not null", "probability: float not null"]),
        ("multi-label", ["vertex: int64 not null", "probabilities: fixed_size_list<element: float>[3] not null"]),
    ],
)
def test_chunks_are_row_groups_of_one_table(tmp_path: Path, task: Task, schema: list[str]) -> None:
    path = tmp_path / "p.parquet"
    logits = torch.linspace(-2, 2, 30).reshape(10, 3)[:, : 1 if task == "binary" else 3]
    write(path, task, logits, chunk=4)
    file = parquet.ParquetFile(path)
    assert file.num_row_groups == 3
    # Arrow has called the values of a list "item" and "element".
    fields = [str(field).replace("item", "element") for field in file.schema_arrow]
    assert fields == [f"pyarrow.Field<{field}>" for field in schema]
    assert json.loads(file.schema_arrow.metadata[b"windrow"]) == {"epoch": 3}
    assert file.read()["vertex"].to_pylist() == list(range(0, 20, 2))


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.parquet"
    path.write_bytes(b"old")
    monkeypatch.setattr(atomic_file.os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(StoreError, match=r"cannot write .*p\.parquet: No space left.*choose another --out"):
        write(path, "binary", torch.zeros(5, 1), chunk=2)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.parquet"]
