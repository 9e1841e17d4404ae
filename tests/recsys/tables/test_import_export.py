"""Whole tables in files that others read; rows that others trained, each rank its shard."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from windrow.comm.errors import DataError, StoreError
from windrow.recsys.tables import import_export as export
from windrow.recsys.tables.import_export import export_safetensors, export_torchrec, load_pretrained
from windrow.training.shard_files import LocalTable, ShardReader, StateTensor, write_shard_file

TABLES = {"item": torch.arange(50.0).reshape(10, 5).sqrt(), "user": torch.arange(12.0).reshape(3, 4).pow(0.3)}


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    pieces = [("item", (0, 7), (0, 4)), ("item", (0, 7), (4, 5)), ("item", (7, 10), (0, 5)), ("user", (0, 3), (0, 4))]
    files = []
    for name, rows, columns in pieces:
        files.append(f"rank-{len(files)}")
        weight = TABLES[name][slice(*rows), slice(*columns)]
        piece = LocalTable(name=name, rows=rows, columns=columns)
        found = StateTensor(piece=piece, name="weight", tensor=weight, axes=("rows", "columns"), replicated=False)
        squares = replace(found, name="sum_of_squares", tensor=torch.ones(len(weight)), axes=("rows",))
        write_shard_file(tmp_path / files[-1], [found, squares])
    return files


def test_safetensors(tmp_path: Path, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "CHUNK_BYTES", 60)
    with ShardReader(tmp_path, names) as reader:
        export_safetensors(reader, tmp_path / "tables.safetensors")
        export_safetensors(reader, tmp_path / "user.safetensors", tables=["user"])
        with pytest.raises(StoreError, match="no table 'x'"):
            export_safetensors(reader, tmp_path / "x.safetensors", tables=["x"])
    found = load_file(tmp_path / "tables.safetensors")
    assert found.keys() == TABLES.keys()
    assert all(torch.equal(found[name], TABLES[name]) for name in TABLES)
    assert list(load_file(tmp_path / "user.safetensors")) == ["user"]
    assert not (tmp_path / "x.safetensors").exists()


def test_rows_in_another_order_are_written_by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "CHUNK_BYTES_BY_ID", 60)
    ids = torch.tensor([3, 9, 0, 7, 1, 2, 8, 4, 6, 5])
    for number, rows in enumerate([(0, 7), (7, 10)]):
        piece = LocalTable(name="item", rows=rows, columns=(0, 5))
        weight = TABLES["item"][ids[slice(*rows)]]
        found = StateTensor(piece=piece, name="weight", tensor=weight, axes=("rows", "columns"), replicated=False)
        numbers = replace(found, name="row_ids", tensor=ids[slice(*rows)], axes=("rows",))
        write_shard_file(tmp_path / str(number), [found, numbers])
    with ShardReader(tmp_path, ["0", "1"]) as reader:
        export_safetensors(reader, tmp_path / "tables.safetensors")
    assert torch.equal(load_file(tmp_path / "tables.safetensors")["item"], TABLES["item"])


def test_torchrec_loads_it(tmp_path: Path, names: list[str]) -> None:
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    with ShardReader(tmp_path, names) as reader:
        export_torchrec(reader, tmp_path / "tables.pt")
    configs = [
        EmbeddingBagConfig(name=name, num_embeddings=len(table), embedding_dim=table.shape[1], feature_names=[name])
        for name, table in TABLES.items()
    ]
    collection = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    state = torch.load(tmp_path / "tables.pt", weights_only=True)
    collection.load_state_dict(state, assign=True)
    for name, table in TABLES.items():
        assert torch.equal(collection.embedding_bags[name].weight, table)


ROWS = torch.arange(60.0).reshape(10, 6).sqrt()
SHAPE = (10, 6)


def write(path: Path, rows: torch.Tensor = ROWS, *, name: str = "item", **others: torch.Tensor) -> Path:
    if path.suffix == ".npy":
        np.save(path, rows.numpy())
    else:
        save_file({name: rows, **others}, path)
    return path


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_rectangle_is_read(tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    path = write(tmp_path / f"rows{suffix}", ROWS.to(dtype))
    found = load_pretrained(path, "item", (2, 7), (4, 6), shape=SHAPE)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    assert torch.equal(found, ROWS.to(dtype).float()[2:7, 4:6])
    found += 1
    assert torch.equal(load_pretrained(path, "item", (0, 10), (0, 6), shape=SHAPE), ROWS.to(dtype).float())
    assert load_pretrained(path, "item", (3, 3), (0, 6), shape=SHAPE).shape == (0, 6)


@settings(max_examples=20)
@given(row=st.integers(0, 9), column=st.integers(0, 5), value=st.sampled_from([float("nan"), float("inf"), 1e300]))
def test_a_number_that_is_not_finite_is_found_by_whom_it_concerns(
    tmp_path_factory: pytest.TempPathFactory, row: int, column: int, value: float
) -> None:
    rows = ROWS.double()
    rows[row, column] = value
    for suffix in (".npy", ".safetensors"):
        path = write(tmp_path_factory.mktemp("rows") / f"rows{suffix}", rows)
        for bounds in ((0, 5), (5, 10)):
            if bounds[0] <= row < bounds[1]:
                with pytest.raises(DataError, match=rf"row {row}, column {column} .*'item' is (nan|inf), not a finite"):
                    load_pretrained(path, "item", bounds, (0, 6), shape=SHAPE)
            else:
                load_pretrained(path, "item", bounds, (0, 6), shape=SHAPE)


def test_the_tensor_is_found_by_name_or_alone(tmp_path: Path) -> None:
    alone = write(tmp_path / "alone.safetensors", name="weight")
    assert len(load_pretrained(alone, "item", (0, 10), (0, 6), shape=SHAPE)) == 10
    several = write(tmp_path / "several.safetensors", items=torch.zeros(1, 1))
    assert torch.equal(load_pretrained(several, "item", (0, 10), (0, 6), shape=SHAPE), ROWS)
    with pytest.raises(DataError, match=r"several\.safetensors has no tensor 'itemz'\. Did you mean 'item'\?"):
        load_pretrained(several, "itemz", (0, 10), (0, 6), shape=SHAPE)
    with pytest.raises(DataError, match=r"has no tensor 'xyz'\. There are: item, items\."):
        load_pretrained(several, "xyz", (0, 10), (0, 6), shape=SHAPE)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_what_does_not_fit_is_refused(tmp_path: Path, suffix: str) -> None:
    def load(path: Path, shape: tuple[int, int] = SHAPE) -> torch.Tensor:
        return load_pretrained(path, "item", (0, 1), (0, 1), shape=shape)

    with pytest.raises(DataError, match=r"rows\.csv: pretrained rows are read from \.npy and \.safetensors"):
        load(tmp_path / "rows.csv")
    path = tmp_path / f"rows{suffix}"
    with pytest.raises(DataError, match=f"rows{suffix}: no such file; .* table 'item'"):
        load(path)
    path.write_text("no array")
    with pytest.raises(DataError, match=f"rows{suffix} is no (NumPy array|safetensors file)"):
        load(path)
    with pytest.raises(DataError, match=r"has shape \[10, 6\], and table 'item' has 10 rows of 8 numbers"):
        load(write(path), (10, 8))
    with pytest.raises(DataError, match=r"has shape \[\]"):
        load(write(path, torch.tensor(3.0)))
    with pytest.raises(DataError, match=r"holds (torch\.)?int64: pretrained rows are floating point"):
        load(write(path, ROWS.long()))
