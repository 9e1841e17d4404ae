"""The section [run], of settings that concern neither data nor model, and how a process joins a job by it."""

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch

from windrow.comm.connect import BackendName, connect, ending_all_ranks
from windrow.comm.errors import RecipeError
from windrow.comm.launcher import launched_local_rank
from windrow.comm.meter import Meter
from windrow.comm.options import NonNegativeInt, PathOption, PositiveFloat, checked_dataclass
from windrow.comm.world import World
from windrow.training.checkpoint import CheckpointOptions

__all__ = ["RunOptions", "joined_job"]


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
        threads=options.threads,
    ) as world:
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
