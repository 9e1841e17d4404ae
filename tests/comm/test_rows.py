"""Gathering and scattering against PyTorch's indexing, for every width of a row."""

import numpy as np
import pytest
import torch

from windrow.comm.rows import gather_rows, scatter_rows


def matrix(rows, columns, dtype):
    values = np.random.default_rng(rows + columns).integers(0, 200, (rows, columns))
    return torch.from_numpy(values).to(dtype)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.float64], ids=str
)
@pytest.mark.parametrize("columns", [1, 2, 3, 8, 33, 130])
def test_rows_go_where_indexing_would_put_them(dtype, columns):
    rows = matrix(50, columns, dtype)
    positions = torch.from_numpy(np.random.default_rng(1).integers(0, 50, 70))
    out = torch.zeros((70, columns), dtype=dtype)
    gather_rows(rows, positions, out=out)
    assert torch.equal(out, rows[positions])

    places = torch.from_numpy(np.random.default_rng(2).permutation(60)[:50])
    out = torch.zeros((60, columns), dtype=dtype)
    expected = out.clone()
    expected[places] = rows
    scatter_rows(rows, places, out=out)
    assert torch.equal(out, expected)


def test_rows_may_have_many_dimensions_none_or_be_a_view():
    rows = matrix(20, 24, torch.float32)
    positions = torch.tensor([3, 1, 19])
    out = torch.empty(3, 2, 12)
    gather_rows(rows.view(20, 2, 12), positions, out=out)
    assert torch.equal(out, rows[positions].view(3, 2, 12))
    out = torch.empty(3)
    gather_rows(rows[:, 0], positions, out=out)
    assert torch.equal(out, rows[positions, 0])
    nothing = torch.empty(0, 24)
    gather_rows(rows, torch.empty(0, dtype=torch.int64), out=nothing)
    gather_rows(torch.empty(4, 0), positions, out=torch.empty(3, 0))
    scatter_rows(nothing, torch.empty(0, dtype=torch.int64), out=rows)
    assert torch.equal(rows, matrix(20, 24, torch.float32))
