"""windrow.launch.settings: TOML and overrides to dataclasses and back; every refusal names the place and the cure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError
from windrow.launch.settings import parse_settings, read_toml, settings_to_dict, with_overrides, write_toml


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    kind: Literal["graphsage", "gcn"]
    hidden: int = 64
    dropout: float = 0.5
    residual: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise RecipeError(f"dropout = {self.dropout} must be at least 0 and below 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Everything:
    model: Model
    fanouts: tuple[int, ...] = (10, 5)
    pair: tuple[int, str] = (1, "a")
    data: Path = Path("/data")
    decay: float | None = 0.9
    threads: int | Literal["auto"] = "auto"
    cache: Path | None = None
    note: str = ""
    other: Model = field(default_factory=lambda: Model(kind="gcn"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    rows: int
    column: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    features: Mapping[str, Feature]
    models: Mapping[str, Model] = field(default_factory=dict)


def parse(values: dict[str, Any], kind: type[Any] = Everything) -> Any:
    return parse_settings(kind, values, source="r.toml", base=Path("/base"))


def test_values_arrive_with_their_types() -> None:
    settings = parse(
        {
            "model": {"kind": "gcn", "dropout": 0},
            "fanouts": [3],
            "pair": [2, "b"],
            "data": "x/y",
            "decay": "none",
            "threads": 4,
        }
    )
    assert settings == Everything(
        model=Model(kind="gcn", dropout=0.0), fanouts=(3,), pair=(2, "b"), data=Path("/base/x/y"), decay=None, threads=4
    )
    assert isinstance(settings.model.dropout, float)
    assert parse({"model": {"kind": "gcn"}, "data": "/abs"}).data == Path("/abs")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": {"kind": "gcn", "hiden": 3}}, ["r.toml: [model]", "'hiden'", "Did you mean 'hidden'"]),
        ({"modle": {}}, ["r.toml: has no key 'modle'", "'model'"]),
        ({"model": {"kind": "gcn", "zzz": 3}}, ["no key 'zzz'", "Its keys: kind, hidden, dropout, residual"]),
        ({}, ["needs the section 'model'"]),
        ({"model": {}}, ["[model] needs a value for 'kind'"]),
        ({"model": 3}, ["[model] must be a section", "3"]),
        ({"model": {"kind": "gat"}}, ["kind = 'gat'", "one of 'graphsage', 'gcn'"]),
        ({"model": {"kind": "gcn", "hidden": 1.5}}, ["hidden = 1.5", "an integer"]),
        ({"model": {"kind": "gcn", "hidden": True}}, ["hidden = True", "an integer"]),
        ({"model": {"kind": "gcn", "dropout": True}}, ["dropout = True", "a number"]),
        ({"model": {"kind": "gcn", "dropout": "0.1"}}, ["dropout = '0.1'", "a number"]),
        ({"model": {"kind": "gcn", "residual": 1}}, ["residual = 1", "true or false"]),
        ({"model": {"kind": "gcn", "dropout": 2}}, ["r.toml: [model] dropout = 2.0 must be"]),
        ({"model": {"kind": "gcn"}, "fanouts": 3}, ["fanouts = 3", "a list of an integer"]),
        ({"model": {"kind": "gcn"}, "fanouts": [3, "x"]}, ["fanouts = [3, 'x']"]),
        ({"model": {"kind": "gcn"}, "pair": [3]}, ["a list of (an integer, a string)"]),
        ({"model": {"kind": "gcn"}, "data": 3}, ["data = 3", "a path"]),
        ({"model": {"kind": "gcn"}, "threads": "many"}, ["threads = 'many'", "an integer or one of 'auto'"]),
        ({"model": {"kind": "gcn"}, "decay": "non"}, ["decay = 'non'", 'a number or "none"']),
        ({"features": 3}, ["r.toml: [features] must be a section with names of its own, got 3"]),
        ({"features": {"age": 3}}, ["[features.age] must be a section with keys of its own, got 3"]),
        ({"features": {"age": {}}}, ["[features.age] needs a value for 'rows'"]),
        ({"features": {"age": {"rws": 3}}}, ["[features.age] has no key 'rws'", "Did you mean 'rows'"]),
        ({"features": {"age": {"rows": "x"}}}, ["[features.age] rows = 'x'", "an integer"]),
        ({"features": {}, "models": {"a": {"kind": "gcn", "dropout": 2}}}, ["[models.a] dropout = 2.0 must"]),
    ],
)
def test_bad_values_are_refused_with_place_and_cure(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        parse(values, Log if "features" in values else Everything)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(("kind", "value"), [(set[int], [1]), (Mapping[int, int], {1: 1})])
def test_an_unsupported_field_type_is_the_programmers_error(kind: Any, value: Any) -> None:
    with pytest.raises(TypeError, match="cannot hold fields of type"):
        parse_settings(make_dataclass("Odd", [("value", kind)]), {"value": value}, source="r", base=Path())


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda text: text != "none")
MODELS = st.builds(
    Model,
    kind=st.sampled_from(["graphsage", "gcn"]),
    hidden=st.integers(-(2**63), 2**63 - 1),
    dropout=st.floats(0, 1, exclude_max=True),
    residual=st.booleans(),
)


@given(
    st.builds(
        Everything,
        model=MODELS,
        fanouts=st.lists(st.integers(-1, 100)).map(tuple),
        pair=st.tuples(st.integers(0, 9), TEXT),
        decay=st.none() | st.floats(allow_nan=False),
        threads=st.just("auto") | st.integers(0, 9),
        cache=st.none() | st.just(Path("/some/where")),
        note=TEXT,
    )
)
def test_writing_and_reading_give_the_same_settings(
    tmp_path_factory: pytest.TempPathFactory, settings: Everything
) -> None:
    path = tmp_path_factory.mktemp("toml") / "r.toml"
    write_toml(path, settings_to_dict(settings))
    assert parse_settings(Everything, read_toml(path), source="r", base=Path()) == settings


# ----------------------------------------------------------------------------------------------------- tables of tables


def test_tables_of_tables_arrive_in_the_order_of_the_file() -> None:
    log = parse({"features": {"zip": {"rows": 3}, "age": {"rows": 9, "column": "a"}}}, Log)
    assert list(log.features.items()) == [("zip", Feature(rows=3)), ("age", Feature(rows=9, column="a"))]
    assert log.models == {}


def test_a_mapping_to_plain_values_keeps_its_names() -> None:
    @dataclass
    class Files:
        files: Mapping[str, Path]

    parsed = parse_settings(Files, {"files": {"b": "x.npy", "a": "y.npy"}}, source="r", base=Path("/data"))
    assert list(parsed.files.items()) == [("b", Path("/data/x.npy")), ("a", Path("/data/y.npy"))]
    with pytest.raises(RecipeError, match=r"\[files\] a = 3 has the wrong type: expected a path"):
        parse_settings(Files, {"files": {"a": 3}}, source="r", base=Path("/data"))


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.dictionaries(NAMES, st.builds(Feature, rows=st.integers(0, 9), column=st.none() | TEXT)))
def test_tables_of_tables_survive_a_file(
    tmp_path_factory: pytest.TempPathFactory, features: dict[str, Feature]
) -> None:
    path = tmp_path_factory.mktemp("toml") / "r.toml"
    log = Log(features=features)
    write_toml(path, settings_to_dict(log))
    again = parse(read_toml(path), Log)
    assert again == log
    assert list(again.features) == list(features)


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
    assert changed == {
        "model": {"kind": "graphsage", "dropout": 0.25},
        "fanouts": [3, 4],
        "note": "two words",
        "pair": [1, "x=y"],
        "a": {"b": {"c": True}},
    }
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
