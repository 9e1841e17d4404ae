"""windrow.launch.recipe: the shipped recipes are right, and the checks across sections hold."""

from pathlib import Path
from typing import Any

import pytest

from windrow.comm.errors import RecipeError
from windrow.launch.recipe import Recipe, load_recipe, make_recipe
from windrow.launch.settings import read_toml, write_toml

EXAMPLES = ("tolokers", "minesweeper", "cora", "coauthor_physics")


def make(**sections: Any) -> Recipe:
    values = {"name": "r", "store": "stores/r", "graph": {"path": "g.npz"}}
    return make_recipe(values | sections, source="r.toml", base=Path("/base"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_shipped_recipes_load(repository: Path, name: str) -> None:
    recipe = load_recipe(repository / "examples" / f"{name}.toml")
    assert recipe.name == name
    assert Path(recipe.graph.path) == repository / "examples" / "data" / f"{name}.npz"


def test_every_shipped_recipe_is_tested(repository: Path) -> None:
    recipes = (repository / "examples").glob("*.toml")
    assert {path.stem for path in recipes if "graph" in read_toml(path)} == set(EXAMPLES)


def test_paths_start_from_the_folder_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make()
    assert recipe.store == Path("/base/stores/r")
    assert recipe.graph.path == "/base/g.npz"
    (tmp_path / "sub").mkdir()
    write_toml(tmp_path / "sub" / "r.toml", {"store": "s", "graph": {"path": "g"}})
    monkeypatch.chdir(tmp_path)
    relative = load_recipe(Path("sub/r.toml"))
    assert relative.store == tmp_path / "sub" / "s"
    assert relative.graph.path == str(tmp_path / "sub" / "g")
    assert relative.name == "r"


def test_a_fanout_list_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(RecipeError) as caught:
        make(sampler={"fanouts": [5, 5, 5]}, model={"num_layers": 2})
    message = str(caught.value)
    assert "r.toml" in message
    assert "sampler.fanouts = [5, 5, 5]" in message
    assert "model.num_layers = 2" in message
    assert "one fanout for each layer" in message


def test_fanouts_of_evaluation_are_checked_too() -> None:
    with pytest.raises(
        RecipeError, match=r"evaluation\.fanouts = \[5\] has 1 hops, but model\.num_layers = 3"
    ):
        make(evaluation={"method": "sampled", "fanouts": [5]})


@pytest.mark.parametrize("section", ["sampler", "evaluation"])
def test_a_fanout_of_zero_is_refused(section: str) -> None:
    with pytest.raises(
        RecipeError, match=rf"{section}\.fanouts = \[5, 0, 5\]: each must be at least 1, or -1"
    ):
        make(**{section: {"fanouts": [5, 0, 5]}})


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"modle": {}}, "Did you mean 'model'"),
        ({"model": {"hiden": 3}}, "[model] has no key 'hiden'. Did you mean 'hidden'"),
        ({"training": {"epochs": "many"}}, "[training] epochs = 'many'"),
        ({"training": {"schedule": {"kind": "cosin"}}}, "[training.schedule] kind = 'cosin'"),
        ({"partition": {"num_parts": 0}}, "num_parts = 0"),
        ({"graph": {}}, "[graph] needs a value for 'path'"),
        ({"wire": {"vectors": "fp8"}}, "[wire] vectors = 'fp8' has the wrong type: expected one of 'fp32'"),
        (
            {"wire": {"vectors": "bf16"}, "sampler": {"storage": "fp16"}},
            'wire.vectors = "bf16" with sampler.storage = "fp16": rows travel as they are stored',
        ),
        ({"wire": {"gradients": "bf16"}}, "features of vertices are not learnt"),
        ({"sampler": {"wire": "bf16"}}, "[sampler] has no key 'wire'"),
    ],
)
def test_bad_settings_are_refused(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        make(**sections)
    assert words in str(caught.value)


def test_a_missing_graph_section_is_refused(tmp_path: Path) -> None:
    write_toml(tmp_path / "r.toml", {"store": "s"})
    with pytest.raises(RecipeError, match="needs the section 'graph'"):
        load_recipe(tmp_path / "r.toml")


def test_overrides_win(repository: Path) -> None:
    recipe = load_recipe(
        repository / "examples" / "cora.toml", ["model.kind=gat", "sampler.fanouts=[3, 4]", "name=x"]
    )
    assert recipe.model.kind == "gat"
    assert recipe.sampler.fanouts == (3, 4)
    assert recipe.name == "x"


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_recipe_in_a_run_folder_is_the_same_recipe(repository: Path, tmp_path: Path, name: str) -> None:
    recipe = load_recipe(repository / "examples" / f"{name}.toml")
    write_toml(tmp_path / "recipe.toml", recipe.settings())
    assert load_recipe(tmp_path / "recipe.toml") == recipe


def test_decisive_settings_leave_out_places_and_machines() -> None:
    one = make(run={"seed": 3, "deadline_s": 5})
    other = make(store="elsewhere", graph={"path": "moved.npz"}, partition={"num_parts": 4}, run={"seed": 3})
    assert one.decisive_settings() == other.decisive_settings()
    assert one.decisive_settings() != make(run={"seed": 4}).decisive_settings()
    assert one.decisive_settings() != make(model={"hidden": 7}, run={"seed": 3}).decisive_settings()


def test_the_recipe_of_a_log_is_told_from_a_graphs() -> None:
    with pytest.raises(RecipeError, match=r"section \[log\].*windrow prepare prepares its log"):
        make_recipe({"name": "x", "store": "s", "log": {}}, source="r.toml", base=Path("/base"))
