"""windrow.launch.report.epoch_time: shares of training that ranks wait, by rank, epoch and stage."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from windrow.launch.epoch_cost import RankCost
from windrow.launch.report.epoch_time import communication_section
from windrow.launch.report.read_run import ReportedRun

RunOf = Callable[..., ReportedRun]


def waiting(seconds: float, **stages: float) -> RankCost:
    """Half a second of evaluation is no training."""
    return RankCost(seconds=seconds + 0.5, stage_seconds={"evaluate": 0.5}, waiting_seconds=stages)


def test_shares_by_rank_and_by_epoch(run_of: RunOf) -> None:
    epochs = {
        1: [waiting(4, sums=1), waiting(4, rows=2)],
        2: [waiting(6, sums=1, rows=1), waiting(2, rows=2)],
    }
    (panel,) = communication_section([replace(run_of("graph", "one"), rank_epochs=epochs)]).panels
    by_rank, by_epoch = panel.views
    assert [bar["name"] for bar in by_rank.data] == ["rows", "sums"]
    assert [list(bar["x"]) for bar in by_rank.data] == [["0", "1"]] * 2
    assert [bar["y"] for bar in by_rank.data] == [[pytest.approx(10), pytest.approx(400 / 6)], [20, 0]]
    assert by_rank.data[0]["customdata"] == ["1 s", "4 s"]
    assert [bar["x"] for bar in by_epoch.data] == [[1, 2]] * 2
    assert [bar["y"] for bar in by_epoch.data] == [[25, 37.5], [12.5, 12.5]]
    assert panel.note == "43.8% over all ranks and epochs."


def test_a_run_that_goes_on_with_fewer_ranks(run_of: RunOf) -> None:
    epochs = {1: [waiting(2, rows=1), waiting(2, rows=1)], 2: [waiting(2)]}
    (panel,) = communication_section([replace(run_of("graph", "one"), rank_epochs=epochs)]).panels
    assert panel.views[0].data[0]["y"] == [25]
    assert panel.views[1].data[0]["y"] == [50, 0]


def test_what_was_not_recorded_is_said_and_is_no_zero(run_of: RunOf) -> None:
    run = run_of("graph", "one")
    earlier = replace(run, rank_epochs={1: [RankCost(seconds=1.0)]})
    older = run_of("graph", "two", old=True)
    first, second = communication_section([earlier, older]).panels
    assert "has no waiting times" in first.missing
    assert "no ranks.jsonl" in second.missing
    assert (first.title, second.title) == ("one", "two")


def test_no_time_at_all_is_no_division_by_zero(run_of: RunOf) -> None:
    epochs = {1: [RankCost(waiting_seconds={"rows": 0.0}), waiting(1, rows=0.5)]}
    (panel,) = communication_section([replace(run_of("graph", "one"), rank_epochs=epochs)]).panels
    assert panel.views[0].data[0]["y"] == [0, 50]


def test_names_of_stages_are_not_taken_for_markup(run_of: RunOf) -> None:
    epochs = {1: [RankCost(seconds=1.0, waiting_seconds={"<b>rows</b>": 0.5})]}
    (panel,) = communication_section([replace(run_of("graph", "one"), rank_epochs=epochs)]).panels
    assert panel.views[0].data[0]["name"] == "&lt;b&gt;rows&lt;/b&gt;"
