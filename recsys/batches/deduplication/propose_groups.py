"""Which features to hold once together: those that change together.

A group costs one inverse, 8 bytes for each sample, and holds as many rows as there are distinct samples of all its
features. Joining two groups saves an inverse, and costs what their features hold in the rows that only the other one
tells apart. So features begin alone, and as long as joining any two groups lets a batch cost less, the pair that gains
most is joined (greedy agglomeration). Rows are those that `windrow.recsys.batches.deduplication.options` expects of a
clustered batch, from the share d of steps within sessions in which nothing of the group changes: chance repeats in
other sessions say nothing about which features belong together. All in bytes:

    held and sent     8 for each id, 8 for each list (its length or offset)
    looked up         the row of its table for each id
    brought home      the pooled vector of each row, or the row of each id where ids are not pooled, forward, and as
                      much gradient back
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from windrow.recsys.batches.deduplication.options import INVERSE_BYTES, WORTHWHILE_FACTOR, distinct_rows
from windrow.recsys.batches.deduplication.survey import LogSurvey

__all__ = ["FeatureCost", "lookup_costs", "propose_groups"]

ID_BYTES = 8
"""An int64."""

LENGTH_BYTES = 8
"""An int64 for each list."""

VALUE_BYTES = 4
"""A float32 number of an embedding."""

Group = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FeatureCost:
    """What a feature costs.

    Attributes:
        id_bytes: for each id.
        row_bytes: for each row, whatever the number of its ids.
    """

    id_bytes: float
    row_bytes: float


def lookup_costs(dims: Mapping[str, int], *, sequences: Sequence[str] = ()) -> dict[str, FeatureCost]:
    """Costs of features.

    Args:
        dims: for each feature numbers in each embedding.
        sequences: those of the features whose ids are not pooled.

    Returns:
        The cost of each, as the module has it.
    """
    costs = {}
    for name, dim in dims.items():
        vector = VALUE_BYTES * dim
        pooled = FeatureCost(ID_BYTES + vector, LENGTH_BYTES + 2 * vector)
        unpooled = FeatureCost(ID_BYTES + vector + 2 * vector, LENGTH_BYTES)
        costs[name] = unpooled if name in sequences else pooled
    return costs


def propose_groups(
    found: LogSurvey, costs: Mapping[str, FeatureCost], *, least_factor: float = WORTHWHILE_FACTOR
) -> tuple[Group, ...]:
    """Group features by what that saves in a clustered batch.

    Args:
        found: in the log.
        costs: of the features to choose from, in the order of the result.
        least_factor: a feature whose DedupeFactor is not more is left out.

    Returns:
        Groups, each with a larger saving than it costs, in the order of their first features.

    Cost:
        For each of at most F^2 / 2 pairs of features one pass over a truth value for each sample, of which a feature
        keeps one; pairs of very different factors are ruled out without.
    """
    scales = _Scales(found, costs)
    groups: list[Group] = [(name,) for name in costs if found.predicted_factor([name]) > least_factor]
    gains = _gains(scales, groups, groups)
    while gains:
        one, other = max(gains, key=gains.__getitem__)
        joined = scales.join(one, other)
        groups = [group for group in groups if group not in (one, other)]
        gains = {pair: gain for pair, gain in gains.items() if not {one, other} & set(pair)}
        gains |= _gains(scales, [joined], groups)
        groups.append(joined)
    order = {name: place for place, name in enumerate(costs)}
    kept = [
        tuple(sorted(group, key=order.__getitem__)) for group in groups if scales.cost(group) < scales.plain_cost(group)
    ]
    return tuple(sorted(kept, key=lambda group: order[group[0]]))


def _gains(scales: "_Scales", some: Sequence[Group], others: Sequence[Group]) -> dict[tuple[Group, Group], float]:
    """Pairs that gain when they are joined, each once."""
    pairs = dict.fromkeys((min(one, other), max(one, other)) for one in some for other in others if one != other)
    return {pair: gain for pair in pairs if (gain := scales.gain(*pair)) > 0}


class _Scales:
    """What groups cost in an expected batch."""

    def __init__(self, found: LogSurvey, costs: Mapping[str, FeatureCost]) -> None:
        self._found = found
        self._row_bytes = {
            name: cost.row_bytes + cost.id_bytes * found.mean_length(name) for name, cost in costs.items()
        }
        self._unchanged: dict[Group, npt.NDArray[np.bool_]] = {
            (name,): found.sample.unchanged([name])[found.within] for name in costs
        }
        self._rows: dict[Group, float] = {}

    def plain_cost(self, features: Group) -> float:
        """Of features that are in no group."""
        return self._found.batch_size * sum(self._row_bytes[name] for name in features)

    def cost(self, group: Group) -> float:
        """Of a group, with its inverse."""
        return self._overhead() + self._expected_rows(group) * sum(self._row_bytes[name] for name in group)

    def gain(self, one: Group, other: Group) -> float:
        """What joining two groups saves; below 0 where it loses."""
        fewer, more = sorted((one, other), key=self._expected_rows)
        missing = self._expected_rows(more) - self._expected_rows(fewer)
        # A joined group has no fewer rows than either, and joining saves one inverse at most.
        most = self._overhead() - missing * sum(self._row_bytes[name] for name in fewer)
        if most <= 0:
            return most
        rows = self._rows_of(self._unchanged[one] & self._unchanged[other])
        together = self._overhead() + rows * sum(self._row_bytes[name] for name in (*one, *other))
        return self.cost(one) + self.cost(other) - together

    def join(self, one: Group, other: Group) -> Group:
        """Make one group of two, which are forgotten."""
        joined = (*one, *other)
        self._unchanged[joined] = self._unchanged.pop(one) & self._unchanged.pop(other)
        return joined

    def _overhead(self) -> float:
        return INVERSE_BYTES * self._found.batch_size

    def _expected_rows(self, group: Group) -> float:
        if group not in self._rows:
            self._rows[group] = self._rows_of(self._unchanged[group])
        return self._rows[group]

    def _rows_of(self, unchanged: npt.NDArray[np.bool_]) -> float:
        share = int(np.count_nonzero(unchanged)) / len(unchanged) if len(unchanged) else 0.0
        found = self._found
        return distinct_rows(found.batch_size, found.samples_per_session, share, pieces=found.pieces)
