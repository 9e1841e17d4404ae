"""Codes that are hashes, chosen for a dense table, or clustered while tables learn."""

from dataclasses import replace

import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.recsys.tables.codes import Codes, k_means
from windrow.recsys.tables.forms import whole_table
from windrow.recsys.tables.options import TableOptions


def make(rows=400, dim=8, **options) -> Codes:
    return Codes(whole_table("t", rows, dim), TableOptions(form="codes", compression=10, code_parts=2, **options))


def random_values(form: Codes) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(table.num_rows, table.dim, generator=generator) for table in form.stored]


def test_vectors_are_parts_of_codebooks():
    form = make()
    (books,) = random_values(form)
    table = form.whole_table("t", [books]).view(400, 2, 4)
    for part in range(2):
        entries = books[part * form.entries : (part + 1) * form.entries]
        closest = torch.cdist(table[:, part], entries).argmin(1)
        assert torch.equal(table[:, part], entries[closest])
        assert len(closest.unique()) == form.entries
    # Rows share an entry by chance, but hardly one in both parts.
    assert len(table.flatten(1).unique(dim=0)) > 300


def test_a_table_of_few_vectors_comes_back_nearly():
    """Nearly: k-means ends at a minimum among others."""
    form = make()
    chosen = torch.randint(0, 30, (400,), generator=torch.Generator().manual_seed(2))
    table = torch.randn(30, 8, generator=torch.Generator().manual_seed(3))[chosen]
    (books,) = form.nearest([table])
    error = (form.whole_table("t", [books]) - table).square()
    assert float(error.mean()) < 0.1 * float(table.square().mean())
    assert float((error < 1e-8).float().mean()) > 0.7


def test_k_means_lowers_the_error_and_keeps_empty_centres():
    vectors = torch.randn(500, 3, generator=torch.Generator().manual_seed(1))

    def error(centres):
        return float(torch.cdist(vectors, centres).min(1).values.square().sum())

    assert error(k_means(vectors, 20)) < 0.8 * error(vectors[:20])
    assert torch.equal(k_means(torch.zeros(5, 2), 3), torch.zeros(3, 2))


def test_clustering_gives_rows_that_are_alike_one_code_and_moves_vectors_little():
    form = make(code_every=2)
    books, helpers = random_values(form)
    helpers *= 0.01
    # Before: hashed codes, so the distinct parts are those of the codebooks, but for helpers.
    before = form.whole_table("t", [books, helpers])
    form.step([books, helpers], None)
    assert torch.equal(form.whole_table("t", [books, helpers]), before)
    form.step([books, helpers], None)
    after = form.whole_table("t", [books, helpers])
    assert not helpers.any()
    assert float((after - before).square().mean()) < 0.1 * float(before.square().mean())
    assert form.index_bytes() == 400 * 2 * 4


def test_codes_are_saved():
    one, other = make(code_every=1), make(code_every=1)
    values = random_values(one)
    assert [len(part.tensor) for part in one.state(replicated=False) if part.name == "codes"] == [0]
    one.step(values, None)
    for part in one.state(replicated=False):
        assert other.load(replace(part, tensor=part.tensor.clone()))
    assert torch.equal(one.whole_table("t", values), other.whole_table("t", values))
    other.start(values)
    assert not torch.equal(one.whole_table("t", values), other.whole_table("t", values))


def test_parts_must_divide_the_columns():
    with pytest.raises(RecipeError, match="code_parts = 2 does not divide its 7 columns"):
        make(dim=7)
