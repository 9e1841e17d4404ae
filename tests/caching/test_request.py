"""Plans against a slow reference that looks at one id at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.caching.request import CacheIndex, plan_request
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
    small_bytes = draw(st.sampled_from([0, 1 << 20]))
    return ids, offsets, rank, list(cached), small_bytes


@given(situations())
def test_plan_is_that_of_one_id_after_another(situation):
    ids, offsets, rank, cached, small_bytes = situation
    index = CacheIndex(torch.tensor(cached, dtype=torch.int64), offsets[-1], small_bytes=small_bytes)
    request = plan_request(torch.tensor(ids, dtype=torch.int64), offsets, rank, index)
    local, kept, remote = slow_plan(ids, offsets, rank, cached)
    assert request.num_rows == len(ids)
    assert (request.local.tolist(), request.local_places.tolist()) == local
    assert (request.cached.tolist(), request.cached_places.tolist()) == kept
    assert request.remote.tolist() == [key for keys, _ in remote for key in keys]
    assert request.remote_places.tolist() == [place for _, places in remote for place in places]
    assert request.remote_counts == [len(keys) for keys, _ in remote]
    assert request.remote_counts[rank] == 0
    places = torch.cat([request.local_places, request.cached_places, request.remote_places])
    assert torch.equal(places.sort().values, torch.arange(len(ids)))


@pytest.mark.parametrize("outside", [-1, 8])
def test_an_id_that_nobody_owns_is_refused(outside):
    index = CacheIndex(torch.tensor([2]), 8)
    with pytest.raises(
        DataError, match=f"id {outside} at position 2 of 3 belongs to no rank: ids are 0 to 7"
    ):
        plan_request(torch.tensor([1, 7, outside]), [0, 3, 8], 1, index)


def test_ids_may_be_a_view():
    ids = torch.tensor([7, 0, 2, 0, 5, 0])[::2]
    request = plan_request(ids, [0, 3, 8], 0, CacheIndex(torch.tensor([5]), 8))
    assert (request.local.tolist(), request.cached.tolist(), request.remote.tolist()) == ([2], [0], [7])
