"""windrow.partition.tables.plan_file."""

from windrow.partition.tables.plan import Plan, Shard, TableSpec
from windrow.partition.tables.plan_file import describe_plan
from windrow.partition.tables.planners import plan_with_planner

SPECS = (
    TableSpec(name="user", rows=1 << 16, dim=16, features=("user",)),
    TableSpec(name="item", rows=1 << 15, dim=16, features=("item", "history"), lookups_per_sample=21),
    TableSpec(name="day", rows=7, dim=4, features=("day",)),
)
EXPECTED = """\
table    rows  dim      bytes  plan        ranks
user   65,536   16  4,194,304  table-wise  0
item   32,768   16  2,097,152  row-wise    0, 1
day         7    4        112  replicated  all

rank  pieces      bytes  dims  lookups/sample
   0       3  4,718,704    52            6.75
   1       2  1,572,976    36           16.25"""


def test_a_plan_is_described() -> None:
    plan = Plan(
        (
            Shard("user", 0, (0, 1 << 16), (0, 16)),
            Shard("item", 0, (0, 1 << 13), (0, 16)),
            Shard("item", 1, (1 << 13, 1 << 15), (0, 16)),
        ),
        ("day",),
    )
    text = describe_plan(plan, SPECS, 2)
    assert text == EXPECTED


def test_many_ranks_are_cut_short() -> None:
    text = describe_plan(plan_with_planner("row_wise", SPECS[:1], 100), SPECS[:1], 100)
    assert "0, 1, 2, 3, 4, 5, 6, 7, ... (100)" in text
