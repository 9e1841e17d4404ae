"""windrow.launch.journal: what rank 0 leaves behind."""

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from windrow.comm.errors import StoreError
from windrow.launch import journal
from windrow.launch.epoch_cost import RankCost
from windrow.launch.epoch_record import EpochRecord, RankRecord, read_rank_records
from windrow.launch.journal import Journal
from windrow.launch.recommendation_recipe import RecommendationRecipe

Make = Callable[..., RecommendationRecipe]


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "write_plot", lambda *_, **__: None)


def record(epoch: int, validation: float | None) -> EpochRecord:
    return EpochRecord(
        epoch=epoch,
        step=epoch,
        loss=0.5,
        learning_rate=0.1,
        metric="log_loss",
        higher_is_better=False,
        validation=validation,
        test=validation,
        figures={"test auc": epoch / 10},
        seconds=2.0,
    )


def open_journal(recipe: RecommendationRecipe, folder: Path, *, finished_epochs: int = 0) -> Journal:
    return Journal(
        recipe,
        folder,
        resumed=finished_epochs > 0,
        finished_epochs=finished_epochs,
        shown_figures={"test auc": "AUC"},
        placement={"kind": "log", "finished": finished_epochs},
    )


def test_the_best_epoch_is_reported(tmp_path: Path, click_recipe: Make) -> None:
    with open_journal(click_recipe(tmp_path), tmp_path / "run") as notes:
        header, _, row = notes.append(record(1, 0.7), ())
        assert "AUC" in header
        assert "0.1000" in row
        for epoch, value in ((2, 0.3), (3, 0.4)):
            notes.append(record(epoch, value), ())
        result = notes.conclude()
    assert (result.best_epoch, result.validation, result.epochs, result.seconds) == (2, 0.3, 3, 6.0)
    assert result.figures == {"test auc": 0.2}
    assert len({result, result}) == 1
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["figures"] == {"test auc": 0.2}
    assert summary["run_folder"] == str(tmp_path / "run")


def test_a_resumed_run_forgets_epochs_that_are_run_again(tmp_path: Path, click_recipe: Make) -> None:
    with open_journal(click_recipe(tmp_path), tmp_path / "run") as notes:
        for epoch in (1, 2):
            notes.append(record(epoch, None), (RankCost(host="a"),) * epoch)
    with open_journal(click_recipe(tmp_path), tmp_path / "run", finished_epochs=1) as notes:
        result = notes.conclude()
    assert (result.epochs, result.best_epoch, result.validation) == (1, None, None)
    assert result.figures == {"test auc": 0.1}
    folder = tmp_path / "run"
    assert read_rank_records(folder / "ranks.jsonl") == [RankRecord(epoch=1, ranks=(RankCost(host="a"),))]
    # Plan and number of ranks may be others than before.
    assert json.loads((folder / "placement.json").read_text()) == {"kind": "log", "finished": 1}


def test_files_are_closed_where_one_cannot_be_read(tmp_path: Path, click_recipe: Make) -> None:
    with open_journal(click_recipe(tmp_path), tmp_path / "run") as notes:
        notes.append(record(1, None), ())
    (tmp_path / "run" / "ranks.jsonl").write_text("broken\n")
    with pytest.raises(StoreError, match=r"ranks\.jsonl, line 1"):
        open_journal(click_recipe(tmp_path), tmp_path / "run", finished_epochs=1)


@pytest.mark.parametrize("name", ["environment.json", "placement.json", "metrics.jsonl", "ranks.jsonl"])
def test_a_folder_that_cannot_be_written_to_is_named(
    tmp_path: Path, click_recipe: Make, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with open_journal(click_recipe(tmp_path), tmp_path / "run") as notes:
        notes.append(record(1, None), ())
    replace = Path.replace

    def full(source: Path, target: Path) -> Path:
        if target.name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StoreError, match=r"run folder .*run: No space left on device\. Make room"):
        open_journal(click_recipe(tmp_path), tmp_path / "run", finished_epochs=1)


def test_a_record_that_is_gone_is_named(tmp_path: Path, click_recipe: Make) -> None:
    with (
        open_journal(click_recipe(tmp_path), tmp_path / "run") as notes,
        pytest.raises(StoreError, match=r"metrics\.jsonl holds no epoch"),
    ):
        notes.conclude()
