"""windrow.launch.shared_checkpoint: the right checkpoint, on every rank, or none."""

from pathlib import Path
from typing import Any

import pytest
import torch

from windrow.comm.errors import StoreError
from windrow.comm.loopback import Loopback
from windrow.comm.world import World
from windrow.launch.checkpoint import CheckpointHeader, begin_checkpoint, save_checkpoint
from windrow.launch.recipe import Recipe, make_recipe
from windrow.launch.shared_checkpoint import WhichCheckpoint, load_weights


def make(**changes: dict[str, Any]) -> Recipe:
    values = {"name": "r", "store": "s", "graph": {"path": "g.npz"}, **changes}
    return make_recipe(values, source="r.toml", base=Path("/"))


def save(folder: Path, epoch: int, *, best: bool) -> Path:
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
        save(tmp_path, epoch, best=epoch < 3)
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
    latest = save(folder, 4, best=False)
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
