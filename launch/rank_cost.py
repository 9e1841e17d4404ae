"""What one rank has done for an epoch so far: time, traffic with each other rank, rows, memory."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from windrow.comm.meter import Meter

__all__ = ["RankCost", "communication_share", "rank_traffic"]


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
