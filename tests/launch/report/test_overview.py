"""windrow.launch.report.overview: the card of a run, what differs between runs, figures side by side."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from windrow.comm.errors import StoreError
from windrow.launch.report.overview import comparison_panels, headline, profile_panel, settings_table
from windrow.launch.report.read_run import ReportedRun, read_run
from windrow.training.epoch_cost import RankCost

RunOf = Callable[..., ReportedRun]


def test_the_card_of_a_graph(run_of: RunOf) -> None:
    card = headline(run_of("graph", "one", ranks=5, epochs=3))
    assert (card["name"], card["result"]) == ("one", "0.6300")
    assert card["result_note"] == "ROC-AUC (test, validation 0.7300) at epoch 3, the best of 3"
    assert card["facts"].items() >= {
        "recipe": "graph-recipe", "data": "graph.npz", "ranks": "5", "epochs": "3 in 3.67 s", "state": "finished",
        "hosts": "host0, host1, host2, host3 and 1 more",
    }.items()  # fmt: skip
    assert "cores of" in card["facts"]["hardware (of rank 0)"]


def test_the_card_of_a_log(run_of: RunOf) -> None:
    facts = headline(run_of("log", "one"))["facts"]
    assert facts["data"] == "a.csv, b.csv"
    assert facts["model"] == "m, embeddings of 8"


def test_a_run_of_which_little_is_known(run_of: RunOf) -> None:
    run = run_of("graph", "one", old=True)
    blind = [replace(record, validation=None, test=None) for record in run.records]
    card = headline(replace(run, recipe={}, starts=[], records=blind, finished=False))
    facts = card["facts"]
    assert card["result"] == "not evaluated"
    for what in ("recipe", "data", "model", "ranks", "hosts", "hardware (of rank 0)", "commit", "versions"):
        assert facts[what] == "not recorded"
    assert facts["state"] == "not finished: still running, or killed"


def test_a_resumed_run_tells_its_starts_and_the_last_commit(run_of: RunOf) -> None:
    run = run_of("graph", "one")
    starts = [{"commit": "a"}, {"commit": "0123456789abcdef-modified", "packages": {"torch": "2"}}]
    facts = headline(replace(run, starts=starts))["facts"]
    assert facts["commit"] == "0123456789ab-modified"
    assert facts["versions"] == "torch 2"
    assert facts["epochs"].endswith("started 2 times")


def test_without_a_test_split_validation_is_the_result(run_of: RunOf) -> None:
    run = run_of("graph", "one", epochs=1)
    card = headline(replace(run, records=[replace(run.records[0], test=None)]))
    assert (card["result"], card["result_note"]) == ("0.7100", "ROC-AUC (validation) at epoch 1, the best of 1")


PROFILE = {
    "about": "means of 20 steps",
    "stages": [{"stage": "fetch", "ms": 1.5, "floor ms": None, "bound by": "network"}],
    "advice": ["do this", "do that"],
}


def test_the_profile_of_a_step(make_run: Callable[..., Path]) -> None:
    run = make_run("graph", "one")
    assert "windrow profile RECIPE --json RUN/profile.json" in profile_panel(read_run(run, name="one")).missing
    (run / "profile.json").write_text(json.dumps(PROFILE))
    panel = profile_panel(read_run(run, name="one"))
    assert panel.table is not None
    assert panel.table.to_dict("index") == {"fetch": {"ms": 1.5, "floor ms": "-", "bound by": "network"}}
    assert panel.note == "means of 20 steps. do this. do that"


@pytest.mark.parametrize("profile", [{}, PROFILE | {"stages": [{"ms": 1}]}, PROFILE | {"stages": 3}])
def test_a_profile_of_another_version_is_refused(run_of: RunOf, profile: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match=r"profile\.json: not what this version"):
        profile_panel(replace(run_of("log", "one"), profile=profile))


def test_settings_become_lines(run_of: RunOf) -> None:
    run = replace(run_of("graph", "one"), recipe={"a": 1, "b": {"c": [1, 2], "d": {"e": "x"}}, "f": {}})
    table = settings_table([run, replace(run, name="two", recipe={"a": 2})])
    assert table.to_dict() == {
        "one": {"a": "1", "b.c": "[1, 2]", "b.d.e": '"x"'},
        "two": {"a": "2", "b.c": "-", "b.d.e": "-"},
    }


def test_what_differs_is_shown(run_of: RunOf) -> None:
    runs = [run_of("graph", "one"), run_of("graph", "two", training={"epochs": 9}), run_of("graph", "three")]
    figures, settings = comparison_panels(runs)
    assert settings.table is not None
    assert settings.table.T.to_dict("list") == {"training.epochs": ["3", "9", "3"]}
    assert figures.table is not None
    assert list(figures.table) == ["one", "two", "three"]


def test_figures_of_each_run(run_of: RunOf) -> None:
    runs = [run_of("graph", "new", ranks=2), run_of("graph", "old", old=True)]
    table = comparison_panels(runs)[0].table
    assert table is not None
    rows = table.T.to_dict("list")
    assert rows["validation at best epoch"] == ["0.73", "0.73"]
    assert rows["training loss, last epoch"] == ["0.33333", "0.33333"]
    assert rows["time per epoch (median)"] == ["1.00 s", "1.00 s"]
    assert rows["bytes between ranks per epoch"] == ["5.9 KiB", "-"]
    assert rows["local rows"] == ["14.3%", "-"]
    assert "hit rate of the cache" not in rows
    assert rows["training time in communication"] == ["20.0%", "-"]
    assert rows["peak memory, largest rank"] == ["512 MiB", "-"]
    cached = {1: (RankCost(rows_local=5, rows_cached=1, rows_remote=3),)}
    table = comparison_panels([replace(runs[0], rank_epochs=cached), runs[1]])[0].table
    assert table is not None
    assert table.T.to_dict("list")["hit rate of the cache"] == ["25.0%", "-"]


def test_recipes_of_two_kinds(run_of: RunOf) -> None:
    _, settings = comparison_panels([run_of("graph", "one"), run_of("log", "two")])
    assert settings.table is not None
    assert settings.table.T.to_dict("list")["graph.path"] == ['"graph.npz"', "-"]
    assert settings.note == "5 of 7 settings."


def test_runs_with_the_same_settings_say_so(run_of: RunOf) -> None:
    run = run_of("graph", "one")
    _, settings = comparison_panels([run, replace(run, name="two")])
    assert settings.table is None
    assert settings.note == "0 of 5 settings."
