"""windrow.recsys.tables.import_export: whole tables, in files that others read."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from windrow.comm.errors import StoreError
from windrow.recsys.tables import import_export as export
from windrow.recsys.tables.import_export import export_safetensors, export_torchrec
from windrow.recsys.tables.shard_files import ShardReader, write_shard_file
from windrow.recsys.tables.table import LocalTable

TABLES = {
    "item": torch.arange(50.0).reshape(10, 5).sqrt(),
    "user": torch.arange(12.0).reshape(3, 4).pow(0.3),
}


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    pieces = [
        ("item", (0, 7), (0, 4)),
        ("item", (0, 7), (4, 5)),
        ("item", (7, 10), (0, 5)),
        ("user", (0, 3), (0, 4)),
    ]
    files = []
    for name, rows, columns in pieces:
        files.append(f"rank-{len(files)}")
        weight = TABLES[name][slice(*rows), slice(*columns)]
        content = {"weight": weight, "sum_of_squares": torch.ones(len(weight))}
        write_shard_file(tmp_path / files[-1], [(LocalTable(name=name, rows=rows, columns=columns), content)])
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


def test_torchrec_loads_it(tmp_path: Path, names: list[str]) -> None:
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    with ShardReader(tmp_path, names) as reader:
        export_torchrec(reader, tmp_path / "tables.pt")
    configs = [
        EmbeddingBagConfig(
            name=name, num_embeddings=len(table), embedding_dim=table.shape[1], feature_names=[name]
        )
        for name, table in TABLES.items()
    ]
    collection = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    state = torch.load(tmp_path / "tables.pt", weights_only=True)
    collection.load_state_dict(state, assign=True)
    for name, table in TABLES.items():
        assert torch.equal(collection.embedding_bags[name].weight, table)
