import numpy as np
import pytest

from windrow.comm.errors import StoreError
from windrow.recsys.batches.row_groups import ColumnChoice, RowGroups

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


def test_covers_any_range(store):
    groups = open_groups(store)
    for start in range(10):
        for stop in range(start + 1, 11):
            found = groups.covering(start, stop)
            ids = [number for group, low, high in found for number in group.single[0][low:high].tolist()]
            assert ids == list(range(start, stop))
            assert all(low < high for _, low, high in found)


def test_lists_and_weights(store):
    [(group, low, high)] = open_groups(store).covering(4, 7)
    lists = group.lists[0]
    assert (low, high) == (0, 3)
    assert lists.offsets.tolist() == [0, 1, 3, 3]
    assert lists.values.tolist() == [4, 5, 5]
    assert lists.weights.tolist() == [0.5, 0.5, 0.5]
    assert group.dense.shape == (3, 0)


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
    columns = {
        "label": pa.array(np.zeros(5000, np.float32)),
        "item": pa.array(np.arange(5000) * 7919 % 5003),
    }
    store = write_log(tmp_path / "log", columns)
    file = store.split("train").files[0]
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 200] = bytes(200)
    file.write_bytes(content)
    with pytest.raises(StoreError, match="row group 0"):
        open_groups(store).covering(0, 10)
