"""Where the ranks of a torch.distributed job meet, and how such a job is ended."""

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

__all__ = ["Rendezvous", "exit_now", "free_port"]


def exit_now(code: int) -> NoReturn:
    """End this process with a status, waiting for nobody: MPI's own way out would wait for every rank."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """How the ranks of a job find each other.

    `windrow.comm.mpi_world.mpi_rendezvous` makes one under mpirun or srun; `from_torchrun` under torchrun.
    """

    rank: int
    """This process's number."""

    size: int
    """Number of ranks."""

    host: str
    """Name or address of rank 0's machine, reachable from all."""

    port: int
    """A free TCP port there."""

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


def free_port(host: str) -> int:
    """A TCP port that nobody listens on at this moment.

    Args:
        host: address of this machine to try it at; empty for all of them.
    """
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port
