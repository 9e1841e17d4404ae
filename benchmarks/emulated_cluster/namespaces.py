"""A private corner of the kernel: own network, mounts and processes, all of which end with one process.

Nothing needs to be cleaned up, however any of these processes ends::

    this process --fork--> process 1 of the new process namespace --> everything else
         |                        |
         +-- when it dies, the kernel kills process 1
                                  +-- when that dies, the kernel kills everything in the namespace, and with the last
                                      process go its network (hosts, switch, queues) and its mounts (temporary files)

The calls are made here, and not by unshare(1): before util-linux 2.41 it passes no signals on, and where it is killed
before its child has asked to die with it, the child lives on.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any, Final

__all__ = ["bind", "die_with_parent", "enter_namespaces", "mount_private_folders"]

CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWIPC: Final = 0x0800_0000
CLONE_NEWUSER: Final = 0x1000_0000
CLONE_NEWPID: Final = 0x2000_0000
CLONE_NEWNET: Final = 0x4000_0000
"""Flags of unshare(2), from linux/sched.h."""

MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
"""Flags of mount(2), from linux/mount.h."""

PR_SET_PDEATHSIG: Final = 1
"""Of prctl(2), from linux/prctl.h."""

NETWORK_NAMESPACES: Final = "netns"
"""Folder in /var/run where ``ip netns`` keeps names of network namespaces."""

SHARED_MEMORY: Final = Path("/dev/shm")
"""Where each rank of MPICH keeps a file of 1 MB, which stays there when the rank is killed."""


def enter_namespaces() -> None:
    """Move this process to new network, mount and IPC namespaces, and its future children to a new process namespace.

    Whoever is not root becomes root of a new user namespace, where the kernel allows it. This cannot be undone.

    Raises:
        OSError: the kernel refuses.
    """
    flags = CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID
    user, group = os.geteuid(), os.getegid()
    _call("unshare", flags if user == 0 else flags | CLONE_NEWUSER)
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    # Mounts made from here on must not reach the rest of the machine.
    _mount("none", "/", None, MS_REC | MS_PRIVATE)


def die_with_parent(alive: int) -> None:
    """Have the kernel kill this process when its parent ends, or exit where it has ended already.

    Args:
        alive: a pipe to read from, which the parent alone can write to, and never does.
    """
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if select.select([alive], [], [], 0)[0]:
        sys.exit("the process that started this one was killed")


def mount_private_folders() -> Path:
    """Give process 1 of the new namespaces its own /proc, names of network namespaces, and shared memory.

    Returns:
        A folder for temporary files, which vanish with the namespaces as the others do.

    Raises:
        OSError: the kernel refuses.
    """
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    services = Path("/var/run").resolve()
    for folder in filter(Path.is_dir, (services, SHARED_MEMORY)):
        _private_copy(folder)
    names = services / NETWORK_NAMESPACES
    names.mkdir(exist_ok=True)
    _mount("tmpfs", str(names), "tmpfs", MS_NOSUID | MS_NODEV)
    folder = services / "emulated-cluster"
    folder.mkdir()
    return folder


def _private_copy(folder: Path) -> None:
    """Put a folder in memory in the place of a folder, with what is in it still to be seen."""
    before = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        entries = [(entry.name, entry.is_symlink(), entry.is_dir()) for entry in os.scandir(folder)]
        _mount("tmpfs", str(folder), "tmpfs", MS_NOSUID | MS_NODEV)
        for name, is_link, is_folder in entries:
            # A service of the machine may remove its file at any moment.
            with contextlib.suppress(FileNotFoundError):
                if is_link:
                    (folder / name).symlink_to(os.readlink(name, dir_fd=before))
                    continue
                if is_folder:
                    (folder / name).mkdir()
                else:
                    (folder / name).touch()
                _mount(f"/proc/self/fd/{before}/{name}", str(folder / name), None, MS_BIND | MS_REC)
    finally:
        os.close(before)


def bind(source: Path, target: Path) -> None:
    """Put a file in the place of an existing one, in this mount namespace alone."""
    _mount(str(source), str(target), None, MS_BIND)


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    _call("mount", *arguments, ctypes.c_ulong(flags), None, about=target)


def _call(function: str, *arguments: Any, about: str | None = None) -> None:
    """Call a function of the C library that returns 0 where it worked."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), about)
