"""windrow.partition.tables.plan: plans that can be carried out, and words for those that cannot."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import PlanError
from windrow.partition.tables.plan import (
    Copies,
    Cost,
    Plan,
    Replica,
    Shard,
    TableSpec,
    check_plan,
    rank_bytes,
    shard_bytes,
    specs_by_name,
    table_placement,
)

SPECS = (
    TableSpec(name="user", rows=10, dim=16, features=("user",)),
    TableSpec(name="item", rows=7, dim=6, features=("item", "history"), optimizer_bytes_per_row=4),
    TableSpec(name="day", rows=3, dim=4, features=("day",)),
)
USER = Shard("user", 0, (0, 10), (0, 16))
ITEM = (Shard("item", 0, (0, 4), (0, 6)), Shard("item", 1, (4, 7), (0, 4)), Shard("item", 1, (4, 7), (4, 6)))
DAY = Replica("day", (0, 3))
PLAN = Plan((USER, *ITEM), (DAY,))


def refused(plan: Plan, message: str, **arguments) -> PlanError:
    with pytest.raises(PlanError, match=message) as caught:
        check_plan(plan, SPECS, 2, **arguments)
    return caught.value


def test_a_mixed_plan_is_fine_and_says_what_is_where() -> None:
    check_plan(PLAN, SPECS, 2)
    check_plan(PLAN, SPECS, 3)
    assert [PLAN.kind_of(spec.name) for spec in SPECS] == ["table-wise", "grid", "replicated"]
    assert Plan(ITEM[1:]).kind_of("item") == "column-wise"
    assert Plan((*ITEM[:1], Shard("item", 1, (4, 7), (0, 6)))).kind_of("item") == "row-wise"
    assert PLAN.shards_of("item") == ITEM
    assert PLAN.shards_on(0) == (USER, ITEM[0])
    with pytest.raises(PlanError, match="does not say where table 'other' lives"):
        PLAN.kind_of("other")


def test_some_rows_of_a_table_may_be_on_every_rank() -> None:
    plan = Plan((USER, Shard("item", 1, (2, 7), (0, 6))), (DAY, Replica("item", (0, 2))))
    check_plan(plan, SPECS, 2)
    assert plan.kind_of("item") == "partly replicated"
    copies = 3 * 4 * 4 + 2 * (8 * 4 + 4)  # Of 6 columns 8 are stored.
    assert rank_bytes(plan, SPECS, 2) == [640 + copies, 5 * (8 * 4 + 4) + copies]
    for rows, message in (
        ((0, 1), "rows 1, columns 0-5 are on no rank"),
        ((0, 3), "rows 2, columns 0-5 are covered 2 times, by rank 1, every rank"),
        ((0, 8), r"rows 0-7 .every rank.: rows \[0, 8\) are not a range inside"),
    ):
        refused(Plan(plan.shards, (DAY, Replica("item", rows))), message)


def test_every_rank_may_have_copies_of_rows() -> None:
    plan = dataclasses.replace(PLAN, copies=(Copies("user", (7, 0, 3)),))
    check_plan(plan, SPECS, 2)
    assert (plan.kind_of("user"), plan.copied("user"), plan.copied("item")) == ("partly replicated", (7, 0, 3), ())
    assert plan.only(["user"]).copies == plan.copies
    assert Plan.from_dict(dataclasses.asdict(plan)) == plan
    more = 3 * (rank_bytes(Plan((USER,)), SPECS, 1)[0] // 10)
    assert rank_bytes(plan, SPECS, 2) == [found + more for found in rank_bytes(PLAN, SPECS, 2)]
    for copies, message in (
        ((Copies("color", (1,)),), "copies of rows of a table 'color'"),
        ((Copies("user", (1,)), Copies("user", (2,))), "lists copies of a table twice"),
        ((Copies("user", ()),), "expected one id at least, and each once"),
        ((Copies("user", (1, 1)),), "expected one id at least, and each once"),
        ((Copies("day", (1,)),), r"row 1 is among rows 0-2 \(every rank\) already"),
        ((Copies("user", (3, 10)),), r"ids from 3 to 10 are not inside \[0, 10\)"),
    ):
        refused(dataclasses.replace(PLAN, copies=copies), message)
    half = [dataclasses.replace(spec, bytes_per_value=2) for spec in SPECS]
    with pytest.raises(PlanError, match="ranks sum their gradients in float32"):
        check_plan(plan, half, 2)
    both = [dataclasses.replace(spec, features=("f",)) for spec in SPECS]
    with pytest.raises(PlanError, match="'user': copies of rows: a feature of the table also looks into another"):
        check_plan(plan, both, 2)


def test_costs_add_up_part_by_part() -> None:
    one = Cost(lookups=1, lookup_bytes=2, id_bytes=3, forward_bytes=4, backward_bytes=5)
    assert (one + Cost(lookups=1)).lookups == 2
    assert Cost() + one == one


def test_bytes_by_rank() -> None:
    day = 3 * 4 * 4
    grid = 4 * (8 * 4 + 4), 3 * (4 * 4 + 4) + 3 * (4 * 4 + 4)
    assert rank_bytes(PLAN, SPECS, 3) == [640 + grid[0] + day, grid[1] + day, day]


def test_groups_of_ranks_hold_the_same() -> None:
    plan = dataclasses.replace(PLAN, replica_groups=3)
    check_plan(plan, SPECS, 6)
    assert Plan.from_dict(dataclasses.asdict(plan)) == plan
    assert plan.only(["user"]) == Plan((USER,), replica_groups=3)
    assert rank_bytes(plan, SPECS, 6) == 3 * rank_bytes(PLAN, SPECS, 2)
    users = table_placement([(SPECS[0], plan)], 6)["tables"][0]["shards"]
    assert [shard["rank"] for shard in users] == [0, 2, 4]
    with pytest.raises(PlanError, match="there is no rank 1 among 1"):
        check_plan(plan, SPECS, 3)
    with pytest.raises(PlanError, match="replica_groups = 3 of 4 ranks: groups have the same number of ranks"):
        check_plan(plan, SPECS, 4)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan((USER, *ITEM)), "misses table 'day': give it a rank"),
        (Plan((*PLAN.shards, Shard("color", 0, (0, 1), (0, 1))), (DAY,)), "names a table 'color', but the"),
        (Plan(PLAN.shards, (DAY, Replica("user", (0, 10)))), "table 'user': rows 0-9, columns 0-15 are"),
        (Plan(PLAN.shards, (DAY, DAY)), "table 'day': .* covered 2 times, by every rank, every rank"),
        (Plan((USER, *ITEM[:2]), (DAY,)), "table 'item': rows 4-6, columns 4-5 are on no rank"),
        (Plan((USER, *ITEM, Shard("item", 0, (3, 5), (0, 4))), (DAY,)), "'item': row.* 3, columns 0-3 are"),
        (Plan((dataclasses.replace(USER, rank=2), *ITEM), (DAY,)), r"'user': rows 0-9, columns 0-15 \(rank"),
        (Plan((dataclasses.replace(USER, rank=-1), *ITEM), (DAY,)), "there is no rank -1"),
        (Plan((dataclasses.replace(USER, rows=(0, 11)), *ITEM), (DAY,)), r"rows \[0, 11\) are not a range"),
        (Plan((dataclasses.replace(USER, columns=(8, 8)), *ITEM), (DAY,)), r"columns \[8, 8\) are not a range"),
        (
            Plan((dataclasses.replace(USER, columns=(0, 6)), Shard("user", 1, (0, 10), (6, 16)), *ITEM), (DAY,)),
            "columns are cut at 6, which is no multiple of 4",
        ),
    ],
)
def test_what_is_wrong_is_named(plan: Plan, message: str) -> None:
    assert refused(plan, message).shortfall_bytes == 0


def test_no_ranks_and_too_little_memory_are_refused() -> None:
    fullest = max(rank_bytes(PLAN, SPECS, 2))
    check_plan(PLAN, SPECS, 2, rank_memory_bytes=fullest)
    with pytest.raises(PlanError, match="at least 1 rank, got 0"):
        check_plan(PLAN, SPECS, 0)
    error = refused(PLAN, "rank 0 needs 832 bytes .* has 827: it lacks 5", rank_memory_bytes=fullest - 5)
    assert error.shortfall_bytes == 5


@given(data=st.data())
def test_a_random_grid_passes_and_its_mutations_do_not(data: st.DataObject) -> None:
    rows, dim = data.draw(st.integers(2, 30)), data.draw(st.integers(1, 30))
    one = TableSpec(name="t", rows=rows, dim=dim, features=())
    inner_rows = data.draw(st.sets(st.integers(1, one.rows - 1), max_size=4))
    inner_columns = data.draw(st.sets(st.integers(1, 7).map(lambda four: 4 * four), max_size=3))
    rows = sorted({0, one.rows, *inner_rows})
    columns = sorted({0, one.dim, *(column for column in inner_columns if column < one.dim)})
    world_size = data.draw(st.integers(1, 4))
    shards = [
        Shard("t", data.draw(st.integers(0, world_size - 1)), (top, bottom), (left, right))
        for top, bottom in itertools.pairwise(rows)
        for left, right in itertools.pairwise(columns)
    ]
    check_plan(Plan(tuple(shards)), [one], world_size)
    number = data.draw(st.integers(0, len(shards) - 1))
    shard = shards[number]
    others = [*shards[:number], *shards[number + 1 :]]
    shorter = dataclasses.replace(shard, rows=(shard.rows[0], shard.rows[1] - 1))
    mutated = {
        "covered 2 times": [*shards, shard],
        "there is no rank": [*others, dataclasses.replace(shard, rank=world_size)],
        "on no rank|misses table": others,
        "on no rank|not a range": [*others, shorter],
    }
    for message, mutation in mutated.items():
        with pytest.raises(PlanError, match=message):
            check_plan(Plan(tuple(mutation)), [one], world_size)


def spec(**changes) -> TableSpec:
    return TableSpec(**{"name": "item", "rows": 10, "dim": 16, "features": ("item",), **changes})


def test_weights_and_state_are_counted() -> None:
    assert spec().num_bytes == 10 * 16 * 4
    assert spec(bytes_per_value=2, optimizer_bytes_per_row=4).num_bytes == 10 * (16 * 2 + 4)
    assert spec(optimizer_bytes_per_row=0.25).num_bytes == 10 * 16 * 4 + 3, "rounded up"


@pytest.mark.parametrize(
    ("per_row", "expected"),
    [(0, 0), (4, 5 * 4), (16 * 4, 5 * 4 * 4), (16 * 8, 5 * 4 * 8)],
    ids=["sgd", "row-wise adagrad: once for each piece", "adagrad", "adam"],
)
def test_state_of_a_piece(per_row: int, expected: int) -> None:
    assert shard_bytes(spec(optimizer_bytes_per_row=per_row), 5, 4) == 5 * 4 * 4 + expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "empty name"),
        ({"rows": 0}, "table 'item': rows = 0: expected at least 1"),
        ({"dim": -1}, "dim = -1"),
        ({"bytes_per_value": 0}, "bytes_per_value = 0"),
        ({"lookups_per_sample": float("nan")}, "lookups_per_sample = nan"),
        ({"optimizer_bytes_per_row": -1.0}, "optimizer_bytes_per_row = -1.0: expected 0 or more"),
    ],
)
def test_nonsense_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        spec(**changes)


def test_names_are_unique() -> None:
    assert list(specs_by_name([spec(name="b"), spec(name="a")])) == ["b", "a"]
    with pytest.raises(PlanError, match="two tables are named 'item'"):
        specs_by_name([spec(), spec()])
