"""The table that a run prints: one row at the end of each epoch, the header again now and then."""

from collections.abc import Mapping, Sequence

from windrow.launch.epoch_record import EpochRecord
from windrow.launch.formatting import byte_size, count

__all__ = ["EpochTable", "format_row"]

WIDEST_EPOCH = 5
NUMBER_WIDTH = 9
ABSENT = "-"

SHORT_NAMES = {"normalised_entropy": "NE"}
"""Of metrics whose names are too long for a column."""
LARGEST_WITH_DECIMALS = 100


class EpochTable:
    """Formats records as rows of one table.

    The columns are fixed by the first record: epoch, loss, validation and test metric, chosen figures, seconds in
    all and per stage, rows and bytes fetched.

    Args:
        figures: those of a record's figures that get a column, with its header.
        repeat_header_every: rows between two headers.
    """

    def __init__(self, *, figures: Mapping[str, str] | None = None, repeat_header_every: int = 20) -> None:
        self._figures = dict(figures or {})
        self._repeat_header_every = repeat_header_every
        self._rows = 0
        self._stages: tuple[str, ...] = ()
        self._widths: list[int] = []

    def lines(self, record: EpochRecord) -> list[str]:
        """The lines to print for one epoch: the row, after a header where one is due."""
        if self._rows == 0:
            self._stages = tuple(record.stage_seconds)
        header = self._header(record.metric)
        self._widths = [max(len(name), width) for name, width in zip(header, self._minimum(), strict=True)]
        lines = []
        if self._rows % self._repeat_header_every == 0:
            lines = [
                format_row(header, self._widths),
                format_row(["-" * width for width in self._widths], self._widths),
            ]
        self._rows += 1
        return [*lines, format_row(self._cells(record), self._widths)]

    def _header(self, metric: str) -> list[str]:
        name = SHORT_NAMES.get(metric, metric)
        metrics = [f"val {name}", f"test {name}", *self._figures.values()]
        return ["epoch", "loss", *metrics, "total s", *self._stages, "rows", "fetched"]

    def _minimum(self) -> list[int]:
        figures, stages = [8 for _ in self._figures], [5 for _ in self._stages]
        return [WIDEST_EPOCH, 7, 7, 7, *figures, 7, *stages, 6, NUMBER_WIDTH]

    def _cells(self, record: EpochRecord) -> list[str]:
        return [
            str(record.epoch),
            f"{record.loss:.5f}",
            _metric(record.validation),
            _metric(record.test),
            *[_metric(record.figures.get(name)) for name in self._figures],
            f"{record.seconds:.2f}",
            *[f"{record.stage_seconds.get(stage, 0.0):.2f}" for stage in self._stages],
            count(record.rows_fetched),
            byte_size(record.bytes_fetched),
        ]


def format_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Cells aligned to the right in columns of the given widths, two spaces apart."""
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def _metric(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:.4f}" if abs(value) < LARGEST_WITH_DECIMALS else f"{value:.0f}"
