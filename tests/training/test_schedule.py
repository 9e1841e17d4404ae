"""The learning rate over a run."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError
from windrow.training.schedule import SCHEDULE_KINDS, ScheduleOptions, learning_rate_factor

OPTIONS = st.builds(
    ScheduleOptions,
    kind=st.sampled_from(SCHEDULE_KINDS),
    warmup_steps=st.integers(0, 20),
    final_fraction=st.floats(0, 1),
)


@settings(deadline=None)
@given(OPTIONS, st.integers(1, 50))
def test_it_rises_to_one_and_falls_to_the_final_fraction(options, steps_after_warmup):
    total = options.warmup_steps + steps_after_warmup
    factors = [learning_rate_factor(options, step, total) for step in range(total + 3)]
    peak = options.warmup_steps
    assert all(0 < factor < 1 for factor in factors[:peak])
    assert all(earlier < later for earlier, later in itertools.pairwise(factors[: peak + 1]))
    assert factors[peak] == 1.0
    # Up to the rounding of the last digit, where the final fraction is so near 1 that it hides the fall.
    assert all(later <= earlier + 1e-15 for earlier, later in itertools.pairwise(factors[peak:]))
    end = 1.0 if options.kind == "constant" else options.final_fraction
    assert factors[total:] == [end] * 3


@pytest.mark.parametrize("final_fraction", [0.0, 0.25])
def test_cosine_equals_the_closed_form_of_torch(final_fraction):
    total, peak = 37, 0.3
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=peak)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total, eta_min=final_fraction * peak)
    options = ScheduleOptions(kind="cosine", final_fraction=final_fraction)
    for step in range(total + 1):
        assert peak * learning_rate_factor(options, step, total) == pytest.approx(
            theirs.get_last_lr()[0], abs=1e-12
        )
        optimizer.step()
        theirs.step()


def test_linear_equals_the_closed_form_of_torch():
    total = 20
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=total)
    options = ScheduleOptions(kind="linear", final_fraction=0.1)
    for step in range(total + 1):
        assert learning_rate_factor(options, step, total) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


def test_warm_up_then_half_way():
    options = ScheduleOptions(kind="cosine", warmup_steps=3, final_fraction=0.2)
    assert [learning_rate_factor(options, step, 13) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert learning_rate_factor(options, 8, 13) == pytest.approx(0.6)


def test_a_run_may_be_all_warm_up_but_not_shorter():
    options = ScheduleOptions(kind="linear", warmup_steps=4)
    assert [learning_rate_factor(options, step, 4) for step in range(4)] == [0.2, 0.4, 0.6, 0.8]
    with pytest.raises(RecipeError, match="warmup_steps = 4 but the whole run has 3 steps"):
        learning_rate_factor(options, 0, 3)


def test_options_out_of_range_are_refused():
    with pytest.raises(RecipeError, match="kind = 'cosin': must be one of constant, linear, cosine"):
        ScheduleOptions(kind="cosin")
    with pytest.raises(RecipeError, match="warmup_steps = -1: must not be negative"):
        ScheduleOptions(warmup_steps=-1)
    with pytest.raises(RecipeError, match=r"final_fraction = 1\.5: must be between 0 and 1"):
        ScheduleOptions(final_fraction=1.5)
