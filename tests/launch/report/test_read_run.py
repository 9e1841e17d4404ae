"""windrow.launch.report.read_run: whole, old and damaged run folders; names that tell runs apart."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from windrow.comm.errors import RecipeError, StoreError
from windrow.launch.report.read_run import read_run, read_runs, section

MakeRun = Callable[..., Path]


def test_a_whole_run(make_run: MakeRun) -> None:
    run = read_run(make_run("graph", "one", ranks=4, epochs=3), name="one")
    assert [record.epoch for record in run.records] == [1, 2, 3]
    assert list(run.rank_epochs) == [1, 2, 3]
    assert (run.num_ranks, run.hosts, run.finished) == (4, ["host0", "host1", "host2", "host3"], True)
    assert run.best is not None
    assert run.best.epoch == 3
    assert len(run.starts) == 1


def test_an_old_run_has_no_ranks_and_no_placement(make_run: MakeRun) -> None:
    run = read_run(make_run("graph", "one", ranks=2, old=True), name="one")
    assert (dict(run.rank_epochs), run.placement, run.hosts) == ({}, None, [])
    assert run.num_ranks == 2
    assert read_run(make_run("log", "two", old=True), name="two").num_ranks is None


def test_a_section_that_is_none_is_empty() -> None:
    assert section({"a": {"b": 1}, "c": 3}, "a") == {"b": 1}
    assert section({"a": {"b": 1}, "c": 3}, "c") == {}
    assert section({}, "a") == {}


@pytest.mark.parametrize("kind", ["graph", "log"])
def test_placement_tells_the_ranks_where_nothing_else_does(make_run: MakeRun, kind: str) -> None:
    path = make_run(kind, "one", ranks=3)
    (path / "ranks.jsonl").unlink()
    assert read_run(path, name="one").num_ranks == 3


def test_a_run_that_goes_on(make_run: MakeRun) -> None:
    path = make_run("graph", "one")
    (path / "summary.json").unlink()
    (path / "environment.json").unlink()
    run = read_run(path, name="one")
    assert (run.finished, list(run.starts)) == (False, [])


def test_ranks_of_an_epoch_that_is_not_finished_are_left_out(make_run: MakeRun) -> None:
    path = make_run("graph", "one", epochs=3)
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:2]))
    assert list(read_run(path, name="one").rank_epochs) == [1, 2]


def test_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no run"):
        read_run(tmp_path, name="x")


def test_no_epoch_yet(make_run: MakeRun) -> None:
    path = make_run("graph", "one")
    (path / "metrics.jsonl").write_text("")
    with pytest.raises(StoreError, match=r"no epoch of this run is finished yet.*give another run"):
        read_run(path, name="one")


def test_an_unreadable_line_is_named(make_run: MakeRun) -> None:
    path = make_run("graph", "one")
    (path / "metrics.jsonl").write_text("nonsense\n")
    with pytest.raises(StoreError, match=r"metrics.jsonl, line 1: .*Remove that line"):
        read_run(path, name="one")


def test_a_file_that_is_no_text_is_named(make_run: MakeRun) -> None:
    path = make_run("graph", "one")
    (path / "metrics.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(StoreError, match=f"{path}: cannot be read"):
        read_run(path, name="one")


@pytest.mark.parametrize(
    ("file", "contents", "told"),
    [
        ("placement.json", "{", "placement.json: not valid JSON"),
        ("placement.json", "[1]", "placement.json: expected an object"),
        ("environment.json", "{}", "environment.json: expected a list"),
    ],
)
def test_a_damaged_file_is_named(make_run: MakeRun, file: str, contents: str, told: str) -> None:
    path = make_run("graph", "one")
    (path / file).write_text(contents)
    with pytest.raises(StoreError, match=told):
        read_run(path, name="one")


def test_a_damaged_recipe_is_named(make_run: MakeRun) -> None:
    path = make_run("graph", "one")
    (path / "recipe.toml").write_text("a = ")
    with pytest.raises(RecipeError, match=r"recipe.toml: not valid TOML"):
        read_run(path, name="one")


def test_names_are_as_long_as_they_must_be(make_run: MakeRun) -> None:
    paths = [make_run("graph", name) for name in ("a/run-1", "b/run-1", "run-2")]
    assert [run.name for run in read_runs(paths)] == ["a/run-1", "b/run-1", "run-2"]


def test_a_run_given_twice_is_refused(make_run: MakeRun) -> None:
    path = make_run("graph", "one")
    with pytest.raises(StoreError, match="is given twice"):
        read_runs([path, path.parent / "." / "x" / ".." / "one"])


def test_starts_that_are_not_objects_are_passed_over(make_run: MakeRun) -> None:
    path = make_run("graph", "one")
    (path / "environment.json").write_text(json.dumps([1, {"commit": "a"}]))
    assert read_run(path, name="one").starts == [{"commit": "a"}]
