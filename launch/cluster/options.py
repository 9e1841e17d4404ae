"""What an emulated cluster looks like: how many hosts, how fast their links, what they are called."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from windrow.comm.errors import ClusterError

__all__ = [
    "CLUSTER_VARIABLE",
    "INTERFACE",
    "MAX_HOSTS",
    "UNLIMITED",
    "ClusterOptions",
    "describe_rates",
    "format_rate",
    "make_options",
    "parse_rate",
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


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """An emulated cluster. `make_options` reads one from a command line."""

    rates: tuple[int | None, ...]
    """Bits per second of each host's link, in each direction; None where it is not limited."""

    def __post_init__(self) -> None:
        num_hosts = len(self.rates)
        if num_hosts < 2:
            raise ClusterError(
                f"a cluster of {num_hosts} host(s) has no network: take --hosts 2 or more, or run the command without "
                "windrow cluster"
            )
        if num_hosts > MAX_HOSTS:
            raise ClusterError(
                f"{num_hosts} hosts are more than one machine can stand in for: at most {MAX_HOSTS}"
            )
        for rate in self.rates:
            if rate is not None and not SLOWEST_BITS_PER_SECOND <= rate <= FASTEST_BITS_PER_SECOND:
                raise ClusterError(
                    f"rate {format_rate(rate)}: expected {format_rate(SLOWEST_BITS_PER_SECOND)} to "
                    f"{format_rate(FASTEST_BITS_PER_SECOND)}, or {UNLIMITED}"
                )

    @property
    def hosts(self) -> tuple[str, ...]:
        """Name of each host: its number and its rate, since what was measured on one network is kept by host names."""
        return tuple(f"host{number}-{format_rate(rate)}" for number, rate in enumerate(self.rates))

    def to_json(self) -> str:
        """Names and rates, as the environment variable `CLUSTER_VARIABLE` holds them."""
        return json.dumps({"hosts": self.hosts, "rates_bits_per_second": self.rates})


def make_options(hosts: int, rates: str) -> ClusterOptions:
    """Read what a command line says.

    Args:
        hosts: how many.
        rates: one rate for all of them, or one for each with commas between.

    Raises:
        ClusterError: a rate is none, there are too few or too many of them, or the number of hosts is out of range.
    """
    each = tuple(parse_rate(text) for text in rates.split(","))
    if len(each) == 1:
        # Not multiplied out for a nonsense number of hosts, which the check then names.
        each *= max(0, min(hosts, MAX_HOSTS + 1))
    elif len(each) != hosts:
        raise ClusterError(
            f"--rate {rates} gives {len(each)} rates for {hosts} hosts: give one for all, or one for each"
        )
    return ClusterOptions(rates=each)


def parse_rate(text: str) -> int | None:
    """Read a rate.

    Args:
        text: a number with its unit, such as "100mbit", "2.5gbit", or "unlimited".

    Returns:
        Bits per second; None for "unlimited".

    Raises:
        ClusterError: it is none of these.
    """
    text = text.strip().lower()
    if text == UNLIMITED:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(bit|kbit|mbit|gbit)", text)
    if match is None:
        raise ClusterError(
            f"rate {text!r}: expected a number with its unit (100mbit, 1gbit, 2.5gbit), or {UNLIMITED}"
        )
    return round(float(match[1]) * UNITS[match[2]])


def format_rate(bits_per_second: int | None) -> str:
    """A rate in the largest unit in which it is a whole number, as host names carry it: "2500mbit" for 2.5 Gbit/s.

    Args:
        bits_per_second: of the link; None: "unlimited".
    """
    if bits_per_second is None:
        return UNLIMITED
    unit = next(name for name in reversed(UNITS) if bits_per_second % UNITS[name] == 0)
    return f"{bits_per_second // UNITS[unit]}{unit}"


def describe_rates(rates: Sequence[int | None]) -> str:
    """Rates as a person reads them: "1 Gbit/s each", or one after the other where they differ."""
    texts = [_readable(rate) for rate in rates]
    return f"{texts[0]} each" if len(set(texts)) == 1 else ", ".join(texts)


def _readable(rate: int | None) -> str:
    if rate is None:
        return UNLIMITED
    return f"{rate / 1e9:g} Gbit/s" if rate >= UNITS["gbit"] else f"{rate / 1e6:g} Mbit/s"
