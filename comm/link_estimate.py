"""From timings to links: pure arithmetic, apart from what takes the timings (`windrow.comm.link_probe`).

Each curve of timings gets a line with a floor, fitted so that slow spells of a shared machine hardly count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from windrow.comm.link_model import SHORT_ALL_REDUCE_BYTES, wire_seconds
from windrow.comm.links import CollectiveCost, Links, TimeCurve

__all__ = ["estimate_links", "fit_time_curve"]

Samples: TypeAlias = Mapping[int, Sequence[float]]
"""Seconds of each repeat, under the number of bytes."""

SHORTEST_LATENCY_S = 1e-9
"""What a clock can tell from nothing: below, a factor of latencies would be a division by zero."""


def estimate_links(
    hosts: Sequence[str], pairs: Sequence[Mapping[int, Samples]], exchange: Samples, reduction: Samples
) -> Links:
    """Fit links to timings.

    Args:
        hosts: machine of each rank.
        pairs: for each rank p and each other rank q, seconds until q's tiny answer to p's message was back.
        exchange: seconds of an equal all-to-all, under the bytes that each rank has in all, its own part included.
        reduction: seconds of an all-reduce, under the bytes of the vector.
    """
    size = len(hosts)
    latency, theta, hidden = (np.zeros((size, size)) for _ in range(3))
    for source, peers in enumerate(pairs):
        for target, samples in peers.items():
            curve = fit_time_curve(_one_way(samples))
            latency[source, target] = curve.latency_s
            theta[source, target] = curve.seconds_per_unit
            hidden[source, target] = curve.hidden_s
    alone = Links(hosts=tuple(hosts), latency_s=latency, seconds_per_byte=theta, hidden_s=hidden)
    if size == 1:
        return alone
    short = {num_bytes: seconds for num_bytes, seconds in reduction.items() if num_bytes <= SHORT_ALL_REDUCE_BYTES}
    long = {num_bytes: seconds for num_bytes, seconds in reduction.items() if num_bytes > SHORT_ALL_REDUCE_BYTES}
    curves = fit_time_curve(short or long), fit_time_curve(long or short)
    return replace(_with_exchange(alone, exchange), all_reduce=curves)


def _one_way(samples: Samples) -> Samples:
    """Take off the answer: half of the shortest round trip, since two clocks cannot be compared."""
    answer = min(float(np.median(repeats)) for repeats in samples.values()) / 2
    return {size: [max(0.0, seconds - answer) for seconds in repeats] for size, repeats in samples.items()}


def _with_exchange(links: Links, exchange: Samples) -> Links:
    size = links.size
    curve = fit_time_curve(exchange)
    theta = links.seconds_per_byte
    if curve.seconds_per_unit > 0:
        # Pairs whose own timing fell into a slow spell: alone no message is slower than among others.
        possible = np.minimum(theta, curve.seconds_per_unit * size)
        ratio = np.divide(possible, theta, out=np.ones_like(theta), where=theta > 0)
        links = replace(links, seconds_per_byte=possible, hidden_s=links.hidden_s * ratio)
    # An equal exchange of one byte for each rank, its own included, sends the rest.
    ports = wire_seconds(links, (1.0 - np.eye(size)) / size)
    is_shared = curve.seconds_per_unit > ports
    return replace(
        links,
        shared_seconds_per_byte=curve.seconds_per_unit / (size - 1) if is_shared else 0.0,
        all_to_all=CollectiveCost(
            latency_factor=curve.latency_s / max(float(links.latency_s.max()), SHORTEST_LATENCY_S),
            stretch=1.0 if is_shared or ports == 0 else curve.seconds_per_unit / ports,
            hidden_s=curve.hidden_s,
        ),
    )


def fit_time_curve(samples: Samples) -> TimeCurve:
    """Fit floor and line so that the sum of *relative* deviations from the medians is least.

    Medians of repeats, so that less than half of a size's samples may be anything. Relative, since 1 KB counts as
    much as 64 MB. Absolute, not squared, so that a size which came out wrong as a whole is passed by.

    Some best fit of this kind passes through as many points as it has parameters left, as every least absolute fit
    does (Bloomfield, Steiger: Least Absolute Deviations, 1983). So all candidates are tried: each line through two
    points, with a floor at each point or without one (the line's own value at 0). Lines that fall are not among them,
    nor are floors below the line, so nothing comes out negative. With one size, or where no line rises, the curve is
    flat. Cost: O(k^4) for k sizes, of which there are about ten: well below a millisecond.

    Raises:
        ValueError: no samples, or a size without any.
    """
    if not samples or any(len(repeats) == 0 for repeats in samples.values()):
        raise ValueError("expected at least one size, and at least one sample of each")
    sizes = sorted(samples)
    x = np.array(sizes, dtype=np.float64)
    # A clock that did not move between two readings would make relative deviations infinite.
    y = np.maximum([float(np.median(samples[size])) for size in sizes], 1e-9)
    first, second = np.triu_indices(len(x), 1)
    slopes = np.append((y[second] - y[first]) / (x[second] - x[first]), 0.0)
    starts = np.append(y[first], 0.0) - slopes * np.append(x[first], 0.0)
    # [lines, floors, sizes]; a floor of 0 stands for none, the last line is flat and has floors only.
    floors = np.maximum(starts[:, None], np.append(y, 0.0)[None, :])
    curves = np.maximum(floors[:, :, None], (starts[:, None] + slopes[:, None] * x)[:, None, :])
    deviations = (np.abs(curves - y) / y).sum(axis=2)
    deviations[slopes < 0] = np.inf
    line, floor = np.unravel_index(int(np.argmin(deviations)), deviations.shape)
    latency, slope = float(floors[line, floor]), float(slopes[line])
    hidden = latency - float(starts[line]) if slope > 0 else 0.0
    return TimeCurve(latency_s=latency, seconds_per_unit=slope, hidden_s=hidden)
