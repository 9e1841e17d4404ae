"""windrow.training.journal: lines of JSON and back, cut on resuming; TensorBoard, picture, table, and run folder."""

import errno
import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import StoreError
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.training import journal
from windrow.training.epoch_cost import RankCost
from windrow.training.journal import (
    EpochRecord,
    EpochTable,
    Journal,
    RankRecord,
    best_record,
    read_rank_records,
    read_records,
    write_plot,
)

Make = Callable[..., RecommendationRecipe]


def record(epoch: int, **changes: Any) -> EpochRecord:
    values: dict[str, Any] = {
        "epoch": epoch,
        "step": 10 * epoch,
        "loss": 0.5,
        "learning_rate": 0.01,
        "metric": "roc_auc",
        "validation": 0.8123,
        "test": 0.8,
        "figures": {"test auc": epoch / 10},
        "seconds": 1.25,
        "stage_seconds": {"sample": 0.5, "fetch": 0.25},
        "rows_fetched": 12_345,
        "bytes_fetched": 1 << 20,
    }
    return EpochRecord(**(values | changes))


def open_journal(recipe: RecommendationRecipe, folder: Path, *, finished_epochs: int = 0) -> Journal:
    return Journal(
        recipe.name,
        recipe.settings(),
        folder,
        "resumed" if finished_epochs else "new",
        finished_epochs=finished_epochs,
        shown_figures={"test auc": "AUC"},
        placement={"kind": "log", "finished": finished_epochs},
    )


def test_the_best_epoch_is_reported(tmp_path: Path, click_recipe: Make) -> None:
    notes = open_journal(click_recipe(tmp_path), tmp_path / "run")
    header, _, row = notes.append(record(1, higher_is_better=False), ())
    assert "AUC" in header
    assert "0.1000" in row
    for epoch, value in ((2, 0.3), (3, 0.4)):
        notes.append(record(epoch, higher_is_better=False, validation=value), ())
    result = notes.conclude()
    assert (result.best_epoch, result.validation, result.epochs, result.seconds) == (2, 0.3, 3, 3.75)
    assert result.figures == {"test auc": 0.2}
    assert len({result, result}) == 1
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["figures"] == {"test auc": 0.2}
    assert summary["run_folder"] == str(tmp_path / "run")


def test_a_resumed_run_forgets_epochs_that_are_run_again(tmp_path: Path, click_recipe: Make) -> None:
    notes = open_journal(click_recipe(tmp_path), tmp_path / "run")
    for epoch in (1, 2):
        notes.append(record(epoch, validation=None), (RankCost(host="a"),) * epoch)
    notes = open_journal(click_recipe(tmp_path), tmp_path / "run", finished_epochs=1)
    result = notes.conclude()
    assert (result.epochs, result.best_epoch, result.validation) == (1, None, None)
    assert result.figures == {"test auc": 0.1}
    folder = tmp_path / "run"
    assert read_rank_records(folder / "ranks.jsonl") == [RankRecord(epoch=1, ranks=(RankCost(host="a"),))]
    # Plan and number of ranks may be others than before.
    assert json.loads((folder / "placement.json").read_text()) == {"kind": "log", "finished": 1}


def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, click_recipe: Make) -> None:
    notes = open_journal(click_recipe(tmp_path), tmp_path / "run")
    notes.append(record(1), ())
    (tmp_path / "run" / "ranks.jsonl").write_text("broken\n")
    with pytest.raises(StoreError, match=r"ranks\.jsonl, line 1"):
        open_journal(click_recipe(tmp_path), tmp_path / "run", finished_epochs=1)


@pytest.mark.parametrize("name", ["environment.json", "placement.json", "metrics.jsonl", "ranks.jsonl"])
def test_a_folder_that_cannot_be_written_to_is_named(
    tmp_path: Path, click_recipe: Make, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    notes = open_journal(click_recipe(tmp_path), tmp_path / "run")
    notes.append(record(1), ())
    replace = Path.replace

    def full(source: Path, target: Path) -> Path:
        if target.name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StoreError, match=r"run folder .*run: No space left on device\. Make room"):
        open_journal(click_recipe(tmp_path), tmp_path / "run", finished_epochs=1)


def test_a_record_that_is_gone_is_named(tmp_path: Path, click_recipe: Make) -> None:
    notes = open_journal(click_recipe(tmp_path), tmp_path / "run")
    with pytest.raises(StoreError, match=r"metrics\.jsonl holds no epoch"):
        notes.conclude()


# --------------------------------------------------------------------------------------------------------------- table


def test_rows_stand_under_their_header() -> None:
    header, rule, row = EpochTable().lines(record(1))
    names = ["epoch", "loss", "valid roc_auc", "test roc_auc", "total s", "sample", "fetch", "rows", "fetched"]
    assert re.split(r" {2,}", header.strip()) == names
    assert set(rule) == {"-", " "}
    assert row.split() == ["1", "0.50000", "0.8123", "0.8000", "1.25", "0.50", "0.25", "12.3k", "1.0", "MiB"]
    assert len(header) == len(rule) == len(row)


def test_the_header_comes_again() -> None:
    table = EpochTable()
    counts = [len(table.lines(record(epoch))) for epoch in range(1, 42)]
    assert [epoch for epoch, lines in enumerate(counts, start=1) if lines == 3] == [1, 21, 41]


def test_absent_figures_are_a_dash_and_later_stages_do_not_move_columns() -> None:
    table = EpochTable()
    first = table.lines(record(1))[-1]
    row = table.lines(record(2, validation=None, test=None, stage_seconds={"fetch": 0.5, "new": 9.0}))[0]
    assert row.split()[2:4] == ["-", "-"]
    assert row.split()[5:7] == ["0.00", "0.50"]
    assert len(row) == len(first)


def test_chosen_figures_get_columns() -> None:
    table = EpochTable(figures={"test normalised entropy": "test NE", "samples per second": "samples/s"})
    figures = {"test normalised entropy": 0.98765, "other": 1.0, "samples per second": 12_345.6}
    header, _, row = table.lines(record(1, figures=figures))
    assert re.split(r" {2,}", header.strip())[2:7] == [
        "valid roc_auc",
        "test roc_auc",
        "test NE",
        "samples/s",
        "total s",
    ]
    assert row.split()[4:6] == ["0.9877", "12346"]
    assert table.lines(record(2))[0].split()[4:6] == ["-", "-"]


def test_a_table_fits_its_width_and_sums_up_the_shortest_stages() -> None:
    stages = {"sample": 2.0, "wait for samples": 0.5, "fetch": 0.25, "forward": 1.0, "backward": 1.5, "evaluate": 3.0}
    wide = EpochTable(width=200).lines(record(1, stage_seconds=stages))
    assert "other" not in wide[0]
    for width in (len(wide[0]), 100, 60):
        table = EpochTable(figures={"test auc": "AUC"}, width=width)
        lines = [line for epoch in (1, 2) for line in table.lines(record(epoch, stage_seconds=stages))]
        assert {len(line) for line in lines} == {len(lines[0])}
        assert len(lines[0]) <= width
    assert re.split(r" {2,}", lines[0].strip()) == [
        "epoch",
        "loss",
        "valid roc_auc",
        "test roc_auc",
        "total s",
        "other",
    ]
    assert lines[-1].split()[-1] == "8.25"


def test_without_a_metric_there_are_no_columns_of_it() -> None:
    header = EpochTable().lines(record(1, metric="", validation=None, test=None))[0]
    assert header.split() == ["epoch", "loss", "total", "s", "sample", "fetch", "rows", "fetched"]


NUMBERS = st.floats(allow_nan=False)


@given(
    st.builds(
        EpochRecord,
        epoch=st.integers(1),
        step=st.integers(0),
        loss=NUMBERS,
        learning_rate=NUMBERS,
        metric=st.sampled_from(["roc_auc", "accuracy"]),
        higher_is_better=st.booleans(),
        figures=st.dictionaries(st.text(max_size=5), NUMBERS, max_size=3),
        validation=st.none() | NUMBERS,
        test=st.none() | NUMBERS,
        seconds=NUMBERS,
        stage_seconds=st.dictionaries(st.text(max_size=5), NUMBERS, max_size=3),
        rows_fetched=st.integers(0),
        bytes_fetched=st.integers(0),
    )
)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, record: EpochRecord) -> None:
    path = tmp_path_factory.mktemp("lines") / "metrics.jsonl"
    journal._append(path, record)
    assert path.read_text().count("\n") == 1
    assert read_records(path) == [record]


@pytest.mark.parametrize(
    ("higher", "values", "best"),
    [
        (True, [0.5, 0.7, None, 0.7, math.nan], 2),
        (False, [math.nan, 0.7, 0.5, None, 0.5], 3),
        (True, [math.nan, None], None),
        (True, [-0.5, 0.0], 2),
    ],
)
def test_the_best_epoch(higher: bool, values: list[float | None], best: int | None) -> None:
    found = best_record(
        [record(epoch, higher_is_better=higher, validation=value) for epoch, value in enumerate(values, start=1)]
    )
    assert (found.epoch if found else None) == best


@pytest.mark.parametrize("line", ["", "{", '{"epoch": 1}', '{"epoch": 1, "colour": "red"}'])
def test_other_lines_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = json.dumps(asdict(record(1)))
    path.write_text(f"{whole}\n{line}\n{whole}\n")
    with pytest.raises(StoreError, match=r"metrics\.jsonl, line 2.*Remove that line"):
        read_records(path)


# ---------------------------------------------------------------------------------------------------------------- ranks

RANK = RankCost(
    host="a",
    seconds=1.5,
    stage_seconds={"sample": 0.25},
    waiting_seconds={"features: rows": 0.125},
    bytes_sent={"features: rows": [0, 1234]},
    bytes_received={"features: rows": [0, 980]},
    bytes_reduced=4096,
    rows_local=10,
    rows_cached=5,
    rows_remote=20,
    peak_memory_bytes=123,
)


def test_ranks_are_read_as_they_were_written(tmp_path: Path) -> None:
    records = [RankRecord(epoch=1, ranks=(RANK, RankCost(host="b"))), RankRecord(epoch=2, ranks=())]
    path = tmp_path / "ranks.jsonl"
    for each in records:
        journal._append(path, each)
    assert json.loads(path.read_text().splitlines()[0]) == asdict(records[0]) | {
        "ranks": [asdict(rank) for rank in records[0].ranks]
    }
    assert read_rank_records(path) == records
    assert read_rank_records(tmp_path / "absent") == []


def test_a_line_of_an_older_version_has_no_cache(tmp_path: Path) -> None:
    values = asdict(RANK)
    del values["rows_cached"]
    path = tmp_path / "ranks.jsonl"
    path.write_text(json.dumps({"epoch": 1, "ranks": [values, values]}) + "\n")
    assert read_rank_records(path)[0].ranks[0] == replace(RANK, rows_cached=0)


@pytest.mark.parametrize(
    "line", ["[]", "3", "{", '{"epoch": 1}', '{"ranks": []}', '{"epoch": 1, "ranks": [{"hostess": "a"}]}']
)
def test_lines_that_are_none_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "ranks.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(StoreError, match=r"ranks\.jsonl, line 1"):
        read_rank_records(path)


# ---------------------------------------------------------------------------------------------------------------- files


@given(losses=st.lists(NUMBERS, max_size=6), finished=st.integers(0, 7), rest=st.text(alphabet='[{"1', max_size=5))
def test_what_is_run_again_is_forgotten(
    tmp_path_factory: pytest.TempPathFactory, losses: list[float], finished: int, rest: str
) -> None:
    path = tmp_path_factory.mktemp("lines") / "metrics.jsonl"
    assert read_records(path) == []
    records = [record(epoch, loss=loss) for epoch, loss in enumerate(losses, start=1)]
    for number, each in enumerate(records, start=1):
        journal._append(path, each)
        assert read_records(path) == records[:number]
    with path.open("a") as file:
        file.write(rest)
    assert journal._cut(path, EpochRecord, finished) == records[:finished]
    journal._append(path, record(finished + 1))
    assert read_records(path) == [*records[:finished], record(finished + 1)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_full_disk_is_told_with_the_cure(tmp_path: Path, click_recipe: Make) -> None:
    notes = open_journal(click_recipe(tmp_path), tmp_path / "run")
    notes.folder.metrics_file = Path("/dev/full")
    with pytest.raises(StoreError, match=r"No space left.*go on with --resume"):
        notes.append(record(1), ())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("count", "changes"),
    [(1, {"validation": None, "test": None}), (27, {}), (3, {"higher_is_better": False, "validation": 0.0})],
)
def test_a_picture_is_written(tmp_path: Path, count: int, changes: dict[str, object]) -> None:
    path = tmp_path / "plot.png"
    records = [record(epoch, **({"test": 0.4 if epoch % 2 else None} | changes)) for epoch in range(1, count + 1)]
    write_plot(records, path, title="tolokers")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000
