"""Every form against its formula, its table written out, and plain autograd; hash functions, first values, sizes."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError
from windrow.comm.loopback import Loopback
from windrow.comm.random import GOLDEN, MASK, mix64, mixed
from windrow.recsys.tables.compressed import CompressedTables, LookupThroughForm, make_forms
from windrow.recsys.tables.forms import Form, Hashed, Narrow, QuotientRemainder, Segment, whole_table
from windrow.recsys.tables.options import EmbeddingBagConfig, TableOptions
from windrow.recsys.tables.robe import MERSENNE, PUBLISHED_PRIME, Robe, RobeTable, product
from windrow.recsys.tables.tensor_train import TensorTrain, column_factors, decompose, row_factors
from windrow.training.shard_files import LocalTable

TABLES = [
    EmbeddingBagConfig(name="a", num_embeddings=500, embedding_dim=16),
    EmbeddingBagConfig(name="b", num_embeddings=301, embedding_dim=10),
]
CASES = {
    "hashed": {"form": "hashed"},
    "quotient_remainder": {"form": "quotient_remainder"},
    "narrow": {"form": "narrow"},
    "robe": {"form": "robe", "robe_block": 8},
    "robe, odd blocks": {"form": "robe", "robe_block": 3},
    "robe, sharded": {"form": "robe", "robe_block": 2, "robe_sharded": True},
    "robe, published code": {"form": "robe", "robe_block": 4, "robe_published_code": True},
    "tensor_train": {"form": "tensor_train"},
    "tensor_train, 2 cores": {"form": "tensor_train", "tt_cores": 2},
    "tensor_train, 4 cores": {"form": "tensor_train", "tt_cores": 4},
    "codes": {"form": "codes", "code_parts": 2},
    "codes, clustered": {"form": "codes", "code_parts": 2, "code_every": 1000},
    "codes over robe": {"form": "codes", "code_parts": 2, "code_sketch": "robe"},
    "codes, clustered, over robe": {"form": "codes", "code_parts": 2, "code_every": 1000, "code_sketch": "robe"},
    "tensor_train, many rows of few numbers": {"form": "tensor_train", "tt_cores": 2, "tt_rank": 1},
}


every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def compressed(options: TableOptions, *, replicated: bool = True) -> list[CompressedTables]:
    forms = make_forms(TABLES, options)
    return [CompressedTables(form, options, replicated=replicated, device=None, seed=1) for form in forms]


def random_bags(rows: int, lookups: int, samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (lookups * samples,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    values = torch.randint(0, rows, (int(offsets[-1]),), generator=generator)
    return values, offsets, torch.rand(len(values), generator=generator)


def reference_rows(form: Form, table: int, ids, stored):
    """By another way than compiled loops, where there are any."""
    if isinstance(form, Robe):
        return form.reference_rows(table, ids, stored)
    return form.reference_rows(ids, stored) if isinstance(form, TensorTrain) else form.rows(table, ids, stored)


@every_case
@given(samples=st.integers(0, 6), seed=st.integers(0, 1000), weighted=st.booleans(), part=st.booleans())
def test_sums_and_gradients_equal_those_of_the_table_written_out(case, samples, seed, weighted, part):
    for found in compressed(TableOptions(compression=4, **case)):
        stored = list(found.batch.parameters())
        for number, table in enumerate(found.form.tables):
            rows = (100, 250) if part else (0, table.num_rows)
            columns = (3, 9) if part else (0, table.dim)
            piece = LocalTable(name=table.name, rows=rows, columns=columns)
            batch = LookupThroughForm((piece,), (0, 0), found, pooled=True)
            values, offsets, weights = random_bags(piece.num_rows, 2, samples, seed)
            pooled = batch(values, offsets, weights if weighted else None)
            assert pooled.shape == (samples, 2 * piece.dim)
            whole = reference_rows(found.form, number, torch.arange(table.num_rows), stored)
            picked = whole[rows[0] + values, slice(*columns)] * (weights[:, None] if weighted else 1)
            bags = torch.repeat_interleave(torch.arange(2 * samples), offsets.diff())
            expected = torch.zeros(2 * samples, piece.dim).index_add(0, bags, picked)
            expected = torch.cat([expected[:samples], expected[samples:]], 1)
            torch.testing.assert_close(pooled, expected, rtol=1e-5, atol=1e-6)
            upstream = torch.linspace(-1, 1, pooled.numel()).view_as(pooled)
            mine = torch.autograd.grad((pooled * upstream).sum(), stored, allow_unused=True)
            theirs = torch.autograd.grad((expected * upstream).sum(), stored, allow_unused=True)
            for one, other in zip(mine, theirs, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@every_case
def test_rows_one_by_one(case):
    for found in compressed(TableOptions(compression=4, **case)):
        table = found.form.tables[0]
        batch = LookupThroughForm((table,), (0, 0), found, pooled=False)
        values, offsets = torch.tensor([3, 3, 0, 7, 299]), torch.tensor([0, 2, 5])
        stored = list(found.batch.parameters())
        expected = reference_rows(found.form, 0, values, stored)
        found_rows = batch.rows(values, offsets)
        torch.testing.assert_close(found_rows, expected)
        upstream = torch.linspace(-1, 1, expected.numel()).view_as(expected)
        for one, other in zip(
            *(
                torch.autograd.grad((rows * upstream).sum(), stored, allow_unused=True)
                for rows in (found_rows, expected)
            ),
            strict=True,
        ):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
        assert batch.rows(values[:0], torch.zeros(3, dtype=torch.int64)).shape == (0, table.dim)


@every_case
def test_learns_as_the_stored_tables_do(case):
    """One step of Adagrad on every stored number that was used, with more rows than numbers in a row too."""
    options = TableOptions(compression=4, optimizer="adagrad", learning_rate=0.1, eps=1e-10, **case)
    for found in compressed(options):
        table = found.form.tables[0]
        before = [parameter.detach().clone() for parameter in found.batch.parameters()]
        batch = LookupThroughForm((table,), (0,), found, pooled=True)
        ids = torch.arange(table.num_rows)
        batch(ids, torch.arange(len(ids) + 1)).square().sum().backward()
        moved = [parameter.grad.clone() for parameter in found.batch.parameters()]
        found.batch.step()
        for parameter, old, gradient in zip(found.batch.parameters(), before, moved, strict=True):
            torch.testing.assert_close(parameter.detach(), old - 0.1 * gradient.sign(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
@pytest.mark.parametrize("hot", [0.0, 0.1])
@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("tensor_train")])
def test_matrices_learn_alone_as_from_gradients(case, optimizer, hot):
    options = TableOptions(compression=4, optimizer=optimizer, learning_rate=0.1, hot_share=hot, **CASES[case])
    found = []
    for replicated in (False, True):
        (tables, _) = compressed(options, replicated=replicated)
        assert tables.form.learns_alone == (not replicated and optimizer != "adam")
        batch = LookupThroughForm(tables.form.tables, (0, 0), tables, pooled=True)
        tables.batch.set_learning_rate(0.05)
        for step in range(3):
            # The sum of the gradients of all lookups counts, also where rows are in several.
            for lookup in range(step):
                values, offsets, _ = random_bags(500, 2, 40, 2 * step + lookup)
                batch(values, offsets).square().sum().backward()
            tables.step(Loopback.single(), stage="tables")
        found.append([state.tensor for state in tables.batch.state()])
    for alone, by_gradient in zip(*found, strict=True):
        torch.testing.assert_close(alone, by_gradient, rtol=1e-4, atol=1e-6)


@every_case
@pytest.mark.parametrize("many", [2, 3])
def test_what_comes_out_does_not_depend_on_threads(case, many, threads):
    found = []
    for count in (1, many):
        threads(count)
        (first, *_) = compressed(TableOptions(compression=4, **case))
        values, offsets, weights = random_bags(500, 2, 300, 5)
        stored = list(first.batch.parameters())
        pooled = first.form.pool([Segment(0, 0, (0, 16))] * 2, values, offsets, weights, stored)
        pooled.square().sum().backward()
        found.append([pooled.detach(), *(parameter.grad for parameter in stored)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@every_case
def test_first_values_are_as_large_as_those_of_a_dense_table(case):
    for found in compressed(TableOptions(compression=4, **case)):
        stored = [parameter.detach() for parameter in found.batch.parameters()]
        # An array that tables share starts as the largest of them would.
        rows = max(table.num_rows for table in found.form.tables)
        for table in found.form.tables:
            deviation = float(found.form.whole_table(table.name, stored).std())
            assert deviation == pytest.approx((3 * rows) ** -0.5, rel=0.25)


@every_case
def test_sizes(case):
    if "tt_rank" in case:
        pytest.skip("its size is what the rank makes it")
    for found in compressed(TableOptions(compression=4, **case)):
        wanted = sum(table.num_rows * table.dim for table in found.form.tables) / 4
        stored = sum(table.num_rows * table.dim for table in found.form.stored)
        assert 0.6 * wanted <= stored <= 1.1 * wanted


@every_case
def test_values_near_a_dense_table(case):
    for found in compressed(TableOptions(compression=4, **case)):
        generator = torch.Generator().manual_seed(1)
        dense = [torch.randn(table.num_rows, table.dim, generator=generator) for table in found.form.tables]
        stored = [values.requires_grad_() for values in found.form.nearest(dense)]
        every = [torch.arange(table.num_rows) for table in found.form.tables]
        vectors = [reference_rows(found.form, number, ids, stored) for number, ids in enumerate(every)]
        error = sum((one - other).square().sum() for one, other in zip(vectors, dense, strict=True))
        assert float(error.detach()) < 0.98 * sum(float(values.square().sum()) for values in dense)
        if case["form"] in {"robe", "hashed", "narrow"}:
            # A minimum. Trains and products also count the rows that their digits could have beyond the last.
            assert all(float(gradient.abs().max()) < 1e-3 for gradient in torch.autograd.grad(error, stored))


def test_products_of_quotients_and_remainders_come_back():
    options = TableOptions(form="quotient_remainder", compression=4)
    forms = (QuotientRemainder(whole_table("t", rows, 4), options) for rows in range(500, 600))
    form = next(f for f in forms if f.stored[0].num_rows * f.stored[1].num_rows == f.tables[0].num_rows)
    generator = torch.Generator().manual_seed(1)
    table = form.whole_table("t", [torch.randn(part.num_rows, 4, generator=generator) for part in form.stored])
    left, right = form.nearest([table])
    torch.testing.assert_close(form.whole_table("t", [left, right]), table, rtol=1e-3, atol=1e-4)
    assert float(left.square().mean()) == pytest.approx(float(right.square().mean()), rel=0.01)


# ------------------------------------------------------------------------------------------------------------- hashing


def test_hashed_rows_by_hand():
    form = Hashed(whole_table("t", 100, 4), TableOptions(form="hashed", compression=5))
    ids = torch.tensor([0, 1, 99, (1 << 40) + 5])
    stored = torch.arange(80.0).view(20, 4)
    from windrow.recsys.tables.table import table_key

    key = table_key("t.hashed", 0)
    expected = [(mix64(key ^ mix64((int(number) + GOLDEN) & MASK)) >> 1) % 20 for number in ids]
    assert torch.equal(form.rows(0, ids, [stored]), stored[expected])


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_mixed_numbers(number):
    assert int(mixed(torch.tensor([number]))[0]) & MASK == mix64(number & MASK)


def test_quotients_and_remainders_name_each_row_once():
    form = QuotientRemainder(whole_table("t", 1000, 4), TableOptions(form="quotient_remainder", compression=10))
    quotients, remainders = (table.num_rows for table in form.stored)
    assert quotients * remainders >= 1000
    assert quotients + remainders <= 100
    ids = torch.arange(1000)
    assert len({(int(i) // remainders, int(i) % remainders) for i in ids}) == 1000


def test_narrow_rows():
    form = Narrow(whole_table("t", 100, 32), TableOptions(form="narrow", compression=4))
    assert [(table.num_rows, table.dim) for table in form.stored] == [(100, 6), (6, 32)]


# ---------------------------------------------------------------------------------------------------------------- robe


@given(st.integers(0, MERSENNE - 1), st.integers(0, MERSENNE - 1))
def test_products_modulo_a_mersenne_prime(number, factor):
    assert int(product(torch.tensor([number]), factor, MERSENNE)[0]) == number * factor % MERSENNE


@given(st.integers(0, 1 << 60), st.integers(0, PUBLISHED_PRIME - 1))
def test_products_modulo_the_published_prime(number, factor):
    assert int(product(torch.tensor([number]), factor, PUBLISHED_PRIME)[0]) == number * factor % PUBLISHED_PRIME


def robe(tables, **options) -> Robe:
    kind = RobeTable if options.get("robe_sharded") else Robe
    return kind([whole_table(name, rows, dim) for name, rows, dim in tables], TableOptions(form="robe", **options))


def test_places_and_signs_by_hand():
    form = robe([("a", 1000, 70), ("b", 500, 6)], compression=1000, robe_block=4)
    assert form.size == 76
    array = torch.arange(1.0, 77.0)
    for table, number in ((0, 0), (0, 999), (1, 123), (1, (1 << 50) + 7)):
        found = form.rows(table, torch.tensor([number]), [array.view(-1, 4)])[0]
        for column in range(form.tables[table].dim):
            start = (form.constants[table] + form.per_row * number + form.per_block * (column // 4)) % MERSENNE % 76
            of_row = mix64(form.sign_keys[table] ^ mix64((number + GOLDEN) & MASK))
            word = mix64((of_row + column // 64 * GOLDEN) & MASK)
            sign = -1 if word >> (column % 64) & 1 else 1
            assert found[column] == sign * array[(start + column % 4) % 76]


def test_places_of_the_published_code_by_hand():
    form = robe([("a", 1000, 8), ("b", 500, 8)], compression=100, robe_block=4, robe_published_code=True)
    numbers = [PUBLISHED_PRIME, *np.random.RandomState(1024).randint(0, PUBLISHED_PRIME, 50).tolist()]
    array = torch.arange(form.size, dtype=torch.float32)
    for table, number, offset in ((0, 7, 0), (0, 999, 0), (1, 123, 1000)):
        found = form.rows(table, torch.tensor([number]), [array.view(-1, 4)])[0]
        for column in range(8):
            key = ((number + offset) * numbers[3] + column // 4 * numbers[2] + numbers[1]) % PUBLISHED_PRIME
            assert found[column] == array[key % (form.size - 4 + 1) + column % 4]


def test_published_code_cannot_reach_all_arrays():
    with pytest.raises(RecipeError, match="reaches arrays of up to 2038074743 numbers"):
        robe([("a", 1 << 40, 64)], compression=1000, robe_published_code=True)
    assert robe([("a", 1 << 40, 64)], compression=1000).size > PUBLISHED_PRIME


def test_compiled_loops_hash_ids_and_arrays_beyond_31_bits():
    """Rows of a large array are read where the formula says, without the array: an index in place of each number."""
    from windrow.recsys.tables.robe_kernels import start_blocks

    form = robe([("a", 1 << 45, 32)], compression=1 << 12, robe_block=8)
    assert form.size == 1 << 38
    ids = torch.tensor([0, 1, (1 << 31) + 1, (1 << 45) - 1])
    expected = form.starts(0, ids)
    starts = np.empty(4, np.int64)
    for number, wanted in zip(ids.tolist(), expected, strict=True):
        start_blocks(
            starts, 0, 4, np.zeros(1, np.float32), np.uint64(number), np.uint64(form.constants[0]), form.hashes
        )
        assert starts.tolist() == wanted.tolist()


def test_blocks_of_an_array_that_is_a_table():
    form = robe([("a", 9, 8), ("b", 1 << 45, 192)], compression=1 << 12, robe_block=8, robe_sharded=True)
    ids = torch.tensor([0, 1, (1 << 31) + 1, (1 << 45) - 1])
    places, signs = form.blocks(1, ids.numpy())
    assert places.max() > 1 << 31
    assert (torch.from_numpy(places).T * 8).equal(form.starts(1, ids))
    assert torch.from_numpy(signs).T.repeat_interleave(8, 1).equal(form.signs(1, ids))
    assert set(signs.flatten().tolist()) == {-1, 1}


@pytest.mark.parametrize("block", [1, 2, 4, 8])
@pytest.mark.parametrize("sharded", [False, True])
def test_inner_products_are_unbiased_with_the_variance_of_the_theorem(block, sharded):
    draws, numbers, size = 200_000, 16, 32
    rows = numbers // block
    size_of = {"compression": (1 << 60) * block / size, "robe_block": block, "robe_sharded": sharded}
    form = robe([("a", 1 << 60, block)], **size_of)
    assert form.size == size
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(2, numbers, generator=generator, dtype=torch.float64)
    ids = torch.randint(0, 1 << 60, (draws * rows,), generator=generator)
    places = (form.starts(0, ids) + torch.arange(block)) % size
    signs = form.signs(0, ids).double().view(draws, numbers)
    places = places.view(draws, numbers)
    one, other = (torch.zeros(draws, size, dtype=torch.float64).scatter_add_(1, places, signs * v) for v in (x, y))
    products = (one * other).sum(1)

    def variance(x, y):
        return ((x @ x) * (y @ y) + (x @ y) ** 2 - 2 * (x * x * y * y).sum()) / size

    expected = variance(x, y) - sum(variance(a, b) for a, b in zip(x.split(block), y.split(block), strict=True))
    if sharded:
        across = (x.view(-1, block) @ y.view(-1, block).T).fill_diagonal_(0)
        expected = (across.square() + across * across.T).sum() * block / size
    assert float(products.mean()) == pytest.approx(float(x @ y), abs=4 * math.sqrt(float(expected) / draws))
    assert float(products.var()) == pytest.approx(float(expected), rel=0.02)


# -------------------------------------------------------------------------------------------------------- tensor trains


@given(st.integers(1, 10**9), st.integers(2, 4))
def test_row_factors(rows, cores):
    factors = row_factors(rows, cores)
    assert len(factors) == cores
    assert math.prod(factors) >= rows
    assert max(factors) <= 2 * min(factors) or max(factors) <= 3
    assert math.prod(factors) <= rows * 1.5 + 16


@pytest.mark.parametrize(
    ("columns", "cores", "expected"),
    [(16, 3, (2, 2, 4)), (64, 3, (4, 4, 4)), (128, 3, (4, 4, 8)), (10, 3, (1, 2, 5)), (16, 2, (4, 4)), (7, 2, (1, 7))],
)
def test_column_factors(columns, cores, expected):
    assert column_factors(columns, cores) == expected


@pytest.mark.parametrize("cores", [2, 3, 4])
def test_row_by_the_formula(cores):
    """One matrix after another, with digits by hand, for ids that come in any order and repeat."""
    form = TensorTrain(whole_table("t", 1000, 24), TableOptions(form="tensor_train", tt_cores=cores, tt_rank=3))
    stored = form.first_values(0)
    ids = torch.tensor([999, 0, 17, 17, 998, 516])
    found = form.rows(0, ids, stored)
    torch.testing.assert_close(found, form.reference_rows(ids, stored))
    assert form.reference_rows(ids[:0], stored).shape == form.rows(0, ids[:0], stored).shape == (0, 24)
    for row, number in zip(found, ids.tolist(), strict=True):
        digits, rest = [], number
        for rows in reversed(form.rows_of):
            digits.insert(0, rest % rows)
            rest //= rows
        total = torch.ones(1, 1)
        for core, digit, (left, right) in zip(stored, digits, pairwise(form.ranks), strict=True):
            total = (total @ core[digit].view(left, -1)).reshape(-1, right)
        torch.testing.assert_close(row, total.flatten(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["sampled_gaussian", "gaussian", "uniform"])
@pytest.mark.parametrize("rank", [8, 16, 32])
def test_variance_of_first_values(kind, rank):
    options = TableOptions(form="tensor_train", tt_rank=rank, tt_first_values=kind)
    form = TensorTrain(whole_table("t", 142_572, 16), options)
    cores = form.first_values(1)
    table = form.whole_table("t", cores)
    assert float(table.var()) == pytest.approx(1 / (3 * 142_572), rel=0.02 if kind == "sampled_gaussian" else 0.1)
    core = cores[1]
    kurtosis = float(((core - core.mean()) ** 4).mean() / core.var() ** 2)
    assert kurtosis == pytest.approx({"gaussian": 3, "uniform": 1.8, "sampled_gaussian": 1.16}[kind], abs=0.15)
    if kind == "sampled_gaussian":
        # Numbers that are far from zero make products that are as good as normal.
        assert float(((table - table.mean()) ** 4).mean() / table.var() ** 2) == pytest.approx(3, abs=0.2)


def test_published_scale_ignores_the_ranks():
    options = TableOptions(form="tensor_train", tt_rank=8, tt_first_values="published_code")
    form = TensorTrain(whole_table("t", 142_572, 16), options)
    table = form.whole_table("t", form.first_values(1))
    assert float(table.var()) * 3 * 142_572 == pytest.approx(12_144, rel=0.1)


@pytest.mark.parametrize("cores", [2, 3, 4])
def test_a_table_of_low_rank_comes_back_from_its_cores(cores):
    form = TensorTrain(whole_table("t", 4096, 12), TableOptions(form="tensor_train", tt_cores=cores, tt_rank=4))
    table = form.whole_table("t", form.first_values(2))
    torch.testing.assert_close(form.whole_table("t", decompose(table, form)), table, rtol=1e-4, atol=1e-6)


def test_the_nearest_cores_of_a_table():
    """With two cores a truncated SVD of the rearranged table is the best there is."""
    table = torch.randn(36, 16, generator=torch.Generator().manual_seed(1))
    form = TensorTrain(whole_table("t", 36, 16), TableOptions(form="tensor_train", tt_cores=2, tt_rank=7))
    found = form.whole_table("t", decompose(table, form))
    values = torch.linalg.svdvals(table.view(6, 6, 4, 4).permute(0, 2, 1, 3).reshape(24, 24))
    assert float((found - table).square().sum()) == pytest.approx(float(values[7:].square().sum()), rel=1e-4)


def test_a_train_that_is_no_smaller_is_refused():
    with pytest.raises(RecipeError, match='form = "tensor_train" would store'):
        TensorTrain(whole_table("t", 8, 8), TableOptions(form="tensor_train", tt_rank=64))


# ---------------------------------------------------------------------------------------------------------------- GPUs

IN_INTERPRETER = """
import sys
import torch
from windrow.recsys.tables.robe_triton import add_to_array, pool

found = []
for array, segments, hashes, values, offsets, weights, width, arriving in torch.load(sys.argv[1]):
    gradient = torch.zeros_like(array)
    add_to_array(gradient, segments, hashes, values, offsets, weights, arriving)
    found.append((pool(array, segments, hashes, values, offsets, weights, width), gradient))
torch.save(found, sys.argv[2])
"""

COMPILED = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from windrow.recsys.tables import robe_triton

kinds = dict.fromkeys(("array", "weights", "pooled"), "*fp32") | dict.fromkeys(("samples", "width", "size"), "i32")
kinds |= dict.fromkeys(("per_row", "per_block", "span", "inverse"), "i64")
constants = {"prime": (1 << 61) - 1, "block": 32, "has_signs": True, "weighted": True, "columns": 128}
for back in (False, True):
    chosen = constants | {"back": back}
    signature = {name: kinds.get(name, "*i64") for name in robe_triton._bags.arg_names}
    signature |= dict.fromkeys(chosen, "constexpr")
    source = ASTSource(fn=robe_triton._bags, signature=signature, constexprs=chosen)
    assert compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
"""


def robe_requests(case: dict) -> tuple[Robe, list[Segment], tuple]:
    """A form of two tables, lookups of parts of them, and values, offsets and weights."""
    (found,) = compressed(TableOptions(compression=4, **case))
    segments = [Segment(0, 0, (0, 16)), Segment(0, 100, (3, 9)), Segment(1, 0, (0, 10))]
    assert isinstance(found.form, Robe)
    return found.form, segments, random_bags(150, 3, 7, 2)


ROBE_CASES = [case for case in CASES.values() if case["form"] == "robe" and "robe_sharded" not in case]


def test_gpu_kernels_of_robe_do_the_same_in_the_interpreter(tmp_path, run_with_triton):
    asked, expected = [], []
    for case in ROBE_CASES:
        form, segments, (values, offsets, weights) = robe_requests(case)
        array = torch.randn(form.size, generator=torch.Generator().manual_seed(1), requires_grad=True)
        starts = np.cumsum([0, 16, 6])
        described = torch.from_numpy(np.column_stack([form.described(segments).view(np.int64), starts]))
        for own in (None, weights):
            pooled = form.pool(segments, values, offsets, own, [array.view(-1, form.block)])
            arriving = torch.linspace(-1, 1, pooled.numel()).view_as(pooled)
            (gradient,) = torch.autograd.grad(pooled, array, arriving)
            hashes = tuple(int(number) for number in form.hashes)
            asked.append((array.detach(), described, hashes, values, offsets, own, 32, arriving))
            expected.append((pooled.detach(), gradient))
    torch.save(asked, tmp_path / "asked")
    run_with_triton(IN_INTERPRETER, tmp_path / "asked", tmp_path / "answered", TRITON_INTERPRET="1")
    for found, wanted in zip(torch.load(tmp_path / "answered"), expected, strict=True):
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_gpu_kernels_of_robe_compile_for_a_gpu(run_with_triton):
    run_with_triton(COMPILED)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_case
def test_gpus_compute_what_cpus_do(case):
    for here in compressed(TableOptions(compression=4, **case)):
        there = CompressedTables(
            here.form, TableOptions(compression=4, **case), replicated=False, device=torch.device("cuda"), seed=1
        )
        values, offsets, weights = random_bags(150, 2, 7, 2)
        results = []
        for tables, device in ((here, "cpu"), (there, "cuda")):
            stored = list(tables.batch.parameters())
            given = [each.to(device) for each in (values, offsets, weights)]
            pooled = tables.form.pool([Segment(0, 0, (0, 8))] * 2, *given, stored)
            results.append([pooled, *torch.autograd.grad(pooled.square().sum(), stored)])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other.cpu(), rtol=1e-4, atol=1e-6)
