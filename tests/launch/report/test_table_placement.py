"""windrow.launch.report.placement: every piece is drawn once, in its rank's colour."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.launch.report.placement import MOST_TABLES, table_note, table_views

WORLD_SIZE = 3
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
    drawn = sum(sum(trace["x"]) for trace in by_bytes.data)
    held = sum(sum(trace["y"]) for trace in by_rank.data)
    largest = max(sum(num_bytes for _, num_bytes in each) for each in shards)
    assert everything / drawn in (pytest.approx(1024.0**power) for power in range(4))
    assert everything / held in (pytest.approx(1024.0**power) for power in range(4))
    assert sum(len(trace["x"]) for trace in by_bytes.data) == sum(map(len, shards))
    for place in range(len(tables)):
        share = sum(
            x for trace in by_share.data for y, x in zip(trace["y"], trace["x"], strict=True) if y == place
        )
        assert share == pytest.approx(100)
    assert largest > 0


def test_a_piece_says_what_it_is() -> None:
    view = table_views([table("users <b>", [(1, 2048)])], 2)[0]
    assert view.data[0]["customdata"] == []
    (told,) = view.data[1]["customdata"]
    assert told.split("<br>") == [
        "<b>users &lt;b&gt;</b> (row-wise)",
        "rank 1: rows 5 to 14 of 1,000, columns 0 to 3 of 8",
        "2,048 bytes (2.0 KiB)",
    ]
    assert list(view.layout["yaxis"]["ticktext"]) == ["users &lt;b&gt;"]


def test_copies_are_pale() -> None:
    tables = [table("own", [(0, 9)]), table("copied", [(0, 4), (1, 4)], "replicated")]
    view = table_views(tables, 2)[0]
    assert view.data[0]["marker"]["opacity"][0] == 1
    assert view.data[0]["marker"]["opacity"][1] < 1
    assert (
        table_note(tables) == "2 tables, 13 B; 1 of them (pale) copied to every rank, 17 B with all copies."
    )


def test_of_many_tables_the_largest_are_drawn() -> None:
    tables = [table(f"t{size}", [(0, size)]) for size in range(1, MOST_TABLES + 11)]
    names = table_views(tables, 1)[0].layout["yaxis"]["ticktext"]
    assert len(names) == MOST_TABLES
    assert (names[0], names[-1]) == (f"t{MOST_TABLES + 10}", "t11")
    assert f"the {MOST_TABLES} largest" in table_note(tables)


def test_a_long_name_is_cut() -> None:
    (name,) = table_views([table("x" * 99, [(0, 1)])], 1)[0].layout["yaxis"]["ticktext"]
    assert name == "x" * 23 + "…"


@pytest.mark.parametrize(("ranks", "legend"), [(1, False), (8, True), (64, False)])
def test_many_ranks_have_no_legend(ranks: int, legend: bool) -> None:
    view = table_views([table("t", [(rank, 1) for rank in range(ranks)])], ranks)[0]
    assert view.layout["showlegend"] is legend
