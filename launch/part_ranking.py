"""What one part's minibatches will ask for, and which remote rows would be kept first: for training and planning."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from windrow.caching.auto_capacity import rows_worth_keeping
from windrow.caching.expected_traffic import expected_remote_rows
from windrow.caching.policies import score_vertices
from windrow.caching.samplers import Samplers, find_samplers
from windrow.caching.selection import choose_cached
from windrow.caching.vip import inclusion_probabilities
from windrow.comm.codec import make_codec
from windrow.gnn.accesses import count_accesses
from windrow.gnn.demand import demand_of
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.seed_order import SeedOrder
from windrow.gnn.trainer import SamplerOptions
from windrow.launch.recipe import Recipe

__all__ = ["PartRanking", "rank_part", "row_sizes", "seed_order"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PartRanking:
    """One part's remote vertices in the order in which they would be kept, and how often they will be needed."""

    part: int
    """Which part."""
    offsets: list[int]
    """[parts + 1], where each part's ids start."""
    steps: int
    """Minibatches in an epoch."""
    total: npt.NDArray[np.float64]
    """float64 [N], probability of each vertex to be among the input rows of one minibatch of this part."""
    ranking: npt.NDArray[np.int64]
    """Remote vertices with a score above 0, best first."""

    @property
    def own(self) -> tuple[int, int]:
        """First id of this part, and the one after its last."""
        return self.offsets[self.part], self.offsets[self.part + 1]

    @property
    def num_remote(self) -> int:
        """Vertices of all other parts."""
        return self.offsets[-1] - (self.own[1] - self.own[0])

    @property
    def input_rows(self) -> float:
        """Rows, local and remote, that all minibatches of an epoch need, in expectation."""
        return self.steps * float(self.total.sum())

    def worthwhile(self, epochs: int) -> int:
        """Remote rows that spare more transfers than they cost, see `windrow.caching.auto_capacity`."""
        return rows_worth_keeping(self.total, self.own, steps=self.steps, epochs=epochs)

    def num_kept(self, capacity: int) -> int:
        """How many ids `kept` gives."""
        return len(self.ranking[:capacity]) if capacity < self.num_remote else self.num_remote

    def kept(self, capacity: int) -> npt.NDArray[np.int64]:
        """Ids that a cache of so many rows holds: the best; every remote vertex where there is room for all of them."""
        if capacity < self.num_remote:
            # A copy: a run that holds on to a part of the ranking would hold all of it in memory.
            return self.ranking[:capacity].copy()
        start, stop = self.own
        return np.concatenate([np.arange(start), np.arange(stop, self.offsets[-1])])

    def expected_rows(self, capacities: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Rows that this part asks each owner for in an epoch.

        Args:
            capacities: integers [C], sizes of the cache.

        Returns:
            float64 [C, parts].
        """
        rows = expected_remote_rows(
            self.total, self.ranking, self.offsets, self.part, capacities, steps=self.steps
        )
        rows[np.asarray(capacities) >= self.num_remote] = 0.0
        return rows


def rank_part(
    graph: PartitionedGraph, part: int, recipe: Recipe, *, samplers: Samplers | None = None
) -> PartRanking:
    """Analyse a part.

    Args:
        graph: its topology and training vertices; whose rows it holds does not matter.
        part: whose minibatches.
        recipe: sampler, cache policy, batch size and seed.
        samplers: of the same graph, where they are known from another part.

    Cost:
        One pass over the edges for each hop. The policy "simulation" samples some epochs besides.
    """
    order = seed_order(graph, part, recipe)
    if samplers is None:
        samplers = find_samplers(graph.indptr.numpy(), graph.indices.numpy())
    demand = demand_of(graph, part, recipe.sampler.fanouts, order.steps_per_epoch)
    # A copy, or all hops would stay in memory with the last.
    total = inclusion_probabilities(demand, samplers=samplers).total.copy()
    policy = recipe.cache.policy

    def simulate(epochs: int) -> npt.NDArray[np.int64]:
        sampler = NeighborSampler(
            graph.indptr,
            graph.indices,
            recipe.sampler.fanouts,
            seed=recipe.run.seed,
            original_ids=graph.original_ids,
        )
        # Epochs that are not trained: a simulation that saw the very minibatches of training would flatter itself.
        first = recipe.training.epochs
        return count_accesses(sampler, order, range(first, first + epochs))

    scores = (
        total if policy == "vip" else score_vertices(policy, demand, simulate=simulate, samplers=samplers)
    )
    return PartRanking(
        part=part,
        offsets=graph.offsets,
        steps=order.steps_per_epoch,
        total=total,
        ranking=choose_cached(scores, demand.own, graph.num_vertices),
    )


def seed_order(graph: PartitionedGraph, part: int, recipe: Recipe) -> SeedOrder:
    """The seeds of a part's minibatches, as training draws them.

    Args:
        graph: with its training vertices.
        part: whose seeds.
        recipe: batch size, order and seed.
    """
    return SeedOrder(
        graph.train_ids,
        graph.original_ids,
        offsets=graph.offsets,
        rank=part,
        batch_size=recipe.training.batch_size,
        scheme=recipe.sampler.order,
        seed=recipe.run.seed,
    )


def row_sizes(sampler: SamplerOptions, features: Tensor) -> tuple[int, int]:
    """Bytes of one row of features where it is owned, and on the wire of training or in a cache, which keeps that form.

    Args:
        sampler: says in which number formats rows are kept and travel.
        features: [rows, F] as the store has them, or as training keeps them already; only shape and dtype count.
    """
    shape = features.shape[1:]
    in_memory = make_codec(sampler.storage).wire_row_bytes(shape, features.dtype)
    on_the_wire = sampler.codec_of(features.dtype).wire_row_bytes(shape, features.dtype)
    return in_memory, min(in_memory, on_the_wire)
