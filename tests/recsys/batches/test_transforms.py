import numpy as np
import pytest

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.transforms import TransformOptions, Transforms
from windrow.recsys.log.store import FeatureEntry


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
        (
            {"band": TransformOptions(dense="weight", bucketise=(1.0,))},
            "'weight' is no dense column .* age, price",
        ),
        ({"user": TransformOptions(dense="age", bucketise=(1.0,))}, "transforms.user makes a new feature"),
        ({"items": TransformOptions(dense="age", bucketise=(1.0,))}, "transforms.items makes a new feature"),
        ({"item": TransformOptions(hash_rows=10)}, "'history' and 'item' share table 'items'"),
        ({"item": TransformOptions(hash_rows=100)}, "'history' and 'item' share table 'items'"),
    ],
)
def test_refuses_what_does_not_fit_the_log(options, message):
    with pytest.raises(RecipeError, match=message):
        Transforms(options, FEATURES, DENSE)
