"""windrow.launch.report.traffic: matrices with units, of all stages and of each."""

from collections.abc import Callable
from dataclasses import replace

from windrow.launch.epoch_cost import RankCost
from windrow.launch.report.read_run import ReportedRun
from windrow.launch.report.traffic import heat_map, traffic_section

RunOf = Callable[..., ReportedRun]


def test_all_stages_first_then_each(run_of: RunOf) -> None:
    (panel,) = traffic_section([run_of("graph", "one", ranks=2, epochs=3)]).panels
    assert [view.label for view in panel.views] == ["all stages", "features: ids", "features: rows"]
    everything, ids, _ = (view.data[0] for view in panel.views)
    assert everything["customdata"] == [
        ["0 bytes", "2,000 bytes (2.0 KiB)"],
        ["4,000 bytes (3.9 KiB)", "0 bytes"],
    ]
    assert ids["customdata"][1][0] == "2,000 bytes (2.0 KiB)"
    assert panel.note.startswith("5.9 KiB per epoch in all. Besides, each rank puts 4.0 KiB of gradients")


def test_values_are_in_the_unit_of_the_colour_bar() -> None:
    trace = heat_map([[0, 3 << 20], [1 << 20, 0]]).data[0]
    assert trace["z"] == [[0, 3], [1, 0]]
    assert trace["zmax"] == 3
    assert trace["colorbar"]["title"]["text"] == "MiB"
    assert trace["text"][0] == ["0 B", "3.0 MiB"]


def test_other_units_stay_as_they_are() -> None:
    trace = heat_map([[1.5, 2.25]], unit="us").data[0]
    assert (trace["z"], trace["y"], trace["x"]) == ([[1.5, 2.25]], ["0"], ["0", "1"])
    assert trace["customdata"] == [["1.5 us", "2.25 us"]]


def test_many_ranks_are_drawn_without_numbers_in_the_cells() -> None:
    assert "text" in heat_map([[1] * 8] * 8).data[0]
    assert "text" not in heat_map([[1] * 9] * 9).data[0]
    assert heat_map([[1] * 64] * 64).layout["height"] == 620


def test_many_small_cells_have_no_gaps_that_make_them_pale() -> None:
    gaps = [heat_map([[1.0] * ranks] * ranks).data[0]["xgap"] for ranks in (4, 32, 64)]
    assert gaps == [2, 2, 0]


def test_very_many_ranks_have_no_exact_numbers() -> None:
    assert "customdata" in heat_map([[1] * 64] * 64).data[0]
    trace = heat_map([[2048] * 65] * 65).data[0]
    assert "customdata" not in trace
    assert trace["hovertemplate"] == "from %{y} to %{x}: %{z:.4~g} KiB<extra></extra>"


def test_nothing_sent_is_a_matrix_too() -> None:
    trace = heat_map([[0, 0], [0, 0]]).data[0]
    assert trace["zmax"] == 1


def test_an_old_run_says_why_there_is_none(run_of: RunOf) -> None:
    (panel,) = traffic_section([run_of("graph", "one", old=True)]).panels
    assert panel.views == ()
    assert "no ranks.jsonl" in panel.missing
    assert "62.5 KiB fetched per epoch" in panel.missing


def test_one_rank_sends_nothing_and_says_so(run_of: RunOf) -> None:
    run = replace(run_of("graph", "one"), rank_epochs={1: (RankCost(),)})
    assert "one rank trained alone" in traffic_section([run]).panels[0].missing
    pair = replace(run, rank_epochs={1: (RankCost(), RankCost())})
    assert "all that was needed was at home" in traffic_section([pair]).panels[0].missing
