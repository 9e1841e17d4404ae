import pytest

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.row_groups import ColumnChoice, decoded
from windrow.recsys.batches.transforms import TransformOptions, Transforms
from windrow.recsys.log.store import FeatureEntry

pa = pytest.importorskip("pyarrow")


def entry(name, *, multi_hot=False, weighted=False):
    return FeatureEntry(
        name=name, table=name, rows=100, multi_hot=multi_hot, weighted=weighted, ids="rows", counts={}
    )


FEATURES = (
    entry("item"),
    entry("cart", multi_hot=True),
    entry("basket", multi_hot=True, weighted=True),
    entry("user"),
)


def table():
    lists, weights = pa.list_(pa.int64()), pa.list_(pa.float32())
    return pa.table(
        {
            "label": pa.array([0, 1, 0], pa.float32()),
            "dense": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
            "item": pa.array([10, 11, 12]),
            "cart": pa.array([[1, 2], [1, 2], []], lists),
            "basket": pa.array([[5], [5], [6]], lists),
            "basket.weights": pa.array([[0.5], [0.5], [0.5]], weights),
            "user": pa.array([3, 3, 4]),
            "session": pa.array([8, 8, 9]),
        }
    )


def choice(**options):
    return ColumnChoice(features=FEATURES, num_dense=2, **options)


def test_columns_that_are_read():
    assert choice().columns() == ["label", "dense", "item", "cart", "basket", "basket.weights", "user"]
    assert ColumnChoice(features=FEATURES[:1], num_dense=0, sessions=True).columns() == [
        "label",
        "session",
        "item",
    ]


def test_without_groups_arrays_are_those_of_arrow():
    source = table()
    group = decoded(source, choice(sessions=True))
    assert [ids.tolist() for ids in group.single] == [[10, 11, 12], [3, 3, 4]]
    assert [lists.values.tolist() for lists in group.lists] == [[1, 2, 1, 2], [5, 5, 6]]
    assert group.sessions.tolist() == [8, 8, 9]
    assert group.groups.inverse.shape == (0, 3)
    address = source.column("cart").chunk(0).values.buffers()[1].address
    assert group.lists[0].values.ctypes.data == address


def test_groups_leave_the_other_features():
    group = decoded(table(), choice(groups=(("user", "cart"), ("basket",))))
    assert [ids.tolist() for ids in group.single] == [[10, 11, 12]]
    assert group.lists == ()
    users, baskets = group.groups.rows
    assert group.groups.inverse.tolist() == [[0, 0, 1], [0, 0, 1]]
    assert [lists.values.tolist() for lists in users.features] == [[3, 4], [1, 2]]
    assert [lists.lengths.tolist() for lists in users.features] == [[1, 1], [2, 0]]
    assert baskets.features[0].weights.tolist() == [0.5, 0.5]
    whole = decoded(table(), choice())
    assert group.num_bytes > 0
    # Labels, dense values, items; all else is held otherwise.
    assert whole.num_bytes == 12 + 24 + 2 * 24 + (16 + 32) + (16 + 24 + 12)


def test_transforms_reach_features_in_groups_and_out_of_them():
    steps = {
        "item": TransformOptions(clip=(0, 11)),
        "user": TransformOptions(clip=(0, 3)),
        "cart": TransformOptions(keep_last=1),
        "basket": TransformOptions(clip=(6, 9)),
        "band": TransformOptions(dense="price", bucketise=(3.0,)),
        "second": TransformOptions(dense="age", bucketise=(5.5,)),
    }
    transforms = Transforms(steps, FEATURES, ("age", "price"))
    options = choice(groups=(("user", "band"), ("basket",)), transforms=transforms)
    assert [feature.name for feature in options.plain] == ["item", "cart", "second"]
    group = decoded(table(), options)
    assert [ids.tolist() for ids in group.single] == [[10, 11, 11], [0, 0, 0]]
    assert group.lists[0].values.tolist() == [2, 2]
    assert group.groups.inverse.tolist() == [[0, 1, 1], [0, 0, 0]]
    assert [lists.values.tolist() for lists in group.groups.rows[0].features] == [[3, 3], [0, 1]]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (((),), "empty group"),
        ((("cart", "hat"),), "'hat', which is no feature"),
        ((("cart",), ("item", "cart")), "'cart' twice"),
    ],
)
def test_refuses_groups_that_cannot_be(groups, message):
    with pytest.raises(RecipeError, match=message):
        choice(groups=groups).check_groups()


def test_which_groups_have_weights():
    options = choice()
    assert options.is_weighted(("cart", "basket"))
    assert not options.is_weighted(("cart", "user"))


def test_refuses_weights_of_other_lengths():
    source = table()
    other = pa.array([[0.5], [0.5, 1], []], pa.list_(pa.float32()))
    altered = source.set_column(source.schema.get_field_index("basket.weights"), "basket.weights", other)
    with pytest.raises(
        ValueError, match="column basket: ids and their weights have lists of different lengths"
    ):
        decoded(altered, choice())
