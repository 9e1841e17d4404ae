"""Which features to hold once together: those that change together.

A group costs one inverse, 8 bytes for each sample, and what else a step does for each group, and holds as many rows as
there are distinct samples of all its features. Joining two groups saves what one costs, and costs what their features
hold in the rows that only the other one tells apart. So features begin alone, and as long as joining any two groups
lets a batch cost less, the pair that gains most is joined (greedy agglomeration). Rows are those that
`windrow.recsys.batches.deduplication.options` expects of a clustered batch, from the share d of steps within sessions
in which nothing of the group changes: chance repeats in other sessions say nothing about which features belong
together.
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.recsys.batches.deduplication.options import INVERSE_BYTES, WORTHWHILE_FACTOR
from windrow.recsys.batches.deduplication.survey import LogSurvey

__all__ = ["propose_groups", "row_bytes"]

ID_BYTES = 8
"""An int64; of each list its length or offset takes as much."""

VALUE_BYTES = 4
"""A float32 number of an embedding."""

Words = npt.NDArray[np.uint64]


class _Joined(NamedTuple):
    """A group: bytes of a row, how many samples repeat all of the one before, and a bit for each whether it does."""

    cost: float
    repeats: int
    marks: Words


def row_bytes(found: LogSurvey, dims: Mapping[str, int], *, sequences: Sequence[str] = ()) -> dict[str, float]:
    """Bytes that a batch holds, sends, looks up and brings home for a row of each feature.

    They are the length of its list; each id and the row of its table, of `dims` numbers; and a vector and its gradient:
    one of each where ids are pooled, else, in `sequences`, one for each id.
    """
    costs = {}
    for name, dim in dims.items():
        length, vector = found.mean_length(name), VALUE_BYTES * dim
        vectors = length if name in sequences else 1
        costs[name] = ID_BYTES + length * (ID_BYTES + vector) + vectors * 2 * vector
    return costs


def propose_groups(
    found: LogSurvey, costs: Mapping[str, float], *, least_factor: float = WORTHWHILE_FACTOR, group_bytes: float = 0.0
) -> tuple[tuple[str, ...], ...]:
    """Group features by what that saves in a clustered batch.

    Args:
        found: in the log.
        costs: bytes of a row of each feature to choose from, in the order of the result, such as `row_bytes`.
        least_factor: a feature whose DedupeFactor is not more is left out.
        group_bytes: what a group costs a batch besides its inverse: the more, the fewer groups.

    Returns:
        Groups, each with a larger saving than it costs, in the order of their first features.

    Cost:
        For each of at most F^2 pairs of features that repeat about as often n / 64 words, of n samples of the survey.
    """
    steps = found.num_samples - found.num_sessions
    group_cost = INVERSE_BYTES * found.batch_size + group_bytes
    # Rows that a batch has less for each sample in which nothing of a group changes, by the formula.
    rows_saved = found.batch_size * (1 - 1 / found.samples_per_session_in_batch) / max(1, steps)
    names = list(costs)
    groups: dict[tuple[int, ...], _Joined] = {}
    pairs: list[tuple[float, tuple[int, ...], tuple[int, ...]]] = []

    def gain(one: _Joined, other: _Joined, both: int) -> float:
        return group_cost - rows_saved * ((one.repeats - both) * one.cost + (other.repeats - both) * other.cost)

    def add(places: tuple[int, ...], marks: Words) -> None:
        new = _Joined(sum(costs[names[place]] for place in places), int(np.bitwise_count(marks).sum()), marks)
        for before, group in groups.items():
            if gain(group, new, min(group.repeats, new.repeats)) > 0:  # It gains no more.
                both = int(np.bitwise_count(group.marks & marks).sum())
                heappush(pairs, (-gain(group, new, both), before, places))
        groups[places] = new

    for place, name in enumerate(names):
        if found.predicted_factor([name]) > least_factor:
            marks = np.pad(found.repeated[name], (0, -len(found.repeated[name]) % 64))
            add((place,), np.packbits(marks).view(np.uint64))
    while pairs and pairs[0][0] < 0:
        _, one, other = heappop(pairs)
        if one in groups and other in groups:
            add(one + other, groups.pop(one).marks & groups.pop(other).marks)
    kept = sorted(sorted(places) for places, of in groups.items() if rows_saved * of.repeats * of.cost > group_cost)
    return tuple(tuple(names[place] for place in places) for places in kept)
