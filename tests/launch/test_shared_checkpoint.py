"""windrow.launch.checkpoint: tables written by some ranks and read by others, ranks that fail, weights alone."""

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from windrow.comm.errors import StoreError
from windrow.comm.loopback import Loopback
from windrow.comm.world import World
from windrow.launch.checkpoint import (
    CheckpointHeader,
    WhichCheckpoint,
    begin_checkpoint,
    load_latest,
    load_together,
    load_weights,
    restore_tables,
    save_checkpoint,
    save_together,
    tables_folder,
)
from windrow.launch.recipe import Recipe, make_recipe
from windrow.recsys.tables import shard_files
from windrow.recsys.tables.dense_gradient import DenseGradientTableBatch
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import LocalTable, TableBatch

ROWS, COLUMNS = 10, 8
WHOLE = {
    "weight": torch.arange(80.0).reshape(ROWS, COLUMNS),
    "sum_of_squares": torch.arange(100.0, 180.0).reshape(ROWS, COLUMNS),
}
SMALL = torch.arange(12.0).reshape(3, 4)
Rectangle = tuple[tuple[int, int], tuple[int, int]]

PLAN_A: list[list[Rectangle]] = [[((0, 4), (0, 8))], [((4, 10), (0, 4))], [], [((4, 10), (4, 8))]]
PLAN_B: list[list[Rectangle]] = [[((0, 10), (4, 8))], [((0, 7), (0, 4)), ((7, 10), (0, 4))]]


def stored(rectangles: Iterable[Rectangle], *, filled: bool) -> list[TableBatch]:
    """A rank's pieces of the big table, and its copy of the small one."""

    def table(
        name: str, rows: tuple[int, int], columns: tuple[int, int], whole: dict[str, Tensor]
    ) -> TableBatch:
        place = LocalTable(name=name, rows=rows, columns=columns)
        options = TableOptions(optimizer="adagrad" if len(whole) > 1 else "sgd")
        batch = DenseGradientTableBatch((place,), (0,), options, replicated=name == "small")
        parts = batch.state()
        assert {part.name for part in parts} == set(whole)
        cuts = [whole[part.name][slice(*rows), slice(*columns)] for part in parts]
        batch.load_state(
            replace(part, tensor=cut if filled else torch.full_like(cut, -1))
            for part, cut in zip(parts, cuts, strict=True)
        )
        return batch

    pieces = [table("big", rows, columns, WHOLE) for rows, columns in rectangles]
    return [*pieces, table("small", (0, 3), (0, 4), {"weight": SMALL})]


def header(epoch: int, size: int) -> CheckpointHeader:
    return CheckpointHeader(recipe={}, data_fingerprint="f", epoch=epoch, step=0, world_size=size)


def save(folder: Path, epoch: int, plan: Sequence[Sequence[Rectangle]] = PLAN_A) -> list[Any]:
    """Save under a plan; what each rank raised."""

    def body(world: World) -> str:
        try:
            save_together(
                world,
                folder,
                header(epoch, world.size),
                {"w": torch.tensor(epoch)},
                stored(plan[world.rank], filled=True),
                keep=2,
            )
        except StoreError as error:
            return str(error)
        return ""

    return Loopback.run(len(plan), body, deadline_s=30)


@pytest.mark.parametrize(("before", "after"), [(PLAN_A, PLAN_B), (PLAN_B, PLAN_A)])
def test_tables_load_under_another_plan_on_another_number_of_ranks(
    tmp_path: Path, before: list[list[Rectangle]], after: list[list[Rectangle]]
) -> None:
    assert save(tmp_path, 3, before) == [""] * len(before)

    def body(world: World) -> tuple[int, float]:
        checkpoint = load_together(world, tmp_path, lambda _: None)
        tables = stored(after[world.rank], filled=False)
        restore_tables(checkpoint, tables)
        expected = stored(after[world.rank], filled=True)
        for found, wanted in zip(tables, expected, strict=True):
            for mine, other in zip(found.state(), wanted.state(), strict=True):
                assert torch.equal(mine.tensor, other.tensor)
        return checkpoint.header.epoch, float(checkpoint.state["w"])

    assert Loopback.run(len(after), body, deadline_s=30) == [(3, 3.0)] * len(after)


def test_a_rank_without_tables_writes_no_file_and_copies_are_written_once(tmp_path: Path) -> None:
    save(tmp_path, 1)
    files = sorted(path.name for path in tables_folder(load_latest(tmp_path).path).iterdir())
    assert files == ["rank-00000.safetensors", "rank-00001.safetensors", "rank-00003.safetensors"]
    assert sorted(load_latest(tmp_path).header.table_files) == files


def test_without_tables_there_is_no_folder(tmp_path: Path) -> None:
    def body(world: World) -> None:
        save_together(world, tmp_path, header(1, 2), {}, None, keep=1)
        assert load_together(world, tmp_path, lambda _: None).header.epoch == 1

    Loopback.run(2, body, deadline_s=30)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00001-step-000000.ckpt"]


@pytest.mark.parametrize("damage", ["altered", "truncated", "gone"])
def test_a_damaged_shard_makes_its_checkpoint_damaged(tmp_path: Path, damage: str) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    shard = tables_folder(load_latest(tmp_path).path) / "rank-00001.safetensors"
    contents = shard.read_bytes()
    if damage == "gone":
        shard.unlink()
    else:
        shard.write_bytes(contents[:-4] if damage == "truncated" else contents[:-1] + b"\x99")

    def body(world: World) -> tuple[int, tuple[str, ...]]:
        checkpoint = load_together(world, tmp_path, lambda _: None)
        return checkpoint.header.epoch, checkpoint.damaged

    found = Loopback.run(2, body, deadline_s=30)
    assert found[0] == found[1]
    epoch, damaged = found[0]
    assert epoch == 1
    assert len(damaged) == 1
    assert "rank-00001.safetensors" in damaged[0]


def test_a_rank_that_cannot_write_fails_all_of_them_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    real = shard_files.write_shard_file

    def full(path: Path, members: Any) -> str:
        if path.name == "rank-00001.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, members)

    with monkeypatch.context() as patch:
        patch.setattr(shard_files, "write_shard_file", full)
        said = save(tmp_path, 2)
    assert len(set(said)) == 1
    assert "rank 1: No space left on device. Earlier checkpoints are intact" in said[0]
    assert load_latest(tmp_path).header.epoch == 1
    assert save(tmp_path, 3) == [""] * 4
    assert len(list(tmp_path.iterdir())) == 4


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1)

    def refuse(_: CheckpointHeader) -> None:
        raise StoreError("another recipe")

    with pytest.raises(StoreError, match="another recipe"):
        load_together(Loopback.single(), tmp_path, refuse)


def make(**changes: dict[str, Any]) -> Recipe:
    values = {"name": "r", "store": "s", "graph": {"path": "g.npz"}, **changes}
    return make_recipe(values, source="r.toml", base=Path("/"))


def save_weights(folder: Path, epoch: int, *, best: bool) -> Path:
    """A checkpoint whose weights are the number of the epoch."""
    begin_checkpoint(folder, (epoch, 0), with_tables=False)
    header = CheckpointHeader(
        recipe=make().decisive_settings(),
        data_fingerprint="f" * 64,
        epoch=epoch,
        step=0,
        world_size=5,
        best=best,
    )
    state = {"trainer": {"model": {"w": torch.full((3,), float(epoch))}, "optimizer": {}}}
    return save_checkpoint(folder, header, state, keep=5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for epoch in (1, 2, 3):
        save_weights(tmp_path, epoch, best=epoch < 3)
    return tmp_path


def load(world: World, folder: Path, which: WhichCheckpoint = "best", **options: Any) -> tuple[int, float]:
    said: list[str] = options.pop("said", [])
    options = {"recipe": make(), "fingerprint": "f" * 64, "say": said.append} | options
    # Only rank 0 needs to see the folder.
    epoch, state = load_weights(world, folder if world.rank == 0 else Path("nowhere"), which, **options)
    return epoch, float(state["w"].sum())


def test_every_rank_has_them(folder: Path) -> None:
    assert Loopback.run(3, lambda world: load(world, folder)) == [(2, 6.0)] * 3
    assert Loopback.run(2, lambda world: load(world, folder, "latest")) == [(3, 9.0)] * 2


def test_a_damaged_latest_one_is_passed_over_and_said(folder: Path) -> None:
    latest = save_weights(folder, 4, best=False)
    latest.write_bytes(latest.read_bytes()[:-1])
    said: list[str] = []
    assert load(Loopback.single(), folder, "latest", said=said) == (3, 9.0)
    assert len(said) == 1
    assert "passed over a damaged checkpoint" in said[0]


def test_what_does_not_fit_is_refused(folder: Path, tmp_path: Path) -> None:
    single = Loopback.single()
    with pytest.raises(StoreError, match="another model than the recipe describes"):
        load(single, folder, recipe=make(model={"hidden": 9}))
    with pytest.raises(StoreError, match=r"/s holds another graph than the run .*e{12}.*f{12}\. Partition"):
        load(single, folder, fingerprint="e" * 64)
    # What does not concern the model may be another.
    load(single, folder, recipe=make(training={"epochs": 7}, run={"seed": 3}))
    with pytest.raises(StoreError, match="is marked as the best"):
        load(single, tmp_path / "empty")
    with pytest.raises(StoreError, match="no intact checkpoint"):
        load(single, tmp_path / "empty", "latest")
