"""Which ranks share a machine, and its cores."""

import platform
import socket
from collections.abc import Sequence
from pathlib import Path

from windrow.comm.process import core_share, own_cores
from windrow.comm.world import World

__all__ = ["cores_of_rank", "gather_hosts", "host_groups", "kernel_id"]


def kernel_id(boot_id: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """What processes have in common that share cores and memory: the start of a kernel, whatever the host is called.

    Emulated hosts and containers have names of their own and share a machine. Where Linux does not tell, the host's
    name must do.
    """
    try:
        return boot_id.read_text(encoding="ascii").strip()
    except OSError:
        return platform.node()


def cores_of_rank(world: World) -> int:
    """This rank's share of its machine's cores, at least one; ranks on its emulated hosts share too. Collective."""
    of_ranks = world.all_gather_object((kernel_id(), own_cores()), stage="hosts")
    machine, own = of_ranks[world.rank]
    return core_share(own, [cores for other, cores in of_ranks if other == machine])


def gather_hosts(world: World) -> list[str]:
    """The host of each rank, by its name. Collective.

    Emulated hosts have names of their own; machines that have the same name are told apart by their kernels.
    """
    found = world.all_gather_object((socket.gethostname(), kernel_id()), stage="hosts")
    machines = list(dict.fromkeys(found))
    kernels = {name: [kernel for other, kernel in machines if other == name] for name, _ in found}
    numbers = [kernels[name].index(kernel) for name, kernel in found]
    return [f"{name} ({n + 1})" if n else name for (name, _), n in zip(found, numbers, strict=True)]


def host_groups(hosts: Sequence[str]) -> list[list[int]]:
    """The ranks of each host, rising, for `World.split`; hosts in the order of their first rank."""
    groups: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        groups.setdefault(host, []).append(rank)
    return list(groups.values())
