"""windrow.launch.journal: what rank 0 leaves behind, and shows: aligned rows, and a header now and then."""

import errno
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from windrow.comm.errors import StoreError
from windrow.launch import journal
from windrow.launch.epoch_cost import RankCost
from windrow.launch.epoch_record import EpochRecord, RankRecord, read_rank_records
from windrow.launch.journal import EpochTable, Journal
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


# --------------------------------------------------------------------------------------------------------------- table


def row_of(epoch: int, **changes: object) -> EpochRecord:
    values: dict[str, object] = {
        "epoch": epoch,
        "step": 10 * epoch,
        "loss": 0.5,
        "learning_rate": 0.01,
        "metric": "roc_auc",
        "validation": 0.8123,
        "test": 0.8,
        "seconds": 1.25,
        "stage_seconds": {"sample": 0.5, "fetch": 0.25},
        "rows_fetched": 12_345,
        "bytes_fetched": 1 << 20,
    }
    return EpochRecord(**(values | changes))  # type: ignore[arg-type]


def test_rows_stand_under_their_header() -> None:
    header, rule, row = EpochTable().lines(row_of(1))
    names = [
        "epoch",
        "loss",
        "val roc_auc",
        "test roc_auc",
        "total s",
        "sample",
        "fetch",
        "rows",
        "fetched",
    ]
    assert re.split(r" {2,}", header.strip()) == names
    assert set(rule) == {"-", " "}
    assert row.split() == ["1", "0.50000", "0.8123", "0.8000", "1.25", "0.50", "0.25", "12.3k", "1.0", "MiB"]
    assert len(header) == len(rule) == len(row)


def test_the_header_comes_again() -> None:
    table = EpochTable(repeat_header_every=3)
    counts = [len(table.lines(row_of(epoch))) for epoch in range(1, 8)]
    assert counts == [3, 1, 1, 3, 1, 1, 3]


def test_absent_figures_are_a_dash_and_later_stages_do_not_move_columns() -> None:
    table = EpochTable()
    first = table.lines(row_of(1))[-1]
    row = table.lines(row_of(2, validation=None, test=None, stage_seconds={"fetch": 0.5, "new": 9.0}))[0]
    assert row.split()[2:4] == ["-", "-"]
    assert row.split()[5:7] == ["0.00", "0.50"]
    assert len(row) == len(first)


def test_chosen_figures_get_columns() -> None:
    table = EpochTable(figures={"test normalised entropy": "test NE", "samples per second": "samples/s"})
    figures = {"test normalised entropy": 0.98765, "other": 1.0, "samples per second": 12_345.6}
    header, _, row = table.lines(row_of(1, figures=figures))
    assert re.split(r" {2,}", header.strip())[2:7] == [
        "val roc_auc",
        "test roc_auc",
        "test NE",
        "samples/s",
        "total s",
    ]
    assert row.split()[4:6] == ["0.9877", "12346"]
    assert table.lines(row_of(2))[0].split()[4:6] == ["-", "-"]
