"""From timings to links: pure arithmetic, apart from what takes the timings (`windrow.comm.link_probe`)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from windrow.comm.link_fit import fit_time_curve
from windrow.comm.link_model import all_reduce_rounds, reduction_seconds, wire_seconds
from windrow.comm.links import CollectiveCost, Links

__all__ = ["Samples", "estimate_links"]

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
            latency_factor=curve.latency_s / _longest_latency(alone),
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
    """Fit what the rounds of an all-reduce take, beside what their bytes do."""
    longest = len(all_reduce_rounds(links.size, max(reduction)))
    per_round: dict[float, list[float]] = {}
    for num_bytes, seconds in reduction.items():
        rounds = all_reduce_rounds(links.size, num_bytes)
        wire = reduction_seconds(links, rounds) / len(rounds)
        # Short vectors take fewer rounds than long ones: compared are seconds for each.
        per_round.setdefault(wire, []).extend(value / len(rounds) for value in seconds)
    curve = fit_time_curve(per_round)
    return CollectiveCost(
        latency_factor=curve.latency_s / _longest_latency(links),
        stretch=curve.seconds_per_unit,
        hidden_s=curve.hidden_s * longest,
    )


def _longest_latency(links: Links) -> float:
    return max(float(links.latency_s.max()), SHORTEST_LATENCY_S)
