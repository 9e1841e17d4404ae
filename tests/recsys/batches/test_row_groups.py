import numpy as np
import pytest

from windrow.comm.errors import RecipeError, StoreError
from windrow.recsys.batches.row_groups import ColumnChoice, RowGroups, decoded
from windrow.recsys.batches.transforms import TransformOptions, Transforms
from windrow.recsys.log.store import FeatureEntry

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def store(tmp_path, write_log):
    columns = {
        "label": pa.array(np.zeros(10, np.float32)),
        "item": pa.array(np.arange(10)),
        "basket": pa.array([[row] * (row % 3) for row in range(10)], pa.list_(pa.int64())),
        "basket.weights": pa.array([[0.5] * (row % 3) for row in range(10)], pa.list_(pa.float32())),
    }
    return write_log(tmp_path / "log", columns, row_group_rows=3, file_rows=[4, 0, 6])


def open_groups(store, memory_bytes=1 << 20):
    return RowGroups(
        store.split("train"), ColumnChoice(features=store.features, num_dense=0), memory_bytes=memory_bytes
    )


def test_keeps_what_was_used_last_within_its_memory(store):
    size = open_groups(store).covering(0, 1)[0][0].num_bytes
    groups = open_groups(store, memory_bytes=2 * size + size // 2)
    first, second = groups.covering(0, 4)
    assert groups.covering(0, 1)[0][0] is first[0]
    groups.covering(4, 7)
    assert groups.covering(0, 1)[0][0] is first[0]
    groups.covering(7, 10)
    assert groups.covering(3, 4)[0][0] is not second[0]


def test_without_memory_keeps_nothing(store):
    groups = open_groups(store, memory_bytes=0)
    assert groups.covering(0, 1)[0][0] is not groups.covering(0, 1)[0][0]


def test_refuses_weights_of_other_lengths(tmp_path, write_log):
    columns = {
        "label": pa.array(np.zeros(2, np.float32)),
        "basket": pa.array([[1], [2, 3]], pa.list_(pa.int64())),
        "basket.weights": pa.array([[1.0], [2.0]], pa.list_(pa.float32())),
    }
    store = write_log(tmp_path / "log", columns)
    with pytest.raises(StoreError, match=r"part-00000.parquet, row group 0: column basket: .*lengths"):
        open_groups(store).covering(0, 2)


def test_refuses_another_number_of_rows(store, tmp_path):
    manifest = tmp_path / "log" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"rows": 6', '"rows": 7'))
    with pytest.raises(StoreError, match="has 6 rows, expected 7"):
        open_groups(type(store).open(store.path))


def test_a_page_that_was_altered_is_refused(tmp_path, write_log):
    columns = {"label": pa.array(np.zeros(5000, np.float32)), "item": pa.array(np.arange(5000) * 7919 % 5003)}
    store = write_log(tmp_path / "log", columns)
    file = store.split("train").files[0]
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 200] = bytes(200)
    file.write_bytes(content)
    with pytest.raises(StoreError, match="row group 0"):
        open_groups(store).covering(0, 10)


def entry(name, *, multi_hot=False, weighted=False):
    return FeatureEntry(name=name, table=name, rows=100, multi_hot=multi_hot, weighted=weighted, ids="rows", counts={})


FEATURES = (entry("item"), entry("cart", multi_hot=True), entry("basket", multi_hot=True, weighted=True), entry("user"))


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
    assert ColumnChoice(features=FEATURES[:1], num_dense=0, sessions=True).columns() == ["label", "session", "item"]


def test_without_groups_arrays_are_those_of_arrow():
    source = table()
    group = decoded(source, choice(sessions=True))
    assert [ids.tolist() for ids in group.single.values()] == [[10, 11, 12], [3, 3, 4]]
    assert [lists.values.tolist() for lists in group.lists.values()] == [[1, 2, 1, 2], [5, 5, 6]]
    assert group.columns["session"].tolist() == [8, 8, 9]
    assert group.groups.inverse.shape == (0, 3)
    address = source.column("cart").chunk(0).values.buffers()[1].address
    assert group.lists["cart"].values.ctypes.data == address


def test_groups_leave_the_other_features():
    group = decoded(table(), choice(groups=(("user", "cart"), ("basket",))))
    assert [ids.tolist() for ids in group.single.values()] == [[10, 11, 12]]
    assert group.lists == {}
    users, baskets = group.groups.rows
    assert group.groups.inverse.tolist() == [[0, 0, 1], [0, 0, 1]]
    assert [lists.values.tolist() for lists in users.features] == [[3, 4], [1, 2]]
    assert [lists.lengths.tolist() for lists in users.features] == [[1, 1], [2, 0]]
    assert baskets.features[0].weights.tolist() == [0.5, 0.5]
    whole = decoded(table(), choice())
    # Starts and lengths of two lists of two rows and of one, their ids and weights, hashes, and numbers of 4 bytes.
    of_rows = [lists.num_bytes for rows in (users, baskets) for lists in rows.features]
    assert of_rows == [32 + 2 * 8, 32 + 2 * 8, 32 + 2 * 8 + 2 * 4]
    assert group.groups.num_bytes == sum(of_rows) + 4 * 8 + 6 * 4
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
    assert [ids.tolist() for ids in group.single.values()] == [[10, 11, 11], [0, 0, 0]]
    assert group.lists["cart"].values.tolist() == [2, 2]
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


def test_lists_are_copied_where_most_repeat_and_else_stay_where_they_are():
    source = pa.table({"label": pa.array([0.0] * 5, pa.float32())})
    for lists, copied in (([[1], [2], [1], [3], [4]], False), ([[1], [1], [1], [2], [2]], True)):
        group = decoded(
            source.append_column("cart", pa.array(lists)),
            ColumnChoice(features=FEATURES[1:2], num_dense=0, groups=(("cart",),)),
        )
        values = group.groups.rows[0].features[0].values
        assert values.tolist() == ([1, 2] if copied else [1, 2, 1, 3, 4])
