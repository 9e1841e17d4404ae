"""What an epoch has cost so far, on each rank: time, traffic between ranks, rows, peak memory.

Costs add up where an epoch is interrupted and resumed.
"""

import operator
import os
import resource
import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, TypeAlias

import torch
from pydantic import ConfigDict, Field

from windrow.comm.meter import Traffic
from windrow.comm.options import NonNegativeInt
from windrow.comm.world import World

__all__ = [
    "STRICT",
    "RankCost",
    "cache_hit_rate",
    "communication_share",
    "gather_costs",
    "home_share",
    "own_traffic",
    "peak_gpu_memory_bytes",
    "peak_memory_bytes",
    "with_time",
]

STRICT = ConfigDict(extra="forbid", strict=True)
"""How pydantic reads a record from a line of JSON: nothing unknown, nothing converted. Constructors do not check."""

Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCost:
    """Time, traffic and memory of one rank, in an epoch or a part of it.

    Traffic and rows are those of the training steps; time is that of evaluation too.
    """

    host: str = ""
    """Name of the machine."""
    seconds: Seconds = 0.0
    """Wall-clock seconds."""
    stage_seconds: Mapping[str, Seconds] = field(default_factory=dict)
    """Seconds per stage; stages that overlap add up to more than `seconds`."""
    waiting_seconds: Mapping[str, Seconds] = field(default_factory=dict)
    """Seconds spent waiting in collectives of each stage, for the network or for other ranks."""
    bytes_sent: Mapping[str, list[NonNegativeInt]] = field(default_factory=dict)
    """Stage -> bytes sent to each rank. What rank p sent to q is what q received from p."""
    bytes_received: Mapping[str, list[NonNegativeInt]] = field(default_factory=dict)
    """Stage -> bytes received from each rank."""
    bytes_reduced: NonNegativeInt = 0
    """Bytes of the tensors that were summed over all ranks, each counted once."""
    rows_fetched: NonNegativeInt = 0
    """Rows that came from another rank."""
    bytes_fetched: NonNegativeInt = 0
    """Bytes of those rows on the wire."""
    rows_local: NonNegativeInt = 0
    """Rows that this rank needed and had itself. Of a graph: distinct rows of features of each minibatch. Of a click
    log: for each id of this rank's samples the rows that it names, one in each shard (so one in every table that is
    not cut by columns)."""
    rows_cached: NonNegativeInt = 0
    """Rows, of the same kind, that another rank owns and of which this one kept a copy. Only graphs have such rows."""
    rows_shared: NonNegativeInt = 0
    """Rows, of the same kind, that another rank of this host owns and this one read in shared memory. Only graphs have
    such rows."""
    rows_remote: NonNegativeInt = 0
    """Rows, of the same kind, that this rank needed and had to ask another for."""
    peak_memory_bytes: NonNegativeInt = 0
    """Largest resident set of the process since it started. Features in shared memory count on every rank that has
    mapped them."""
    peak_gpu_memory_bytes: NonNegativeInt = 0
    """Most memory of tensors on its GPU since it started; 0 without a GPU."""

    __pydantic_config__: ClassVar = STRICT

    def __add__(self, other: "RankCost") -> "RankCost":
        """The cost of two parts of an epoch, one after the other, on the same number of ranks."""
        peaks = ("peak_memory_bytes", "peak_gpu_memory_bytes")
        sums = {
            one.name: (max if one.name in peaks else _sum)(getattr(self, one.name), getattr(other, one.name))
            for one in fields(self)
            if one.name != "host"
        }
        return RankCost(host=other.host or self.host, **sums)

    @property
    def training_seconds(self) -> float:
        """Seconds without evaluation."""
        return self.seconds - self.stage_seconds.get("evaluate", 0.0)


def communication_share(ranks: Sequence[RankCost]) -> float | None:
    """Share of the time of training that ranks spend waiting in collectives, for the network or for each other.

    Returns:
        The mean over the ranks; None where there is no time to share.
    """
    seconds = sum(rank.training_seconds for rank in ranks)
    return sum(sum(rank.waiting_seconds.values()) for rank in ranks) / seconds if seconds > 0 else None


def home_share(costs: Sequence[RankCost]) -> float | None:
    """Share of the rows needed that did not travel: own ones, copies, and those in shared memory; None: none needed."""
    home = sum(cost.rows_local + cost.rows_cached + cost.rows_shared for cost in costs)
    needed = home + sum(cost.rows_remote for cost in costs)
    return home / needed if needed else None


def cache_hit_rate(costs: Sequence[RankCost]) -> float | None:
    """Share of the rows of other ranks, but for shared memory, that were in the cache; None where none were."""
    cached = sum(cost.rows_cached for cost in costs)
    return cached / (cached + sum(cost.rows_remote for cost in costs)) if cached else None


def _sum(one: Any, other: Any) -> Any:
    """Of numbers; of mappings key by key, where what one of them lacks counts as nothing; of lists place by place."""
    if isinstance(one, Mapping):
        keys = dict.fromkeys([*one, *other])
        return {
            key: _sum(one[key], other[key]) if key in one and key in other else copy({**one, **other}[key])
            for key in keys
        }
    return list(map(operator.add, one, other)) if isinstance(one, list) else one + other


def own_traffic(world: World, fetched: Traffic) -> RankCost:
    """What this rank has exchanged and needed since the meter of its world was reset, without time.

    Of its traffic, `fetched` is what the model's rows are.
    """
    assert world.meter is not None
    sent: dict[str, list[int]] = {}
    received: dict[str, list[int]] = {}
    for (stage, peer), traffic in world.meter.table().items():
        if peer is not None:
            for matrix, num_bytes in ((sent, traffic.bytes_sent), (received, traffic.bytes_received)):
                if num_bytes:
                    matrix.setdefault(stage, [0] * world.size)[peer] += num_bytes
    found = world.meter.found()
    return RankCost(
        waiting_seconds=world.meter.waiting_seconds,
        bytes_sent=sent,
        bytes_received=received,
        bytes_reduced=world.meter.totals().bytes_reduced,
        rows_fetched=fetched.rows_received,
        bytes_fetched=fetched.bytes_received,
        rows_local=found.local,
        rows_cached=found.cached,
        rows_shared=found.shared,
        rows_remote=found.remote,
    )


def with_time(traffic: RankCost, seconds: float, stage_seconds: Mapping[str, float]) -> RankCost:
    """The cost of this rank that exchanged this and worked so long; its process's peak of memory is added."""
    return replace(
        traffic,
        host=os.uname().nodename,
        seconds=seconds,
        stage_seconds=stage_seconds,
        peak_memory_bytes=peak_memory_bytes(),
        peak_gpu_memory_bytes=peak_gpu_memory_bytes(),
    )


def gather_costs(world: World, own: RankCost, before: Iterable[RankCost]) -> tuple[RankCost, ...]:
    """The costs of all ranks, after those of an earlier part of the epoch. Collective.

    Returns:
        On rank 0 a cost for each rank, elsewhere nothing: what ranks measure grows with the square of their number.
        Where the earlier part ran on another number of ranks, its costs are shared out, without who sent what to whom.
    """
    ranks: list[RankCost] = list(world.gather_object(own, root=0, stage="figures"))
    earlier = tuple(before)
    for place, cost in enumerate(earlier if ranks else ()):
        alike = cost if len(earlier) == len(ranks) else replace(cost, bytes_sent={}, bytes_received={})
        ranks[place % len(ranks)] = alike + ranks[place % len(ranks)]
    return tuple(ranks)


RESIDENT_SET_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
"""Unit of ``ru_maxrss``: getrusage(2) has KiB on Linux, and bytes on macOS."""


def peak_memory_bytes() -> int:
    """The largest resident set of this process since it started, mapped files included, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RESIDENT_SET_UNIT_BYTES


def peak_gpu_memory_bytes() -> int:
    """The most that tensors of this process have held on its current GPU since it started, in bytes; 0 without one."""
    # A process that never used its GPU must not wake it for this question.
    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else 0
