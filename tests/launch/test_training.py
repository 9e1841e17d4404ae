"""windrow.launch.training: whole runs on a small graph, resumed ones, and what is refused before a run starts."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.gnn.partitioning import partition_to_store
from windrow.gnn.pipeline import LoadedMinibatch
from windrow.launch.recipe import Recipe, make_recipe
from windrow.launch.training import train
from windrow.partition import PartitionStore
from windrow.partition import atomic_writes as atomic_file
from windrow.training import checkpoint
from windrow.training.checkpoint import load_checkpoint
from windrow.training.journal import read_rank_records, read_records
from windrow.training.trainer import Trainer

SETTINGS: dict[str, dict[str, Any]] = {
    "graph": {"path": "graph.npz"},
    "partition": {"num_parts": 1, "method": "random"},
    "model": {"hidden": 8, "num_layers": 2, "dropout": 0.3},
    "sampler": {"fanouts": [4, 3]},
    "training": {"epochs": 4, "batch_size": 32, "learning_rate": 0.01},
    "run": {"tensorboard": False, "threads": 1, "deadline_s": 60, "keep_checkpoints": 9},
}


class Killed(BaseException):
    """What stands in for a kill."""


def make(folder: Path, **changes: dict[str, Any]) -> Recipe:
    """The recipe of these tests, sections changed."""
    sections = {name: SETTINGS.get(name, {}) | changes.get(name, {}) for name in SETTINGS.keys() | changes.keys()}
    values = {"name": "tiny", "store": "store", **sections}
    return make_recipe(values, source="tiny.toml", base=folder)


def partition(recipe: Recipe) -> None:
    """Write the store of a recipe."""
    partition_to_store(recipe, overwrite=True)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, graph_file: Path) -> Path:
    """A folder with graph and store, made once."""
    folder = tmp_path_factory.mktemp("prepared")
    shutil.copy(graph_file, folder)
    partition(make(folder))
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may spoil."""
    return Path(shutil.copytree(prepared, tmp_path / "work"))


def kill_after(monkeypatch: pytest.MonkeyPatch, epochs: int) -> None:
    """Make training end, as if killed, in the epoch after so many."""
    whole = Trainer.train_epoch

    def train_epoch(trainer: Trainer, epoch: int, **options: Any) -> float:
        if epoch == epochs:
            trainer.train_step(epoch, 0)
            raise Killed
        return whole(trainer, epoch, **options)

    monkeypatch.setattr(Trainer, "train_epoch", train_epoch)


def killed_run(folder: Path, recipe: Recipe, *, after: int) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, after)
        with pytest.raises(Killed):
            train(recipe, run_folder=folder / "run")
    return folder / "run"


def assert_same(one: Any, other: Any) -> None:
    """Equal to the last bit."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


# ----------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.usefixtures("drawn_runs")
def test_a_run_leaves_everything_behind(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder / "run"
    result = train(make(folder, training={"epochs": 8}), run_folder=run)
    expected = {"recipe.toml", "environment.json", "placement.json", "metrics.jsonl", "ranks.jsonl"}
    expected |= {"checkpoints", "summary.json", "plot.png"}
    assert {entry.name for entry in run.iterdir()} == expected
    records = read_records(run / "metrics.jsonl")
    assert [(record.epoch, record.step) for record in records] == [(epoch, 4 * epoch) for epoch in range(1, 9)]
    assert {record.figures["share of local rows"] for record in records} == {1.0}
    ranks = read_rank_records(run / "ranks.jsonl")
    assert [record.epoch for record in ranks] == list(range(1, 9))
    assert [[rank.seconds for rank in each.ranks] for each in ranks] == [[one.seconds] for one in records]
    (held,) = json.loads((run / "placement.json").read_text())["ranks"]
    assert held["vertices"] == 240
    best = max(records, key=lambda record: record.validation or 0)
    assert (result.best_epoch, result.validation, result.test) == (best.epoch, best.validation, best.test)
    assert result.metric == "accuracy"
    assert result.test is not None
    assert result.test > 0.8, "the model learns"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["test"] == result.test
    assert summary["run_folder"] == str(run)
    assert load_checkpoint(run / "checkpoints", "best").header.epoch == result.best_epoch
    assert load_checkpoint(run / "checkpoints").header.position == (8, 0)
    assert "valid accuracy" in capsys.readouterr().out


def test_a_run_folder_is_found_where_none_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    recipe = make(folder, training={"epochs": 1})
    assert train(recipe).run_folder == Path("runs/tiny-1")
    assert train(recipe).run_folder == Path("runs/tiny-2")


def test_epochs_without_evaluation(folder: Path) -> None:
    recipe = make(folder, training={"epochs": 3}, evaluation={"every_epochs": 2})
    result = train(recipe, run_folder=folder / "run")
    measured = [record.validation is not None for record in read_records(folder / "run" / "metrics.jsonl")]
    assert measured == [False, True, True]
    assert result.best_epoch in (2, 3)


def test_early_stopping_stops(folder: Path) -> None:
    # Nothing is learnt at this rate, so validation never improves on the first epoch.
    recipe = make(folder, training={"epochs": 9, "learning_rate": 1e-12}, evaluation={"patience_epochs": 2})
    result = train(recipe, run_folder=folder / "run")
    assert (result.epochs, result.best_epoch) == (3, 1)
    assert load_checkpoint(folder / "run" / "checkpoints").header.epoch == 3
    again = train(recipe, resume=folder / "run")
    assert again.epochs == 3


def test_the_order_of_vertices_changes_no_answer(folder: Path) -> None:
    losses = []
    for order in ("vip", "original"):
        recipe = make(folder, partition={"order": order}, training={"epochs": 2})
        partition(recipe)
        assert PartitionStore.open(recipe.store).metadata["order"]["by"] == order
        train(recipe, run_folder=folder / order)
        losses.append([record.loss for record in read_records(folder / order / "metrics.jsonl")])
    # The same vertices in the same minibatches; only sums over the input rows may end in another last bit.
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


# --------------------------------------------------------------------------------------------------------------- resume


@pytest.mark.parametrize("after", [1, 3])
def test_a_resumed_run_ends_bit_for_bit_as_an_uninterrupted_one(folder: Path, after: int) -> None:
    recipe = make(folder)
    whole = train(recipe, run_folder=folder / "whole")
    resumed = train(recipe, resume=killed_run(folder, recipe, after=after))
    assert (resumed.best_epoch, resumed.validation, resumed.test) == (whole.best_epoch, whole.validation, whole.test)
    ends = [load_checkpoint(folder / name / "checkpoints") for name in ("run", "whole")]
    assert ends[0].header == ends[1].header
    assert_same(ends[0].state, ends[1].state)
    logs = [read_records(folder / name / "metrics.jsonl") for name in ("run", "whole")]
    assert [record.loss for record in logs[0]] == [record.loss for record in logs[1]]
    assert len(json.loads((folder / "run" / "environment.json").read_text())) == 2


def test_a_run_killed_inside_an_epoch_goes_on_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make(folder, run=SETTINGS["run"] | {"checkpoint_every_steps": 2})
    whole = train(recipe, run_folder=folder / "whole")
    real = Trainer._learn

    def learn(trainer: Trainer, loaded: LoadedMinibatch, epoch: int, step: int) -> float:
        if (loaded.task.epoch, loaded.task.step) == (1, 3):
            raise Killed
        return real(trainer, loaded, epoch, step)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_learn", learn)
        with pytest.raises(Killed):
            train(recipe, run_folder=folder / "run")
    assert load_checkpoint(folder / "run" / "checkpoints").header.position == (1, 2)
    assert train(recipe, resume=folder / "run").test == whole.test
    assert "resuming after epoch 1 and 2 steps" in capsys.readouterr().out
    ends = [load_checkpoint(folder / name / "checkpoints").state["trainer"] for name in ("run", "whole")]
    assert_same(*ends)
    logs = [read_records(folder / name / "metrics.jsonl") for name in ("run", "whole")]
    losses = [[record.loss for record in log] for log in logs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    # What was counted before the kill is not lost: the epoch's rows are those of an epoch in one piece.
    counts = [
        [[(rank.rows_local, rank.rows_cached, rank.rows_remote) for rank in record.ranks] for record in log]
        for log in (read_rank_records(folder / name / "ranks.jsonl") for name in ("run", "whole"))
    ]
    assert counts[0] == counts[1]
    assert len(counts[0]) == 4


def test_a_checkpoint_without_the_ranks_costs_is_resumed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints written before ranks were told apart hold sums alone."""
    real = checkpoint.save_checkpoint

    def save(folder: Path, header: Any, state: dict[str, Any], **options: Any) -> Path:
        return real(folder, header, {**state, "cost": {"seconds": 1.0, "rows_fetched": 3}}, **options)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_checkpoint", save)
        run = killed_run(folder, make(folder), after=1)
    (run / "ranks.jsonl").unlink()
    (run / "placement.json").unlink()
    assert train(make(folder), resume=run).epochs == 4
    assert [record.epoch for record in read_rank_records(run / "ranks.jsonl")] == [2, 3, 4]
    assert (run / "placement.json").exists()


def test_a_job_that_is_started_again_begins_or_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = make(folder, training={"epochs": 2}, run=SETTINGS["run"] | {"folder": str(folder / "run")})
    train(make(folder, training={"epochs": 1}), resume="auto", run_folder=folder / "run")
    assert "resuming" not in capsys.readouterr().out
    assert train(recipe, resume="auto").epochs == 2
    assert "resuming after epoch 1" in capsys.readouterr().out
    with pytest.raises(RecipeError, match="--resume auto needs the folder of the run"):
        train(make(folder), resume="auto")
    with pytest.raises(RecipeError, match="a run goes on in its own folder"):
        train(recipe, resume=folder / "run", run_folder=folder / "other")
    # Before the store is opened.
    (recipe.store / "manifest.json").unlink()
    with pytest.raises(StoreError, match="run is already in use"):
        train(recipe)


def test_a_finished_run_has_nothing_left_to_do(folder: Path) -> None:
    recipe = make(folder, training={"epochs": 2})
    first = train(recipe, run_folder=folder / "run")
    before = load_checkpoint(folder / "run" / "checkpoints")
    assert train(recipe, resume=folder / "run") == first
    assert_same(load_checkpoint(folder / "run" / "checkpoints").state, before.state)


def test_a_damaged_checkpoint_is_passed_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = make(folder)
    whole = train(recipe, run_folder=folder / "whole")
    run = killed_run(folder, recipe, after=3)
    latest = load_checkpoint(run / "checkpoints").path
    latest.write_bytes(latest.read_bytes()[:-9])
    assert train(recipe, resume=run).test == whole.test
    said = capsys.readouterr().out
    assert "skipped a damaged checkpoint" in said
    assert "resuming after epoch 2" in said


def test_another_recipe_is_refused(folder: Path) -> None:
    run = killed_run(folder, make(folder), after=1)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(StoreError, match=r"another recipe: training\.learning_rate was 0\.01 and is 0\.5"):
        train(make(folder, training={"learning_rate": 0.5}), resume=run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_another_graph_is_refused(folder: Path) -> None:
    run = killed_run(folder, make(folder), after=1)
    partition(make(folder, graph={"standardise": "standard"}))
    with pytest.raises(StoreError, match="another graph"):
        train(make(folder), resume=run)


# ----------------------------------------------------------------------------------------- refused before anything runs


def refused(folder: Path, error: type[Exception], words: str, **changes: dict[str, Any]) -> None:
    """Training is refused, and leaves no run folder."""
    with pytest.raises(error, match=words):
        train(make(folder, **changes), run_folder=folder / "run")
    assert not (folder / "run").exists()


def test_what_cannot_be_trained_on(folder: Path) -> None:
    refused(folder, RecipeError, "warmup_steps = 999", training={"schedule": {"warmup_steps": 999}})
    file = folder / "store" / "shared" / "indices.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(folder, StoreError, "shared/indices.npy")
    partition(make(folder, partition={"num_parts": 2}))
    refused(folder, StoreError, "holds 2 parts, but the run has 1 ranks")
    shutil.rmtree(folder / "store")
    refused(folder, StoreError, r"manifest.json is missing.*windrow partition")
    np.savez(folder / "graph.npz", edges=np.array([[0, 1], [1, 2]]))
    partition(make(folder))
    refused(folder, DataError, "has no features")


def test_a_run_folder_in_use(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "mine.txt").write_text("precious")
    with pytest.raises(StoreError, match="already in use"):
        train(make(folder), run_folder=folder / "run")
    assert [entry.name for entry in (folder / "run").iterdir()] == ["mine.txt"]


# ------------------------------------------------------------------------------------------------------------ full disk


def test_a_full_disk_leaves_the_last_good_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make(folder)
    whole = train(recipe, run_folder=folder / "whole")
    written: list[int] = []

    def fsync(descriptor: int) -> None:
        target = Path(f"/proc/self/fd/{descriptor}").readlink().name
        if target.endswith(".ckpt.part"):
            written.append(descriptor)
            if len(written) == 3:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(atomic_file.os, "fsync", fsync)
        with pytest.raises(StoreError, match=r"No space left on device. Earlier checkpoints are intact"):
            train(recipe, run_folder=folder / "run")
    checkpoints = folder / "run" / "checkpoints"
    assert load_checkpoint(checkpoints).header.epoch == 2
    assert not list(checkpoints.glob(".*"))
    assert train(recipe, resume=folder / "run").test == whole.test
