"""Time variants in turn, in one process or on all ranks of a world together.

Variants take turns, so that a slow spell of the machine falls on all of them.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from windrow.comm.world import World
from windrow.launch.benchmark.measurement import Comparison, Measurement
from windrow.launch.benchmark.memory import peak_memory_bytes, reset_peak_memory

__all__ = ["Variant", "compare", "interleave"]


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
    described = {
        name: what if isinstance(what, Variant) else Variant(run=what) for name, what in variants.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in described}
    peaks = dict.fromkeys(described, 0)
    for turn, name in _rotation(list(described), warm_up + repeats):
        if turn < warm_up:
            _time_once(described[name], world)
            continue
        reset_peak_memory()
        seconds[name].append(_time_once(described[name], world))
        peaks[name] = max(peaks[name], peak_memory_bytes() or 0)
    if world is not None:
        peaks = {name: int(_largest(world, peak)) for name, peak in peaks.items()}
    measured = {
        name: Measurement(
            seconds=tuple(seconds[name]),
            bytes=what.bytes,
            rows=what.rows,
            peak_memory_bytes=peaks[name] or None,
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


def _rotation(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """The order of runs: each round has every name once and starts with another one; gives (round, name).

    round 0: a b c      round 1: b c a      round 2: c a b      round 3: a b c
    """
    for turn in range(rounds):
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            yield turn, name


def interleave(
    variants: Mapping[str, Callable[[], object]], *, repeats: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Seconds of every timed run in this process, per variant: entry i of each is of round i; else as `compare`."""
    if not variants:
        raise ValueError("expected at least one variant, got none")
    found = compare(variants, baseline=next(iter(variants)), repeats=repeats, warm_up=warm_up)
    return {name: list(measured.seconds) for name, measured in found.variants.items()}
