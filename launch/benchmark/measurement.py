"""What was measured: the samples of one variant, and variants side by side with a baseline among them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from windrow.launch.benchmark.statistics import Ratio, median, percentile_90, ratio

__all__ = ["Comparison", "Measurement"]


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
        """What nine of ten samples stay below."""
        return percentile_90(self.seconds)


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

        Returns:
            Each sample divided by its amount; bytes and rows of a run mean nothing then.
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
        """One row for each variant, as `windrow.launch.text_table.table` takes them."""
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
