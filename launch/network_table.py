"""Links as tables for people: bandwidth and latency, and what they mean for an all-to-all and an all-reduce."""

import numpy as np
from numpy.typing import NDArray

from windrow.comm.link_model import predict_all_reduce, predict_all_to_all
from windrow.comm.links import Links
from windrow.launch.formatting import byte_size

__all__ = ["PREDICTED_BYTES", "link_rows", "prediction_rows"]

PREDICTED_BYTES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 24, 1 << 26)
"""Bytes for each rank whose times are predicted: 1 KiB to 64 MiB."""

MOST_RANKS_IN_FULL = 8
"""Of more ranks a table of all pairs would be longer than a screen."""

BITS_PER_BYTE = 8


def link_rows(links: Links) -> list[dict[str, object]]:
    """Latency and bandwidth: of each ordered pair of a few ranks, of many the range.

    Args:
        links: of the network.

    Returns:
        Rows for `windrow.launch.text_table.table`. Bandwidth is infinite where no size was long enough to show it.
    """
    size = links.size
    pairs = [(p, q) for p in range(size) for q in range(size) if p != q]
    gigabits = _gigabits_per_second(links)
    if size > MOST_RANKS_IN_FULL:
        return _summary(links, gigabits)
    return [
        {
            "from": f"{p} {links.hosts[p]}",
            "to": f"{q} {links.hosts[q]}",
            "latency us": float(links.latency_s[p, q] * 1e6),
            "Gbit/s": float(gigabits[p, q]),
        }
        for p, q in pairs
    ]


def prediction_rows(links: Links) -> list[dict[str, object]]:
    """Predicted times of an all-to-all with equal parts and of an all-reduce, for a few sizes.

    Args:
        links: of the network.

    Returns:
        Rows for `windrow.launch.text_table.table`: bytes for each rank in all, and milliseconds.
    """
    shape = links.size, links.size
    return [
        {
            "bytes per rank": byte_size(num_bytes),
            "all-to-all ms": predict_all_to_all(links, np.full(shape, num_bytes / links.size)) * 1e3,
            "all-reduce ms": predict_all_reduce(links, num_bytes) * 1e3,
        }
        for num_bytes in PREDICTED_BYTES
    ]


def _summary(links: Links, gigabits: NDArray[np.float64]) -> list[dict[str, object]]:
    hosts = np.array(links.hosts)
    inside = hosts[:, None] == hosts[None, :]
    others = ~np.eye(links.size, dtype=bool)
    rows: list[dict[str, object]] = []
    for name, chosen in (("between hosts", ~inside), ("inside a host", inside & others)):
        if chosen.any():
            row: dict[str, object] = {"pairs": f"{int(chosen.sum())} {name}"}
            for unit, values in (("latency us", links.latency_s * 1e6), ("Gbit/s", gigabits)):
                quantiles = np.quantile(values[chosen], [0.0, 0.5, 1.0], method="nearest").tolist()
                row |= dict(
                    zip((f"{unit}: least", f"{unit}: median", f"{unit}: most"), quantiles, strict=True)
                )
            rows.append(row)
    return rows


def _gigabits_per_second(links: Links) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        rates: NDArray[np.float64] = BITS_PER_BYTE / links.seconds_per_byte / 1e9
    return rates
