"""What every benchmark shares: interleaved timing, ratios with an interval, and the closing line of JSON.

Shared machines are noisy, so an absolute time means little: a benchmark times its variants in turn, in one
process tree, keeps every sample, and states the ratio of each variant to its baseline.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windrow.launch.environment import git_commit, hardware_line

__all__ = ["Aim", "Ratio", "conclude", "interleave", "ratio", "short_flag", "table"]

RESAMPLES = 2000
"""Bootstrap resamples: the ends of a 95 % interval then move by about one percent of its width."""


@dataclass(frozen=True)
class Aim:
    """One aim of a benchmark.

    Attributes:
        text: the aim as it was stated, for example "sampler >= 3x per thread".
        met: whether the figures reach it.
    """

    text: str
    met: bool


@dataclass(frozen=True)
class Ratio:
    """A ratio of times with its 95 % bootstrap interval; above 1 the variant is faster than the baseline."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def interleave(
    variants: Mapping[str, Callable[[], object]], *, repeats: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Time several variants in turn.

    Each round runs every variant once and starts with another one, so that neither a slow spell of the
    machine nor a place in the order falls on one variant alone.

    Args:
        variants: name to a function without arguments. On several ranks each variant must be collective in
            the same way on every rank and end in something that waits for the others.
        repeats: timed rounds.
        warm_up: rounds before them that are not kept (compilation, caches).

    Returns:
        Seconds of every timed run, per variant, in the order of the rounds: entry i of each is of round i.
    """
    if repeats < 1 or not variants:
        raise ValueError(f"expected at least one variant and one repeat, got {len(variants)} and {repeats}")
    names = list(variants)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warm_up + repeats):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            variants[name]()
            seconds = time.perf_counter() - start
            if turn >= warm_up:
                samples[name].append(seconds)
    return samples


def ratio(samples: Sequence[float], baseline: Sequence[float], *, seed: int = 0) -> Ratio:
    """How many times faster a variant is than its baseline.

    Args:
        samples: seconds of the variant, from `interleave`.
        baseline: seconds of the baseline, from the same call.
        seed: of the bootstrap, so that the same samples give the same interval.

    Returns:
        The median over rounds of baseline / variant, with the 2.5 % and 97.5 % percentiles of that median
        under resampling of the rounds (percentile bootstrap; Efron, The Annals of Statistics 7, 1979).
    """
    if len(samples) != len(baseline) or not samples:
        raise ValueError(
            f"expected as many samples as baseline samples, got {len(samples)} and {len(baseline)}"
        )
    ratios = np.asarray(baseline, dtype=np.float64) / np.asarray(samples, dtype=np.float64)
    draws = np.random.Generator(np.random.PCG64(seed)).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[draws], axis=1), [2.5, 97.5])
    return Ratio(median=float(np.median(ratios)), low=float(low), high=float(high))


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Lay out rows as text.

    Args:
        rows: dictionaries with the same keys, which become the header.

    Returns:
        Aligned columns: numbers to the right (floats with four significant digits), the rest to the left.
    """
    if not rows:
        return "(no rows)"
    header = list(rows[0])
    cells = [[_cell(row.get(name, "")) for name in header] for row in rows]
    widths = [max(len(line[i]) for line in [header, *cells]) for i in range(len(header))]
    numeric = [all(_is_number(row.get(name, 0)) for row in rows) for name in header]
    lines = [header, ["-" * width for width in widths], *cells]
    return "\n".join(
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def short_flag(description: str) -> argparse.ArgumentParser:
    """A parser with the one option that every benchmark has, ``--short``, and ``--save``.

    Args:
        description: what the benchmark measures.

    Returns:
        A parser; add the benchmark's own options before parsing.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--short", action="store_true", help="a smaller version: under 3 minutes on two cores"
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="also write the closing JSON to this file")
    return parser


def conclude(
    name: str, figures: Mapping[str, float], aims: Mapping[str, Aim], *, save_to: Path | None = None
) -> None:
    """Print the closing line of a benchmark: one line of JSON, the last of its output. Rank 0 alone calls it.

    Args:
        name: the benchmark's, its file's name without ".py".
        figures: numbers, each with its unit in its key ("epoch_seconds", "cut_over_best_ratio").
        aims: short name to aim. The benchmark's "met" is whether all are.
        save_to: also write the result there, indented.
    """
    result = {
        "benchmark": name,
        "figures": {key: float(value) for key, value in figures.items()},
        "aims": {key: aim.text for key, aim in aims.items()},
        "met": all(aim.met for aim in aims.values()),
        "commit": git_commit(),
        "hardware": hardware_line(),
    }
    if save_to is not None:
        save_to.parent.mkdir(parents=True, exist_ok=True)
        save_to.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result), flush=True)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
