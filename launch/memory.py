"""How the C library's allocator treats large freed memory, and what oneDNN keeps in between."""

import ctypes
import os
import platform

__all__ = ["GRAPH_SHAPES", "RECOMMENDATION_SHAPES", "keep_freed_memory", "keep_shapes"]

# Numbers of glibc's <malloc.h>.
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_MAX = -4
_GROWTH_BYTES = 64 << 20

GRAPH_SHAPES = 0
"""Minibatches of a graph have other shapes at every step, so nothing that is kept of them is used again."""
RECOMMENDATION_SHAPES = 64
"""Above what the dense layers of a recommender need, whose shapes stay the same; lists of sequences have many more."""


def keep_freed_memory() -> bool:
    """Let this process keep large memory that it frees, so that the next step gets it back at once.

    By default glibc takes every large tensor fresh from the operating system and returns it when it is freed.
    The system must then clear each page when it is first touched, which costs several times as much as the work
    of a layer's cheap operations. A training step frees and takes the same sizes over and over. The price: what
    the process once needed it keeps until its end.

    Call it once, before large tensors are made. It concerns the whole process.

    Returns:
        Whether the allocator took the settings; False where the C library is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # No memory maps of its own for a large piece, no return of the heap's end, and a heap that grows in large steps.
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, _GROWTH_BYTES))
    return all(mallopt(name, value) == 1 for name, value in settings)


def keep_shapes(most: int) -> None:
    """Let oneDNN keep what it prepared for at most so many shapes of a multiplication.

    By default it keeps that of the last 1024, which lies scattered among the large tensors that come and go, so that
    freed memory is in pieces too small for the next step. With minibatches of a graph, 200,000 input rows a step, a
    process grew from 1.4 to 6 GiB within 80 steps, and still grew; without, it stays, and steps take a fifth less time.
    A recommender with self-attention over lists grew from 1.8 to 4.2 GB within 60 steps; with the last 64 shapes to
    2.0 GB, at the same speed.

    Call it before the first multiplication of the process: both libraries read the environment then, and never again.
    What the user has set stays.

    Args:
        most: shapes; 0 for none.
    """
    # The first of the two knows no 0.
    os.environ.setdefault("LRU_CACHE_CAPACITY", str(max(1, most)))
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(most))
