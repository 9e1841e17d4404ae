"""windrow.launch.report.read_run: sums of traffic and rows; a damaged line is named."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import StoreError
from windrow.launch.epoch_cost import RankCost
from windrow.launch.report.read_run import (
    cache_hit_rate,
    home_share,
    mean_traffic,
    read_rank_epochs,
    traffic_stages,
)


def line(**changes: Any) -> str:
    rank = {"host": "a", "seconds": 1.0, "stage_seconds": {"s": 0.5}, "bytes_sent": {"rows": [0, 7]}}
    return json.dumps({"epoch": 1, "ranks": [{**rank, **changes}, rank]})


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{each}\n" for each in lines))
    return path


def test_no_file_is_no_epochs(tmp_path: Path) -> None:
    assert read_rank_epochs(tmp_path / "ranks.jsonl") == {}


def test_an_unfinished_last_line_is_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "ranks.jsonl", line())
    path.write_text(path.read_text() + '{"epoch": 2, "ra')
    assert list(read_rank_epochs(path)) == [1]
    assert read_rank_epochs(path)[1][0].bytes_sent == {"rows": [0, 7]}


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ({"bytes_sent": {"rows": [1]}}, "has 1 numbers for 2 ranks"),
        ({"bytes_sent": {"rows": [1, -2]}}, "got -2"),
        ({"bytes_sent": {"rows": [1, "x"]}}, "got 'x'"),
        ({"bytes_sent": [1]}, "line 2: "),
        ({"stage_seconds": {"s": float("nan")}}, "got nan"),
        ({"stage_seconds": {"s": None}}, "got None"),
        ({"peak_memory_bytes": True}, "got True"),
        ({"rows_local": -1}, "got -1"),
        ({"rows_cached": -3}, "got -3"),
        ({"peak_gpu_memory_bytes": "8"}, "got '8'"),
        ({"waiting_seconds": {"rows": -0.5}}, "got -0.5"),
        ({"waiting_seconds": 3}, "line 2: "),
        ({"host": ["a"]}, "got ['a']"),
        ({"surprise": 1}, "not the record"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, damage: dict[str, Any], told: str) -> None:
    path = write(tmp_path / "ranks.jsonl", line(), line(**damage))
    with pytest.raises(StoreError, match=r"ranks.jsonl, line 2: .*Remove that line") as caught:
        read_rank_epochs(path)
    assert told in str(caught.value)


def test_an_epoch_without_ranks_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "ranks.jsonl", '{"epoch": 1, "ranks": []}')
    with pytest.raises(StoreError, match="line 1: it names no ranks"):
        read_rank_epochs(path)


def test_share_found_at_home() -> None:
    ranks = [RankCost(rows_local=3, rows_remote=1), RankCost(rows_local=0, rows_remote=4)]
    assert home_share(ranks) == 3 / 8
    assert home_share(iter(ranks[:1])) == 3 / 4
    assert home_share([*ranks, RankCost(rows_cached=2)]) == 5 / 10
    assert home_share([RankCost()]) is None


def test_hit_rate_of_the_cache() -> None:
    ranks = [
        RankCost(rows_local=9, rows_cached=3, rows_remote=1),
        RankCost(rows_local=9, rows_cached=0, rows_remote=4),
    ]
    assert cache_hit_rate(iter(ranks)) == 3 / 8
    assert cache_hit_rate(ranks[:1]) == 3 / 4
    assert cache_hit_rate(ranks[1:]) is None
    assert cache_hit_rate([RankCost()]) is None


amounts = st.integers(min_value=0, max_value=10**12)
two_ranks = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.lists(amounts, min_size=2, max_size=2)), min_size=2, max_size=2
)


@given(st.lists(two_ranks, min_size=1, max_size=4))
def test_stages_add_up_to_all_and_nothing_is_lost(sent: list[list[dict[str, list[int]]]]) -> None:
    epochs = {
        number: [RankCost(bytes_sent=rank) for rank in ranks] for number, ranks in enumerate(sent, start=1)
    }
    stages = traffic_stages(epochs)
    together = mean_traffic(epochs, stages)
    apart = [mean_traffic(epochs, [stage]) for stage in stages]
    for sender in range(2):
        for receiver in range(2):
            exact = sum(
                rank.get(s, [0, 0])[receiver] for ranks in sent for s in "abc" for rank in [ranks[sender]]
            )
            assert together[sender][receiver] == pytest.approx(exact / len(sent))
            assert sum(one[sender][receiver] for one in apart) == pytest.approx(exact / len(sent))


def test_the_stage_with_most_bytes_comes_first_and_empty_ones_not_at_all() -> None:
    costs = [RankCost(bytes_sent={"few": [0, 1], "many": [0, 9], "none": [0, 0]})]
    assert traffic_stages({1: [*costs, RankCost()]}) == ["many", "few"]


def test_epochs_on_another_number_of_ranks_are_passed_over() -> None:
    before = [RankCost(bytes_sent={"rows": [0, 1, 1]})] * 3
    now = [RankCost(bytes_sent={"rows": [0, 5]}), RankCost(bytes_sent={"rows": [3, 0]})]
    assert mean_traffic({1: before, 2: now}, ["rows"]) == [[0, 5], [3, 0]]
