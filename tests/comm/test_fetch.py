"""Fetched rows against indexing the whole matrix."""

import numpy as np
import pytest
import torch

from windrow.comm.errors import DataError
from windrow.comm.fetch import fetch_learnt_rows, fetch_rows
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter, RowsFound
from windrow.comm.wire import Wire, make_codec

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


def fetch(world, ids, codec="fp32", out=None):
    offsets = offsets_for(world.size)
    wire = Wire(world, stage="rows", codec=make_codec(codec))
    return fetch_rows(wire, offsets, whole_matrix()[offsets[world.rank] : offsets[world.rank + 1]], ids, out=out)


@pytest.mark.parametrize("round_bytes", [1, 3 * COLUMNS * 4, 1 << 20])
def test_fetch_equals_indexing_the_whole_matrix(spmd, monkeypatch, round_bytes):
    monkeypatch.setattr("windrow.comm.fetch.ROUND_BYTES", round_bytes)

    def body(world):
        ids = ids_of(world.rank)
        assert torch.equal(fetch(world, ids), whole_matrix()[ids])
        # Sorted ids are received in place.
        ordered = ids.unique()
        out = torch.empty(len(ordered), COLUMNS)
        assert fetch(world, ordered, out=out) is out
        assert torch.equal(out, whole_matrix()[ordered])
        short = torch.empty(len(ids), COLUMNS, dtype=torch.bfloat16)
        assert torch.equal(fetch(world, ids, out=short), whole_matrix()[ids].bfloat16())

    spmd(body)


@pytest.mark.parametrize(("codec", "relative_error"), [("fp16", 2**-11), ("bf16", 2**-8)])
def test_fetch_through_a_codec_is_as_exact_as_the_codec(spmd, codec, relative_error):
    def body(world):
        ids = ids_of(world.rank)
        offsets = offsets_for(world.size)
        fetched, exact = fetch(world, ids, codec), whole_matrix()[ids]
        own = (ids >= offsets[world.rank]) & (ids < offsets[world.rank + 1])
        assert torch.equal(fetched[own], exact[own])
        assert ((fetched - exact).abs() <= relative_error * exact.abs()).all()

    spmd(body)


def test_rows_and_bytes_are_those_of_the_remote_ids():
    def body(world):
        world.meter = Meter()
        fetch(world, torch.tensor([0, 35, 36]), "fp16")
        return world.meter

    meter = Loopback.run(2, body)[0]
    rows, ids = meter.totals("rows: rows"), meter.totals("rows: ids")
    assert (rows.rows_received, rows.bytes_received) == (2, 2 * COLUMNS * 2)
    # One count and two ids, of eight bytes each.
    assert ids.bytes_sent == 3 * 8
    assert meter.found("rows: rows") == RowsFound(local=1, remote=2)


def test_ids_out_of_range_are_refused():
    for wrong in (37, -1):
        with pytest.raises(DataError, match=str(wrong)):
            fetch(Loopback.single(), torch.tensor([3, wrong]))


def test_parts_that_do_not_fit_the_world_are_refused():
    wire, ids = Wire(Loopback.single(), stage="rows"), torch.tensor([0])
    with pytest.raises(ValueError, match="2 id ranges for 1 ranks"):
        fetch_rows(wire, [0, 1, 2], torch.ones(1, 1), ids)
    with pytest.raises(ValueError, match="rank 0 owns 2 ids but was given 1 rows"):
        fetch_rows(wire, [0, 2], torch.ones(1, 1), ids)


def test_gradients_of_learnt_rows_go_back_to_their_owners(spmd):
    """To rows that several ranks ask for the sum; some rank asks for nothing."""

    def wanted(rank, size):
        return torch.empty(0, dtype=torch.int64) if rank == 1 else torch.tensor([4, 0, 3 + rank])[: 1 + size]

    def body(world):
        offsets = [*[0, 2, 5, 5, 7][: world.size], 7]
        everything = torch.arange(21.0).view(7, 3)
        own = everything[offsets[world.rank] : offsets[world.rank + 1]].clone().requires_grad_()
        ids = wanted(world.rank, world.size)
        rows = fetch_learnt_rows(Wire(world, stage="rows"), offsets, own, ids)
        assert torch.equal(rows, everything[ids])
        rows.backward(torch.full_like(rows, 1.0 + world.rank))
        expected = torch.zeros(7, 3)
        for rank in range(world.size):
            of_rank = wanted(rank, world.size)
            expected.index_add_(0, of_rank, torch.full((len(of_rank), 3), 1.0 + rank))
        assert torch.equal(own.grad, expected[offsets[world.rank] : offsets[world.rank + 1]])

    spmd(body)
