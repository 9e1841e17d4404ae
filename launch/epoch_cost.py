"""What an epoch has cost so far, over all ranks; adds up where an epoch is interrupted and gone on with."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from windrow.comm.meter import Traffic
from windrow.comm.world import World
from windrow.launch.memory_use import peak_gpu_memory_bytes, peak_memory_bytes
from windrow.launch.rank_cost import RankCost, rank_traffic

__all__ = ["EpochCost", "gather_cost", "own_time", "own_traffic"]

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
    """Rows that ranks needed and had themselves, as in `windrow.launch.rank_cost.RankCost`."""
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
