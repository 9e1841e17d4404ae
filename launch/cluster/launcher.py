"""How a plain ``mpirun`` inside the cluster comes to start its ranks on the hosts: files and environment for MPICH."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from windrow.comm.errors import ClusterError
from windrow.launch.cluster.network import SWITCH, SWITCH_ADDRESS, TOOLS, SetUp, find_program, host_address
from windrow.launch.cluster.options import CLUSTER_VARIABLE, INTERFACE, ClusterOptions

__all__ = ["LauncherFiles", "cluster_environment", "require_mpich", "write_launcher_files"]

SCRIPT: Final = """\
#!/bin/sh
# Called as ssh would be: [OPTION...] HOST COMMAND...
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
host=$1
shift
exec {ip} netns exec "$host" {unshare} --uts --pid --fork --kill-child --mount-proc \\
    sh -c '{hostname} "$0" && exec sh -c "$1"' "$host" "$*"
"""
"""Enters a host: its network and its name, and a process namespace, so that a launcher's process there takes its ranks
along when it dies, as a machine would. Without that, a killed one leaves ranks that keep its connection open, and
mpirun waits for ever."""

TRANSPORT: Final = {
    # Ranks share a kernel: without these, messages go through shared memory and past every link.
    "MPIR_CVAR_NOLOCAL": "1",
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": INTERFACE,
    # Long messages written without a copy reach 54 % of a link of 1 Gbit/s between 4 hosts, copied ones 93 to 96 %.
    "UCX_TCP_PUT_ENABLE": "n",
    "GLOO_SOCKET_IFNAME": INTERFACE,
}
"""What ranks find in their environment: where messages go."""

OTHER_LAUNCHERS: Final = ("HYDRA_BOOTSTRAP", "HYDRA_BOOTSTRAP_EXEC", "HYDRA_CONFIG_FILE", "HYDRA_RMK")
"""Settings that would lead MPICH's mpirun past the emulated hosts."""


@dataclass(frozen=True, kw_only=True)
class LauncherFiles:
    """Paths of the files that `write_launcher_files` wrote."""

    script: Path
    """What enters a host."""

    host_file: Path
    """Names of the hosts, for mpirun."""

    names: Path
    """What /etc/hosts is to say: which address each name has."""


def require_mpich(set_up: SetUp) -> None:
    """Refuse another mpirun than MPICH's.

    Args:
        set_up: runs the programs.

    Raises:
        ClusterError: there is none, or it is another one's.
    """
    cure = "Install MPICH (pip install windrow[mpich], or apt install mpich) and put its mpirun first on the PATH."
    try:
        found = set_up.run("mpirun", "--version", check=False)
    except ClusterError as error:
        raise ClusterError(f"no mpirun to start ranks with ({error}) {cure}") from error
    said = (found.stdout + found.stderr).strip()
    if "HYDRA" not in said:
        first_line = said.partition("\n")[0] or f"exit status {found.returncode}"
        raise ClusterError(
            f"the mpirun on the PATH is not MPICH's ({first_line}), and an emulated cluster starts ranks through MPICH "
            f"only. {cure} A real cluster needs no emulation and works with any MPI."
        )


def write_launcher_files(options: ClusterOptions, folder: Path) -> LauncherFiles:
    """Write what mpirun needs.

    Args:
        options: of the cluster.
        folder: an existing one, which can hold programs.
    """
    files = LauncherFiles(script=folder / "enter-host", host_file=folder / "hosts", names=folder / "names")
    tools = {name: shlex.quote(find_program(name) or name) for name in TOOLS}
    files.script.write_text(SCRIPT.format(**tools), encoding="utf-8")
    files.script.chmod(0o755)
    files.host_file.write_text("".join(f"{host}\n" for host in options.hosts), encoding="utf-8")
    known = ["127.0.0.1 localhost", "::1 localhost", f"{SWITCH_ADDRESS} {os.uname().nodename}"]
    known += [f"{host_address(number)} {host}" for number, host in enumerate(options.hosts)]
    files.names.write_text("".join(f"{line}\n" for line in known), encoding="utf-8")
    return files


def cluster_environment(
    options: ClusterOptions, files: LauncherFiles, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The environment of everything that runs in the cluster.

    Args:
        options: of the cluster.
        files: from `write_launcher_files`.
        inherited: the environment outside; other settings of where mpirun starts ranks give way.
    """
    kept = {name: value for name, value in inherited.items() if name not in OTHER_LAUNCHERS}
    return {
        # Else each host's launcher describes the processors in a file of /tmp, which stays there when it is killed.
        "HWLOC_XMLFILE": "",
        **kept,
        **TRANSPORT,
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(files.script),
        "HYDRA_HOST_FILE": str(files.host_file),
        "HYDRA_IFACE": SWITCH,
        CLUSTER_VARIABLE: options.to_json(),
    }
