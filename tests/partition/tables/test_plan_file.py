"""windrow.partition.tables.plan_file: what is written is read back, and mistakes are named."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import PlanError
from windrow.partition.tables.plan import Copies, Plan, Replica, Shard, TableSpec, check_plan
from windrow.partition.tables.plan_file import read_plan, write_plan
from windrow.partition.tables.planners import plan_with_planner

SPECS = (
    TableSpec(name="user_id", rows=10, dim=16, features=("user_id",)),
    TableSpec(name="item_id", rows=8, dim=16, features=("item_id",)),
    TableSpec(name="country", rows=3, dim=4, features=("country",)),
)
WRITTEN_BY_HAND = """
[user_id]
rank = 0

[item_id]
shards = [{rank=0, rows=[0,4]}, {rank=1, rows=[4,8], columns=[0,8]}, {rank=0, rows=[4, 8], columns=[8, 16]}]

[country]
replicated = true
"""


def test_a_plan_written_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(WRITTEN_BY_HAND, encoding="utf-8")
    plan = read_plan(path, SPECS)
    assert plan == Plan(
        (
            Shard("user_id", 0, (0, 10), (0, 16)),
            Shard("item_id", 0, (0, 4), (0, 16)),
            Shard("item_id", 1, (4, 8), (0, 8)),
            Shard("item_id", 0, (4, 8), (8, 16)),
        ),
        (Replica("country", (0, 3)),),
    )
    write_plan(path, plan, SPECS)
    assert read_plan(path, SPECS) == plan
    assert (
        "[item_id]  # 8 rows x 16, grid\nshards = [\n  {rank = 0, rows = [0, 4], columns = [0, 16]},\n"
        in path.read_text()
    )


def test_rows_on_every_rank(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("""
[user_id]
replicated = [[0, 2], [5, 6]]
rank = 1
[item_id]
replicated = [[0, 4]]
shards = [{rank=0, rows=[4, 8], columns=[0, 8]}, {rank=1, rows=[4, 8], columns=[8, 16]}]
""")
    plan = read_plan(path, SPECS)
    assert plan == Plan(
        (
            Shard("user_id", 1, (2, 5), (0, 16)),
            Shard("user_id", 1, (6, 10), (0, 16)),
            Shard("item_id", 0, (4, 8), (0, 8)),
            Shard("item_id", 1, (4, 8), (8, 16)),
        ),
        (Replica("user_id", (0, 2)), Replica("user_id", (5, 6)), Replica("item_id", (0, 4))),
    )
    check_plan(plan, SPECS[:2], 2)
    write_plan(path, plan, SPECS[:2])
    assert read_plan(path, SPECS) == plan
    copied = replace(plan, copies=(Copies("user_id", (7, 3)),))
    write_plan(path, copied, SPECS[:2])
    assert "copied = [7, 3]" in path.read_text()
    assert read_plan(path, SPECS) == copied


@settings(max_examples=30)
@given(
    names=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=5, unique=True),
    planner=st.sampled_from(["row_wise", "column_wise", "greedy_size"]),
    below=st.sampled_from([0, 500]),
    groups=st.integers(1, 3),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], planner, below: int, groups: int
) -> None:
    specs = [
        TableSpec(name=name, rows=1 + 7 * number, dim=4 + 6 * number, features=()) for number, name in enumerate(names)
    ]
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    plan = replace(plan_with_planner(planner, specs, 3, replicate_below_bytes=below), replica_groups=groups)
    write_plan(path, plan, specs)
    assert read_plan(path, specs) == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[user_id\n", r"plan\.toml: not valid TOML"),
        ("[user]\nrank = 0", r"plan\.toml: \[user\] is no table of this model\. Did you mean 'user_id'\?"),
        ("[zzz]\nrank = 0", r"\[zzz\] is no table .*There are: user_id, item_id, country"),
        ("replica_groups = 0", "replica_groups = 0: expected the number of groups that hold all tables"),
        ("replica_groups = true", "replica_groups = True: expected the number of groups"),
        ("user_id = 3", r"\[user_id\] is 3: expected the keys rank, shards, replicated"),
        ("[user_id]\nrnk = 0", r"\[user_id\] has no key 'rnk'\. Did you mean 'rank'\?"),
        ("[user_id]", r"\[user_id\] needs one of the keys rank, shards, replicated, got none"),
        ("[user_id]\nrank = 0\nreplicated = true", "needs one of the keys .* got rank, replicated"),
        ("[user_id]\nrank = '0'", r"\[user_id\] rank = '0': expected the number of a rank"),
        ("[user_id]\nrank = true", "rank = True: expected the number"),
        ("[user_id]\nrank = 0\ncopied = 3", "copied = 3: expected the numbers of rows"),
        ("[user_id]\ncopied = [3]", "needs one of the keys rank, shards, replicated, got copied"),
        ("[user_id]\nreplicated = false", "replicated = False: expected true"),
        ("[user_id]\nreplicated = [3]", r"replicated = 3: expected \[first, one after"),
        ("[user_id]\nshards = []", r"shards = \[\]: expected a list"),
        ("[user_id]\nshards = [3]", r"shards\[0\] is 3: expected the keys rank, rows, columns"),
        ("[user_id]\nshards = [{rows=[0, 10]}]", r"shards\[0\] rank = None: expected the number of a rank"),
        ("[user_id]\nshards = [{rank=0, row=[0, 10]}]", r"shards\[0\] has no key 'row'\. Did you mean"),
        ("[user_id]\nshards = [{rank=0, rows=[0]}]", r"rows = \[0\]: expected \[first, one after the last\]"),
        ("[user_id]\nshards = [{rank=0, columns=[0, 4.0]}]", r"columns = \[0, 4\.0\]: expected"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PlanError, match=message):
        read_plan(path, SPECS)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"missing\.toml: no such file"):
        read_plan(tmp_path / "missing.toml", SPECS)
    path = tmp_path / "plan.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(PlanError, match="cannot be read as text"):
        read_plan(path, SPECS)


def test_an_incomplete_plan_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="does not say where table 'user_id' lives"):
        write_plan(tmp_path / "plan.toml", Plan(()), SPECS)
    assert not list(tmp_path.iterdir())
