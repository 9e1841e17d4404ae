"""windrow.launch.commands.plan: the plan is shown, written, and read back by training."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windrow.comm.errors import PlanError, RecipeError, StoreError
from windrow.launch.cli import build_parser
from windrow.launch.recommendation_recipe import load_recommendation_recipe
from windrow.partition.tables import Plan, Replica, Shard, TableSpec, plan_with_planner
from windrow.partition.tables.affinity import local_share, nearest_ranks
from windrow.recsys import log_tables
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.store import LogStore
from windrow.recsys.log_tables import log_table_specs, plan_tables, surveyed_table_specs
from windrow.recsys.plan_report import describe_plan

RECIPE = """
store = "store"
[log]
paths = ["log.csv"]
format = "csv"
[log.features.item]
ids = "rows"
rows = 40000
[log.features.history]
ids = "rows"
rows = 40000
table = "item"
multi_hot = true
[log.features.day]
[split]
by = "hash"
[tables]
dim = 8
[model]
sequences = ["history"]
sequence_query = "item"
"""


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "clicks.toml"
    path.write_text(RECIPE, encoding="utf-8")
    lines = [f"{n % 2},{n},{n}|{n + 1}|{n + 2},{n % 7}" for n in range(200)]
    (tmp_path / "log.csv").write_text("\n".join(["label,item,history,day", *lines]), encoding="utf-8")
    recipe = load_recommendation_recipe(path)
    prepare_log(recipe.store, recipe.log, recipe.split)
    return path


def plan_with(*arguments: object) -> int:
    parsed = build_parser().parse_args(["plan", *map(str, arguments)])
    return int(parsed.run(parsed))


def test_what_is_shown_and_written_is_what_training_takes(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.toml"
    before = sorted(tmp_path.iterdir())
    assert plan_with(recipe_file, "--ranks", 4) == 0
    assert sorted(tmp_path.iterdir()) == before, "nothing is written unasked"
    capsys.readouterr()
    assert plan_with(recipe_file, "--ranks", 2, "--out", out, "--set", "plan.planner=row_wise") == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].split() == ["table", "rows", "dim", "bytes", "plan", "ranks"]
    assert f"wrote {out}" in shown
    assert "[item_sequence]  # 40000 rows x 8, row-wise\nshards = [\n" in out.read_text()
    assert "[day]  # 9 rows x 8, replicated\nreplicated = true\n" in out.read_text()
    asked = load_recommendation_recipe(recipe_file, ["plan.planner=row_wise"])
    given = load_recommendation_recipe(recipe_file, [f"plan.file={out}"])
    store = LogStore.open(asked.store)
    plans = [plan_tables(recipe, store, 2) for recipe in (asked, given)]
    assert set(plans[0].shards) == set(plans[1].shards)
    assert plans[0].replicated == plans[1].replicated
    lookups = {spec.name: spec.lookups_per_sample for spec in log_table_specs(asked, store)}
    assert lookups == {"item": 1.0, "day": 1.0, "item_sequence": 3.0}


def test_what_cannot_be_planned(recipe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="replica_groups = 2 of 3 ranks"):
        plan_with(recipe_file, "--ranks", 3, "--set", "plan.replica_groups=2")
    with pytest.raises(RecipeError, match=r"plan\.replica_groups = 2 does not go with plan\.file: write it into"):
        plan_with(recipe_file, "--ranks", 2, "--set", "plan.replica_groups=2", "--set", "plan.file=p.toml")
    with pytest.raises(RecipeError, match="--ranks 0: expected at least 1"):
        plan_with(recipe_file, "--ranks", 0)
    with pytest.raises(PlanError, match="it lacks 1340000 bytes") as caught:
        plan_with(recipe_file, "--ranks", 1, "--set", "plan.rank_memory_bytes=100000")
    assert caught.value.shortfall_bytes == 1340000
    with pytest.raises(StoreError, match=r"there is no folder .*missing: make it"):
        plan_with(recipe_file, "--ranks", 2, "--out", tmp_path / "missing" / "plan.toml")
    with pytest.raises(StoreError, match=r"no prepared log: run `windrow prepare`"):
        plan_with(recipe_file, "--ranks", 2, "--set", "store=elsewhere")

    path = tmp_path / "places.toml"
    path.write_text('[log]\npaths = ["a.npz"]\nformat = "interactions"\n[model]\nkind = "two_tower"\n')
    with pytest.raises(RecipeError, match="plans of prepared logs alone"):
        plan_with(path, "--ranks", 2)


DESCRIBED = (
    TableSpec(name="user", rows=1 << 16, dim=16, features=("user",)),
    TableSpec(name="item", rows=1 << 15, dim=16, features=("item", "history"), lookups_per_sample=21),
    TableSpec(name="day", rows=7, dim=4, features=("day",)),
)
EXPECTED = """\
table   rows  dim    bytes  plan        ranks
-----  -----  ---  -------  ----------  -----
user   65536   16  4194304  table-wise  0
item   32768   16  2097152  row-wise    0, 1
day        7    4      112  replicated  all

rank  pieces    bytes  lookups/sample
----  ------  -------  --------------
   0       3  4718704            6.75
   1       2  1572976           16.25"""


def test_a_plan_isdescribe_plan() -> None:
    plan = Plan(
        (
            Shard("user", 0, (0, 1 << 16), (0, 16)),
            Shard("item", 0, (0, 1 << 13), (0, 16)),
            Shard("item", 1, (1 << 13, 1 << 15), (0, 16)),
        ),
        (Replica("day", (0, 7)),),
    )
    assert describe_plan(plan, DESCRIBED, 2) == EXPECTED


def test_many_ranks_are_cut_short() -> None:
    text = describe_plan(plan_with_planner("row_wise", DESCRIBED[:1], 100), DESCRIBED[:1], 100)
    assert "0, 1, 2, 3, 4, 5, 6, 7, ... (100)" in text


NETWORK = """
nodes = 2
rate = "1gbit"
latency_us = 100.0
"""


def test_costs_are_predicted_and_drawn(recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network, picture = tmp_path / "network.toml", tmp_path / "plan.png"
    network.write_text(NETWORK)
    asked = (recipe_file, "--ranks", 2, "--network", network, "--set", "plan.planner=neuroshard")
    anew = ("--set", "plan.replan_every_steps=9", "--set", "plan.planner=oper")
    assert plan_with(*asked, *anew, "--compare", "--picture", picture) == 0
    shown = capsys.readouterr().out
    assert f"predicted, {network}:" in shown
    assert "rank  ids ms  lookups and learning ms  gradients ms  vectors, and waiting ms" in shown
    assert "is the slowest, most of it by" in shown
    planners = {line.split()[0] for line in shown.partition("planner ")[2].splitlines()[2:] if line}
    assert {"neuroshard", "greedy", "row_wise", "replicated"} <= planners
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert plan_with(recipe_file, "--ranks", 3, "--set", "plan.planner=column_wise") == 0
    shown = capsys.readouterr().out
    assert "item is column-wise: whole it would take" in shown
    # Of 3 ranks on this machine nothing is known.
    assert "predicted, on no network: give --network" in shown
    groups = ("--set", "plan.replica_groups=2", "--compare", "--network", network, "--out", tmp_path / "plan.toml")
    assert plan_with(recipe_file, "--ranks", 2, *groups) == 0
    shown = capsys.readouterr().out
    assert "2 groups of 1 rank(s) hold all of this each" in shown
    assert "gradients of replicated tables and of rows that groups have in common take" in shown
    assert (tmp_path / "plan.toml").read_text().count("replica_groups = 2") == 1
    # Other planners are asked for groups as the file has them.
    compared = shown.partition("planner ")[2].partition("wrote")[0].strip()
    of_file = ("--set", f"plan.file={tmp_path / 'plan.toml'}", "--compare", "--network", network)
    assert plan_with(recipe_file, "--ranks", 2, *of_file) == 0
    assert capsys.readouterr().out.partition("planner ")[2].strip() == compared
    tight = ("--set", "plan.rank_memory_bytes=800000", "--set", "plan.planner=row_wise", "--compare")
    assert plan_with(recipe_file, "--ranks", 4, *tight) == 0
    shown = capsys.readouterr().out
    assert "item is row-wise: its 1.4 MiB do not fit on a rank" in shown
    assert re.search(r"^greedy +- +- +lacks .* MiB$|^greedy +- +- +lacks .* KiB$", shown, re.MULTILINE)


def test_tables_that_are_to_fit_are_compressed_first(recipe_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = (recipe_file, "--ranks", 2, "--set", "plan.rank_memory_bytes=600000")
    with pytest.raises(PlanError, match="it lacks"):
        plan_with(*asked)
    assert plan_with(*asked, "--table-bytes", 500_000) == 0
    shown = capsys.readouterr().out
    assert "For the recipe:" in shown
    assert re.search(r"^item +40000 +8 +\d+ +replicated +all$", shown, re.MULTILINE)
    with pytest.raises(RecipeError, match="--table-form says nothing without --table-bytes"):
        plan_with(recipe_file, "--ranks", 2, "--table-form", "hashed")


def test_accesses_are_counted_in_the_log(recipe_file: Path) -> None:
    recipe = load_recommendation_recipe(recipe_file)
    store = LogStore.open(recipe.store)
    specs = {spec.name: spec for spec in surveyed_table_specs(recipe, store, 2)}
    assert specs["day"].access[0] == pytest.approx(1 / 7, abs=0.05)
    assert sum(specs["item"].access) == pytest.approx(1)
    # Ids of this log come once each, in no order of frequency; those of days by how often they occur.
    assert not specs["item"].frequent_first
    assert specs["day"].frequent_first
    assert specs["item_sequence"].access == specs["item"].access


def test_what_was_counted_is_kept(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recommendation_recipe(recipe_file)
    store = LogStore.open(recipe.store)
    first = surveyed_table_specs(recipe, store, 2)
    (kept,) = (recipe.store / "access").iterdir()

    def refuse(*_: object) -> None:
        raise AssertionError("counted again")

    with monkeypatch.context() as patched:
        patched.setattr(log_tables, "_count_access", refuse)
        assert surveyed_table_specs(recipe, store, 2) == first
        # How tables are stored has nothing to do with it; how many ranks read, and which lists are held once, have.
        wide = load_recommendation_recipe(recipe_file, ["tables.dim=16", "training.learning_rate=0.5"])
        assert [spec.access for spec in surveyed_table_specs(wide, store, 2)] == [spec.access for spec in first]
        grouped = load_recommendation_recipe(recipe_file, ['deduplication.groups=[["history"]]'])
        for other, ranks in ((recipe, 4), (grouped, 2)):
            with pytest.raises(AssertionError, match="counted again"):
                surveyed_table_specs(other, store, ranks)
    kept.write_text("{", encoding="utf-8")
    assert surveyed_table_specs(recipe, store, 2) == first
    assert len(kept.read_text("utf-8")) > 1


def test_rows_are_placed_where_they_are_looked_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Users of a log stand in the opposite order, so that rank 0 reads those whose rows are the last ones."""
    lines = [f"{n % 2},{user},{n % 7}" for n, user in enumerate(np.repeat(range(200, 0, -1), 5))]
    (tmp_path / "log.csv").write_text("\n".join(["label,user,day", *lines]), encoding="utf-8")
    path = tmp_path / "users.toml"
    path.write_text(
        'store = "store"\n[log]\npaths = ["log.csv"]\nformat = "csv"\n'
        '[log.features.user]\nids = "rows"\nrows = 201\n[log.features.day]\n'
        '[split]\nby = "hash"\n[plan]\nplanner = "neuroshard"\nreplicate_below_bytes = 0\n',
        encoding="utf-8",
    )
    recipe = load_recommendation_recipe(path)
    prepare_log(recipe.store, recipe.log, recipe.split)
    store = LogStore.open(recipe.store)
    specs = surveyed_table_specs(recipe, store, 2)
    (user,) = (spec for spec in specs if spec.name == "user")
    in_order = plan_with_planner("row_wise", specs, 2)
    assert local_share(in_order, user) < 0.02
    plan = nearest_ranks(in_order, specs, None)
    assert [shard.rank for shard in sorted(plan.shards_of("user"), key=lambda shard: shard.rows)] == [1, 0]
    assert local_share(plan, user) > 0.98
    assert plan_with(path, "--ranks", 2) == 0
    assert re.search(r"on the rank that makes them, .*: user \d+%, day \d+%", capsys.readouterr().out)
    # As many ranks cannot read it, but can be planned for.
    assert not surveyed_table_specs(recipe, store, 32)[0].near


def test_ranks_of_which_less_was_looked_at_count_as_much(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recommendation_recipe(recipe_file)
    store = LogStore.open(recipe.store)
    whole = list(log_tables._read_sample(store, log_tables.log_transforms(recipe, store), None))
    ((_, rows, columns),) = whole

    def part(first: int, stop: int) -> tuple[int, int, dict[str, Any]]:
        return first, stop - first, {name: lists.select(np.arange(first, stop)) for name, lists in columns.items()}

    monkeypatch.setattr(log_tables, "_read_sample", lambda *_: [part(0, rows // 4), part(rows // 2, rows)])
    near = np.array(log_tables._count_access(recipe, store, 2).near["day"])
    np.testing.assert_allclose(near.sum(1), [0.5, 0.5], atol=0.03)
    monkeypatch.setattr(log_tables, "_read_sample", lambda *_: [part(0, rows // 4)])
    assert not log_tables._count_access(recipe, store, 2).near


def test_rows_are_counted_after_transforms(tmp_path: Path) -> None:
    """Of ids that are hashed to fewer rows, and of a feature that is made of a dense column."""
    draw = np.random.default_rng(1)
    items, prices = draw.integers(0, 500, 400), draw.normal(size=400).round(3)
    lines = [f"{n % 2},{item},{price}" for n, (item, price) in enumerate(zip(items, prices, strict=True))]
    (tmp_path / "log.csv").write_text("\n".join(["label,item,price", *lines]), encoding="utf-8")
    path = tmp_path / "clicks.toml"
    path.write_text(
        'store = "store"\n[log]\npaths = ["log.csv"]\nformat = "csv"\ndense = ["price"]\ndense_transform = "none"\n'
        '[log.features.item]\nids = "rows"\nrows = 500\n[split]\nby = "hash"\nfractions = [1.0, 0.0, 0.0]\n'
        "[transforms.item]\nhash_rows = 20\n"
        '[transforms.bucket]\ndense = "price"\nbucketise = [-0.5, 0.5]\n[plan]\nplanner = "oper"\n',
        encoding="utf-8",
    )
    recipe = load_recommendation_recipe(path)
    store = prepare_log(recipe.store, recipe.log, recipe.split)
    counts = log_tables.count_table_rows(store, log_tables.log_transforms(recipe, store))
    assert counts["bucket"].tolist() == np.bincount(np.searchsorted([-0.5, 0.5], prices, "right")).tolist()
    assert (len(counts["item"]), counts["item"].sum()) == (20, 400)
    assert log_tables.count_table_rows(store)["item"].tolist() == np.bincount(items, minlength=500).tolist()
    specs = {spec.name: spec for spec in surveyed_table_specs(recipe, store, 2)}
    assert (specs["item"].rows, specs["bucket"].rows) == (20, 3)
    assert sum(specs["item"].access) == pytest.approx(1)
    assert plan_tables(recipe, store, 2)
