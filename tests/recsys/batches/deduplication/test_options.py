import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.deduplication.options import (
    DeduplicationOptions,
    dedupe_factor,
    left_of_batch,
    samples_per_session_in_batch,
)

GROUPS = (("cart", "sellers"), ("history",))


@pytest.mark.parametrize(("read", "look_up"), [(True, True), (True, False), (False, False)])
def test_groups_of_each_step(read, look_up):
    options = DeduplicationOptions(groups=GROUPS, read=read, transform=read, look_up=look_up, compute=look_up)
    assert options.read_groups() == (GROUPS if read else ())
    assert options.looked_up_groups() == (GROUPS if look_up else ())
    nothing = DeduplicationOptions()
    assert nothing.read_groups() == nothing.looked_up_groups() == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups": (("a",), ())}, "empty group"),
        ({"groups": (("a", "b"), ("b",))}, "names 'b' twice"),
        ({"groups": GROUPS, "read": False}, "transform = true needs deduplication.read = true"),
        ({"groups": GROUPS, "read": False, "transform": False}, "look_up = true needs deduplication.read = true"),
        ({"groups": GROUPS, "look_up": False}, "compute = true needs deduplication.look_up = true"),
    ],
)
def test_contradictions(settings, message):
    with pytest.raises(RecipeError, match=message):
        DeduplicationOptions(**settings)


def test_steps_do_not_matter_without_groups():
    assert not DeduplicationOptions(read=False).read


MEAN_SESSION = 16.5
NUM_SESSIONS = 40_000

sizes = st.floats(1, 1000)
probabilities = st.floats(0, 1)


def draw_log(unchanged: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Session of each sample, and a value that is new where it changed."""
    draw = np.random.default_rng(seed)
    lengths = draw.geometric(1 / MEAN_SESSION, NUM_SESSIONS)
    sessions = np.repeat(np.arange(NUM_SESSIONS), lengths)
    first = np.r_[True, np.diff(sessions) > 0]
    return sessions, np.cumsum(first | (draw.random(len(first)) >= unchanged))


def mean_distinct(values: np.ndarray, batch_size: int, pieces: int) -> float:
    """Of batches that are made of pieces from far apart."""
    length = batch_size // pieces
    num_batches = len(values) // batch_size
    cut = values[: num_batches * batch_size].reshape(pieces, num_batches, length)
    return float(np.mean([len(np.unique(cut[:, batch])) for batch in range(num_batches)]))


@pytest.mark.parametrize("unchanged", [0.0, 0.5, 0.8, 0.95, 1.0])
def test_the_factor_of_large_clustered_batches(unchanged):
    sessions, values = draw_log(unchanged, seed=1)
    mean_size = len(sessions) / NUM_SESSIONS
    counted = 4096 / mean_distinct(values, 4096, 1)
    assert counted == pytest.approx(dedupe_factor(mean_size, unchanged), rel=0.02)


@pytest.mark.parametrize(("batch_size", "pieces"), [(4096, 1), (256, 8), (64, 8), (64, 1), (16, 4), (8, 8)])
@pytest.mark.parametrize("unchanged", [0.5, 0.9, 1.0])
def test_borders_of_batches_and_shards(batch_size, pieces, unchanged):
    sessions, values = draw_log(unchanged, seed=2)
    mean_size = len(sessions) / NUM_SESSIONS
    predicted = left_of_batch(batch_size, unchanged * (mean_size - 1) / mean_size, pieces=pieces)
    assert mean_distinct(values, batch_size, pieces) == pytest.approx(predicted, rel=0.02)
    in_batch = samples_per_session_in_batch(batch_size, mean_size, pieces=pieces)
    assert batch_size / mean_distinct(sessions, batch_size, pieces) == pytest.approx(in_batch, rel=0.02)


def test_interleaved_sessions_repeat_less_than_the_formula_promises():
    _, values = draw_log(0.9, seed=3)
    shuffled = np.random.default_rng(4).permutation(values)
    assert 4096 / mean_distinct(shuffled, 4096, 1) < 1.2 < dedupe_factor(MEAN_SESSION, 0.9)


@given(sizes, probabilities)
def test_the_factor_lies_between_one_and_the_size_of_a_session(size, unchanged):
    assert 1 <= dedupe_factor(size, unchanged) <= size * (1 + 1e-12)
    assert dedupe_factor(size, 0.0) == pytest.approx(1)
    assert dedupe_factor(size, 1.0) == size


@given(st.integers(1, 10_000), sizes, probabilities, st.integers(1, 64))
def test_the_factor_of_what_borders_leave_of_a_session_is_that_of_the_batch(batch, size, unchanged, pieces):
    in_batch = samples_per_session_in_batch(batch, size, pieces=pieces)
    rows = left_of_batch(batch, unchanged * (size - 1) / size, pieces=pieces)
    assert batch / rows == pytest.approx(dedupe_factor(max(1.0, in_batch), unchanged))
    assert min(pieces, batch) * (1 - 1e-12) <= rows <= batch * (1 + 1e-12)


def test_without_borders_it_is_the_paper():
    assert left_of_batch(4096, 0.9 * 15.5 / 16.5, pieces=0) == pytest.approx(4096 / dedupe_factor(16.5, 0.9))
    assert left_of_batch(0, 0.9) == 0
    assert samples_per_session_in_batch(0, 16.5) == 1
