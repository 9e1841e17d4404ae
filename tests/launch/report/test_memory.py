"""windrow.launch.report.memory: peaks of processes and GPUs."""

from collections.abc import Callable
from dataclasses import replace

from windrow.launch.epoch_cost import RankCost
from windrow.launch.report.memory import memory_section, peak_memory
from windrow.launch.report.read_run import ReportedRun

RunOf = Callable[..., ReportedRun]


def test_the_peak_is_over_all_epochs(run_of: RunOf) -> None:
    run = run_of("graph", "one")
    epochs = {
        1: (RankCost(peak_memory_bytes=9), RankCost(peak_memory_bytes=1)),
        2: (RankCost(peak_memory_bytes=5), RankCost(peak_memory_bytes=7)),
    }
    assert peak_memory(replace(run, rank_epochs=epochs)) == [9, 7]


def test_bars_have_a_unit_and_exact_numbers(run_of: RunOf) -> None:
    (panel,) = memory_section([run_of("graph", "one", ranks=4)]).panels
    (bars,) = panel.views[0].data
    assert bars["y"] == [0.25, 0.5, 0.75, 1.0]
    assert panel.views[0].layout["yaxis"]["title"]["text"] == "peak memory (GiB)"
    assert bars["customdata"][0] == "host0: 268,435,456 bytes (256 MiB)"
    assert panel.note.startswith("2,684,354,560 bytes (2.5 GiB) over all ranks")


def test_gpus_get_bars_of_their_own(run_of: RunOf) -> None:
    costs = (RankCost(peak_memory_bytes=4 << 20, peak_gpu_memory_bytes=8 << 20),)
    run = replace(run_of("graph", "one"), rank_epochs={1: costs})
    view = memory_section([run]).panels[0].views[0]
    assert [(bars["name"], bars["y"]) for bars in view.data] == [("process", [4.0]), ("GPU", [8.0])]
    assert view.layout["showlegend"] is True


def test_what_is_missing_is_said(run_of: RunOf) -> None:
    old = run_of("graph", "one", old=True)
    assert peak_memory(old) == []
    assert "no ranks.jsonl" in memory_section([old]).panels[0].missing
    untold = replace(old, rank_epochs={1: (RankCost(),)})
    assert "does not tell" in memory_section([untold]).panels[0].missing
