"""Time variants in turn, in one process or on all ranks of a world together.

Variants take turns, so that a slow spell of the machine falls on all of them.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import torch

from benchmarks.harness.memory import peak_memory_bytes, reset_peak_memory
from benchmarks.harness.result import Comparison, Measurement
from windrow.comm.world import World

__all__ = ["Variant", "compare", "mean_and_standard_error", "waited_for"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """Something to time."""

    run: Callable[[], object]
    """One run; what it returns is thrown away. On several ranks it must be collective in the same way on each."""
    before: Callable[[], object] | None = None
    """What has to be done before each run and is not timed."""
    bytes: int | None = None
    """That one run moves or reads, over all ranks; None where it means nothing."""
    rows: int | None = None
    """That one run moves or reads, over all ranks; None where it means nothing."""


def compare(
    variants: Mapping[str, Variant | Callable[[], object]],
    *,
    baseline: str,
    repeats: int,
    warm_up: int = 1,
    world: World | None = None,
) -> Comparison:
    """Time variants in turn and keep every sample.

    Each round runs every variant once and starts with another one, so that neither a slow spell of the machine
    nor a place in the order falls on one variant alone. Collective where a world is given: every rank calls it
    with the same names; before each run the ranks meet, and the slowest of them counts.

    Args:
        variants: name to what is timed; a bare function is a `Variant` without bytes and rows.
        baseline: name of the variant that the others are compared with.
        repeats: timed rounds.
        warm_up: rounds before them that are not kept (compilation, caches, connections).
        world: the ranks; None: this process alone.

    Returns:
        All samples; the same on every rank.

    Raises:
        ValueError: there is nothing to time, or the baseline is none of the variants.
    """
    if repeats < 1 or baseline not in variants:
        raise ValueError(
            f"expected at least one repeat and a baseline among {', '.join(variants) or 'no variants'}, "
            f"got {repeats} and {baseline!r}"
        )
    described = {name: what if isinstance(what, Variant) else Variant(run=what) for name, what in variants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in described}
    peaks = dict.fromkeys(described, 0)
    names = deque(described)
    for turn in range(warm_up + repeats):
        for name in names:
            if turn < warm_up:
                _time_once(described[name], world)
                continue
            reset_peak_memory()
            seconds[name].append(_time_once(described[name], world))
            peaks[name] = max(peaks[name], peak_memory_bytes() or 0)
        names.rotate(-1)
    if world is not None:
        peaks = {name: int(_largest(world, peak)) for name, peak in peaks.items()}
    measured = {
        name: Measurement(
            seconds=tuple(seconds[name]), bytes=what.bytes, rows=what.rows, peak_memory_bytes=peaks[name] or None
        )
        for name, what in described.items()
    }
    return Comparison(baseline=baseline, variants=measured)


def _time_once(variant: Variant, world: World | None) -> float:
    if variant.before is not None:
        variant.before()
    if world is not None:
        world.barrier(stage="benchmark")
    start = time.perf_counter()
    variant.run()
    seconds = time.perf_counter() - start
    return seconds if world is None else _largest(world, seconds)


def _largest(world: World, value: float) -> float:
    """Over all ranks; whole numbers below 2 ** 53 stay exact."""
    total = torch.tensor(value, dtype=torch.float64)
    world.all_reduce(total, stage="benchmark", op="max")
    return float(total)


def waited_for(run: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The same until the device has done it: a GPU only gets its work."""
    if device.type == "cpu":
        return run

    def whole() -> None:
        run()
        torch.cuda.synchronize(device)

    return whole


def mean_and_standard_error(samples: Sequence[float]) -> tuple[float, float]:
    """The mean of two samples or more, and the standard error of that mean."""
    return fmean(samples), stdev(samples) / math.sqrt(len(samples))
