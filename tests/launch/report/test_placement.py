"""windrow.launch.report.placement: every piece is drawn once, shares add up, a damaged file is named."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import StoreError
from windrow.launch.report.panel import Panel
from windrow.launch.report.placement import MOST_TABLES, placement_panel
from windrow.launch.report.read_run import ReportedRun
from windrow.training.journal import EpochRecord

RunOf = Callable[..., ReportedRun]
KEYS = ("vertices", "train_vertices", "edges", "feature_bytes")
WORLD_SIZE = 3


def drawn(placement: dict[str, Any]) -> Panel:
    """The panel of a run of which nothing else matters."""
    record = EpochRecord(epoch=1, step=1, loss=1.0, learning_rate=0.1, metric="auc", seconds=1.0)
    run = ReportedRun(
        name="one",
        path=Path("one"),
        recipe={},
        starts=[],
        records=[record],
        rank_epochs={},
        placement=placement,
        finished=True,
    )
    return placement_panel(run)


def graph_views(ranks: Sequence[dict[str, int]]) -> list[Any]:
    return list(drawn({"kind": "graph", "ranks": ranks}).views.values())


def of_tables(tables: Sequence[dict[str, Any]], ranks: int) -> Panel:
    return drawn({"kind": "log", "world_size": ranks, "tables": tables})


def table_views(tables: Sequence[dict[str, Any]], ranks: int) -> list[Any]:
    return list(of_tables(tables, ranks).views.values())


def told(trace: Any) -> list[str]:
    """What the pointer says about each bar."""
    return [text for (text,) in trace.customdata]


def test_each_kind_has_its_picture(run_of: RunOf) -> None:
    graph, log = placement_panel(run_of("graph", "one")), placement_panel(run_of("log", "two"))
    assert "shares" in graph.views
    assert "sized by bytes" in log.views


def test_an_old_run_says_why_there_is_none(run_of: RunOf) -> None:
    panel = placement_panel(run_of("graph", "one", old=True))
    assert "no placement.json" in panel.missing


SHARD = {"rank": 5, "first_row": 0, "rows": 1, "first_column": 0, "columns": 1, "bytes": 1}
TABLE = {"name": "t", "bytes": 1, "plan": "x", "rows": 1, "dim": 1}


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"kind": "graph"},
        {"kind": "graph", "ranks": [{"vertices": 1}]},
        {"kind": "graph", "ranks": [dict.fromkeys(KEYS, "many")]},
        {"kind": "log", "world_size": 2, "tables": [7]},
        {"kind": "log", "world_size": 1, "tables": [{**TABLE, "shards": [SHARD]}]},
        {"kind": "log", "world_size": 1, "tables": [{**TABLE, "shards": [{"rank": 5}]}]},
    ],
    ids=str,
)
def test_a_damaged_file_is_named(damaged: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match=r"placement.json: .*Remove the file to go without it"):
        drawn(damaged)


# ---------------------------------------------------------------------------------------------------------------- graph

ranks = st.lists(st.fixed_dictionaries({key: st.integers(1, 10**12) for key in KEYS}), min_size=1, max_size=20)


@given(ranks)
def test_shares_of_all_ranks_are_the_whole(ranks: list[dict[str, int]]) -> None:
    (shares,) = graph_views(ranks)
    for place in range(4):
        assert sum(bar.x[place] for bar in shares.data) == pytest.approx(100)
    assert [told(bar)[0] for bar in shares.data] == [f"{rank['vertices']:,} vertices" for rank in ranks]


def test_a_graph_by_example() -> None:
    one = {"vertices": 30, "train_vertices": 5, "edges": 9, "feature_bytes": 1 << 20}
    other = {"vertices": 10, "train_vertices": 5, "edges": 0, "feature_bytes": 0}
    (shares,) = graph_views([one, other])
    assert list(shares.data[0].x) == [75, 50, 100, 100]
    assert list(shares.data[0].text) == ["75.0 %", "50.0 %", "100.0 %", "100.0 %"]
    assert told(shares.data[0]) == ["30 vertices", "5 training vertices", "9 edges", "1,048,576 bytes of features"]


def test_caches_are_shown_where_there_are_some() -> None:
    nothing = graph_views([dict.fromkeys(KEYS, 0)])[0]
    assert list(nothing.data[0].x) == [0, 0, 0, 0], "no division by zero"
    old = dict.fromkeys(KEYS, 1)
    none = old | {"cached_rows": 0, "cached_bytes": 0}
    assert [len(graph_views([part, part])[0].data[0].y) for part in (old, none)] == [4, 4]
    (shares,) = graph_views([none, old | {"cached_rows": 1500, "cached_bytes": 2048}])
    assert list(shares.data[0].y[-2:]) == ["cached rows", "bytes of cache"]
    assert [list(bar.x[-2:]) for bar in shares.data] == [[0, 0], [100, 100]]
    assert told(shares.data[1])[-2:] == ["1,500 cached rows", "2,048 bytes of cache"]


@pytest.mark.parametrize(("ranks", "legend"), [(1, False), (4, True), (20, True), (64, False)])
def test_many_ranks_have_no_legend(ranks: int, legend: bool) -> None:
    view = table_views([table("t", [(rank, 1) for rank in range(ranks)])], ranks)[0]
    assert view.layout.showlegend is legend
    panel = drawn({"kind": "graph", "ranks": [dict.fromkeys(KEYS, 1)] * ranks})
    assert panel.views["shares"].layout.showlegend is legend


# --------------------------------------------------------------------------------------------------------------- tables

pieces = st.lists(st.tuples(st.integers(0, WORLD_SIZE - 1), st.integers(1, 10**9)), min_size=1, max_size=6)


def table(name: str, shards: list[tuple[int, int]], plan: str = "row-wise") -> dict[str, Any]:
    placed = [
        {"rank": rank, "first_row": 5, "rows": 10, "first_column": 0, "columns": 4, "bytes": num_bytes}
        for rank, num_bytes in shards
    ]
    once = shards[0][1] if plan == "replicated" else sum(num_bytes for _, num_bytes in shards)
    return {"name": name, "rows": 1000, "dim": 8, "bytes": once, "plan": plan, "shards": placed}


@given(st.lists(pieces, min_size=1, max_size=8))
def test_bars_are_as_long_as_their_pieces(shards: list[list[tuple[int, int]]]) -> None:
    tables = [table(f"t{number}", each) for number, each in enumerate(shards)]
    by_bytes, by_share, by_rank = table_views(tables, WORLD_SIZE)
    everything = sum(num_bytes for each in shards for _, num_bytes in each)
    drawn = sum(sum(trace.x) for trace in by_bytes.data)
    held = sum(sum(trace.y) for trace in by_rank.data)
    assert drawn == held == everything
    assert sum(len(trace.x) for trace in by_bytes.data) == sum(map(len, shards))
    assert by_share.layout.barnorm == "percent"


def test_a_piece_says_what_it_is() -> None:
    view = table_views([table("users <b>", [(1, 2048)])], 2)[0]
    (bar,) = view.data
    assert bar.marker.color == "var(--series-1)"  # of rank 1, though rank 0 has no piece
    assert told(bar)[0].split("<br>") == [
        "<b>users &lt;b&gt;</b> (row-wise)",
        "rank 1: rows 5 to 14 of 1,000, columns 0 to 3 of 8",
        "2,048 bytes",
    ]
    assert list(view.layout.yaxis.ticktext) == ["users &lt;b&gt;"]


def test_copies_are_pale() -> None:
    tables = [table("own", [(0, 9)]), table("copied", [(0, 4), (1, 4)], "replicated")]
    panel = of_tables(tables, 2)
    own, copied = panel.views["sized by bytes"].data[0].marker.opacity
    assert copied < own == 1
    assert panel.note == "2 tables, 13 B; 1 of them (pale) copied to every rank, 17 B with all copies."


def test_of_many_tables_the_largest_are_drawn() -> None:
    tables = [table(f"t{size}" + "x" * 99, [(0, size)]) for size in range(101, MOST_TABLES + 111)]
    panel = of_tables(tables, 1)
    names = panel.views["sized by bytes"].layout.yaxis.ticktext
    assert len(names) == MOST_TABLES
    assert (names[0], names[-1]) == (f"t{MOST_TABLES + 110}" + "x" * 19 + "…", "t111" + "x" * 19 + "…")
    assert f"the {MOST_TABLES} largest" in panel.note
