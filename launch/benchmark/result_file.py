"""A benchmark's result as a file of JSON: whole or not at all, and checked when it is read.

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from windrow.comm.errors import RecipeError, StoreError
from windrow.launch.benchmark.measurement import Comparison
from windrow.launch.benchmark.result import BenchmarkResult
from windrow.launch.settings import parse_settings, settings_to_dict
from windrow.partition.atomic_file import write_atomically

__all__ = [
    "SCHEMA",
    "check_writable",
    "comparison_from_json",
    "comparison_to_json",
    "read_result",
    "result_to_json",
    "write_result",
]

SCHEMA = 1
"""Version of the file's form: raised when an old reader would misunderstand a new file."""

DERIVED = "derived"
"""Key of what follows from the samples: written for people and other programs, checked and dropped on reading."""

ROUNDING = 1e-9
"""Relative: how far a median that was written may be from that of the samples."""

CANNOT_WRITE = "cannot write the result {path}: {error}. Name another place with --save."

Parsed = TypeVar("Parsed")


def comparison_to_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison as a dictionary that JSON can hold."""
    values = settings_to_dict(comparison)
    for name, measured in comparison.variants.items():
        values["variants"][name] = {
            key: value
            for key, value in values["variants"][name].items()
            if getattr(measured, key) is not None
        }
        derived: dict[str, Any] = {"median_s": measured.median_s, "p90_s": measured.p90_s}
        if name != comparison.baseline:
            found = comparison.ratio(name)
            derived["ratio"] = [found.median, found.low, found.high]
        values["variants"][name][DERIVED] = derived
    return values


def comparison_from_json(values: Mapping[str, Any], *, source: str = "comparison") -> Comparison:
    """The inverse of `comparison_to_json`.

    Args:
        values: what it returned.
        source: where they come from, for messages.

    Returns:
        An equal comparison.

    Raises:
        StoreError: an unknown key, a value of the wrong type, or medians that are not those of the samples.
    """
    comparison = _parse(Comparison, _without_derived(values), source)
    _check_derived(comparison, values, source)
    return comparison


def result_to_json(result: BenchmarkResult) -> dict[str, Any]:
    """A result as a dictionary that JSON can hold: what its file contains."""
    values = settings_to_dict(result)
    values["comparisons"] = {name: comparison_to_json(one) for name, one in result.comparisons.items()}
    provenance = ("benchmark", "form", "date", "command", "commit", "hardware", "packages")
    ordered = {key: values.pop(key) for key in provenance}
    return {"schema": SCHEMA, **ordered, **values}


def check_writable(path: Path) -> None:
    """Make the folder of a result to come, and see whether files can be made in it.

    Args:
        path: of the file.

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

    Args:
        result: what to write.
        path: of the file.

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
    """Read a result and check it.

    Args:
        path: what `write_result` wrote.

    Returns:
        An equal result.

    Raises:
        StoreError: it is not there, no JSON, of another form, or its medians are not those of its samples.
    """
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} is not the result of a benchmark: {error}. Run the benchmark again."
        ) from error
    if not isinstance(values, dict) or values.pop("schema", None) != SCHEMA:
        raise StoreError(
            f'{path} is not a result of this version ("schema" must be {SCHEMA}): run the benchmark again'
        )
    comparisons = values.get("comparisons", {})
    if not isinstance(comparisons, dict):
        raise StoreError(f"{path}: comparisons must be a dictionary. Run the benchmark again.")
    bare = {name: _without_derived(one) for name, one in comparisons.items()}
    result = _parse(BenchmarkResult, {**values, "comparisons": bare}, str(path))
    for name, comparison in result.comparisons.items():
        _check_derived(comparison, comparisons[name], f"{path}: {name}")
    return result


def _parse(kind: type[Parsed], values: Mapping[str, Any], source: str) -> Parsed:
    try:
        return parse_settings(kind, values, source=source, base=Path())
    except RecipeError as error:
        raise StoreError(f"{error}. Run the benchmark again.") from error


def _without_derived(comparison: Any) -> Any:
    """Take away what follows from the samples; what has another form is left for the parser to refuse."""
    if not isinstance(comparison, Mapping) or not isinstance(comparison.get("variants"), dict):
        return comparison
    variants = {
        name: {key: value for key, value in measured.items() if key != DERIVED}
        if isinstance(measured, dict)
        else measured
        for name, measured in comparison["variants"].items()
    }
    return {**comparison, "variants": variants}


def _check_derived(comparison: Comparison, values: Mapping[str, Any], source: str) -> None:
    """Refuse samples that are not those which the medians beside them come from."""
    for name, measured in comparison.variants.items():
        derived = values["variants"][name].get(DERIVED)
        written = derived.get("median_s") if isinstance(derived, dict) else None
        if not isinstance(written, float) or not math.isclose(written, measured.median_s, rel_tol=ROUNDING):
            raise StoreError(
                f"{source}: {name} says a median of {written} s, but that of its samples is {measured.median_s} s: "
                "the file was changed by hand. Run the benchmark again."
            )


def _layout(value: Any, indent: str = "") -> str:
    """JSON with a line for each entry of a dictionary, and lists of samples on one line each."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, allow_nan=False)
    inner = indent + " "
    lines = [f"{inner}{json.dumps(key)}: {_layout(each, inner)}" for key, each in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
