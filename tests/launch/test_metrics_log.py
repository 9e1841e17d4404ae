"""windrow.launch.epoch_record: lines appended, lines cut on resuming, TensorBoard beside them."""

import builtins
from pathlib import Path

import pytest

from windrow.comm.errors import RecipeError, StoreError
from windrow.launch.epoch_record import EpochRecord, MetricsLog, read_records


def record(epoch: int, loss: float = 0.5) -> EpochRecord:
    return EpochRecord(
        epoch=epoch,
        step=epoch,
        loss=loss,
        learning_rate=0.1,
        metric="accuracy",
        validation=0.5 if epoch % 2 else None,
        figures={"test log loss": 0.25},
        seconds=1.0,
        stage_seconds={"sample": 0.5},
    )


def test_records_are_on_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with MetricsLog(path) as log:
        log.append(record(1))
        assert read_records(path) == [record(1)]
        log.append(record(2))
        assert log.records == (record(1), record(2))
    assert read_records(path) == [record(1), record(2)]


def test_resuming_drops_what_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with MetricsLog(path) as log:
        for epoch in range(1, 6):
            log.append(record(epoch))
    with path.open("a") as file:
        file.write('{"epoch": 6, "st')
    with MetricsLog(path, finished_epochs=3) as log:
        assert len(log.records) == 3
        log.append(record(4, loss=0.25))
    assert [r.epoch for r in read_records(path)] == [1, 2, 3, 4]
    assert read_records(path)[-1].loss == 0.25


def test_a_new_run_starts_empty(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    MetricsLog(path).close()
    assert read_records(path) == []
    assert read_records(tmp_path / "absent") == []


def test_a_broken_line_inside_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f"{record(1).to_json()}\nbroken\n{record(2).to_json()}\n")
    with pytest.raises(StoreError, match=r"m\.jsonl, line 2"):
        read_records(path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_the_same_figures(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with MetricsLog(tmp_path / "m.jsonl", tensorboard_folder=tmp_path / "tb") as log:
        for epoch in (1, 2, 3):
            log.append(record(epoch, loss=epoch / 4))
    with MetricsLog(tmp_path / "m.jsonl", tensorboard_folder=tmp_path / "tb", finished_epochs=2) as log:
        log.append(record(3, loss=0.125))
    events = accumulator.EventAccumulator(str(tmp_path / "tb")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss/train")] == [(1, 0.25), (2, 0.5), (3, 0.125)]
    assert [e.step for e in events.Scalars("accuracy/validation")] == [1, 3]
    assert [e.value for e in events.Scalars("figures/test_log_loss")] == [0.25, 0.25, 0.25]
    assert "seconds/sample" in events.Tags()["scalars"]
    assert "accuracy/test" not in events.Tags()["scalars"]


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
        MetricsLog(tmp_path / "m.jsonl", tensorboard_folder=tmp_path / "tb")
