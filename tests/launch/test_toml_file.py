"""windrow.launch.settings: overrides, and files that cannot be read."""

from pathlib import Path

import pytest

from windrow.comm.errors import RecipeError
from windrow.launch.settings import read_toml, with_overrides, write_toml


def test_a_written_file_reads_back(tmp_path: Path) -> None:
    values = {"a": {"b": [1, 2.5, "x"], "c": {"d": True}}, "e": "none"}
    write_toml(tmp_path / "f.toml", values)
    assert read_toml(tmp_path / "f.toml") == values


def test_overrides_are_toml_values_or_bare_words() -> None:
    values = {"model": {"kind": "gcn"}, "note": "old"}
    changed = with_overrides(
        values,
        [
            "model.kind=graphsage",
            "model.dropout=0.25",
            "fanouts=[3, 4]",
            "note = two words",
            'pair=[1, "x=y"]',
            "a.b.c=true",
        ],
    )
    assert changed["model"] == {"kind": "graphsage", "dropout": 0.25}
    assert changed["fanouts"] == [3, 4]
    assert changed["note"] == "two words"
    assert changed["pair"] == [1, "x=y"]
    assert changed["a"] == {"b": {"c": True}}
    assert values == {"model": {"kind": "gcn"}, "note": "old"}
    assert with_overrides({}, ["x=1", "x=2"]) == {"x": 2}
    assert with_overrides({}, ["x=1\ny = 2"]) == {"x": "1\ny = 2"}


@pytest.mark.parametrize("assignment", ["training.epochs", "=3", "a..b=1", "note.x=1"])
def test_bad_overrides_are_refused(assignment: str) -> None:
    with pytest.raises(RecipeError, match="--set"):
        with_overrides({"note": "text"}, [assignment])


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such file"):
        read_toml(tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("a = \n")
    with pytest.raises(RecipeError, match=r"broken\.toml: not valid TOML.*line 1"):
        read_toml(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match="cannot be read as text"):
        read_toml(broken)
    with pytest.raises(RecipeError, match="cannot be read"):
        read_toml(tmp_path)
