"""Uses are counted in two bits, and rings go round."""

import torch

from windrow.caching.dynamic_store import DynamicCache
from windrow.caching.store_kernels import MOST_USES


def test_uses_are_counted_up_to_three():
    cache = DynamicCache(2, 5)
    cache.access(torch.tensor([1] * 300))
    assert cache._uses[1] == MOST_USES == 3


def test_queues_go_round_many_times():
    cache = DynamicCache(3, 100)
    for _ in range(50):
        cache.access(torch.arange(100))
    assert int((cache.slots(torch.arange(100)) >= 0).sum()) == 3
    assert cache._cursors[:4].min() >= 0
    assert cache._cursors[[0, 2]].max() < 3
