"""windrow.training.checkpoint: what comes back, which are kept, which is used, what is refused; all ranks."""

import contextlib
import dataclasses
import errno
import os
import resource
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from windrow.comm.errors import StoreError
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.comm.world import World
from windrow.recsys.tables.dense_gradient import DenseGradientTableBatch
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import TableBatch
from windrow.training import checkpoint as checkpoints
from windrow.training.checkpoint import (
    CheckpointHeader,
    WhichCheckpoint,
    begin_checkpoint,
    check_fits,
    load_checkpoint,
    load_together,
    read_checkpoint,
    read_header,
    restore_tables,
    save_checkpoint,
    save_together,
    tables_folder,
    write_checkpoint,
)
from windrow.training.shard_files import LocalTable

RECIPE = {"seed": 0, "model": {"hidden": 8, "kind": "gcn"}, "training": {"epochs": 3}}


def header(epoch: int, *, best: bool = False, step: int = 0) -> CheckpointHeader:
    return CheckpointHeader(recipe=RECIPE, data_fingerprint="a" * 64, epoch=epoch, step=step, world_size=2, best=best)


def save(folder: Path, epoch: int, *, best: bool = False, step: int = 0, keep: int = 2) -> Path:
    begin_checkpoint(folder, (epoch, step), with_tables=False)
    return save_checkpoint(folder, header(epoch, best=best, step=step), {"w": torch.tensor([epoch, step])}, keep=keep)


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    best = save(folder, 1, best=True)
    for epoch in range(2, 6):
        save(folder, epoch)
    assert len(kept(folder)) == 3
    assert load_checkpoint(folder, "best").path == best
    assert load_checkpoint(folder).header.epoch == 5
    save(folder, 6, best=True)
    assert not best.exists()
    assert [load_checkpoint(folder).header.epoch, load_checkpoint(folder, "best").header.epoch] == [6, 6]
    assert len(kept(folder)) == 2


def test_positions_are_in_order(tmp_path: Path) -> None:
    for epoch, step in ((9, 20), (10, 0), (9, 100), (10, 3)):
        save(tmp_path, epoch, step=step, keep=10)
    assert load_checkpoint(tmp_path).header.position == (10, 3)
    save(tmp_path, 99_999, step=4)
    save(tmp_path, 100_000)
    assert kept(tmp_path) == ["epoch-100000-step-000000.ckpt", "epoch-99999-step-000004.ckpt"]


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_one_never_pushes_out_those_that_are_intact(tmp_path: Path, keep: int) -> None:
    save(tmp_path, 5, best=True, keep=keep)
    newest = save(tmp_path, 9, best=True, keep=keep + 1)
    newest.write_bytes(newest.read_bytes()[:-5])
    assert load_checkpoint(tmp_path).header.epoch == 5
    for epoch in (6, 7):
        save(tmp_path, epoch, keep=keep)
        assert load_checkpoint(tmp_path).header.epoch == epoch
        assert load_checkpoint(tmp_path, "best").header.epoch == 5


def test_none_left_is_an_error_with_every_reason(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="begin again there by --resume auto"):
        load_checkpoint(tmp_path)
    only = save(tmp_path, 1)
    only.write_bytes(b"x")
    with pytest.raises(StoreError, match=f"(?s)no intact checkpoint.*without --resume.*{only.name}"):
        load_checkpoint(tmp_path)
    with pytest.raises(StoreError, match="marked as the best"):
        load_checkpoint(tmp_path, "best")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="Choose another run folder"):
        save(tmp_path / "file" / "inner", 1)


def test_another_recipe_is_refused_naming_keys_and_values() -> None:
    check_fits(header(1), recipe=RECIPE, data_fingerprint="a" * 64, data="graph")
    other = {"seed": 1, "model": {"hidden": 16, "kind": "gcn", "extra": True}, "training": {}}
    with pytest.raises(StoreError) as caught:
        check_fits(header(1), recipe=other, data_fingerprint="a" * 64, data="graph")
    changed = "seed was 0 and is 1; model.hidden was 8 and is 16; training.epochs was 3 and is absent"
    for words in (changed, "(and 1 more)", "recipe.toml"):
        assert words in str(caught.value)


# ------------------------------------------------------------------------------------------------------ table shards


def save_with_tables(folder: Path, epoch: int, *, best: bool = False, keep: int = 1) -> Path:
    """A checkpoint with one file of table shards."""
    path = begin_checkpoint(folder, (epoch, 0), with_tables=True)
    (tables_folder(path) / "rank-00000.safetensors").write_bytes(b"shard")
    named = dataclasses.replace(header(epoch, best=best), table_files={"rank-00000.safetensors": "c" * 64})
    return save_checkpoint(folder, named, {"w": torch.tensor([epoch])}, keep=keep)


def test_table_shards_go_with_their_checkpoint(tmp_path: Path) -> None:
    for epoch in range(1, 5):
        save_with_tables(tmp_path, epoch, best=epoch == 2)
    assert kept(tmp_path) == [
        "epoch-00002-step-000000.ckpt",
        "epoch-00002-step-000000.tables",
        "epoch-00004-step-000000.ckpt",
        "epoch-00004-step-000000.tables",
    ]


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".epoch-00001.part").write_bytes(b"half")
    begin_checkpoint(tmp_path, (1, 7), with_tables=True)
    (tmp_path / "epoch-00001-step-000007.tables" / "rank-00000.safetensors").write_bytes(b"half")
    save_with_tables(tmp_path, 2)
    assert kept(tmp_path) == ["epoch-00002-step-000000.ckpt", "epoch-00002-step-000000.tables"]


def test_a_checkpoint_of_the_same_position_is_replaced(tmp_path: Path) -> None:
    path = save_with_tables(tmp_path, 2)
    (tables_folder(path) / "rank-00001.safetensors").write_bytes(b"of more ranks")
    assert begin_checkpoint(tmp_path, (2, 0), with_tables=True) == path
    assert not path.exists()
    assert not list(tables_folder(path).iterdir())


HEADER = CheckpointHeader(
    recipe={"seed": 0, "model": {"hidden": 8, "dropout": 0.1}},
    data_fingerprint="f" * 64,
    epoch=3,
    step=7,
    world_size=2,
    table_files={"rank-00000.safetensors": "e" * 64},
)
STATE = {
    "model": OrderedDict(weight=torch.arange(6.0).reshape(2, 3), half=torch.ones(2, dtype=torch.bfloat16)),
    "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
    "best": float("-inf"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "c.ckpt"
    write_checkpoint(path, HEADER, STATE)
    return path


def test_round_trip(path: Path) -> None:
    header, state = read_checkpoint(path)
    assert header == HEADER == read_header(path)
    assert header.position == (3, 7)
    assert state["best"] == float("-inf")
    assert torch.equal(state["model"]["weight"], STATE["model"]["weight"])  # type: ignore[index]
    assert state["model"]["half"].dtype == torch.bfloat16
    assert state["optimizer"]["param_groups"] == [{"lr": 0.1, "params": [0]}]
    assert [entry.name for entry in path.parent.iterdir()] == ["c.ckpt"]
    assert b'"epoch": 3' in path.read_bytes().split(b"\n")[1], "the header is one readable line"


@settings(max_examples=60)
@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(tmp_path_factory: pytest.TempPathFactory, position: float, bit: int) -> None:
    path = tmp_path_factory.mktemp("flip") / "c.ckpt"
    write_checkpoint(path, HEADER, STATE)
    contents = bytearray(path.read_bytes())
    contents[int(position * len(contents))] ^= 1 << bit
    path.write_bytes(contents)
    # The one exception: a bit of the blanks between two items of JSON.
    with contextlib.suppress(StoreError):
        header, state = read_checkpoint(path)
        assert header == HEADER
        assert torch.equal(state["model"]["weight"], STATE["model"]["weight"])  # type: ignore[index]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(path: Path, share: float) -> None:
    contents = path.read_bytes()
    path.write_bytes(contents[: int(share * len(contents))])
    with pytest.raises(StoreError, match=r"damaged.*Delete it"):
        read_checkpoint(path)


def test_another_version_is_refused_with_its_number(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"format_version": 2', b'"format_version": 1'))
    with pytest.raises(StoreError, match="format 1, but this version of windrow reads format 2"):
        read_header(path)


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        read_checkpoint(tmp_path / "absent")


def test_a_real_size_limit_leaves_the_last_good_one(path: Path) -> None:
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(StoreError) as caught:
            write_checkpoint(path, HEADER, {"big": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for words in ("File too large", str(path.parent), "392 KiB", "--resume"):
        assert words in str(caught.value)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["c.ckpt"]


def test_a_folder_that_became_read_only_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match="or the folder writable"):
        write_checkpoint(path, HEADER, STATE)
    assert read_header(path) == HEADER


def test_only_plain_values_load(tmp_path: Path) -> None:
    path = tmp_path / "c.ckpt"
    write_checkpoint(path, HEADER, {"code": CheckpointHeader})
    with pytest.raises(Exception, match=r"[Ww]eights"):
        read_checkpoint(path)


# ------------------------------------------------------------------------------------------------------------ all ranks

ROWS, COLUMNS = 10, 8
WHOLE = {
    "weight": torch.arange(80.0).reshape(ROWS, COLUMNS),
    "sum_of_squares": torch.arange(100.0, 180.0).reshape(ROWS, COLUMNS),
}
SMALL = torch.arange(12.0).reshape(3, 4)
Rectangle = tuple[tuple[int, int], tuple[int, int]]

PLAN_A: list[list[Rectangle]] = [[((0, 4), (0, 8))], [((4, 10), (0, 4))], [], [((4, 10), (4, 8))]]
PLAN_B: list[list[Rectangle]] = [[((0, 10), (4, 8))], [((0, 7), (0, 4)), ((7, 10), (0, 4))]]


def stored(shards: Iterable[Rectangle], *, filled: bool) -> list[TableBatch]:
    """A rank's pieces of the big table, and its copy of the small one."""

    def table(name: str, rows: tuple[int, int], columns: tuple[int, int], whole: dict[str, Tensor]) -> TableBatch:
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

    pieces = [table("big", rows, columns, WHOLE) for rows, columns in shards]
    return [*pieces, table("small", (0, 3), (0, 4), {"weight": SMALL})]


def header_of(epoch: int, size: int) -> CheckpointHeader:
    return CheckpointHeader(recipe={}, data_fingerprint="f", epoch=epoch, step=0, world_size=size)


def save_shards(folder: Path, epoch: int, plan: Sequence[Sequence[Rectangle]] = PLAN_A) -> list[Any]:
    """Save under a plan; what each rank raised."""

    def body(world: World) -> str:
        try:
            save_together(
                world,
                folder,
                header_of(epoch, world.size),
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
    assert save_shards(tmp_path, 3, before) == [""] * len(before)

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
    save_shards(tmp_path, 1)
    files = sorted(path.name for path in tables_folder(load_checkpoint(tmp_path).path).iterdir())
    assert files == ["rank-00000.safetensors", "rank-00001.safetensors", "rank-00003.safetensors"]
    assert sorted(load_checkpoint(tmp_path).header.table_files) == files


def test_without_tables_there_is_no_folder(tmp_path: Path) -> None:
    def body(world: World) -> None:
        save_together(world, tmp_path, header_of(1, 2), {}, None, keep=1)
        assert load_together(world, tmp_path, lambda _: None).header.epoch == 1

    Loopback.run(2, body, deadline_s=30)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00001-step-000000.ckpt"]


@pytest.mark.parametrize("damage", ["altered", "truncated", "gone"])
def test_a_damaged_shard_makes_its_checkpoint_damaged(tmp_path: Path, damage: str) -> None:
    save_shards(tmp_path, 1)
    save_shards(tmp_path, 2)
    shard = tables_folder(load_checkpoint(tmp_path).path) / "rank-00001.safetensors"
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
    epoch, (damaged,) = found[0]
    assert epoch == 1
    assert "rank-00001.safetensors" in damaged


def test_a_rank_that_cannot_write_fails_all_of_them_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_shards(tmp_path, 1)
    real = checkpoints.write_shard_file

    def full(path: Path, members: Any) -> str:
        if path.name == "rank-00001.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, members)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_shard_file", full)
        said = save_shards(tmp_path, 2)
    assert len(set(said)) == 1
    assert "rank 1: No space left on device. Earlier checkpoints are intact" in said[0]
    assert load_checkpoint(tmp_path).header.epoch == 1
    assert save_shards(tmp_path, 3) == [""] * 4
    assert len(list(tmp_path.iterdir())) == 4


def save_weights(folder: Path, epoch: int, *, best: bool) -> Path:
    """A checkpoint whose weights are the number of the epoch."""
    begin_checkpoint(folder, (epoch, 0), with_tables=False)
    header = CheckpointHeader(recipe={}, data_fingerprint="f" * 64, epoch=epoch, step=0, world_size=5, best=best)
    state = {"trainer": {"model": {"w": torch.full((3,), float(epoch))}, "optimizer": {}}}
    return save_checkpoint(folder, header, state, keep=5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for epoch in (1, 2, 3):
        save_weights(tmp_path, epoch, best=epoch < 3)
    return tmp_path


def load(world: World, folder: Path, which: WhichCheckpoint = "best") -> tuple[int, float, tuple[str, ...]]:
    # Only rank 0 needs to see the folder.
    found = load_together(world, folder if world.rank == 0 else Path("nowhere"), lambda _: None, which)
    return found.header.epoch, float(found.state["trainer"]["model"]["w"].sum()), found.damaged


def test_every_rank_has_them(folder: Path) -> None:
    assert Loopback.run(3, lambda world: load(world, folder)) == [(2, 6.0, ())] * 3
    assert Loopback.run(2, lambda world: load(world, folder, "latest")) == [(3, 9.0, ())] * 2


def test_only_weights_travel_where_only_they_are_wanted(folder: Path) -> None:
    def body(world: World) -> tuple[int, list[str]]:
        world.meter = Meter()
        found = load_together(world, folder, lambda _: None, weights_only=True)
        return world.meter.totals().bytes_received, list(found.state)

    begin_checkpoint(folder, (9, 0), with_tables=False)
    big = {"model": {"w": torch.zeros(1000)}, "optimizer": {"moments": torch.zeros(100_000)}}
    save_checkpoint(folder, header_of(9, 1), {"trainer": big}, keep=1)
    (_, names), (received, same) = Loopback.run(2, body)
    assert names == same == ["w"]
    assert 4000 < received < 10_000


def test_only_weights_of_tables_are_overwritten_where_only_they_are_wanted(tmp_path: Path) -> None:
    save_shards(tmp_path, 1)
    tables = stored(PLAN_B[0], filled=False)
    restore_tables(load_checkpoint(tmp_path), tables, weights_only=True)
    found = {(part.piece.name, part.name): part.tensor for batch in tables for part in batch.state()}
    assert torch.equal(found["big", "weight"], WHOLE["weight"][:, 4:])
    assert found["big", "sum_of_squares"].eq(-1).all()
    assert torch.equal(found["small", "weight"], SMALL)


def test_a_damaged_latest_one_is_passed_over_and_said(folder: Path) -> None:
    latest = save_weights(folder, 4, best=False)
    latest.write_bytes(latest.read_bytes()[:-1])
    epoch, weights, (line,) = load(Loopback.single(), folder, "latest")
    assert (epoch, weights) == (3, 9.0)
    assert latest.name in line


def test_a_folder_without_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is marked as the best"):
        load(Loopback.single(), tmp_path)
    with pytest.raises(StoreError, match="no intact checkpoint"):
        load(Loopback.single(), tmp_path, "latest")


def test_what_rank_0_cannot_read_or_write_every_rank_hears(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    def body(world: World) -> None:
        with pytest.raises(StoreError, match="no intact checkpoint"):
            load_together(world, tmp_path, lambda _: None)
        with pytest.raises(StoreError, match="cannot make"):
            save_together(world, tmp_path / "file", header_of(1, 2), {}, None, keep=1)

    Loopback.run(2, body, deadline_s=30)
