"""How a link is held to its rate: the queues on both of its ends, as arguments of ``tc`` and ``ip``.

A link is a pair of virtual interfaces: the host's, and a port of the switch. Each end shapes what it sends, so both
directions have the rate, and each has one queue for every other host, served in turn::

    host i, eth0 (to the switch)            port i of the switch (to host i)
      link: rate R, borrows from nobody       link: rate R
      +-- to host 0:   R/(N-1), at most R     +-- from host 0:   R/(N-1), at most R
      +-- to host 1:   ...                    +-- from host 1:   ...
      +-- the rest:    R/100,   at most R     +-- the rest:      R/100,   at most R

A single queue would be unfair between senders: on 4 hosts an all-to-all then reaches 80 to 88 % of the wire instead of
93 to 96 %. Queues are long enough that nothing is dropped, as in a switch with flow control.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["LinkShape", "link_shape", "shaping_commands"]

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


@dataclass(frozen=True, kw_only=True)
class LinkShape:
    """The figures that a link is held to."""

    rate: int
    """Bits per second."""

    burst_bytes: int
    """What may pass at once."""

    packet_bytes: int
    """Longest packet handed over in one piece; it fits into the burst."""


def link_shape(rate: int) -> LinkShape:
    """The figures of a link.

    Args:
        rate: bits per second.
    """
    burst = min(max(round(rate * BURST_S / 8), SMALLEST_BURST_BYTES), LARGEST_BURST_BYTES)
    fits = burst >= LARGE_PACKET_BYTES + HEADERS_BYTES
    return LinkShape(
        rate=rate, burst_bytes=burst, packet_bytes=LARGE_PACKET_BYTES if fits else SMALL_PACKET_BYTES
    )


def shaping_commands(interface: str, shape: LinkShape, peers: Sequence[str], *, by: str) -> list[str]:
    """Lines for ``tc -batch`` that shape what an interface sends.

    Args:
        interface: its name.
        shape: of the link.
        peers: addresses of the other hosts, one queue each.
        by: "dst" where the peers are where packets go (a host's end), "src" where they come from (the switch's end).
    """
    bucket = f"burst {shape.burst_bytes} cburst {shape.burst_bytes} quantum {shape.packet_bytes}"
    rest = max(1, round(shape.rate * REST_SHARE))
    share = (shape.rate - rest) // len(peers)
    link = f"class add dev {interface} parent"
    lines = [
        f"qdisc add dev {interface} root handle 1: htb default {REST_CLASS:x}",
        f"{link} 1: classid 1:{ROOT_CLASS:x} htb rate {shape.rate}bit ceil {shape.rate}bit {bucket}",
        f"{link} 1:{ROOT_CLASS:x} classid 1:{REST_CLASS:x} htb rate {rest}bit ceil {shape.rate}bit {bucket}",
        f"qdisc add dev {interface} parent 1:{REST_CLASS:x} bfifo limit {QUEUE_BYTES}",
    ]
    for number, address in enumerate(peers, FIRST_PEER_CLASS):
        queue = f"1:{number:x}"
        lines += [
            f"{link} 1:{ROOT_CLASS:x} classid {queue} htb rate {share}bit ceil {shape.rate}bit {bucket}",
            f"qdisc add dev {interface} parent {queue} bfifo limit {QUEUE_BYTES}",
            f"filter add dev {interface} parent 1: protocol ip u32 match ip {by} {address}/32 flowid {queue}",
        ]
    return lines
