"""Rows in rounds: any round size, any order, ranks with very different amounts."""

import numpy as np
import pytest
import torch

from windrow.comm.codec import make_codec
from windrow.comm.loopback import Loopback
from windrow.comm.row_stream import RowStream

HELD, COLUMNS = 9, 3


def rows_of(rank: int) -> torch.Tensor:
    return 100.0 * rank + torch.arange(HELD * COLUMNS, dtype=torch.float32).reshape(HELD, COLUMNS)


def asked_by(rank: int, owner: int) -> torch.Tensor:
    """Positions that `rank` asks `owner` for: many, few or none."""
    count = (5 * rank + 7 * owner) % 11
    return torch.from_numpy(np.random.default_rng(10 * rank + owner).integers(0, HELD, count))


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
@pytest.mark.parametrize("rows_per_round", [1, 4, 1000])
@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "shuffled"])
def test_every_row_lands_where_it_is_wanted(spmd, codec, rows_per_round, in_order):
    def body(world):
        rank, ranks = world.rank, range(world.size)
        counts = [len(asked_by(rank, owner)) for owner in ranks]
        expected = torch.cat([rows_of(owner)[asked_by(rank, owner)] for owner in ranks])
        order = None
        if not in_order:
            order = torch.from_numpy(np.random.default_rng(rank).permutation(len(expected)))
        out = torch.full_like(expected, -1)
        stream = RowStream(
            world, rows_of(rank), make_codec(codec), stage="test", round_bytes=rows_per_round * COLUMNS * 4
        )
        stream.move([asked_by(peer, rank) for peer in ranks], counts, order, out)
        placed = out if order is None else out[order]
        torch.testing.assert_close(placed, expected, rtol=0 if codec == "fp32" else 2**-8, atol=0)

    spmd(body)


def test_own_rows_never_meet_the_codec():
    rows = torch.tensor([[1.0001], [2.0001]])
    out = torch.empty(2, 1)
    stream = RowStream(Loopback.single(), rows, make_codec("bf16"), stage="test")
    stream.move([torch.tensor([1, 0])], [2], None, out)
    assert torch.equal(out, rows.flip(0))


def test_rows_without_elements_move_too():
    out = torch.empty(3, 0)
    stream = RowStream(Loopback.single(), torch.empty(4, 0), make_codec("fp32"), stage="test")
    stream.move([torch.tensor([0, 1, 2])], [3], None, out)
    assert out.shape == (3, 0)
