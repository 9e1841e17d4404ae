"""Ids that follow Zipf's law."""

import torch

from benchmarks.harness.zipf import zipf_ids


def test_the_law():
    ids = zipf_ids(1000, 200_000, exponent=1.05, seed=1)
    assert ids.dtype == torch.int64
    assert 0 <= int(ids.min()) <= int(ids.max()) < 1000
    counts = torch.bincount(ids, minlength=1000).double()
    # Of row k as often as the law's area between k + 1 and k + 2 says.
    edges = torch.arange(1, 1002, dtype=torch.float64) ** -0.05
    expected = 200_000 * (edges[:-1] - edges[1:]) / (1 - 1001**-0.05)
    assert float(((counts - expected).abs() / expected.sqrt()).mean()) < 1
    assert torch.equal(ids, zipf_ids(1000, 200_000, exponent=1.05, seed=1))
    assert not torch.equal(ids, zipf_ids(1000, 200_000, exponent=1.05, seed=2))


def test_exponents_below_one():
    ids = zipf_ids(100, 50_000, exponent=0.8, seed=1)
    assert int(ids.max()) == 99
    assert int((ids == 0).sum()) > 5 * int((ids == 50).sum())
