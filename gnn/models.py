"""Stacks of layers: options in, a model with reproducible weights out."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from windrow.comm.errors import RecipeError
from windrow.comm.options import PositiveInt, Probability, checked_dataclass
from windrow.comm.random import Stream, stream_key
from windrow.gnn.layers import GATLayer, GCNLayer, GINLayer, GraphSAGELayer, RGATLayer, RGCNLayer, symmetric_sum
from windrow.gnn.message_passing import Block
from windrow.gnn.types import GraphTypes
from windrow.training.dense import make_linear
from windrow.training.dropout import DropoutContext

__all__ = ["GNN", "LightGCN", "ModelOptions", "build_model"]


@checked_dataclass
class ModelOptions:
    """Shape of a model."""

    kind: Literal["graphsage", "gcn", "gat", "gin", "rgcn", "rgat"] = "graphsage"
    """Layer that passes messages; "rgcn" and "rgat" have weights for each type of vertices and edges, and need a graph
    that has types."""
    hidden: PositiveInt = 128
    """Columns of every hidden row."""
    num_layers: PositiveInt = 3
    """Number of hops = layers that pass messages."""
    dropout: Probability = 0.0
    """Chance of a hidden entry to be dropped in training, in [0, 1)."""
    activation: Literal["relu", "gelu"] = "relu"
    """Function between layers."""
    normalise: Literal["layer", "none"] = "none"
    """`layer` normalises every hidden row. There is no batch normalisation: its statistics, and with them the
    answer, would depend on the number of ranks."""
    residual: bool = False
    """True: the pre-normalised residual blocks of Platonov et al., see `GNN`."""
    heads: PositiveInt = 4
    """Attention heads of `gat` and `rgat`; must divide `hidden`. The other kinds ignore it."""
    gcn_normalisation: Literal["both", "right", "none"] = "both"
    """Degree normalisation of `gcn`, see `GCNLayer`. The other kinds ignore it."""
    edge_weights: bool = False
    """Whether `gcn` weighs messages by the edge weights of the graph. The other kinds cannot."""
    embedding: bool = False
    """Whether each vertex has a row of numbers of its own that is learnt, behind its features or, where it has none,
    instead of them. The section [tables] says how many, and how they are stored and learn; the table's name is
    "vertex"."""

    def __post_init__(self) -> None:
        if self.edge_weights and self.kind != "gcn":
            raise RecipeError(
                f'model.edge_weights = true with model.kind = "{self.kind}", which has no use for them: choose "gcn"'
            )
        if self.kind in ("gat", "rgat") and self.hidden % self.heads:
            raise RecipeError(
                f"model.hidden = {self.hidden} is no multiple of model.heads = {self.heads}: change either"
            )
        if self.is_typed and self.residual:
            raise RecipeError(
                f'model.residual = true with model.kind = "{self.kind}": its first linear map would be the same for '
                "features of all types, which are different things; leave it out"
            )

    @property
    def is_typed(self) -> bool:
        """Whether layers have weights for each type."""
        return self.kind in ("rgcn", "rgat")


def build_model(
    options: ModelOptions, *, in_features: int, out_features: int, seed: int, types: GraphTypes | None = None
) -> "GNN":
    """Create a model whose weights depend on its arguments alone, not on torch's global generator.

    Args:
        options: its shape.
        in_features: columns of the vertex features, and of what is learnt beside them.
        out_features: number of classes or labels, 1 for a binary task (a logit).
        seed: the run's.
        types: those of the graph; other kinds than "rgcn" and "rgat" do not look at them.

    Raises:
        RecipeError: the kind needs types, and there are none.
    """
    # torch.Generator takes signed 64-bit seeds.
    key = stream_key(seed, Stream.INITIALISE) & (2**63 - 1)
    return GNN(options, in_features, out_features, generator=torch.Generator().manual_seed(key), types=types)


class GNN(nn.Module):
    """A stack of message-passing layers, in one of two shapes.

    Plain (`residual=False`), the layers straight after one another:

        h <- drop(act(norm(layer(h))))           all but the last layer
        output = layer(h)

    Residual (Platonov et al.: A critical look at the evaluation of GNNs under heterophily, ICLR 2023), where
    each layer is the first half of a two-layer feed-forward net:

        h <- act(drop(W x))
        h <- h + drop(W' act(drop(layer(norm(h)))))       every layer; h on the right: the destinations' rows
        output = W'' norm(h)

    A forward pass is `embed`, then `layer_forward` for each block, then `readout`. Exact inference runs the
    same three for all vertices of the graph, one layer after the other. All three work on rows alone except
    for the messages inside `layer_forward`, so any subset of destinations gives the same rows.
    """

    def __init__(
        self,
        options: ModelOptions,
        in_features: int,
        out_features: int,
        *,
        generator: torch.Generator,
        types: GraphTypes | None = None,
    ) -> None:
        """Draw the weights; see `build_model`."""
        super().__init__()
        if options.is_typed and types is None:
            raise RecipeError(
                f'model.kind = "{options.kind}" has weights for each type of vertices and edges, and the graph has no '
                'types: choose "graphsage", "gcn", "gat" or "gin", or read a graph with types (graph.format = "typed")'
            )
        self.options = options
        width = options.hidden
        num_layers = options.num_layers
        inner = [width] * (num_layers - 1)
        widths = [width, *inner, width] if options.residual else [in_features, *inner, out_features]
        self.layers = nn.ModuleList(
            _make_layer(
                options, *ends, last=i == num_layers - 1 and not options.residual, generator=generator, types=types
            )
            for i, ends in enumerate(pairwise(widths))
        )
        num_norms = num_layers + 1 if options.residual else num_layers - 1
        self.norms = nn.ModuleList(
            nn.LayerNorm(width) if options.normalise == "layer" else nn.Identity() for _ in range(num_norms)
        )
        self.input_linear: nn.Module = nn.Identity()
        self.output_linear: nn.Module = nn.Identity()
        self.layer_linears = nn.ModuleList()
        if options.residual:
            self.input_linear = make_linear(in_features, width, generator=generator)
            self.layer_linears.extend(make_linear(width, width, generator=generator) for _ in range(num_layers))
            self.output_linear = make_linear(width, out_features, generator=generator)

    @property
    def needs_source_degrees(self) -> bool:
        """Whether a layer divides by the degrees of sources, see `Block.source_degrees`."""
        return self.options.kind == "gcn" and self.options.gcn_normalisation == "both"

    @property
    def needs_edge_weights(self) -> bool:
        """Whether blocks must have `Block.edge_weight`; otherwise they must not."""
        return self.options.edge_weights

    @property
    def needs_types(self) -> bool:
        """Whether layers ask for `Block.typed`."""
        return self.options.is_typed

    @property
    def num_hidden_layers(self) -> int:
        """How often `layer_forward` is called for the rows that the last layer or linear map makes outputs of."""
        return self.options.num_layers - (0 if self.options.residual else 1)

    def forward(self, blocks: Sequence[Block], x: Tensor, dropout: DropoutContext | None = None) -> Tensor:
        """Compute the outputs of the last block's destinations.

        Args:
            blocks: one per layer, outermost hop first.
            x: float [blocks[0].num_src, in_features].
            dropout: what dropout's choices depend on; None: nothing is dropped.

        Returns:
            [blocks[-1].num_dst, out_features], logits.

        Raises:
            RecipeError: the number of blocks is not the number of layers.
        """
        if len(blocks) != self.options.num_layers:
            raise RecipeError(
                f"{len(blocks)} blocks for a model of {self.options.num_layers} layers: give one fanout per layer"
            )
        hidden = self.embed(x, dropout)
        for index, block in enumerate(blocks):
            hidden = self.layer_forward(index, block, hidden, dropout)
        return self.readout(hidden)

    def embed(self, x: Tensor, dropout: DropoutContext | None = None) -> Tensor:
        """Features to the first layer's input, row by row: [rows, in_features] -> [rows, *]."""
        if not self.options.residual:
            return x
        embedded: Tensor = self.input_linear(x)
        return self._activate(self._drop(embedded, dropout, 0))

    def layer_forward(self, index: int, block: Block, hidden: Tensor, dropout: DropoutContext | None = None) -> Tensor:
        """One layer with everything up to the next one's input: [block.num_src, *] -> [block.num_dst, *].

        `hidden` comes from `embed` or the layer before; the block may hold any subset of destinations.
        """
        layer = self.layers[index]
        if self.options.residual:
            messages: Tensor = layer(block, self.norms[index](hidden))
            messages = self._activate(self._drop(messages, dropout, 2 * index + 1))
            messages = self._drop(self.layer_linears[index](messages), dropout, 2 * index + 2)
            return hidden[: block.num_dst] + messages
        output: Tensor = layer(block, hidden)
        if index == self.options.num_layers - 1:
            return output
        normalised = self.norms[index](output)
        if self.options.activation == "relu" and dropout is not None:
            return dropout.drop(normalised, self.options.dropout, layer=index, rectify=True)
        return self._drop(self._activate(normalised), dropout, index)

    def readout(self, hidden: Tensor) -> Tensor:
        """Last layer's output to logits, row by row: [rows, *] -> [rows, out_features]."""
        if not self.options.residual:
            return hidden
        output: Tensor = self.output_linear(self.norms[-1](hidden))
        return output

    def _activate(self, x: Tensor) -> Tensor:
        return functional.relu(x) if self.options.activation == "relu" else functional.gelu(x)

    def _drop(self, x: Tensor, dropout: DropoutContext | None, place: int) -> Tensor:
        return x if dropout is None else dropout.drop(x, self.options.dropout, layer=place)


class LightGCN(nn.Module):
    """Rows of vertices, smoothed along edges, without weights or functions in between (He et al., SIGIR 2020).

        x^(l+1)_v = sum_{u in N(v)} x^(l)_u / sqrt(d_u d_v)        output_v = (x^(0)_v + ... + x^(L)_v) / (L + 1)

    It learns nothing itself, so give its task an `embedding`. Takes blocks that are sampled, with sums that estimate
    those of the whole graph (see `GCNLayer`), and those of full-graph training.
    """

    needs_source_degrees = True
    needs_edge_weights = False
    needs_types = False

    def __init__(self, num_layers: int = 3) -> None:
        """Of so many layers, which a task needs as many blocks for."""
        super().__init__()
        self.num_layers = num_layers
        # Without weights this alone says which device it is on.
        self.register_buffer("_place", torch.empty(0), persistent=False)

    def forward(self, blocks: Sequence[Block], x: Tensor, dropout: DropoutContext | None = None) -> Tensor:
        """Rows [blocks[0].num_src, d], or of full-graph training those of the part, to [blocks[-1].num_dst, d].

        Nothing is dropped.
        """
        del dropout
        last = blocks[-1].num_dst
        total = x[:last]
        for block in blocks:
            x = symmetric_sum(block, x)
            total = total + x[:last]
        return total / (len(blocks) + 1)


def _make_layer(
    options: ModelOptions,
    in_features: int,
    out_features: int,
    *,
    last: bool,
    generator: torch.Generator,
    types: GraphTypes | None,
) -> nn.Module:
    combine: Literal["mean", "concatenate"] = "mean" if last else "concatenate"
    if options.is_typed:
        assert types is not None
        if options.kind == "rgcn":
            return RGCNLayer(in_features, out_features, types=types, generator=generator)
        return RGATLayer(
            in_features, out_features, heads=options.heads, combine=combine, types=types, generator=generator
        )
    if options.kind == "gcn":
        return GCNLayer(in_features, out_features, normalisation=options.gcn_normalisation, generator=generator)
    if options.kind == "gat":
        return GATLayer(in_features, out_features, heads=options.heads, combine=combine, generator=generator)
    layer = GINLayer if options.kind == "gin" else GraphSAGELayer
    return layer(in_features, out_features, generator=generator)
