"""Which features to hold once together: those that change together.

A group costs one inverse, 8 bytes for each sample, and holds as many rows as there are distinct samples of all its
features. Joining two groups saves an inverse, and costs what their features hold in the rows that only the other one
tells apart. So features begin alone, and as long as joining any two groups lets a batch cost less, the pair that gains
most is joined (greedy agglomeration). Rows are those that `windrow.recsys.batches.deduplication.options` expects of a
clustered batch, from the share d of steps within sessions in which nothing of the group changes: chance repeats in
other sessions say nothing about which features belong together.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations

from windrow.recsys.batches.deduplication.options import INVERSE_BYTES, WORTHWHILE_FACTOR
from windrow.recsys.batches.deduplication.survey import LogSurvey

__all__ = ["propose_groups", "row_bytes"]

ID_BYTES = 8
"""An int64; of each list its length or offset takes as much."""

VALUE_BYTES = 4
"""A float32 number of an embedding."""

Group = tuple[str, ...]


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
    found: LogSurvey, costs: Mapping[str, float], *, least_factor: float = WORTHWHILE_FACTOR
) -> tuple[Group, ...]:
    """Group features by what that saves in a clustered batch.

    Args:
        found: in the log.
        costs: bytes of a row of each feature to choose from, in the order of the result, such as `row_bytes`.
        least_factor: a feature whose DedupeFactor is not more is left out.

    Returns:
        Groups, each with a larger saving than it costs, in the order of their first features.

    Cost:
        For each of at most F^2 pairs of features a pass over the samples of the survey.
    """
    inverse = INVERSE_BYTES * found.batch_size

    @cache
    def cost(group: Group) -> float:
        return inverse + found.predicted_rows(group) * sum(costs[name] for name in group)

    def gain(pair: tuple[Group, Group]) -> float:
        return cost(pair[0]) + cost(pair[1]) - cost(pair[0] + pair[1])

    groups: list[Group] = [(name,) for name in costs if found.predicted_factor([name]) > least_factor]
    while len(groups) > 1:
        best = max(combinations(groups, 2), key=gain)
        if gain(best) <= 0:
            break
        groups = [group for group in groups if group not in best] + [best[0] + best[1]]
    order = list(costs)
    kept = [
        tuple(sorted(group, key=order.index))
        for group in groups
        if cost(group) < found.batch_size * sum(costs[name] for name in group)
    ]
    return tuple(sorted(kept, key=lambda group: order.index(group[0])))
