"""windrow.launch.report.ranks: bars, curves and matrices of what ranks did; what is missing is said."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from windrow.launch.report.panel import Panel
from windrow.launch.report.ranks import (
    communication_panel,
    heat_map,
    locality_panel,
    memory_panel,
    stages_panel,
    traffic_panel,
)
from windrow.launch.report.read_run import ReportedRun
from windrow.training.epoch_cost import RankCost

RunOf = Callable[..., ReportedRun]
PanelOf = Callable[..., Panel]


@pytest.fixture
def panel_of(run_of: RunOf) -> PanelOf:
    """The panel of a run whose ranks did this in each epoch: ``panel_of(panel, [epoch 1], [epoch 2])``."""

    base = run_of("graph", "one", epochs=2)

    def panel_of(panel: Callable[[ReportedRun], Panel], *epochs: Sequence[RankCost]) -> Panel:
        return panel(replace(base, rank_epochs=dict(enumerate(epochs, start=1))))

    return panel_of


def told(trace: Any) -> list[str]:
    """What the pointer says about each bar."""
    return [text for (text,) in trace.customdata]


def waiting(seconds: float, **stages: float) -> RankCost:
    """Half a second of evaluation is no training."""
    return RankCost(seconds=seconds + 0.5, stage_seconds={"evaluate": 0.5}, waiting_seconds=stages)


def test_an_old_run_says_why_there_is_nothing(run_of: RunOf) -> None:
    old = run_of("graph", "one", old=True, epochs=1)
    for kind in (communication_panel, locality_panel, memory_panel, traffic_panel):
        panel = kind(old)
        assert "no ranks.jsonl" in panel.missing
        assert not panel.views
    stages = stages_panel(old)
    assert list(stages.views) == ["slowest rank of each stage"]
    assert "no ranks.jsonl" in stages.note


# --------------------------------------------------------------------------------------------------------------- stages


def test_the_slowest_rank_first_then_each_one(run_of: RunOf) -> None:
    panel = stages_panel(run_of("graph", "one", ranks=2, epochs=3))
    assert list(panel.views) == ["slowest rank of each stage", "rank 0 (host0)", "rank 1 (host1)"]
    slowest, first_rank, _ = panel.views.values()
    *bars, line = slowest.data
    assert [bar.name for bar in bars] == ["sample", "fetch", "forward", "backward", "evaluate"]
    assert list(bars[0].y) == [0.2, 0.1, 0.2 / 3]
    assert (line.name, list(line.y)) == ("whole epoch", [2.0, 1.0, 2 / 3])
    assert list(first_rank.data[0].y) == [0.1, 0.05, 0.1 / 3]
    assert list(first_rank.data[-1].y) == [1.9, 0.95, 1.9 / 3]
    assert (panel.title, panel.note) == ("", "")


def test_a_first_epoch_that_dwarfs_the_others_has_a_view_of_its_own(run_of: RunOf) -> None:
    run = run_of("graph", "one", ranks=1, epochs=3)
    records = [replace(run.records[0], seconds=9.0), *run.records[1:]]
    panel = stages_panel(replace(run, records=records))
    epochs = {name: list(view.data[0].x) for name, view in panel.views.items()}
    assert epochs == {
        "slowest rank of each stage": [2, 3],
        "slowest rank, with the first epoch": [1, 2, 3],
        "rank 0 (host0)": [2, 3],
    }
    assert panel.note == "Epoch 1, which compiles, took 9 s and has a view of its own."


def test_of_very_many_ranks_the_first_can_be_chosen(run_of: RunOf) -> None:
    panel = stages_panel(run_of("graph", "one", ranks=70, epochs=1))
    assert list(panel.views)[1:] == [f"rank {n} (host{n})" for n in range(64)]
    assert panel.note == "Of 70 ranks the first 64 can be chosen."


# -------------------------------------------------------------------------------------------------------- communication


def test_shares_of_waiting_by_rank_and_by_epoch(panel_of: PanelOf) -> None:
    panel = panel_of(
        communication_panel, [waiting(4, sums=1), waiting(4, rows=2)], [waiting(6, sums=1, rows=1), waiting(2, rows=2)]
    )
    by_rank, by_epoch = panel.views.values()
    assert [bar.name for bar in by_rank.data] == ["rows", "sums"]
    assert [list(bar.x) for bar in by_rank.data] == [[0, 1]] * 2
    assert [list(bar.y) for bar in by_rank.data] == [[pytest.approx(10), pytest.approx(400 / 6)], [20, 0]]
    assert told(by_rank.data[0]) == ["1 s", "4 s"]
    assert [list(bar.x) for bar in by_epoch.data] == [[1, 2]] * 2
    assert [list(bar.y) for bar in by_epoch.data] == [[25, 37.5], [12.5, 12.5]]
    assert panel.note == "43.8% over all ranks and epochs."


def test_a_run_that_goes_on_with_fewer_ranks(panel_of: PanelOf) -> None:
    views = panel_of(communication_panel, [waiting(2, rows=1), waiting(2, rows=1)], [waiting(2)]).views
    assert [list(view.data[0].y) for view in views.values()] == [[25], [50, 0]]


def test_what_was_not_recorded_is_no_zero_and_no_time_is_no_division_by_zero(panel_of: PanelOf) -> None:
    assert "has no waiting times" in panel_of(communication_panel, [RankCost(seconds=1.0)]).missing
    timeless = [RankCost(waiting_seconds={"<b>": 0.0}), waiting(1, **{"<b>": 0.5})]
    by_rank, _ = panel_of(communication_panel, timeless).views.values()
    assert (by_rank.data[0].name, list(by_rank.data[0].y)) == ("&lt;b&gt;", [0, 50])


# ------------------------------------------------------------------------------------------------------------- locality


def test_shares_at_home_by_rank_and_by_epoch(run_of: RunOf) -> None:
    """Rank p finds p of p + 3 rows in each of three epochs."""
    panel = locality_panel(run_of("graph", "one", ranks=3, epochs=3))
    by_rank, by_epoch = panel.views.values()
    home, away = by_rank.data
    assert (home.name, away.name) == ("its own", "from another rank")
    assert home.y == pytest.approx([0, 25, 40])
    assert home.y + away.y == pytest.approx([100, 100, 100])
    assert told(home) == ["0 rows", "3 rows", "6 rows"]
    # Without a cache there is no curve of its hits.
    assert [list(curve.y) for curve in by_epoch.data] == [pytest.approx([25] * 3)]
    assert panel.note == "25.00% over all ranks and epochs."


def test_a_cache_has_a_bar_and_a_curve(panel_of: PanelOf) -> None:
    """Rank 1 needs 10 rows: 5 of its own, 2 in its cache, 1 in shared memory, 2 elsewhere; the other needs 4 own."""
    first = (RankCost(rows_local=4), RankCost(rows_local=5, rows_remote=5))
    second = (RankCost(rows_local=4), RankCost(rows_local=5, rows_cached=2, rows_shared=1, rows_remote=2))
    panel = panel_of(locality_panel, first, second)
    by_rank, by_epoch = panel.views.values()
    assert [list(bar.y) for bar in by_rank.data] == [[100, 50], [0, 10], [0, 5], [0, 35]]
    assert told(by_rank.data[1]) == ["0 rows", "2 rows"]
    together, hits = by_epoch.data
    assert together.y == pytest.approx([100 * 9 / 14, 100 * 12 / 14])
    assert (list(hits.x), list(hits.y)) == ([2], pytest.approx([50]))
    whole = "75.00% over all ranks and epochs. Of the rows of other ranks, 22.22% were in the cache."
    assert panel.note == whole


def test_ranks_without_rows(panel_of: PanelOf) -> None:
    assert panel_of(locality_panel, (RankCost(), RankCost())).missing == "No rows were requested."
    panel = panel_of(locality_panel, (RankCost(), RankCost(rows_local=3, rows_remote=1)))
    assert [list(curve.y) for curve in panel.views["by epoch"].data] == [[75]]


# -------------------------------------------------------------------------------------------------------------- traffic


def test_all_stages_first_then_each(run_of: RunOf) -> None:
    panel = traffic_panel(run_of("graph", "one", ranks=2, epochs=3))
    assert list(panel.views) == ["all stages", "features: ids", "features: rows"]
    everything, ids, _ = (view.data[0].z.tolist() for view in panel.views.values())
    assert everything == [[0, 2000], [4000, 0]]
    assert ids[1][0] == 2000
    assert panel.note.startswith("5.9 KiB per epoch in all. Besides, each rank puts 4.0 KiB of gradients")


def test_cells_and_colour_bar_have_readable_numbers_and_the_pointer_exact_ones() -> None:
    figure = heat_map(np.array([[0.0, 3e6], [1e6, 0]]))
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, 3e6)
    assert figure.layout.coloraxis.colorbar.title.text == "bytes"
    assert figure.data[0].texttemplate == "%{z:.3~s}"
    assert figure.data[0].hovertemplate == "from %{y} to %{x}: %{z:,.0f} bytes<extra></extra>"
    assert heat_map(np.zeros((2, 2))).layout.coloraxis.cmax == 1


def test_of_many_ranks_a_heat_map_shows_less() -> None:
    maps = {ranks: heat_map(np.full((ranks, ranks), 2048.0)) for ranks in (8, 9)}
    traces = {ranks: view.data[0] for ranks, view in maps.items()}
    assert [traces[ranks].texttemplate is None for ranks in (8, 9)] == [False, True]
    # Gaps would make many small cells pale.
    assert [traces[ranks].xgap for ranks in (8, 9)] == [2, 0]
    assert [view.layout.height for view in maps.values()] == [480, 620]


def test_a_rank_that_sends_nothing_says_so(panel_of: PanelOf) -> None:
    assert "one rank trained alone" in panel_of(traffic_panel, (RankCost(),)).missing
    assert "all that was needed was local" in panel_of(traffic_panel, (RankCost(), RankCost())).missing


# --------------------------------------------------------------------------------------------------------------- memory


def test_bars_of_memory_have_exact_numbers(run_of: RunOf) -> None:
    panel = memory_panel(run_of("graph", "one", ranks=4))
    (bars,) = panel.views["peak"].data
    assert list(bars.y) == [n << 28 for n in (1, 2, 3, 4)]
    assert panel.views["peak"].layout.yaxis.title.text == "peak memory (bytes)"
    assert told(bars) == ["host0", "host1", "host2", "host3"]
    assert panel.note.startswith("2.5 GiB over all ranks")


def test_the_peak_is_over_all_epochs_and_gpus_get_bars_of_their_own(panel_of: PanelOf) -> None:
    first = (RankCost(peak_memory_bytes=9 << 20), RankCost(peak_memory_bytes=1 << 20))
    second = (RankCost(peak_memory_bytes=5 << 20, peak_gpu_memory_bytes=8 << 20),) * 2
    view = panel_of(memory_panel, first, second).views["peak"]
    assert [(bars.name, list(bars.y)) for bars in view.data] == [
        ("process", [9 << 20, 5 << 20]),
        ("GPU", [8 << 20, 8 << 20]),
    ]
    assert view.layout.showlegend
    assert "does not tell" in panel_of(memory_panel, (RankCost(),)).missing
