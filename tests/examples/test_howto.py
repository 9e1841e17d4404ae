"""The Python and TOML in docs/howto.md is right: every program runs, every recipe is accepted."""

import re
import tomllib
import warnings
from pathlib import Path

import pytest

from windrow.launch.cli import main
from windrow.launch.recipe import make_recipe

HOWTO = Path(__file__).resolve().parent.parent.parent / "docs" / "howto.md"


def blocks(language: str) -> list[str]:
    text = HOWTO.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "recipes").mkdir()
    monkeypatch.chdir(tmp_path / "recipes")
    return tmp_path


def run(program: str) -> None:
    with warnings.catch_warnings():
        # What DGL and PyG warn of when they are imported is not ours to cure.
        warnings.simplefilter("ignore")
        exec(compile(program, str(HOWTO), "exec"), {})  # the document's own programs


def test_there_are_programs_and_recipes() -> None:
    assert len(blocks("python")) == 3
    assert len(blocks("toml")) == 2


@pytest.mark.parametrize("recipe", blocks("toml"))
def test_recipes_are_accepted(recipe: str, tmp_path: Path) -> None:
    make_recipe({"name": "mine", **tomllib.loads(recipe)}, source="howto.md", base=tmp_path)


def test_the_archive_becomes_a_store(somewhere_else: Path) -> None:
    run(blocks("python")[0])
    Path("mine.toml").write_text(blocks("toml")[0])
    assert main(["partition", "mine.toml", "--method", "random"]) == 0
    assert (somewhere_else / "stores" / "mine-2" / "manifest.json").is_file()


def test_tables_become_a_store(somewhere_else: Path) -> None:
    Path("friends.csv").write_text("from,to\nanna,bert\nbert,carl\ncarl,dora\n")
    Path("people.csv").write_text(
        "id,age,income,group,split\nbert,3,1.5,1,train\nanna,7,.2,0,train\ncarl,5,1,1,validation\ndora,1,2,0,test\n"
    )
    Path("people.toml").write_text(blocks("toml")[1])
    assert main(["partition", "people.toml", "--method", "random"]) == 0
    assert (somewhere_else / "stores" / "people-2" / "manifest.json").is_file()


@pytest.mark.parametrize(("number", "made"), [(1, "mine.dgl"), (2, "stores/mine-2")])
def test_programs_run(somewhere_else: Path, number: int, made: str) -> None:
    run(blocks("python")[number])
    assert Path(made).exists()
