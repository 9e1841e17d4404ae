"""Sums in few bits: the same on all ranks, near the exact ones, and exact on average over steps."""

import pytest
import torch
from torch import nn

from windrow.comm.error_feedback import ErrorFeedback
from windrow.comm.errors import DataError, RecipeError
from windrow.comm.gradients import GradientReducer
from windrow.comm.loopback import Loopback
from windrow.comm.wire import WireOptions

NUMBERS = 1500


def vector_of(rank: int) -> torch.Tensor:
    """Most numbers are far below what their block's largest one lets through."""
    values = 1e-3 * torch.randn(NUMBERS, generator=torch.Generator().manual_seed(rank))
    values[::500] = 1.0 + rank
    return values


@pytest.mark.parametrize("bits", [4, 8])
def test_sums_agree_on_all_ranks_and_their_mean_becomes_exact(spmd, bits):
    steps = 200

    def body(world):
        codec = ErrorFeedback(bits).for_vector()
        exact = sum(map(vector_of, range(world.size)))
        total = torch.zeros(NUMBERS, dtype=torch.float64)
        for _ in range(steps):
            found = world.all_reduce(vector_of(world.rank), stage="test", codec=codec)
            total += found
        # Every rank leaves out up to a step of its own, and so does the owner.
        step = (world.size + 1) * 2 * exact.abs().max() / (2**bits - 1)
        assert bool(((found - exact).abs() <= 2 * step).all())
        assert bool(((total / steps - exact).abs() <= 2 * step / steps).all())
        assert (codec.residual is None) == (world.size == 1)
        return found

    found = spmd(body)
    assert all(torch.equal(one, found[0]) for one in found)


def test_bytes_are_counted_as_they_travel():
    assert ErrorFeedback(8).wire_row_bytes((129,), torch.float32) == 2 * (4 + 64) + 4 + 1
    assert ErrorFeedback(4).wire_row_bytes((2, 64), torch.float32) == 2 * (4 + 32)
    assert WireOptions(sums="int8").sums_codec().name == "int8"


def test_a_gradient_that_is_not_finite_is_refused():
    def body(world):
        values = torch.ones(8)
        values[5 * world.rank] = torch.inf
        world.all_reduce(values, stage="test", codec=ErrorFeedback(8))

    with pytest.raises(DataError, match="only finite numbers can be quantised"):
        Loopback.run(2, body)


def test_what_was_left_out_goes_on_in_another_reducer():
    def body(world):
        found = []
        for resumed in (False, True):
            weight = nn.Parameter(torch.zeros(40, 30))
            double = nn.Parameter(torch.zeros(3, dtype=torch.float64))

            def make(weight=weight, double=double):
                return GradientReducer(world, [weight, double], codec=WireOptions(sums="int4").sums_codec())

            reducer = make()
            for step in range(6):
                if resumed and step == 3:
                    residuals = reducer.residuals()
                    assert len(residuals) == 1, "float64 travels as it is"
                    reducer.close()
                    reducer = make()
                    reducer.load_residuals(residuals)
                reducer.start()
                scale = 1.0 + world.rank + step
                (weight * vector_of(step)[:1200].view(40, 30) * scale).sum().backward()
                reducer.finish()
            found.append(weight.grad.clone())
            reducer.close()
        return torch.equal(*found)

    assert Loopback.run(3, body) == [True] * 3


@pytest.mark.parametrize("topology", ["hierarchical", "auto"])
def test_sums_within_hosts_are_refused(topology):
    with pytest.raises(RecipeError, match=rf'wire\.sums = "int8" with wire\.topology = "{topology}"'):
        WireOptions(sums="int8", topology=topology)
