"""When training stops."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError, StoreError
from windrow.training.schedule import EarlyStopping

VALUES = st.lists(st.floats(-1, 1) | st.just(math.nan), max_size=20)


def test_the_drawn_example():
    stopping = EarlyStopping(patience=3)
    stops = []
    for epoch, value in enumerate([0.70, 0.74, 0.73, math.nan, 0.74]):
        stopping.update(epoch, value)
        stops.append(stopping.should_stop)
    assert stops == [False, False, False, False, True]
    assert (stopping.best_epoch, stopping.best_value) == (1, 0.74)


@settings(deadline=None)
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


@settings(deadline=None)
@given(VALUES)
def test_a_falling_metric_is_a_rising_one_upside_down(values):
    rising = EarlyStopping(patience=2, min_delta=0.25)
    falling = EarlyStopping(patience=2, min_delta=0.25, higher_is_better=False)
    for epoch, value in enumerate(values):
        assert falling.update(epoch, -value) == rising.update(epoch, value)
        assert falling.should_stop == rising.should_stop
        assert falling.best_value == -rising.best_value


def test_a_small_gain_does_not_count():
    stopping = EarlyStopping(patience=2, min_delta=0.01)
    assert stopping.update(0, 0.5)
    assert not stopping.update(1, 0.505)
    assert not stopping.should_stop
    assert not stopping.update(2, 0.51)
    assert stopping.should_stop


def test_patience_counts_epochs_and_not_evaluations():
    stopping = EarlyStopping(patience=4)
    stopping.update(0, 0.9)
    stopping.update(3, 0.1)
    assert not stopping.should_stop
    stopping.update(6, 0.1)
    assert stopping.should_stop


def test_without_patience_the_best_is_remembered_and_nothing_stops():
    stopping = EarlyStopping(patience=None)
    for epoch in range(100):
        stopping.update(epoch, -epoch)
    assert not stopping.should_stop
    assert stopping.best_epoch == 0


@settings(deadline=None)
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


def test_state_of_another_version_is_refused():
    with pytest.raises(
        StoreError, match=r"fields \['best'\] but \['best_epoch', 'best_value', 'last_epoch'\]"
    ):
        EarlyStopping(patience=1).load_state_dict({"best": 1.0})


def test_options_out_of_range_are_refused():
    with pytest.raises(RecipeError, match="patience = 0 epochs: must be at least 1"):
        EarlyStopping(patience=0)
    with pytest.raises(RecipeError, match="min_delta = -1: must be a finite number"):
        EarlyStopping(patience=1, min_delta=-1)
    with pytest.raises(RecipeError, match="min_delta = nan"):
        EarlyStopping(patience=1, min_delta=math.nan)
