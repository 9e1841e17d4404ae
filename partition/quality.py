"""How good a partition is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from windrow.partition.constraints import SALIENT_CONSTRAINTS, stack_weights, vertex_weights, weigh_parts
from windrow.partition.graph_kernels import count_remote

__all__ = ["PartitionQuality", "measure_quality"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionQuality:
    """Cut, balance and halo of a partition."""

    num_edges: int
    """Stored edges; a symmetric graph stores each undirected edge twice."""
    cut_edges: int
    """Stored edges whose two ends are in different parts, counted as `num_edges` is."""
    balance: dict[str, float]
    """For each constraint the heaviest part's weight over the mean: 1 is perfect."""
    part_sizes: tuple[int, ...]
    """Vertices of each part."""
    halo_sizes: tuple[int, ...]
    """For each part the different in-neighbours that live elsewhere: rows that a full-graph step fetches."""
    remote_neighbour_fractions: tuple[float, ...]
    """For each part the share of its vertices' in-neighbours that live elsewhere: rows that sampling asks for."""

    @property
    def cut_fraction(self) -> float:
        """Share of the edges that are cut; the remote-neighbour fraction of the whole graph."""
        return self.cut_edges / max(self.num_edges, 1)

    def table(self) -> str:
        """The report as text: one line for each part, then the balance of each constraint."""
        lines = [f"{'part':>6} {'vertices':>12} {'halo':>12} {'remote neighbours':>18}"]
        rows = zip(self.part_sizes, self.halo_sizes, self.remote_neighbour_fractions, strict=True)
        for part, (size, halo, remote) in enumerate(rows):
            lines.append(f"{part:>6} {size:>12,} {halo:>12,} {remote:>17.1%}")
        lines.append(f"edge cut {self.cut_edges:,} of {self.num_edges:,} stored edges ({self.cut_fraction:.2%})")
        balance = ", ".join(f"{name} {ratio:.3f}" for name, ratio in self.balance.items())
        lines.append(f"heaviest part / mean: {balance}")
        return "\n".join(lines)


def measure_quality(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    assignment: npt.NDArray[np.int32],
    num_parts: int,
    *,
    train_ids: npt.NDArray[np.integer] | None = None,
    validation_ids: npt.NDArray[np.integer] | None = None,
    balance: Sequence[str] = (*SALIENT_CONSTRAINTS, "vertices"),
) -> PartitionQuality:
    """Measure a partition: `assignment` int32 [N] is each vertex's part. Cost O(N log N + E).

    The graph and its split are as for `windrow.partition.partition_graph`, `balance` as in `PartitionOptions`.
    """
    weights = vertex_weights(indptr, train_ids=train_ids, validation_ids=validation_ids, balance=balance)
    names = list(weights)
    sums = weigh_parts(stack_weights(weights, names), assignment, num_parts)
    ratios = sums.max(axis=0) * num_parts / sums.sum(axis=0)
    by_part = np.argsort(assignment, kind="stable")
    entries, remote, halo = count_remote(indptr, indices, assignment, by_part, num_parts)
    return PartitionQuality(
        num_edges=len(indices),
        cut_edges=int(remote.sum()),
        balance=dict(zip(names, ratios.tolist(), strict=True)),
        part_sizes=tuple(np.bincount(assignment, minlength=num_parts).tolist()),
        halo_sizes=tuple(halo.tolist()),
        remote_neighbour_fractions=tuple((remote / np.maximum(entries, 1)).tolist()),
    )
