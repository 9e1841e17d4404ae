"""windrow.launch.report.epoch_time: bars of the slowest rank, and of each rank on demand."""

from collections.abc import Callable

from windrow.launch.report.epoch_time import stages_section
from windrow.launch.report.read_run import ReportedRun

RunOf = Callable[..., ReportedRun]


def test_the_slowest_rank_first_then_each_one(run_of: RunOf) -> None:
    (panel,) = stages_section([run_of("graph", "one", ranks=2, epochs=3)]).panels
    assert [view.label for view in panel.views] == [
        "slowest rank of each stage",
        "slowest rank, without the first epoch",
        "rank 0 (host0)",
        "rank 1 (host1)",
    ]
    *bars, line = panel.views[0].data
    assert [bar["name"] for bar in bars] == ["sample", "fetch", "forward", "backward", "evaluate"]
    assert bars[0]["y"] == [0.2, 0.1, 0.2 / 3]
    assert (line["name"], line["y"]) == ("whole epoch", [2.0, 1.0, 2 / 3])
    assert panel.views[1].data[0]["x"] == [2, 3]
    assert panel.views[2].data[0]["y"] == [0.1, 0.05, 0.1 / 3]
    assert panel.views[2].data[-1]["y"] == [1.9, 0.95, 1.9 / 3]
    assert panel.note == ""


def test_an_old_run_has_no_choice_of_ranks_and_says_why(run_of: RunOf) -> None:
    (panel,) = stages_section([run_of("graph", "one", old=True, epochs=1)]).panels
    assert [view.label for view in panel.views] == ["slowest rank of each stage"]
    assert "no ranks.jsonl" in panel.note


def test_of_very_many_ranks_the_first_can_be_chosen(run_of: RunOf) -> None:
    (panel,) = stages_section([run_of("graph", "one", ranks=70, epochs=1)]).panels
    assert [view.label for view in panel.views[1:]] == [f"rank {n} (host{n})" for n in range(64)]
    assert panel.note == "Of 70 ranks the first 64 can be chosen; ranks.jsonl has them all."


def test_runs_side_by_side_are_named(run_of: RunOf) -> None:
    section = stages_section([run_of("graph", "one"), run_of("log", "two")])
    assert [panel.title for panel in section.panels] == ["one", "two"]
