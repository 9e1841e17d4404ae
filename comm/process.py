"""What a process that computes is set to: threads, and the memory that it keeps.

That decides how much memory a long training run needs, and how much of its time the operating system takes.
"""

import contextlib
import ctypes
import os
import platform
from collections import Counter
from collections.abc import Collection, Iterable
from fractions import Fraction

__all__ = ["core_share", "keep_freed_memory", "own_cores", "threads_of_rank", "usable_cores"]


def own_cores() -> frozenset[int]:
    """Numbers of the cores that this process may run on: not all of the machine's where the launcher binds to cores."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """How many these are."""
    return len(own_cores())


def core_share(own: Collection[int], of_ranks: Iterable[Collection[int]]) -> int:
    """Cores for a rank, at least one: of each that it may run on the same share as other ranks that may.

    Args:
        own: numbers of its cores.
        of_ranks: those of each rank of the machine, its own too.
    """
    sharing = Counter(core for cores in of_ranks for core in cores)
    return max(1, int(sum(Fraction(1, sharing[core]) for core in own)))


def threads_of_rank(asked: int, share: int) -> int:
    """With how many threads a rank computes.

    More threads than cores are slower than one: each operation waits for threads that others keep from running.

    Args:
        asked: by the user; 0 for OMP_NUM_THREADS where that is set, and else for its share of the cores.
        share: that.
    """
    of_openmp = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    asked = asked or (int(of_openmp) if of_openmp.isdecimal() else 0)
    return asked or share


# Numbers of glibc's <malloc.h>.
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_MAX = -4
_GROWTH_BYTES = 64 << 20

SHAPES = 64
"""Above what the dense layers of a recommender need, whose shapes stay the same; minibatches of a graph and lists of
sequences have others at every step, of which nothing comes again."""


def keep_freed_memory() -> bool:
    """Let this process keep large memory that it frees, so that the next step gets it back at once.

    By default glibc takes every large tensor fresh from the operating system, which clears each page when it is first
    touched: several times the work of a layer's cheap operations. The price: memory once needed is kept until the end.
    It is in huge pages where the system gives them to those that ask. Call it before large tensors are made.

    oneDNN, which by default keeps what it prepared for the last 1024 shapes of a multiplication, scattered among the
    large tensors that come and go, is to keep 64, so that freed memory is not in pieces too small for the next step:
    with minibatches of a graph a process grew from 1.4 to 6 GiB within 80 steps, and steps took a quarter more time; a
    recommender with self-attention over lists grew from 1.8 to 4.2 GB, with 64 shapes to 2.0 GB. It reads the
    environment at the first multiplication, and never again; what the user has set there stays.

    Returns:
        Whether the allocator took the settings; False where the C library is not glibc.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(SHAPES))
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # No memory maps of its own for a large piece, no return of the heap's end, and a heap that grows in large steps.
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, _GROWTH_BYTES))
    taken = all(mallopt(name, value) == 1 for name, value in settings)
    import numpy as np  # Here, since the command line refuses what is wrong before heavy libraries are loaded.

    # NumPy asks for huge pages, where rows at random places are found faster, for an array that nobody writes. The heap
    # has its addresses from now on, and what comes there keeps the pages.
    with contextlib.suppress(MemoryError):
        np.empty(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2, np.uint8)
    return taken
