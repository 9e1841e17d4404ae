"""Sums in 8 bits: the same on all ranks, near the exact ones, and exact on average over steps."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from windrow.comm.error_feedback import BLOCK, ErrorFeedback
from windrow.comm.errors import RecipeError
from windrow.comm.gradients import GradientReducer
from windrow.comm.loopback import Loopback
from windrow.comm.wire import WireOptions

NUMBERS = 1500


def vector_of(rank: int) -> torch.Tensor:
    """Most numbers are far below the largest one of their block."""
    values = 1e-3 * torch.randn(NUMBERS, generator=torch.Generator().manual_seed(rank))
    values[::500] = 1.0 + rank
    return values


def test_sums_agree_on_all_ranks_and_their_mean_becomes_exact(spmd):
    steps = 200

    def body(world):
        codec = ErrorFeedback().for_vector()
        addends = [vector_of(rank) for rank in range(world.size)]
        exact = sum(addends)
        total = torch.zeros(NUMBERS, dtype=torch.float64)
        for _ in range(steps):
            found = world.all_reduce(vector_of(world.rank), stage="test", codec=codec)
            total += found
        # Each rank leaves out up to a sixteenth of its own, and so does the owner; of small ones a little more.
        step = sum(addend.abs() for addend in [*addends, exact]) / 16 + 1e-4
        assert bool(((found - exact).abs() <= 2 * step).all())
        assert bool(((total / steps - exact).abs() <= 4 * step / steps + 1e-6).all())
        assert (codec.residual is None) == (world.size == 1)
        return found

    found = spmd(body)
    assert all(torch.equal(one, found[0]) for one in found)


@given(
    count=st.integers(1, 3 * BLOCK),
    scale=st.floats(1e-30, 1e30),
    seed=st.integers(0, 1000),
    zeros=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_what_travels_and_what_is_left_add_up_to_the_piece(count, scale, seed, zeros):
    chance = torch.Generator().manual_seed(seed)
    piece = torch.randn(count, generator=chance) * torch.rand(count, generator=chance) ** 8 * scale
    piece[torch.rand(count, generator=chance) < zeros] = 0
    codec = ErrorFeedback()
    wire = codec.encode_piece([piece.clone()], 0)
    assert len(wire) == codec.wire_row_bytes((count,), torch.float32) == count + 4 * -(-count // BLOCK)
    decoded = codec.decode(wire, torch.full_like(piece, torch.nan))
    torch.testing.assert_close(decoded + codec.residual, piece, rtol=1e-6, atol=1e-7 * float(piece.abs().max()))
    # 3 bits behind the first; below 2**-6 / 448 of the largest of the block a step is 2**-9 / 448 of it.
    largest = torch.cat([block.abs().max().expand(len(block)) for block in piece.split(BLOCK)])
    assert bool((codec.residual.abs() <= piece.abs() * 2**-4 * 1.001 + largest * 2**-10 / 448 * 1.001 + 1e-37).all())


def test_a_gradient_that_is_not_finite_shows():
    def body(world):
        values = torch.ones(2 * BLOCK)
        values[3 * world.rank] = torch.inf
        return world.all_reduce(values, stage="test", codec=ErrorFeedback())

    for found in Loopback.run(2, body):
        assert not bool(found[:4].isfinite().any())


def test_what_was_left_out_goes_on_in_another_reducer():
    def body(world):
        found = []
        for resumed in (False, True):
            weight = nn.Parameter(torch.zeros(40, 30))
            double = nn.Parameter(torch.zeros(3, dtype=torch.float64))

            def make(weight=weight, double=double):
                return GradientReducer(world, [weight, double], codec=WireOptions(sums="fp8").sums_codec())

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
    with pytest.raises(RecipeError, match=rf'wire\.sums = "fp8" with wire\.topology = "{topology}"'):
        WireOptions(sums="fp8", topology=topology)
