"""What the launcher says about this process, where the ranks of a torch.distributed job meet, and how a process ends.

No communication library is imported with this module, nor PyTorch.
"""

import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

__all__ = [
    "DEFAULT_DEADLINE_S",
    "Rendezvous",
    "abort_job",
    "exit_now",
    "launched_by_torchrun",
    "launched_local_rank",
    "launched_rank",
    "launched_size",
    "launchers_output",
    "listen",
]

DEFAULT_DEADLINE_S = 600.0
"""Seconds that a wait may take: longer than any honest stage, short enough that a hung job ends by itself."""

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
)

LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun")
"""Programs that pass on what ranks print."""


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """This process's rank as its launcher set it; 0 where nothing launched it."""
    names = _launcher(environment)
    return int(environment[names[0]]) if names else 0


def launched_size(environment: Mapping[str, str] = os.environ) -> int:
    """The number of ranks as the launcher set it; 1 where nothing launched this process."""
    names = _launcher(environment)
    return int(environment[names[1]]) if names else 1


def launched_local_rank(environment: Mapping[str, str] = os.environ) -> int:
    """This process's number among those on its machine: which GPU is its own; 0 where no launcher says."""
    if launched_by_torchrun(environment):
        return int(environment.get("LOCAL_RANK", 0))
    return next((int(environment[name]) for name in LOCAL_RANK if name in environment), 0)


def launched_by_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun, and no MPI launcher, started this process."""
    return _launcher(environment) == RANK_AND_SIZE[-1]


def _launcher(environment: Mapping[str, str]) -> tuple[str, str] | None:
    if "TORCHELASTIC_RUN_ID" in environment:
        # A worker of torchrun also has what srun told torchrun itself.
        return RANK_AND_SIZE[-1]
    return next((names for names in RANK_AND_SIZE if all(name in environment for name in names)), None)


def launchers_output() -> Path | None:
    """Where the launcher that started this process prints what ranks print: a path that can be opened.

    None where the launcher runs on another machine, or this is not Linux.
    """
    process = os.getpid()
    while process > 1:
        try:
            name, _, rest = Path(f"/proc/{process}/stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            return None
        if name in LAUNCHERS:
            return Path(f"/proc/{process}/fd/1")
        process = int(rest.split()[1])
    return None


def exit_now(code: int) -> NoReturn:
    """End this process with a status, waiting for nobody: MPI's own way out would wait for every rank."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def abort_job(code: int) -> NoReturn:
    """End every rank with a status, through MPI_Abort; joins the job first where this rank has not.

    Whoever calls it has said why: what MPI itself would print about it is left out.
    """
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    MPI.COMM_WORLD.Abort(code)
    raise SystemExit(code)


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """How the ranks of a job find each other.

    `windrow.comm.mpi_world.mpi_rendezvous` makes one under mpirun or srun; `from_torchrun` under torchrun.
    """

    rank: int
    size: int
    host: str
    """Name or address of rank 0's machine, reachable from all."""
    port: int
    """A TCP port there: a free one, or that of `listener`."""
    listener: int | None = None
    """On rank 0 a socket that listens at the port already, of which the world that meets there takes charge. Without,
    nobody may come before rank 0: who finds nobody there tries again only after half a second or so."""
    abort: Callable[[int], NoReturn] = exit_now
    """Ends every rank with an exit status. By default this process exits, and its launcher ends the others."""

    @staticmethod
    def from_torchrun() -> "Rendezvous":
        """Read the environment that torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)."""
        return Rendezvous(
            rank=int(os.environ["RANK"]),
            size=int(os.environ["WORLD_SIZE"]),
            host=os.environ["MASTER_ADDR"],
            port=int(os.environ["MASTER_PORT"]),
        )


def listen(host: str) -> tuple[int, int]:
    """Listen at an address of this machine (empty: at all of them): the socket's file descriptor, and its TCP port."""
    dual = not host and socket.has_dualstack_ipv6()
    made = socket.create_server((host, 0), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual)
    port: int = made.getsockname()[1]
    return made.detach(), port
