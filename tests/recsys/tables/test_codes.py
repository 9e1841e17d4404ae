"""Codes that are hashes, chosen for a dense table, or clustered while tables learn."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.comm.loopback import Loopback
from windrow.recsys.tables import codes
from windrow.recsys.tables.codes import Codes, k_means
from windrow.recsys.tables.compressed import CompressedTables, LookupThroughForm
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
    assert form.index_bytes() == form.codes.nbytes == 0
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


def test_ranks_whose_processors_cluster_differently_take_the_codes_of_rank_0(monkeypatch):
    here = threading.local()

    def differently(vectors, clusters):
        centres = k_means(vectors, clusters)
        return centres.flip(0) if here.rank else centres

    monkeypatch.setattr(codes, "k_means", differently)

    def body(world):
        here.rank = world.rank
        form = make(code_every=1)
        tables = CompressedTables(form, TableOptions(), replicated=True, device=None, seed=1)
        state = {part.name: part.tensor for part in tables.batch.state()}
        # Sums of what the optimiser keeps may differ, too.
        state["sum_of_squares"].add_(world.rank)
        tables.step(world, stage="tables")
        return [part.tensor.clone() for part in tables.batch.state()]

    one, other = Loopback.run(2, body)
    assert all(map(torch.equal, one, other))


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


@pytest.mark.parametrize("sketch", ["rows", "robe"])
def test_rows_that_shared_a_helper_part_after_a_clustering(sketch):
    form = make(rows=4000, code_every=1, code_sketch=sketch)
    books, helpers = random_values(form)
    shares = []
    for _ in range(2):
        parts = form.whole_table("t", [torch.zeros_like(books), helpers]).view(4000, 2, 4)[:, 0]
        same = parts.unique(dim=0, return_inverse=True)[1]
        shares.append((same[:, None] == same).fill_diagonal_(False))
        form.step([books, torch.zeros_like(helpers)], None)
    before, after = shares
    assert int((before & after).sum()) < 0.05 * int(before.sum())


def test_hashed_entries_of_a_robe_begin_at_any_place_and_learnt_ones_do_not():
    form = make(code_every=1, code_sketch="robe")
    books, helpers = random_values(form)
    parts = form.whole_table("t", [books, torch.zeros_like(helpers)]).view(-1, 4)
    circle = torch.cat([books.flatten(), books.flatten()[:3]]).unfold(0, 4, 1)
    starts = torch.cdist(parts.abs(), circle.abs()).argmin(1)
    assert torch.equal(circle[starts].abs(), parts.abs())
    assert set((starts % 4).tolist()) == {0, 1, 2, 3}
    assert len(starts.unique()) > 0.8 * books.numel()
    form.step([books, helpers], None)
    parts = form.whole_table("t", [books, helpers]).view(-1, 2, 4)
    entries = torch.cdist(parts, books).argmin(2)
    assert torch.equal(books[entries], parts)
    assert bool((entries[:, 0] < form.entries).all())
    assert bool((entries[:, 1] >= form.entries).all())


def test_entries_learn_on_at_the_pace_of_all_after_a_clustering():
    options = TableOptions(form="codes", compression=10, code_every=2, optimizer="adagrad")
    tables = CompressedTables(Codes(whole_table("t", 400, 8), options), options, replicated=False, device=None, seed=1)
    batch = LookupThroughForm(tables.form.tables, (0,), tables, pooled=True)

    def squares():
        return torch.cat([part.tensor for part in tables.batch.state() if part.name == "sum_of_squares"])

    for _ in range(2):
        batch(torch.arange(200), torch.arange(201)).square().sum().backward()
        before = squares()
        tables.step(Loopback.single(), stage="tables")
    assert len(before.unique()) > 10
    assert len(squares().unique()) <= 2


def test_codes_are_saved():
    one, other = make(code_every=1), make(code_every=1)
    values = random_values(one)
    assert [len(part.tensor) for part in one.state(replicated=False) if part.name == "codes"] == [0]
    one.step(values, None)
    values = random_values(one)
    for part in one.state(replicated=False):
        assert other.load(replace(part, tensor=part.tensor.clone()))
    assert torch.equal(one.whole_table("t", values), other.whole_table("t", values))
    other.start(values)
    assert not torch.equal(one.whole_table("t", values), other.whole_table("t", values))


def test_parts_must_divide_the_columns():
    with pytest.raises(RecipeError, match="code_parts = 2 does not divide its 7 columns"):
        make(dim=7)


def test_codes_that_are_given(tmp_path):
    """A row is the entry of its code, and one of the helpers, of which hashes choose one for each part."""
    chosen = torch.randint(0, 7, (400, 2), generator=torch.Generator().manual_seed(4))
    np.save(tmp_path / "codes.npy", chosen.numpy())
    form = make(code_file=tmp_path / "codes.npy")
    assert [table.num_rows for table in form.stored] == [2 * 7, 2 * (40 - 7)]
    assert form.scales[1] == 0
    assert form.index_bytes() == 4 * chosen.numel()
    books, helpers = random_values(form)
    vectors = form.whole_table("t", [books, helpers]).view(400, 2, 4)
    for part in range(2):
        of_hash = vectors[:, part] - books[7 * part + chosen[:, part]]
        distances = torch.cdist(of_hash, helpers[33 * part : 33 * (part + 1)])
        assert float(distances.min(1).values.max()) < 1e-2
        assert len(distances.argmin(1).unique()) == 33
    # Kept with a checkpoint, and there again where learning starts anew.
    (kept,) = (part for part in form.state(replicated=False) if part.name == "codes")
    assert torch.equal(kept.tensor, chosen.int())
    form.nearest([vectors.flatten(1)])
    assert not torch.equal(form.codes, chosen.int())
    form.start([books, helpers])
    assert torch.equal(form.codes, chosen.int())
    form.codes.zero_()
    form.start([books, helpers])
    assert torch.equal(form.codes, chosen.int())


def test_one_code_for_all_parts(tmp_path):
    chosen = np.random.default_rng(1).integers(0, 7, 400)
    np.save(tmp_path / "one.npy", chosen)
    np.save(tmp_path / "each.npy", np.stack([chosen, chosen], 1))
    one, each = (make(code_file=tmp_path / f"{name}.npy") for name in ("one", "each"))
    values = random_values(one)
    assert torch.equal(one.whole_table("t", values), each.whole_table("t", values))
    assert (one.index_bytes(), each.index_bytes()) == (4 * 400, 8 * 400)
    other = make(code_file=tmp_path / "one.npy")
    one.codes[0] = 3
    for part in one.state(replicated=False):
        other.load(part)
    assert torch.equal(other.codes, one.codes)
    one.nearest([one.whole_table("t", values)])
    assert one.codes.shape == (400, 2)


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        (
            np.zeros((400, 3), np.int64),
            r"int64 \[400, 3\]: it should hold numbers from 0 on, 400 rows of 2 .* or of one",
        ),
        (np.zeros((400, 2)), r"float64 \[400, 2\]"),
        (np.full((400, 2), -1), "numbers from 0 on"),
        (np.full((400, 2), 2**32 + 1), "has a code 4294967297, and more entries than the table's 400 rows"),
        (np.full((400, 2), 39), "name 40 entries of each part, and compression = 10 allows for 40, helpers included"),
    ],
)
def test_codes_that_do_not_fit_are_refused(tmp_path, codes, said):
    np.save(tmp_path / "codes.npy", codes)
    with pytest.raises(RecipeError, match=said):
        make(code_file=tmp_path / "codes.npy")
    with pytest.raises(RecipeError, match="No such file"):
        make(code_file=tmp_path / "none.npy")
    with pytest.raises(RecipeError, match="leave one of the two out"):
        TableOptions(form="codes", code_file=tmp_path / "codes.npy", pretrained={"t": tmp_path / "rows.npy"})


def test_files_that_are_no_codes_are_refused(tmp_path):
    np.savez(tmp_path / "several.npy", np.zeros(400, int))
    (tmp_path / "several.npy.npz").rename(tmp_path / "several.npy")
    (tmp_path / "empty.npy").write_bytes(b"")
    for name in ("several.npy", "empty.npy"):
        with pytest.raises(RecipeError, match=f"code_file = .*{name}"):
            make(code_file=tmp_path / name)
    form = make()
    (codes,) = (part for part in form.state(replicated=False) if part.name == "codes")
    with pytest.raises(RecipeError, match=r"are \[3, 2\]: expected \[400, 2\]"):
        form.load(replace(codes, tensor=torch.zeros(3, 2, dtype=torch.int32)))
