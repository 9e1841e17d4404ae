"""windrow.partition.tables.search: plans fit, and are as good as trying all of them."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.harness.hand_made_costs import best_of_octaves, one_hot_tables
from windrow.comm.errors import PlanError
from windrow.comm.links import Links, TimeCurve
from windrow.partition.tables import Plan, Shard, TableSpec, check_plan
from windrow.partition.tables.access import steps_of, zipf_shares
from windrow.partition.tables.cost_model import ComputeModel
from windrow.partition.tables.costs import TableCosts, Workload
from windrow.partition.tables.planners import PLANNERS
from windrow.partition.tables.population import draw_tables, draw_tasks
from windrow.partition.tables.search import SearchOptions, joined_shards, search_plan

NO_LIMIT = float("inf")


def network(size: int) -> Links:
    """10 Gbit/s, 50 us."""
    matrices = {"latency_s": 5e-5, "seconds_per_byte": 8e-10, "hidden_s": 0.0}
    filled = {name: np.full((size, size), value) for name, value in matrices.items()}
    return Links(hosts=tuple(f"host{rank}" for rank in range(size)), **filled)


def drawn(chance: np.random.Generator, tables: int, max_dim: int = 64) -> list[TableSpec]:
    specs = []
    for place in range(tables):
        rows = int(10 ** chance.uniform(1, 6))
        specs.append(
            TableSpec(
                name=f"t{place}",
                rows=rows,
                dim=int(2 ** chance.integers(2, np.log2(max_dim) + 1)),
                features=(f"f{place}",),
                optimizer_bytes_per_row=4.0,
                lookups_per_sample=float(10 ** chance.uniform(0, 1.5)),
                access=zipf_shares(rows, float(chance.uniform(0.7, 1.3))),
            )
        )
    return specs


def best_of_whole_tables(costs: TableCosts) -> float:
    specs, size = list(costs.specs.values()), costs.world_size
    return min(
        costs.of_plan(
            Plan(tuple(Shard(s.name, rank, (0, s.rows), (0, s.dim)) for s, rank in zip(specs, ranks, strict=True)))
        ).total
        for ranks in product(range(size), repeat=len(specs))
        if ranks[0] == 0
    )


def test_as_good_as_all_plans_of_whole_tables(hand_made: ComputeModel) -> None:
    gaps = []
    for seed in range(12):
        chance = np.random.default_rng(seed)
        size = int(chance.integers(2, 4))
        costs = TableCosts(drawn(chance, int(chance.integers(2, 6))), size, Workload(links=network(size)), hand_made)
        _, found = search_plan(costs, NO_LIMIT)
        gaps.append(found.total / best_of_whole_tables(costs) - 1)
    assert np.mean(gaps) <= 0.01


@pytest.mark.parametrize("size", [2, 4])
def test_better_than_placing_whole_tables_by_one_number(hand_made: ComputeModel, size: int) -> None:
    specs = next(draw_tasks(draw_tables(100, 0), sizes=(20, 30), max_dim=128, most_bytes=1e12, seed=size))
    costs = TableCosts(specs, size, Workload(links=network(size)), hand_made)
    plan, found = search_plan(costs, NO_LIMIT)
    check_plan(plan, specs, size)
    assert costs.of_plan(plan).total == found.total
    for planner in ("greedy_size", "greedy_dim", "greedy_lookups", "row_wise"):
        others = costs.of_plan(PLANNERS[planner](specs, size, NO_LIMIT, Workload()))
        assert found.total < others.total, planner
    # The same again: nothing is left to chance.
    assert search_plan(costs, NO_LIMIT)[0] == plan


def test_a_larger_search_is_never_worse(hand_made: ComputeModel) -> None:
    small = SearchOptions(beam=1, rounds=1, candidates=3)
    for seed in range(4):
        specs = drawn(np.random.default_rng(seed), 8, max_dim=128)
        costs = TableCosts(specs, 3, Workload(links=network(3)), hand_made)
        steps = [[], []]
        totals = [
            search_plan(costs, NO_LIMIT, replace(small, **changes))[1].total
            for changes in ({}, {"rounds": 4}, {"rounds": 4, "beam": 3})
        ]
        search_plan(costs, NO_LIMIT, replace(small, rounds=4), lambda cuts, cost, into=steps[0]: into.append(cost))
        wide = replace(small, rounds=4, beam=3)
        search_plan(costs, NO_LIMIT, wide, lambda cuts, cost, into=steps[1]: into.append(cost))
        assert steps[0] == sorted(steps[0], reverse=True)
        # Before pieces are moved at the end, round by round.
        assert all(broad <= narrow for narrow, broad in zip(*steps, strict=False))
        assert totals[2] <= totals[0] * 1.001


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), size=st.integers(1, 4), room=st.floats(0.3, 1.5), by_rows=st.booleans())
def test_memory_is_never_exceeded_and_every_refusal_says_why(
    hand_made: ComputeModel, seed: int, size: int, room: float, by_rows: bool
) -> None:
    chance = np.random.default_rng(seed)
    specs = drawn(chance, int(chance.integers(1, 6)), max_dim=16)
    memory = int(room * sum(spec.num_bytes for spec in specs) / size) + 1
    costs = TableCosts(specs, size, Workload(links=network(size)), hand_made)
    options = SearchOptions(beam=1, rounds=2, candidates=2, caps=3)
    spare = max(4 * spec.dim + 4 for spec in specs) * size * len(specs)
    refused = None
    try:
        plan, _ = search_plan(costs, memory, options, by_rows=by_rows)
    except PlanError as error:
        refused = error
    else:
        check_plan(plan, specs, size, memory)
    # What fits with rows to spare is placed.
    assert refused is None or memory * size < sum(spec.num_bytes for spec in specs) + spare
    if refused is not None:
        assert refused.shortfall_bytes > 0
        assert all(said in str(refused) for said in (str(refused.shortfall_bytes), "rank"))
        assert any(repr(spec.name) in str(refused) for spec in specs)


def test_a_table_larger_than_a_rank_is_cut(hand_made: ComputeModel) -> None:
    specs = [
        TableSpec(name="large", rows=10_000, dim=4, features=("f",)),
        TableSpec(name="b", rows=9, dim=8, features=("b",)),
    ]
    memory = 100_000
    assert specs[1].num_bytes < memory < specs[0].num_bytes
    costs = TableCosts(specs, 3, Workload(links=network(3)), hand_made)
    plan, _ = search_plan(costs, memory)
    check_plan(plan, specs, 3, memory)
    assert plan.kind_of("large") == "row-wise"


def test_a_small_table_that_everyone_asks_is_replicated(hand_made: ComputeModel) -> None:
    specs = [TableSpec(name="small", rows=50, dim=64, features=("f",)), *drawn(np.random.default_rng(0), 2)]
    slow = replace(network(4), seconds_per_byte=np.full((4, 4), 1e-6))
    plan, _ = search_plan(TableCosts(specs, 4, Workload(links=slow), hand_made), NO_LIMIT)
    assert plan.kind_of("small") == "replicated"


def test_compressed_tables_are_not_cut(hand_made: ComputeModel) -> None:
    specs = [
        TableSpec(name="robe", rows=10**7, dim=64, features=("f",), lookups_per_sample=50, compressed_bytes=1000),
        *drawn(np.random.default_rng(0), 3),
    ]
    plan, _ = search_plan(TableCosts(specs, 2, Workload(links=network(2)), hand_made), NO_LIMIT)
    assert plan.kind_of("robe") in {"table-wise", "replicated"}
    with pytest.raises(PlanError, match="table 'robe' needs 1000 bytes"):
        search_plan(TableCosts(specs[:1], 2, Workload(), hand_made), 999)


def test_a_search_that_runs_out_of_time_has_a_plan(hand_made: ComputeModel) -> None:
    specs = drawn(np.random.default_rng(0), 30)
    costs = TableCosts(specs, 4, Workload(links=network(4)), hand_made)
    plan, _ = search_plan(costs, NO_LIMIT, SearchOptions(seconds=1e-9))
    check_plan(plan, specs, 4)


def test_by_rows_as_good_as_all_plans_of_octaves(hand_made: ComputeModel) -> None:
    gaps = []
    for seed in range(8):
        chance = np.random.default_rng(seed)
        slow = replace(network(2), seconds_per_byte=np.full((2, 2), 1e-7))
        specs = one_hot_tables(chance, 2, most_rows=2000)
        costs = TableCosts(specs, 2, Workload(batch_size=int(chance.integers(20, 2000)), links=slow), hand_made)
        _, found = search_plan(costs, NO_LIMIT, by_rows=True)
        best = best_of_octaves(costs)
        gaps.append(found.total / best - 1)
        assert 0.5 * best < costs.least_possible() < best
    assert np.mean(gaps) <= 0.01


def test_hot_rows_are_replicated_where_that_pays(hand_made: ComputeModel) -> None:
    specs = one_hot_tables(np.random.default_rng(0), 8)
    slow = replace(network(4), seconds_per_byte=np.full((4, 4), 1e-8))
    costs = TableCosts(specs, 4, Workload(batch_size=4096, links=slow), hand_made)
    by_tables, (plan, found) = search_plan(costs, NO_LIMIT), search_plan(costs, NO_LIMIT, by_rows=True)
    check_plan(plan, specs, 4)
    assert found.total < 0.7 * by_tables[1].total
    assert {plan.kind_of(spec.name) for spec in specs} == {"partly replicated"}
    assert costs.of_plan(plan).total == found.total
    # With no room for copies nothing is replicated that was not; and what the planner takes is the better of both.
    tight = int(max(found.memory)) - sum(copy.rows[1] * 16 * 4 for copy in plan.replicated) // 2
    check_plan(search_plan(costs, tight, by_rows=True)[0], specs, 4, tight)
    chosen = PLANNERS["oper"](specs, 4, NO_LIMIT, Workload(batch_size=4096, links=slow))
    assert chosen.replicated


def test_rows_in_any_order_are_copied_as_those_in_order_are(hand_made: ComputeModel) -> None:
    ordered = one_hot_tables(np.random.default_rng(0), 8)
    hot = tuple(range(1000, 1000 + 4095))
    specs = [replace(spec, frequent_first=False, hot=hot[: spec.rows // 2]) for spec in ordered]
    slow = replace(network(4), seconds_per_byte=np.full((4, 4), 1e-8))
    workload = Workload(batch_size=4096, links=slow)
    costs, of_ordered = (TableCosts(tables, 4, workload, hand_made) for tables in (specs, ordered))
    (plan, found), (_, best) = (search_plan(each, NO_LIMIT, by_rows=True) for each in (costs, of_ordered))
    check_plan(plan, specs, 4)
    assert plan.copies
    assert all(rows.ids == hot[: len(rows.ids)] for rows in plan.copies)
    assert costs.of_plan(plan).total == found.total
    # The rows stay where they are owned as well.
    assert found.total == pytest.approx(best.total, rel=0.05)
    assert costs.least_possible() <= found.total
    for others in ([replace(spec, hot=()) for spec in specs], [replace(spec, features=("f",)) for spec in specs]):
        without, _ = search_plan(TableCosts(others, 4, workload, hand_made), NO_LIMIT, by_rows=True)
        assert not without.copies
    # No more memory is taken than there is.
    tight = int(max(found.memory)) - sum(len(rows.ids) * 16 * 4 for rows in plan.copies) // 2
    check_plan(search_plan(costs, tight, by_rows=True)[0], specs, 4, tight)


def test_rows_are_cut_where_half_of_the_lookups_are(hand_made: ComputeModel) -> None:
    # Of so few columns that these are not cut, and lists so long that it pays to look half of them up.
    spec = replace(one_hot_tables(np.random.default_rng(0), 1)[0], dim=4, lookups_per_sample=500.0)
    # Nothing learns faster for being everywhere: sums of gradients cost more than lookups.
    costly = replace(network(2), all_reduce=(TimeCurve(latency_s=9.0, seconds_per_unit=0, hidden_s=0),) * 2)
    costs = TableCosts([spec], 2, Workload(batch_size=4096, links=costly), hand_made)
    plan, _ = search_plan(costs, NO_LIMIT, by_rows=True)
    assert plan.kind_of("t0") in {"row-wise", "grid"}
    shares = [sum(steps_of(spec, shard.rows)[1].sum() for shard in plan.shards_on(rank)) for rank in (0, 1)]
    # The first row alone has a twelfth of them.
    assert shares == pytest.approx([0.5, 0.5], abs=0.1)


def test_neighbours_are_joined() -> None:
    quarters = [Shard("t", 0, rows, columns) for rows in ((0, 5), (5, 9)) for columns in ((0, 4), (4, 8))]
    assert joined_shards(quarters[::-1]) == [Shard("t", 0, (0, 9), (0, 8))]
    apart = [quarters[0], quarters[3]]
    assert joined_shards(apart) == apart
