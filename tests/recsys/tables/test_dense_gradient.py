"""Dense gradients: PyTorch's optimisers, and summing over ranks."""

import pytest
import torch
from torch import Tensor, nn

from windrow.comm.gradients import GradientReducer
from windrow.comm.loopback import Loopback
from windrow.comm.world import World
from windrow.recsys.tables.dense_gradient import DenseGradientTableBatch
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import LocalTable

MEMBERS = (
    LocalTable(name="a", rows=(0, 10), columns=(0, 8)),
    LocalTable(name="b", rows=(0, 6), columns=(0, 4)),
)
VALUES, OFFSETS = torch.tensor([1, 1, 7, 3, 0, 0, 5]), torch.tensor([0, 2, 3, 5, 7])


def make(**options) -> DenseGradientTableBatch:
    batch = DenseGradientTableBatch(MEMBERS, (0, 1), TableOptions(**options))
    for member in range(len(MEMBERS)):
        weight = batch.weight(member)
        weight.copy_(torch.linspace(-1, 1, weight.numel()).view_as(weight))
    return batch


def learn(batch: DenseGradientTableBatch, values: Tensor = VALUES, offsets: Tensor = OFFSETS) -> None:
    batch(values, offsets).square().sum().backward()
    batch.step()


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "sgd"])
def test_optimisers_are_pytorchs(optimizer, weight_decay):
    batch = make(
        optimizer=optimizer, learning_rate=0.1, betas=(0.8, 0.99), eps=1e-4, weight_decay=weight_decay
    )
    modules = nn.ModuleList(
        nn.EmbeddingBag.from_pretrained(batch.weight(member).clone(), freeze=False, mode="sum")
        for member in range(2)
    )
    parameters = list(modules.parameters())
    theirs = {
        "adam": lambda: torch.optim.Adam(
            parameters, lr=0.1, betas=(0.8, 0.99), eps=1e-4, weight_decay=weight_decay
        ),
        "adagrad": lambda: torch.optim.Adagrad(parameters, lr=0.1, eps=1e-4, weight_decay=weight_decay),
        "sgd": lambda: torch.optim.SGD(parameters, lr=0.1, weight_decay=weight_decay),
    }[optimizer]()
    for _ in range(4):
        learn(batch)
        theirs.zero_grad()
        pooled = [
            modules[0](VALUES[:3], torch.tensor([0, 2])),
            modules[1](VALUES[3:], torch.tensor([0, 2])),
        ]
        torch.cat(pooled, dim=1).square().sum().backward()
        theirs.step()
    for member, module in enumerate(modules):
        torch.testing.assert_close(batch.weight(member), module.weight.detach(), rtol=1e-6, atol=1e-6)
        state = batch.optimizer_state(member)
        names = {
            "adam": {"first_moment", "second_moment", "step"},
            "adagrad": {"sum_of_squares"},
            "sgd": set(),
        }
        assert set(state) == names[optimizer]
        assert state.get("step", 4) == 4


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_rows_that_are_not_looked_up_stay(optimizer):
    batch = make(optimizer=optimizer)
    before = batch.weight(0).clone()
    learn(batch)
    learn(batch)
    changed = (batch.weight(0) != before).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [1, 7]


def test_adam_moves_on_without_a_gradient():
    """A rank that had no samples steps as all others do."""
    batch, other = make(optimizer="adam"), make(optimizer="adam")
    batch.step()
    empty = torch.zeros(1, dtype=torch.int64)
    learn(other, VALUES[:0], empty)
    assert batch.optimizer_state(0)["step"] == other.optimizer_state(0)["step"] == 1
    learn(batch)
    learn(other)
    before = batch.weight(0).clone()
    batch.step()
    other.step()
    assert torch.equal(batch.weight(0), other.weight(0))
    assert not torch.equal(batch.weight(0), before)


def test_gradients_stay_where_they_are():
    batch = make(optimizer="sgd")
    bucket = torch.zeros(80)
    first = next(batch.parameters())
    first.grad = bucket.view(10, 8)
    batch(VALUES, OFFSETS).sum().backward()
    assert bucket.any()
    batch.step()
    assert first.grad.data_ptr() == bucket.data_ptr()
    assert not bucket.any()


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_copies_on_all_ranks_learn_as_one(optimizer):
    """Two ranks with a sample each are one rank with both; a third rank without samples takes part."""
    alone = make(optimizer=optimizer, learning_rate=0.1)
    for _ in range(3):
        learn(alone)
    shares = [
        (torch.tensor([1, 1, 3, 0]), torch.tensor([0, 2, 4])),
        (torch.tensor([7, 0, 5]), torch.tensor([0, 1, 3])),
        (torch.tensor([], dtype=torch.int64), torch.tensor([0])),
    ]

    def body(world: World) -> list[Tensor]:
        batch = make(optimizer=optimizer, learning_rate=0.1)
        reducer = GradientReducer(world, batch.parameters())
        for _ in range(3):
            reducer.start()
            batch(*shares[world.rank]).square().sum().backward()
            reducer.finish()
            batch.step()
        reducer.close()
        return [batch.weight(member).clone() for member in range(2)]

    results = Loopback.run(3, body, deadline_s=30)
    for weights in results:
        for member, weight in enumerate(weights):
            assert torch.equal(weight, results[0][member])
            torch.testing.assert_close(weight, alone.weight(member), rtol=1e-6, atol=1e-6)


def test_num_bytes():
    values = 10 * 8 + 6 * 4
    assert make(optimizer="sgd").num_bytes == values * 4
    assert make(optimizer="adam").num_bytes == values * 12 + 2 * 4
