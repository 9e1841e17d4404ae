"""Open the world that this process belongs to, and make sure that a failure on one rank ends all of them."""

import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from windrow.comm.errors import RecipeError, WindrowError
from windrow.comm.launcher import launched_by_torchrun, launched_size
from windrow.comm.loopback import Loopback
from windrow.comm.rendezvous import Rendezvous
from windrow.comm.world import DEFAULT_DEADLINE_S, World

__all__ = ["BackendName", "connect"]

BackendName = Literal["auto", "mpi", "gloo", "nccl", "loopback"]

STAGGER_S = 0.2
LONGEST_STAGGER_S = 2.0
"""Ranks that fail at the same moment report in rank order, this far apart: the first one ends the rest, so one
traceback is printed, not one per rank."""


@contextmanager
def connect(
    backend: BackendName = "auto", *, deadline_s: float = DEFAULT_DEADLINE_S, debug: bool = False
) -> Iterator[World]:
    """Join the job. Collective: every process of the job calls it, with the same arguments.

    Args:
        backend: "mpi", "gloo" or "nccl" under mpirun, srun or torchrun; "loopback" for a world of this process
            alone; "auto" chooses MPI under an MPI launcher, gloo under torchrun, else loopback.
        deadline_s: seconds that any wait may take before it raises `DeadlineError`.
        debug: before each collective, agree on operation, stage, shape and dtype.

    Yields:
        The world. It is closed when the block ends. When the block raises, in a job of more than one rank, the
        error is printed once (the traceback; for a `WindrowError` its message) and every rank is ended: exit
        status 2 for a `WindrowError`, else 1.

    Raises:
        RecipeError: the launcher started several processes but the library sees one (two MPI installations).
    """
    world = _open(backend, deadline_s=deadline_s, debug=debug)
    try:
        yield world
    except BaseException as error:
        if world.size > 1:
            _end_all_ranks(world, error)
        raise
    world.close()


def _open(backend: BackendName, *, deadline_s: float, debug: bool) -> World:
    if backend == "auto":
        backend = "loopback" if launched_size() == 1 else "gloo" if launched_by_torchrun() else "mpi"
    if backend == "loopback":
        return Loopback.single()
    world: World
    if backend == "mpi":
        from windrow.comm.mpi_world import MPIWorld

        world = MPIWorld(deadline_s=deadline_s, debug=debug)
    else:
        from windrow.comm.torch_world import TorchWorld

        world = TorchWorld(backend, _rendezvous(), deadline_s=deadline_s, debug=debug)
    if world.size != launched_size():
        raise RecipeError(
            f"the launcher started {launched_size()} processes, but {backend} sees {world.size}: mpi4py and mpirun "
            "belong to different MPI installations. Use the mpirun of the MPI that mpi4py was built for "
            "(python -c 'from mpi4py import MPI; print(MPI.Get_library_version())')."
        )
    return world


def _rendezvous() -> Rendezvous:
    if launched_by_torchrun():
        return Rendezvous.from_torchrun()
    from windrow.comm.mpi_world import mpi_rendezvous

    return mpi_rendezvous()


def _end_all_ranks(world: World, error: BaseException) -> None:
    code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    time.sleep(min(world.rank * STAGGER_S, LONGEST_STAGGER_S))
    if isinstance(error, WindrowError):
        code = 2
        print(f"windrow: error: rank {world.rank} of {world.size}: {error}", file=sys.stderr)
    elif not isinstance(error, SystemExit | KeyboardInterrupt):
        print(f"rank {world.rank} of {world.size} failed:\n{traceback.format_exc()}", file=sys.stderr)
    world.abort(code)
