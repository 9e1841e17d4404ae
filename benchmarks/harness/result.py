"""What a benchmark found, where, when and with what: samples of variants beside a baseline; and its file of JSON.

A file is written whole or not at all, and checked when it is read::

    {"schema": 1, "benchmark": "exchange", "form": "short", "date": ..., "command": ..., "commit": ...,
     "hardware": ..., "packages": {...}, "figures": {...}, "aims": {"raw": {"text": ..., "met": true}},
     "comparisons": {"rows of 512 bytes": {"baseline": "raw Alltoallv", "per": "run", "variants": {
         "raw Alltoallv": {"seconds": [...], "bytes": ..., "rows": ..., "peak_memory_bytes": ...,
                           "derived": {"median_s": ..., "p90_s": ..., "ratio": [median, low, high]}}}}},
     "tables": {"title": {"columns": [...], "rows": [[...]]}},
     "matrices": {"title": {"unit": "bytes", "values": [[...]]}}}
"""

import json
import math
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pydantic.dataclasses
from pydantic import Field

from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.options import NonNegativeInt, PositiveFloat, checked_dataclass
from windrow.launch.settings import parse_settings, settings_to_dict
from windrow.partition.atomic_writes import write_atomically

__all__ = [
    "SCHEMA",
    "Aim",
    "BenchmarkResult",
    "Comparison",
    "Findings",
    "Form",
    "Matrix",
    "Measurement",
    "Ratio",
    "Table",
    "check_writable",
    "comparison_from_json",
    "comparison_to_json",
    "ratio",
    "read_result",
    "result_file_name",
    "result_to_json",
    "write_result",
]

RESAMPLES = 2000
"""Bootstrap resamples: the ends of a 95 % interval then move by about one percent of its width."""


@dataclass(frozen=True)
class Ratio:
    """A ratio of times with its 95 % bootstrap interval; above 1 the variant is faster than the baseline."""

    median: float
    """Median over the rounds of baseline / variant."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def ratio(samples: Sequence[float], baseline: Sequence[float], *, seed: int = 0) -> Ratio:
    """How many times faster a variant is than its baseline; entry i of both was timed in the same round.

    Returns:
        The median over rounds of baseline / variant, with the 2.5 % and 97.5 % percentiles of that median under
        resampling of the rounds, always the same ones (percentile bootstrap; Efron, The Annals of Statistics 7, 1979).
        The interval never leaves the range of the rounds' own ratios, which misses the true median in 2 ** (1 - n) of
        all cases: of fewer than 6 rounds it is too narrow to be one of 95 % (of 5 it is one of 94 % at most).

    Raises:
        ValueError: there are no samples, or not as many of both.
    """
    if len(samples) != len(baseline) or not samples:
        raise ValueError(f"expected as many samples as baseline samples, got {len(samples)} and {len(baseline)}")
    ratios = np.asarray(baseline, dtype=np.float64) / np.asarray(samples, dtype=np.float64)
    draws = np.random.Generator(np.random.PCG64(seed)).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[draws], axis=1), [2.5, 97.5])
    return Ratio(median=float(np.median(ratios)), low=float(low), high=float(high))


@checked_dataclass
class Measurement:
    """All samples of one variant."""

    seconds: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]
    """Of every timed run, in the order of the rounds; on several ranks those of the slowest rank."""
    bytes: NonNegativeInt | None = None
    """That one run moves or reads, over all ranks; None where it means nothing."""
    rows: NonNegativeInt | None = None
    """That one run moves or reads, over all ranks; None where it means nothing."""
    peak_memory_bytes: NonNegativeInt | None = None
    """Largest resident set of the process while this variant ran, on several ranks that of the largest rank.
    It includes what the process holds for other variants."""

    @property
    def median_s(self) -> float:
        """Median of the samples."""
        return float(np.median(self.seconds))

    @property
    def p90_s(self) -> float:
        """What nine of ten samples stay below, interpolated linearly between neighbours."""
        return float(np.percentile(self.seconds, 90))


@checked_dataclass
class Comparison:
    """Variants that were timed in turn, in one setting."""

    baseline: str
    """Name of the variant that the others are compared with."""
    variants: Mapping[str, Measurement]
    """Name to measurement; sample i of each is of the same round."""
    per: str = "run"
    """What the seconds are of: "run", or for example "edge" where each run was divided by what it did."""

    def __post_init__(self) -> None:
        if self.baseline not in self.variants:
            raise ValueError(f"the baseline {self.baseline!r} is none of the variants: {', '.join(self.variants)}")
        counts = {name: len(measured.seconds) for name, measured in self.variants.items()}
        if len(set(counts.values())) > 1:
            raise ValueError(f"variants must have as many samples as each other, got {counts}")

    def ratio(self, variant: str, over: str | None = None) -> Ratio:
        """How many times faster a variant is than another one, the baseline by default: above 1 it is faster."""
        return ratio(self.variants[variant].seconds, self.variants[over or self.baseline].seconds)

    def rival(self, variant: str, *, besides: Collection[str] = ()) -> str:
        """Name of the variant that one is ahead of by the least: the baseline where several are the competition.

        `besides`: what is no competition.
        """
        others = [name for name in self.variants if name not in (variant, *besides)]
        return min(others, key=lambda name: self.ratio(variant, name).median)

    def against(self, baseline: str) -> "Comparison":
        """The same samples, compared with another of the variants."""
        return replace(self, baseline=baseline)

    def divided(self, amounts: Mapping[str, Sequence[float]], per: str) -> "Comparison":
        """Seconds per unit of work, where runs do more or less of it by chance.

        Args:
            amounts: for each variant what each of its runs did, as many as there are samples.
            per: what was counted, for example "edge".
        """
        variants = {
            name: replace(
                measured,
                seconds=tuple(s / n for s, n in zip(measured.seconds, amounts[name], strict=True)),
                bytes=None,
                rows=None,
            )
            for name, measured in self.variants.items()
        }
        return replace(self, variants=variants, per=per)

    def rows(self) -> list[dict[str, object]]:
        """One row for each variant, as `windrow.training.terminal.table` takes them."""
        known = {
            name
            for measured in self.variants.values()
            for name in ("bytes", "rows", "peak_memory_bytes")
            if getattr(measured, name) is not None
        }
        found: list[dict[str, object]] = []
        for name, measured in self.variants.items():
            row: dict[str, object] = {
                "variant": name,
                "median s": measured.median_s,
                "P90 s": measured.p90_s,
                "faster than baseline": "baseline" if name == self.baseline else str(self.ratio(name)),
            }
            if self.per != "run":
                row[f"{self.per}s/s"] = 1 / measured.median_s
            megabytes = None if measured.bytes is None else measured.bytes / 1e6
            for kind, title, amount in (("bytes", "MB", megabytes), ("rows", "rows", measured.rows)):
                if kind in known:
                    row[title] = "" if amount is None else amount
                    row[f"{title}/s"] = "" if amount is None else amount / measured.median_s
            if "peak_memory_bytes" in known:
                peak = measured.peak_memory_bytes
                row["peak MiB"] = "" if peak is None else round(peak / 2**20)
            found.append(row)
        return found


Form = Literal["short", "full"]


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class Aim:
    """One aim of a benchmark."""

    text: str
    """The aim as it was stated, for example "sampler >= 3x per thread"."""
    met: pydantic.StrictBool
    """Whether the figures reach it."""


@checked_dataclass
class Table:
    """Rows of words and numbers, for people."""

    columns: tuple[str, ...]
    """Header; a number's unit is in it."""
    rows: tuple[tuple[str | int | float | bool, ...], ...]
    """As many entries as columns in each."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"row {row} has {len(row)} entries, but there are {len(self.columns)} columns")

    @staticmethod
    def from_rows(rows: Sequence[Mapping[str, object]]) -> "Table":
        """Make one of dictionaries with the same keys, which become the header; else than finite numbers is text."""
        columns = tuple(rows[0]) if rows else ()
        return Table(columns=columns, rows=tuple(tuple(_cell(row[name]) for name in columns) for row in rows))

    def to_rows(self) -> list[dict[str, object]]:
        """The inverse of `from_rows`, as `windrow.training.terminal.table` takes them."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@checked_dataclass
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


@checked_dataclass
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

    @property
    def met(self) -> bool:
        """Whether every aim is met."""
        return all(aim.met for aim in self.aims.values())

    @staticmethod
    def joined(parts: "Sequence[Findings]") -> "Findings":
        """Those of all parts of a benchmark, whose keys differ."""
        found: dict[str, dict[str, Any]] = {one.name: {} for one in fields(Findings)}
        for part in parts:
            for name, of_all in found.items():
                of_all.update(getattr(part, name))
        return Findings(**found)


@checked_dataclass
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
    part: str = ""
    """What ``--only`` named; empty: all parts."""

    @property
    def title(self) -> str:
        """Benchmark, part and form, as in "adaqp tolokers (short)"."""
        name = f"{self.benchmark} {self.part}" if self.part else self.benchmark
        return f"{name} (short)" if self.form == "short" else name

    @property
    def file_name(self) -> str:
        """Name of the file that keeps it, in a folder of results."""
        return result_file_name(self.benchmark, self.part, short=self.form == "short")

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


def result_file_name(benchmark: str, part: str, *, short: bool) -> str:
    """Name of the file that keeps a result: a short run never replaces a full one, nor a part the whole."""
    return "-".join(filter(None, [benchmark, part, "short" if short else ""])) + ".json"


def _cell(value: object) -> str | int | float | bool:
    finite = not isinstance(value, float) or math.isfinite(value)
    return value if isinstance(value, str | int | float) and finite else str(value)


SCHEMA = 1
"""Version of the file's form: raised when an old reader would misunderstand a new file."""

DERIVED = "derived"
"""Key of what follows from the samples: written for people and other programs, dropped on reading."""

CANNOT_WRITE = "cannot write the result {path}: {error}. Name another place with --save."

Parsed = TypeVar("Parsed")


def comparison_to_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison as a dictionary that JSON can hold."""
    values = settings_to_dict(comparison)
    for name, measured in comparison.variants.items():
        values["variants"][name] = {
            key: value for key, value in values["variants"][name].items() if getattr(measured, key) is not None
        }
        derived: dict[str, Any] = {"median_s": measured.median_s, "p90_s": measured.p90_s}
        if name != comparison.baseline:
            found = comparison.ratio(name)
            derived["ratio"] = [found.median, found.low, found.high]
        values["variants"][name][DERIVED] = derived
    return values


def comparison_from_json(values: Mapping[str, Any]) -> Comparison:
    """The inverse of `comparison_to_json`.

    Raises:
        StoreError: an unknown key, or a value of the wrong type.
    """
    return _parse(Comparison, json.loads(json.dumps(values), object_hook=_without_derived), "comparison")


def result_to_json(result: BenchmarkResult) -> dict[str, Any]:
    """A result as a dictionary that JSON can hold: what its file contains."""
    values = settings_to_dict(result)
    values["comparisons"] = {name: comparison_to_json(one) for name, one in result.comparisons.items()}
    provenance = ("benchmark", "form", "date", "command", "commit", "hardware", "packages")
    ordered = {key: values.pop(key) for key in provenance}
    return {"schema": SCHEMA, **ordered, **values}


def check_writable(path: Path) -> None:
    """Make the folder of a result to come, and see whether files can be made in it.

    Raises:
        StoreError: they cannot, or there is a folder of this name.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise StoreError(CANNOT_WRITE.format(path=path, error=error)) from error
    if path.is_dir():
        raise StoreError(CANNOT_WRITE.format(path=path, error="it is a folder"))


def write_result(result: BenchmarkResult, path: Path) -> None:
    """Write a result, whole or not at all, over what was there; folders are made as needed.

    Raises:
        StoreError: the file cannot be written.
    """
    text = _layout(result_to_json(result)) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise StoreError(CANNOT_WRITE.format(path=path, error=error)) from error


def read_result(path: Path) -> BenchmarkResult:
    """Read what `write_result` wrote, and check it.

    Raises:
        StoreError: it is not there, no JSON, or of another form.
    """
    try:
        values = json.loads(path.read_text("utf-8"), object_hook=_without_derived)
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is not the result of a benchmark: {error}. Run the benchmark again.") from error
    if not isinstance(values, dict) or values.pop("schema", None) != SCHEMA:
        raise StoreError(f'{path} is not a result of this version ("schema" must be {SCHEMA}): run the benchmark again')
    return _parse(BenchmarkResult, values, str(path))


def _parse(kind: type[Parsed], values: Mapping[str, Any], source: str) -> Parsed:
    try:
        return parse_settings(kind, values, source=source, base=Path())
    except RecipeError as error:
        raise StoreError(f"{error}. Run the benchmark again.") from error


def _without_derived(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != DERIVED}


def _layout(value: Any, indent: str = "") -> str:
    """JSON with a line for each entry of a dictionary, and lists of samples on one line each."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, allow_nan=False)
    inner = indent + " "
    lines = [f"{inner}{json.dumps(key)}: {_layout(each, inner)}" for key, each in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
