"""Fused learning against PyTorch's modules and optimisers, and against ten plain lines."""

import pytest
import torch
from torch import Tensor, nn

from windrow.recsys.tables.fbgemm import FBGEMMTableBatch
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import LocalTable

ROWS = (40, 9)
MEMBERS = tuple(LocalTable(name=f"t{i}", rows=(0, rows), columns=(0, 12)) for i, rows in enumerate(ROWS))


def make(device: torch.device | None = None, **options) -> FBGEMMTableBatch:
    batch = FBGEMMTableBatch(MEMBERS, (0, 1), TableOptions(dim=12, **options), device=device)
    generator = torch.Generator().manual_seed(1)
    for member, rows in enumerate(ROWS):
        batch.weight(member).copy_(torch.randn(rows, 12, generator=generator))
    return batch


def bags(seed: int, num_samples: int = 16) -> tuple[Tensor, Tensor]:
    """Three values in each bag: with 9 rows, ids repeat within a bag and within the batch."""
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randint(0, rows, (num_samples * 3,), generator=generator) for rows in ROWS]
    return torch.cat(values), torch.arange(2 * num_samples + 1) * 3


def modules_like(batch: FBGEMMTableBatch) -> nn.ModuleList:
    return nn.ModuleList(
        nn.EmbeddingBag.from_pretrained(batch.weight(member).clone(), freeze=False, mode="sum")
        for member in range(len(ROWS))
    )


def loss_of(pooled: Tensor) -> Tensor:
    return (pooled * torch.linspace(-1, 1, pooled.numel()).view_as(pooled)).square().sum()


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_learns_as_embedding_bag_and_a_pytorch_optimiser(optimizer):
    batch = make(optimizer=optimizer, learning_rate=0.05, eps=0.1)
    modules = modules_like(batch)
    theirs: torch.optim.Optimizer = (
        torch.optim.SGD(modules.parameters(), lr=0.05)
        if optimizer == "sgd"
        else torch.optim.Adagrad(modules.parameters(), lr=0.05, eps=0.1)
    )
    for step in range(6):
        values, offsets = bags(step)
        pooled = batch(values, offsets)
        first, second = values.view(2, -1, 3)
        expected = torch.cat([modules[0](first), modules[1](second)], dim=1)
        torch.testing.assert_close(pooled, expected, rtol=1e-6, atol=1e-6)
        loss_of(pooled).backward()
        theirs.zero_grad()
        loss_of(expected).backward()
        theirs.step()
    for member in range(len(ROWS)):
        weight = modules[member].weight
        torch.testing.assert_close(batch.weight(member), weight.detach(), rtol=1e-6, atol=1e-6)
        if optimizer == "adagrad":
            squares = batch.optimizer_state(member)["sum_of_squares"]
            torch.testing.assert_close(squares, theirs.state[weight]["sum"], rtol=1e-5, atol=1e-6)


def test_rowwise_adagrad_is_the_formula():
    batch = make(optimizer="rowwise_adagrad", learning_rate=0.05, eps=0.1)
    modules = modules_like(batch)
    squares = [torch.zeros(rows, dtype=torch.float64) for rows in ROWS]
    for step in range(6):
        values, offsets = bags(step)
        loss_of(batch(values, offsets)).backward()
        first, second = values.view(2, -1, 3)
        modules.zero_grad()
        loss_of(torch.cat([modules[0](first), modules[1](second)], dim=1)).backward()
        for module, accumulator in zip(modules, squares, strict=True):
            gradient = module.weight.grad.double()
            accumulator.add_(gradient.square().mean(dim=1))
            module.weight.data -= (0.05 * gradient / (accumulator.sqrt() + 0.1)[:, None]).float()
    for member in range(len(ROWS)):
        torch.testing.assert_close(batch.weight(member), modules[member].weight.data, rtol=1e-6, atol=1e-6)
        found = batch.optimizer_state(member)["sum_of_squares"]
        torch.testing.assert_close(found, squares[member].float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_half_precision(optimizer):
    single = make(optimizer=optimizer)
    half = make(optimizer=optimizer, precision="fp16")
    for member in range(len(ROWS)):
        single.weight(member).copy_(single.weight(member).half())
    values, offsets = bags(0)
    pooled = half(values, offsets)
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, single(values, offsets), rtol=1e-6, atol=1e-6)
    for batch in (single, half):
        loss_of(batch(values, offsets)).backward()
    for member in range(len(ROWS)):
        assert half.weight(member).dtype == torch.float16
        torch.testing.assert_close(half.weight(member).float(), single.weight(member), rtol=2e-3, atol=2e-3)
        for name, state in half.optimizer_state(member).items():
            torch.testing.assert_close(state, single.optimizer_state(member)[name])


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_learning_is_reproducible(precision):
    first, second = make(precision=precision), make(precision=precision)
    for step in range(3):
        for batch in (first, second):
            loss_of(batch(*bags(step))).backward()
    for member in range(len(ROWS)):
        assert torch.equal(first.weight(member), second.weight(member))


def test_gradients_of_any_layout():
    batch, other = make(optimizer="sgd"), make(optimizer="sgd")
    values, offsets = bags(0)
    batch(values, offsets).sum().backward()
    gradient = torch.ones(24, 16).t()
    assert not gradient.is_contiguous()
    other(values, offsets).backward(gradient)
    assert torch.equal(batch.weight(0), other.weight(0))


def test_weights_are_nobody_elses_parameters():
    batch = make()
    assert list(batch.parameters()) == []
    assert list(batch.buffers()) == []
    assert batch.state_dict() == {}


def test_num_bytes():
    assert make(optimizer="sgd", precision="fp16").num_bytes == 49 * 12 * 2
    assert make(optimizer="rowwise_adagrad").num_bytes == 49 * (12 * 4 + 4)
    assert make(optimizer="adagrad").num_bytes == 49 * 12 * 8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_cuda_learns_as_the_cpu_does(optimizer, precision):
    cuda = torch.device("cuda")
    here, there = (make(device, optimizer=optimizer, precision=precision) for device in (None, cuda))
    for step in range(3):
        values, offsets = bags(step)
        loss_of(here(values, offsets)).backward()
        pooled = there(values.to(cuda), offsets.to(cuda))
        (
            pooled * torch.linspace(-1, 1, pooled.numel(), device=cuda).view_as(pooled)
        ).square().sum().backward()
    for member in range(len(ROWS)):
        tolerance = 1e-5 if precision == "fp32" else 5e-3
        torch.testing.assert_close(
            there.weight(member).cpu(), here.weight(member), rtol=tolerance, atol=tolerance
        )
