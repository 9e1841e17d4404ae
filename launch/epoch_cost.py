"""What an epoch has cost so far, over all ranks; adds up where an epoch is interrupted and gone on with."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from windrow.comm.world import World

__all__ = ["EpochCost", "gather_cost"]


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

    def __add__(self, other: "EpochCost") -> "EpochCost":
        """The cost of two parts of an epoch, one after the other."""
        stages = dict.fromkeys([*self.stage_seconds, *other.stage_seconds])
        return EpochCost(
            seconds=self.seconds + other.seconds,
            stage_seconds={
                stage: self.stage_seconds.get(stage, 0.0) + other.stage_seconds.get(stage, 0.0)
                for stage in stages
            },
            rows_fetched=self.rows_fetched + other.rows_fetched,
            bytes_fetched=self.bytes_fetched + other.bytes_fetched,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint: the keyword arguments of this class."""
        return asdict(self)


def gather_cost(world: World, own: EpochCost) -> EpochCost:
    """Put the costs of all ranks together. Collective.

    Args:
        world: all its ranks call this at the same point of the epoch.
        own: what this rank has measured.

    Returns:
        The largest seconds, in all and of each stage; the sums of rows and bytes; the same on every rank.
    """
    everyone = world.all_gather_object(own, stage="figures")
    return EpochCost(
        seconds=max(one.seconds for one in everyone),
        stage_seconds={
            stage: max(one.stage_seconds.get(stage, 0.0) for one in everyone)
            for stage in dict.fromkeys(stage for one in everyone for stage in one.stage_seconds)
        },
        rows_fetched=sum(one.rows_fetched for one in everyone),
        bytes_fetched=sum(one.bytes_fetched for one in everyone),
    )
