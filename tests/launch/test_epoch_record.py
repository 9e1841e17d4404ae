"""windrow.launch.epoch_record: lines of JSON and back, lines cut on resuming, TensorBoard, and the picture."""

import builtins
import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError, StoreError
from windrow.launch.epoch_cost import RankCost
from windrow.launch.epoch_record import (
    EpochLines,
    EpochRecord,
    MetricsBoard,
    RankRecord,
    best_record,
    read_rank_records,
    read_records,
    write_plot,
)

NUMBERS = st.floats(allow_nan=False)


def record(epoch: int, loss: float = 0.5) -> EpochRecord:
    evaluated = epoch % 2 == 1
    return EpochRecord(
        epoch=epoch,
        step=epoch,
        loss=loss,
        learning_rate=0.1,
        metric="accuracy",
        validation=0.5 + epoch / 100 if evaluated else None,
        test=0.4 if evaluated else None,
        figures={"test log loss": 0.25},
        seconds=1.0,
        stage_seconds={"sample": 0.5, "wait": 0.25 * evaluated},
    )


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
def test_round_trip(record: EpochRecord) -> None:
    line = record.to_json()
    assert "\n" not in line
    assert EpochRecord.from_json(line) == record


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
    records = [
        replace(record(epoch), higher_is_better=higher, validation=value)
        for epoch, value in enumerate(values, start=1)
    ]
    found = best_record(records)
    assert (found.epoch if found else None) == best


@pytest.mark.parametrize("line", ["", "{", '{"epoch": 1}', '{"epoch": 1, "colour": "red"}'])
def test_other_lines_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{record(1).to_json()}\n{line}\n{record(2).to_json()}\n")
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


def test_a_line_is_what_others_read() -> None:
    line = RankRecord(epoch=3, ranks=(RANK, RankCost(host="b"))).to_json()
    assert "\n" not in line
    assert json.loads(line)["epoch"] == 3
    first, second = json.loads(line)["ranks"]
    assert first == {
        "host": "a",
        "seconds": 1.5,
        "stage_seconds": {"sample": 0.25},
        "waiting_seconds": {"features: rows": 0.125},
        "bytes_sent": {"features: rows": [0, 1234]},
        "bytes_received": {"features: rows": [0, 980]},
        "bytes_reduced": 4096,
        "rows_local": 10,
        "rows_cached": 5,
        "rows_remote": 20,
        "peak_memory_bytes": 123,
        "peak_gpu_memory_bytes": 0,
    }
    assert second["host"] == "b"


def test_ranks_are_read_as_they_were_written(tmp_path: Path) -> None:
    records = [RankRecord(epoch=1, ranks=(RANK,)), RankRecord(epoch=2, ranks=())]
    path = tmp_path / "ranks.jsonl"
    path.write_text("".join(f"{record.to_json()}\n" for record in records) + '{"epoch": 3, "ra')
    assert read_rank_records(path) == records
    assert read_rank_records(tmp_path / "absent") == []


def test_a_line_of_an_older_version_has_no_cache() -> None:
    values = asdict(RANK)
    del values["rows_cached"]
    old = RankRecord.from_json(json.dumps({"epoch": 1, "ranks": [values]}))
    assert old.ranks[0] == replace(RANK, rows_cached=0)


@pytest.mark.parametrize(
    "line", ["[]", "3", "{", '{"epoch": 1}', '{"ranks": []}', '{"epoch": 1, "ranks": [{"hostess": "a"}]}']
)
def test_lines_that_are_none_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "ranks.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(StoreError, match=r"ranks\.jsonl, line 1"):
        read_rank_records(path)


# ---------------------------------------------------------------------------------------------------------------- files


@given(
    losses=st.lists(NUMBERS, max_size=6),
    finished=st.integers(0, 7),
    rest=st.text(alphabet='[{"1', max_size=5),
)
def test_what_is_run_again_is_forgotten(
    tmp_path_factory: pytest.TempPathFactory, losses: list[float], finished: int, rest: str
) -> None:
    path = tmp_path_factory.mktemp("lines") / "metrics.jsonl"
    assert read_records(path) == []
    records = [record(epoch, loss) for epoch, loss in enumerate(losses, start=1)]
    lines = EpochLines(path, EpochRecord)
    for number, each in enumerate(records, start=1):
        lines.append(each)
        assert read_records(path) == lines.records == records[:number]
    lines.close()
    with path.open("a") as file:
        file.write(rest)
    again = EpochLines(path, EpochRecord, finished_epochs=finished)
    assert again.records == records[:finished]
    again.append(record(finished + 1))
    again.close()
    assert read_records(path) == [*records[:finished], record(finished + 1)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_full_disk_is_told_with_the_cure(tmp_path: Path) -> None:
    lines = EpochLines(tmp_path / "metrics.jsonl", EpochRecord)
    lines._file.close()
    with Path("/dev/full").open("a", encoding="utf-8") as lines._file:
        with pytest.raises(StoreError, match=r"No space left.*go on with --resume"):
            lines.append(record(1))
        lines.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_the_same_figures(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = MetricsBoard(tmp_path)
    for epoch in (1, 2, 3):
        board.append(record(epoch, loss=epoch / 4))
    board.close()
    board = MetricsBoard(tmp_path, finished_epochs=2)
    board.append(replace(record(3, loss=0.125), test=None))
    board.close()
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss/train")] == [(1, 0.25), (2, 0.5), (3, 0.125)]
    assert [e.step for e in events.Scalars("accuracy/validation")] == [1, 3]
    assert [e.step for e in events.Scalars("accuracy/test")] == [1]
    assert [e.value for e in events.Scalars("figures/test_log_loss")] == [0.25, 0.25, 0.25]
    assert "seconds/sample" in events.Tags()["scalars"]


def test_missing_tensorboard_is_refused_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without_tensorboard(name: str, *rest: object) -> object:
        if "tensorboard" in name:
            raise ImportError(name)
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_tensorboard)
    with pytest.raises(RecipeError, match="install it, or set this to false"):
        MetricsBoard(tmp_path)


@pytest.mark.parametrize(
    ("count", "changes"),
    [
        (1, {"validation": None, "test": None}),
        (1, {}),
        (27, {}),
        (3, {"metric": "normalised_entropy", "higher_is_better": False, "validation": 0.0}),
    ],
)
def test_a_picture_is_written(tmp_path: Path, count: int, changes: dict[str, object]) -> None:
    path = tmp_path / "plot.png"
    records = [replace(record(epoch), **changes) for epoch in range(1, count + 1)]  # type: ignore[arg-type]
    write_plot(records, path, title="tolokers")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000
