"""Learning about vertices from the whole graph at once: every epoch is one step over all vertices and edges.

Each rank runs the model on the vertices of its part, and before each layer gets the rows of their sources that others
own (`windrow.gnn.halo`): no sampling, so the gradient is exact, and messages grow with the cut and the hidden width
alone.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, cast
from zlib import crc32

import torch
from pydantic import Field
from torch import Tensor, nn

from windrow.comm.errors import RecipeError
from windrow.comm.links import Links, NetworkDescription, described_links
from windrow.comm.meter import Traffic
from windrow.comm.options import NonNegativeFloat, NonNegativeInt, PositiveInt, Share, checked_dataclass
from windrow.comm.wire import FEW_BITS, Codec, make_codec
from windrow.gnn.evaluation import EvaluationOptions, check_splits, measure_splits, predictions_of, rows_of
from windrow.gnn.feature_slices import FeatureSlices
from windrow.gnn.halo import KEPT, WAYS, Halo, HaloExchange, Order, TwoWays, Way, fetching_again, own_sums
from windrow.gnn.halo_choice import Method, check_method, check_model, faster_method
from windrow.gnn.halo_methods import (
    BoundarySampling,
    HeldRows,
    HoldingExchange,
    SkippingExchange,
    StaleExchange,
    sampled_rows,
)
from windrow.gnn.inference import block_of_range, in_degrees, own_vertices
from windrow.gnn.message_bits import MessageBits, Messages
from windrow.gnn.message_passing import Block
from windrow.gnn.models import GNN
from windrow.gnn.partitioned import PartitionedGraph, graph_placement
from windrow.gnn.task import VertexTask, loss_sum
from windrow.training.dropout import DropoutContext, run_model
from windrow.training.embedding import EmbeddingModule
from windrow.training.shard_files import StoredTables
from windrow.training.task import Loss, Metrics, Minibatch, options_set, summed_loss

__all__ = ["FullGraphOptions", "FullGraphTask", "first_layer_options"]

ASSIGNMENTS = 5
"""Of widths, in a run."""

HELD = "held "
"""Begins the names of what `FullGraphTask.state` says of rows that are held."""


FEW_NONZERO = 0.02
"""Share of numbers of the features that are not zero, up to which a first layer multiplies those alone. A product of
sparse rows takes 30 times as long for a number: 3 % is where both are equal on a core with AVX2."""


@checked_dataclass
class FullGraphOptions:
    """How rows travel between parts in full-graph training; the number formats are those of [wire]."""

    enabled: bool = False
    """Learn from the whole graph in every step, without sampling: how minibatches are made (sampler.fanouts,
    sampler.order, training.batch_size) counts for nothing then; settings of caches and pipelines are refused."""
    overlap: bool = True
    """Add up over own sources while messages travel; false: afterwards, as a baseline."""
    partial_sums: bool = True
    """Send sums for destinations where they are fewer than rows of sources, by a minimum vertex cover of the edges
    between two parts. Layers that look at each source (gat) get rows anyway."""
    order: Order = "auto"
    """Whether layers add rows up before their linear map, so that its inputs travel, or after it, so that its outputs
    do; auto: whichever are fewer numbers, gradients included. gat maps first, gin adds up first."""
    messages: Messages = "wire"
    """How rows and their gradients travel in training: wire, in the number formats of [wire]; int8, int4, int2 or int1,
    rounded at random to so many bits; adaptive, in `widths` that weigh their errors against time (AdaQP); random, in
    widths drawn at random, as a baseline. Evaluation, and what `keep_first` keeps, travel as they are."""
    widths: Annotated[tuple[Literal[1, 2, 4, 8], ...], Field(min_length=1)] = (2, 4, 8)
    """Bits that adaptive and random messages choose from."""
    error_share: Share = 0.5
    """Of adaptive messages: 1, only errors count; 0, only time (lambda of AdaQP)."""
    group_size: PositiveInt = 100
    """Rows of adaptive and random messages that share a width."""
    assign_every_epochs: NonNegativeInt = 0
    """Epochs between two assignments of widths; 0: a fifth of all epochs. Until the first, rows travel in 8 bits."""
    keep_first: bool = True
    """Keep what the first layer of a `GNN` adds up of the features, so that they travel once in a run. Not with
    model.residual, nor where the layer's map comes first, as it does where under 2 % of the features' numbers are not
    zero: it then multiplies those alone. Memory: a row of features for each vertex of the part."""
    recompute: bool = False
    """Fetch rows of other parts again in the backward pass instead of keeping those of the forward pass: less memory
    for layers that look at each source (gat), whose rows then travel three times an epoch instead of twice. Layers that
    add rows up keep none anyway, and those of rgcn and rgat, which sort them by type, cannot do without."""
    method: Method = "exact"
    """What a layer gets of other parts in training; evaluation is exact. exact: all that it needs; boundary_sampling:
    `boundary_share` of it, drawn anew in every epoch (BNS-GCN); stale: that of the epoch before (PipeGCN);
    skip_broadcasts: what a part sent when it had moved enough (SANCUS); feature_slices: exact, by exchanging columns of
    all vertices' rows instead (NeutronTP); auto: exact or feature_slices, whichever is predicted to be faster on the
    links that `windrow network` measured, else on equal ones."""
    boundary_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Of boundary_sampling: the share of what travels between two parts (p of BNS-GCN)."""
    skip_threshold: NonNegativeFloat = 0.05
    """Of skip_broadcasts: rows travel where their change since they last did is more than this share of their norm."""
    max_staleness: PositiveInt = 10
    """Of skip_broadcasts: all rows travel in every so many epochs, the first among them."""

    def __post_init__(self) -> None:
        check_method(self.method, self.messages, recompute=self.recompute)


def first_layer_options(
    model: nn.Module, options: FullGraphOptions, nonzero_share: float, *, learns_rows: bool
) -> tuple[FullGraphOptions, bool]:
    """How the rows of the first layer travel, and whether its map had better multiply only what is not zero of them.

    That pays for features so sparse, and needs a map of the features themselves: not of their sums, which are less
    sparse, nor a module that might do anything else with them. Rows then travel behind the map. Where some inputs are
    learnt nothing that is added up of them can be kept.
    """
    if learns_rows:
        return replace(options, keep_first=False), False
    maps_rows = isinstance(model, GNN) and not model.options.is_typed and model.options.kind != "gin"
    may_be_sparse = maps_rows and options.order != "aggregate"
    skips_zeros = may_be_sparse and nonzero_share <= FEW_NONZERO
    is_first_map = isinstance(model, GNN) and not model.options.residual
    if skips_zeros and is_first_map:
        options = replace(options, order="project", keep_first=False)
    return options, skips_zeros


class WholeGraphTask(VertexTask[Minibatch]):
    """What tasks share that compute all vertices in every step; `FullGraphTask` describes models and arguments."""

    def __init__(
        self,
        graph: PartitionedGraph,
        options: FullGraphOptions | None,
        *,
        num_layers: int | None,
        links: Links | None = None,
        embedding: EmbeddingModule | None,
    ) -> None:
        super().__init__(graph, embedding)
        self._options = options or FullGraphOptions()
        self._num_layers = num_layers
        self._links = links

    def settings(self) -> dict[str, Any]:
        """See `Task.settings`."""
        return {**options_set(self._options), "num_layers": self._num_layers or 0}

    def start_exchanges(self) -> None:
        """Agree on who sends what. Collective.

        Raises:
            DataError: a feature is too large for the wire's number format.
            RecipeError: it is not known how many blocks the model takes, or an option has no meaning here.
        """
        graph, setup = self.graph, self.setup
        model, world, device = setup.model, setup.world, setup.device
        check_model(self._options.method, model, recompute=self._options.recompute)
        num_layers = self._num_layers
        if isinstance(model, GNN):
            num_layers = model.options.num_layers
        elif num_layers is None:
            num_layers = getattr(model, "num_layers", None)
        if num_layers is None:
            raise RecipeError(
                f"how many blocks does {type(model).__name__} take? Say {type(self).__name__}(..., num_layers = ...)"
            )
        self._num_layers = num_layers
        if setup.options.accumulate != 1:
            raise RecipeError(
                f"training.accumulate = {setup.options.accumulate}: each step computes the whole graph anyway, so that "
                "adding up gradients saves nothing: leave it out"
            )
        start, stop = graph.own_range
        codec = setup.wire.vectors_codec(torch.float32)
        first = self._load_features(codec)
        edge_weight = graph.edge_weight_for(model)
        # Of a module of the user's own it is not known whether it has a `GCNLayer`.
        needs_degrees = getattr(model, "needs_source_degrees", True)
        degrees = in_degrees(graph, edge_weight) if needs_degrees else None
        block, sources = block_of_range(graph, degrees, edge_weight, start, stop)
        if graph.edge_attr is not None and not isinstance(model, GNN):  # which has no use for them
            edges = slice(*graph.indptr[[start, stop]].tolist())
            block = replace(block, edge_attr=graph.edge_attr[edges])
        halo = partial(
            Halo, world, block, sources[block.num_dst :], graph.offsets, own=own_sums(block, device), device=device
        )
        whole = halo(cover=False)
        fewest = halo(cover=True) if self._options.partial_sums else whole
        owners = crc32(graph.original_ids.numpy().tobytes(), crc32(repr(graph.offsets).encode()))
        self._sent_rows, self._whole_rows = (sum(each.send_counts) for each in (fewest, whole))
        self.bits = self._make_bits(block, num_layers, owners)
        """Of their messages; None where these travel in the formats of the wire."""
        formats: Sequence[Mapping[Way, Codec]] = (
            self.bits.codecs
            if self.bits
            else [{"rows": codec, "gradients": make_codec(setup.wire.gradients)}] * num_layers
        )
        block = block.to(device)

        # A module of the user's own may add up anything else in its first layer, and a residual one adds up what its
        # first map made, which is learnt, or was frozen for a while.
        same = isinstance(model, GNN) and not model.options.residual
        kept: dict[str, Tensor] | None = {} if first.keep_first and same else None

        def exchanges(
            make: Callable[..., HaloExchange], prefix: str, codecs: Sequence[Mapping[Way, Codec]]
        ) -> list[HaloExchange]:
            return [
                make(
                    world,
                    whole,
                    fewest,
                    name=f"{prefix}layer {layer}",
                    device=device,
                    stopwatch=setup.stopwatch,
                    order=self._options.order if layer else first.order,
                    overlap=self._options.overlap,
                    kept=kept if layer == 0 else None,
                    codecs=of_layer,
                )
                for layer, of_layer in enumerate(codecs)
            ]

        self._choose_method(fewest)
        self.exchanges = exchanges(self._maker(edge_weight), "", formats)
        """Of each layer, in training."""
        self._blocks = [replace(block, exchange=exchange) for exchange in self.exchanges]
        exact = exchanges(HaloExchange, "evaluation, ", [{}] * num_layers)
        self._exact_blocks = [replace(block, exchange=exchange) for exchange in exact]
        holding = [exchange for exchange in self.exchanges if isinstance(exchange, HoldingExchange)]
        self._held = HeldRows(holding, rank=world.rank, partition=owners, device=device) if holding else None

    def _load_features(self, codec: Codec) -> FullGraphOptions:
        """Bring the features to the model's device, sparse if that pays; the options of the first layer. Collective."""
        setup = self.setup
        self._features = self.graph.features.to(setup.device, torch.float32)
        codec.check(self._features)
        numbers = torch.tensor([int(self._features.count_nonzero()), self._features.numel()])
        nonzero, all_numbers = setup.world.all_reduce(numbers, stage="features").tolist()
        first, skips_zeros = first_layer_options(
            setup.model, self._options, nonzero / max(1, all_numbers), learns_rows=self._embedding is not None
        )
        if skips_zeros and setup.options.autocast == "none":
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
                self._features = self._features.to_sparse_csr()
        return first

    def _choose_method(self, halo: Halo) -> None:
        """Settle what the rows of training travel by, and what to say about it. Collective."""
        world, method = self.setup.world, self._options.method
        self._about_method = "" if method == "exact" else f"method: {method}"
        if method == "auto" and world.size > 1:
            counts = world.all_gather_object(halo.send_counts, stage="halo")
            method, why = faster_method(self._known_links(), counts, self.graph.offsets, self.setup.model)
            self._about_method = f"method: {method}, since {why}"
        self._method = "exact" if method == "auto" else method
        self._method_rows = self._sent_rows
        if self._method == "boundary_sampling":
            self._method_rows = sum(sampled_rows(count, self._options.boundary_share) for count in halo.send_counts)
        elif self._method == "feature_slices":
            # There and back, without what each rank has for itself.
            self._method_rows = 2 * len(self.graph.features) * (world.size - 1) // world.size

    def _maker(self, edge_weight: Tensor | None) -> Callable[..., HaloExchange]:
        """What makes the exchange of a layer, in training."""
        options, graph, setup = self._options, self.graph, self.setup
        if self._method == "boundary_sampling":
            return partial(BoundarySampling, share=options.boundary_share, seed=setup.seed, drawn={})
        if self._method == "stale":
            return StaleExchange
        if self._method == "skip_broadcasts":
            return partial(SkippingExchange, threshold=options.skip_threshold, max_staleness=options.max_staleness)
        if self._method == "feature_slices":
            destination = Block.whole(graph.indptr, graph.indices).edge_destinations
            whole = TwoWays.of(destination, graph.indices.long(), edge_weight, setup.device)
            return partial(FeatureSlices, whole=whole, offsets=graph.offsets)
        return HaloExchange

    def _known_links(self) -> Links:
        return self._links or described_links(NetworkDescription(nodes=self.setup.world.size))

    def _make_bits(self, block: Block, num_layers: int, partition: int) -> MessageBits | None:
        options, setup = self._options, self.setup
        messages, wire = options.messages, setup.wire
        if messages == "wire":
            if not {wire.vectors, wire.gradients} & FEW_BITS.keys():
                return None
            if wire.vectors != wire.gradients:
                raise RecipeError(
                    f'wire.vectors = "{wire.vectors}" with wire.gradients = "{wire.gradients}": full-graph training '
                    "rounds rows and their gradients to the same few bits. Give both the same format"
                )
            messages = cast("Messages", wire.vectors)
        else:
            for name in ("vectors", "gradients"):
                if (number_format := getattr(wire, name)) != "fp32":
                    raise RecipeError(
                        f'wire.{name} = "{number_format}" with full_graph.messages = "{messages}", which says how '
                        "rows travel as well: leave one of the two out"
                    )
        self.bound_to_epochs = messages in ("adaptive", "random") and not options.assign_every_epochs
        model, inverse = setup.model, 1 / block.degrees.clamp(min=1).double()
        # Of rgcn's means over the sources of each type, that over all of them.
        means = isinstance(model, GNN) and (
            model.options.kind in ("graphsage", "rgcn")
            or (model.options.kind == "gcn" and model.options.gcn_normalisation == "right")
        )
        symmetric = getattr(model, "needs_source_degrees", False)
        ones = torch.ones_like(inverse)
        return MessageBits(
            setup.world,
            messages,
            num_layers=num_layers,
            links=self._known_links(),
            widths=options.widths,
            group_size=options.group_size,
            error_share=options.error_share,
            every_epochs=options.assign_every_epochs or max(1, setup.options.epochs // ASSIGNMENTS),
            # A mean divides by the degree of the destination, GCN by the roots of both ends'.
            own_weights={
                "rows": inverse**2 if means else inverse if symmetric else ones,
                "gradients": inverse if symmetric else ones,
            },
            seed=setup.seed,
            partition=partition,
        )

    def forward(self, epoch: int, step: int) -> Tensor:
        """Run the model in training: [vertices of this part, outputs]. Collective."""
        self._epoch = epoch
        if self.bits is not None:
            self.bits.begin(epoch)
        for exchange in self.exchanges:
            exchange.begin(epoch)
        self.round_anew(epoch, step)

        def dropout() -> DropoutContext:
            row_ids = self.graph.original_ids[slice(*self.graph.own_range)].to(self.setup.device)
            return DropoutContext(seed=self.setup.seed, epoch=epoch, step=step, row_ids=row_ids)

        fetching = fetching_again(self.exchanges) if self._options.recompute else nullcontext()
        with self.setup.stopwatch.measure("forward"), fetching:
            output: Tensor = run_model(self.setup.model, self._blocks, self._inputs(), dropout=dropout)
        return output

    def predict(self, split: str | None = None) -> Tensor:
        """Outputs for all vertices by the user's id, or for those of a split in its order. Collective."""
        return predictions_of(self.setup.world, self.graph, partial(rows_of, self.graph, self.infer()), split)

    @torch.no_grad()
    def infer(self) -> Tensor:
        """Outputs of this part's vertices, from rows that travel as they are. Collective."""
        self.setup.model.eval()
        outputs: Tensor = run_model(self.setup.model, self._exact_blocks, self._inputs())
        return outputs

    def _inputs(self) -> Tensor:
        """Of this part's vertices: features, and rows that are learnt behind them. Collective."""
        if self._embedding is None:
            return self._features
        with self.setup.stopwatch.measure("lookup"):
            learnt = self._embedding.start_rows(torch.arange(*self.graph.own_range)).finish().to(self.setup.device)
        return torch.cat([self._features, learnt], 1) if self._features.shape[1] else learnt

    def update(self) -> None:
        """Learn, wait for rows of the epoch, and assign widths of messages for those that follow, where that is due."""
        super().update()
        for exchange in self.exchanges:
            exchange.end()
        if self.bits is not None:
            with self.setup.stopwatch.measure("assign bits"):
                self.bits.end(self._epoch, self.exchanges)

    def state(self) -> Mapping[str, Any]:
        """And widths of messages that were assigned, and shapes of rows that are held, see `local_tables`."""
        bits = {} if self.bits is None else self.bits.state
        held = {} if self._held is None else self._held.shapes()
        return {**super().state(), **bits, **{HELD + name: shape for name, shape in held.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave. Collective."""
        super().load_state(state)
        held = {name.removeprefix(HELD): state[name] for name in state if name.startswith(HELD)}
        if self.bits is not None:
            self.bits.load_state(
                {
                    name: found
                    for name, found in state.items()
                    if isinstance(found, Tensor) and not name.startswith(HELD)
                }
            )
        if self._held is not None:
            self._held.make_room(held)

    def local_tables(self) -> Sequence[StoredTables] | None:
        """And rows of others that this rank holds for the next epoch."""
        learnt = super().local_tables()
        return learnt if self._held is None else [*(learnt or ()), self._held]

    def opening_lines(self) -> Sequence[str]:
        """What the model does not use of the graph, and what travels, where there are other ranks."""
        world, lines = self.setup.world, self.unused_lines()
        if world.size == 1:
            return lines
        rows = torch.tensor([self._sent_rows, self._whole_rows, self._method_rows])
        sent, whole, by_method = world.all_reduce(rows, stage="halo").tolist()
        line = f"halo: {sent:,} rows travel before each layer"
        if self._options.partial_sums:
            line += f", {whole - sent:,} ({(whole - sent) / max(1, whole):.0%}) fewer than sources of other parts"
        if not self._about_method:
            return [*lines, line]
        most = "up to " if self._method == "skip_broadcasts" else ""
        return [*lines, line, f"{self._about_method}; in training {most}{by_method:,} rows travel before each layer"]

    def traffic(self) -> Traffic:
        """Rows of all layers, and their gradients, that this rank exchanged."""
        meter = self.setup.world.meter
        assert meter is not None
        stages = [f"{exchange.name}: {way}" for exchange in self.exchanges for way in (*WAYS, KEPT)]
        return sum((meter.totals(stage) for stage in stages), super().traffic())

    def placement(self) -> dict[str, Any]:
        """The parts of the graph."""
        return graph_placement(self.graph, [0] * self.setup.world.size, 0)


class FullGraphTask(WholeGraphTask[None]):
    """Labels of vertices, learnt from the whole graph at once (AdaQP, Wan et al., MLSys 2023, has the setting).

    The model is called as ``model(blocks, x)`` with one block for each layer and x float32 [vertices of this part,
    features]; it returns [vertices of this part, outputs]. Layers of windrow take these blocks as they are; a module of
    your own calls `Block.with_sources` before each layer that reads sources::

        for conv, block in zip(self.convs, blocks):
            block, rows = block.with_sources(x)
            x = conv((rows, rows[: block.num_dst]), block.edge_index)

    Dropout is that of `windrow.gnn.task.NodeTask`, and so are rows of vertices that are learnt: x has them behind the
    features, and each is looked up once in an epoch, by the rank whose vertex it is of.

    Args:
        graph: this rank's view.
        options: how rows travel; must agree.
        num_layers: blocks that the model takes; None: those of a `GNN`, or the model's own ``num_layers``.
        links: what messages take, for adaptive ones; must agree. None: equally long between any two ranks.
        loss: see `windrow.gnn.task.NodeTask`, as `metrics` and `evaluation`, of which the metric counts: measured is
            what the model gives for all vertices, with rows that travel as they are.
        embedding: see `windrow.gnn.task.NodeTask`.

    Raises:
        RecipeError: an option is out of range.
        DataError: the graph has no labels.
    """

    steps_per_epoch = 1

    def __init__(
        self,
        graph: PartitionedGraph,
        options: FullGraphOptions | None = None,
        *,
        num_layers: int | None = None,
        links: Links | None = None,
        loss: Loss | None = None,
        metrics: Metrics | None = None,
        evaluation: EvaluationOptions | None = None,
        embedding: EmbeddingModule | None = None,
    ) -> None:
        super().__init__(graph, options, num_layers=num_layers, links=links, embedding=embedding)
        self.samples_per_epoch = len(graph.train_ids)
        self.has_validation = len(graph.validation_ids) > 0
        graph.labels_of(graph.train_ids[:0])  # Refuses a graph that has none.
        self._loss = loss
        self._metrics = metrics
        self._evaluation = self.evaluation_times = evaluation or EvaluationOptions()

    def start(self) -> None:
        """See `start_exchanges`; DataError also where a split has no labels to measure on. Collective."""
        graph, device = self.graph, self.setup.device
        self._given_metrics = self.choose_metrics(self._metrics, self._evaluation)
        own = own_vertices(graph, graph.train_ids)
        self._train = (own - graph.own_range[0]).to(device)
        self._labels = graph.labels_of(own).to(device)
        self.start_exchanges()

    def global_batch_size(self, epoch: int, step: int) -> int:
        """All training vertices."""
        del epoch, step
        return self.samples_per_epoch

    @contextmanager
    def minibatches(self, epoch: int, steps: range) -> Iterator[Iterator[None]]:
        """The one step has all there is."""
        del epoch
        with self.setup.world.background_progress():
            yield (None for _ in steps)

    def loss(self, minibatch: None, epoch: int, step: int) -> Tensor:
        """Of this rank's training vertices; every rank has a backward pass to run, also one without any."""
        del minibatch
        output = self.forward(epoch, step)
        with self.setup.stopwatch.measure("forward"):
            if not len(self._train):
                nothing: Tensor = output.sum() * 0
                return nothing
            chosen = output[self._train]
            if self._loss is None:
                return loss_sum(self.graph.task, chosen, self._labels)
            return summed_loss(self._loss, chosen, self._labels)

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str] = ("validation", "test")) -> dict[str, dict[str, float]]:
        """Measure on all vertices of each split. Collective."""
        check_splits(splits)
        outputs = partial(rows_of, self.graph, self.infer())
        return measure_splits(self.setup.world, self.graph, self._given_metrics, splits, outputs)
