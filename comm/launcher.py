"""What the launcher's environment says about this process, before any communication library is imported."""

import os
from collections.abc import Mapping

__all__ = ["launched_by_torchrun", "launched_local_rank", "launched_rank", "launched_size"]

RANK_AND_SIZE = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI's mpirun
    ("PMI_RANK", "PMI_SIZE"),  # MPICH's mpirun, srun --mpi=pmi2
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),  # srun --mpi=pmix
    ("RANK", "WORLD_SIZE"),  # torchrun
)

LOCAL_RANK = (
    "OMPI_COMM_WORLD_LOCAL_RANK",  # Open MPI's mpirun
    "MPI_LOCALRANKID",  # MPICH's mpirun
    "SLURM_LOCALID",  # srun
    "LOCAL_RANK",  # torchrun
)


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """This process's rank as its launcher set it; 0 where nothing launched it."""
    return _launched(environment)[0]


def launched_size(environment: Mapping[str, str] = os.environ) -> int:
    """The number of ranks as the launcher set it; 1 where nothing launched this process."""
    return _launched(environment)[1]


def launched_local_rank(environment: Mapping[str, str] = os.environ) -> int:
    """This process's number among those on its machine: which GPU is its own; 0 where no launcher says."""
    return next((int(environment[name]) for name in LOCAL_RANK if name in environment), 0)


def launched_by_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun, and no MPI launcher, started this process."""
    return _launcher(environment) == RANK_AND_SIZE[-1]


def _launcher(environment: Mapping[str, str]) -> tuple[str, str] | None:
    return next((names for names in RANK_AND_SIZE if all(name in environment for name in names)), None)


def _launched(environment: Mapping[str, str]) -> tuple[int, int]:
    names = _launcher(environment)
    return (0, 1) if names is None else (int(environment[names[0]]), int(environment[names[1]]))
