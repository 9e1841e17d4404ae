import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.sampling import NegativeSampler, ShuffledSource
from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

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


class Numbers(ShuffledSource):
    """Samples that are their numbers."""

    shuffles = 0

    def shuffle(self, epoch):
        self.shuffles += 1
        return np.random.default_rng(epoch).permutation(self.samples_per_epoch)

    def read(self, epoch, step):
        found = torch.from_numpy(self.samples_of(epoch, step))
        sparse = KeyedJaggedTensor(keys=["n"], values=found, lengths=torch.ones_like(found), stride=len(found))
        return Batch(torch.zeros(len(found), 0), sparse, torch.zeros(len(found)), found)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 5), st.integers(0, 3))
def test_ranks_share_the_order_of_the_epoch(num_samples, batch_size, size, epoch):
    sources = [Numbers(num_samples, rank=rank, size=size, batch_size=batch_size, seed=0) for rank in range(size)]
    steps = sources[0].steps_per_epoch
    assert steps == -(-num_samples // batch_size)
    seen = []
    for step in range(steps):
        parts = [source.samples_of(epoch, step) for source in sources]
        whole = np.concatenate(parts)
        assert len(whole) == sources[0].global_batch_size(epoch, step) <= batch_size
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        seen += whole.tolist()
    assert seen == sources[0].shuffle(epoch).tolist()


def test_an_order_is_drawn_once_and_any_step_can_be_first():
    source = Numbers(10, rank=0, size=1, batch_size=3, seed=0)
    with source.batches(1) as batches:
        whole = [batch.row_ids.tolist() for batch in batches]
    assert source.shuffles == 1
    with source.batches(1, first_step=2) as batches:
        assert [batch.row_ids.tolist() for batch in batches] == whole[2:]
    assert source.shuffles == 1


def test_batch_size():
    with pytest.raises(RecipeError, match="batch_size = 0"):
        Numbers(3, rank=0, size=1, batch_size=0, seed=0)
