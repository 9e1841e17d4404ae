"""Summed gradients against one process that sees every rank's data."""

import pytest
import torch
from torch import nn

from windrow.comm.gradients import GradientReducer
from windrow.comm.hierarchy import hierarchical
from windrow.comm.loopback import Loopback
from windrow.comm.wire import make_codec


def make_model() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    layers = [nn.utils.skip_init(nn.Linear, rows, columns) for rows, columns in [(4, 8), (8, 8), (8, 2)]]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -1, 1, generator=generator)
    return model


def data_of(rank: int, step: int) -> torch.Tensor:
    return torch.linspace(-1, 1 + rank + step, 12).reshape(3, 4)


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    return model(data_of(rank, step)).square().sum()


@pytest.mark.parametrize("codec", [None, "fp16", "bf16"])
def test_sums_equal_one_process_with_all_the_data(spmd, codec):
    close = {"rtol": 1e-5, "atol": 1e-6} if codec is None else {"rtol": 2e-2, "atol": 5e-2}

    def body(world):
        model, reference = make_model(), make_model()
        sums = world if codec is None else hierarchical(world, "abab"[: world.size])
        encoded = codec and make_codec(codec)
        reducer = GradientReducer(sums, model.parameters(), codec=encoded, bucket_bytes=100)
        for step in range(3):
            reducer.start()
            loss_of(model, world.rank, step).backward()
            reducer.finish()
            reference.zero_grad()
            sum(loss_of(reference, rank, step) for rank in range(world.size)).backward()
            for mine, expected in zip(model.parameters(), reference.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, expected.grad, **close)
        everyone = world.all_gather(torch.cat([p.grad.flatten() for p in model.parameters()]), stage="test")
        assert all(torch.equal(one, everyone[0]) for one in everyone)
        reducer.close()

    spmd(body)


def test_a_rank_may_skip_its_backward_pass_or_some_parameters(spmd):
    def body(world):
        model, reference = make_model(), make_model()
        reducer = GradientReducer(world, model.parameters(), bucket_bytes=100)
        reducer.start()
        if world.rank == 0:
            model[0](data_of(0, 0)).sum().backward()
        reducer.finish()
        reference[0](data_of(0, 0)).sum().backward()
        for mine, expected in zip(model.parameters(), reference.parameters(), strict=True):
            wanted = torch.zeros_like(mine) if expected.grad is None else expected.grad
            torch.testing.assert_close(mine.grad, wanted)
        reducer.close()

    spmd(body)


def test_buckets_may_come_in_any_order_relative_to_other_exchanges():
    """A rank without a backward pass starts its sums after what others do in theirs."""

    def body(world):
        model = make_model()
        reducer = GradientReducer(world, model.parameters(), codec=make_codec("bf16"), bucket_bytes=1)
        reducer.start()
        if world.rank:
            loss_of(model, 0, 0).backward()
        ones = [1] * world.size
        rows = world.all_to_all(torch.arange(float(world.size))[:, None], ones, ones, stage="rows")
        reducer.finish()
        return rows.eq(world.rank).all().item(), [p.grad.sum().item() for p in model.parameters()]

    found = Loopback.run(3, body, deadline_s=20)
    assert found[0][0]
    assert found[0] == found[1] == found[2]


def test_reduction_starts_before_the_backward_pass_ends():
    world = Loopback.single()
    model = make_model()
    reducer = GradientReducer(world, model.parameters(), bucket_bytes=1)
    started = []
    original = world.start_all_reduce
    world.start_all_reduce = lambda *args, **kwargs: (started.append(1), original(*args, **kwargs))[1]
    seen = []
    model[0].weight.register_hook(lambda _: seen.append(len(started)))
    reducer.start()
    loss_of(model, 0, 0).backward()
    assert seen[0] >= 4, "the parameters behind the first layer are on their way when it gets its gradient"
    reducer.finish()
    assert len(started) == 6
    reducer.close()


def test_a_second_backward_pass_cannot_spoil_what_is_on_its_way():
    model = make_model()
    reducer = GradientReducer(Loopback.single(), model.parameters())
    reducer.start()
    loss_of(model, 0, 0).backward()
    with pytest.raises(RuntimeError, match="the last one inside holding"):
        loss_of(model, 0, 1).backward()


def test_closing_removes_the_hooks():
    model = make_model()
    reducer = GradientReducer(Loopback.single(), model.parameters())
    reducer.close()
    loss_of(model, 0, 0).backward()


def test_gradients_of_passes_that_hold_are_summed_with_the_last(spmd):
    def body(world):
        model = make_model()
        reducer = GradientReducer(world, model.parameters())
        reducer.start()
        with reducer.holding():
            loss_of(model, world.rank, 0).backward()
        loss_of(model, world.rank, 1).backward()
        reducer.finish()
        reducer.close()
        return [parameter.grad.clone() for parameter in model.parameters()]

    found = spmd(body)
    model = make_model()
    size = len(found)
    sum(loss_of(model, rank, step) for rank in range(size) for step in (0, 1)).backward()
    for gradients in found:
        for mine, parameter in zip(gradients, model.parameters(), strict=True):
            torch.testing.assert_close(mine, parameter.grad)
