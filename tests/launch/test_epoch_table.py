"""windrow.launch.journal: aligned rows, and a header now and then."""

import re

from windrow.launch.epoch_record import EpochRecord
from windrow.launch.journal import EpochTable, format_row


def record(epoch: int, **changes: object) -> EpochRecord:
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
    header, rule, row = EpochTable().lines(record(1))
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
    counts = [len(table.lines(record(epoch))) for epoch in range(1, 8)]
    assert counts == [3, 1, 1, 3, 1, 1, 3]


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
        "val roc_auc",
        "test roc_auc",
        "test NE",
        "samples/s",
        "total s",
    ]
    assert row.split()[4:6] == ["0.9877", "12346"]
    assert table.lines(record(2))[0].split()[4:6] == ["-", "-"]


def test_format_row() -> None:
    assert format_row(["a", "bb"], [3, 2]) == "  a  bb"
