"""What an epoch has cost so far, on each rank and over all: time, traffic between ranks, rows, peak memory.

Costs add up where an epoch is interrupted and resumed.
"""

import functools
import operator
import os
import resource
import sys
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

import torch
from pydantic import ConfigDict, Field

from windrow.comm.meter import Traffic
from windrow.comm.options import NonNegativeInt
from windrow.comm.world import World

__all__ = [
    "STRICT",
    "EpochCost",
    "RankCost",
    "cache_hit_rate",
    "communication_share",
    "gather_cost",
    "home_share",
    "own_time",
    "own_traffic",
    "peak_gpu_memory_bytes",
    "peak_memory_bytes",
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
    rows_local: NonNegativeInt = 0
    """Rows that this rank needed and had itself. Of a graph: distinct rows of features of each minibatch. Of a click
    log: for each id of this rank's samples the rows that it names, one in each shard (so one in every table that is
    not cut by columns)."""
    rows_cached: NonNegativeInt = 0
    """Rows, of the same kind, that another rank owns and of which this one kept a copy. Only graphs have such rows."""
    rows_remote: NonNegativeInt = 0
    """Rows, of the same kind, that this rank needed and another had."""
    peak_memory_bytes: NonNegativeInt = 0
    """Largest resident set of the process since it started."""
    peak_gpu_memory_bytes: NonNegativeInt = 0
    """Most memory of tensors on its GPU since it started; 0 without a GPU."""

    __pydantic_config__: ClassVar = STRICT

    def __add__(self, other: "RankCost") -> "RankCost":
        """The cost of two parts of an epoch, one after the other, on the same number of ranks."""
        return replace(
            _sum_of_fields(self, other, all_but={"host", "peak_memory_bytes", "peak_gpu_memory_bytes"}),
            host=other.host or self.host,
            peak_memory_bytes=max(self.peak_memory_bytes, other.peak_memory_bytes),
            peak_gpu_memory_bytes=max(self.peak_gpu_memory_bytes, other.peak_gpu_memory_bytes),
        )

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


def home_share(costs: "Sequence[RankCost | EpochCost]") -> float | None:
    """Share of the rows needed that ranks had themselves, copies included; None where none were needed."""
    home = sum(cost.rows_local + cost.rows_cached for cost in costs)
    needed = home + sum(cost.rows_remote for cost in costs)
    return home / needed if needed else None


def cache_hit_rate(costs: "Sequence[RankCost | EpochCost]") -> float | None:
    """Share of the rows of other ranks that the asking rank found in its cache; None where it found none."""
    cached = sum(cost.rows_cached for cost in costs)
    return cached / (cached + sum(cost.rows_remote for cost in costs)) if cached else None


Cost = TypeVar("Cost", "RankCost", "EpochCost")


def _sum_of_fields(one: Cost, other: Cost, *, all_but: Collection[str]) -> Cost:
    names = [field.name for field in fields(one) if field.name not in all_but]
    return replace(one, **{name: _sum(getattr(one, name), getattr(other, name)) for name in names})


def _sum(one: Any, other: Any) -> Any:
    """Of numbers; of mappings key by key, where what one of them lacks counts as nothing; of lists place by place."""
    if isinstance(one, Mapping):
        return {
            key: _sum(one[key], other[key]) if key in one and key in other else copy({**one, **other}[key])
            for key in dict.fromkeys([*one, *other])
        }
    return list(map(operator.add, one, other)) if isinstance(one, list) else one + other


STAGE = "figures"


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochCost:
    """Time and traffic of an epoch, or of a part of it."""

    seconds: float = 0.0
    """Wall-clock seconds."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds per stage, on the slowest rank of each."""
    rows_fetched: int = 0
    """Rows that came from another rank."""
    bytes_fetched: int = 0
    """Bytes of those rows on the wire."""
    rows_local: int = 0
    """Rows that ranks needed and had themselves, as in `windrow.training.epoch_cost.RankCost`."""
    rows_cached: int = 0
    """Rows of another rank that ranks needed and kept a copy of."""
    rows_remote: int = 0
    """Rows that ranks needed and another one had."""
    ranks: tuple[RankCost, ...] = ()
    """Rank by rank; empty where nobody asked, and on all ranks but the first."""

    def __add__(self, other: "EpochCost") -> "EpochCost":
        """The cost of two parts of an epoch, one after the other.

        Where they ran on different numbers of ranks, `ranks` are those of the later part alone.
        """
        ranks = other.ranks or self.ranks
        if len(self.ranks) == len(other.ranks):
            ranks = tuple(before + after for before, after in zip(self.ranks, other.ranks, strict=True))
        return replace(_sum_of_fields(self, other, all_but={"ranks"}), ranks=ranks)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "EpochCost":
        """The inverse of `to_dict`; what older checkpoints do not have stays empty."""
        ranks = tuple(RankCost(**rank) for rank in values.get("ranks", ()))
        return EpochCost(**{**values, "ranks": ranks})


def own_traffic(world: World, fetched: Traffic) -> EpochCost:
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
    rows: Any = {"rows_local": found.local, "rows_cached": found.cached, "rows_remote": found.remote}
    own = RankCost(
        waiting_seconds=world.meter.waiting_seconds,
        bytes_sent=sent,
        bytes_received=received,
        bytes_reduced=world.meter.totals().bytes_reduced,
        **rows,
    )
    return EpochCost(rows_fetched=fetched.rows_received, bytes_fetched=fetched.bytes_received, ranks=(own,), **rows)


def own_time(seconds: float, stage_seconds: Mapping[str, float]) -> EpochCost:
    """How long this rank has worked, in all and per stage, and how much memory its process has needed at most."""
    own = RankCost(
        host=os.uname().nodename,
        seconds=seconds,
        stage_seconds=stage_seconds,
        peak_memory_bytes=peak_memory_bytes(),
        peak_gpu_memory_bytes=peak_gpu_memory_bytes(),
    )
    return EpochCost(seconds=seconds, stage_seconds=stage_seconds, ranks=(own,))


def gather_cost(world: World, own: EpochCost) -> EpochCost:
    """Put the costs of all ranks together. Collective, at the same point of the epoch.

    Returns:
        The largest seconds, in all and of each stage; the sums of rows and bytes; the same on every rank. What each
        rank has measured grows with the square of their number, so that only rank 0 gets it.
    """
    everyone = world.all_gather_object(replace(own, ranks=()), stage=STAGE)
    ranks = world.gather_object(own.ranks, root=0, stage=STAGE)
    return replace(
        functools.reduce(operator.add, everyone),
        seconds=max(one.seconds for one in everyone),
        stage_seconds={
            stage: max(one.stage_seconds.get(stage, 0.0) for one in everyone)
            for stage in dict.fromkeys(stage for one in everyone for stage in one.stage_seconds)
        },
        ranks=tuple(rank for of_rank in ranks for rank in of_rank),
    )


RESIDENT_SET_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
"""Unit of ``ru_maxrss``: getrusage(2) has KiB on Linux, and bytes on macOS."""


def peak_memory_bytes() -> int:
    """The largest resident set of this process since it started, mapped files included, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RESIDENT_SET_UNIT_BYTES


def peak_gpu_memory_bytes() -> int:
    """The most that tensors of this process have held on its current GPU since it started, in bytes; 0 without one."""
    # A process that never used its GPU must not wake it for this question.
    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else 0
