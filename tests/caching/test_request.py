"""Plans against a slow reference that looks at one id at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.caching.request import index_cache, plan_request
from windrow.comm.errors import DataError


def slow_plan(ids, offsets, rank, cached):
    """(values, places) of own rows, of cached ones and of each rank's."""
    local, kept = ([], []), ([], [])
    remote = [([], []) for _ in offsets[1:]]
    slot_of = {key: slot for slot, key in enumerate(cached)}
    for place, key in enumerate(ids):
        owner = next(r for r in range(len(offsets) - 1) if offsets[r] <= key < offsets[r + 1])
        if owner == rank:
            group, value = local, key - offsets[rank]
        elif key in slot_of:
            group, value = kept, slot_of[key]
        else:
            group, value = remote[owner], key
        group[0].append(value)
        group[1].append(place)
    return local, kept, remote


@st.composite
def situations(draw):
    counts = draw(st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(sum))
    offsets = [0, *np.cumsum(counts).tolist()]
    rank = draw(st.integers(0, len(counts) - 1))
    all_ids = st.integers(0, offsets[-1] - 1)
    cached = draw(st.sets(all_ids, max_size=offsets[-1]))
    ids = draw(st.lists(all_ids, max_size=120))
    return ids, offsets, rank, list(cached)


@given(situations())
def test_plan_is_that_of_one_id_after_another(situation):
    ids, offsets, rank, cached = situation
    index = index_cache(torch.tensor(cached, dtype=torch.int64), offsets[-1])
    request = plan_request(torch.tensor(ids, dtype=torch.int64), offsets, rank, index)
    local, kept, remote = slow_plan(ids, offsets, rank, cached)
    assert request.num_rows == len(ids)
    assert (request.local.tolist(), request.local_places.tolist()) == local
    assert (request.cached.tolist(), request.cached_places.tolist()) == kept
    assert request.remote.tolist() == [key for keys, _ in remote for key in keys]
    assert request.remote_places.tolist() == [place for _, places in remote for place in places]
    assert request.remote_counts == [len(keys) for keys, _ in remote]


@pytest.mark.parametrize("outside", [-1, 8])
def test_an_id_that_nobody_owns_is_refused(outside):
    index = index_cache(torch.tensor([2]), 8)
    with pytest.raises(DataError, match=f"id {outside} at position 2 of 3 belongs to no rank: ids are 0 to"):
        plan_request(torch.tensor([1, 7, outside]), [0, 3, 8], 1, index)


def test_ids_may_be_a_view():
    ids = torch.tensor([7, 0, 2, 0, 5, 0])[::2]
    request = plan_request(ids, [0, 3, 8], 0, index_cache(torch.tensor([5]), 8))
    assert (request.local.tolist(), request.cached.tolist(), request.remote.tolist()) == ([2], [0], [7])


def slots_of(index, asked, num_ids):
    """Slot of each id, -1 where it is not cached, as a rank finds it that owns no row."""
    request = plan_request(torch.tensor(asked, dtype=torch.int64), [0, 0, num_ids], 0, index)
    slots = torch.full((len(asked),), -1)
    slots[request.cached_places] = request.cached
    return slots.tolist()


@given(st.sets(st.integers(0, 99_999), max_size=300), st.lists(st.integers(0, 99_999), max_size=300))
def test_slots_are_positions(cached, others):
    ids = list(cached)
    slot_of = {key: slot for slot, key in enumerate(ids)}
    index = index_cache(torch.tensor(ids, dtype=torch.int64), 100_000)
    assert slots_of(index, ids + others, 100_000) == [slot_of.get(key, -1) for key in ids + others]
    assert index.nbytes == (400_000 if ids else 0)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([7, 3, 7], "cached id 7 is given twice"),
        ([5, 5], "cached id 5 is given twice"),
        ([1, 2, 3, 2], "cached id 2 is given twice"),
        ([3, -1], "cached id -1 at position 1 is out of range: ids are 0 to 99999"),
        ([3, 100_000], "cached id 100000 at position 1 is out of range: ids are 0 to 99999"),
    ],
)
def test_ids_that_cannot_be_cached_are_refused(ids, message):
    with pytest.raises(DataError, match=message):
        index_cache(torch.tensor(ids), 100_000)
