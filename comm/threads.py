"""Compiled loops on as many threads as PyTorch has: ranges of things, each done without regard to the others.

Threads are kept from call to call. PyTorch's own, which wait for its operators, cannot run other code.
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["ROWS_AT_ONCE", "in_parallel"]

CHUNKS_PER_THREAD = 8
"""Pieces of work for each thread, so that none waits long for the last."""

ROWS_AT_ONCE = 1024
"""Rows of a hundred columns or so: to read or write fewer is not worth a call in another thread."""


def in_parallel(
    work: Callable[[int, int], object],
    items: int | npt.NDArray[np.int64],
    *,
    chunks_per_thread: int = CHUNKS_PER_THREAD,
    at_once: int = 1,
) -> None:
    """Call a compiled loop that holds no lock on ranges of items, on as many threads as PyTorch has, this one included.

    Args:
        work: does the items from its first argument to before its second; what comes out must not depend on how they
            are cut into ranges.
        items: how many; or [items + 1], where the list of each starts: then ranges have about equally many items and
            entries of lists.
        chunks_per_thread: ranges for each thread.
        at_once: fewer items and entries than this are not worth a range of their own; a call for other threads takes
            some 50 microseconds.
    """
    threads = torch.get_num_threads()
    count = items if isinstance(items, int) else len(items) - 1
    total = count if isinstance(items, int) else count + int(items[-1] - items[0])
    chunks = min(threads * chunks_per_thread, total // at_once)
    if threads == 1 or chunks < 2:
        work(0, count)
        return
    cuts = np.linspace(0, total, chunks + 1).astype(np.int64)
    if not isinstance(items, int):
        cuts = np.append(np.searchsorted(items - items[0] + np.arange(count + 1), cuts), count)
    ranges = iter(list(pairwise(np.unique(cuts).tolist())))

    def take() -> None:
        for first, last in ranges:
            work(first, last)

    # A process that was forked has none of the threads.
    others = [_pool(os.getpid(), threads - 1).submit(take) for _ in range(threads - 1)]
    try:
        take()
    finally:
        wait(others)
    for other in others:
        other.result()


@functools.cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    del process
    return ThreadPoolExecutor(threads, thread_name_prefix="loops")
