"""Run a command in an emulated cluster: set up, prove, run, pass signals on, and let the kernel end what is left.

Two processes have a part in it::

    the process that was started                       process 1 of the new process namespace
    checks the options, enters new namespaces
    fork --------------------------------------------> private mounts, switch, hosts, links, files
    waits, passes SIGINT, SIGTERM, SIGHUP on           ping-pong over each link
                                                       starts the command, reaps orphans, passes signals on
    <------------------------------------------------- exit status, 2 where there is no cluster

Files and environment for MPICH make a plain ``mpirun`` inside the cluster start its ranks on the hosts.
"""

import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, Never

from benchmarks.emulated_cluster.namespaces import bind, die_with_parent, enter_namespaces, mount_private_folders
from benchmarks.emulated_cluster.network import (
    CLUSTER_VARIABLE,
    INSTEAD,
    INTERFACE,
    SWITCH,
    SWITCH_ADDRESS,
    TOOLS,
    ClusterError,
    ClusterOptions,
    SetUp,
    build_network,
    find_program,
    host_address,
    require_tools,
)
from benchmarks.emulated_cluster.proof import prove
from windrow.comm.launcher import launched_size

__all__ = ["cluster_environment", "require_machine", "require_mpich", "run_in_cluster", "write_launcher_files"]

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

ENTER_HOST: Final = "enter-host"
HOST_FILE: Final = "hosts"
NAMES: Final = "names"
"""Files for the launcher: what enters a host, names of the hosts for mpirun, and what /etc/hosts is to say."""


def require_mpich(set_up: SetUp) -> None:
    """Refuse another mpirun than MPICH's.

    Raises:
        ClusterError: it is another one's.
    """
    found = set_up.run("mpirun", "--version", check=False)
    said = (found.stdout + found.stderr).strip()
    if "HYDRA" not in said:
        first_line = said.partition("\n")[0] or f"exit status {found.returncode}"
        raise ClusterError(
            f"the mpirun on the PATH is not MPICH's ({first_line}), and an emulated cluster starts ranks through MPICH "
            "only. Install MPICH (make install, or apt install mpich) and put its mpirun first on the PATH. A real "
            "cluster needs no emulation and works with any MPI."
        )


def write_launcher_files(options: ClusterOptions, folder: Path) -> None:
    """Write what mpirun needs into an existing folder, which can hold programs."""
    tools = {name: shlex.quote(find_program(name) or name) for name in TOOLS}
    (folder / ENTER_HOST).write_text(SCRIPT.format(**tools), encoding="utf-8")
    (folder / ENTER_HOST).chmod(0o755)
    (folder / HOST_FILE).write_text("".join(f"{host}\n" for host in options.hosts), encoding="utf-8")
    known = ["127.0.0.1 localhost", "::1 localhost", f"{SWITCH_ADDRESS} {os.uname().nodename}"]
    known += [f"{host_address(number)} {host}" for number, host in enumerate(options.hosts)]
    (folder / NAMES).write_text("".join(f"{line}\n" for line in known), encoding="utf-8")


def cluster_environment(options: ClusterOptions, folder: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of everything that runs in the cluster; inherited settings of where ranks start give way."""
    kept = {name: value for name, value in inherited.items() if name not in OTHER_LAUNCHERS}
    return {
        # Else each host's launcher describes the processors in a file of /tmp, which stays there when it is killed.
        "HWLOC_XMLFILE": "",
        **kept,
        **TRANSPORT,
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(folder / ENTER_HOST),
        "HYDRA_HOST_FILE": str(folder / HOST_FILE),
        "HYDRA_IFACE": SWITCH,
        CLUSTER_VARIABLE: options.to_json(),
    }


SET_UP_S: Final = 60.0
PER_HOST_S: Final = 5.0
"""Seconds that everything before the command may take; usually it takes one or two, and messages of the proof over the
slowest links two for each host."""

PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
FROM_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)
"""Sent by a terminal to all its foreground processes at once: the command has these already."""

SENT_BY_KERNEL: Final = 0
"""Above this, a signal's code says that the kernel sent it, for a terminal; kill(2) gives this one."""

SIGNALLED: Final = 128
"""Added to a signal's number, the exit status of what the signal ended, as in a shell."""

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
"""Exit statuses of a shell for a command that cannot be started."""


def run_in_cluster(options: ClusterOptions, command: Sequence[str]) -> int:
    """Run a command in a cluster that ends with it.

    Changes this process for good: it becomes part of new namespaces. And it returns twice, as fork does: in this
    process and in process 1, which then has to end. Call it in a process that does nothing else.

    Args:
        options: of the cluster.
        command: and its arguments; what it starts through mpirun runs on the hosts.

    Returns:
        Exit status of the command; 128 + its number where a signal ended it; 127 or 126 where it cannot be started.

    Raises:
        ClusterError: this machine cannot, which either process may find out.
    """
    # Who starts this may have left SIGCHLD ignored, and then nobody could wait for a child.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    require_machine()
    watched = {number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN}
    alive, kept_open = os.pipe()
    try:
        enter_namespaces()
        # Until the child has its own handlers, what arrives waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, watched | {signal.SIGCHLD})
        child = os.fork()
        if child:
            return _pass_on_until_end(child, watched)
        os.close(kept_open)
        die_with_parent(alive)
        environment = _set_up(options, watched)
    except OSError as error:
        raise ClusterError(
            f"cannot make new namespaces and their mounts: {error}. Run this as root (sudo), or let the kernel give "
            "users their own namespaces (sysctl user.max_user_namespaces above 0; on Ubuntu also "
            f"kernel.apparmor_restrict_unprivileged_userns=0); a container needs the capability SYS_ADMIN. {INSTEAD}"
        ) from error
    return _run_command(command, environment, watched)


def require_machine() -> None:
    """Refuse where this cannot work, as far as that shows without trying.

    Raises:
        ClusterError: with what is missing, and how to get it.
    """
    if sys.platform != "linux":
        raise ClusterError(f"hosts are emulated with Linux's network namespaces, and this is {sys.platform}. {INSTEAD}")
    if launched_size() > 1:
        raise ClusterError(f"one process makes a cluster, but the launcher started {launched_size()}: no mpirun")
    if CLUSTER_VARIABLE in os.environ:
        raise ClusterError("this is an emulated cluster already: start another one outside of it")
    require_tools()
    require_mpich(SetUp(SET_UP_S))


def _set_up(options: ClusterOptions, watched: set[signal.Signals]) -> dict[str, str]:
    """Make and prove the cluster; returns the environment of the command."""

    def interrupt(number: int, _: FrameType | None) -> Never:
        sys.exit(SIGNALLED + number)

    for number in watched:
        signal.signal(number, interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, watched | {signal.SIGCHLD})
    set_up = SetUp(SET_UP_S + PER_HOST_S * len(options.hosts))
    folder = mount_private_folders()
    write_launcher_files(options, folder)
    bind(folder / NAMES, Path("/etc/hosts"))
    build_network(options, set_up)
    environment = cluster_environment(options, folder, os.environ)
    print(prove(options, environment, set_up), file=sys.stderr, flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, watched | {signal.SIGCHLD})
    return environment


def _run_command(command: Sequence[str], environment: dict[str, str], watched: set[signal.Signals]) -> int:
    """Start the command, with signals as its caller had them, and wait."""
    try:
        child = os.posix_spawnp(
            command[0], list(command), environment, setsigmask=(), setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
        )
    except OSError as error:
        print(f"emulated_cluster: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    return _pass_on_until_end(child, watched)


def _pass_on_until_end(child: int, watched: set[signal.Signals]) -> int:
    """Wait for a child and reap orphans; pass signals on, and end the child where the same one comes again.

    The signals to watch are blocked, like SIGCHLD. Returns the child's exit status, as in a shell.
    """
    passed: set[int] = set()
    while True:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == child:
            code = os.waitstatus_to_exitcode(status)
            return SIGNALLED - code if code < 0 else code
        if process != 0:
            continue
        arrived = signal.sigwaitinfo(watched | {signal.SIGCHLD})
        number = arrived.si_signo
        if number == signal.SIGCHLD or (number in FROM_TERMINAL and arrived.si_code > SENT_BY_KERNEL):
            continue
        os.kill(child, signal.SIGKILL if number in passed else number)
        passed.add(number)
