"""windrow.launch.epoch_cost: parts of an epoch add up, ranks are put together."""

import io
import os
from typing import Any

import torch

from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter, Traffic
from windrow.comm.world import World
from windrow.launch.epoch_cost import EpochCost, RankCost, gather_cost, own_time, own_traffic


def test_two_parts_of_an_epoch_add_up() -> None:
    first = EpochCost(seconds=1.0, stage_seconds={"read": 0.5}, rows_fetched=3, bytes_fetched=12)
    second = EpochCost(
        seconds=2.0, stage_seconds={"read": 0.25, "wait": 1.0}, rows_fetched=1, bytes_fetched=4
    )
    assert first + second == EpochCost(
        seconds=3.0, stage_seconds={"read": 0.75, "wait": 1.0}, rows_fetched=4, bytes_fetched=16
    )
    assert EpochCost() + first == first
    assert EpochCost.from_dict(first.to_dict()) == first


def test_ranks_add_up_where_there_are_as_many() -> None:
    ranks = (RankCost(rows_local=1), RankCost(rows_local=2))
    two = EpochCost(rows_local=3, rows_cached=2, rows_remote=1, ranks=ranks)
    assert (two + two).ranks == (RankCost(rows_local=2), RankCost(rows_local=4))
    assert (two + EpochCost()).ranks == (EpochCost() + two).ranks == two.ranks
    # On another number of ranks they begin anew; all together still add up.
    one = EpochCost(rows_local=5, rows_cached=4, ranks=(RankCost(rows_local=5),))
    both = two + one
    assert both.ranks == one.ranks
    assert (both.rows_local, both.rows_cached, both.rows_remote) == (8, 6, 1)


def test_a_checkpoint_keeps_it_and_an_older_one_has_less_to_keep() -> None:
    cost = EpochCost(seconds=1.0, rows_local=3, ranks=(RankCost(host="a", bytes_sent={"x": [0, 1]}),))
    file = io.BytesIO()
    torch.save(cost.to_dict(), file)
    file.seek(0)
    assert EpochCost.from_dict(torch.load(file, weights_only=True)) == cost
    old = {"seconds": 1.0, "stage_seconds": {"read": 0.5}, "rows_fetched": 3, "bytes_fetched": 12}
    assert EpochCost.from_dict(old) == EpochCost(
        seconds=1.0, stage_seconds={"read": 0.5}, rows_fetched=3, bytes_fetched=12
    )


def test_the_share_found_at_home() -> None:
    assert EpochCost(rows_local=3, rows_remote=1).share_found_at_home == 0.75
    assert EpochCost(rows_local=3).share_found_at_home == 1.0
    assert EpochCost(rows_local=3, rows_cached=2, rows_remote=5).share_found_at_home == 0.5
    assert EpochCost().share_found_at_home is None


def test_the_hit_rate_is_of_rows_of_other_ranks_alone() -> None:
    assert EpochCost(rows_local=100, rows_cached=1, rows_remote=3).cache_hit_rate == 0.25
    assert EpochCost(rows_local=100, rows_cached=4).cache_hit_rate == 1.0
    # Nothing found in a cache is no cache: there is no figure to show.
    assert EpochCost(rows_local=100, rows_remote=3).cache_hit_rate is None
    assert EpochCost().cache_hit_rate is None


def test_ranks_are_put_together() -> None:
    costs = [
        EpochCost(seconds=1.0, stage_seconds={"read": 0.5}, rows_fetched=3, bytes_fetched=12),
        EpochCost(seconds=1.5, stage_seconds={"read": 0.2, "wait": 1.0}, rows_fetched=1, bytes_fetched=4),
    ]
    whole = EpochCost(seconds=1.5, stage_seconds={"read": 0.5, "wait": 1.0}, rows_fetched=4, bytes_fetched=16)
    assert Loopback.run(2, lambda world: gather_cost(world, costs[world.rank]), deadline_s=30) == [whole] * 2


def test_every_rank_is_told_apart(spmd: Any) -> None:
    def body(world: World) -> tuple[EpochCost, EpochCost]:
        world.meter = Meter()
        counts = [world.rank + peer for peer in range(world.size)]
        world.all_to_all(torch.zeros(sum(counts), 2), counts, counts, stage="rows")
        found = {"local": counts[world.rank], "remote": sum(counts) - counts[world.rank]}
        world.meter.record_found("rows", cached=10 + world.rank, **found)
        own = own_traffic(world, world.meter.totals("rows")) + own_time(1.0 + world.rank, {"wait": 0.5})
        return own, gather_cost(world, own)

    results = spmd(body)
    size = len(results)
    gathered = results[0][1]
    assert gathered.ranks == tuple(rank for own, _ in results for rank in own.ranks)
    assert all(not cost.ranks for _, cost in results[1:])
    assert len({(c.seconds, c.rows_fetched, c.bytes_fetched, c.share_found_at_home) for _, c in results}) == 1
    assert gathered.rows_cached == sum(10 + rank for rank in range(size))
    assert [rank.rows_cached for rank in gathered.ranks] == [10 + rank for rank in range(size)]
    assert gathered.rows_remote == gathered.rows_fetched == sum(rank.rows_remote for rank in gathered.ranks)
    assert gathered.seconds == size
    for number, rank in enumerate(gathered.ranks):
        assert (rank.host, rank.seconds, rank.stage_seconds) == (
            os.uname().nodename,
            1.0 + number,
            {"wait": 0.5},
        )
        assert rank.peak_memory_bytes > 0
        sent = rank.bytes_sent.get("rows", [0] * size)
        assert sent == [0 if peer == number else 8 * (number + peer) for peer in range(size)]


def test_what_a_rank_fetched_is_the_jobs_to_say() -> None:
    world = Loopback.single()
    world.meter = Meter()
    own = own_traffic(world, Traffic(rows_received=3, bytes_received=12))
    assert (own.rows_fetched, own.bytes_fetched, own.ranks) == (3, 12, (RankCost(),))
