"""What was measured: samples of variants beside a baseline, and their statistics.

Noisy seconds come to a median, a ninth decile, and a ratio to the baseline with an interval.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import numpy as np

__all__ = ["Comparison", "Measurement", "Ratio", "mean_and_standard_error", "median", "ratio"]

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


def median(samples: Sequence[float]) -> float:
    """The middle of some samples; with an even number, the mean of the two in the middle."""
    return float(np.median(samples))


def mean_and_standard_error(samples: Sequence[float]) -> tuple[float, float]:
    """The mean of two samples or more, and the standard error of that mean."""
    return fmean(samples), stdev(samples) / math.sqrt(len(samples))


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
        raise ValueError(
            f"expected as many samples as baseline samples, got {len(samples)} and {len(baseline)}"
        )
    ratios = np.asarray(baseline, dtype=np.float64) / np.asarray(samples, dtype=np.float64)
    draws = np.random.Generator(np.random.PCG64(seed)).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[draws], axis=1), [2.5, 97.5])
    return Ratio(median=float(np.median(ratios)), low=float(low), high=float(high))


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """All samples of one variant."""

    seconds: tuple[float, ...]
    """Of every timed run, in the order of the rounds; on several ranks those of the slowest rank."""
    bytes: int | None = None
    """That one run moves or reads, over all ranks; None where it means nothing."""
    rows: int | None = None
    """That one run moves or reads, over all ranks; None where it means nothing."""
    peak_memory_bytes: int | None = None
    """Largest resident set of the process while this variant ran, on several ranks that of the largest rank.
    It includes what the process holds for other variants; see `windrow.launch.benchmark.memory`."""

    def __post_init__(self) -> None:
        if not self.seconds:
            raise ValueError("a measurement needs at least one sample")
        wrong = [second for second in self.seconds if not (math.isfinite(second) and second > 0)]
        if wrong:
            raise ValueError(f"seconds must be positive and finite, got {wrong[0]}")
        for name in ("bytes", "rows", "peak_memory_bytes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} must not be negative, got {value}")

    @property
    def median_s(self) -> float:
        """Median of the samples."""
        return median(self.seconds)

    @property
    def p90_s(self) -> float:
        """What nine of ten samples stay below, interpolated linearly between neighbours."""
        return float(np.percentile(self.seconds, 90))


@dataclass(frozen=True, kw_only=True, slots=True)
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
            raise ValueError(
                f"the baseline {self.baseline!r} is none of the variants: {', '.join(self.variants)}"
            )
        counts = {name: len(measured.seconds) for name, measured in self.variants.items()}
        if len(set(counts.values())) > 1:
            raise ValueError(f"variants must have as many samples as each other, got {counts}")

    def ratio(self, variant: str) -> Ratio:
        """How many times faster a variant is than the baseline: above 1 it is faster."""
        return ratio(self.variants[variant].seconds, self.variants[self.baseline].seconds)

    def advantage(self, variant: str, over: str) -> Ratio:
        """How many times faster one variant is than another, whichever is the baseline."""
        return ratio(self.variants[variant].seconds, self.variants[over].seconds)

    def rival(self, variant: str) -> str:
        """Name of the variant that one is ahead of by the least: the baseline where several are the competition."""
        others = [name for name in self.variants if name != variant]
        return min(others, key=lambda name: self.advantage(variant, name).median)

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
        """One row for each variant, as `windrow.launch.terminal.table` takes them."""
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
            if any(each.bytes is not None for each in self.variants.values()):
                row["MB"] = "" if measured.bytes is None else measured.bytes / 1e6
                row["MB/s"] = "" if measured.bytes is None else measured.bytes / measured.median_s / 1e6
            if any(each.rows is not None for each in self.variants.values()):
                row["rows"] = "" if measured.rows is None else measured.rows
                row["rows/s"] = "" if measured.rows is None else measured.rows / measured.median_s
            if any(each.peak_memory_bytes is not None for each in self.variants.values()):
                peak = measured.peak_memory_bytes
                row["peak MiB"] = "" if peak is None else round(peak / 2**20)
            found.append(row)
        return found
