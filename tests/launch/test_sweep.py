"""windrow.launch.sweep, windrow.launch.auto_plan, their commands: what is near, what is measured, what is proposed."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.launch.test_profiling import graph_recipe, log_recipe, small_data, small_graph
from windrow.comm.errors import PlanError, RecipeError
from windrow.comm.launcher import launched_rank
from windrow.gnn.partitioning import partition_to_store
from windrow.launch.auto_plan import describe_auto_plan, plan_log
from windrow.launch.cli import main
from windrow.launch.known_links import read_network
from windrow.launch.recipe import Recipe, load_any_recipe
from windrow.launch.recommendation_recipe import RecommendationRecipe, load_recommendation_recipe
from windrow.launch.settings import write_toml
from windrow.launch.sweep import AS_IT_IS, Measured, near_recipes, shorter_formats, sweep_rows
from windrow.recsys.log.store import LogStore

ClickRecipe = Callable[..., RecommendationRecipe]


@pytest.mark.parametrize(
    ("sections", "shortest", "allowed"),
    [
        ({}, "fp32", {"wire.vectors": [], "wire.sums": []}),
        ({}, "int8", {"wire.vectors": ["bf16", "int8"], "wire.sums": ["bf16", "fp8"]}),
        ({"wire": {"vectors": "int8"}}, "int4", {"wire.vectors": ["int4"], "wire.sums": ["bf16", "fp8"]}),
        ({"sampler": {"storage": "fp16"}}, "bf16", {"wire.sums": ["bf16"]}),
        ({"wire": {"topology": "auto", "vectors": "int8"}}, "int8", {"wire.vectors": [], "wire.sums": ["bf16"]}),
    ],
)
def test_formats_are_shorter_than_the_recipes_and_no_shorter_than_allowed(sections, shortest, allowed):
    assert shorter_formats(graph_recipe(**sections), shortest) == allowed


def test_gradients_of_rows_have_formats_where_rows_are_learnt():
    assert shorter_formats(graph_recipe(model={"embedding": True}), "bf16")["wire.gradients"] == ["bf16"]
    assert shorter_formats(log_recipe(), "bf16")["wire.gradients"] == ["bf16"]
    assert "wire.gradients" not in shorter_formats(graph_recipe(), "bf16")


def test_near_recipes_of_a_graph():
    near = near_recipes(graph_recipe(cache={"alpha": 0.3}))
    assert {name: found.cache.alpha for name, found in near.items() if "alpha" in name} == {
        "cache.alpha = 0.15": 0.15,
        "cache.alpha = 0.6": 0.6,
    }
    assert near["cache.window = 8"].cache.window == 8
    assert "pipeline.depth = 4" not in near
    assert all(one.wire == graph_recipe().wire for one in near.values()), "nothing rounds unasked"
    whole = near_recipes(graph_recipe(full_graph={"enabled": True}), shortest="bf16")
    assert [*whole] == ["full_graph.partial_sums = false", "full_graph.recompute = true", 'wire.sums = "bf16"']


def test_what_changes_nothing_is_not_tried():
    near = near_recipes(graph_recipe(cache={"alpha": 0.0}, pipeline={"depth": 0}))
    assert [*near] == ["cache.alpha = 0.1", "pipeline.depth = 2", "pipeline.depth = 4", "pipeline.depth = 8"]
    odd = near_recipes(log_recipe(training={"batch_size": 513, "accumulate": 3}))
    assert {one.training.batch_size for one in odd.values()} == {513}


def test_near_recipes_of_a_log_learn_from_the_same_minibatches():
    recipe = log_recipe(training={"batch_size": 512, "accumulate": 2, "shuffle": "sessions"})
    recipe = replace(recipe, deduplication=replace(recipe.deduplication, groups=(("item",),)))
    near = near_recipes(recipe)
    sizes = {one.training.batch_size * one.training.accumulate for one in near.values()}
    assert sizes == {1024}
    assert "training.batch_size = 256; training.accumulate = 4" in near
    assert near["deduplication.groups = []"].deduplication.groups == ()
    assert {one.plan.planner for one in near.values()} == {"greedy", "greedy_lookups", "row_wise", "neuroshard", "oper"}


def test_the_table_has_the_fastest_first_and_what_was_refused_last():
    def took(*seconds: float) -> Measured:
        return Measured(sample_s=seconds, sent_bytes=2000.0, loss=0.5)

    found = {AS_IT_IS: took(2.0, 4.0), "refused": "a.toml: no room for it", "a": took(1.0, 2.5), "b": took(1.9, 5.0)}
    rows = sweep_rows(found)
    assert [row["change"] for row in rows] == ["a", AS_IT_IS, "b", "refused"]
    assert [row["times as fast"] for row in rows[:3]] == pytest.approx([1.8, 1.0, (2 / 1.9 + 0.8) / 2])
    assert [row[""] for row in rows] == ["faster", "", "no difference that shows", "refused: no room for it"]
    assert rows[0]["kB sent a sample"] == 2.0
    lost = sweep_rows({AS_IT_IS: took(2.0), "lost": replace(took(1.0), loss=float("nan"))})
    assert lost[0][""] == "diverged", "not what --out should write"


def swept(recipe: Recipe | RecommendationRecipe, folder: Path, *options: str) -> dict[str, Any]:
    """What the command writes. Collective under mpirun."""
    file, out = folder / f"{recipe.name}-{launched_rank()}.toml", folder / f"{recipe.name}.json"
    write_toml(file, recipe.settings())
    assert main(["sweep", str(file), "--steps", "2", "--rounds", "2", "--json", str(out), *options]) == 0
    found: dict[str, Any] = json.loads(out.read_text()) if launched_rank() == 0 else {}
    return found


def test_one_rank(graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(graph_file, tmp_path)
    graph = small_graph(tmp_path, 1)
    partition_to_store(graph)
    tries = ["--try", "pipeline.depth=0; training.batch_size=16", "--try", "sampler.fanouts=[4]"]
    with pytest.raises(SystemExit):
        main(["sweep", "--rounds", "many"])
    assert main(["sweep", str(tmp_path / "none.toml"), "--rounds", "0"]) == 2
    file = tmp_path / "tiny.toml"
    write_toml(file, graph.settings())
    assert main(["sweep", str(file), *tries]) == 2
    assert "fanouts" in capsys.readouterr().err, "a change that recipes refuse is refused before anything is trained"
    for wrong, told in (
        (["--try", "run.threads=2"], "[run] is the same"),
        (["--try", "pipeline.depth=2", "--shortest", "bf16"], "give one of the two"),
    ):
        assert main(["sweep", str(file), *wrong]) == 2
        assert told in capsys.readouterr().err
    best = tmp_path / "best.toml"
    found = swept(graph, tmp_path, *tries[:2], "--out", str(best))
    assert [*found] == [AS_IT_IS, tries[1]]
    assert all(len(one["sample_s"]) == 2 and one["sent_bytes"] == 0 for one in found.values())
    assert found[AS_IT_IS]["loss"] == pytest.approx(found[tries[1]]["loss"], rel=0.3)
    assert "round 2 of 2: the recipe as it is" in capsys.readouterr().out
    assert load_any_recipe(best).training.batch_size in {16, 32}
    assert not (tmp_path / "runs").exists()


@pytest.mark.parallel(2)
def test_two_ranks(
    graph_file: Path, shared_tmp_path: Path, click_recipe: ClickRecipe, prepare_clicks: Callable[[Path], None]
) -> None:
    graph = small_data(shared_tmp_path, graph_file, prepare_clicks)
    options = ["--set", "cache.shared_memory=false", "--set", "cache.alpha=0.4"]
    found = swept(graph, shared_tmp_path, *options, "--try", "cache.window=4", "--try", "cache.alpha=0")
    if launched_rank() == 0:
        plain, window, without = found.values()
        assert plain["loss"] == window["loss"] == without["loss"]
        assert 0 < window["sent_bytes"] <= plain["sent_bytes"] < without["sent_bytes"]
    found = swept(click_recipe(shared_tmp_path), shared_tmp_path, "--shortest", "bf16", "--rounds", "1")
    if launched_rank() == 0:
        assert {'plan.planner = "oper"', 'wire.vectors = "bf16"'} <= {*found}
        assert all(isinstance(one, str) or one["sample_s"][0] > 0 for one in found.values())
    # One rank plans for all, and all hear why it cannot: the largest table has 2,304 bytes, all have 2,808.
    room = ["plan.planner=row_wise", "plan.replicate_below_bytes=0", "plan.rank_memory_bytes=1800"]
    tries = ["plan.planner=greedy", "plan.planner=neuroshard", "plan.planner=row_wise; wire.sums=bf16"]
    sets, tried = (
        [word for text in texts for word in (flag, text)] for flag, texts in (("--set", room), ("--try", tries))
    )
    found = swept(click_recipe(shared_tmp_path), shared_tmp_path, *sets, *tried, "--rounds", "1")
    if launched_rank() == 0:
        assert "needs" in found[tries[0]]
        assert all(one["sample_s"][0] > 0 for name, one in found.items() if name != tries[0])


# ------------------------------------------------------------------------------------------------------- plan --auto

SLOW = 'nodes = {}\nranks_per_node = 1\nrate = "200kbit"\nlatency_us = 100.0\n'


@pytest.fixture
def networks(tmp_path: Path) -> Callable[[int], Path]:
    """Descriptions of slow networks of so many machines."""

    def network(ranks: int) -> Path:
        path = tmp_path / f"network-{ranks}.toml"
        path.write_text(SLOW.format(ranks))
        return path

    return network


def planned(path: Path, *options: object) -> int:
    return main(["plan", str(path), "--auto", *map(str, options)])


def test_a_graphs_settings_are_proposed(
    graph_file: Path, tmp_path: Path, networks: Callable[[int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(graph_file, tmp_path)
    graph = small_graph(tmp_path, 2)
    graph = replace(graph, pipeline=replace(graph.pipeline, depth=0))
    partition_to_store(graph)
    path, out = tmp_path / "tiny.toml", tmp_path / "out.toml"
    write_toml(path, graph.settings())
    assert planned(path, "--network", networks(2), "--out", out) == 0
    shown = capsys.readouterr().out
    assert "cache.alpha" in shown
    assert "wire." not in shown, "nothing rounds unasked"
    proposed = load_any_recipe(out)
    assert isinstance(proposed, Recipe)
    assert proposed.pipeline.depth == 4
    assert proposed.cache.alpha == "auto"
    # Where nothing can be kept, short rows pay; settings that are as proposed are not proposed again.
    no_memory = ["--set", "cache.memory_gib=0", "--set", "cache.alpha=0"]
    assert planned(out, "--network", networks(2), "--shortest", "bf16", "--out", out, *no_memory) == 0
    assert "pipeline.depth" not in capsys.readouterr().out
    assert load_any_recipe(out).wire.vectors == "bf16"
    little = ["--set", "cache.memory_gib=1e-6"]
    for memory, window in ((no_memory, 0), (little, 8)):
        assert planned(path, "--network", networks(2), "--out", out, *memory) == 0
        found = load_any_recipe(out)
        assert isinstance(found, Recipe)
        assert found.cache.window == window
    whole = [f"--set={one}" for one in ("full_graph.enabled=true", "cache.alpha=auto", "pipeline.depth=4")]
    for arguments, told in (
        (["--ranks", 3, "--network", networks(2)], "--ranks 3, but"),
        (["--network", networks(3)], "is a network of 3 ranks"),
        (["--compare"], "--compare does not go with --auto"),
        ([*whole, "--network", networks(2)], "full-graph training chooses by itself"),
    ):
        assert planned(path, *arguments) == 2, told
        assert told in capsys.readouterr().err
    assert main(["plan", str(path), "--shortest", "bf16"]) == 2
    assert "--shortest goes with --auto" in capsys.readouterr().err


def test_a_logs_settings_are_proposed(
    tmp_path: Path,
    click_recipe: ClickRecipe,
    prepare_clicks: Callable[[Path], None],
    networks: Callable[[int], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare_clicks(tmp_path)
    recipe = click_recipe(tmp_path)
    recipe = replace(recipe, plan=replace(recipe.plan, planner="row_wise", replicate_below_bytes=0))
    path, out = tmp_path / "clicks.toml", tmp_path / "out.toml"
    write_toml(path, recipe.settings())
    assert planned(path) == 2
    assert "say how many ranks" in capsys.readouterr().err
    assert planned(path, "--ranks", 4, "--network", networks(4), "--shortest", "int8", "--out", out) == 0
    assert "times as fast" in capsys.readouterr().out
    proposed = load_any_recipe(out)
    assert proposed.wire.sums in {"bf16", "fp8"}
    assert planned(path, "--ranks", 4, "--network", networks(4)) == 0
    assert "wire." not in capsys.readouterr().out, "nothing rounds unasked"
    store = LogStore.open(recipe.store)
    alone = plan_log(recipe, store, 1, None)
    assert alone.after.seconds <= alone.before.seconds
    assert describe_auto_plan(replace(alone, changes={}), recipe).startswith("nothing is predicted to be faster")
    with pytest.raises(PlanError):
        plan_log(replace(recipe, plan=replace(recipe.plan, rank_memory_bytes=8)), store, 2, None)
    # Every rank would hold everything: there is room for half of it.
    most = round(0.8 * alone.before.memory_bytes)
    everywhere = replace(recipe.plan, planner="replicated", rank_memory_bytes=most)
    fits = plan_log(replace(recipe, plan=everywhere), store, 2, None)
    assert fits.before is None
    assert fits.after.memory_bytes <= most
    assert "finds no room for the tables" in describe_auto_plan(fits, recipe)
    with pytest.raises(RecipeError, match="neither"):
        load_any_recipe(networks(4))


@pytest.mark.parametrize("slow", [True, False])
def test_groups_of_deduplication_are_proposed_where_they_spare_more_than_they_take(
    planted_recipes: dict[str, Path], networks: Callable[[int], Path], slow: bool
) -> None:
    recipe = load_recommendation_recipe(planted_recipes["sessions"], ["training.shuffle=sessions"])
    found = plan_log(recipe, LogStore.open(recipe.store), 2, read_network(networks(2)) if slow else None)
    groups = found.changes.get("deduplication.groups", [])
    assert bool(groups) == slow
    assert not groups or "history" in {name for group in groups for name in group}
