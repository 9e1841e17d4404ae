"""windrow.launch.commands.export: from a run folder to one file."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from windrow.comm.errors import StoreError
from windrow.launch.cli import build_parser
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.training.checkpoint import CheckpointHeader, begin_checkpoint, save_checkpoint, tables_folder
from windrow.training.run_folder import create_run_folder
from windrow.training.shard_files import LocalTable, StateTensor, write_shard_file


def save(run: Path, epoch: int, *, best: bool, with_tables: bool = True) -> Path:
    """A checkpoint whose two tables are full of the number of the epoch."""
    folder = run / "checkpoints"
    path = begin_checkpoint(folder, (epoch, 0), with_tables=with_tables)
    files = {}
    for rank, rows in enumerate([(0, 4), (4, 10)] if with_tables else []):
        members = [
            StateTensor(
                piece=LocalTable(name=name, rows=rows, columns=(0, 8)),
                name="weight",
                tensor=torch.full((rows[1] - rows[0], 8), float(epoch)),
                axes=("rows", "columns"),
                replicated=False,
            )
            for name in ("item", "user")
        ]
        files[f"rank-{rank}"] = write_shard_file(tables_folder(path) / f"rank-{rank}", members)
    header = CheckpointHeader(
        recipe={}, data_fingerprint="", epoch=epoch, step=0, world_size=2, best=best, table_files=files
    )
    return save_checkpoint(folder, header, {}, keep=3)


@pytest.fixture
def run_folder(tmp_path: Path, click_recipe: Callable[..., RecommendationRecipe]) -> Path:
    recipe = click_recipe(tmp_path, model={"sequences": ["user"], "sequence_query": "item"})
    run = create_run_folder(tmp_path / "run", recipe.settings()).path
    save(run, 1, best=True)
    save(run, 2, best=False)
    return run


def export_with(*arguments: object) -> int:
    parsed = build_parser().parse_args(["export", *map(str, arguments)])
    return int(parsed.run(parsed))


def test_the_best_or_the_latest_as_safetensors(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tables.safetensors"
    assert export_with(run_folder, "--out", out) == 0
    assert {name: (table.shape, table.unique().tolist()) for name, table in load_file(out).items()} == {
        name: ((10, 8), [1.0]) for name in ("item", "user")
    }
    assert "tables.safetensors: 2 tables, " in capsys.readouterr().out
    assert export_with(run_folder, "--out", out, "--checkpoint", "latest", "--table", "item") == 0
    assert load_file(out)["item"].unique().tolist() == [2.0]
    assert list(load_file(out)) == ["item"]


def test_torchrec(run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "tables.pt"
    assert export_with(run_folder, "--out", out, "--format", "torchrec") == 0
    state = torch.load(out, weights_only=True)
    assert list(state) == ["embedding_bags.item.weight", "embeddings.user.weight"]


def test_what_cannot_be_exported(run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "tables.safetensors"
    with pytest.raises(StoreError, match="holds no run"):
        export_with(tmp_path, "--out", out)
    with pytest.raises(StoreError, match="is a folder: name a file in it"):
        export_with(run_folder, "--out", tmp_path)
    with pytest.raises(StoreError, match="no table 'x': it holds item, user"):
        export_with(run_folder, "--out", out, "--table", "x")
    with pytest.raises(StoreError, match=r"cannot write .*missing.*No such file"):
        export_with(run_folder, "--out", tmp_path / "missing" / "f")
    damaged = next((run_folder / "checkpoints").glob("epoch-00001*.tables")) / "rank-1"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(StoreError, match="rank-1 is damaged"):
        export_with(run_folder, "--out", out)
    save(run_folder, 3, best=True, with_tables=False)
    with pytest.raises(StoreError, match="has no embedding tables"):
        export_with(run_folder, "--out", out)
    assert not out.exists()
