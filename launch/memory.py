"""How the C library's allocator treats large freed memory, and what oneDNN keeps in between."""

import ctypes
import os
import platform

__all__ = ["forget_shapes", "keep_freed_memory"]

# Numbers of glibc's <malloc.h>.
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_MAX = -4
_GROWTH_BYTES = 64 << 20


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


def forget_shapes() -> None:
    """Let oneDNN keep nothing of a multiplication when it is done.

    It keeps what it prepared for each of the last 1024 shapes. Minibatches of a graph have other shapes at every step,
    so nothing of it is used again, and it lies scattered among the large tensors that come and go, so that freed
    memory is in pieces too small for the next step: with 200,000 input rows a step, a process grew from 1.4 to 6 GiB
    within 80 steps, and still grew; without, it stays, and steps take a fifth less time. Where shapes stay the same,
    as in recommendation models, what is kept is worth keeping.

    Call it before the first multiplication of the process: both libraries read the environment then, and never again.
    What the user has set stays.
    """
    os.environ.setdefault("LRU_CACHE_CAPACITY", "1")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "0")
