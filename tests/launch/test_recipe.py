"""windrow.launch.recipe, recommendation_recipe: what is read, and refused with file, section and key."""

import collections.abc
import dataclasses
import typing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from windrow.comm.errors import RecipeError
from windrow.launch.recipe import Recipe, load_any_recipe, load_recipe, make_recipe
from windrow.launch.recommendation_recipe import (
    RecommendationRecipe,
    load_recommendation_recipe,
    make_recommendation_recipe,
)
from windrow.launch.settings import PATHS, read_toml, write_toml

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RECIPES = {
    path.stem: Recipe if "graph" in values else RecommendationRecipe
    for path in EXAMPLES.glob("*.toml")
    if {"graph", "log"} & (values := read_toml(path)).keys()
}


def make(**sections: Any) -> Recipe:
    values = {"name": "r", "store": "stores/r", "graph": {"path": "g.npz"}}
    return make_recipe(values | sections, source="r.toml", base=Path("/base"))


@pytest.mark.parametrize(("name", "kind"), RECIPES.items())
def test_shipped_recipes_load_and_survive_their_file(tmp_path: Path, name: str, kind: type) -> None:
    recipe = load_any_recipe(EXAMPLES / f"{name}.toml")
    assert isinstance(recipe, kind)
    assert recipe.name == name
    if isinstance(recipe, Recipe):
        assert Path(recipe.graph.path) == EXAMPLES / "data" / f"{name}.npz"
    write_toml(tmp_path / "recipe.toml", recipe.settings())
    # Interactions have no store, and "." is the folder of whatever file says so.
    expected = recipe if recipe.store != Path() else replace(recipe, store=tmp_path)
    assert load_any_recipe(tmp_path / "recipe.toml") == expected


def test_paths_start_from_the_folder_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make()
    assert (recipe.store, recipe.graph.path) == (Path("/base/stores/r"), "/base/g.npz")
    (tmp_path / "sub").mkdir()
    write_toml(tmp_path / "sub" / "r.toml", {"store": "s", "graph": {"path": "g"}})
    monkeypatch.chdir(tmp_path)
    relative = load_recipe(Path("sub/r.toml"))
    assert (relative.store, relative.graph.path) == (tmp_path / "sub" / "s", str(tmp_path / "sub" / "g"))
    assert relative.name == "r"
    write_toml(tmp_path / "sub" / "r.toml", {"store": "../s", "graph": {"path": "g"}})
    assert load_recipe(Path("sub/r.toml")).store == tmp_path / "s"
    typed = load_recipe(Path("sub/r.toml"), ["store=s", "graph.path=../g", "run.folder=none"])
    assert (typed.store, typed.graph.path) == (tmp_path / "s", str(tmp_path.parent / "g"))
    assert typed.run.folder is None


def paths_among(kind: Any, place: str = "") -> set[str]:
    """Settings that are paths, by their names with the sections; ``*`` for a name that the user chooses."""
    if typing.get_origin(kind) is collections.abc.Mapping:
        return paths_among(typing.get_args(kind)[1], f"{place}*.")
    if dataclasses.is_dataclass(kind):
        fields = typing.get_type_hints(kind).items()
        return {found for name, inner in fields for found in paths_among(inner, f"{place}{name}.")}
    inside = typing.get_args(kind)
    return {found for inner in inside for found in paths_among(inner, place)} | (
        {place[:-1]} if kind is Path else set()
    )


def test_every_path_may_be_typed() -> None:
    found = paths_among(Recipe) | paths_among(RecommendationRecipe)
    assert {"store", "run.folder", "log.paths", "tables.pretrained.*"} <= found
    assert not [name for name in found if not PATHS.fullmatch(name)]


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"sampler": {"fanouts": [5, 5, 5]}, "model": {"num_layers": 2}},
            "r.toml: sampler.fanouts = [5, 5, 5] has 3 hops, but model.num_layers = 2: give one fanout for each layer",
        ),
        (
            {"evaluation": {"method": "sampled", "fanouts": [5]}},
            "evaluation.fanouts = [5] has 1 hops, but model.num_layers = 3",
        ),
        ({"sampler": {"fanouts": [5, 0, 5]}}, "[sampler] fanouts[1] = 0 must be an integer of at least 1 or -1"),
        ({"evaluation": {"fanouts": [5, 0, 5]}}, "[evaluation] fanouts[1] = 0 must be an integer of at least 1"),
        ({"training": {"schedule": {"kind": "cosin"}}}, "[training.schedule] kind = 'cosin'"),
        ({"partition": {"num_parts": 0}}, "num_parts = 0"),
        ({"graph": {}}, "[graph] needs a value for 'path'"),
        ({"wire": {"vectors": "fp8"}}, "[wire] vectors = 'fp8' must be one of 'fp32'"),
        (
            {"wire": {"vectors": "bf16"}, "sampler": {"storage": "fp16"}},
            'wire.vectors = "bf16" with sampler.storage = "fp16": rows travel as they are stored',
        ),
        ({"wire": {"gradients": "bf16"}}, "features of vertices are not learnt"),
        ({"sampler": {"wire": "bf16"}}, "[sampler] has no key 'wire'"),
        (
            {"full_graph": {"enabled": True}, "training": {"accumulate": 2}},
            "training.accumulate = 2 with full_graph.enabled = true, where every step takes all vertices",
        ),
        ({"full_graph": {"messages": "int4"}}, "set full_graph.enabled = true, or leave it out"),
        ({"full_graph": {"enabled": True, "messages": "int3"}}, "[full_graph] messages = 'int3' must be one of 'wire'"),
    ],
)
def test_bad_settings_are_refused(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        make(**sections)
    assert words in str(caught.value)


def test_overrides_win(repository: Path) -> None:
    recipe = load_recipe(repository / "examples" / "cora.toml", ["model.kind=gat", "sampler.fanouts=[3, 4]", "name=x"])
    assert (recipe.model.kind, recipe.sampler.fanouts, recipe.name) == ("gat", (3, 4), "x")


def test_decisive_settings_leave_out_places_and_machines() -> None:
    one = make(run={"seed": 3, "deadline_s": 5})
    other = make(store="elsewhere", graph={"path": "moved.npz"}, partition={"num_parts": 4}, run={"seed": 3})
    assert one.decisive_settings() == other.decisive_settings()
    assert one.decisive_settings() != make(run={"seed": 4}).decisive_settings()
    assert one.decisive_settings() != make(model={"hidden": 7}, run={"seed": 3}).decisive_settings()


def test_a_section_of_data_is_needed() -> None:
    values = {"name": "x", "store": "s"}
    with pytest.raises(RecipeError, match="needs the section 'graph'"):
        make_recipe(values, source="r.toml", base=Path("/base"))
    with pytest.raises(RecipeError, match="needs the section 'log'"):
        make_recommendation_recipe(values, source="r.toml", base=Path("/base"))


def test_overrides_reach_features(tmp_path: Path, click_recipe: Callable[..., RecommendationRecipe]) -> None:
    recipe = click_recipe(tmp_path, plan={"planner": "row_wise"})
    assert (recipe.store, recipe.log.paths) == (tmp_path / "clicks", (tmp_path / "log.csv",))
    write_toml(tmp_path / "r.toml", recipe.settings())
    assert load_any_recipe(tmp_path / "r.toml") == load_recommendation_recipe(tmp_path / "r.toml") == recipe
    changed = load_any_recipe(tmp_path / "r.toml", ["log.features.user.rows=50", "tables.dim=4"])
    assert isinstance(changed, RecommendationRecipe)
    assert changed.log.features["user"].rows == 50
    assert list(changed.log.features) == ["item", "user"]
    assert changed.tables.dim == 4


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({}, "has neither a section .graph. nor .log.: give .graph. to train on a graph"),
        ({"graph": {}, "log": {}}, "has both sections .graph. and .log."),
        ({"task": {"kind": "NodeTask"}}, "that of a Python program, which alone has its model and data"),
    ],
)
def test_neither_and_both_are_refused(tmp_path: Path, sections: dict[str, object], words: str) -> None:
    write_toml(tmp_path / "r.toml", {"store": "s", **sections})
    with pytest.raises(RecipeError, match=words):
        load_any_recipe(tmp_path / "r.toml")


@pytest.mark.parametrize(
    ("section", "load", "words"),
    [
        ("log", load_recipe, r"section \[log\].*windrow prepare prepares its log"),
        ("graph", load_recommendation_recipe, r"section \[graph\].*windrow partition prepares it"),
    ],
)
def test_the_other_kind_is_refused_with_what_it_is_for(
    tmp_path: Path, section: str, load: Callable[[Path], object], words: str
) -> None:
    write_toml(tmp_path / "r.toml", {"store": "s", section: {}})
    with pytest.raises(RecipeError, match=words):
        load(tmp_path / "r.toml")


INTERACTIONS = {"log": {"paths": ["g.npz"], "format": "interactions"}, "model": {"kind": "two_tower"}}


def test_interactions_need_no_store() -> None:
    values = {"name": "x", **INTERACTIONS}
    assert make_recommendation_recipe(values, source="r.toml", base=Path("/base")).log.features == {}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"log": INTERACTIONS["log"], "store": "s"}, 'format = "interactions" and model.kind = "dlrm"'),
        ({"log": {"paths": ["a.csv"], "format": "csv"}}, "needs a value for 'store'"),
        (INTERACTIONS | {"log": {"paths": ["a", "b"], "format": "interactions"}}, "give one path in log.paths"),
        (
            INTERACTIONS | {"split": {"fractions": [0.6, 0.2, 0.2]}},
            "split.fractions with format = .interactions.: leave",
        ),
        (INTERACTIONS | {"split": {"by": "time"}}, "split.by with format = .interactions.: leave it out"),
        (INTERACTIONS | {"split": {"by": "files", "validation_paths": ["v"]}}, "split.validation_paths with format"),
        (INTERACTIONS | {"split": {"by": "files", "test_paths": ["t"]}}, "g.npz, a file that has its own test split"),
        (INTERACTIONS | {"deduplication": {"groups": [["history"]]}}, "deduplication.groups: for prepared logs"),
        (INTERACTIONS | {"training": {"shuffle": "none"}}, "training.shuffle: for prepared logs"),
        (
            {
                "log": {"paths": ["a.csv"], "format": "csv"},
                "store": "s",
                "deduplication": {"groups": [["user"]], "cluster": True},
            },
            'set training.shuffle = "sessions"',
        ),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        make_recommendation_recipe({"name": "x", **values}, source="r.toml", base=Path("/base"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"log": {"features": {"item": {"row": 3}}}}, r"\[log\.features\.item\] has no key 'row'. Did you mean 'rows'"),
        ({"tables": {"dim": 0}}, r"\[tables\].*dim = 0"),
        ({"training": {"epochs": 0}}, r"\[training\].*epochs = 0"),
        ({"plan": {"planner": "magic"}}, r'\[plan\] planner = "magic": expected one of'),
    ],
)
def test_mistakes_are_named(
    click_recipe: Callable[..., RecommendationRecipe], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(RecipeError, match=words):
        click_recipe(Path("/base"), **changes)


DEDUPLICATED = {"deduplication": {"groups": [["item"]]}}


def test_what_a_checkpoint_depends_on(click_recipe: Callable[..., RecommendationRecipe]) -> None:
    recipe = click_recipe(Path("/a"))
    elsewhere = click_recipe(Path("/b"), plan={"planner": "row_wise"}, run={"threads": 3})
    assert recipe.decisive_settings() == elsewhere.decisive_settings()
    for changes in ({"run": {"seed": 1}}, {"tables": {"dim": 4}}, {"training": {"batch_size": 7}}, DEDUPLICATED):
        assert recipe.decisive_settings() != click_recipe(Path("/a"), **changes).decisive_settings()
