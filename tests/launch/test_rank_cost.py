"""windrow.launch.epoch_cost: parts add up, and what ranks say of each other is the same."""

import json
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.meter import Meter
from windrow.comm.world import World
from windrow.launch.epoch_cost import RankCost, communication_share, rank_traffic

SIZE = 3
COUNTS = st.integers(0, 1000)
MATRICES = st.dictionaries(st.sampled_from("abc"), st.lists(COUNTS, min_size=SIZE, max_size=SIZE))
SECONDS = st.integers(0, 100).map(float)
COSTS = st.builds(
    RankCost,
    host=st.sampled_from(["", "one", "two"]),
    seconds=SECONDS,
    stage_seconds=st.dictionaries(st.sampled_from("xyz"), SECONDS),
    waiting_seconds=st.dictionaries(st.sampled_from("xyz"), SECONDS),
    bytes_sent=MATRICES,
    bytes_received=MATRICES,
    bytes_reduced=COUNTS,
    rows_local=COUNTS,
    rows_cached=COUNTS,
    rows_remote=COUNTS,
    peak_memory_bytes=COUNTS,
    peak_gpu_memory_bytes=COUNTS,
)


def entry(matrix: Any, stage: str, peer: int) -> int:
    return matrix[stage][peer] if stage in matrix else 0


@given(COSTS, COSTS, COSTS)
def test_parts_add_up(one: RankCost, two: RankCost, three: RankCost) -> None:
    both = one + two
    assert (one + two) + three == one + (two + three)
    assert RankCost() + one == one + RankCost() == one
    assert both.seconds == one.seconds + two.seconds
    assert both.host == (two.host or one.host)
    for name in ("bytes_sent", "bytes_received"):
        matrices = [getattr(cost, name) for cost in (both, one, two)]
        for stage in "abc":
            for peer in range(SIZE):
                whole, *parts = (entry(matrix, stage, peer) for matrix in matrices)
                assert whole == sum(parts)
    for stage in "xyz":
        for name in ("stage_seconds", "waiting_seconds"):
            whole_s, *parts_s = (getattr(cost, name).get(stage, 0.0) for cost in (both, one, two))
            assert whole_s == sum(parts_s)
    assert both.rows_local - one.rows_local == two.rows_local
    assert both.rows_cached - one.rows_cached == two.rows_cached
    assert both.rows_remote - one.rows_remote == two.rows_remote
    assert both.peak_memory_bytes == max(one.peak_memory_bytes, two.peak_memory_bytes)


@given(COSTS)
def test_it_survives_json(cost: RankCost) -> None:
    assert RankCost(**json.loads(json.dumps(cost.to_dict()))) == cost


@given(COSTS, COSTS)
def test_adding_leaves_the_parts_alone(one: RankCost, two: RankCost) -> None:
    before = json.dumps([one.to_dict(), two.to_dict()])
    total = one + two
    for numbers in total.bytes_sent.values():
        numbers[0] += 1
    assert json.dumps([one.to_dict(), two.to_dict()]) == before


def test_what_one_rank_sent_the_other_received(spmd: Any) -> None:
    def body(world: World) -> RankCost:
        world.meter = Meter()
        for stage, factor in (("rows", 1), ("ids", 3)):
            counts = [factor * (world.rank + 2 * peer) % 4 for peer in range(world.size)]
            arriving = world.all_to_all_counts(counts, stage="counts")
            world.all_to_all(torch.zeros(sum(counts), 5), counts, arriving, stage=stage)
        world.all_gather_object("x" * world.rank, stage="objects")
        world.all_reduce(torch.zeros(6), stage="sums")
        return rank_traffic(world.meter, world.size)

    ranks = spmd(body)
    size = len(ranks)
    stages = {stage for rank in ranks for stage in (*rank.bytes_sent, *rank.bytes_received)}
    assert stages == ({"rows", "ids", "counts", "objects"} if size > 1 else set())
    for stage in stages:
        for p, sender in enumerate(ranks):
            for q, receiver in enumerate(ranks):
                assert entry(sender.bytes_sent, stage, q) == entry(receiver.bytes_received, stage, p)
                assert p != q or entry(sender.bytes_sent, stage, q) == 0
    if size > 1:
        # (0 + 2 x 1) % 4 rows of 5 float32.
        assert entry(ranks[0].bytes_sent, "rows", 1) == 2 * 5 * 4
    assert all(rank.bytes_reduced == (24 if size > 1 else 0) for rank in ranks)


def test_rows_are_those_of_all_stages() -> None:
    meter = Meter()
    meter.record_found("bags: rows", local=3, remote=4)
    meter.record_found("sequences: rows", local=10, cached=5, remote=20)
    assert rank_traffic(meter, 1) == RankCost(rows_local=13, rows_cached=5, rows_remote=24)


def test_share_of_waiting_leaves_evaluation_out() -> None:
    one = RankCost(seconds=5.0, stage_seconds={"evaluate": 1.0}, waiting_seconds={"a": 1.0, "b": 0.5})
    two = RankCost(seconds=4.0, waiting_seconds={"a": 0.5})
    assert communication_share([one, two]) == 0.25
    assert communication_share([]) is None
