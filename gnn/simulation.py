"""How minibatch training on a graph would go on many ranks, from pieces that are measured on one.

For a number of ranks the graph is cut into as many parts, really. What some of the ranks ask for is worked out from the
topology, as `windrow.gnn.explain_caches` does for all of a few; what others ask for is their mean. A step's work is
measured, with the seeds that a rank would have, and the network is one that is described or was measured::

    cut into N parts --> rows asked for, of some ranks --+
    minibatches of these parts, run here -------------------> seconds of an epoch (`windrow.gnn.epoch_estimate`)
    links between N ranks -------------------------------+
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from windrow.caching.selection import automatic_capacities, cache_capacity
from windrow.comm.errors import DataError, RecipeError
from windrow.comm.links import Links
from windrow.gnn.cache_choice import Sampling, parts_near, rank_part, row_sizes
from windrow.gnn.epoch_estimate import ID_BYTES, EpochTime, StepWork, estimate_epoch
from windrow.gnn.graph import Graph
from windrow.gnn.partitioned import PartitionedGraph, assign_parts
from windrow.partition.book import PartitionBook
from windrow.partition.options import PartitionOptions
from windrow.training.terminal import byte_size, count, table

__all__ = ["ScaleEstimate", "describe_scales", "simulate"]

RANKS_LOOKED_AT = 8
"""Of all, at even distances: each costs one pass over the edges for each hop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleEstimate:
    """What training on so many ranks would be. Rows and bytes are means over the ranks that were looked at."""

    ranks: int
    steps: int
    """In an epoch."""
    input_rows: float
    """Rows, local and remote, that a minibatch of a rank needs."""
    remote_rows: float
    """Of these, what it asks others for."""
    received_bytes: float
    """That a rank gets for them in a step."""
    memory_bytes: int
    """Features of a rank: of the largest part, and the most copies of others' that a rank was found to keep."""
    work: StepWork
    """Of a step."""
    time: EpochTime
    """Of an epoch."""
    pipelined: bool
    """Whether the network works while minibatches are sampled and computed."""

    @property
    def seconds(self) -> float:
        """Of an epoch."""
        return self.time.seconds(pipelined=self.pipelined)


def simulate(
    graph: Graph,
    sampling: Sampling,
    ranks: int,
    links: Links,
    measure: Callable[[PartitionedGraph], StepWork],
    *,
    partition: PartitionOptions,
    pipelined: bool = True,
) -> ScaleEstimate:
    """Work out how training would go on so many ranks.

    Args:
        graph: in memory.
        sampling: how minibatches are made; its batch size is of all ranks together.
        ranks: how many.
        links: between them.
        measure: of a view of the graph in so many parts, what a step costs: see
            `windrow.gnn.epoch_estimate.measure_step_work`.
        partition: how the graph is cut, into so many parts.
        pipelined: whether the network works while minibatches are sampled and computed.

    Raises:
        RecipeError: links of another number of ranks, or more ranks than training vertices or seeds.
        DataError: the graph has no features.

    Cost: cutting the graph, and for each of `RANKS_LOOKED_AT` ranks one pass over the edges for each hop.
    """
    if graph.features is None:
        raise DataError("the graph has no features, which are what is replayed: rows that are learnt are not in it yet")
    if links.size != ranks:
        raise RecipeError(f"{ranks} ranks on a network of {links.size}: give links of as many")
    if ranks > min(len(graph.train_ids), sampling.batch_size):
        raise RecipeError(
            f"{ranks} ranks, but {len(graph.train_ids)} training vertices and a batch_size of {sampling.batch_size}: "
            "each needs one seed at least in a step"
        )
    assignment = assign_parts(graph, replace(partition, num_parts=ranks))
    view = PartitionedGraph.from_graph(graph, PartitionBook.from_assignment(assignment, ranks), 0)
    row_bytes, wire_row_bytes = row_sizes(sampling.sampler, sampling.wire, view.features)
    looked_at = np.linspace(0, ranks - 1, min(RANKS_LOOKED_AT, ranks)).round().astype(int).tolist()
    samplers, cache = view.samplers(), sampling.cache
    near = parts_near(links.hosts if cache.shared_memory else None, ranks)
    rankings = [rank_part(view, part, sampling, samplers=samplers, near=near[part]) for part in looked_at]
    if isinstance(cache.alpha, str):
        worthwhile = [ranking.worthwhile(sampling.epochs) for ranking in rankings]
        remote = [ranking.num_remote for ranking in rankings]
        capacities = automatic_capacities(worthwhile, remote, wire_row_bytes, cache.memory_gib)
    else:
        capacities = [cache_capacity(cache.alpha, graph.num_vertices, ranks)] * len(rankings)
    of_ranks = list(zip(rankings, capacities, strict=True))
    found = [ranking.expected_rows([capacity])[0] for ranking, capacity in of_ranks]
    kept = [ranking.num_kept(capacity) for ranking, capacity in of_ranks]
    steps = rankings[0].steps
    remote_rows = float(np.sum(found)) / len(looked_at) / steps
    asked = np.zeros((ranks, ranks))
    for part in range(ranks):
        elsewhere = sorted(set(range(ranks)) - near[part] - {part})
        asked[part, elsewhere] = remote_rows / max(1, len(elsewhere))
    asked[looked_at] = np.array(found) / steps
    work = measure(view)
    largest = max(map(view.book.part_size, range(ranks)))
    return ScaleEstimate(
        ranks=ranks,
        steps=steps,
        input_rows=float(np.mean([ranking.input_rows for ranking in rankings])) / steps,
        remote_rows=remote_rows,
        received_bytes=remote_rows * wire_row_bytes,
        memory_bytes=largest * row_bytes + max(kept) * wire_row_bytes,
        work=work,
        time=estimate_epoch(work, links, asked if len(near[0]) + 1 < ranks else None, wire_row_bytes, steps=steps),
        pipelined=pipelined,
    )


def describe_scales(found: Sequence[ScaleEstimate]) -> str:
    """A table, a row for each number of ranks."""
    first = found[0]

    def row(one: ScaleEstimate) -> dict[str, Any]:
        step = 1e3 / one.steps
        return {
            "ranks": one.ranks,
            "steps": one.steps,
            "rows": count(one.input_rows),
            "remote": count(one.remote_rows),
            "gets": byte_size(one.received_bytes + ID_BYTES * one.remote_rows),
            "features": byte_size(one.memory_bytes),
            "work ms": step * max(one.time.processor_s, one.time.device_s),
            "exchange ms": step * one.time.exchange_s,
            "sums ms": step * one.time.reduction_s,
            "step ms": step * one.seconds,
            "epoch s": one.seconds,
            "faster": first.seconds / one.seconds,
        }

    return table([row(one) for one in found])
