"""The network of an emulated cluster: its options, a switch, hosts connected to it, and links held to their rates.

Each host is a network namespace with its own eth0 and lo::

    host0-1gbit            host1-1gbit
    eth0 10.77.0.1         eth0 10.77.0.2
        |                      |                       a pair of virtual interfaces: one link
      port0                  port1
    ----+------- switch -------+----- 10.77.0.254      the namespace of process 1

Each end of a link shapes what it sends (queues of ``tc``), so both directions have the rate, and each has one queue for
every other host, served in turn::

    host i, eth0 (to the switch)            port i of the switch (to host i)
      link: rate R, borrows from nobody       link: rate R
      +-- to host 0:   R/(N-1), at most R     +-- from host 0:   R/(N-1), at most R
      +-- to host 1:   ...                    +-- from host 1:   ...
      +-- the rest:    R/100,   at most R     +-- the rest:      R/100,   at most R

A single queue would be unfair between senders: on 4 hosts an all-to-all then reaches 80 to 88 % of the wire instead of
93 to 96 %. Queues are long enough that nothing is dropped, as in a switch with flow control.
"""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

__all__ = [
    "CLUSTER_VARIABLE",
    "INSTEAD",
    "INTERFACE",
    "SWITCH",
    "SWITCH_ADDRESS",
    "TOOLS",
    "ClusterError",
    "ClusterOptions",
    "SetUp",
    "build_network",
    "find_program",
    "format_rate",
    "host_address",
    "link_shape",
    "make_options",
    "parse_rate",
    "require_tools",
    "shaping_commands",
]

MAX_HOSTS: Final = 64
"""Each link has a queue for every other host, so their number grows with the square: 64 hosts have 8064 of them."""

SLOWEST_BITS_PER_SECOND: Final = 10_000_000
FASTEST_BITS_PER_SECOND: Final = 100_000_000_000
"""Bits per second: slower, the proof before each use would take minutes; faster, no processor carries even one link."""

UNLIMITED: Final = "unlimited"

CLUSTER_VARIABLE: Final = "WINDROW_CLUSTER"
"""Environment variable that tells the command inside what it runs on (`ClusterOptions.to_json`)."""

INTERFACE: Final = "eth0"
"""Name of each host's network interface."""

UNITS: Final = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}

INSTEAD: Final = "What works without: ranks on this machine (mpirun -n 4 ...), and a real cluster by a host file."


class ClusterError(RuntimeError):
    """An emulated cluster cannot be made on this machine, was described wrongly, or failed its own proof."""


class ClusterOptions(NamedTuple):
    """An emulated cluster. `make_options` reads one from a command line."""

    rates: tuple[int | None, ...]
    """Bits per second of each host's link, in each direction; None where it is not limited."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Name of each host: its number and its rate, since what was measured on one network is kept by host names."""
        return tuple(f"host{number}-{format_rate(rate)}" for number, rate in enumerate(self.rates))

    def to_json(self) -> str:
        """Names and rates, as the environment variable `CLUSTER_VARIABLE` holds them."""
        return json.dumps({"hosts": self.hosts, "rates_bits_per_second": self.rates})


def make_options(hosts: int, rates: str) -> ClusterOptions:
    """Read what a command line says: how many hosts, and one rate for all of them or one for each with commas between.

    Raises:
        ClusterError: a rate is none, there are too few or too many of them, or the number of hosts is out of range.
    """
    if hosts < 2:
        raise ClusterError(f"{hosts} host(s) have no network: take --hosts 2 or more, or run the command as it is")
    if hosts > MAX_HOSTS:
        raise ClusterError(f"{hosts} hosts are more than one machine can stand in for: at most {MAX_HOSTS}")
    each = tuple(parse_rate(text) for text in rates.split(","))
    if len(each) == 1:
        each *= hosts
    if len(each) != hosts:
        raise ClusterError(
            f"--rate {rates} gives {len(each)} rates for {hosts} hosts: give one for all, or one for each"
        )
    return ClusterOptions(rates=each)


def parse_rate(text: str) -> int | None:
    """Bits per second of a rate such as "100mbit" or "2.5gbit"; None for "unlimited".

    Raises:
        ClusterError: it is none of these, or out of range.
    """
    text = text.strip().lower()
    if text == UNLIMITED:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?bit)", text)
    rate = round(float(match[1]) * UNITS[match[2]]) if match else 0
    if not SLOWEST_BITS_PER_SECOND <= rate <= FASTEST_BITS_PER_SECOND:
        raise ClusterError(
            f"rate {text!r}: expected a number with its unit (2.5gbit), {format_rate(SLOWEST_BITS_PER_SECOND)} to "
            f"{format_rate(FASTEST_BITS_PER_SECOND)}, or {UNLIMITED}"
        )
    return rate


def format_rate(bits_per_second: int | None) -> str:
    """A rate in the largest unit in which it is a whole number, as host names carry it: "2500mbit" for 2.5 Gbit/s."""
    if bits_per_second is None:
        return UNLIMITED
    unit = next(name for name in reversed(UNITS) if bits_per_second % UNITS[name] == 0)
    return f"{bits_per_second // UNITS[unit]}{unit}"


BURST_S: Final = 100e-6
SMALLEST_BURST_BYTES: Final = 17_000
LARGEST_BURST_BYTES: Final = 130_000
"""What may pass at once before the rate holds: what the link carries in 100 microseconds (how late a kernel's timer
may fire), at least one packet of 16 KiB and at most two of 64 KiB. A larger bucket lets whole messages pass unshaped:
with 1 MB, all those below 1 MB."""

SMALL_PACKET_BYTES: Final = 16_384
LARGE_PACKET_BYTES: Final = 65_536
"""Longest packet that the kernel hands to a link in one piece (its smallest usual, and its largest, value)."""

HEADERS_BYTES: Final = 128
"""Room for Ethernet's, IP's and TCP's headers with options."""

QUEUE_BYTES: Final = 16_000_000
"""Of each queue: more than the windows of the TCP connections of one pair of hosts, so that nothing is dropped."""

REST_SHARE: Final = 0.01
"""Of the rate, kept for what goes to or comes from no other host: the launcher's own connections."""

ROOT_CLASS: Final = 1
REST_CLASS: Final = 2
FIRST_PEER_CLASS: Final = 16


class LinkShape(NamedTuple):
    """What may pass a link at once, and the longest packet handed over in one piece, which fits into that; in bytes."""

    burst_bytes: int
    packet_bytes: int


def link_shape(rate: int) -> LinkShape:
    """The figures of a link of so many bits per second."""
    burst = min(max(round(rate * BURST_S / 8), SMALLEST_BURST_BYTES), LARGEST_BURST_BYTES)
    fits = burst >= LARGE_PACKET_BYTES + HEADERS_BYTES
    return LinkShape(burst, LARGE_PACKET_BYTES if fits else SMALL_PACKET_BYTES)


def shaping_commands(interface: str, rate: int, peers: Sequence[str], *, by: str) -> list[str]:
    """Lines for ``tc -batch`` that shape what an interface sends, with a queue for each address of another host.

    The addresses are matched with where packets go ("dst", a host's end) or where they come from ("src", the switch's).
    """
    shape = link_shape(rate)
    bucket = f"burst {shape.burst_bytes} cburst {shape.burst_bytes} quantum {shape.packet_bytes}"
    rest = max(1, round(rate * REST_SHARE))
    share = (rate - rest) // len(peers)
    link = f"class add dev {interface} parent"
    lines = [
        f"qdisc add dev {interface} root handle 1: htb default {REST_CLASS:x}",
        f"{link} 1: classid 1:{ROOT_CLASS:x} htb rate {rate}bit ceil {rate}bit {bucket}",
        f"{link} 1:{ROOT_CLASS:x} classid 1:{REST_CLASS:x} htb rate {rest}bit ceil {rate}bit {bucket}",
        f"qdisc add dev {interface} parent 1:{REST_CLASS:x} bfifo limit {QUEUE_BYTES}",
    ]
    for number, address in enumerate(peers, FIRST_PEER_CLASS):
        queue = f"1:{number:x}"
        lines += [
            f"{link} 1:{ROOT_CLASS:x} classid {queue} htb rate {share}bit ceil {rate}bit {bucket}",
            f"qdisc add dev {interface} parent {queue} bfifo limit {QUEUE_BYTES}",
            f"filter add dev {interface} parent 1: protocol ip u32 match ip {by} {address}/32 flowid {queue}",
        ]
    return lines


SWITCH: Final = "switch"
"""Interface by which the launcher reaches the hosts."""

SWITCH_ADDRESS: Final = "10.77.0.254"

TOOLS: Final = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "hostname": "hostname", "mpirun": "mpich"}
"""Programs that must be there, and the packages that bring them."""

ADMINISTRATION_PATH: Final = "/usr/sbin:/sbin"
"""Where some distributions keep them, which a user's PATH may lack."""


class SetUp:
    """Runs the programs of the set-up, all of them before one deadline, in seconds."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._end = time.monotonic() + deadline_s

    def run(
        self, *command: str, text: str = "", check: bool = True, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program, which reads `text`; None for its environment is that of this process.

        Raises:
            ClusterError: it failed (where that is to be checked), or did not end before the deadline.
        """
        try:
            done = subprocess.run(
                [find_program(command[0]) or command[0], *command[1:]],
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
                f"where shaping alone is missing. {INSTEAD}"
            )
        return done


def build_network(options: ClusterOptions, set_up: SetUp) -> None:
    """Make switch, hosts and links, and shape the links. The process is in network and mount namespaces of its own.

    Raises:
        ClusterError: a program failed.
    """
    # Packets handed over in one piece must fit into the bucket of the link.
    limits = ["" if rate is None else f" gso_max_size {link_shape(rate).packet_bytes}" for rate in options.rates]
    made = [
        "link set lo up",
        f"link add {SWITCH} type bridge",
        f"addr add {SWITCH_ADDRESS}/24 dev {SWITCH}",
        f"link set {SWITCH} up",
    ]
    for number, host in enumerate(options.hosts):
        made += [
            f"netns add {host}",
            f"link add port{number} type veth peer name {INTERFACE} netns {host}",
            f"link set port{number} master {SWITCH} up{limits[number]}",
        ]
    set_up.run("ip", "-batch", "-", text="\n".join(made))
    ports: list[str] = []
    for number, (host, rate) in enumerate(zip(options.hosts, options.rates, strict=True)):
        own = [
            "link set lo up",
            f"addr add {host_address(number)}/24 dev {INTERFACE}",
            f"link set {INTERFACE} up{limits[number]}",
        ]
        set_up.run("ip", "-netns", host, "-batch", "-", text="\n".join(own))
        # A connection that pauses between steps keeps its window, as over links that lose nothing.
        setting = "echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle"
        set_up.run("ip", "netns", "exec", host, "sh", "-c", setting)
        if rate is not None:
            peers = [host_address(other) for other in range(len(options.hosts)) if other != number]
            queues = shaping_commands(INTERFACE, rate, peers, by="dst")
            set_up.run("tc", "-netns", host, "-batch", "-", text="\n".join(queues))
            ports += shaping_commands(f"port{number}", rate, peers, by="src")
    if ports:
        set_up.run("tc", "-batch", "-", text="\n".join(ports))


def find_program(name: str) -> str | None:
    """Where a program is: on the PATH, or in the folders for administration, which a user's PATH may lack."""
    return shutil.which(name) or shutil.which(name, path=ADMINISTRATION_PATH)


def require_tools() -> None:
    """Refuse where a program is missing.

    Raises:
        ClusterError: with the package that brings it.
    """
    missing = [name for name in TOOLS if find_program(name) is None]
    if missing:
        packages = " ".join(sorted({TOOLS[name] for name in missing}))
        raise ClusterError(f"{' and '.join(missing)} not found: apt install {packages}. {INSTEAD}")


def host_address(number: int) -> str:
    """Address of a host, numbered from 0, in the cluster's own network."""
    return f"10.77.0.{number + 1}"
