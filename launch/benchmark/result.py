"""What a benchmark found, and where, when and with what."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from windrow.launch.benchmark.measurement import Comparison

__all__ = ["Aim", "BenchmarkResult", "Findings", "Form", "Matrix", "Table"]

Form = Literal["short", "full"]


@dataclass(frozen=True)
class Aim:
    """One aim of a benchmark."""

    text: str
    """The aim as it was stated, for example "sampler >= 3x per thread"."""
    met: bool
    """Whether the figures reach it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of words and numbers, for people."""

    columns: tuple[str, ...]
    """Header; a number's unit is in it."""
    rows: tuple[tuple[str | int | float | bool, ...], ...]
    """As many entries as columns in each."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"row {row} has {len(row)} entries, but there are {len(self.columns)} columns"
                )
            if any(isinstance(cell, float) and not math.isfinite(cell) for cell in row):
                raise ValueError(f"row {row} has a number that is not finite: say in words what it means")

    @staticmethod
    def from_rows(rows: Sequence[Mapping[str, object]]) -> "Table":
        """Make one of dictionaries with the same keys, which become the header; else than finite numbers is text."""
        columns = tuple(rows[0]) if rows else ()
        return Table(columns=columns, rows=tuple(tuple(_cell(row[name]) for name in columns) for row in rows))

    def to_rows(self) -> list[dict[str, object]]:
        """The inverse of `from_rows`, as `windrow.launch.text_table.table` takes them."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """Numbers between things, such as bytes from rank to rank."""

    unit: str
    """Of every number, for example "bytes"."""
    values: tuple[tuple[float, ...], ...]
    """[from, to]; rows are equally long."""

    def __post_init__(self) -> None:
        widths = {len(row) for row in self.values}
        if len(widths) > 1:
            raise ValueError(f"rows of a matrix must be equally long, got lengths {sorted(widths)}")
        wrong = [value for row in self.values for value in row if not math.isfinite(value)]
        if wrong:
            raise ValueError(f"numbers of a matrix must be finite, got {wrong[0]}")


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a benchmark measured."""

    figures: Mapping[str, float]
    """Numbers, each with its unit at the end of its key ("epoch_seconds", "cut_over_best_ratio")."""
    aims: Mapping[str, Aim]
    """Short name to aim."""
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    """Setting ("power_law, 2 threads") to the variants that were timed in it."""
    tables: Mapping[str, Table] = field(default_factory=dict)
    """Title to rows that are no comparison of times."""
    matrices: Mapping[str, Matrix] = field(default_factory=dict)
    """Title to numbers between things."""

    def __post_init__(self) -> None:
        for name, value in self.figures.items():
            if not math.isfinite(value):
                raise ValueError(f"figure {name!r} must be a finite number, got {value}")

    @property
    def met(self) -> bool:
        """Whether every aim is met."""
        return all(aim.met for aim in self.aims.values())


@dataclass(frozen=True, kw_only=True)
class BenchmarkResult(Findings):
    """What a benchmark measured, and where, when and with what."""

    benchmark: str
    """Name of its file, without ".py"."""
    form: Form
    """ "short" for ``--short``."""
    date: str
    """When it ended, UTC, as in "2026-11-21T20:50:48Z"."""
    command: str
    """What started it."""
    commit: str
    """Of the source, with "-modified" where files differed from it."""
    hardware: str
    """The machine in one line."""
    packages: Mapping[str, str]
    """Versions of Python and of libraries."""

    @property
    def file_name(self) -> str:
        """Name of the file that keeps it, in a folder of results: a short run never replaces a full one."""
        return f"{self.benchmark}-short.json" if self.form == "short" else f"{self.benchmark}.json"

    def closing_line(self) -> str:
        """The last line of a benchmark's output: one line of JSON."""
        closing = {
            "benchmark": self.benchmark,
            "figures": {key: float(value) for key, value in self.figures.items()},
            "aims": {key: aim.text for key, aim in self.aims.items()},
            "met": self.met,
            "commit": self.commit,
            "hardware": self.hardware,
        }
        return json.dumps(closing)


def _cell(value: object) -> str | int | float | bool:
    finite = not isinstance(value, float) or math.isfinite(value)
    return value if isinstance(value, str | int | float) and finite else str(value)
