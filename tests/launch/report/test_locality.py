"""windrow.launch.report.locality: shares by rank and by epoch."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from windrow.launch.rank_cost import RankCost
from windrow.launch.report.locality import locality_section
from windrow.launch.report.read_run import ReportedRun

RunOf = Callable[..., ReportedRun]


def test_shares_by_rank_and_by_epoch(run_of: RunOf) -> None:
    """Rank p finds p of p + 3 rows in each of three epochs."""
    (panel,) = locality_section([run_of("graph", "one", ranks=3, epochs=3)]).panels
    home, away = panel.views[0].data
    assert home["y"] == pytest.approx([0, 25, 40])
    assert [a + b for a, b in zip(home["y"], away["y"], strict=True)] == pytest.approx([100, 100, 100])
    assert home["customdata"] == ["0 rows", "3 rows", "6 rows"]
    best, together, worst = panel.views[1].data
    assert best["y"] == pytest.approx([40] * 3)
    assert together["y"] == pytest.approx([25] * 3)
    assert worst["y"] == pytest.approx([0] * 3)
    assert panel.note == "25.00% over all ranks and epochs."


def test_what_is_missing_is_said(run_of: RunOf) -> None:
    old = run_of("graph", "one", old=True)
    idle = replace(old, rank_epochs={1: (RankCost(), RankCost())})
    assert "no ranks.jsonl" in locality_section([old]).panels[0].missing
    assert locality_section([idle]).panels[0].missing == "No rows were asked for."


def test_a_rank_without_rows_is_no_worst_one(run_of: RunOf) -> None:
    run = replace(
        run_of("graph", "one"), rank_epochs={1: (RankCost(), RankCost(rows_local=3, rows_remote=1))}
    )
    assert [curve["y"] for curve in locality_section([run]).panels[0].views[1].data] == [[75]] * 3
