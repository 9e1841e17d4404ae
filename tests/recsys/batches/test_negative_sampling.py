import numpy as np
import pytest

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.sampling import NegativeSampler

COUNTS = np.array([0, 1, 4, 16, 0])


@pytest.mark.parametrize(
    ("exponent", "weights"), [(0.0, [1, 1, 1, 1, 1]), (0.5, [1, 1, 2, 4, 1]), (1.0, [1, 1, 4, 16, 1])]
)
def test_items_occur_as_often_as_they_should(exponent, weights):
    sampler = NegativeSampler(COUNTS, 50_000, exponent=exponent, seed=3)
    expected = np.array(weights) / np.sum(weights)
    found = np.bincount(sampler.sample(0, 0), minlength=5) / 50_000
    assert np.abs(found - expected).max() < 5 * np.sqrt(0.25 / 50_000)
    assert np.allclose(np.exp(sampler.log_probabilities()), expected, rtol=1e-5)


def test_negatives_are_a_function_of_seed_epoch_and_step():
    counts = np.ones(1000, dtype=np.int64)
    first = NegativeSampler(counts, 64, seed=0)
    assert np.array_equal(first.sample(1, 2), NegativeSampler(counts, 64, seed=0).sample(1, 2))
    others = [first.sample(2, 1), first.sample(1, 3), NegativeSampler(counts, 64, seed=1).sample(1, 2)]
    assert all(not np.array_equal(first.sample(1, 2), other) for other in others)


def test_one_item_is_enough():
    assert NegativeSampler(np.array([3]), 4, exponent=0.7, seed=0).sample(0, 0).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("options", [{"num_negatives": 0}, {"num_negatives": 5, "exponent": -1.0}])
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(RecipeError, match="expected at least"):
        NegativeSampler(COUNTS, seed=0, **options)
