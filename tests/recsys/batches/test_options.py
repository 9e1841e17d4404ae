import re

import pytest

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.transforms import TransformOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": (5, 4)}, "clip = [5, 4]"),
        ({"clip": (-1, 4)}, "clip = [-1, 4]"),
        ({"hash_rows": 1}, "hash_rows = 1"),
        ({"keep_first": 0}, "keep_first = 0"),
        ({"keep_last": -3}, "keep_last = -3"),
        ({"keep_first": 1, "keep_last": 1}, "contradict"),
        ({"dense": "age"}, "dense and bucketise go together"),
        ({"bucketise": (1.0,)}, "dense and bucketise go together"),
        ({"dense": "age", "bucketise": (1.0, 1.0)}, "must rise"),
        ({"dense": "age", "bucketise": (1.0, float("nan"))}, "must rise"),
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
