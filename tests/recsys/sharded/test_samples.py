"""What is read of a batch, and what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.partition.tables.plan import Plan, Shard
from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor
from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.packing import Samples, distinct_ids, read_samples
from windrow.recsys.tables.options import EmbeddingBagConfig
from windrow.recsys.torchrec_adapter import KeyedJaggedTensor


@pytest.fixture
def layout(small):
    return make_layout(small.tables, small.make_plan("table", 2), 2)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_features_are_found_wherever_they_are(small, layout, dtype):
    drawn = small.draw(1, 5)
    batch = small.jagged({"more": [[10**6]] * 5, **drawn})
    batch = KeyedJaggedTensor(batch.keys(), batch.values().to(dtype), lengths=batch.lengths().to(dtype))
    (samples,) = read_samples(batch, (), layout, is_weighted=False)
    assert samples.num_rows == 5
    assert len(samples.weights) == 0
    assert samples.inverse is None
    for number, feature in enumerate(layout.features):
        key = samples.keys[number]
        ids = samples.ids[samples.starts[key] : samples.starts[key + 1]].tolist()
        assert ids == [i for bag in drawn[feature] for i in bag]
        assert samples.lengths[key].tolist() == [len(bag) for bag in drawn[feature]]
        assert samples.one_each[key] == all(len(bag) == 1 for bag in drawn[feature])


@given(data=st.data())
def test_distinct_ids_and_their_places(data):
    features, rows = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 4))
    # The last feature is not looked up.
    looked_up = max(features - 1, 1)
    dtype = data.draw(st.sampled_from([np.int32, np.int64]))
    lengths = np.array(data.draw(st.lists(st.integers(0, 5), min_size=features * rows, max_size=features * rows)), int)
    lengths = lengths.reshape(features, rows)
    ids = np.array([data.draw(st.integers(0, 6)) for _ in range(lengths.sum())], dtype) * 2**29
    starts = np.concatenate([[0], lengths.sum(1).cumsum()])
    keys = {number + 5: number for number in range(looked_up)}
    given_samples = Samples(keys, lengths, ids, np.empty(0, np.float32), starts, np.zeros(features, bool), None)
    found = distinct_ids(given_samples)
    assert found.repeats is not None
    assert found.repeats.lengths is lengths
    assert found.lengths.sum(1).tolist() == np.diff(found.starts).tolist()
    for row in range(looked_up):
        own = ids[starts[row] : starts[row + 1]]
        distinct = found.ids[found.starts[row] : found.starts[row + 1]]
        assert distinct.tolist() == list(dict.fromkeys(own.tolist()))
        assert distinct[found.repeats.places[row].numpy()].tolist() == own.tolist()
        assert found.one_each[row] == (len(distinct) == found.num_rows)


def test_a_feature_is_missing(small, layout):
    drawn = small.draw(1, 5)
    del drawn["tag"]
    with pytest.raises(DataError, match="feature 'tag' is not in the batch, which has history, flag"):
        read_samples(small.jagged(drawn), (), layout, is_weighted=False)


def test_ids_of_a_feature_must_fit_its_smallest_table(small, layout):
    drawn = small.draw(1, 5)
    drawn["item"][2] = [1, 23]
    with pytest.raises(DataError, match="feature 'item', sample 2: id 23, but the table has rows 0 to 22"):
        read_samples(small.jagged(drawn), (), layout, is_weighted=False)


def test_weights(small, layout):
    with pytest.raises(DataError, match="has no weights"):
        read_samples(small.jagged(small.draw(1, 5)), (), layout, is_weighted=True)
    batch = small.jagged(small.draw(1, 5), weighted=True)
    halves = KeyedJaggedTensor(batch.keys(), batch.values(), lengths=batch.lengths(), weights=batch.weights().half())
    with pytest.raises(DataError, match="float32"):
        read_samples(halves, (), layout, is_weighted=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: {"offsets": b.offsets() + 1}, "offsets start at 1: must start at 0"),
        (lambda b: {"offsets": b.offsets() - 1}, "offsets start at -1: must start at 0"),
        (
            lambda b: {"lengths": b.lengths(), "offsets": b.offsets() + (b.offsets() > 0)},
            "feature 'item', sample 0: length 1, but its offsets differ by 2",
        ),
        (lambda b: {"values": b.values().float(), "lengths": b.lengths()}, "ids are a 1-dimensional tensor of "),
        (lambda b: {"values": b.values().short(), "lengths": b.lengths()}, "ids are a 1-dimensional tensor of "),
        (lambda b: {"values": b.values()[:, None], "lengths": b.lengths()}, "ids are a 2-dimensional tensor of "),
        (lambda b: {"values": b.values() + 6, "lengths": b.lengths()}, "feature 'tag', sample 0: id 9"),
        (lambda b: {"values": b.values() - 1, "lengths": b.lengths()}, "feature 'item', sample 0: id -1"),
        (lambda b: {"lengths": torch.tensor([1, 1, 3, -1])}, "feature 'tag', sample 1: length -1"),
        (lambda b: {"values": torch.arange(3), "lengths": b.lengths()}, "lengths sum to 4, but there are 3 ids"),
        (lambda b: {"values": torch.arange(5), "lengths": b.lengths()}, "lengths sum to 4, but there are 5 ids"),
        (lambda b: {"keys": ["item", "tag", "item", "tag"], "lengths": b.lengths()}, "'item' comes twice"),
        (lambda b: {"weights": torch.ones(len(b.values()), 1), "lengths": b.lengths()}, r"weights of shape"),
    ],
)
def test_what_kernels_could_not_be_trusted_with(change, message):
    # Offsets that are shifted, so that their differences are valid lengths, would send kernels past the ids.
    tables = [EmbeddingBagConfig(name="t", num_embeddings=9, embedding_dim=4, feature_names=["item", "tag"])]
    batch = KeyedJaggedTensor(["item", "tag"], torch.arange(4), lengths=torch.tensor([1, 1, 2, 0]))
    given = {"keys": batch.keys(), "values": batch.values(), **change(batch)}
    layout = make_layout(tables, Plan((Shard("t", 0, (0, 9), (0, 4)),)), 1)
    with pytest.raises(DataError, match=message):
        read_samples(KeyedJaggedTensor(**given), (), layout, is_weighted="weights" in given)


def test_lengths_and_the_offsets_that_the_container_keeps_of_them(small, layout):
    batch = small.jagged(small.draw(1, 5))
    (first,) = read_samples(batch, (), layout, is_weighted=False)
    assert batch.offsets()[0] == 0
    (again,) = read_samples(batch, (), layout, is_weighted=False)
    assert again.lengths.tolist() == first.lengths.tolist()


def test_groups_hold_their_features_and_the_rest_is_in_group_0(small):
    groups = [["history", "more"], ["tag", "user"]]
    layout = make_layout(small.tables, small.make_plan("table", 2), 2, groups)
    drawn = small.repeating(1, 9)
    batch, given = small.deduplicated(drawn, [["history"], groups[1]])
    found = read_samples(batch, given, layout, is_weighted=False)
    assert [{layout.features[n] for n in samples.keys} for samples in found] == [
        {"item", "flag"},
        {"history"},
        {"tag", "user"},
    ]
    assert found[0].inverse is None
    for samples, group in zip(found[1:], given, strict=True):
        assert samples.num_rows == group.num_unique < 9
        for number, key in samples.keys.items():
            ids = samples.ids[samples.starts[key] : samples.starts[key + 1]].tolist()
            lists = [
                ids[stop - n : stop]
                for n, stop in zip(samples.lengths[key], samples.lengths[key].cumsum(), strict=True)
            ]
            assert [lists[row] for row in samples.inverse] == drawn[layout.features[number]]


@pytest.mark.parametrize(
    ("inverse", "message"),
    [
        ([0, 0, 2], r"inverse holds 2, but there are rows 0 to 1"),
        ([0, -1, 1], r"inverse holds -1, but there are rows 0 to 1"),
        ([0, 1], r"group 1 of the batch, history: 2 samples, but the batch has 3"),
        ([0.0, 1.0, 0.0], r"history: inverse is torch.float32 of shape \[3\]: give int64"),
        ([[0], [1], [0]], r"history: inverse is torch.int64 of shape \[3, 1\]: give int64"),
    ],
)
def test_an_inverse_that_names_no_row(small, inverse, message):
    layout = make_layout(small.tables, small.make_plan("table", 2), 2, [["history"]])
    drawn = small.draw(1, 3)
    rows = small.jagged({"history": [[1], [2, 3]]})
    del drawn["history"]
    group = InverseKeyedJaggedTensor(rows, torch.tensor(inverse))
    with pytest.raises(DataError, match=message):
        read_samples(small.jagged(drawn), (group,), layout, is_weighted=False)


def test_groups_in_another_order(small):
    groups = [["history"], ["tag"]]
    layout = make_layout(small.tables, small.make_plan("table", 2), 2, groups)
    batch, given = small.deduplicated(small.draw(1, 3), groups)
    with pytest.raises(DataError, match="'history' is not in group 1 of the batch, which has tag: give it the"):
        read_samples(batch, given[::-1], layout, is_weighted=False)


def test_as_many_groups_as_the_collection_was_made_for(small, layout):
    batch, given = small.deduplicated(small.draw(1, 3), [["history"]])
    with pytest.raises(DataError, match="has 1 deduplicated groups, but the collection was made for 0"):
        read_samples(batch, given, layout, is_weighted=False)
