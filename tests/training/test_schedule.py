"""The learning rate over a run, and when to stop."""

import itertools
import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR

from windrow.comm.errors import RecipeError
from windrow.training.schedule import EarlyStopping, ScheduleKind, ScheduleOptions, learning_rate_factor

OPTIONS = st.builds(
    ScheduleOptions,
    kind=st.sampled_from(get_args(ScheduleKind)),
    warmup_steps=st.integers(0, 20),
    final_fraction=st.floats(0, 1),
)


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


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("cosine", lambda optimizer: CosineAnnealingLR(optimizer, 37, eta_min=0.25 * 0.3)),
        ("linear", lambda optimizer: LinearLR(optimizer, 1.0, 0.25, total_iters=37)),
    ],
)
def test_equals_the_closed_form_of_torch(kind, make):
    peak = 0.3
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=peak)
    theirs = make(optimizer)
    options = ScheduleOptions(kind=kind, final_fraction=0.25)
    for step in range(38):
        expected = pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        assert peak * learning_rate_factor(options, step, 37) == expected
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


VALUES = st.lists(st.floats(-1, 1) | st.just(math.nan), max_size=20)


@given(VALUES, st.integers(1, 5))
def test_the_best_is_the_first_largest_and_stopping_counts_from_it(values, patience):
    stopping = EarlyStopping(patience=patience)
    for epoch, value in enumerate(values):
        improved = stopping.update(epoch, value)
        numbers = [-math.inf if math.isnan(v) else v for v in values[: epoch + 1]]
        best = max(numbers)
        best_epoch = numbers.index(best) if best > -math.inf else -1
        assert improved == (best_epoch == epoch)
        assert (stopping.best_value, stopping.best_epoch) == (best, best_epoch)
        assert stopping.should_stop == (epoch - best_epoch >= patience)


@given(VALUES)
def test_a_falling_metric_is_a_rising_one_upside_down(values):
    rising = EarlyStopping(patience=2)
    falling = EarlyStopping(patience=2, higher_is_better=False)
    for epoch, value in enumerate(values):
        assert falling.update(epoch, -value) == rising.update(epoch, value)
        assert falling.should_stop == rising.should_stop
        assert falling.best_value == -rising.best_value


def test_patience_counts_epochs_and_not_evaluations():
    stopping = EarlyStopping(patience=4)
    stopping.update(0, 0.9)
    stopping.update(3, 0.1)
    assert not stopping.should_stop
    stopping.update(6, 0.1)
    assert stopping.should_stop


def test_without_patience_the_best_is_remembered_and_nothing_stops():
    stopping = EarlyStopping(patience=0)
    for epoch in range(100):
        stopping.update(epoch, -epoch)
    assert not stopping.should_stop
    assert stopping.best_epoch == 0


@given(VALUES, st.data())
def test_resumed_halfway_it_ends_the_same(values, data):
    cut = data.draw(st.integers(0, len(values)))
    whole, first, second = (EarlyStopping(patience=3) for _ in range(3))
    for epoch, value in enumerate(values):
        whole.update(epoch, value)
        if epoch < cut:
            first.update(epoch, value)
    second.load_state_dict(first.state_dict())
    for epoch, value in enumerate(values[cut:], start=cut):
        second.update(epoch, value)
    assert second == whole
