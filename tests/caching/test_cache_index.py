"""Both forms of the map against a dictionary."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.caching.request import CacheIndex
from windrow.comm.errors import DataError

FORMS = {"direct": 1 << 30, "table": 0}


def make(ids, num_ids, form) -> CacheIndex:
    return CacheIndex(torch.tensor(ids, dtype=torch.int64), num_ids, small_bytes=FORMS[form])


@given(st.sets(st.integers(0, 99_999), max_size=300), st.lists(st.integers(0, 99_999), max_size=300))
def test_slots_are_positions_in_either_form(cached, others):
    ids = list(cached)
    asked = ids + others
    slot_of = {key: slot for slot, key in enumerate(ids)}
    wanted = [slot_of.get(key, -1) for key in asked]
    for form in FORMS:
        index = make(ids, 100_000, form)
        assert index.slots(torch.tensor(asked, dtype=torch.int64)).tolist() == wanted
        assert index.num_cached == len(ids)
        if ids:
            assert (len(index.table) > 0) == (form == "table")
            assert (len(index.direct) > 0) == (form == "direct")


def test_ids_beyond_32_bits_are_found():
    ids = [2**40, 5, 2**33 + 5, 2**40 - 1]
    index = make(ids, 2**41, "direct")
    assert len(index.table) > 0, "a direct map of 8 TiB is never taken"
    assert index.slots(torch.tensor([5, 2**40, 6, 2**33 + 5, 2**40 - 1])).tolist() == [1, 0, -1, 2, 3]


def test_a_full_run_of_neighbouring_ids_is_found():
    for first in (0, 999_000):
        ids = torch.arange(first, first + 1000)
        index = CacheIndex(ids, 1_000_000, small_bytes=0)
        assert index.slots(ids).tolist() == list(range(1000))
        assert (index.slots(torch.arange(400_000, 401_000)) == -1).all()


def test_the_smaller_form_is_taken_for_large_graphs():
    few = CacheIndex(torch.arange(10), 10_000_000, small_bytes=0)
    assert few.num_bytes == 16 * 32
    many = CacheIndex(torch.arange(900_000), 1_000_000, small_bytes=0)
    assert many.num_bytes == 4 * 1_000_000
    assert CacheIndex(torch.empty(0, dtype=torch.int64), 10).num_bytes == 0


def test_small_graphs_take_a_direct_map():
    assert CacheIndex(torch.tensor([3]), 1000).num_bytes == 4000


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("ids", [[7, 3, 7], [5, 5], [1, 2, 3, 2]])
def test_ids_given_twice_are_refused(ids, form):
    repeated = next(key for key in ids if ids.count(key) > 1)
    with pytest.raises(DataError, match=f"cached id {repeated} is given twice"):
        make(ids, 100_000, form)


@pytest.mark.parametrize("outside", [-1, 10])
def test_ids_out_of_range_are_refused(outside):
    with pytest.raises(DataError, match=f"cached id {outside} at position 1 is out of range: ids are 0 to 9"):
        make([3, outside], 10, "direct")


@pytest.mark.parametrize("form", list(FORMS))
def test_many_threads_read_one_map(form):
    ids = np.random.default_rng(0).permutation(100_000)[:5000]
    index = make(ids, 100_000, form)
    asked = torch.from_numpy(np.random.default_rng(1).integers(0, 100_000, 50_000))
    wanted = index.slots(asked)
    found = []
    threads = [threading.Thread(target=lambda: found.append(index.slots(asked))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(torch.equal(one, wanted) for one in found)
