"""Which features to hold once together: those that change together.

A group costs one inverse, 8 bytes for each sample, and holds as many rows as there are distinct samples of all its
features. Joining two groups saves an inverse, and costs what their features hold in the rows that only the other one
tells apart. So features begin alone, and as long as joining any two groups lets a batch cost less, the pair that gains
most is joined (greedy agglomeration). What counts is measured on batches; all in bytes:

    held and sent     8 for each id, 8 for each list (its length or offset)
    looked up         the row of its table for each id
    brought home      the pooled vector of each row, or the row of each id where ids are not pooled, forward, and as
                      much gradient back
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from windrow.recsys.deduplication.factor import INVERSE_BYTES, WORTHWHILE_FACTOR
from windrow.recsys.deduplication.surveyed_batches import SurveyedBatches

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


def lookup_costs(
    features: Sequence[str], *, dim: int, sequences: Sequence[str] = ()
) -> dict[str, FeatureCost]:
    """Costs of features that are looked up in tables of one width.

    Args:
        features: names.
        dim: numbers in each embedding.
        sequences: those of the features whose ids are not pooled.

    Returns:
        The cost of each, as the module has it.
    """
    vector = VALUE_BYTES * dim
    pooled = FeatureCost(ID_BYTES + vector, LENGTH_BYTES + 2 * vector)
    unpooled = FeatureCost(ID_BYTES + vector + 2 * vector, LENGTH_BYTES)
    return {name: unpooled if name in sequences else pooled for name in features}


def propose_groups(
    batches: SurveyedBatches, costs: Mapping[str, FeatureCost], *, least_factor: float = WORTHWHILE_FACTOR
) -> tuple[Group, ...]:
    """Group features by what that saves in some batches.

    Args:
        batches: what is measured; those of a clustered log, unless it will stay as it is.
        costs: of the features to choose from, in the order of the result.
        least_factor: a feature whose samples over distinct lists are not more is left out.

    Returns:
        Groups, each with a larger saving than its inverse costs, in the order of their first features.

    Cost:
        A sort of the samples for each pair of features that could gain, of which there are F^2 / 2 at most; pairs of
        very different factors are ruled out by their numbers of rows.
    """
    scales = _Scales(batches, costs)
    groups = [
        (name,)
        for name in costs
        if batches.factor([name]) > least_factor and scales.cost((name,)) < scales.plain_cost(name)
    ]
    gains = {
        (one, other): scales.gain(one, other)
        for place, one in enumerate(groups)
        for other in groups[place + 1 :]
    }
    while gains:
        (one, other), gain = max(gains.items(), key=lambda entry: entry[1])
        if gain <= 0:
            break
        joined = (*one, *other)
        groups = [group for group in groups if group not in (one, other)]
        gains = {pair: found for pair, found in gains.items() if not {one, other} & set(pair)}
        gains |= {(joined, group): scales.gain(joined, group) for group in groups}
        groups.append(joined)
    order = {name: place for place, name in enumerate(costs)}
    in_order = [tuple(sorted(group, key=order.__getitem__)) for group in groups]
    return tuple(sorted(in_order, key=lambda group: order[group[0]]))


class _Scales:
    """What groups cost in the mean batch."""

    def __init__(self, batches: SurveyedBatches, costs: Mapping[str, FeatureCost]) -> None:
        self._batches = batches
        self._costs = costs
        self._known: dict[Group, tuple[float, float]] = {}

    def plain_cost(self, feature: str) -> float:
        """Of a feature that is in no group."""
        cost = self._costs[feature]
        return cost.id_bytes * self._batches.num_ids(feature) + cost.row_bytes * self._batches.num_samples

    def cost(self, group: Group) -> float:
        """Of a group, with its inverse."""
        return self._measured(group)[1]

    def gain(self, one: Group, other: Group) -> float:
        """What joining two groups saves; below 0 where it loses."""
        apart = self.cost(one) + self.cost(other)
        # A joined group has no fewer rows than either, and joining saves one inverse at most.
        fewer, more = sorted((one, other), key=lambda group: self._measured(group)[0])
        missing = self._measured(more)[0] - self._measured(fewer)[0]
        inverse = INVERSE_BYTES * self._batches.num_samples
        least_loss = missing * sum(self._costs[name].row_bytes for name in fewer)
        if least_loss >= inverse:
            return inverse - least_loss
        return apart - self.cost((*one, *other))

    def _measured(self, group: Group) -> tuple[float, float]:
        """Rows and cost."""
        if group not in self._known:
            rows, ids = self._batches.distinct(group)
            cost = INVERSE_BYTES * self._batches.num_samples + sum(
                self._costs[name].id_bytes * ids[name] + self._costs[name].row_bytes * rows for name in group
            )
            self._known[group] = rows, cost
        return self._known[group]
