"""windrow.launch.report.placement: shares add up, numbers are exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.launch.report.placement import graph_note, graph_views

KEYS = ("vertices", "train_vertices", "edges", "feature_bytes")
ranks = st.lists(
    st.fixed_dictionaries({key: st.integers(1, 10**12) for key in KEYS}), min_size=1, max_size=20
)


@given(ranks)
def test_shares_of_all_ranks_are_the_whole(ranks: list[dict[str, int]]) -> None:
    shares, vertices, *_ = graph_views(ranks)
    for place in range(4):
        assert sum(bar["x"][place] for bar in shares.data) == pytest.approx(100)
    assert vertices.data[0]["y"] == [rank["vertices"] for rank in ranks]


def test_a_graph_by_example() -> None:
    one = {"vertices": 30, "train_vertices": 5, "edges": 9, "feature_bytes": 1 << 20}
    other = {"vertices": 10, "train_vertices": 5, "edges": 0, "feature_bytes": 0}
    shares, vertices, *_, features = graph_views([one, other])
    assert shares.data[0]["x"] == [75, 50, 100, 100]
    assert shares.data[0]["text"] == ["75.0 %", "50.0 %", "100.0 %", "100.0 %"]
    assert shares.data[1]["text"][3] == ""
    assert [line["x0"] for line in shares.layout["shapes"]] == [50]
    assert vertices.data[0]["customdata"] == ["30 vertices", "10 vertices"]
    assert features.data[0]["customdata"][0] == "1,048,576 bytes (1.0 MiB)"


def test_caches_are_shown_where_there_are_some() -> None:
    old = dict.fromkeys(KEYS, 1)
    none = old | {"cached_rows": 0, "cached_bytes": 0}
    assert len(graph_views([old, old])) == len(graph_views([none, none])) == 5
    shares, *_, rows, cache = graph_views([none, old | {"cached_rows": 1500, "cached_bytes": 2048}])
    assert shares.data[0]["y"][-2:] == ["cached rows", "cache"]
    assert [bar["x"][-2:] for bar in shares.data] == [[0, 0], [100, 100]]
    assert rows.data[0]["customdata"] == ["0 cached rows", "1,500 cached rows"]
    assert cache.data[0]["customdata"][1] == "2,048 bytes (2.0 KiB)"
    assert cache.layout["yaxis"]["title"]["text"] == "cache (bytes)"


def test_nothing_at_all_is_no_division_by_zero() -> None:
    shares = graph_views([dict.fromkeys(KEYS, 0)])[0]
    assert shares.data[0]["x"] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("ranks", "legend", "lines"), [(1, False, 0), (4, True, 3), (20, True, 0), (64, False, 0)]
)
def test_many_ranks_have_no_legend_and_no_lines(ranks: int, legend: bool, lines: int) -> None:
    layout = graph_views([dict.fromkeys(KEYS, 1)] * ranks)[0].layout
    assert (layout["showlegend"], len(layout["shapes"])) == (legend, lines)
    assert bool(graph_note(ranks)) == (lines > 0)
