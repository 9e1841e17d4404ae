"""windrow.partition.tables.planners: every plan can be carried out, and is balanced as promised."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import PlanError, RecipeError
from windrow.partition.tables.plan import Plan, Replica, Shard, TableSpec, check_plan, rank_bytes
from windrow.partition.tables.plan_file import write_plan
from windrow.partition.tables.planners import PLANNERS, PlanOptions, make_plan, plan_with_planner, register_planner


def table(number: int, **changes) -> TableSpec:
    return TableSpec(**{"name": f"t{number}", "rows": 100, "dim": 8, "features": (f"f{number}",), **changes})


tables = st.lists(
    st.builds(
        dict,
        rows=st.integers(1, 5000),
        dim=st.integers(1, 40),
        optimizer_bytes_per_row=st.sampled_from([0.0, 4.0]),
        lookups_per_sample=st.floats(0, 50),
    ),
    min_size=1,
    max_size=12,
).map(lambda found: [table(number, **changes) for number, changes in enumerate(found)])


@pytest.mark.parametrize("planner", [planner for planner in PLANNERS if planner != "torchrec"])
@settings(max_examples=30)
@given(specs=tables, world_size=st.integers(1, 6), replicate_below_bytes=st.sampled_from([0, 1000, 65536]))
def test_every_plan_is_fine(planner: str, specs: list[TableSpec], world_size: int, replicate_below_bytes: int) -> None:
    options = PlanOptions(planner=planner, replicate_below_bytes=replicate_below_bytes)
    plan = make_plan(options, specs, world_size)
    check_plan(plan, specs, world_size)
    assert plan == make_plan(options, specs, world_size)
    limit = replicate_below_bytes if world_size > 1 else 0
    copied = {spec.name for spec in specs if spec.rows * spec.dim * 4 < limit or planner == "replicated"}
    found = {replica.table for replica in plan.replicated}
    # Those that search replicate what pays.
    assert planner in {"neuroshard", "oper"} or found == copied


@given(specs=tables, world_size=st.integers(1, 6))
def test_greedy_keeps_grahams_bound(specs: list[TableSpec], world_size: int) -> None:
    loads = rank_bytes(plan_with_planner("greedy_size", specs, world_size), specs, world_size)
    sizes = [spec.num_bytes for spec in specs]
    assert max(loads) <= sum(sizes) / world_size + max(sizes)


def test_each_greedy_planner_balances_its_own_cost() -> None:
    specs = [
        table(0, rows=4000, dim=4, lookups_per_sample=1),
        table(1, rows=10, dim=64, lookups_per_sample=1),
        table(2, rows=100, dim=8, lookups_per_sample=100),
        table(3, rows=100, dim=4, features=("a",) * 20, lookups_per_sample=0.1),
    ]
    first = {"greedy_size": "t0", "greedy_dim": "t3", "greedy_lookups": "t2", "greedy_size_lookups": "t2"}
    for planner, table_of_rank_0 in first.items():
        ranks = _ranks(plan_with_planner(planner, specs, 2))
        assert next(name for name, rank in ranks.items() if rank == 0) == table_of_rank_0


def _ranks(plan: Plan) -> dict[str, int]:
    return {shard.table: shard.rank for shard in plan.shards}


def test_round_robin() -> None:
    specs = [table(number) for number in range(5)]
    assert list(_ranks(plan_with_planner("round_robin", specs, 2)).values()) == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("planner", ["round_robin", "greedy_size", "greedy_lookups"])
def test_whole_tables_respect_memory(planner: str) -> None:
    specs = [table(number, rows=rows) for number, rows in enumerate((60, 50, 40, 30, 20))]
    row = 8 * 4
    plan = plan_with_planner(planner, specs, 2, rank_memory_bytes=110 * row)
    check_plan(plan, specs, 2, 110 * row)
    with pytest.raises(PlanError, match=r"table 't\d' needs \d+ bytes on one rank.*lacks \d+") as caught:
        plan_with_planner(planner, specs, 2, rank_memory_bytes=70 * row)
    assert caught.value.shortfall_bytes > 0
    with pytest.raises(PlanError, match=f"table 't0' needs {60 * row} bytes.*{59 * row} left") as caught:
        plan_with_planner("greedy_size", specs, 2, rank_memory_bytes=59 * row)
    assert caught.value.shortfall_bytes == row


def test_cut_tables_are_checked_against_memory() -> None:
    options = PlanOptions(planner="row_wise", rank_memory_bytes=1580, replicate_below_bytes=0)
    with pytest.raises(PlanError, match="it lacks 20 bytes") as caught:
        make_plan(options, [table(0)], 2)
    assert caught.value.shortfall_bytes == 20


def test_pieces_are_even_and_odd_ones_go_round() -> None:
    columns = plan_with_planner("column_wise", [table(0, dim=24), table(1, dim=6), table(2, dim=4)], 4)
    pieces = [(shard.rank, shard.columns) for shard in columns.shards_of("t0")]
    assert pieces == [(0, (0, 4)), (1, (4, 12)), (2, (12, 16)), (3, (16, 24))]
    assert [shard.columns for shard in columns.shards_of("t1")] == [(0, 4), (4, 6)]
    rows = plan_with_planner("row_wise", [table(number, rows=1) for number in range(4)], 4)
    assert sorted(shard.rank for shard in rows.shards) == [0, 1, 2, 3]
    rows = plan_with_planner("row_wise", [table(0, rows=5)], 2)
    assert [shard.rows for shard in rows.shards] == [(0, 2), (2, 5)]


def test_half_precision_is_not_replicated_for_being_small() -> None:
    specs = [table(0), table(1, bytes_per_value=2)]
    assert make_plan(PlanOptions(), specs, 2).replicated == (Replica("t0", (0, 100)),)
    assert make_plan(PlanOptions(), specs, 1).replicated == ()
    everything = make_plan(PlanOptions(planner="replicated"), specs, 2).replicated
    assert [replica.table for replica in everything] == ["t0", "t1"]


def test_a_plan_file_wins_and_its_errors_name_it(tmp_path: Path) -> None:
    specs = [table(0)]
    path = tmp_path / "plan.toml"
    options = PlanOptions(file=path, replicate_below_bytes=0)
    plan = Plan((Shard("t0", 1, (0, 100), (0, 8)),))
    write_plan(path, plan, specs)
    assert make_plan(options, specs, 2) == plan
    with pytest.raises(PlanError, match=r"plan\.toml: table 't0': .*there is no rank 1 among 1"):
        make_plan(options, specs, 1)
    with pytest.raises(PlanError, match=r"plan\.toml: rank 1 needs") as caught:
        make_plan(PlanOptions(file=path, rank_memory_bytes=1), specs, 2)
    assert caught.value.shortfall_bytes == 3199


def on_the_last_rank(specs, world_size, memory, workload):
    """A user's own planner: half of each table on every rank, the other half on the last."""
    del memory, workload
    shards = [Shard(spec.name, world_size - 1, (spec.rows // 2, spec.rows), (0, spec.dim)) for spec in specs]
    return Plan(tuple(shards), tuple(Replica(spec.name, (0, spec.rows // 2)) for spec in specs))


def test_ones_own_planner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("windrow.partition.tables.planners.PLANNERS", dict(PLANNERS))
    register_planner("mine", on_the_last_rank)
    specs = [table(0), table(1, rows=2)]
    plan = make_plan(PlanOptions(planner="mine"), specs, 3)
    # The second is small enough to be replicated whole.
    assert plan.shards == ()
    plan = make_plan(PlanOptions(planner="mine", replicate_below_bytes=0), specs, 3)
    assert plan == on_the_last_rank(specs, 3, 0, None)
    (tmp_path / "my_planners.py").write_text(
        "from windrow.partition.tables.planners import PLANNERS\nf = PLANNERS['row_wise']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    named = PlanOptions(planner="my_planners:f")
    assert make_plan(named, specs, 2) == make_plan(PlanOptions(planner="row_wise"), specs, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"planner": "best"}, 'planner = "best": expected one of round_robin, greedy, greedy_size'),
        ({"planner": "no_module:f"}, ":f\": No module named 'no_module': name a function"),
        ({"planner": "math:best"}, "module 'math' has no attribute 'best'"),
    ],
)
def test_nonsense_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        PlanOptions(**changes)
