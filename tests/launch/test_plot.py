"""windrow.launch.epoch_record: a picture comes out, whatever was measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from windrow.launch.epoch_record import EpochRecord, write_plot


def records(count: int, *, evaluate_every: int) -> list[EpochRecord]:
    return [
        EpochRecord(
            epoch=epoch,
            step=8 * epoch,
            loss=0.3 + 0.6 / epoch,
            learning_rate=0.003,
            metric="roc_auc",
            validation=0.84 - 0.3 / epoch - 0.0004 * epoch
            if evaluate_every and epoch % evaluate_every == 0
            else None,
            test=0.82 - 0.3 / epoch - 0.0004 * epoch
            if evaluate_every and epoch % evaluate_every == 0
            else None,
            seconds=1.6 + 0.2 * (epoch % 3),
            stage_seconds={
                "sample": 0.4,
                "fetch": 0.3,
                "forward": 0.5,
                "backward": 0.3,
                "wait": 0.1 * (epoch % 3),
            },
        )
        for epoch in range(1, count + 1)
    ]


@pytest.mark.parametrize(("count", "evaluate_every"), [(1, 0), (1, 1), (12, 1), (80, 2)])
def test_a_picture_is_written(tmp_path: Path, count: int, evaluate_every: int) -> None:
    path = tmp_path / "plot.png"
    write_plot(records(count, evaluate_every=evaluate_every), path, title="tolokers")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000


def test_a_metric_that_should_fall(tmp_path: Path) -> None:
    falling = [
        replace(record, metric="normalised_entropy", higher_is_better=False, validation=0.0)
        for record in records(3, evaluate_every=1)
    ]
    write_plot(falling, tmp_path / "plot.png", title="clicks")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
