import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.random import hash_ids
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.transforms import TransformOptions, bucket_ids, transformed_ids, transformed_lists
from windrow.recsys.log.vocabulary import table_key


def expected(pairs, options, table):
    """What the steps make of one list of (id, weight): one after the other, in plain Python."""
    pairs = [pair for pair in pairs if pair[0] not in options.drop]
    pairs = [(changed(number, options, table), weight) for number, weight in pairs]
    if options.distinct:
        first = {}
        for number, weight in pairs:
            first.setdefault(number, weight)
        pairs = list(first.items())
    if options.keep_first is not None:
        pairs = pairs[: options.keep_first]
    if options.keep_last is not None:
        pairs = pairs[-options.keep_last :]
    if options.sort:
        pairs = sorted(pairs, key=lambda pair: pair[0])
    return pairs[::-1] if options.reverse else pairs


def changed(number, options, table):
    if options.clip is not None:
        number = min(max(number, options.clip[0]), options.clip[1])
    if options.hash_rows is not None and number != 0:
        hashed = int(hash_ids(table_key(table), np.array([number]))[0])
        number = 1 + hashed % (options.hash_rows - 1)
    return number


options_of_lists = st.builds(
    TransformOptions,
    drop=st.lists(st.integers(0, 12), max_size=3).map(tuple),
    clip=st.none() | st.tuples(st.integers(0, 5), st.integers(5, 12)),
    hash_rows=st.none() | st.integers(2, 6),
    distinct=st.booleans(),
    sort=st.booleans(),
    reverse=st.booleans(),
    keep_first=st.none() | st.integers(1, 4),
) | st.builds(
    TransformOptions,
    drop=st.lists(st.integers(0, 12), max_size=2).map(tuple),
    distinct=st.booleans(),
    sort=st.booleans(),
    reverse=st.booleans(),
    keep_last=st.integers(1, 4),
)
# Long ones are sorted in another way.
one_list = st.lists(st.integers(0, 12), max_size=6) | st.lists(st.integers(0, 12), min_size=33, max_size=40)


@given(st.lists(one_list, max_size=6), options_of_lists, st.booleans(), st.integers(0, 3))
def test_is_what_one_step_after_the_other_gives(lists, options, weighted, before):
    ids = np.array([3] * before + [number for numbers in lists for number in numbers], np.int64)
    offsets = (before + np.cumsum([0, *map(len, lists)])).astype(np.int32)
    weights = np.arange(len(ids), dtype=np.float32) if weighted else None
    kept = ids.copy()
    found = transformed_lists(Jagged(ids, offsets, weights), options, "items")
    assert (ids == kept).all()
    assert found.offsets[0] == 0
    assert found.offsets[-1] == len(found.values)
    numbered = list(enumerate(ids.tolist()))
    of_samples = [
        expected([(number, place) for place, number in numbered[low:high]], options, "items")
        for low, high in itertools.pairwise(offsets)
    ]
    bounds = list(zip(found.offsets, found.offsets[1:], strict=False))
    assert [found.values[low:high].tolist() for low, high in bounds] == [
        [number for number, _ in pairs] for pairs in of_samples
    ]
    if weighted:
        assert [found.weights[low:high].tolist() for low, high in bounds] == [
            [weight for _, weight in pairs] for pairs in of_samples
        ]
    else:
        assert found.weights is None


@given(st.lists(st.integers(0, 100), max_size=20), st.none() | st.integers(2, 50))
def test_one_id_is_a_list_of_one(ids, hash_rows):
    options = TransformOptions(clip=(3, 70), hash_rows=hash_rows)
    found = transformed_ids(np.array(ids, np.int64), options, "items")
    assert found.tolist() == [changed(number, options, "items") for number in ids]
    assert all(number < options.table_rows(101) for number in found.tolist())


def test_hashing_keeps_missing_values_and_depends_on_the_table():
    ids = np.arange(1000)
    options = TransformOptions(hash_rows=100)
    one, other = (transformed_ids(ids, options, table) for table in ("items", "shops"))
    assert one[0] == other[0] == 0
    assert one[1:].min() >= 1
    assert one.max() < 100
    assert (one != other).sum() > 900


@given(st.lists(st.floats(width=32) | st.sampled_from([0.5, 1.5]), max_size=10))
def test_buckets_count_boundaries(values):
    boundaries = (-1.0, 0.5, 1.5, 1e30)
    found = bucket_ids(np.array(values, np.float32), boundaries)
    assert found.tolist() == [
        4 if math.isnan(value) else sum(boundary <= value for boundary in boundaries) for value in values
    ]
