"""What is read of a batch, and what is refused."""

import pytest
import torch

from windrow.comm.errors import DataError
from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.samples import read_samples
from windrow.recsys.torchrec_adapter import KeyedJaggedTensor


@pytest.fixture
def layout(small):
    return make_layout(small.tables, small.make_plan("table", 2), 2)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_features_are_found_wherever_they_are(small, layout, dtype):
    drawn = small.draw(1, 5)
    batch = small.jagged({"more": [[10**6]] * 5, **drawn})
    batch = KeyedJaggedTensor(batch.keys(), batch.values().to(dtype), lengths=batch.lengths().to(dtype))
    samples = read_samples(batch, layout, is_weighted=False)
    assert samples.num_samples == 5
    assert len(samples.weights) == 0
    for feature, key in zip(layout.features, samples.keys, strict=True):
        ids = samples.ids[samples.starts[key] : samples.starts[key + 1]].tolist()
        assert ids == [i for bag in drawn[feature] for i in bag]
        assert samples.lengths[key].tolist() == [len(bag) for bag in drawn[feature]]
        assert samples.one_each[key] == all(len(bag) == 1 for bag in drawn[feature])


def test_a_feature_is_missing(small, layout):
    drawn = small.draw(1, 5)
    del drawn["tag"]
    with pytest.raises(DataError, match="feature 'tag' is not in the batch, which has history, flag"):
        read_samples(small.jagged(drawn), layout, is_weighted=False)


def test_ids_of_a_feature_must_fit_its_smallest_table(small, layout):
    drawn = small.draw(1, 5)
    drawn["item"][2] = [1, 23]
    with pytest.raises(DataError, match="feature 'item', sample 2: id 23, but the table has rows 0 to 22"):
        read_samples(small.jagged(drawn), layout, is_weighted=False)


def test_weights(small, layout):
    with pytest.raises(DataError, match="has no weights"):
        read_samples(small.jagged(small.draw(1, 5)), layout, is_weighted=True)
    batch = small.jagged(small.draw(1, 5), weighted=True)
    halves = KeyedJaggedTensor(
        batch.keys(), batch.values(), lengths=batch.lengths(), weights=batch.weights().half()
    )
    with pytest.raises(DataError, match="float32"):
        read_samples(halves, layout, is_weighted=True)
