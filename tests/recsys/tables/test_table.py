"""What every kind of table storage must do, and that all kinds do the same."""

import pytest
import torch
from torch import Tensor

from windrow.recsys.tables.dense_gradient import DenseGradientTableBatch
from windrow.recsys.tables.fbgemm import FBGEMMTableBatch
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import LocalTable, TableBatch

MEMBERS = (
    LocalTable(name="a", rows=(0, 30), columns=(0, 8)),
    LocalTable(name="b", rows=(5, 12), columns=(4, 16)),
    LocalTable(name="c", rows=(9, 9), columns=(0, 4)),
)
LOOKUPS = (0, 1, 1, 2)
KINDS = [FBGEMMTableBatch, DenseGradientTableBatch]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request) -> type[TableBatch]:
    chosen: type[TableBatch] = request.param
    return chosen


def make(kind, members=MEMBERS, lookups=LOOKUPS, *, pooled=True, **options) -> TableBatch:
    batch: TableBatch = kind(members, lookups, TableOptions(**options), pooled=pooled)
    generator = torch.Generator().manual_seed(1)
    for member in range(len(members)):
        weight = batch.weight(member)
        weight.copy_(torch.randn(weight.shape, generator=generator))
    return batch


def random_bags(batch: TableBatch, num_samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.tensor([batch.members[member].num_rows for member in batch.lookups])
    lengths = torch.randint(0, 5, (len(rows), num_samples), generator=generator) * (rows > 0)[:, None]
    values = [
        torch.randint(0, max(int(count), 1), (int(total),), generator=generator)
        for count, total in zip(rows, lengths.sum(1), strict=True)
    ]
    return torch.cat(values), torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])


def reference(batch: TableBatch, values: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    num_samples = (len(offsets) - 1) // len(batch.lookups)
    sums = [torch.zeros(num_samples, batch.members[member].dim) for member in batch.lookups]
    for number, member in enumerate(batch.lookups):
        for sample in range(num_samples):
            bag = number * num_samples + sample
            for place in range(int(offsets[bag]), int(offsets[bag + 1])):
                sums[number][sample] += weights[place] * batch.weight(member)[values[place]]
    return torch.cat(sums, dim=1)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("weighted", [False, True])
def test_pooled_sums(kind, dtype, weighted):
    batch = make(kind)
    values, offsets = random_bags(batch, 7)
    weights = torch.rand(len(values), generator=torch.Generator().manual_seed(2))
    found = batch(values.to(dtype), offsets.to(dtype), weights if weighted else None)
    assert found.dtype == torch.float32
    assert batch.output_dim == found.shape[1]
    expected = reference(batch, values, offsets, weights if weighted else torch.ones_like(weights))
    torch.testing.assert_close(found, expected)


def test_unpooled_rows(kind):
    members = (*MEMBERS[:1], LocalTable(name="d", rows=(0, 4), columns=(0, 8)))
    batch = make(kind, members, (0, 0, 1), pooled=False)
    values, offsets = random_bags(batch, 5)
    found = batch(values, offsets)
    cut = int(offsets[10])
    assert torch.equal(found, torch.cat([batch.weight(0)[values[:cut]], batch.weight(1)[values[cut:]]]))
    found.sum().backward()
    batch.step()


def test_weights_of_values_have_gradients(kind):
    batch = make(kind)
    values, offsets = random_bags(batch, 3)
    weights = torch.ones(len(values), requires_grad=True)
    before = [batch.weight(member).clone() for member in range(len(MEMBERS))]
    found = batch(values, offsets, weights)
    found.sum().backward()
    cut = int(offsets[3])
    expected = torch.cat([before[0][values[:cut]].sum(1), before[1][values[cut:]].sum(1)])
    torch.testing.assert_close(weights.grad, expected)


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("num_samples", [0, 3])
def test_nothing_to_look_up(kind, pooled, num_samples):
    for members, lookups in ((MEMBERS[:1], (0, 0)), (MEMBERS[2:], (0,))):
        batch = make(kind, members, lookups, pooled=pooled)
        before = batch.weight(0).clone()
        offsets = torch.zeros(len(lookups) * num_samples + 1, dtype=torch.int64)
        found = batch(torch.zeros(0, dtype=torch.int64), offsets)
        assert found.shape == (num_samples if pooled else 0, batch.output_dim)
        assert not found.any()
        found.sum().backward()
        batch.step()
        assert torch.equal(batch.weight(0), before)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(kind, mode):
    batch = make(kind)
    values, offsets = random_bags(batch, 4)
    with mode():
        found = batch(values, offsets)
    assert not found.requires_grad
    assert torch.equal(found, batch(values, offsets))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_all_kinds_learn_alike(optimizer):
    fused, dense = (make(kind, optimizer=optimizer, learning_rate=0.1, eps=1e-3) for kind in KINDS)
    for step in range(5):
        rate = 0.1 / (1 + step)
        values, offsets = random_bags(fused, 6, seed=step)
        weights = torch.rand(len(values), generator=torch.Generator().manual_seed(step))
        for batch in (fused, dense):
            batch.set_learning_rate(rate)
            batch(values, offsets, weights if step % 2 else None).square().sum().backward()
            batch.step()
    for member in range(len(MEMBERS)):
        torch.testing.assert_close(fused.weight(member), dense.weight(member), rtol=1e-5, atol=1e-6)
        ours, theirs = fused.optimizer_state(member), dense.optimizer_state(member)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert fused.num_bytes == dense.num_bytes


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_state_written_from_outside_is_what_learning_goes_on_from(kind, optimizer):
    first, second = make(kind, optimizer=optimizer), make(kind, optimizer=optimizer)
    values, offsets = random_bags(first, 6)

    def learn(batch: TableBatch) -> None:
        batch(values, offsets).square().sum().backward()
        batch.step()

    learn(first)
    for member in range(len(MEMBERS)):
        second.weight(member).copy_(first.weight(member))
        for name, state in first.optimizer_state(member).items():
            second.optimizer_state(member)[name].copy_(state)
    learn(first)
    learn(second)
    for member in range(len(MEMBERS)):
        assert torch.equal(first.weight(member), second.weight(member))


def test_a_step_goes_forward_again_before_it_goes_back(kind):
    """Batches in flight: the second is looked up before the first has learnt."""
    batch = make(kind, optimizer="sgd", learning_rate=1.0)
    before = batch.weight(0).clone()
    values, offsets = torch.tensor([1]), torch.tensor([0, 1, 1, 1, 1])
    first, second = batch(values, offsets), batch(values, offsets)
    first.sum().backward()
    second.sum().backward()
    batch.step()
    torch.testing.assert_close(batch.weight(0)[1], before[1] - 2)


@pytest.mark.parametrize(
    ("lookups", "said"),
    [((1, 0), "must ascend"), ((0, 1, 0), "must ascend"), ((0,), "each member is looked up")],
)
def test_lookups_that_break_the_contract(kind, lookups, said):
    with pytest.raises(AssertionError, match=said):
        make(kind, MEMBERS[:2], lookups)


def test_local_table():
    member = LocalTable(name="b", rows=(5, 12), columns=(4, 16))
    assert (member.num_rows, member.dim) == (7, 12)
