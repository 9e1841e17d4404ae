import itertools

import numpy as np
import pytest

from windrow.recsys.batches.transforms_kernels import NO_LIMIT, transform_ids, transform_lists

EVERYTHING = (np.iinfo(np.int64).min, np.iinfo(np.int64).max, 0, np.uint64(0))


def run(lists, *, keep=(NO_LIMIT, NO_LIMIT), switches=(False, False, False), clip_and_hash=EVERYTHING):
    ids = np.array([number for numbers in lists for number in numbers], np.int64)
    offsets = np.cumsum([0, *map(len, lists)])
    out_offsets, out = np.empty(len(offsets), np.int64), np.empty(len(ids), np.int64)
    none = np.zeros(0, np.float32)
    dropped = np.zeros(0, np.int64)
    transform_lists(offsets, ids, none, dropped, clip_and_hash, keep, switches, out_offsets, out, none)
    return [out[low:high].tolist() for low, high in itertools.pairwise(out_offsets)]


def test_what_one_list_has_seen_is_new_to_the_next():
    assert run([[1, 1, 2], [2, 1, 2], [], [2]], switches=(True, False, False)) == [[1, 2], [2, 1], [], [2]]


def test_many_ids_in_one_slot():
    """Multiples of a power of two; nothing is lost when slots run over the end of the table."""
    numbers = [(index % 500) << 40 for index in range(1000)]
    assert run([numbers, numbers[::-1]], switches=(True, False, False)) == [numbers[:500], numbers[:499:-1]]


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 200])
def test_sorts_lists_of_any_length(length):
    numbers = np.random.default_rng(0).integers(0, 50, length).tolist()
    assert run([numbers], switches=(False, True, True)) == [sorted(numbers, reverse=True)]


def test_ids_may_be_changed_in_place():
    ids = np.array([0, 5, 99])
    transform_ids(ids, 1, 7, 0, np.uint64(0), ids)
    assert ids.tolist() == [1, 5, 7]
