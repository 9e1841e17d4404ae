"""windrow.launch.report.read_run: whole, old and damaged run folders; names that tell runs apart; sums of traffic."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import StoreError, WindrowError
from windrow.launch.report.read_run import ReportedRun, read_run, read_runs
from windrow.training.epoch_cost import RankCost

MakeRun = Callable[..., Path]


def test_a_whole_run(make_run: MakeRun) -> None:
    run = read_run(make_run("graph", "one", ranks=4, epochs=3), name="one")
    assert [record.epoch for record in run.records] == [1, 2, 3]
    assert list(run.rank_epochs) == [1, 2, 3]
    assert [cost.host for cost in run.last_ranks] == ["host0", "host1", "host2", "host3"]
    assert run.finished
    assert run.best is not None
    assert run.best.epoch == 3
    assert len(run.starts) == 1


def test_an_old_run_has_no_ranks_and_no_placement(make_run: MakeRun) -> None:
    run = read_run(make_run("graph", "one", ranks=2, old=True), name="one")
    assert (dict(run.rank_epochs), run.placement, run.last_ranks) == ({}, None, ())


def test_a_run_that_goes_on(make_run: MakeRun) -> None:
    path = make_run("graph", "one")
    (path / "environment.json").write_text(json.dumps([1, {"commit": "a"}]))
    assert read_run(path, name="one").starts == [{"commit": "a"}], "what is no object is skipped"
    (path / "summary.json").unlink()
    (path / "environment.json").unlink()
    run = read_run(path, name="one")
    assert (run.finished, list(run.starts)) == (False, [])


def test_ranks_of_an_epoch_that_is_not_finished_are_left_out(make_run: MakeRun) -> None:
    path = make_run("graph", "one", epochs=3)
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:2]))
    with (path / "ranks.jsonl").open("a") as file:
        file.write('{"epoch": 4, "ra')
    assert list(read_run(path, name="one").rank_epochs) == [1, 2]


@pytest.mark.parametrize(
    ("file", "contents", "told"),
    [
        ("recipe.toml", None, "holds no run"),
        ("recipe.toml", "a = ", "recipe.toml: not valid TOML"),
        ("metrics.jsonl", "", "no epoch of this run is finished yet.*give another run"),
        ("metrics.jsonl", "nonsense\n", "metrics.jsonl, line 1: .*Remove that line"),
        ("metrics.jsonl", "\udcff\n", "one: cannot be read"),
        ("placement.json", "{", "placement.json: not valid JSON"),
        ("placement.json", "[1]", "placement.json: expected an object"),
        ("environment.json", "{}", "environment.json: expected a list"),
    ],
)
def test_a_damaged_file_is_named(make_run: MakeRun, file: str, contents: str | None, told: str) -> None:
    path = make_run("graph", "one")
    if contents is None:
        (path / file).unlink()
    else:
        (path / file).write_text(contents, errors="surrogateescape")
    with pytest.raises(WindrowError, match=told):
        read_run(path, name="one")


def test_names_are_as_long_as_they_must_be(make_run: MakeRun) -> None:
    paths = [make_run("graph", name) for name in ("a/run-1", "b/run-1", "run-2")]
    assert [run.name for run in read_runs(paths)] == ["a/run-1", "b/run-1", "run-2"]


def test_a_run_given_twice_is_refused(make_run: MakeRun) -> None:
    path = make_run("graph", "one")
    with pytest.raises(StoreError, match="is given twice"):
        read_runs([path, path.parent / "." / "x" / ".." / "one"])


def line(**changes: Any) -> str:
    rank = {"host": "a", "seconds": 1.0, "stage_seconds": {"s": 0.5}, "bytes_sent": {"rows": [0, 7]}}
    return json.dumps({"epoch": 1, "ranks": [{**rank, **changes}, rank]})


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ({"bytes_sent": {"rows": [1]}}, "has 1 numbers for 2 ranks"),
        ({"bytes_sent": {"rows": [1, -2]}}, "got -2"),
        ({"bytes_sent": {"rows": [1, "x"]}}, "got 'x'"),
        ({"bytes_sent": [1]}, "line 2: "),
        ({"stage_seconds": {"s": float("nan")}}, "got nan"),
        ({"stage_seconds": {"s": None}}, "got None"),
        ({"peak_memory_bytes": True}, "got True"),
        ({"rows_local": -1}, "got -1"),
        ({"rows_cached": -3}, "got -3"),
        ({"peak_gpu_memory_bytes": "8"}, "got '8'"),
        ({"waiting_seconds": {"rows": -0.5}}, "got -0.5"),
        ({"waiting_seconds": 3}, "line 2: "),
        ({"host": ["a"]}, "got ['a']"),
        ({"surprise": 1}, "not the record"),
    ],
)
def test_a_damaged_line_is_named(make_run: MakeRun, damage: dict[str, Any], told: str) -> None:
    path = make_run("graph", "one", epochs=1)
    (path / "ranks.jsonl").write_text(f"{line()}\n{line(**damage)}\n")
    with pytest.raises(StoreError, match=r"ranks.jsonl, line 2: .*Remove that line") as caught:
        read_run(path, name="one")
    assert told in str(caught.value)


amounts = st.integers(min_value=0, max_value=10**12)
two_ranks = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.lists(amounts, min_size=2, max_size=2)), min_size=2, max_size=2
)


def traffic(*epochs: list[dict[str, list[int]]]) -> dict[str, Any]:
    """What a run says whose ranks sent this in each epoch."""
    costs = {number: [RankCost(bytes_sent=rank) for rank in ranks] for number, ranks in enumerate(epochs, start=1)}
    run = ReportedRun(
        name="", path=Path(), recipe={}, starts=[], records=[], rank_epochs=costs, placement=None, finished=True
    )
    return {stage: matrix.tolist() for stage, matrix in run.traffic().items()}


@given(st.lists(two_ranks, min_size=1, max_size=4))
def test_no_byte_between_ranks_is_lost(sent: list[list[dict[str, list[int]]]]) -> None:
    stages = traffic(*sent)
    for stage in "abc":
        for sender in range(2):
            for receiver in range(2):
                exact = sum(ranks[sender].get(stage, [0, 0])[receiver] for ranks in sent)
                found = stages[stage][sender][receiver] if stage in stages else 0
                assert found == pytest.approx(exact / len(sent))


def test_the_stage_with_most_bytes_comes_first_and_empty_ones_not_at_all() -> None:
    assert list(traffic([{"few": [0, 1], "many": [0, 9], "none": [0, 0]}, {}])) == ["many", "few"]


def test_epochs_on_another_number_of_ranks_are_skipped() -> None:
    assert traffic([{"rows": [0, 1, 1]}] * 3, [{"rows": [0, 5]}, {"rows": [3, 0]}]) == {"rows": [[0, 5], [3, 0]]}
