"""windrow.launch.report.traffic: shares by rank and by epoch."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from windrow.launch.epoch_cost import RankCost
from windrow.launch.report.read_run import ReportedRun
from windrow.launch.report.traffic import locality_section

RunOf = Callable[..., ReportedRun]


def test_shares_by_rank_and_by_epoch(run_of: RunOf) -> None:
    """Rank p finds p of p + 3 rows in each of three epochs."""
    (panel,) = locality_section([run_of("graph", "one", ranks=3, epochs=3)]).panels
    home, away = panel.views[0].data
    assert (home["name"], away["name"]) == ("its own", "from another rank")
    assert home["y"] == pytest.approx([0, 25, 40])
    assert [a + b for a, b in zip(home["y"], away["y"], strict=True)] == pytest.approx([100, 100, 100])
    assert home["customdata"] == ["0 rows", "3 rows", "6 rows"]
    # Without a cache there is no curve of its hits.
    best, together, worst = panel.views[1].data
    assert best["y"] == pytest.approx([40] * 3)
    assert together["y"] == pytest.approx([25] * 3)
    assert worst["y"] == pytest.approx([0] * 3)
    assert panel.note == "25.00% over all ranks and epochs."


def test_a_cache_has_a_bar_and_a_curve(run_of: RunOf) -> None:
    """Rank 1 needs 10 rows: 5 are its own, 2 in its cache, 3 elsewhere; the other rank needs 4 of its own."""
    first = (RankCost(rows_local=4), RankCost(rows_local=5, rows_remote=5))
    second = (RankCost(rows_local=4), RankCost(rows_local=5, rows_cached=2, rows_remote=3))
    run = replace(run_of("graph", "one"), rank_epochs={1: first, 2: second})
    (panel,) = locality_section([run]).panels
    own, cached, away = panel.views[0].data
    assert (own["y"], cached["y"], away["y"]) == ([100, 50], [0, 10], [0, 40])
    assert cached["customdata"] == ["0 rows", "2 rows"]
    _, together, _, hits = panel.views[1].data
    assert together["y"] == pytest.approx([100 * 9 / 14, 100 * 11 / 14])
    assert (hits["x"], hits["y"]) == ([2], pytest.approx([40]))
    assert (
        panel.note
        == "71.43% over all ranks and epochs. Of the rows of other ranks, 20.00% were in the cache."
    )


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
