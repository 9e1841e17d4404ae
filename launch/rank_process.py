"""How a process becomes a rank that computes: the section [run], backend, device, threads, and the memory allocator.

The section [run] holds the settings that concern neither data nor model. The allocator is that of the C library; what
it does with large freed memory, and what oneDNN keeps in between, decides how much memory a long training run needs.
"""

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch

from windrow.comm.connect import BackendName, connect, ending_all_ranks
from windrow.comm.errors import RecipeError
from windrow.comm.hosts import ranks_on_this_machine
from windrow.comm.launcher import launched_local_rank
from windrow.comm.meter import Meter
from windrow.comm.options import NonNegativeInt, PathOption, PositiveFloat, checked_dataclass
from windrow.comm.world import World
from windrow.training.checkpoint import CheckpointOptions
from windrow.training.environment import usable_cores

__all__ = [
    "GRAPH_SHAPES",
    "RECOMMENDATION_SHAPES",
    "RunOptions",
    "joined_job",
    "keep_freed_memory",
    "keep_shapes",
    "threads_of_rank",
]


@checked_dataclass
class RunOptions(CheckpointOptions):
    """Where and how a run happens."""

    seed: NonNegativeInt = 0
    """Of everything random: weights, shuffles, samples, dropout."""
    folder: PathOption | None = None
    """Run folder; None for ``runs/<recipe name>-<n>`` in the current folder."""
    backend: BackendName = "auto"
    """What ranks communicate through; "auto" follows the launcher."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the model computes; "cuda" gives each rank of a machine its own GPU, in rank order."""
    cuda_aware_mpi: bool = False
    """With the "mpi" backend, hand GPU memory to the MPI library, which must have been built for that."""
    shared_memory: bool = True
    """Whether ranks of one host leave embedding vectors and their gradients for each other in memory that all of them
    map, instead of sending messages; they count as sent all the same. Not where a GPU trains. Features of vertices have
    `cache.shared_memory`."""
    deadline_s: PositiveFloat = 300.0
    """Seconds that a rank waits for others before the run is ended with an error."""
    debug: bool = False
    """Check before each collective that all ranks call the same one with arguments that agree; slow."""
    threads: NonNegativeInt = 0
    """Threads per rank for computing; 0 for OMP_NUM_THREADS where that is set, as torchrun does, and else for an equal
    share of the cores that this machine's ranks may use."""
    tensorboard: bool = True
    """Also log to TensorBoard."""


@contextlib.contextmanager
def joined_job(options: RunOptions) -> Iterator[tuple[World, torch.device]]:
    """Join the job that the launcher started. Collective: every process calls it, with the same options.

    Args:
        options: backend, device, threads and deadline.

    Yields:
        The world, with a meter, and the device of this rank. An error in the block ends every rank; see
        `windrow.comm.connect.connect`.

    Raises:
        RecipeError: there is no such device or backend.
    """
    with ending_all_ranks():
        device = _own_device(options)
    with connect(
        options.backend,
        deadline_s=options.deadline_s,
        debug=options.debug,
        cuda_aware_mpi=options.cuda_aware_mpi,
        shared_memory=options.shared_memory,
    ) as world:
        torch.set_num_threads(threads_of_rank(options, ranks_on_this_machine(world)))
        world.meter = Meter()
        yield world, device


def _own_device(options: RunOptions) -> torch.device:
    """This process's device, made the current one where it is a GPU: NCCL and allocations go by that."""
    if options.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RecipeError('run.device = "cuda", but PyTorch finds no GPU on this machine: use "cpu"')
    device = torch.device("cuda", launched_local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def threads_of_rank(options: RunOptions, ranks_here: int) -> int:
    """With how many threads each of a machine's ranks computes.

    More threads than cores are slower than one: each operation waits for threads that others keep from running.
    """
    of_openmp = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    asked = options.threads or (int(of_openmp) if of_openmp.isdecimal() else 0)
    return asked or max(1, usable_cores() // ranks_here)


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

    By default glibc takes every large tensor fresh from the operating system, which clears each page when it is first
    touched: several times the work of a layer's cheap operations. The price: memory once needed is kept until the end.
    It is in huge pages where the system gives them to those that ask.
    Call it before large tensors are made.

    Returns:
        Whether the allocator took the settings; False where the C library is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # No memory maps of its own for a large piece, no return of the heap's end, and a heap that grows in large steps.
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, _GROWTH_BYTES))
    taken = all(mallopt(name, value) == 1 for name, value in settings)
    # NumPy asks for huge pages, where rows at random places are found faster, for an array that nobody writes. The heap
    # has its addresses from now on, and what comes there keeps the pages.
    with contextlib.suppress(MemoryError):
        np.empty(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2, np.uint8)
    return taken


def keep_shapes(most: int) -> None:
    """Let oneDNN keep what it prepared for at most so many shapes of a multiplication; 0 for none.

    By default it keeps that of the last 1024, scattered among the large tensors that come and go, so that freed memory
    is in pieces too small for the next step: with minibatches of a graph a process grew from 1.4 to 6 GiB within 80
    steps, and without it steps take a fifth less time; a recommender with self-attention over lists grew from 1.8 to
    4.2 GB, with 64 shapes to 2.0 GB. Call it before the first multiplication: the environment is read then, and never
    again. What the user has set stays.
    """
    # The first of the two knows no 0.
    os.environ.setdefault("LRU_CACHE_CAPACITY", str(max(1, most)))
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(most))
