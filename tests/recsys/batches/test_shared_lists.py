import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.row_groups import SharedGroups, distinct_rows
from windrow.recsys.batches.transforms import TransformOptions, transformed_lists

few = st.lists(st.integers(0, 2), max_size=3)


def id_lists(lists, weights=None):
    ids = np.array([number for ids in lists for number in ids], np.int64)
    return Jagged(ids, np.cumsum([0, *map(len, lists)]), weights)


def rows_of(found, num_features):
    """Distinct rows as tuples of lists."""
    assert len(found.features) == num_features
    of_features = [
        [
            tuple(lists.values[low:][:size].tolist())
            for low, size in zip(lists.starts, lists.lengths, strict=True)
        ]
        for lists in found.features
    ]
    return list(zip(*of_features, strict=True))


@given(st.lists(st.tuples(few, few), max_size=12))
def test_rows_are_the_distinct_samples_in_order_of_their_first(samples):
    features = [id_lists([sample[index] for sample in samples]) for index in range(2)]
    found, inverse = distinct_rows(features)
    wanted = list(dict.fromkeys((tuple(one), tuple(other)) for one, other in samples))
    assert rows_of(found, 2) == wanted
    assert [wanted[row] for row in inverse] == [(tuple(one), tuple(other)) for one, other in samples]
    other, _ = distinct_rows([lists.select(np.arange(len(samples))[::-1].copy()) for lists in features])
    hashes = dict(zip(rows_of(other, 2), other.hashes.tolist(), strict=True))
    assert [hashes[row] for row in wanted] == found.hashes.tolist()


@given(st.lists(st.tuples(few, few), max_size=12))
def test_rows_are_the_same_whenever_they_are_transformed(samples):
    features = [id_lists([sample[index] for sample in samples]) for index in range(2)]
    steps = TransformOptions(keep_last=1, clip=(1, 2))

    def transform(lists):
        return [transformed_lists(lists[0], steps, "items"), lists[1]]

    (once, of_once), (each, of_each) = (
        distinct_rows(features, transform, transform_once=value) for value in (True, False)
    )
    assert of_once.tolist() == of_each.tolist()
    assert rows_of(once, 2) == rows_of(each, 2)
    assert once.hashes.tolist() == each.hashes.tolist()
    direct, _ = distinct_rows(transform(features))
    assert rows_of(once, 2) == rows_of(direct, 2)


def test_weights_tell_samples_apart():
    weighted = id_lists([[1], [1], [1]], np.array([0.5, 0.25, 0.5], np.float32))
    found, inverse = distinct_rows([weighted, id_lists([[7], [7], [7]])])
    assert inverse.tolist() == [0, 1, 0]
    assert found.features[0].weights.tolist() == [0.5, 0.25]
    assert found.features[1].weights is None
    assert found.hashes[0] != found.hashes[1]


def test_lists_are_copied_where_most_repeat_and_else_stay_where_they_are():
    seldom, often = id_lists([[1], [2], [1], [3], [4]]), id_lists([[1], [1], [2]])
    (rows, _), (copied, _) = distinct_rows([seldom]), distinct_rows([often])
    assert rows.features[0].values is seldom.values
    assert copied.features[0].values.tolist() == [1, 2]


def test_no_samples():
    found, inverse = distinct_rows([id_lists([]), id_lists([])])
    assert len(inverse) == len(found.hashes) == 0
    assert rows_of(found, 2) == []


def test_the_table_says_where_arrays_are():
    found, inverse = distinct_rows([id_lists([[1, 2], [1, 2], [3]])])
    (lists,) = found.features
    groups = SharedGroups((found,), inverse[None].astype(np.int32))
    assert groups.table.tolist() == [
        [lists.starts.ctypes.data, lists.lengths.ctypes.data, lists.values.ctypes.data, 0]
    ]
    assert groups.group_table.tolist() == [[found.hashes.ctypes.data, 2]]
    # Two starts, two lengths, three ids, two hashes, and three numbers of 4 bytes.
    assert groups.num_bytes == 2 * 8 + 2 * 8 + 3 * 8 + 2 * 8 + 3 * 4
