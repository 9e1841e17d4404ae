"""What an epoch has cost so far, on each rank and over all: time, traffic between ranks, rows, peak memory.

Costs add up where an epoch is interrupted and gone on with.
"""

import operator
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from windrow.comm.meter import Meter, Traffic
from windrow.comm.world import World

__all__ = [
    "EpochCost",
    "RankCost",
    "communication_share",
    "gather_cost",
    "own_time",
    "own_traffic",
    "peak_gpu_memory_bytes",
    "peak_memory_bytes",
    "rank_traffic",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCost:
    """Time, traffic and memory of one rank, in an epoch or a part of it.

    Traffic and rows are those of the training steps; time is that of evaluation too.
    """

    host: str = ""
    """Name of the machine."""
    seconds: float = 0.0
    """Wall-clock seconds."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds per stage; stages that overlap add up to more than `seconds`."""
    waiting_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent waiting in collectives of each stage, for the network or for other ranks."""
    bytes_sent: Mapping[str, list[int]] = field(default_factory=dict)
    """Stage -> bytes sent to each rank. What rank p sent to q is what q received from p."""
    bytes_received: Mapping[str, list[int]] = field(default_factory=dict)
    """Stage -> bytes received from each rank."""
    bytes_reduced: int = 0
    """Bytes of the tensors that were summed over all ranks, each counted once."""
    rows_local: int = 0
    """Rows that this rank needed and had itself. Of a graph: distinct rows of features of each minibatch. Of a click
    log: for each id of this rank's samples the rows that it names, one in each shard (so one in every table that is
    not cut by columns)."""
    rows_cached: int = 0
    """Rows, of the same kind, that another rank owns and of which this one kept a copy. Only graphs have such rows."""
    rows_remote: int = 0
    """Rows, of the same kind, that this rank needed and another had."""
    peak_memory_bytes: int = 0
    """Largest resident set of the process since it started."""
    peak_gpu_memory_bytes: int = 0
    """Most memory of tensors on its GPU since it started; 0 without a GPU."""

    def __add__(self, other: "RankCost") -> "RankCost":
        """The cost of two parts of an epoch, one after the other, on the same number of ranks."""
        return RankCost(
            host=other.host or self.host,
            seconds=self.seconds + other.seconds,
            stage_seconds=_summed(self.stage_seconds, other.stage_seconds),
            waiting_seconds=_summed(self.waiting_seconds, other.waiting_seconds),
            bytes_sent=_added(self.bytes_sent, other.bytes_sent),
            bytes_received=_added(self.bytes_received, other.bytes_received),
            bytes_reduced=self.bytes_reduced + other.bytes_reduced,
            rows_local=self.rows_local + other.rows_local,
            rows_cached=self.rows_cached + other.rows_cached,
            rows_remote=self.rows_remote + other.rows_remote,
            peak_memory_bytes=max(self.peak_memory_bytes, other.peak_memory_bytes),
            peak_gpu_memory_bytes=max(self.peak_gpu_memory_bytes, other.peak_gpu_memory_bytes),
        )

    @property
    def training_seconds(self) -> float:
        """Seconds without evaluation."""
        return self.seconds - self.stage_seconds.get("evaluate", 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON or a checkpoint: the keyword arguments of this class."""
        return asdict(self)


def communication_share(ranks: Sequence[RankCost]) -> float | None:
    """Share of the time of training that ranks spend waiting in collectives, for the network or for each other.

    Args:
        ranks: all of a job, in the same epoch.

    Returns:
        The mean over the ranks; None where there is no time to share.
    """
    seconds = sum(rank.training_seconds for rank in ranks)
    return sum(sum(rank.waiting_seconds.values()) for rank in ranks) / seconds if seconds > 0 else None


def rank_traffic(meter: Meter, size: int) -> RankCost:
    """What a rank's meter has counted since it was reset; time and memory are left out.

    Args:
        meter: of the rank's world.
        size: number of ranks.
    """
    sent: dict[str, list[int]] = {}
    received: dict[str, list[int]] = {}
    for (stage, peer), traffic in meter.table().items():
        if peer is not None:
            for matrix, num_bytes in ((sent, traffic.bytes_sent), (received, traffic.bytes_received)):
                if num_bytes:
                    matrix.setdefault(stage, [0] * size)[peer] += num_bytes
    found = meter.found()
    return RankCost(
        waiting_seconds=meter.waiting_seconds,
        bytes_sent=sent,
        bytes_received=received,
        bytes_reduced=meter.totals().bytes_reduced,
        rows_local=found.local,
        rows_cached=found.cached,
        rows_remote=found.remote,
    )


def _summed(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Add stage by stage."""
    return {stage: one.get(stage, 0.0) + other.get(stage, 0.0) for stage in dict.fromkeys([*one, *other])}


def _added(one: Mapping[str, list[int]], other: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Add stage by stage and peer by peer."""
    return {
        stage: list(map(operator.add, one[stage], other[stage]))
        if stage in one and stage in other
        else list(one.get(stage) or other[stage])
        for stage in dict.fromkeys([*one, *other])
    }


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
    """Rows that ranks needed and had themselves, as in `windrow.launch.epoch_cost.RankCost`."""
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
        stages = dict.fromkeys([*self.stage_seconds, *other.stage_seconds])
        ranks = other.ranks or self.ranks
        if len(self.ranks) == len(other.ranks):
            ranks = tuple(before + after for before, after in zip(self.ranks, other.ranks, strict=True))
        return EpochCost(
            seconds=self.seconds + other.seconds,
            stage_seconds={
                stage: self.stage_seconds.get(stage, 0.0) + other.stage_seconds.get(stage, 0.0)
                for stage in stages
            },
            rows_fetched=self.rows_fetched + other.rows_fetched,
            bytes_fetched=self.bytes_fetched + other.bytes_fetched,
            rows_local=self.rows_local + other.rows_local,
            rows_cached=self.rows_cached + other.rows_cached,
            rows_remote=self.rows_remote + other.rows_remote,
            ranks=ranks,
        )

    @property
    def share_found_at_home(self) -> float | None:
        """Rows that ranks had themselves, copies included, of all that they needed; None where they needed none."""
        home = self.rows_local + self.rows_cached
        needed = home + self.rows_remote
        return home / needed if needed else None

    @property
    def cache_hit_rate(self) -> float | None:
        """Copies that ranks had, of all rows of other ranks that they needed; None where no copy was needed."""
        return self.rows_cached / (self.rows_cached + self.rows_remote) if self.rows_cached else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return {**asdict(self), "ranks": [rank.to_dict() for rank in self.ranks]}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "EpochCost":
        """The inverse of `to_dict`; what older checkpoints do not have stays empty."""
        ranks = tuple(RankCost(**rank) for rank in values.get("ranks", ()))
        return EpochCost(**{**values, "ranks": ranks})


def own_traffic(world: World, fetched: Traffic) -> EpochCost:
    """What this rank has exchanged and needed since the meter of its world was reset, without time.

    Args:
        world: has a meter.
        fetched: the part of its traffic that the model's rows are.
    """
    assert world.meter is not None
    own = rank_traffic(world.meter, world.size)
    return EpochCost(
        rows_fetched=fetched.rows_received,
        bytes_fetched=fetched.bytes_received,
        rows_local=own.rows_local,
        rows_cached=own.rows_cached,
        rows_remote=own.rows_remote,
        ranks=(own,),
    )


def own_time(seconds: float, stage_seconds: Mapping[str, float]) -> EpochCost:
    """How long this rank has worked, and how much memory its process has needed at most.

    Args:
        seconds: wall-clock seconds.
        stage_seconds: the same per stage.
    """
    own = RankCost(
        host=os.uname().nodename,
        seconds=seconds,
        stage_seconds=stage_seconds,
        peak_memory_bytes=peak_memory_bytes(),
        peak_gpu_memory_bytes=peak_gpu_memory_bytes(),
    )
    return EpochCost(seconds=seconds, stage_seconds=stage_seconds, ranks=(own,))


def gather_cost(world: World, own: EpochCost) -> EpochCost:
    """Put the costs of all ranks together. Collective.

    Args:
        world: all its ranks call this at the same point of the epoch.
        own: what this rank has measured.

    Returns:
        The largest seconds, in all and of each stage; the sums of rows and bytes; the same on every rank. What each
        rank has measured grows with the square of their number, so that only rank 0 gets it.
    """
    everyone = world.all_gather_object(replace(own, ranks=()), stage=STAGE)
    ranks = world.gather_object(own.ranks, root=0, stage=STAGE)
    return EpochCost(
        seconds=max(one.seconds for one in everyone),
        stage_seconds={
            stage: max(one.stage_seconds.get(stage, 0.0) for one in everyone)
            for stage in dict.fromkeys(stage for one in everyone for stage in one.stage_seconds)
        },
        rows_fetched=sum(one.rows_fetched for one in everyone),
        bytes_fetched=sum(one.bytes_fetched for one in everyone),
        rows_local=sum(one.rows_local for one in everyone),
        rows_cached=sum(one.rows_cached for one in everyone),
        rows_remote=sum(one.rows_remote for one in everyone),
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
