"""A cost model that is known to the last digit, for what a search is compared with, and the best plan by it."""

from collections.abc import Sequence
from itertools import product

import numpy as np

from windrow.partition.tables.access import octave_bounds, zipf_shares
from windrow.partition.tables.cost_model import FEATURES, ComputeModel, inputs_of
from windrow.partition.tables.costs import TableCosts
from windrow.partition.tables.plan import Plan, Replica, Shard, TableSpec

__all__ = ["best_of_octaves", "hand_made_model", "one_hot_tables"]


def hand_made_model() -> ComputeModel:
    """Seconds that add up: so much for a set, a piece, a bag, a lookup, a number looked up, ..."""
    inputs = inputs_of("corrected", np.ones((1, len(FEATURES)))).shape[1]
    return ComputeModel(
        design="corrected",
        mean=np.zeros(inputs),
        deviation=np.ones(inputs),
        body=((np.zeros((inputs, 8)), np.zeros(8)), (np.zeros((8, 4)), np.zeros(4))),
        head=((np.zeros((4, 8)), np.zeros(8)), (np.zeros((8, 1)), np.zeros(1))),
        roof=np.array([5e-6, 5e-9, 1e-8, 3e-10, 2e-8, 5e-10, 2e-10, 5e-5]),
        origin={"processor": "a hand"},
    )


def one_hot_tables(chance: np.random.Generator, number: int, most_rows: int = 10**6) -> list[TableSpec]:
    """Tables of one id in each sample, a few rows of which are asked for most of the time."""
    rows = [int(chance.integers(2, most_rows)) for _ in range(number)]
    return [
        TableSpec(name=f"t{n}", rows=many, dim=16, features=(f"f{n}",), access=zipf_shares(many, 1.1))
        for n, many in enumerate(rows)
    ]


def best_of_octaves(costs: TableCosts) -> float:
    """The least cost of all plans that replicate some octaves of each table, and have the rest of it on one rank."""
    size, choices = costs.world_size, []
    for spec in costs.specs.values():
        stops = [0, *octave_bounds(spec.rows)[1:].tolist()]
        choices.append([(spec, stop, rank) for stop in stops for rank in range(size if stop < spec.rows else 1)])

    def plan(chosen: Sequence[tuple[TableSpec, int, int]]) -> Plan:
        cold = [Shard(s.name, rank, (stop, s.rows), (0, s.dim)) for s, stop, rank in chosen if stop < s.rows]
        return Plan(tuple(cold), tuple(Replica(s.name, (0, stop)) for s, stop, _ in chosen if stop))

    return min(costs.of_plan(plan(chosen)).total for chosen in product(*choices))
