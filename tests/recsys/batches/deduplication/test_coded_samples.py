"""windrow.recsys.batches.deduplication.survey_sample: counts against Python's sets."""

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.deduplication.survey_sample import CodedSamples, code_batch, code_lists
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

NAMES = ("cart", "sellers", "tags")

samples_of_lists = st.lists(st.tuples(*(st.lists(st.integers(0, 2), max_size=3) for _ in NAMES)), max_size=20)


def coded(samples: list[tuple[list[int], ...]]) -> CodedSamples:
    codes, lengths = {}, {}
    for place, name in enumerate(NAMES):
        lists = [sample[place] for sample in samples]
        ids = np.array([one for ids in lists for one in ids], np.int64)
        codes[name], lengths[name] = code_lists(Jagged(ids, np.cumsum([0, *map(len, lists)])))
    return CodedSamples(codes, lengths)


def slow_distinct(
    samples: list[tuple[list[int], ...]], group: list[str]
) -> dict[tuple[tuple[int, ...], ...], int]:
    kept = [tuple(tuple(sample[NAMES.index(name)]) for name in group) for sample in samples]
    return {key: kept.index(key) for key in kept}


@given(samples_of_lists, st.permutations(NAMES), st.integers(1, 3))
def test_distinct_rows_and_their_ids(samples, names, size):
    group = names[:size]
    expected = slow_distinct(samples, group)
    found = coded(samples).distinct(group)
    assert found.rows == len(expected)
    assert found.ids == {name: sum(len(key[place]) for key in expected) for place, name in enumerate(group)}


@given(samples_of_lists, st.permutations(NAMES), st.integers(1, 3))
def test_what_is_unchanged(samples, names, size):
    places = [NAMES.index(name) for name in names[:size]]
    expected = [all(before[place] == after[place] for place in places) for before, after in pairwise(samples)]
    assert coded(samples).unchanged(names[:size]).tolist() == expected


@given(samples_of_lists, st.data())
def test_other_samples(samples, data):
    places = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=9) if samples else st.just([]))
    taken = coded(samples).take(np.array(places, np.int64))
    assert taken.num_samples == len(places)
    assert taken.num_ids("cart") == sum(len(samples[place][0]) for place in places)
    assert taken.distinct(NAMES).rows == len(slow_distinct([samples[place] for place in places], list(NAMES)))


def test_many_features_of_many_values_do_not_overflow():
    draw = np.random.default_rng(0)
    codes = {name: draw.permutation(100_000).astype(np.int32) for name in "abcdefgh"}
    found = CodedSamples(codes, {name: np.ones(100_000, np.int32) for name in codes})
    assert found.distinct("abcdefgh").rows == 100_000
    assert found.joined("abcdefgh").max() == 99_999


def test_a_batch_with_weights():
    batch = Batch(
        torch.zeros(4, 0),
        KeyedJaggedTensor(
            keys=["item", "cart"],
            values=torch.tensor([7, 2, 7, 7, 4, 1, 4, 1]),
            weights=torch.tensor([1.0, 1.0, 1.0, 1.0, 0.5, 1.0, 0.25, 1.0]),
            lengths=torch.tensor([1, 1, 1, 1, 2, 0, 2, 0]),
        ),
        torch.zeros(4),
        torch.arange(4),
    )
    found = code_batch(batch)
    assert found.codes["item"].tolist() == [0, 1, 0, 0]
    assert found.codes["cart"].tolist() == [0, 1, 2, 1]
    assert found.lengths["cart"].tolist() == [2, 0, 2, 0]
    assert CodedSamples({}, {}).num_samples == 0
