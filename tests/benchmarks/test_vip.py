"""The dynamic cache of benchmarks/vip.py against the paper's algorithm written with lists."""

import runpy
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from windrow.comm.errors import DataError

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "vip.py"
DynamicCache = runpy.run_path(str(BENCHMARK))["DynamicCache"]


class SlowCache:
    """S3-FIFO with lists, the oldest entry first."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.small_share = min(capacity, max(1, round(0.1 * capacity)))
        self.main_share = capacity - self.small_share
        self.small, self.main, self.forgotten, self.uses = [], [], [], {}

    def access(self, key):
        cached = key in self.small or key in self.main
        if cached:
            self.uses[key] = min(3, self.uses[key] + 1)
            return True
        if self.capacity == 0:
            return False
        while len(self.small) + len(self.main) >= self.capacity:
            self.evict()
        if key in self.forgotten[max(0, len(self.forgotten) - self.main_share) :]:
            self.main.append(key)
        else:
            self.small.append(key)
        # What stood here keeps its place in the line.
        self.forgotten = [None if other == key else other for other in self.forgotten]
        self.uses[key] = 0
        return False

    def evict(self):
        if len(self.small) < self.small_share:
            self.evict_main()
            return
        oldest = self.small.pop(0)
        if self.uses[oldest] > 1 and self.main_share > 0:
            self.uses[oldest] = 0
            if len(self.main) >= self.main_share:
                self.evict_main()
            self.main.append(oldest)
        else:
            self.forgotten.append(oldest)

    def evict_main(self):
        while self.uses[self.main[0]] > 0:
            again = self.main.pop(0)
            self.uses[again] -= 1
            self.main.append(again)
        self.main.pop(0)


@st.composite
def traces(draw):
    """Batches of ids, few of which are asked for often."""
    num_vertices = draw(st.integers(1, 40))
    some = st.lists(st.integers(0, num_vertices - 1), max_size=40)
    often = st.lists(st.integers(0, min(num_vertices - 1, 4)), max_size=20)
    batches = draw(st.lists(st.tuples(some, often), max_size=8))
    return draw(st.integers(0, 25)), num_vertices, [ids + more for ids, more in batches]


@given(traces())
@example((4, 6, [[0, 0, 4, 2], [0, 1, 3, 4, 5, 1, 2, 3, 2]]))
def test_hits_are_those_of_the_paper(trace):
    capacity, num_vertices, batches = trace
    cache, slow = DynamicCache(capacity, num_vertices), SlowCache(capacity)
    for ids in batches:
        hits = cache.access(torch.tensor(ids, dtype=torch.int64))
        assert hits.tolist() == [slow.access(key) for key in ids]


def test_no_room_no_hits():
    assert not DynamicCache(0, 5).access(torch.tensor([1, 1, 1])).any()
    with pytest.raises(ValueError, match="-1 ids"):
        DynamicCache(-1, 5)


def test_ids_out_of_range_are_refused():
    cache = DynamicCache(2, 5)
    with pytest.raises(DataError, match="id 5 at position 1 is out of range: ids are 0 to 4"):
        cache.access(torch.tensor([0, 5]))
    with pytest.raises(DataError, match="id -1"):
        cache.access(torch.tensor([-1]))
