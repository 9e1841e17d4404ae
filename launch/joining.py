"""How a process becomes a rank that computes: its device, the job, its share of the machine's cores."""

import contextlib
from collections.abc import Iterator

import torch

from windrow.comm.connect import connect, ending_all_ranks
from windrow.comm.errors import RecipeError
from windrow.comm.launcher import launched_local_rank
from windrow.comm.meter import Meter
from windrow.comm.world import World
from windrow.launch.environment import kernel_id, usable_cores
from windrow.launch.run_options import RunOptions

__all__ = ["joined_job"]


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
    ) as world:
        torch.set_num_threads(options.threads or max(1, usable_cores() // _ranks_on_this_machine(world)))
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


def _ranks_on_this_machine(world: World) -> int:
    """How many ranks share this machine's cores, those on its emulated hosts too. Collective."""
    kernels = world.all_gather_object(kernel_id(), stage="hosts")
    return kernels.count(kernels[world.rank])
