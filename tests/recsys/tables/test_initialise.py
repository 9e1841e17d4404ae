"""First values do not depend on how a table is cut."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.tables.make import default_scale, initialise_rectangle


def filled(
    rows: tuple[int, int], columns: tuple[int, int], *, name="items", seed=3, scale=0.5, dtype=torch.float32
) -> torch.Tensor:
    weight = torch.full((rows[1] - rows[0], columns[1] - columns[0]), torch.nan, dtype=dtype)
    initialise_rectangle(weight, name, first_row=rows[0], first_column=columns[0], scale=scale, seed=seed)
    return weight


@given(
    rows=st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted),
    columns=st.tuples(st.integers(0, 16), st.integers(0, 16)).map(sorted),
)
def test_a_rectangle_has_the_values_of_the_whole_table(rows, columns):
    whole = filled((0, 40), (0, 16))
    assert torch.equal(filled(rows, columns), whole[rows[0] : rows[1], columns[0] : columns[1]])


def test_values_are_uniform_and_uncorrelated():
    values = filled((0, 4000), (0, 64), scale=0.5)
    assert values.min() >= -0.5
    assert values.max() < 0.5
    counts = np.histogram(values, bins=100, range=(-0.5, 0.5))[0]
    # 99 degrees of freedom: chi square above 180 has a chance of 1e-6.
    assert ((counts - 2560) ** 2 / 2560).sum() < 180
    correlations = torch.corrcoef(values.T) - torch.eye(64)
    assert correlations.abs().max() < 6 / 4000**0.5
    assert torch.corrcoef(values[:200]).fill_diagonal_(0).abs().max() < 6 / 64**0.5


@pytest.mark.parametrize("change", [{"name": "users"}, {"seed": 4}])
def test_tables_and_seeds_differ(change):
    assert (filled((0, 50), (0, 8)) == filled((0, 50), (0, 8), **change)).sum() < 5


def test_large_row_numbers():
    far = filled((2**33, 2**33 + 4), (0, 8))
    assert not torch.equal(far, filled((0, 4), (0, 8)))
    assert torch.equal(far[2:], filled((2**33 + 2, 2**33 + 4), (0, 8)))


def test_half_precision_is_the_rounded_single_precision(monkeypatch):
    monkeypatch.setattr("windrow.recsys.tables.make.CHUNK_VALUES", 100)
    assert torch.equal(filled((5, 90), (0, 12), dtype=torch.float16), filled((5, 90), (0, 12)).half())


def test_default_scale():
    assert default_scale(400) == 0.05
    assert default_scale(0) == 1.0
