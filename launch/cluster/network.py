"""The network of an emulated cluster: a switch, and hosts connected to it.

Each host is a network namespace with its own eth0 and lo::

    host0-1gbit            host1-1gbit
    eth0 10.77.0.1         eth0 10.77.0.2
        |                      |                       a pair of virtual interfaces: one link
      port0                  port1
    ----+------- switch -------+----- 10.77.0.254      the namespace of windrow cluster itself
"""

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from windrow.comm.errors import ClusterError
from windrow.launch.cluster.options import INTERFACE, ClusterOptions
from windrow.launch.cluster.shaping import link_shape, shaping_commands

__all__ = [
    "ETC_HOSTS",
    "SWITCH",
    "SWITCH_ADDRESS",
    "TOOLS",
    "SetUp",
    "build_network",
    "find_program",
    "host_address",
    "interface_commands",
    "require_tools",
]

SWITCH: Final = "switch"
"""Interface by which the launcher reaches the hosts."""

SWITCH_ADDRESS: Final = "10.77.0.254"

ETC_HOSTS: Final = Path("/etc/hosts")
"""Names of the hosts, in the cluster's own mount namespace."""

TOOLS: Final = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "hostname": "hostname"}
"""Programs that must be there, and the packages that bring them."""

ADMINISTRATION_PATH: Final = "/usr/sbin:/sbin"
"""Where some distributions keep them, which a user's PATH may lack."""

WITHOUT_TOOLS: Final = "What works without: ranks on this machine, and a real cluster by a host file."


class SetUp:
    """Runs the programs of the set-up, all of them before one deadline.

    Args:
        deadline_s: seconds for all programs together.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._end = time.monotonic() + deadline_s

    def run(
        self, *command: str, text: str = "", check: bool = True, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program.

        Args:
            command: with its arguments.
            text: what it reads.
            check: whether to raise where it fails.
            environment: for it; None: that of this process.

        Returns:
            What it wrote, and its exit status.

        Raises:
            ClusterError: it is not there, failed, or did not end before the deadline.
        """
        program = find_program(command[0])
        if program is None:
            raise ClusterError(f"{command[0]} is not on the PATH. {WITHOUT_TOOLS}")
        try:
            done = subprocess.run(
                [program, *command[1:]],
                input=text,
                capture_output=True,
                text=True,
                check=False,
                env=environment,
                timeout=max(0.01, self._end - time.monotonic()),
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(
                f"setting up the cluster took longer than {self._deadline_s:g} s; it hung in: {' '.join(command)}"
            ) from error
        if check and done.returncode != 0:
            raise ClusterError(
                f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}. If the kernel lacks what "
                "it asks for (modules bridge, veth, sch_htb, cls_u32), load them (modprobe), or give --rate unlimited "
                f"where shaping alone is missing. {WITHOUT_TOOLS}"
            )
        return done


def build_network(options: ClusterOptions, set_up: SetUp) -> None:
    """Make switch, hosts and links, and shape the links. The process is in network and mount namespaces of its own.

    Args:
        options: of the cluster.
        set_up: runs the programs.

    Raises:
        ClusterError: a program is missing, or failed.
    """
    require_tools()
    set_up.run("ip", "-batch", "-", text=_lines(interface_commands(options)))
    ports: list[str] = []
    for number, (host, rate) in enumerate(zip(options.hosts, options.rates, strict=True)):
        set_up.run("ip", "-netns", host, "-batch", "-", text=_lines(_host_commands(number, rate)))
        # A connection that pauses between steps keeps its window, as over links that lose nothing.
        setting = "echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle"
        set_up.run("ip", "netns", "exec", host, "sh", "-c", setting)
        if rate is None:
            continue
        shape = link_shape(rate)
        peers = [host_address(other) for other in range(len(options.hosts)) if other != number]
        queues = shaping_commands(INTERFACE, shape, peers, by="dst")
        set_up.run("tc", "-netns", host, "-batch", "-", text=_lines(queues))
        ports += shaping_commands(_port(number), shape, peers, by="src")
    if ports:
        set_up.run("tc", "-batch", "-", text=_lines(ports))


def find_program(name: str) -> str | None:
    """Where a program is: on the PATH, or in the folders for administration, which a user's PATH may lack.

    Args:
        name: of the program.
    """
    return shutil.which(name) or shutil.which(name, path=ADMINISTRATION_PATH)


def require_tools() -> None:
    """Refuse where a program is missing.

    Raises:
        ClusterError: with the package that brings it.
    """
    missing = [name for name in TOOLS if find_program(name) is None]
    if missing:
        packages = " and ".join(sorted({TOOLS[name] for name in missing}))
        raise ClusterError(
            f"{' and '.join(missing)} not found: install {packages} (apt install {packages}). {WITHOUT_TOOLS}"
        )


def host_address(number: int) -> str:
    """Address of a host in the cluster's own network.

    Args:
        number: 0 for the first.
    """
    return f"10.77.0.{number + 1}"


def interface_commands(options: ClusterOptions) -> list[str]:
    """Lines for ``ip -batch`` that make the switch, the hosts, and a link from each host to the switch.

    Args:
        options: of the cluster.
    """
    lines = [
        "link set lo up",
        f"link add {SWITCH} type bridge",
        f"addr add {SWITCH_ADDRESS}/24 dev {SWITCH}",
        f"link set {SWITCH} up",
    ]
    for number, (host, rate) in enumerate(zip(options.hosts, options.rates, strict=True)):
        port = _port(number)
        lines += [
            f"netns add {host}",
            f"link add {port} type veth peer name {INTERFACE} netns {host}",
            f"link set {port} master {SWITCH} up{_packet_limit(rate)}",
        ]
    return lines


def _host_commands(number: int, rate: int | None) -> list[str]:
    return [
        "link set lo up",
        f"addr add {host_address(number)}/24 dev {INTERFACE}",
        f"link set {INTERFACE} up{_packet_limit(rate)}",
    ]


def _packet_limit(rate: int | None) -> str:
    """Packets handed over in one piece must fit into the bucket of the link."""
    return "" if rate is None else f" gso_max_size {link_shape(rate).packet_bytes}"


def _port(number: int) -> str:
    return f"port{number}"


def _lines(commands: Sequence[str]) -> str:
    return "".join(f"{command}\n" for command in commands)
