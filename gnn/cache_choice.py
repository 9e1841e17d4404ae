"""Which remote rows each rank caches, for training and for sampled inference.

One part's minibatches are ranked first: what they will ask for, and which remote rows would be kept first. This needs
one process, so that planning does it for all parts. Then all ranks agree on sizes, before a run starts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.caching.policies import score_vertices
from windrow.caching.selection import (
    GIB_BYTES,
    CacheOptions,
    automatic_capacities,
    cache_capacity,
    choose_cached,
    expected_remote_rows,
    rows_worth_keeping,
)
from windrow.caching.vip import Demand, Samplers, inclusion_probabilities
from windrow.comm.shared_memory import SharedRows
from windrow.comm.wire import WireOptions, make_codec
from windrow.comm.world import World
from windrow.gnn.inference import own_vertices, sampled_steps
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.sampler import NeighborSampler, SamplerOptions
from windrow.gnn.seed_order import SeedOrder

__all__ = [
    "CacheChoice",
    "PartRanking",
    "Sampling",
    "choose_cache",
    "choose_inference_cache",
    "count_accesses",
    "demand_of",
    "parts_near",
    "rank_part",
    "row_sizes",
    "seed_order",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """What a cache is chosen by: how minibatches are made, how many, and how their rows travel."""

    sampler: SamplerOptions
    cache: CacheOptions
    wire: WireOptions
    batch_size: int
    """Seeds per step, over all ranks."""
    epochs: int
    """Of the whole run."""
    seed: int
    """The run's seed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PartRanking:
    """One part's remote vertices in the order in which they would be kept, and how often they will be needed."""

    part: int
    """Which part."""
    offsets: list[int]
    """[parts + 1], where each part's ids start."""
    steps: int
    """Minibatches in an epoch."""
    input_rows: float
    """Rows, local and remote, that all of them need, in expectation."""
    total: npt.NDArray[np.float64]
    """float64 [N], probability of each vertex to be among the input rows of one minibatch of this part."""
    ranking: npt.NDArray[np.int64]
    """Remote vertices with a score above 0, best first."""
    near: frozenset[int] = frozenset()
    """Other parts whose rows this one reads in shared memory: their vertices count as needed by nobody here."""

    @property
    def own(self) -> tuple[int, int]:
        """First id of this part, and the one after its last."""
        return self.offsets[self.part], self.offsets[self.part + 1]

    @property
    def num_remote(self) -> int:
        """Vertices of all parts but this one and those near it."""
        return sum(stop - start for start, stop in self._remote_parts)

    @property
    def _remote_parts(self) -> list[tuple[int, int]]:
        held = {self.part, *self.near}
        return [span for part, span in enumerate(pairwise(self.offsets)) if part not in held]

    def worthwhile(self, epochs: int) -> int:
        """Remote rows that spare more transfers than they cost, see `windrow.caching.selection`."""
        return rows_worth_keeping(self.total, self.own, steps=self.steps, epochs=epochs)

    def num_kept(self, capacity: int) -> int:
        """How many ids `kept` gives."""
        return len(self.ranking[:capacity]) if capacity < self.num_remote else self.num_remote

    def kept(self, capacity: int) -> npt.NDArray[np.int64]:
        """Ids that a cache of so many rows holds: the best; every remote vertex where there is room for all of them."""
        if capacity < self.num_remote:
            # A copy: a run that holds on to a part of the ranking would hold all of it in memory.
            return self.ranking[:capacity].copy()
        return np.concatenate([np.arange(0), *(np.arange(*span) for span in self._remote_parts)])

    def expected_rows(self, capacities: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Rows that this part asks each owner for in an epoch, float64 [C, parts], with caches of these sizes."""
        rows = expected_remote_rows(self.total, self.ranking, self.offsets, self.part, capacities, steps=self.steps)
        rows[np.asarray(capacities) >= self.num_remote] = 0.0
        return rows


def demand_of(graph: PartitionedGraph, part: int, fanouts: Sequence[int], steps: int) -> Demand:
    """Describe the training minibatches of a part, whether `graph` is its view or not, with so many steps an epoch."""
    start, stop = graph.book.part_range(part)
    train_ids = graph.train_ids
    return Demand(
        indptr=graph.indptr.numpy(),
        indices=graph.indices.numpy(),
        edge_type=graph.edge_type_array,
        own=(start, stop),
        seeds=train_ids[(train_ids >= start) & (train_ids < stop)].numpy(),
        steps=steps,
        fanouts=tuple(fanouts),
    )


def count_accesses(sampler: NeighborSampler, order: SeedOrder, epochs: Iterable[int]) -> npt.NDArray[np.int64]:
    """Sample all minibatches of some epochs and count how often each vertex is among the input rows, int64 [N].

    The draws are those of training where the sampler's seed is the run's. Ranking vertices for training by epochs that
    training will sample itself would be looking ahead: take others.
    """
    counts = np.zeros(sampler.num_vertices, np.int64)
    for epoch in epochs:
        for step in range(order.steps_per_epoch):
            # No vertex is twice among the input rows of a minibatch.
            counts[sampler.sample(order.seeds(epoch, step), epoch=epoch, step=step).input_ids.numpy()] += 1
    return counts


def parts_near(hosts: Sequence[str] | None, parts: int) -> list[frozenset[int]]:
    """The others whose rows each part reads in shared memory, by the machine of each; None: none does."""
    return [
        frozenset(part for part in range(parts) if hosts is not None and hosts[part] == hosts[of] and part != of)
        for of in range(parts)
    ]


def rank_part(
    graph: PartitionedGraph,
    part: int,
    sampling: Sampling,
    *,
    samplers: Samplers | None = None,
    demand: Demand | None = None,
    near: frozenset[int] = frozenset(),
) -> PartRanking:
    """Analyse a part's minibatches, and rank what they need by the cache policy: RecipeError where it cannot be used.

    Args:
        graph: its topology and training vertices; whose rows it holds does not matter.
        part: whose minibatches.
        sampling: how they are made.
        samplers: of the same graph, where they are known from another part.
        demand: its minibatches, where seeds are not the training vertices; the policy "simulation" is refused then.
        near: other parts whose rows it reads in shared memory.

    Cost: one pass over the edges for each hop. The policy "simulation" samples some epochs besides.
    """
    order = None
    if demand is None:
        order = seed_order(graph, part, sampling)
        demand = demand_of(graph, part, sampling.sampler.fanouts, order.steps_per_epoch)
    if samplers is None:
        samplers = graph.samplers()
    # A copy, or all hops would stay in memory with the last.
    total = inclusion_probabilities(demand, samplers=samplers)[-1].copy()
    policy = sampling.cache.policy

    def simulate(epochs: int) -> npt.NDArray[np.int64]:
        assert order is not None
        sampler = NeighborSampler(
            graph.indptr,
            graph.indices,
            sampling.sampler.fanouts,
            seed=sampling.seed,
            original_ids=graph.original_ids,
            edge_type=graph.edge_type,
            types=graph.types,
        )
        # Epochs that are not trained: a simulation that saw the very minibatches of training would flatter itself.
        first = sampling.epochs
        return count_accesses(sampler, order, range(first, first + epochs))

    scores = total
    if policy != "vip":
        scores = score_vertices(policy, demand, simulate=simulate if order else None, samplers=samplers)
    input_rows = demand.steps * float(total.sum())
    for other in near:
        start, stop = graph.book.part_range(other)
        scores[start:stop] = total[start:stop] = 0.0
    return PartRanking(
        part=part,
        offsets=graph.offsets,
        steps=demand.steps,
        input_rows=input_rows,
        total=total,
        ranking=choose_cached(scores, demand.own),
        near=near,
    )


def seed_order(graph: PartitionedGraph, part: int, sampling: Sampling) -> SeedOrder:
    """The seeds of a part's minibatches, as training draws them."""
    return SeedOrder(
        graph.train_ids,
        graph.original_ids,
        offsets=graph.offsets,
        rank=part,
        batch_size=sampling.batch_size,
        scheme=sampling.sampler.order,
        seed=sampling.seed,
    )


def row_sizes(sampler: SamplerOptions, wire: WireOptions, features: Tensor) -> tuple[int, int]:
    """Bytes of one row of features, [rows, F], where it is owned, and on the wire or in a cache, which keeps that form.

    Of the features only shape and dtype count, as the store has them, or as training keeps them already.
    """
    shape = features.shape[1:]
    in_memory = make_codec(sampler.storage).wire_row_bytes(shape, features.dtype)
    on_the_wire = wire.vectors_codec(features.dtype).wire_row_bytes(shape, features.dtype)
    return in_memory, min(in_memory, on_the_wire)


@dataclass(frozen=True, kw_only=True, eq=False)
class CacheChoice:
    """What one rank keeps."""

    alpha: float
    """Replication factor, the same on every rank: the largest cache as a share of N / ranks."""
    cached_ids: Tensor
    """int64, ids of remote vertices whose rows this rank keeps."""
    expected_rows: float | None
    """Rows that this rank will ask others for in an epoch; None where nobody has worked it out (no cache)."""


def choose_cache(
    world: World,
    graph: PartitionedGraph,
    sampling: Sampling,
    *,
    demand: Demand | None = None,
    shared: SharedRows | None = None,
) -> CacheChoice:
    """Choose the remote rows that this rank keeps, as the cache options say. Collective, one rank for each part.

    With a number for alpha every rank keeps floor(alpha N / ranks) rows, or as many as it can ever need; with "auto",
    those that pay, within the memory budget. `demand` is this rank's minibatches where seeds are not training vertices,
    `shared` what it reads of other ranks of its host.

    Cost: that of `rank_part`; none where alpha is 0, there are no features, or all ranks are on one host.
    """
    options = sampling.cache
    near = shared.near if shared else frozenset[int]()
    alone = torch.tensor(int(len(near) + 1 == world.size))
    unneeded = options.alpha == 0 or graph.num_features == 0
    if unneeded or bool(world.all_reduce(alone, stage="size of caches", op="min")):
        return CacheChoice(alpha=0.0, cached_ids=torch.empty(0, dtype=torch.int64), expected_rows=None)
    ranking = rank_part(graph, world.rank, sampling, demand=demand, near=near)
    _, copy_bytes = row_sizes(sampling.sampler, sampling.wire, graph.features)
    if isinstance(options.alpha, str):
        need = ranking.worthwhile(sampling.epochs), ranking.num_remote
        worthwhile, remote = zip(*world.all_gather_object(need, stage="size of caches"), strict=True)
        capacities = automatic_capacities(worthwhile, remote, copy_bytes, options.memory_gib)
        alpha, own = max(capacities) * world.size / graph.num_vertices, capacities[world.rank]
    else:
        alpha, own = options.alpha, cache_capacity(options.alpha, graph.num_vertices, world.size)
    expected = float(ranking.expected_rows([own]).sum())
    return CacheChoice(alpha=alpha, cached_ids=torch.from_numpy(ranking.kept(own)), expected_rows=expected)


def choose_inference_cache(
    world: World,
    graph: PartitionedGraph,
    ids: Tensor | None,
    options: CacheOptions,
    *,
    fanouts: tuple[int, ...],
    batch_size: int,
    shared: SharedRows | None = None,
) -> Tensor:
    """Choose the remote rows that this rank keeps for one pass of sampled inference, by policy "vip". Collective.

    A row that two minibatches need is worth keeping: it travels once instead of twice.

    Args:
        world: one rank for each part.
        graph: this rank's view.
        ids: int64 [n], vertices to predict, ids of the partition; None for all; must agree, as all that follows.
        options: how much room there is.
        fanouts: neighbours per hop.
        batch_size: vertices of a minibatch, over all ranks.
        shared: what this rank reads of other ranks of its host.

    Returns:
        int64 ids of other ranks' vertices: never more than save transfers, save where rows of all ranks fit.

    Cost: that of `choose_cache`.
    """
    steps = sampled_steps(graph, ids, batch_size)
    if options.alpha == 0 or steps == 0 or graph.num_features == 0:
        return torch.empty(0, dtype=torch.int64)
    sampler, wire = SamplerOptions(fanouts=fanouts), WireOptions()
    if not isinstance(options.alpha, str):
        rows = cache_capacity(options.alpha, graph.num_vertices, world.size)
        _, row_bytes = row_sizes(sampler, wire, graph.features)
        options = replace(options, alpha="auto", memory_gib=(rows + 0.5) * row_bytes / GIB_BYTES)
    sampling = Sampling(
        sampler=sampler, cache=replace(options, policy="vip"), wire=wire, batch_size=batch_size, epochs=1, seed=0
    )
    seeds = own_vertices(graph, ids).numpy()
    demand = replace(demand_of(graph, world.rank, fanouts, steps), seeds=seeds)
    return choose_cache(world, graph, sampling, demand=demand, shared=shared).cached_ids
