"""What a window of minibatches keeps, against the fewest rows that any choice could ask for."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.caching.test_cached_store import COLUMNS, DTYPES, ROWS, expected, make_store
from windrow.caching.request import index_cache, plan_request
from windrow.caching.window import CacheWindow

OFFSETS = [0, 3, 8, 11]
"""Rank 0 plans; rows of rank 2 do not travel."""
TRAVEL, NEAR = range(3, 8), range(8, 11)


@st.composite
def runs(draw):
    minibatches = draw(st.lists(st.sets(st.integers(0, 10), max_size=6), min_size=1, max_size=7))
    cached = draw(st.lists(st.sampled_from(TRAVEL), min_size=1, max_size=3, unique=True))
    return [sorted(ids, key=lambda one: (one * 7) % 11) for ids in minibatches], cached


def asked_by_window(minibatches, cached, length) -> int:
    """Messages' rows, while what is said to be cached is checked."""
    index, nothing = index_cache(torch.tensor(cached), OFFSETS[-1]), np.empty(0, np.int32)
    window = CacheWindow(index, torch.tensor(cached), [True, True, False], length=length)
    held = dict(enumerate(cached))
    requests = [plan_request(torch.tensor(ids, dtype=torch.int64), OFFSETS, 0, nothing) for ids in minibatches]
    asked = sum(check(request, ids, held) for request, ids in zip(window.planned(requests), minibatches, strict=True))
    assert sorted(index[index >= 0]) == sorted(held)
    assert all(index[one] == slot for slot, one in held.items())
    return asked


def check(request, ids, held) -> int:
    """Every id has one place, cached ones are where they should be, near ones are left; the cache follows."""
    found = dict(zip(request.cached_places.tolist(), request.cached.tolist(), strict=True))
    assert all(held[slot] == ids[place] for place, slot in found.items())
    remote = dict(zip(request.remote_places.tolist(), request.remote.tolist(), strict=True))
    assert all(ids[place] == one for place, one in remote.items())
    assert sorted([*found, *remote, *request.local_places.tolist()]) == list(range(len(ids)))
    owners = [0, sum(one in TRAVEL for one in remote.values()), sum(one in NEAR for one in remote.values())]
    assert request.remote_counts == owners
    assert owners[2] == sum(one in NEAR for one in ids)
    asked = [one for one in request.remote.tolist() if one in TRAVEL]
    held.update(
        {slot: asked[row] for row, slot in zip(request.kept.tolist(), request.kept_slots.tolist(), strict=True)}
    )
    assert len(set(held.values())) == len(held)
    return len(asked)


def fewest(minibatches, cached) -> int:
    """Rows that the best of all choices asks for: every set that a cache could hold is tried."""
    costs = {frozenset(cached): 0}
    for ids in minibatches:
        needed, found = {one for one in ids if one in TRAVEL}, {}
        for held, cost in costs.items():
            for chosen in map(frozenset, combinations(sorted(held | needed), len(cached))):
                found[chosen] = min(found.get(chosen, 99), cost + len(needed - held))
        costs = found
    return min(costs.values())


@given(runs())
def test_a_window_over_all_minibatches_asks_for_the_fewest_rows(run):
    minibatches, cached = run
    assert asked_by_window(minibatches, cached, len(minibatches)) == fewest(minibatches, cached)


@given(runs(), st.integers(0, 3))
def test_a_short_window_serves_what_it_holds(run, length):
    minibatches, cached = run
    most = sum(one in TRAVEL for ids in minibatches for one in ids)
    assert fewest(minibatches, cached) <= asked_by_window(minibatches, cached, length) <= most


def test_what_was_seen_and_not_planned_is_forgotten():
    window = CacheWindow(index_cache(torch.tensor([3]), 11), torch.tensor([3]), [True, True, False], length=2)
    first, second = (plan_request(torch.tensor(ids), OFFSETS, 0, np.empty(0, np.int32)) for ids in ([4], [5, 4]))
    requests = iter([first, second, second, first])
    assert next(window.planned(requests)).kept.tolist() == [0], "4 instead of 3: it is needed by the next, too"
    # Nothing that the other minibatches need counts now, so that 3, which the cache was filled with, comes back.
    third = plan_request(torch.tensor([3]), OFFSETS, 0, np.empty(0, np.int32))
    assert next(window.planned([third])).kept.tolist() == [0]


def test_a_rank_that_keeps_nothing_looks_as_far_ahead_as_others(spmd):
    def body(world):
        store, ids, events = make_store(world, 0.3 * (world.rank > 0)), torch.arange(ROWS), []
        window = store.window(2)

        def minibatches():
            for number in range(4):
                events.append(f"sampled {number}")
                yield store.plan_uncached(ids)

        for request in window.planned(minibatches()) if window else ():
            events.append("planned")
            found = store.start(request).finish(torch.empty(ROWS, COLUMNS))
            assert torch.equal(found, expected(ids, world, "fp32", "fp32", torch.float32))
        return events

    first, *others = spmd(body)
    assert all(other == first for other in others)


@pytest.mark.parametrize(("codec", "storage"), [("fp32", "fp32"), ("bf16", "fp32"), ("fp32", "fp16"), ("int8", "fp32")])
@pytest.mark.parametrize("shared", [False, True])
def test_rows_are_those_of_a_cache_that_stays(spmd, codec, storage, shared):
    def body(world):
        plain, store = (make_store(world, 0.3, codec, storage, shared) for _ in range(2))
        window = store.window(2)
        assert plain.window(0) is None
        generator = np.random.default_rng(world.rank)
        minibatches = [torch.from_numpy(generator.permutation(ROWS)[:40]) for _ in range(6)]
        requests, asked = map(store.plan_uncached if window else store.plan, minibatches), [0, 0]
        for ids, request in zip(minibatches, window.planned(requests) if window else requests, strict=True):
            out, same = (torch.empty(len(ids), COLUMNS) for _ in range(2))
            found = store.start(request).finish(out)
            assert torch.equal(found, plain.start(plain.plan(ids)).finish(same))
            if codec in DTYPES:
                assert torch.equal(found, expected(ids, world, codec, storage, torch.float32))
            asked = [asked[0] + len(request.remote), asked[1] + len(plain.plan(ids).remote)]
        assert (window is not None) == store.needs_messages
        assert asked[0] < asked[1] or not store.needs_messages

    spmd(body)
