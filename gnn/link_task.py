"""Link prediction: which vertices are joined by an edge, learnt from edges that are there and vertices drawn at random.

    training edges, shuffled      ... | (u, v) (u', v') ... | ...      a minibatch; each rank has those whose u it owns
    for each (u, v)               negatives n_1 .. n_K
    seeds                         u, v, n_1 .. n_K  ->  their vectors h
    scores                        h_u . h_v, h_u . h_n1, ..., h_u . h_nK     the first one should be the largest

`LinkTask` computes the vectors of the seeds from blocks that are sampled for them. No message goes along an edge that
is to be predicted: validation and test edges are taken out of the graph (`split_links`), and those of a minibatch, in
both directions, out of its blocks. `FullGraphLinkTask` computes those of all vertices in every step, and takes the
seeds'.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Unpack, cast

import torch
from torch import Tensor

from windrow.caching.selection import CacheOptions
from windrow.comm.errors import RecipeError
from windrow.comm.fetch import fetch_learnt_rows
from windrow.comm.meter import Traffic
from windrow.comm.wire import Wire, make_codec
from windrow.gnn.evaluation import EvaluationOptions, check_splits
from windrow.gnn.full_graph import FullGraphOptions, WholeGraphTask
from windrow.gnn.links import LinkKeywords, LinkObjective, Links, LinkSeeds
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.pipeline import LoadedMinibatch, PipelineOptions, SeedTask
from windrow.gnn.task import GraphTask, VertexTask
from windrow.training.embedding import EmbeddingModule

__all__ = ["FullGraphLinkTask", "LinkTask"]


class _LearnsLinks(VertexTask[Any]):
    """What tasks share whose samples are links."""

    metric = "mrr"

    def _use_links(self, graph: PartitionedGraph, links: Links, options: LinkKeywords) -> None:
        """Learn these."""
        self._objective = LinkObjective(graph, links, **options)
        self.fingerprint = self._objective.fingerprint
        self.samples_per_epoch = self._objective.num_links
        self.has_validation = links.validation.numel() > 0
        self.bound_to_ranks = 'negatives = "in-batch"' if options.get("negatives") == "in-batch" else ""
        self.shown_figures = {f"test hits@{self._objective.k}": f"test hits@{self._objective.k}"}

    def settings(self) -> dict[str, Any]:
        """See `Task.settings`."""
        return {**super().settings(), "links": self._objective.settings}

    def global_batch_size(self, epoch: int, step: int) -> int:
        """Training edges of a step, over all ranks."""
        del epoch
        return self._objective.global_batch_size(step)


class LinkTask(_LearnsLinks, GraphTask):
    """Edges of a graph, learnt from sampled neighbourhoods of their ends.

    The model is called as that of a `windrow.gnn.task.NodeTask`, and gives a vector for each seed. Pairs are scored by
    dot products, or by the model's own method ``score(h_u, h_v)``, [n, 1, d] and [n, m, d] (or [1, m, d]) to [n, m].

    Args:
        graph: this rank's view, of the graph without the links that are measured on.
        links: what to learn; must agree.
        fanouts: neighbours sampled per vertex at each hop, from the seeds outwards; -1 takes all.
        evaluation: how vectors are computed for evaluation; see `windrow.gnn.task.NodeTask` for this and the next four.
        cache: which rows of other ranks each rank keeps.
        cached_ids: those of this rank, for who chose them already.
        pipeline: how far ahead minibatches are sampled and fetched.
        embedding: rows of vertices that are learnt, in x.
        options: negatives, loss and what is measured: keywords of `windrow.gnn.links.LinkKeywords`.

    Raises:
        RecipeError: an option is out of range.
        DataError: there is nothing to learn, a vertex of a link is not there, or links end in several types.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        links: Links,
        fanouts: Sequence[int] = (15, 10),
        *,
        evaluation: EvaluationOptions | None = None,
        cache: CacheOptions | str | None = None,
        cached_ids: Tensor | None = None,
        pipeline: PipelineOptions | None = None,
        embedding: EmbeddingModule | None = None,
        **options: Unpack[LinkKeywords],
    ) -> None:
        super().__init__(
            graph,
            fanouts,
            evaluation=evaluation,
            cache=cache,
            cached_ids=cached_ids,
            pipeline=pipeline,
            embedding=embedding,
        )
        if evaluation is not None and evaluation.metric != "auto":
            raise RecipeError(
                f"evaluation.metric = {evaluation.metric!r} is of labels, and links are measured by mrr and hits@k: "
                "leave it out"
            )
        self._use_links(graph, links, options)

    def start(self) -> None:
        """Choose what is cached, and start the threads that sample. Collective."""
        setup = self.setup
        self.steps_per_epoch = self._objective.start(batch_size=setup.options.batch_size, seed=setup.seed)
        self.start_pipeline({}, self._objective.demand(self._fanouts))
        # That shares its features with other ranks of the machine, perhaps: the one before it is let go of.
        self._objective.graph = self.graph

    def seeds(self, epoch: int, step: int) -> SeedTask:
        """The ends of this rank's edges and their negatives, once each, and messages along none of these edges."""
        return self._objective.seeds(epoch, step)

    def loss(self, minibatch: LoadedMinibatch, epoch: int, step: int) -> Tensor | None:
        """Of this rank's edges; where it has none in this step, None, or of an embedding a zero."""
        seeds = cast("LinkSeeds", minibatch.task)
        self.round_anew(epoch, step)
        if not len(seeds.sources):
            return minibatch.no_loss()
        with self.setup.stopwatch.measure("forward"):
            return self._objective.loss(self.setup.model, self.forward(minibatch), seeds)

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str] = ("validation", "test")) -> dict[str, dict[str, float]]:
        """See `LinkObjective.measure`. Collective. Cost: inference of all vertices besides."""
        check_splits(splits)
        return self._objective.measure(self.setup.world, self.setup.model, self.ready_evaluator().infer(), splits)


class FullGraphLinkTask(_LearnsLinks, WholeGraphTask[LinkSeeds]):
    """Edges of a graph, learnt from the vectors of all its vertices, which each step computes anew.

    The model is called as that of a `windrow.gnn.full_graph.FullGraphTask`, and gives a vector for each vertex of the
    part; `windrow.gnn.models.LightGCN` is one. Other than in a `LinkTask` messages do go along edges of the step. A
    step has training.batch_size edges, of all ranks, and costs a pass over the whole graph each way: take many.

    Args:
        graph: see `LinkTask`.
        links: what to learn; must agree.
        exchange: how rows travel; must agree. Only what is exact; wire.vectors and wire.gradients in at least 16 bits.
        num_layers: blocks that the model takes; None: those of a `GNN`, or its own ``num_layers``.
        embedding: rows of vertices that are learnt, in x.
        options: as of `LinkTask`.

    Raises:
        RecipeError: an option is out of range, or has rows of an earlier epoch or few bits.
        DataError: as of `LinkTask`.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        links: Links,
        exchange: FullGraphOptions | None = None,
        *,
        num_layers: int | None = None,
        embedding: EmbeddingModule | None = None,
        **options: Unpack[LinkKeywords],
    ) -> None:
        super().__init__(graph, exchange, num_layers=num_layers, embedding=embedding)
        for name, value, only in (
            ("method", self._options.method, "exact"),
            ("messages", self._options.messages, "wire"),
        ):
            if value != only:
                raise RecipeError(
                    f'full_graph.{name} = "{value}": links are learnt in several steps an epoch, from exact rows: '
                    f'leave it out ("{only}")'
                )
        self._use_links(graph, links, options)

    def start(self) -> None:
        """Agree on who sends what. Collective."""
        setup = self.setup
        self.steps_per_epoch = self._objective.start(batch_size=setup.options.batch_size, seed=setup.seed)
        self.start_exchanges()
        if self.bits is not None:
            raise RecipeError(
                f'wire.vectors = "{setup.wire.vectors}" with links that are learnt from the whole graph: rows would be '
                "rounded alike in all steps of an epoch; choose fp32, bf16 or fp16"
            )
        self._wire = Wire(
            setup.world,
            stage="links",
            codec=setup.wire.vectors_codec(torch.float32),
            gradient_codec=make_codec(setup.wire.gradients),
            device=setup.device,
        )

    @contextmanager
    def minibatches(self, epoch: int, steps: range) -> Iterator[Iterator[LinkSeeds]]:
        """This rank's edges of each step."""
        with self.setup.world.background_progress():
            yield (self._objective.seeds(epoch, step) for step in steps)

    def loss(self, minibatch: LinkSeeds, epoch: int, step: int) -> Tensor:
        """Of this rank's edges; every rank has a backward pass to run, also one without any."""
        vectors = self.forward(epoch, step).float()
        with self.setup.stopwatch.measure("forward"):
            of_seeds = fetch_learnt_rows(self._wire, self.graph.offsets, vectors, minibatch.seeds)
            if not len(minibatch.sources):
                nothing: Tensor = of_seeds.sum() * 0
                return nothing
            return self._objective.loss(self.setup.model, of_seeds, minibatch)

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str] = ("validation", "test")) -> dict[str, dict[str, float]]:
        """See `LinkObjective.measure`. Collective. Cost: inference of all vertices besides."""
        check_splits(splits)
        return self._objective.measure(self.setup.world, self.setup.model, self.infer(), splits)

    def traffic(self) -> Traffic:
        """And vectors of seeds, and their gradients."""
        meter = self.setup.world.meter
        assert meter is not None
        return super().traffic() + meter.totals("links: rows") + meter.totals("links: gradients")
