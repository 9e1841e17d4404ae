"""Open the world that this process belongs to, and make sure that a failure on one rank ends all of them.

The process is set up to compute as well, so that a program of one's own is as fast as a recipe
(`windrow.comm.process`). PyTorch is imported when a world is opened, so that the command line can refuse something
before.
"""

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from windrow.comm.errors import PeerFailedError, RecipeError, WindrowError, from_here
from windrow.comm.launcher import (
    DEFAULT_DEADLINE_S,
    Rendezvous,
    abort_job,
    exit_now,
    launched_by_torchrun,
    launched_rank,
    launched_size,
)
from windrow.comm.process import keep_freed_memory, threads_of_rank

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = ["BackendName", "connect", "ending_all_ranks"]

BackendName = Literal["auto", "mpi", "gloo", "nccl", "loopback"]

WRONG_USE = 2
INTERRUPTED = 130

FORWARDING_S = 0.25
"""Seconds between printing an error and ending the job: MPICH's launcher drops what it has not yet read by then."""

STAGGER_S = 0.5
LONGEST_STAGGER_S = 2.0
"""Ranks that fail at the same moment report in rank order, this far apart: the first one ends the rest, so one
traceback is printed, not one per rank."""


@contextmanager
def connect(
    backend: BackendName = "auto",
    *,
    deadline_s: float = DEFAULT_DEADLINE_S,
    debug: bool = False,
    cuda_aware_mpi: bool = False,
    shared_memory: bool = True,
    threads: int = 0,
    keep_memory: bool = True,
) -> Iterator["World"]:
    """Join the job. Collective: every process of the job calls it, with the same arguments.

    Args:
        backend: "mpi", "gloo" or "nccl" under mpirun, srun or torchrun; "loopback" for a world of this process
            alone; "auto" chooses MPI under an MPI launcher, gloo under torchrun, else loopback.
        deadline_s: seconds that any wait may take before it raises `DeadlineError`.
        debug: before each collective, agree on operation, stage, shape and dtype.
        cuda_aware_mpi: with "mpi", hand GPU memory to the MPI library, which must have been built for that.
        shared_memory: let ranks of one host leave embedding vectors and their gradients for each other in memory that
            all of them map, instead of sending messages.
        threads: that PyTorch computes with on this rank. 0: what OMP_NUM_THREADS says, else an equal share of the cores
            that the ranks of this machine may use; a process alone stays as it is.
        keep_memory: keep large memory that is freed for the next step, until this process ends, which spares nearly
            half of the time of full-graph training on CPUs. It is a setting of the C library (glibc alone has it) and,
            in the environment, of oneDNN, which reads it at its first multiplication.

    Yields:
        The world. It is closed when the block ends. When the block raises, in a job of more than one rank, the
        error is printed once (the traceback; for a `WindrowError` its message) and every rank is ended: exit
        status 2 for a `WindrowError`, 130 for an interrupt, that of a `SystemExit`, else 1. The same happens to a
        job of which one rank cannot join.

    Raises:
        RecipeError: mpi4py is not installed, or sees other ranks than the launcher started (two MPI installations).
    """
    if keep_memory:
        keep_freed_memory()
    try:
        world = _open(backend, deadline_s=deadline_s, debug=debug, cuda_aware_mpi=cuda_aware_mpi)
    except BaseException as error:
        if launched_size() > 1:
            # The others wait for this rank. A launcher does not always notice that it is gone, so the job is aborted.
            _end_all_ranks(launched_rank(), launched_size(), _joined_abort(), error)
        raise
    world.shares_memory = shared_memory
    try:
        _take_threads(world, threads)
        yield world
    except BaseException as error:
        if world.size > 1:
            _end_all_ranks(world.rank, world.size, world.abort, error)
        world.close()
        raise
    world.close()


def _take_threads(world: "World", asked: int) -> None:
    """Collective."""
    if not asked and world.size == 1:
        return
    import torch

    from windrow.comm.hosts import cores_of_rank

    torch.set_num_threads(threads_of_rank(asked, cores_of_rank(world)))


@contextmanager
def ending_all_ranks() -> Iterator[None]:
    """Guard what every rank does before `connect`, such as reading a recipe: an error on one rank ends all of them.

    Without it the others would wait for ever where this rank never comes: an MPI launcher does not notice a process
    that ends before it has joined. So a rank that fails joins first, then reports as in `connect`.
    """
    try:
        yield
    except BaseException as error:
        if launched_size() > 1:
            _end_all_ranks(launched_rank(), launched_size(), _joined_abort(), error)
        raise


def _joined_abort() -> Callable[[int], None]:
    if launched_by_torchrun() or find_spec("mpi4py") is None:
        return exit_now
    import_module("mpi4py.MPI")  # joins: whoever fails later than others still reports after them
    return abort_job


def _open(backend: BackendName, *, deadline_s: float, debug: bool, cuda_aware_mpi: bool) -> "World":
    if backend == "auto":
        backend = "loopback" if launched_size() == 1 else "gloo" if launched_by_torchrun() else "mpi"
    if backend == "loopback":
        from windrow.comm.loopback import Loopback

        return Loopback.single()
    world: World
    if (backend == "mpi" or not launched_by_torchrun()) and find_spec("mpi4py") is None:
        raise RecipeError(
            f"backend {backend!r} meets through MPI, but mpi4py is not installed: install windrow[mpi] for the MPI "
            "of this machine, or windrow[mpich] for one that pip brings along"
        )
    if backend == "mpi":
        from windrow.comm.mpi_world import MPIWorld

        world = MPIWorld(deadline_s=deadline_s, debug=debug, cuda_aware=cuda_aware_mpi)
    else:
        from windrow.comm.torch_world import TorchWorld

        world = TorchWorld(backend, _rendezvous(deadline_s), deadline_s=deadline_s, debug=debug)
    if world.size != launched_size():
        raise RecipeError(
            f"the launcher started {launched_size()} processes, but {backend} sees {world.size}: mpi4py and mpirun "
            "belong to different MPI installations. Use the mpirun of the MPI that mpi4py was built for "
            "(python -c 'from mpi4py import MPI; print(MPI.Get_library_version())')."
        )
    return world


def _rendezvous(deadline_s: float) -> Rendezvous:
    if launched_by_torchrun():
        return Rendezvous.from_torchrun()
    from windrow.comm.mpi_world import mpi_rendezvous

    return mpi_rendezvous(deadline_s=deadline_s)


def _end_all_ranks(rank: int, size: int, abort: Callable[[int], None], error: BaseException) -> None:
    # Losing a peer is a consequence: whoever caused it speaks first.
    is_consequence = isinstance(error, PeerFailedError)
    time.sleep(LONGEST_STAGGER_S if is_consequence else min(rank * STAGGER_S, LONGEST_STAGGER_S))
    report, status = _report(rank, size, error)
    if report:
        print(report, file=sys.stderr, flush=True)
        time.sleep(FORWARDING_S)
    abort(status)


def _report(rank: int, size: int, error: BaseException) -> tuple[str, int]:
    """What to print about an error, nothing for an exit that was asked for; and the exit status."""
    match error:
        case WindrowError():
            # What rank 0 refuses the others mostly refuse as well.
            who = "" if rank == 0 else f"rank {rank} of {size}: "
            return f"windrow: error: {who}{from_here(str(error))}", WRONG_USE
        case KeyboardInterrupt():
            return "", INTERRUPTED
        case SystemExit(code=str(message)):
            return message, 1
        case SystemExit(code=None | int() as status):
            return "", status or 0
    return f"rank {rank} of {size} failed:\n{''.join(traceback.format_exception(error))}", 1
