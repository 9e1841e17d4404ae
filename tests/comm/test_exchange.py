"""Fetch and push against the whole matrix in one place."""

import numpy as np
import pytest
import torch

from windrow.comm.codec import make_codec
from windrow.comm.errors import DataError
from windrow.comm.exchange import RowExchange
from windrow.comm.loopback import Loopback

ROWS, COLUMNS = 37, 5


def whole_matrix() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32))


def offsets_for(size: int) -> list[int]:
    """Unequal parts; with four ranks the second owns nothing."""
    return {1: [0, ROWS], 2: [0, 30, ROWS], 4: [0, 11, 11, 12, ROWS]}[size]


def ids_of(rank: int) -> torch.Tensor:
    """Requests with repeats, in no order; rank 1 asks for nothing."""
    count = 0 if rank == 1 else 20 + rank
    return torch.from_numpy(np.random.default_rng(rank).integers(0, ROWS, count))


def make_exchange(world, codec="fp32") -> RowExchange:
    offsets = offsets_for(world.size)
    rows = whole_matrix()[offsets[world.rank] : offsets[world.rank + 1]]
    return RowExchange(world, offsets, rows, codec=make_codec(codec))


def test_fetch_equals_indexing_the_whole_matrix(spmd):
    def body(world):
        ids = ids_of(world.rank)
        exchange = make_exchange(world)
        assert torch.equal(exchange.fetch(ids), whole_matrix()[ids])
        distinct = ids.unique()
        shuffled = distinct[torch.from_numpy(np.random.default_rng(9).permutation(len(distinct)))]
        assert torch.equal(exchange.fetch(shuffled, unique=True), whole_matrix()[shuffled])
        assert torch.equal(exchange.fetch(distinct, unique=True), whole_matrix()[distinct])

    spmd(body)


@pytest.mark.parametrize(("codec", "relative_error"), [("fp16", 2**-11), ("bf16", 2**-8)])
def test_fetch_through_a_codec_is_as_exact_as_the_codec(spmd, codec, relative_error):
    def body(world):
        ids = ids_of(world.rank)
        offsets = offsets_for(world.size)
        fetched, exact = make_exchange(world, codec).fetch(ids), whole_matrix()[ids]
        own = (ids >= offsets[world.rank]) & (ids < offsets[world.rank + 1])
        assert torch.equal(fetched[own], exact[own])
        assert ((fetched - exact).abs() <= relative_error * exact.abs()).all()

    spmd(body)


def test_push_adds_up_every_gradient_at_its_owner(spmd):
    def gradients_of(rank):
        return torch.from_numpy(np.random.default_rng(100 + rank).normal(size=(len(ids_of(rank)), COLUMNS)))

    def body(world):
        positions, sums = make_exchange(world).push(ids_of(world.rank), gradients_of(world.rank).float())
        expected = torch.zeros(ROWS, COLUMNS, dtype=torch.float64)
        for rank in range(world.size):
            expected.index_add_(0, ids_of(rank), gradients_of(rank))
        first = offsets_for(world.size)[world.rank]
        touched = torch.cat([ids_of(rank) for rank in range(world.size)]).unique()
        mine = touched[(touched >= first) & (touched < offsets_for(world.size)[world.rank + 1])]
        assert torch.equal(positions + first, mine)
        torch.testing.assert_close(sums.double(), expected[mine], rtol=1e-5, atol=1e-6)

    spmd(body)


def test_nobody_asks_for_anything(spmd):
    def body(world):
        nothing = torch.empty(0, dtype=torch.int64)
        assert make_exchange(world).fetch(nothing).shape == (0, COLUMNS)
        positions, sums = make_exchange(world).push(nothing, torch.empty(0, COLUMNS))
        assert positions.shape == (0,)
        assert sums.shape == (0, COLUMNS)

    spmd(body)


def test_traffic_is_eight_bytes_and_a_row_for_each_distinct_remote_id():
    from windrow.comm.meter import Meter

    def body(world):
        world.meter = Meter()
        exchange = make_exchange(world, "fp16")
        exchange.fetch(torch.tensor([0, 35, 36, 35]))
        return world.meter

    meter = Loopback.run(2, body)[0]
    rows, ids = meter.totals("rows: rows"), meter.totals("rows: ids")
    assert (rows.rows_received, rows.bytes_received) == (2, 2 * COLUMNS * 2)
    # One count and two ids, of eight bytes each.
    assert ids.bytes_sent == 3 * 8


def test_rows_at_home_and_elsewhere_are_the_ids_asked_for(spmd):
    from windrow.comm.meter import Meter, RowsFound

    def body(world):
        world.meter = Meter()
        ids, offsets = ids_of(world.rank), offsets_for(world.size)
        exchange = make_exchange(world)
        exchange.fetch(ids)
        distinct = ids.unique()
        own = ((distinct >= offsets[world.rank]) & (distinct < offsets[world.rank + 1])).sum().item()
        found = world.meter.found("rows: rows")
        assert found == RowsFound(local=own, remote=len(distinct) - own)
        assert found.remote == world.meter.totals("rows: rows").rows_received
        exchange.fetch(distinct, unique=True)
        assert world.meter.found("rows: rows") == found + found
        # Gradients are pushed, not asked for.
        exchange.push(distinct, torch.ones(len(distinct), COLUMNS))
        assert world.meter.found() == found + found

    spmd(body)


def test_ids_out_of_range_are_refused():
    exchange = make_exchange(Loopback.single())
    with pytest.raises(DataError, match="37"):
        exchange.fetch(torch.tensor([3, 37]))
    with pytest.raises(DataError, match="-1"):
        exchange.fetch(torch.tensor([3, -1]))


def test_parts_that_do_not_fit_the_world_are_refused():
    with pytest.raises(ValueError, match="2 id ranges for 1 ranks"):
        RowExchange(Loopback.single(), [0, 1, 2], torch.ones(1, 1))
    with pytest.raises(ValueError, match="rank 0 owns 2 ids but was given 1 rows"):
        RowExchange(Loopback.single(), [0, 2], torch.ones(1, 1))
