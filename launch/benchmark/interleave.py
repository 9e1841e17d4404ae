"""The order of timed runs: variants take turns, so that a slow spell of the machine falls on all of them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["interleave", "rotation"]


def rotation(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """The order of runs: each round has every name once and starts with another one.

        round 0: a b c      round 1: b c a      round 2: c a b      round 3: a b c

    Args:
        names: of the variants.
        rounds: how often each of them runs.

    Yields:
        Number of the round, from 0, and name.
    """
    for turn in range(rounds):
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            yield turn, name


def interleave(
    variants: Mapping[str, Callable[[], object]], *, repeats: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Time several variants in turn, in this process; `windrow.launch.benchmark.compare` does more.

    Args:
        variants: name to a function without arguments.
        repeats: timed rounds.
        warm_up: rounds before them that are not kept (compilation, caches).

    Returns:
        Seconds of every timed run, per variant, in the order of the rounds: entry i of each is of round i.

    Raises:
        ValueError: there is nothing to time.
    """
    if repeats < 1 or not variants:
        raise ValueError(f"expected at least one variant and one repeat, got {len(variants)} and {repeats}")
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for turn, name in rotation(list(variants), warm_up + repeats):
        start = time.perf_counter()
        variants[name]()
        seconds = time.perf_counter() - start
        if turn >= warm_up:
            samples[name].append(seconds)
    return samples
