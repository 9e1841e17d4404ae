"""windrow.launch.prediction: what is in the file, and that it is whole or not there."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch

from windrow.comm.errors import RecipeError, StoreError
from windrow.gnn.graph import Task
from windrow.launch import prediction as prediction_file
from windrow.launch.prediction import PredictionFile, check_writable
from windrow.partition import atomic_writes as atomic_file

parquet = pytest.importorskip("pyarrow.parquet")


def write(path: Path, task: Task, logits: torch.Tensor, *, chunk: int) -> None:
    vertices = torch.arange(len(logits)) * 2
    outputs = logits.shape[1]
    with PredictionFile.create(path, task, outputs, {"epoch": 3}) as file:
        for first in range(0, len(logits), chunk):
            file.write(vertices[first : first + chunk], logits[first : first + chunk])


@pytest.mark.parametrize(
    ("task", "schema"),
    [
        (
            "single-label",
            ["vertex: int64 not null", "prediction: int32 not null", "probability: float not null"],
        ),
        ("binary", ["vertex: int64 not null", "probability: float not null"]),
        (
            "multi-label",
            ["vertex: int64 not null", "probabilities: fixed_size_list<element: float>[3] not null"],
        ),
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
    columns = file.read().to_pydict()
    assert columns["vertex"] == list(range(0, 20, 2))
    sigmoid = logits.double().sigmoid().float()
    if task == "binary":
        assert columns["probability"] == sigmoid.flatten().tolist()
    if task == "multi-label":
        assert columns["probabilities"] == sigmoid.tolist()
    if task == "single-label":
        assert columns["prediction"] == [2] * 10


@pytest.mark.parametrize("ids", [["a", "b", "c", "d"], [10, 30, 20, 5]])
def test_ids_of_the_users_files(tmp_path: Path, ids: list[str] | list[int]) -> None:
    pa = pytest.importorskip("pyarrow")
    with PredictionFile.create(tmp_path / "p.parquet", "binary", 1, {}, ids=pa.array(ids)) as file:
        file.write(torch.tensor([1]), torch.zeros(1, 1))
        file.write(torch.tensor([3]), torch.zeros(1, 1))
    columns = parquet.read_table(tmp_path / "p.parquet").to_pydict()
    assert columns == {"vertex": [1, 3], "id": [ids[1], ids[3]], "probability": [0.5, 0.5]}


def test_no_vertices(tmp_path: Path) -> None:
    write(tmp_path / "p.parquet", "multi-label", torch.empty(0, 3), chunk=4)
    assert parquet.read_table(tmp_path / "p.parquet").num_rows == 0


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.parquet"
    path.write_bytes(b"old")

    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic_file.os, "fsync", fsync)
    with pytest.raises(StoreError, match=r"cannot write .*p\.parquet: No space left.*choose another --out"):
        write(path, "binary", torch.zeros(5, 1), chunk=2)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.parquet"]


def test_what_cannot_be_written_is_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(tmp_path / "p.parquet")
    with pytest.raises(StoreError, match="is a folder: name a file in it"):
        check_writable(tmp_path)
    with pytest.raises(StoreError, match=r"there is no folder .*no: make it"):
        check_writable(tmp_path / "no" / "p.parquet")
    monkeypatch.setattr(prediction_file, "find_spec", lambda _: None)
    with pytest.raises(
        RecipeError, match=r"pyarrow, which is not installed: pip install 'windrow\[parquet\]'"
    ):
        check_writable(tmp_path / "p.parquet")
