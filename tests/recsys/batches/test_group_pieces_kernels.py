import numpy as np

from windrow.recsys.batches.id_lists import IdLists, SharedGroups, distinct_rows
from windrow.recsys.batches.windows_kernels import (
    FIELDS,
    GROUP_FIELDS,
    SOURCE_BITS,
    copy_lists,
    find_lists,
    number_rows,
)

BOUNDS = np.array([0, 1])


def source(lists):
    """A row group of one feature, whose samples are these lists."""
    ids = np.array([number for numbers in lists for number in numbers], np.int64)
    rows, inverse = distinct_rows([IdLists(np.cumsum([0, *map(len, lists)]), ids, None)])
    return SharedGroups((rows,), inverse[None].astype(np.int32))


def test_an_example():
    """Pieces of two windows: one over both row groups, one over the second."""
    first, second = source([[1], [2, 3], [1]]), source([[2, 3], [4]])
    table = np.stack([first.table, second.table])
    group_table = np.stack([first.group_table, second.group_table])
    assert table.shape == (2, 1, FIELDS)
    assert group_table.shape == (2, 1, GROUP_FIELDS)
    codes = np.array([[1, 0, 0 + (1 << SOURCE_BITS), 1, 0, 1]])
    numbers, slots = np.full(4, -1, np.int32), np.empty(16, np.int32)
    sources, rows, inverse = (np.empty((1, 6), np.int64) for _ in range(3))
    counts = np.empty(1, np.int64)
    piece_sources = np.array([[0, 1], [1, 0]])
    number_rows(
        codes,
        np.array([3, 6]),
        piece_sources,
        table,
        group_table,
        BOUNDS,
        numbers,
        slots,
        sources,
        rows,
        inverse,
        counts,
    )
    # [2, 3], [1], [2, 3] of the second row group; then [4], [2, 3], [4] of the second alone.
    assert inverse.tolist() == [[0, 1, 0, 2, 0, 2]]
    assert counts.tolist() == [3]
    assert sources[0, :3].tolist() == [0, 0, 1]
    assert rows[0, :3].tolist() == [1, 0, 1]
    assert numbers.tolist() == [-1] * 4

    offsets, ids_at = np.empty(4, np.int64), np.empty(3, np.int64)
    find_lists(table, BOUNDS, sources, rows, counts, offsets, ids_at, np.zeros(0, np.int64))
    assert offsets.tolist() == [0, 2, 3, 4]
    ids = np.empty(4, np.int64)
    copy_lists(ids_at, offsets, ids)
    assert ids.tolist() == [2, 3, 1, 4]


def test_lists_at_no_address_are_left_out():
    values = np.array([1, 2, 3], np.float32)
    out = np.zeros(5, np.float32)
    copy_lists(np.array([values.ctypes.data + 4, 0, values.ctypes.data]), np.array([0, 2, 4, 5]), out)
    assert out.tolist() == [2, 3, 0, 0, 1]
