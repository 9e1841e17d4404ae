import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError
from windrow.comm.random import hash_ids
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.transforms import TransformOptions, Transforms
from windrow.recsys.log.store import FeatureEntry
from windrow.recsys.log.vocabulary import table_key


def entry(name, *, table="", multi_hot=True, rows=100):
    return FeatureEntry(
        name=name, table=table or name, rows=rows, multi_hot=multi_hot, weighted=False, ids="rows", counts={}
    )


FEATURES = (entry("history", table="items"), entry("item", table="items", multi_hot=False), entry("user"))
DENSE = ("age", "price")


def test_features_that_come_out():
    same = TransformOptions(hash_rows=10)
    bucket = TransformOptions(dense="price", bucketise=(1.0, 5.0))
    found = Transforms({"history": same, "item": same, "price_band": bucket}, FEATURES, DENSE)
    assert [(feature.name, feature.table, feature.rows) for feature in found.features] == [
        ("history", "items", 10),
        ("item", "items", 10),
        ("user", "user", 100),
        ("price_band", "price_band", 3),
    ]
    assert [feature.multi_hot for feature in found.features] == [True, False, True, False]
    assert found.is_new("price_band")
    assert not found.is_new("item")
    assert [found.changes(name) for name in ("history", "user", "price_band")] == [True, False, False]


def test_applies_what_belongs_to_a_feature():
    found = Transforms(
        {"history": TransformOptions(keep_last=1), "band": TransformOptions(dense="price", bucketise=(2.0,))},
        FEATURES,
        DENSE,
    )
    lists = Jagged(np.array([4, 5]), np.array([0, 2]))
    assert found.lists("history", lists).values.tolist() == [5]
    assert found.lists("user", lists) is lists
    ids = np.array([1, 2])
    assert found.ids("item", ids) is ids
    assert found.new_ids("band", np.array([[9, 1], [0, 2]], np.float32)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"histroy": TransformOptions(sort=True)}, "transforms.histroy: the log has no such feature"),
        ({"item": TransformOptions(keep_last=2)}, "transforms.item: keep_last is for lists"),
        ({"band": TransformOptions(dense="weight", bucketise=(1.0,))}, "'weight' is no dense column .* age, price"),
        ({"user": TransformOptions(dense="age", bucketise=(1.0,))}, "transforms.user makes a new feature"),
        ({"items": TransformOptions(dense="age", bucketise=(1.0,))}, "transforms.items makes a new feature"),
        ({"item": TransformOptions(hash_rows=10)}, "'history' and 'item' share table 'items'"),
        ({"item": TransformOptions(hash_rows=100)}, "'history' and 'item' share table 'items'"),
    ],
)
def test_refuses_what_does_not_fit_the_log(options, message):
    with pytest.raises(RecipeError, match=message):
        Transforms(options, FEATURES, DENSE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": (5, 4)}, "clip = [5, 4]"),
        ({"keep_first": 1, "keep_last": 1}, "contradict"),
        ({"dense": "age"}, "dense and bucketise go together"),
        ({"bucketise": (1.0,)}, "dense and bucketise go together"),
        ({"dense": "age", "bucketise": (1.0, 1.0)}, "must rise"),
        ({"dense": "age", "bucketise": (1.0,), "sort": True, "drop": (1,)}, "remove drop, sort"),
    ],
)
def test_refuses_contradictions(options, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        TransformOptions(**options)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, 100),
        ({"keep_last": 3, "sort": True, "drop": (4,)}, 100),
        ({"hash_rows": 10}, 10),
        ({"hash_rows": 1000}, 1000),
        ({"clip": (2, 50)}, 51),
        ({"clip": (2, 500)}, 100),
        ({"clip": (200, 500)}, 201),
        ({"clip": (2, 50), "hash_rows": 7}, 7),
        ({"dense": "age", "bucketise": (1.0, 2.0)}, 3),
    ],
)
def test_rows_of_the_table(options, rows):
    assert TransformOptions(**options).table_rows(100) == rows


def test_which_steps_suit_one_id_per_sample():
    assert TransformOptions(clip=(0, 5), hash_rows=9, sort=True, reverse=True).keeps_length()
    for options in ({"drop": (1,)}, {"distinct": True}, {"keep_first": 1}, {"keep_last": 1}):
        assert not TransformOptions(**options).keeps_length()


def test_names_of_steps():
    assert TransformOptions().steps() == set()
    assert TransformOptions(clip=(0, 0), distinct=True).steps() == {"clip", "distinct"}


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
    lambda keep, **steps: TransformOptions(**keep, **steps),
    keep=st.dictionaries(st.sampled_from(["keep_first", "keep_last"]), st.integers(1, 4), max_size=1),
    drop=st.lists(st.integers(0, 12), max_size=3).map(tuple),
    clip=st.none() | st.tuples(st.integers(0, 5), st.integers(5, 12)),
    hash_rows=st.none() | st.integers(2, 6),
    distinct=st.booleans(),
    sort=st.booleans(),
    reverse=st.booleans(),
)
# Long ones are sorted in another way.
one_list = st.lists(st.integers(0, 12), max_size=6) | st.lists(st.integers(0, 12), min_size=33, max_size=40)


@given(st.lists(one_list, max_size=6), options_of_lists, st.booleans(), st.integers(0, 3))
def test_is_what_one_step_after_the_other_gives(lists, options, weighted, before):
    ids = np.array([3] * before + [number for numbers in lists for number in numbers], np.int64)
    offsets = (before + np.cumsum([0, *map(len, lists)])).astype(np.int32)
    weights = np.arange(len(ids), dtype=np.float32) if weighted else None
    kept = ids.copy()
    found = Transforms({"a": options}, [entry("a", table="items")], ()).lists("a", Jagged(ids, offsets, weights))
    assert (ids == kept).all()
    assert found.offsets[0] == (0 if options.steps() else before)
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


def of_single(table, options):
    return Transforms({"a": options}, [entry("a", table=table, multi_hot=False)], ())


@given(st.lists(st.integers(0, 100), max_size=20), st.none() | st.integers(2, 50))
def test_one_id_is_a_list_of_one(ids, hash_rows):
    options = TransformOptions(clip=(3, 70), hash_rows=hash_rows)
    found = of_single("items", options).ids("a", np.array(ids, np.int64))
    assert found.tolist() == [changed(number, options, "items") for number in ids]
    assert all(number < options.table_rows(101) for number in found.tolist())


def test_hashing_keeps_missing_values_and_depends_on_the_table():
    ids = np.arange(1000)
    options = TransformOptions(hash_rows=100)
    one, other = (of_single(table, options).ids("a", ids) for table in ("items", "shops"))
    assert one[0] == other[0] == 0
    assert one[1:].min() >= 1
    assert one.max() < 100
    assert (one != other).sum() > 900


@given(st.lists(st.floats(width=32) | st.sampled_from([0.5, 1.5]), max_size=10))
def test_buckets_count_boundaries(values):
    boundaries = (-1.0, 0.5, 1.5, 1e30)
    transforms = Transforms({"a": TransformOptions(dense="x", bucketise=boundaries)}, (), ("x",))
    found = transforms.new_ids("a", np.array(values, np.float32)[:, None])
    assert found.tolist() == [
        4 if math.isnan(value) else sum(boundary <= value for boundary in boundaries) for value in values
    ]


def test_many_ids_in_one_slot():
    """Multiples of a power of two; nothing is lost when slots run over the end of the table."""
    numbers = [(index % 500) << 40 for index in range(1000)]
    lists = Jagged(np.array(numbers + numbers[::-1]), np.array([0, 1000, 2000]))
    found = Transforms({"a": TransformOptions(distinct=True)}, [entry("a")], ()).lists("a", lists)
    assert found.values.tolist() == numbers[:500] + numbers[:499:-1]
