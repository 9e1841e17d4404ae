"""Sums of rows against PyTorch's embedding_bag."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from windrow.recsys.tables import dense_gradient as pooling
from windrow.recsys.tables.dense_gradient import pool_rows

LOOKUPS = (0, 0, 1)
ROWS, DIMS = (7, 4), (8, 20)


def case(
    num_samples: int, longest: int, seed: int
) -> tuple[tuple[Tensor, ...], Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tables = tuple(
        torch.randn(rows, dim, generator=generator, requires_grad=True)
        for rows, dim in zip(ROWS, DIMS, strict=True)
    )
    lengths = torch.randint(0, longest + 1, (len(LOOKUPS), num_samples), generator=generator)
    values = torch.cat(
        [
            torch.randint(0, ROWS[table], (int(count),), generator=generator)
            for table, count in zip(LOOKUPS, lengths.sum(1), strict=True)
        ]
    )
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
    weights = torch.rand(len(values), generator=generator, requires_grad=True)
    arriving = torch.randn(num_samples, sum(DIMS[table] for table in LOOKUPS), generator=generator)
    return tables, values, offsets, weights, arriving


@given(st.integers(0, 5), st.integers(0, 4), st.integers(0, 1000), st.booleans(), st.booleans())
def test_values_and_gradients_are_those_of_embedding_bag(num_samples, longest, seed, weighted, short):
    tables, values, offsets, weights, arriving = case(num_samples, longest, seed)
    dtype = torch.int32 if short else torch.int64
    scale = weights if weighted else None
    wanted = (*tables, weights) if weighted else tables
    found = pool_rows(tables, LOOKUPS, values.to(dtype), offsets.to(dtype), scale)
    expected = pooling._pool_by_pytorch(tables, LOOKUPS, values, offsets, scale)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, wanted, arriving), torch.autograd.grad(expected, wanted, arriving)
    )


def test_gradients_of_any_layout():
    tables, values, offsets, _, _ = case(4, 3, 0)
    found = pool_rows(tables, LOOKUPS, values, offsets, None)
    expanded = torch.autograd.grad(found.sum(), tables, retain_graph=True)
    contiguous = torch.autograd.grad(found, tables, torch.ones_like(found))
    torch.testing.assert_close(expanded, contiguous)


def test_weights_without_gradient():
    tables, values, offsets, weights, arriving = case(4, 3, 0)
    found = pool_rows(tables, LOOKUPS, values, offsets, weights.detach())
    found.backward(arriving)
    assert weights.grad is None
    assert tables[1].grad is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_other_devices():
    tables, values, offsets, weights, _ = case(4, 3, 0)
    there = [tensor.detach().cuda() for tensor in (*tables, values, offsets, weights)]
    found = pool_rows((there[0], there[1]), LOOKUPS, there[2], there[3], there[4])
    torch.testing.assert_close(found.cpu(), pool_rows(tables, LOOKUPS, values, offsets, weights).detach())
