"""windrow.launch.report.headline: the result, what it ran on, and what nobody knows."""

from collections.abc import Callable
from dataclasses import replace

from windrow.launch.report.headline import headline
from windrow.launch.report.read_run import ReportedRun

RunOf = Callable[..., ReportedRun]


def test_a_graph(run_of: RunOf) -> None:
    card = headline(run_of("graph", "one", ranks=5, epochs=3))
    facts = dict(card.facts)
    assert (card.name, card.result) == ("one", "0.6300")
    assert card.result_note == "ROC-AUC (test, validation 0.7300) at epoch 3, the best of 3"
    assert (facts["recipe"], facts["data"], facts["ranks"]) == ("graph-recipe", "graph.npz", "5")
    assert facts["hosts"] == "host0, host1, host2, host3 and 1 more"
    assert facts["epochs"] == "3 in 3.67 s"
    assert facts["state"] == "finished"
    assert "cores of" in facts["hardware"]


def test_a_log(run_of: RunOf) -> None:
    facts = dict(headline(run_of("log", "one")).facts)
    assert facts["data"] == "a.csv, b.csv"
    assert facts["model"] == "m, embeddings of 8"


def test_a_run_of_which_little_is_known(run_of: RunOf) -> None:
    run = run_of("graph", "one", old=True)
    blind = [replace(record, validation=None, test=None) for record in run.records]
    card = headline(replace(run, recipe={}, starts=[], records=blind, finished=False))
    facts = dict(card.facts)
    assert card.result == "not evaluated"
    for what in ("recipe", "data", "model", "ranks", "hosts", "hardware", "commit", "versions"):
        assert facts[what] == "not recorded"
    assert facts["state"] == "not finished: still running, or killed"


def test_a_resumed_run_tells_its_starts_and_the_last_commit(run_of: RunOf) -> None:
    run = run_of("graph", "one")
    starts = [{"commit": "a"}, {"commit": "0123456789abcdef-modified", "packages": {"torch": "2"}}]
    facts = dict(headline(replace(run, starts=starts)).facts)
    assert facts["commit"] == "0123456789ab-modified"
    assert facts["versions"] == "torch 2"
    assert facts["epochs"].endswith("started 2 times")


def test_without_a_test_split_validation_is_the_result(run_of: RunOf) -> None:
    run = run_of("graph", "one", epochs=1)
    card = headline(replace(run, records=[replace(run.records[0], test=None)]))
    assert (card.result, card.result_note) == ("0.7100", "ROC-AUC (validation) at epoch 1, the best of 1")
