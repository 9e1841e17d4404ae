"""From timings to links: pure arithmetic, apart from what takes the timings (`windrow.comm.link_probe`).

Each curve of timings gets a line with a floor, fitted so that slow spells of a shared machine hardly count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from windrow.comm.link_model import all_reduce_rounds, reduction_latency_s, reduction_seconds, wire_seconds
from windrow.comm.links import CollectiveCost, Links

__all__ = ["TimeCurve", "estimate_links", "fit_time_curve"]

Samples: TypeAlias = Mapping[float, Sequence[float]]
"""Seconds of each repeat, under the number of bytes."""

SHORTEST_LATENCY_S = 1e-9
"""What a clock can tell from nothing: below, a factor of latencies would be a division by zero."""


def estimate_links(
    hosts: Sequence[str],
    pairs: Sequence[Mapping[int, Samples]],
    exchange: Samples,
    reduction: Samples,
    *,
    add_seconds_per_byte: float,
) -> Links:
    """Fit links to timings.

    Args:
        hosts: machine of each rank.
        pairs: for each rank p and each other rank q, seconds until q's tiny answer to p's message was back.
        exchange: seconds of an equal all-to-all, under the bytes that each rank has in all, its own part included.
        reduction: seconds of an all-reduce, under the bytes of the vector.
        add_seconds_per_byte: adding one byte of a partial sum.
    """
    size = len(hosts)
    latency, theta, hidden = (np.zeros((size, size)) for _ in range(3))
    for source, peers in enumerate(pairs):
        for target, samples in peers.items():
            curve = fit_time_curve(_one_way(samples))
            latency[source, target] = curve.latency_s
            theta[source, target] = curve.seconds_per_unit
            hidden[source, target] = curve.hidden_s
    alone = Links(
        hosts=hosts,
        latency_s=latency,
        seconds_per_byte=theta,
        hidden_s=hidden,
        add_seconds_per_byte=add_seconds_per_byte,
    )
    return alone if size == 1 else _with_collectives(alone, exchange, reduction)


def _one_way(samples: Samples) -> Samples:
    """Take off the answer: half of the shortest round trip, since two clocks cannot be compared."""
    answer = min(float(np.median(repeats)) for repeats in samples.values()) / 2
    return {size: [max(0.0, seconds - answer) for seconds in repeats] for size, repeats in samples.items()}


def _with_collectives(alone: Links, exchange: Samples, reduction: Samples) -> Links:
    size = alone.size
    curve = fit_time_curve(exchange)
    alone = _no_slower_than_together(alone, curve.seconds_per_unit * size)
    # An equal exchange of one byte for each rank, its own included, sends the rest.
    equal = np.full((size, size), 1.0 / size)
    sent = size - 1.0
    ports = wire_seconds(alone, equal)
    is_shared = curve.seconds_per_unit > ports
    together = replace(
        alone,
        shared_seconds_per_byte=curve.seconds_per_unit / sent if is_shared else 0.0,
        all_to_all=CollectiveCost(
            latency_factor=curve.latency_s / max(float(alone.latency_s.max()), SHORTEST_LATENCY_S),
            stretch=1.0 if is_shared or ports == 0 else curve.seconds_per_unit / ports,
            hidden_s=curve.hidden_s,
        ),
    )
    return replace(together, all_reduce=_reduction_cost(together, reduction))


def _no_slower_than_together(alone: Links, seconds_per_byte: float) -> Links:
    """Correct pairs whose own timing fell into a slow spell: alone no message is slower than among others."""
    theta = alone.seconds_per_byte
    if seconds_per_byte == 0:
        return alone
    possible = np.minimum(theta, seconds_per_byte)
    ratio = np.divide(possible, theta, out=np.ones_like(theta), where=theta > 0)
    return replace(alone, seconds_per_byte=possible, hidden_s=alone.hidden_s * ratio)


def _reduction_cost(links: Links, reduction: Samples) -> CollectiveCost:
    """Fit what an all-reduce takes beside its bytes: for each call, and for each of its rounds.

    Long vectors take more rounds than short ones, and that alone tells the two apart.
    """
    rounds = {num_bytes: all_reduce_rounds(links.size, num_bytes) for num_bytes in reduction}
    wire = {num_bytes: reduction_seconds(links, steps) for num_bytes, steps in rounds.items()}
    latency = {num_bytes: reduction_latency_s(links, steps) for num_bytes, steps in rounds.items()}
    least, most = min(latency.values()), max(*latency.values(), SHORTEST_LATENCY_S)
    long = [num_bytes for num_bytes in reduction if latency[num_bytes] > least] or list(reduction)
    curve = fit_time_curve(_by_wire(reduction, wire, long))
    floor = curve.latency_s
    factor, call = floor / most, 0.0
    if len(long) < len(reduction):
        short = [num_bytes for num_bytes in reduction if num_bytes not in long]
        short_floor = fit_time_curve(_by_wire(reduction, wire, short)).latency_s
        # More rounds take longer, in proportion at most; what the line says beyond its floor stays as it is.
        floor = min(max(floor, short_floor), short_floor * most / max(least, SHORTEST_LATENCY_S))
        factor = (floor - short_floor) / (most - least)
        call = max(0.0, short_floor - factor * least)
    return CollectiveCost(
        latency_factor=factor,
        stretch=curve.seconds_per_unit,
        hidden_s=max(0.0, curve.hidden_s + floor - curve.latency_s),
        call_s=call,
    )


def _by_wire(reduction: Samples, wire: Mapping[float, float], chosen: Sequence[float]) -> dict[float, list[float]]:
    """Samples of some sizes, under the seconds that their bytes are on the wire."""
    found: dict[float, list[float]] = {}
    for num_bytes in chosen:
        found.setdefault(wire[num_bytes], []).extend(reduction[num_bytes])
    return found


@dataclass(frozen=True)
class TimeCurve:
    """``seconds(x) = latency_s + max(0, seconds_per_unit * x - hidden_s)``."""

    latency_s: float
    """The floor."""
    seconds_per_unit: float
    """The slope, once the line is above the floor."""
    hidden_s: float
    """What of the slope's seconds passes within the floor."""

    def seconds(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The curve's value at each entry of `x`."""
        return self.latency_s + np.maximum(0.0, self.seconds_per_unit * x - self.hidden_s)


def fit_time_curve(samples: Samples) -> TimeCurve:
    """Fit floor and line so that the sum of *relative* deviations from the medians is least.

    Medians of repeats, so that less than half of a size's samples may be anything. Relative, since 1 KB counts as
    much as 64 MB. Absolute, not squared, so that a size which came out wrong as a whole is passed by.

    Some best fit of this kind passes through as many points as it has parameters left, as every least absolute fit
    does (Bloomfield, Steiger: Least Absolute Deviations, 1983). So all candidates are tried: each line through two
    points, with a floor at each point or without one (the line's own value at 0). Lines that fall are not among them,
    nor are floors below the line, so nothing comes out negative.

    Args:
        samples: seconds of every repeat, under the size that was timed; at least one size.

    Returns:
        The curve. With one size, or where no line rises, it is flat. Cost: O(k^4) for k sizes, of which there are
        about ten: well below a millisecond.

    Raises:
        ValueError: no samples, or a size without any.
    """
    if not samples or any(len(repeats) == 0 for repeats in samples.values()):
        raise ValueError("expected at least one size, and at least one sample of each")
    x = np.array(sorted(samples), dtype=np.float64)
    # A clock that did not move between two readings would make relative deviations infinite.
    y = np.maximum([float(np.median(samples[size])) for size in x], 1e-9)
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
    return TimeCurve(latency, slope, latency - float(starts[line]) if slope > 0 else 0.0)
