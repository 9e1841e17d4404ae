"""What every kind of table storage must do: values, learning, state, first values; and that all kinds do the same."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import embedding

from windrow.comm.random import GOLDEN, MASK, hash_ids, mix64
from windrow.recsys.tables.dense_gradient import DenseGradientTableBatch
from windrow.recsys.tables.fbgemm import FBGEMMTableBatch
from windrow.recsys.tables.make import make_table_batch
from windrow.recsys.tables.options import TableOptions, TableOverrides
from windrow.recsys.tables.table import TableBatch
from windrow.recsys.tables.table_kernels import fill_uniform
from windrow.training.shard_files import LocalTable

MEMBERS = (
    LocalTable(name="a", rows=(0, 30), columns=(0, 8)),
    LocalTable(name="b", rows=(5, 12), columns=(4, 16)),
    LocalTable(name="c", rows=(9, 9), columns=(0, 4)),
)
ODD = tuple(replace(member, columns=(member.columns[0], member.columns[1] - 1)) for member in MEMBERS)
"""Each with dims that FBGEMM has no kernels for."""
LOOKUPS = (0, 1, 1, 2)
KINDS = [FBGEMMTableBatch, DenseGradientTableBatch]
FUSED = ["sgd", "adagrad", "rowwise_adagrad"]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request) -> type[TableBatch]:
    chosen: type[TableBatch] = request.param
    return chosen


def state(batch: TableBatch, name: str = "weight") -> list[Tensor]:
    """One content of each member, as a copy."""
    return [found.tensor.detach().clone() for found in batch.state() if found.name == name]


def load(batch: TableBatch, weights: list[Tensor]) -> None:
    of_weights = [found for found in batch.state() if found.name == "weight"]
    batch.load_state(replace(found, tensor=given) for found, given in zip(of_weights, weights, strict=True))


def make(kind, members=MEMBERS, lookups=LOOKUPS, *, pooled=True, device=None, **options) -> TableBatch:
    batch: TableBatch = kind(members, lookups, TableOptions(**options), pooled=pooled, device=device)
    generator = torch.Generator().manual_seed(1)
    load(batch, [torch.randn(member.num_rows, member.dim, generator=generator) for member in members])
    return batch


def random_bags(batch: TableBatch, num_samples: int, seed: int = 0, longest: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.tensor([batch.members[member].num_rows for member in batch.lookups])
    lengths = torch.randint(0, longest + 1, (len(rows), num_samples), generator=generator) * (rows > 0)[:, None]
    values = [
        torch.randint(0, max(int(count), 1), (int(total),), generator=generator)
        for count, total in zip(rows, lengths.sum(1), strict=True)
    ]
    return torch.cat(values), torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])


def reference(tables: list[Tensor], lookups, values: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """Bag after bag, differentiable."""
    num_samples = (len(offsets) - 1) // len(lookups)
    columns = []
    for number, member in enumerate(lookups):
        bounds = offsets[number * num_samples : (number + 1) * num_samples + 1].tolist()
        bags = [
            (weights[start:stop, None] * tables[member][values[start:stop]]).sum(0) for start, stop in pairwise(bounds)
        ]
        columns.append(torch.stack(bags) if bags else torch.zeros(0, tables[member].shape[1]))
    return torch.cat(columns, dim=1)


def loss_of(pooled: Tensor) -> Tensor:
    return (pooled * torch.linspace(-1, 1, pooled.numel(), device=pooled.device).view_as(pooled)).square().sum()


def learn(batch: TableBatch, values: Tensor, offsets: Tensor, weights: Tensor | None = None) -> None:
    loss_of(batch(values, offsets, weights)).backward()
    batch.step()


# ------------------------------------------------------------------------------------------------------------ lookups


@settings(max_examples=30)
@given(st.integers(0, 5), st.integers(0, 4), st.integers(0, 1000), st.booleans(), st.booleans())
@pytest.mark.parametrize(
    ("kind", "members"), [*((kind, MEMBERS) for kind in KINDS), (FBGEMMTableBatch, ODD)], ids=[*"FD", "F-odd dims"]
)
def test_pooled_sums(kind, members, num_samples, longest, seed, weighted, short):
    batch = make(kind, members)
    tables = state(batch)
    values, offsets = random_bags(batch, num_samples, seed, longest)
    dtype = torch.int32 if short else torch.int64
    weights = torch.rand(len(values), generator=torch.Generator().manual_seed(seed))
    found = batch(values.to(dtype), offsets.to(dtype), weights if weighted else None)
    assert found.dtype == torch.float32
    assert found.shape == (num_samples, batch.output_dim)
    scale = weights if weighted else torch.ones(len(values))
    expected = reference(tables, batch.lookups, values, offsets, scale)
    torch.testing.assert_close(found, expected)
    loss_of(found).backward()
    batch.step()


@pytest.mark.parametrize("dim", [8, 7])
def test_rows_one_by_one(kind, dim):
    members = (replace(MEMBERS[0], columns=(0, dim)), LocalTable(name="d", rows=(0, 4), columns=(0, dim)))
    batch = make(kind, members, (0, 0, 1), pooled=False, optimizer="sgd", learning_rate=1.0)
    first, second = state(batch)
    values, offsets = random_bags(batch, 5)
    found = batch.rows(values, offsets)
    cut = int(offsets[10])
    assert torch.equal(found, torch.cat([first[values[:cut]], second[values[cut:]]]))
    found.sum().backward()
    batch.step()
    expected = first - torch.bincount(values[:cut], minlength=30)[:, None]
    torch.testing.assert_close(state(batch)[0], expected)
    nothing = batch.rows(values[:0], torch.zeros(4, dtype=torch.int64))
    assert nothing.shape == (0, dim)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(kind, mode):
    batch = make(kind)
    values, offsets = random_bags(batch, 4)
    with mode():
        found = batch(values, offsets)
    assert not found.requires_grad
    assert torch.equal(found, batch(values, offsets))


@pytest.mark.parametrize(
    ("lookups", "said"), [((1, 0), "must ascend"), ((0, 1, 0), "must ascend"), ((0,), "each member is looked up")]
)
def test_lookups_that_break_the_contract(kind, lookups, said):
    with pytest.raises(AssertionError, match=said):
        make(kind, MEMBERS[:2], lookups)


# ----------------------------------------------------------------------------------------------------------- learning


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 1000), st.sampled_from(FUSED), st.sampled_from(["fp32", "fp16"]), st.booleans(), st.integers(2, 5)
)
def test_what_is_learnt_does_not_depend_on_threads(seed, optimizer, precision, weighted, threads):
    # One table of most values, whose rows are shared out, and small ones, which one thread does.
    large = LocalTable(name="large", rows=(0, 5000), columns=(0, 12))
    found = []
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            batch = make(
                FBGEMMTableBatch, (*MEMBERS, large), (0, 1, 1, 2, 3, 3), optimizer=optimizer, precision=precision
            )
            values, offsets = random_bags(batch, 40, seed)
            weights = torch.rand(len(values), generator=torch.Generator().manual_seed(seed)) if weighted else None
            learn(batch, values, offsets, weights)
            found.append([content.tensor.clone() for content in batch.state()])
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_learns_from_rows_of_many_digits():
    member = LocalTable(name="a", rows=(0, 70_000), columns=(0, 4))
    batch = make(FBGEMMTableBatch, (member,), (0,), optimizer="sgd", learning_rate=1.0)
    (before,) = state(batch)
    generator = torch.Generator().manual_seed(4)
    values = torch.randint(0, 70_000, (30_000,), generator=generator) // torch.randint(
        1, 3000, (30_000,), generator=generator
    )
    offsets = torch.arange(0, 30_001, 3)
    batch(values, offsets).sum().backward()
    expected = before - torch.bincount(values, minlength=70_000)[:, None]
    torch.testing.assert_close(state(batch)[0], expected)


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
@pytest.mark.parametrize("members", [MEMBERS, ODD], ids=["multiples of 4", "odd dims"])
def test_learns_as_plain_pytorch(kind, members, optimizer, weight_decay):
    """Sums in one table after another, and PyTorch's optimisers; row-wise Adagrad by its formula, in float64."""
    if kind is FBGEMMTableBatch and (optimizer == "adam" or weight_decay):
        pytest.skip("needs dense gradients")
    betas = (0.8, 0.99)
    options = {"learning_rate": 0.05, "eps": 1e-2, "betas": betas, "weight_decay": weight_decay}
    batch = make(kind, members, optimizer=optimizer, **options)
    tables = [nn.Parameter(table) for table in state(batch)]
    squares = [torch.zeros(len(table), dtype=torch.float64) for table in tables]
    theirs: torch.optim.Optimizer | None = {
        "sgd": lambda: torch.optim.SGD(tables, lr=0.05, weight_decay=weight_decay),
        "adagrad": lambda: torch.optim.Adagrad(tables, lr=0.05, eps=1e-2, weight_decay=weight_decay),
        "adam": lambda: torch.optim.Adam(tables, lr=0.05, eps=1e-2, betas=betas, weight_decay=weight_decay),
        "rowwise_adagrad": lambda: None,
    }[optimizer]()
    for step in range(4):
        # A schedule's rate.
        rate = 0.05 / (1 + step)
        values, offsets = random_bags(batch, 6, seed=step)
        batch.set_learning_rate(rate)
        learn(batch, values, offsets)
        for table in tables:
            table.grad = torch.zeros_like(table)
        loss_of(reference(tables, batch.lookups, values, offsets, torch.ones(len(values)))).backward()
        if theirs is not None:
            theirs.param_groups[0]["lr"] = rate
            theirs.step()
            continue
        for table, accumulator in zip(tables, squares, strict=True):
            gradient = table.grad.double() + weight_decay * table.detach().double()
            accumulator.add_(gradient.square().mean(dim=1))
            table.data -= (rate * gradient / (accumulator.sqrt() + 1e-2)[:, None]).float()
    for found, table in zip(state(batch), tables, strict=True):
        torch.testing.assert_close(found, table.detach(), rtol=1e-5, atol=1e-5)
    names = {"sgd": set(), "adam": {"first_moment", "second_moment", "step"}}.get(optimizer, {"sum_of_squares"})
    assert {found.name for found in batch.state()} == names | {"weight"}
    sums = squares if theirs is None else [theirs.state[table].get("sum", torch.zeros(0)) for table in tables]
    for found, expected in zip(state(batch, "sum_of_squares"), sums, strict=False):
        torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-5)


def test_a_step_goes_forward_again_before_it_goes_back(kind):
    """Batches in flight: the second is looked up before the first has learnt."""
    batch = make(kind, optimizer="sgd", learning_rate=1.0)
    before = state(batch)[0]
    values, offsets = torch.tensor([1]), torch.tensor([0, 1, 1, 1, 1])
    first, second = batch(values, offsets), batch(values, offsets)
    first.sum().backward()
    second.sum().backward()
    batch.step()
    torch.testing.assert_close(state(batch)[0][1], before[1] - 2)


def test_gradients_of_any_layout(kind):
    batch, other = make(kind, optimizer="sgd"), make(kind, optimizer="sgd")
    values, offsets = random_bags(batch, 6)
    batch(values, offsets).sum().backward()
    gradient = torch.ones(batch.output_dim, 6).t()
    assert not gradient.is_contiguous()
    other(values, offsets).backward(gradient)
    for one in (batch, other):
        one.step()
    assert torch.equal(state(batch)[0], state(other)[0])


@pytest.mark.parametrize("members", [MEMBERS, ODD], ids=["multiples of 4", "odd dims"])
@pytest.mark.parametrize("optimizer", FUSED)
def test_half_precision(optimizer, members):
    single = make(FBGEMMTableBatch, members, optimizer=optimizer)
    half = make(FBGEMMTableBatch, members, optimizer=optimizer, precision="fp16")
    load(single, [table.half() for table in state(single)])
    values, offsets = random_bags(half, 6)
    torch.testing.assert_close(half(values, offsets), single(values, offsets), rtol=1e-6, atol=1e-6)
    for batch in (single, half):
        learn(batch, values, offsets)
    for found, expected in zip(state(half), state(single), strict=True):
        assert found.dtype == torch.float16
        torch.testing.assert_close(found.float(), expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(state(half, "sum_of_squares"), state(single, "sum_of_squares"))


def test_fused_values_are_nobody_elses_parameters():
    batch = make(FBGEMMTableBatch)
    assert list(batch.parameters()) == list(batch.buffers()) == []
    assert batch.state_dict() == {}


def test_adam_moves_on_without_a_gradient():
    """A rank that had no samples steps as all others do."""
    batch, other = (make(DenseGradientTableBatch, optimizer="adam") for _ in range(2))
    batch.step()
    learn(other, torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    assert state(batch, "step")[0] == state(other, "step")[0] == 1
    for one in (batch, other):
        learn(one, *random_bags(one, 3))
    before = state(batch)[0]
    for one in (batch, other):
        one.step()
    assert torch.equal(state(batch)[0], state(other)[0])
    assert not torch.equal(state(batch)[0], before)


def test_gradients_of_copies_stay_where_they_are():
    batch = DenseGradientTableBatch(MEMBERS, LOOKUPS, TableOptions(optimizer="sgd"), replicated=True)
    bucket = torch.zeros(240)
    first = next(batch.parameters())
    first.grad = bucket.view(30, 8)
    batch(*random_bags(batch, 4)).sum().backward()
    assert bucket.any()
    batch.step()
    assert first.grad.data_ptr() == bucket.data_ptr()
    assert not bucket.any()


@pytest.mark.parametrize("optimizer", FUSED)
def test_what_learns_by_row_learns_the_same(optimizer):
    chosen = TableOptions(optimizer=optimizer, learning_rate=0.1)
    batches = [DenseGradientTableBatch(MEMBERS[:2], (0, 1), chosen, by_row=by_row) for by_row in ((), (1,))]
    for batch in batches:
        batch.initialise(seed=1, scales=(1.0, 1.0))
    assert [len(batch.dense_parameters) for batch in batches] == [2, 1]
    for step in range(3):
        for batch in batches:
            batch.set_learning_rate(0.1 / (step + 1))
            # Twice a step, and some rows twice.
            for rows in ([3, 3, 0], [step, 6]):
                for number, table in enumerate(batch.parameters()):
                    by_row = batch.row_parameters and number == 1
                    found = embedding(torch.tensor(rows), table, sparse=bool(by_row))
                    (number + found).square().sum().backward()
            batch.step()
    for one, other in zip(*(batch.state() for batch in batches), strict=True):
        assert one.name == other.name
        torch.testing.assert_close(one.tensor, other.tensor, rtol=1e-5, atol=1e-6)


def test_what_moves_every_row_does_not_learn_by_row():
    with pytest.raises(AssertionError, match="adam moves every row"):
        DenseGradientTableBatch(MEMBERS[:1], (0,), TableOptions(optimizer="adam"), by_row=(0,))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("optimizer", [*FUSED, "adam"])
@pytest.mark.parametrize("members", [MEMBERS, ODD], ids=["multiples of 4", "odd dims"])
def test_cuda_learns_as_the_cpu_does(kind, members, optimizer, precision):
    if (precision == "fp16" and kind is not FBGEMMTableBatch) or (optimizer == "adam" and kind is FBGEMMTableBatch):
        pytest.skip("not supported")
    cuda = torch.device("cuda")
    here, there = (
        make(kind, members, device=device, optimizer=optimizer, precision=precision) for device in (None, cuda)
    )
    for step in range(3):
        values, offsets = random_bags(here, 6, seed=step)
        learn(here, values, offsets)
        learn(there, values.to(cuda), offsets.to(cuda))
    tolerance = 1e-5 if precision == "fp32" else 5e-3
    for found, expected in zip(state(there), state(here), strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("kind", "optimizer", "precision", "shared"),
    [
        (FBGEMMTableBatch, "sgd", "fp16", 0),
        (FBGEMMTableBatch, "rowwise_adagrad", "fp32", 0),
        (FBGEMMTableBatch, "adagrad", "fp32", 0),
        (DenseGradientTableBatch, "adam", "fp32", 4),
    ],
)
def test_num_bytes_are_those_that_options_tell(kind, optimizer, precision, shared):
    options = TableOptions(optimizer=optimizer, precision=precision)
    per_row = [m.dim * options.dtype.itemsize + options.optimizer_bytes_per_row(m.dim) for m in MEMBERS]
    expected = sum(m.num_rows * each + shared for m, each in zip(MEMBERS, per_row, strict=True))
    found = make(kind, optimizer=optimizer, precision=precision).state()
    assert sum(part.tensor.nbytes for part in found) == expected


# ------------------------------------------------------------------------------------- first values, and what is made


def filled(rows=(0, 40), columns=(0, 16), *, name="items", seed=3, scale=0.5, **options) -> Tensor:
    member = LocalTable(name=name, rows=rows, columns=columns)
    batch = FBGEMMTableBatch((member,), (0,), TableOptions(**options))
    batch.initialise(seed=seed, scales=[scale])
    return state(batch)[0]


@settings(max_examples=30)
@given(
    rows=st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted),
    columns=st.tuples(st.integers(0, 15), st.integers(1, 16)).filter(lambda both: both[0] < both[1]),
)
def test_a_rectangle_starts_with_the_values_of_the_whole_table(rows, columns):
    assert torch.equal(filled(tuple(rows), columns), filled()[slice(*rows), slice(*columns)])


def test_first_values_are_uniform_and_uncorrelated():
    values = filled((0, 4000), (0, 64), scale=0.5)
    assert values.min() >= -0.5
    assert values.max() < 0.5
    counts = np.histogram(values, bins=100, range=(-0.5, 0.5))[0]
    # 99 degrees of freedom: chi square above 180 has a chance of 1e-6.
    assert ((counts - 2560) ** 2 / 2560).sum() < 180
    correlations = torch.corrcoef(values.T) - torch.eye(64)
    assert correlations.abs().max() < 6 / 4000**0.5
    assert torch.corrcoef(values[:200]).fill_diagonal_(0).abs().max() < 6 / 64**0.5


@pytest.mark.parametrize("change", [{"name": "users"}, {"seed": 4}, {"rows": (2**33, 2**33 + 40)}])
def test_tables_seeds_and_far_rows_differ(change):
    assert (filled() == filled(**change)).sum() < 5


def test_half_precision_starts_rounded(monkeypatch):
    monkeypatch.setattr("windrow.recsys.tables.table._CHUNK_VALUES", 100)
    assert torch.equal(filled((5, 90), precision="fp16"), filled((5, 90)).half())


def test_first_values_equal_plain_integers():
    values = np.zeros((7, 12), dtype=np.float32)
    fill_uniform(values[:, 1:10], np.uint64(123456789), np.arange(1000, 1007), 3, np.float32(0.25))
    for row in range(7):
        start = int(hash_ids(123456789, np.array([1000 + row]))[0])
        for column in range(3, 12):
            number = mix64((start + (column // 2) * GOLDEN) & MASK)
            half = number >> 32 if column % 2 else number & 0xFFFFFFFF
            expected = (np.float32(half >> 8) * np.float32(2.0**-23) - np.float32(1)) * np.float32(0.25)
            assert values[row, column - 2] == expected
    assert not values[:, [0, 10, 11]].any()


WHOLE = LocalTable(name="a", rows=(0, 100), columns=(0, 16))
PART = LocalTable(name="a", rows=(30, 50), columns=(4, 12))
ROWS = {"a": 100, "b": 400}


@pytest.mark.parametrize(
    ("optimizer", "replicated", "expected"),
    [
        ("adagrad", False, FBGEMMTableBatch),
        ("adam", False, DenseGradientTableBatch),
        ("sgd", True, DenseGradientTableBatch),
    ],
)
def test_which_storage_is_made(optimizer, replicated, expected):
    options = TableOptions(optimizer=optimizer)
    batch = make_table_batch(options, (PART,), (0, 0), table_rows=ROWS, replicated=replicated, pooled=False, seed=5)
    assert type(batch) is expected
    assert {found.replicated for found in batch.state()} == {replicated}
    assert batch.output_dim == 8
    whole = make_table_batch(TableOptions(), (WHOLE,), (0,), table_rows=ROWS, seed=5)
    assert torch.equal(state(batch)[0], state(whole)[0][30:50, 4:12])
    assert 0.09 < state(whole)[0].abs().max() <= 0.1
    assert not state(whole, "sum_of_squares")[0].any()


def test_initial_scale_of_each_table():
    options = TableOptions(initial_scale=2.0, per_table={"b": TableOverrides(initial_scale=0.5)})
    members = (WHOLE, replace(WHOLE, name="b"))
    batch = make_table_batch(options, members, (0, 1), table_rows=ROWS)
    most = [float(table.abs().max()) for table in state(batch)]
    assert 1.9 < most[0] <= 2
    assert 0.45 < most[1] <= 0.5
