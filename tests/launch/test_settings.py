"""windrow.launch.settings: TOML and overrides to dataclasses and back; every refusal names the place and the cure."""

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError
from windrow.comm.options import PathOption, PositiveInt, Probability, Sections, checked_dataclass
from windrow.launch.settings import parse_settings, read_toml, settings_to_dict, with_overrides, write_toml


@checked_dataclass
class Model:
    kind: Literal["graphsage", "gcn"]
    hidden: PositiveInt = 64
    dropout: Probability = 0.5
    residual: bool = False

    def __post_init__(self) -> None:
        if self.kind == "gcn" and self.residual:
            raise RecipeError("residual = true is not for gcn: leave it out")


@checked_dataclass
class Everything:
    model: Model
    fanouts: tuple[PositiveInt | Literal[-1], ...] = (10, 5)
    pair: tuple[int, str] = (1, "a")
    data: PathOption = Path("/data")
    decay: float | None = 0.9
    threads: int | Literal["auto"] = "auto"
    cache: PathOption | None = None
    word: str | None = None
    note: str = ""
    other: Model = field(default_factory=lambda: Model(kind="gcn"))


@checked_dataclass
class Feature:
    rows: int
    column: str | None = None


@checked_dataclass
class Tables:
    dim: PositiveInt = 8
    per_table: Sections[Feature] = field(default_factory=dict)


@checked_dataclass
class Log:
    features: Mapping[str, Feature]
    tables: Tables = Tables()
    models: Mapping[str, Model] = field(default_factory=dict)


GCN = {"model": {"kind": "gcn"}}


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
            "word": "none",
        }
    )
    assert settings == Everything(
        model=Model(kind="gcn", dropout=0.0), fanouts=(3,), pair=(2, "b"), data=Path("/base/x/y"), decay=None, threads=4
    )
    assert isinstance(settings.model.dropout, float)
    assert parse({"model": {"kind": "gcn"}, "data": "/abs"}).data == Path("/abs")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": {"kind": "gcn", "hiden": 3}}, "[model] has no key 'hiden'. Did you mean 'hidden'?"),
        ({"modle": {}, "model": {"kind": "gcn"}}, "has no key 'modle'. Did you mean 'model'?"),
        ({"model": {"kind": "gcn", "zz": 3}}, "[model] has no key 'zz'. There are: kind, hidden, dropout, residual."),
        ({}, "needs the section 'model'"),
        ({"model": {}}, "[model] needs a value for 'kind'"),
        ({"model": 3}, "[model] must be a section with keys of its own, got 3"),
        ({"model": {"kind": "gat"}}, "[model] kind = 'gat' must be one of 'graphsage', 'gcn'"),
        ({"model": {"kind": "gcn", "hidden": 1.0}}, "[model] hidden = 1.0 must be an integer of at least 1"),
        ({"model": {"kind": "gcn", "hidden": True}}, "[model] hidden = True must be an integer of at least 1"),
        ({"model": {"kind": "gcn", "hidden": 0}}, "[model] hidden = 0 must be an integer of at least 1"),
        (
            {"model": {"kind": "gcn", "dropout": True}},
            "[model] dropout = True must be a number of at least 0 and below 1",
        ),
        (
            {"model": {"kind": "gcn", "dropout": "0"}},
            "[model] dropout = '0' must be a number of at least 0 and below 1",
        ),
        ({"model": {"kind": "gcn", "dropout": 1}}, "[model] dropout = 1 must be a number of at least 0 and below 1"),
        ({"model": {"kind": "gcn", "residual": 1}}, "[model] residual = 1 must be true or false"),
        ({"model": {"kind": "gcn", "residual": True}}, "[model] residual = true is not for gcn: leave it out"),
        ({**GCN, "fanouts": 3}, "fanouts = 3 must be a list, each an integer of at least 1 or -1"),
        ({**GCN, "fanouts": [3, 0]}, "fanouts[1] = 0 must be an integer of at least 1 or -1"),
        ({**GCN, "pair": [3]}, "pair = [3] must be a list of (an integer, a string)"),
        ({**GCN, "data": 3}, "data = 3 must be a path"),
        ({**GCN, "note": 3}, "note = 3 must be a string"),
        ({**GCN, "threads": "many"}, "threads = 'many' must be an integer or 'auto'"),
        ({**GCN, "decay": "non"}, "decay = 'non' must be a number or \"none\""),
        ({**GCN, "decay": float("inf")}, 'decay = inf must be a number or "none"'),
        ({"features": 3}, "[features] must be a section with keys of its own, got 3"),
        ({"features": {"age": 3}}, "[features.age] must be a section with keys of its own, got 3"),
        ({"features": {"age": {}}}, "[features.age] needs a value for 'rows'"),
        ({"features": {"age": {"rws": 3, "rows": 3}}}, "[features.age] has no key 'rws'. Did you mean 'rows'?"),
        ({"features": {"age": {"rows": "x"}}}, "[features.age] rows = 'x' must be an integer"),
        (
            {"features": {}, "models": {"a": {"kind": "gcn", "hidden": 0}}},
            "[models.a] hidden = 0 must be an integer of at least 1",
        ),
        ({"features": {}, "tables": {"age": {"rows": "x"}}}, "[tables.age] rows = 'x' must be an integer"),
        ({"features": {}, "tables": {"dmi": 3}}, "[tables] has no key 'dmi'. Did you mean 'dim'?"),
        ({"features": {}, "tables": {"xyz": 3}}, "[tables] has no key 'xyz'. There are: dim."),
    ],
)
def test_bad_values_are_refused_with_place_and_cure(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse(values, Log if "features" in values else Everything)
    assert str(caught.value) == f"r.toml: {message}"


def test_all_bad_values_are_named_at_once() -> None:
    with pytest.raises(RecipeError) as caught:
        parse({"model": {"kind": "gcn", "hidden": 0, "hiden": 1}, "note": 3})
    assert str(caught.value).splitlines() == [
        "r.toml: [model] hidden = 0 must be an integer of at least 1",
        "r.toml: [model] has no key 'hiden'. Did you mean 'hidden'?",
        "r.toml: note = 3 must be a string",
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Model(kind="gcn", hidden=0), "hidden = 0 must be an integer of at least 1"),
        (lambda: replace(Model(kind="gcn"), dropout=1.0), "dropout = 1.0 must be a number of at least 0 and below 1"),
        (lambda: Model(kind="gcn", hiden=3), "has no key 'hiden'. Did you mean 'hidden'?"),
        (Model, "needs a value for 'kind'"),
        (lambda: Model(kind="gcn", residual=True), "residual = true is not for gcn: leave it out"),
        (
            lambda: Everything(model=Model(kind="gcn"), fanouts=(0,)),
            "fanouts[0] = 0 must be an integer of at least 1 or -1",
        ),
    ],
)
def test_python_is_refused_the_same(make: Callable[[], object], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        make()
    assert str(caught.value) == message


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda text: text != "none")
MODELS = st.builds(
    Model,
    kind=st.sampled_from(["graphsage", "gcn"]),
    hidden=st.integers(1, 2**63 - 1),
    dropout=st.floats(0, 1, exclude_max=True),
    residual=st.just(False),
)


@given(
    st.builds(
        Everything,
        model=MODELS,
        fanouts=st.lists(st.just(-1) | st.integers(1, 100)).map(tuple),
        pair=st.tuples(st.integers(0, 9), TEXT),
        decay=st.none() | st.floats(allow_nan=False, allow_infinity=False),
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
    @checked_dataclass
    class Files:
        files: Mapping[str, PathOption]

    parsed = parse_settings(Files, {"files": {"b": "x.npy", "a": "y.npy"}}, source="r", base=Path("/data"))
    assert list(parsed.files.items()) == [("b", Path("/data/x.npy")), ("a", Path("/data/y.npy"))]
    with pytest.raises(RecipeError, match=r"\[files\] a = 3 must be a path"):
        parse_settings(Files, {"files": {"a": 3}}, source="r", base=Path("/data"))


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


FEATURES = st.dictionaries(NAMES, st.builds(Feature, rows=st.integers(0, 9), column=st.none() | TEXT))


@given(FEATURES, FEATURES)
def test_tables_of_tables_survive_a_file(
    tmp_path_factory: pytest.TempPathFactory, features: dict[str, Feature], tables: dict[str, Feature]
) -> None:
    path = tmp_path_factory.mktemp("toml") / "r.toml"
    own = {name: found for name, found in tables.items() if name not in ("dim", "per_table")}
    log = Log(features=features, tables=Tables(per_table=own))
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
