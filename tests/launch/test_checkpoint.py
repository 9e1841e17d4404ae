"""windrow.launch.checkpoint: which are kept, which is used, and what is refused."""

import dataclasses
from pathlib import Path

import pytest
import torch

from windrow.comm.errors import StoreError
from windrow.launch.checkpoint import (
    CheckpointHeader,
    begin_checkpoint,
    check_fits,
    check_world_size,
    load_best,
    load_latest,
    save_checkpoint,
    tables_folder,
)

RECIPE = {"seed": 0, "model": {"hidden": 8, "kind": "gcn"}, "training": {"epochs": 3}}


def header(epoch: int, *, best: bool = False, step: int = 0) -> CheckpointHeader:
    return CheckpointHeader(
        recipe=RECIPE, data_fingerprint="a" * 64, epoch=epoch, step=step, world_size=2, best=best
    )


def save(folder: Path, epoch: int, *, best: bool = False, step: int = 0, keep: int = 2) -> Path:
    begin_checkpoint(folder, (epoch, step), with_tables=False)
    return save_checkpoint(
        folder, header(epoch, best=best, step=step), {"w": torch.tensor([epoch, step])}, keep=keep
    )


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    best = save(folder, 1, best=True)
    for epoch in range(2, 6):
        save(folder, epoch)
    assert len(kept(folder)) == 3
    assert load_best(folder).path == best
    assert load_latest(folder).header.epoch == 5
    save(folder, 6, best=True)
    assert not best.exists()
    assert [load_latest(folder).header.epoch, load_best(folder).header.epoch] == [6, 6]
    assert len(kept(folder)) == 2


def test_steps_inside_an_epoch_are_in_order(tmp_path: Path) -> None:
    for epoch, step in ((9, 20), (10, 0), (9, 100), (10, 3)):
        save(tmp_path, epoch, step=step, keep=10)
    assert load_latest(tmp_path).header.position == (10, 3)
    save(tmp_path, 10, step=4, keep=2)
    assert [name[-11:-5] for name in kept(tmp_path)] == ["000003", "000004"]


def test_a_damaged_one_is_passed_over_and_named(tmp_path: Path) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    newest.write_bytes(newest.read_bytes()[:-5])
    loaded = load_latest(tmp_path)
    assert loaded.header.epoch == 1
    assert loaded.state["w"].tolist() == [1, 0]
    assert len(loaded.damaged) == 1
    assert newest.name in loaded.damaged[0]


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_one_never_pushes_out_those_that_are_intact(tmp_path: Path, keep: int) -> None:
    save(tmp_path, 5, best=True, keep=keep)
    newest = save(tmp_path, 9, best=True, keep=keep + 1)
    newest.write_bytes(newest.read_bytes()[:-5])
    assert load_latest(tmp_path).header.epoch == 5
    for epoch in (6, 7):
        save(tmp_path, epoch, keep=keep)
        assert load_latest(tmp_path).header.epoch == epoch
        assert load_best(tmp_path).header.epoch == 5


def test_epochs_beyond_five_digits_are_in_order(tmp_path: Path) -> None:
    for epoch in (99_999, 100_000):
        save(tmp_path, epoch, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-100000-step-000000.ckpt"]


def test_none_left_is_an_error_with_every_reason(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="without --resume"):
        load_latest(tmp_path)
    only = save(tmp_path, 1)
    only.write_bytes(b"x")
    with pytest.raises(StoreError, match=f"(?s)no intact checkpoint.*{only.name}"):
        load_latest(tmp_path)
    with pytest.raises(StoreError, match="marked as the best"):
        load_best(tmp_path)


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".epoch-00001.part").write_bytes(b"half")
    save(tmp_path, 2)
    assert len(kept(tmp_path)) == 1


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="Choose another run folder"):
        save(tmp_path / "file" / "inner", 1)


def test_fitting_recipe_passes() -> None:
    check_fits(header(1), recipe=RECIPE, data_fingerprint="a" * 64, data="graph")


def test_another_recipe_is_refused_naming_keys_and_values() -> None:
    other = {"seed": 1, "model": {"hidden": 16, "kind": "gcn", "extra": True}, "training": {}}
    with pytest.raises(StoreError) as caught:
        check_fits(header(1), recipe=other, data_fingerprint="a" * 64, data="graph")
    message = str(caught.value)
    assert "seed was 0 and is 1; model.hidden was 8 and is 16; model.extra was absent and is True" in message
    assert "(and 1 more)" in message
    assert "recipe.toml" in message


def test_another_graph_is_refused() -> None:
    with pytest.raises(StoreError, match="another graph"):
        check_fits(header(1), recipe=RECIPE, data_fingerprint="b" * 64, data="graph")


def test_header_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        header(1).epoch = 2  # type: ignore[misc]


def test_local_minibatches_keep_their_number_of_ranks() -> None:
    check_world_size(header(1), 4, order="global")
    check_world_size(header(1), 2, order="local")
    with pytest.raises(StoreError, match=r"written by 2 ranks.*resume on 2 ranks"):
        check_world_size(header(1), 4, order="local")


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


def test_shards_without_a_checkpoint_are_cleared(tmp_path: Path) -> None:
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


def test_damaged_shards_make_a_checkpoint_damaged(tmp_path: Path) -> None:
    save_with_tables(tmp_path, 1, keep=2)
    newest = save_with_tables(tmp_path, 2, keep=2)
    loaded = load_latest(tmp_path, damaged_tables={newest: "a shard is damaged"})
    assert loaded.header.epoch == 1
    assert loaded.damaged == ("a shard is damaged",)
