"""windrow.training.epoch_cost: parts add up, ranks are put together, and say the same of each other."""

import io
import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter, Traffic
from windrow.comm.world import World
from windrow.training.epoch_cost import (
    RankCost,
    cache_hit_rate,
    communication_share,
    gather_costs,
    home_share,
    own_traffic,
    peak_gpu_memory_bytes,
    peak_memory_bytes,
    with_time,
)

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
    rows_fetched=COUNTS,
    bytes_fetched=COUNTS,
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
    for name in ("rows_local", "rows_cached", "rows_remote"):
        assert getattr(both, name) == getattr(one, name) + getattr(two, name)
    assert both.peak_memory_bytes == max(one.peak_memory_bytes, two.peak_memory_bytes)


@given(COSTS, COSTS)
def test_adding_leaves_the_parts_alone(one: RankCost, two: RankCost) -> None:
    before = json.dumps([asdict(one), asdict(two)])
    total = one + two
    for numbers in total.bytes_sent.values():
        numbers[0] += 1
    assert json.dumps([asdict(one), asdict(two)]) == before


@pytest.mark.parametrize("size", [1, 3])
def test_what_one_rank_sent_the_other_received(size: int) -> None:
    def body(world: World) -> RankCost:
        world.meter = Meter()
        for stage, factor in (("rows", 1), ("ids", 3)):
            counts = [factor * (world.rank + 2 * peer) % 4 for peer in range(world.size)]
            arriving = world.all_to_all_counts(counts, stage="counts")
            world.all_to_all(torch.zeros(sum(counts), 5), counts, arriving, stage=stage)
        world.all_gather_object("x" * world.rank, stage="objects")
        world.all_reduce(torch.zeros(6), stage="sums")
        return own_traffic(world, Traffic())

    ranks = Loopback.run(size, body, deadline_s=60)
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


def test_rows_are_those_of_all_stages_and_what_was_fetched_is_the_jobs_to_say() -> None:
    world = Loopback.single()
    world.meter = Meter()
    world.meter.record_found("bags: rows", local=3, remote=4)
    world.meter.record_found("sequences: rows", local=10, cached=5, remote=20)
    own = own_traffic(world, Traffic(rows_received=3, bytes_received=12))
    assert own == RankCost(rows_fetched=3, bytes_fetched=12, rows_local=13, rows_cached=5, rows_remote=24)


def test_share_of_waiting_leaves_evaluation_out() -> None:
    one = RankCost(seconds=5.0, stage_seconds={"evaluate": 1.0}, waiting_seconds={"a": 1.0, "b": 0.5})
    two = RankCost(seconds=4.0, waiting_seconds={"a": 0.5})
    assert communication_share([one, two]) == 0.25
    assert communication_share([]) is None


def test_what_each_rank_cost_adds_up_where_there_are_as_many_and_is_shared_out_where_not() -> None:
    def body(world: World, before: list[RankCost]) -> tuple[RankCost, ...]:
        own = RankCost(rows_local=10 * (world.rank + 1), bytes_sent={"rows": [1] * world.size})
        return gather_costs(world, own, before)

    before = [RankCost(rows_local=rank, bytes_sent={"rows": [1] * 3}) for rank in (1, 2, 3)]
    for size, rows, sent in ((3, [11, 22, 33], [2, 2, 2]), (2, [10 + 1 + 3, 20 + 2], [1, 1])):
        first, *others = Loopback.run(size, lambda world: body(world, before), deadline_s=30)
        assert [cost.rows_local for cost in first] == rows
        assert all(cost.bytes_sent == {"rows": sent} for cost in first)
        assert others == [()] * (size - 1)


def test_a_checkpoint_keeps_it() -> None:
    cost = RankCost(host="a", seconds=1.0, rows_local=3, bytes_sent={"x": [0, 1]})
    file = io.BytesIO()
    torch.save(asdict(cost), file)
    file.seek(0)
    assert RankCost(**torch.load(file, weights_only=True)) == cost


def test_shares_of_rows() -> None:
    ranks = [RankCost(rows_local=9, rows_cached=3, rows_remote=1), RankCost(rows_local=3, rows_remote=4)]
    assert (home_share(ranks), cache_hit_rate(ranks)) == (15 / 20, 3 / 8)
    assert home_share([RankCost(rows_local=3)]) == 1.0
    assert home_share([RankCost()]) is None
    # Nothing found in a cache is no cache: there is no figure to show.
    assert cache_hit_rate(ranks[1:]) is None


@pytest.mark.parametrize("size", [1, 3])
def test_every_rank_is_told_apart(size: int) -> None:
    def body(world: World) -> tuple[RankCost, tuple[RankCost, ...]]:
        world.meter = Meter()
        counts = [world.rank + peer for peer in range(world.size)]
        world.all_to_all(torch.zeros(sum(counts), 2), counts, counts, stage="rows")
        found = {"local": counts[world.rank], "remote": sum(counts) - counts[world.rank]}
        world.meter.record_found("rows", cached=10 + world.rank, **found)
        own = with_time(own_traffic(world, world.meter.totals("rows")), 1.0 + world.rank, {"wait": 0.5})
        return own, gather_costs(world, own, ())

    results = Loopback.run(size, body, deadline_s=60)
    gathered = results[0][1]
    assert gathered == tuple(own for own, _ in results)
    assert all(costs == () for _, costs in results[1:])
    assert [rank.rows_cached for rank in gathered] == [10 + rank for rank in range(size)]
    assert all(rank.rows_remote == rank.rows_fetched for rank in gathered)
    for number, rank in enumerate(gathered):
        assert (rank.host, rank.seconds, rank.stage_seconds) == (os.uname().nodename, 1.0 + number, {"wait": 0.5})
        assert rank.peak_memory_bytes > 0
        sent = rank.bytes_sent.get("rows", [0] * size)
        assert sent == [0 if peer == number else 8 * (number + peer) for peer in range(size)]


CODE = """
from windrow.training.epoch_cost import peak_memory_bytes
before = peak_memory_bytes()
block = b"x" * (256 << 20)
with_block = peak_memory_bytes()
del block
print(before, with_block, peak_memory_bytes())
"""


def test_the_peak_is_in_bytes_and_stays() -> None:
    # In a process of its own, whose peak nothing else has raised.
    said = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=120)
    before, with_block, after = map(int, said.stdout.split())
    assert 1 << 20 < before < 4 << 30
    assert with_block >= 256 << 20
    assert after >= with_block
    assert peak_memory_bytes() > 1 << 20


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_needed_of_it() -> None:
    assert peak_gpu_memory_bytes() == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_tensors_held_on_the_gpu() -> None:
    block = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    del block
    assert peak_gpu_memory_bytes() >= 1 << 20
