"""Training of a graph neural network, as the training loop sees it."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from windrow.comm.meter import Traffic
from windrow.comm.world import World
from windrow.gnn.evaluation import Evaluator
from windrow.gnn.models import build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.trainer import MinibatchTrainer
from windrow.launch.cache_choice import choose_cache, row_sizes
from windrow.launch.checkpoint import CheckpointHeader, check_world_size
from windrow.launch.job import graph_placement
from windrow.launch.known_links import world_of_sums
from windrow.launch.recipe import Recipe
from windrow.launch.terminal import byte_size
from windrow.partition.book import check_vertex_order

__all__ = ["GraphJob"]


class GraphJob:
    """A `windrow.launch.job.TrainingJob` on a partitioned graph.

    Args:
        world: all its ranks make the same job; one for each part of the store.
        recipe: the same on all ranks.
        device: where the model computes.

    Raises:
        WindrowError: the store or the recipe does not fit.
    """

    data: Literal["graph"] = "graph"
    higher_is_better = True
    """Every metric of vertices should."""

    def __init__(self, world: World, recipe: Recipe, device: torch.device) -> None:
        self._world = world
        self._order = recipe.sampler.order
        graph = PartitionedGraph.open(recipe.store, rank=world.rank, size=world.size)
        gpu_share = recipe.cache.gpu_share if device.type == "cuda" else 1.0
        check_vertex_order(
            graph.order,
            store=recipe.store,
            wanted=recipe.partition.order,
            fanouts=recipe.sampler.fanouts,
            batch_size=recipe.training.batch_size,
            gpu_share=gpu_share,
        )
        self._graph = graph.stored_as(recipe.sampler.storage)
        del graph
        model = build_model(
            recipe.model,
            in_features=self._graph.features.shape[1],
            out_features=self._graph.outputs,
            seed=recipe.run.seed,
        )
        self._cache = choose_cache(world, self._graph, recipe)
        self.trainer = MinibatchTrainer(
            world,
            self._graph,
            model.to(device),
            sampler_options=recipe.sampler,
            options=recipe.training,
            seed=recipe.run.seed,
            pipeline=recipe.pipeline,
            wire=recipe.wire,
            sums_world=world_of_sums(world, recipe.wire.topology, device=device.type),
            cached_ids=self._cache.cached_ids,
            gpu_share=gpu_share,
        )
        _, self._copy_bytes = row_sizes(recipe.sampler, recipe.wire, self._graph.features)
        choices = world.all_gather_object(
            (len(self._cache.cached_ids), self._cache.expected_rows), stage="size of caches"
        )
        self._cached_rows = [kept for kept, _ in choices]
        self._expected_rows = [expected for _, expected in choices if expected is not None]
        # What was rounded for the wire would make measured figures depend on the number of ranks.
        is_exact = recipe.sampler.storage != "fp32" or recipe.wire.vectors == "fp32"
        self._evaluator = Evaluator(
            world,
            self._graph,
            recipe.evaluation,
            fanouts=recipe.sampler.fanouts,
            seed=recipe.run.seed,
            pipeline=recipe.pipeline,
            store=self.trainer.store if is_exact else None,
        )
        self.metric = self._evaluator.metric
        self.shown_figures: Mapping[str, str] = {}
        self.data_fingerprint = self._graph.fingerprint
        self.samples_per_epoch = len(self._graph.train_ids)

    @property
    def opening_lines(self) -> Sequence[str]:
        """What is kept of other ranks, where there are any."""
        if self._world.size == 1:
            return ()
        kept = max(self._cached_rows)
        size = byte_size(kept * self._copy_bytes)
        line = f"cache: alpha {self._cache.alpha:.3g}, up to {kept:,} rows of other ranks ({size})"
        if self._expected_rows:
            line += f"; all ranks together will ask for about {sum(self._expected_rows):,.0f} more in an epoch"
        return (line,)

    def evaluate(self) -> dict[str, dict[str, float]]:
        """Measure. Collective."""
        values = self._evaluator.evaluate(self.trainer.model)
        return {split: {self.metric: value} for split, value in values.items()}

    def traffic(self) -> Traffic:
        """Rows of features that this rank exchanged."""
        assert self._world.meter is not None
        return self._world.meter.totals("features: rows")

    def placement(self) -> dict[str, Any]:
        """The parts of the graph."""
        return graph_placement(self._graph, cached_rows=self._cached_rows, copy_bytes=self._copy_bytes)

    def local_tables(self) -> None:
        """There are none."""

    def check_resumable(self, header: CheckpointHeader) -> None:
        """Refuse another number of ranks where minibatches depend on it."""
        check_world_size(header, self._world.size, order=self._order)

    def close(self) -> None:
        """Detach from the model's parameters."""
        self.trainer.close()
