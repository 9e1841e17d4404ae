"""Rows in two pieces against rows in one; on the CPU both pieces are there."""

import numpy as np
import pytest
import torch

from windrow.caching.cached_store import LocalRows

WHOLE = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32))


@pytest.mark.parametrize("wanted", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("cut", [0, 1, 20, 50])
def test_two_pieces_are_read_as_one(cut, wanted):
    rows = LocalRows(WHOLE[:cut], WHOLE[cut:])
    assert len(rows) == 50
    assert rows.row_shape == (3,)
    generator = np.random.default_rng(cut)
    for count in (0, 1, 40):
        positions = torch.from_numpy(generator.integers(0, 50, count))
        places = torch.from_numpy(generator.permutation(60)[:count])
        out = torch.zeros(60, 3, dtype=wanted)
        expected = out.clone()
        expected[places] = WHOLE[positions].to(wanted)
        rows.move(positions, out, places)
        assert torch.equal(out, expected)
        gathered = torch.zeros(count, 3, dtype=wanted)
        rows.gather(positions, out=gathered)
        assert torch.equal(gathered, WHOLE[positions].to(wanted))


def test_on_a_cpu_nothing_is_split_or_copied():
    rows = LocalRows.split(WHOLE, torch.device("cpu"), 0.3)
    assert rows._first is WHOLE
    assert len(rows._rest) == 0
    assert (rows.device.type, rows.dtype) == ("cpu", torch.float32)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_on_a_gpu_rows_are_split(share):
    rows = LocalRows.split(WHOLE, torch.device("cuda"), share)
    assert len(rows._first) == int(share * 50)
    assert rows._rest.is_pinned() or share == 1
    positions = torch.from_numpy(np.random.default_rng(1).integers(0, 50, 40))
    for device in ("cuda", "cpu"):
        out = torch.zeros(40, 3, device=device)
        rows.gather(positions, out=out)
        assert torch.equal(out.cpu(), WHOLE[positions])
        rows.move(positions.flip(0), out, torch.arange(40))
        assert torch.equal(out.cpu(), WHOLE[positions.flip(0)])
