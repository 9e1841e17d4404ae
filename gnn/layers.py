"""Layers of graph neural networks: GraphSAGE (mean), GCN, GAT and GIN; of typed graphs R-GCN and R-GAT.

GraphSAGE and GCN aggregate and multiply by weights in the cheaper of the two orders.
"""

from abc import ABC, abstractmethod
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from windrow.comm.errors import RecipeError
from windrow.gnn.message_passing import (
    Block,
    add_ends,
    aggregate,
    divide_by_degrees,
    edge_softmax,
    join_means,
    spread_means,
    sum_over_bags,
    weighted_degrees,
)
from windrow.gnn.types import GraphTypes
from windrow.training.dense import autocast, glorot, linear, make_linear, multiply, multiply_transposed

__all__ = ["GATLayer", "GCNLayer", "GINLayer", "GraphSAGELayer", "RGATLayer", "RGCNLayer", "symmetric_sum"]


class GraphSAGELayer(nn.Module):
    """One GraphSAGE layer (Hamilton et al.: Inductive Representation Learning on Large Graphs, NIPS 2017).

        y_v = W_self x_v + W_neighbor mean_{u in N(v)} x_u + b

    A destination without edges gets W_self x_v + b. Equal to `dgl.nn.SAGEConv(..., "mean")`.
    """

    def __init__(self, in_features: int, out_features: int, *, generator: torch.Generator) -> None:
        """Draw the weights from the generator."""
        super().__init__()
        self.self_linear = make_linear(in_features, out_features, generator=generator)
        self.neighbor_linear = make_linear(in_features, out_features, bias=False, generator=generator)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """Apply the layer to one hop: x [num_src, in_features] -> [num_dst, out_features]."""
        if block.exchange is not None:
            weight = self.neighbor_linear.weight
            projects = _projects_first(block, x, len(weight))
            complete = block.exchange.start_sums(linear(x, weight) if projects else x, weighted=False)
            own: Tensor = self.self_linear(x)  # While messages travel.
            total = complete() if projects else linear(complete(), weight)
            return own + total / _column(block.degrees, x.dtype)
        tensors = autocast(x, self.self_linear.weight, self.self_linear.bias, self.neighbor_linear.weight)
        output: Tensor = _Sage.apply(block, *tensors)  # type: ignore[no-untyped-call]
        return output


class _Sage(torch.autograd.Function):
    """The mean and the linear map of the neighbours in the cheaper of the two orders.

    Where the mean comes first it stands beside the destination's own row, and their weights side by side too: products
    of twice the width are faster than twice as many, and nothing needs to be added up.
    """

    @staticmethod
    def forward(ctx: Any, block: Block, x: Tensor, own: Tensor, bias: Tensor, neighbor: Tensor) -> Tensor:
        ctx.block = block
        ctx.projects_first = _projects_first(block, x, len(own))
        if not ctx.projects_first:
            joined = join_means(block, x)
            ctx.save_for_backward(joined, own, neighbor)
            return multiply(joined, torch.cat([own, neighbor], 1), bias)
        ctx.save_for_backward(x, own, neighbor)
        mean = divide_by_degrees(block, sum_over_bags(multiply(x, neighbor), block.indptr, block.indices))
        return multiply(x[: block.num_dst], own, bias).add_(mean)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, Tensor | None, Tensor, Tensor, Tensor]:
        (rows, own, neighbor), block = ctx.saved_tensors, ctx.block
        upstream = upstream.contiguous()
        gradient: Tensor | None = None
        if not ctx.projects_first:
            own_gradient, neighbor_gradient = multiply_transposed(upstream, rows).chunk(2, 1)
            if ctx.needs_input_grad[1]:
                gradient = spread_means(block, multiply(upstream, torch.cat([own, neighbor], 1).t()))
        else:
            turned = block.transpose
            of_rows = sum_over_bags(divide_by_degrees(block, upstream.clone()), turned.indptr, turned.indices)
            neighbor_gradient = multiply_transposed(of_rows, rows)
            own_gradient = multiply_transposed(upstream, rows[: block.num_dst])
            if ctx.needs_input_grad[1]:
                gradient = multiply(of_rows, neighbor.t())
                gradient[: block.num_dst].add_(multiply(upstream, own.t()))
        return None, gradient, own_gradient, upstream.sum(0), neighbor_gradient


class GCNLayer(nn.Module):
    """One graph convolution (Kipf, Welling: Semi-Supervised Classification with GCNs, ICLR 2017).

        y_v = W sum_{u in N(v)} c_uv x_u + b

    with `normalisation`

        "both"     c_uv = 1 / sqrt(d_u d_v)
        "right"    c_uv = 1 / d_v
        "none"     c_uv = 1

    where d_v is the in-degree of the destination and d_u the out-degree of the source in the block, both at
    least 1: equal to `dgl.nn.GraphConv(norm=normalisation)` on whole graphs and on sampled blocks.

    Where the block knows `source_degrees` (d, in the graph that was sampled, taken as symmetric),
    "both" is c_uv = (d_v / k_v) / sqrt(d_u d_v) with k_v the number of sampled edges of v: the same on a
    whole graph, an unbiased estimate of it on a sample, and independent of which seeds share the minibatch.

    Where the block has edge weights, c_uv is multiplied by that of the edge, and d and k are sums of weights, which
    must not be negative; a sum of 0 counts as 1: "both" on a whole graph equals `torch_geometric.nn.GCNConv`.

    A vertex counts itself only through a self-loop, so add self-loops to the graph. A destination without edges gets b.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        normalisation: Literal["both", "right", "none"] = "both",
        generator: torch.Generator,
    ) -> None:
        """Draw the weights from the generator."""
        super().__init__()
        self.normalisation = normalisation
        self.linear = make_linear(in_features, out_features, generator=generator)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """Apply the layer to one hop: x [num_src, in_features] -> [num_dst, out_features]."""
        if self.normalisation == "both":
            source_scale, destination_scale = _symmetric_scales(block, x.dtype)
            # With an exchange x has the rows of destinations only, which are the first sources.
            scale = source_scale[: len(x)]
            total = _aggregate_projected(block, x, self.linear.weight, scale=scale) * destination_scale
        else:
            total = _aggregate_projected(block, x, self.linear.weight)
            if self.normalisation == "right":
                total = total / _received(block, x.dtype)
        return total + self.linear.bias


def symmetric_sum(block: Block, x: Tensor) -> Tensor:
    """What `GCNLayer` with "both" adds up, of the rows themselves: [num_src, d] -> [num_dst, d]."""
    source_scale, destination_scale = _symmetric_scales(block, x.dtype)
    return aggregate(block, x * source_scale[: len(x)]) * destination_scale


def _symmetric_scales(block: Block, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    received = _received(block, dtype)
    if block.source_degrees is None:
        sent = block.out_degrees
        if block.edge_weight is not None:
            sent = torch.bincount(block.indices, block.edge_weight, minlength=block.num_src)
        return _column(sent, dtype).rsqrt(), received.rsqrt()
    degrees = _column(block.source_degrees, dtype)
    return degrees.rsqrt(), degrees[: block.num_dst].sqrt() / received


def _received(block: Block, dtype: torch.dtype) -> Tensor:
    """[num_dst, 1], number of edges of each destination, or the sum of their weights."""
    weights = block.edge_weight
    return _column(block.degrees if weights is None else weighted_degrees(block.indptr, weights), dtype)


def _column(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """[n, 1], to divide by."""
    return sums.masked_fill(sums == 0, 1).to(dtype).unsqueeze(1)


Combine: TypeAlias = Literal["concatenate", "mean"]
"""What becomes of the heads of attention."""

_NEGATIVE_SLOPE = 0.2
"""Of LeakyReLU in GAT, as in the paper."""


class GATLayer(nn.Module):
    """One graph attention layer (Velickovic et al.: Graph Attention Networks, ICLR 2018).

        z_u  = W_h x_u                                                 for each head h
        s_uv = LeakyReLU(a_source . z_u + a_destination . z_v)
        y_v  = concatenation or mean over heads of sum_{u in N(v)} softmax_v(s_uv) z_u, + b

    Equal to `dgl.nn.GATConv` without its dropouts. A vertex attends to itself only through a self-loop, so
    add self-loops to the graph. A destination without edges gets b.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        heads: int,
        combine: Combine = "concatenate",
        generator: torch.Generator,
    ) -> None:
        """Draw the weights from the generator.

        `combine` says whether to "concatenate" heads of out_features / heads columns, which must be whole, or to take
        the "mean" of heads of out_features.

        Raises:
            RecipeError: heads do not divide the columns that they are to fill.
        """
        super().__init__()
        self.heads = heads
        self.combine = combine
        self.head_features = _head_features(out_features, heads, combine)
        self.linear = make_linear(in_features, heads * self.head_features, bias=False, generator=generator)
        self.source_attention = glorot(heads, self.head_features, generator=generator)
        self.destination_attention = glorot(heads, self.head_features, generator=generator)
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """Apply the layer to one hop: x [num_src, in_features] -> [num_dst, out_features]."""
        block, projected = block.with_sources(self.linear(x).view(-1, self.heads, self.head_features))
        source_scores = (projected * self.source_attention).sum(-1)
        destination_scores = (projected[: block.num_dst] * self.destination_attention).sum(-1)
        return _attend(block, projected, source_scores, destination_scores, self.combine) + self.bias


def _attend(block: Block, rows: Tensor, source_scores: Tensor, destination_scores: Tensor, combine: Combine) -> Tensor:
    """Add up the rows of sources, [num_src, heads, columns], weighted by attention: [num_dst, columns of all heads]."""
    scores = functional.leaky_relu(add_ends(block, source_scores, destination_scores), _NEGATIVE_SLOPE)
    found = aggregate(block, rows, edge_weights=edge_softmax(block, scores))
    return found.flatten(1) if combine == "concatenate" else found.mean(1)


class GINLayer(nn.Module):
    """One GIN layer (Xu et al.: How Powerful are Graph Neural Networks?, ICLR 2019).

        y_v = MLP((1 + epsilon) x_v + sum_{u in N(v)} x_u),     MLP(z) = W_2 relu(W_1 z + b_1) + b_2

    with a learnt epsilon that starts at 0. No batch normalisation inside the MLP: its statistics would depend
    on the number of ranks. A destination without edges gets MLP((1 + epsilon) x_v). Equal to
    `dgl.nn.GINConv(mlp, "sum", learn_eps=True)`.
    """

    def __init__(self, in_features: int, out_features: int, *, generator: torch.Generator) -> None:
        """Draw the weights from the generator; `out_features` is the width of the MLP's hidden layer too."""
        super().__init__()
        self.epsilon = nn.Parameter(torch.zeros(()))
        self.hidden_linear = make_linear(in_features, out_features, generator=generator)
        self.output_linear = make_linear(out_features, out_features, generator=generator)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """Apply the layer to one hop: x [num_src, in_features] -> [num_dst, out_features]."""
        total = (1 + self.epsilon) * x[: block.num_dst] + aggregate(block, x)
        output: Tensor = self.output_linear(self.hidden_linear(total, rectify=True))
        return output


class _TypedLayer(nn.Module, ABC):
    """What layers of typed graphs share: a vertex's own row, and the sum over the types of its edges.

        y_v = W_t x_v + b_t + sum_r messages_r(v),    t the type of v, r the types of edges that enter it

    All types of edges are one parameter, so that it has a gradient also where a minibatch lacks some.
    """

    def __init__(
        self, in_features: int, out_features: int, *, types: GraphTypes, generator: torch.Generator, rows: int
    ) -> None:
        """Draw the weights from the generator; `rows` is the width of messages before they are summed."""
        super().__init__()
        self.types = types
        self.self_weight = _stack(len(types.vertices), out_features, in_features, generator=generator)
        self.bias = nn.Parameter(torch.zeros(len(types.vertices), out_features))
        self.relation_weight = _stack(len(types.edges), rows, in_features, generator=generator)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """Apply the layer to one hop: x [num_src, in_features] -> [num_dst, out_features]."""
        block, x = block.with_sources(x)
        typed = block.typed
        rows = typed.split(x)
        own = zip(self.types.vertices, self.self_weight.unbind(), self.bias.unbind(), strict=True)
        total = {name: linear(rows[name][: typed.num_dst[name]], weight, bias) for name, weight, bias in own}
        # All parts at once: each by itself would have a gradient of full size.
        of_edges = zip(*(each.unbind() for each in self.edge_parameters()), strict=True)
        for edge, weights in zip(self.types.edges, of_edges, strict=True):
            if edge in typed.edges:
                source, _, destination = edge
                found = self.messages(typed.edges[edge], (rows[source], rows[destination]), *weights)
                total[destination] = total[destination] + found
        return typed.join(total)

    def edge_parameters(self) -> tuple[Tensor, ...]:
        """Parameters with a part for each type of edges, [types, ...]."""
        return (self.relation_weight,)

    @abstractmethod
    def messages(self, block: Block, rows: tuple[Tensor, Tensor], *weights: Tensor) -> Tensor:
        """What the edges of a type bring: [block.num_dst, out_features].

        `rows` are those of the type of its sources and of the type of its destinations, `weights` its parts of the
        `edge_parameters`.
        """


def _stack(number: int, *shape: int, generator: torch.Generator) -> nn.Parameter:
    """So many parameters of a shape, each as `glorot` draws it, as one: [number, ...]."""
    drawn = [glorot(*shape, generator=generator).detach() for _ in range(number)]
    return nn.Parameter(torch.stack(drawn) if drawn else torch.empty(0, *shape))


class RGCNLayer(_TypedLayer):
    """One relational graph convolution (Schlichtkrull et al.: Modeling Relational Data with GCNs, ESWC 2018).

        y_v = W_t x_v + b_t + sum_r mean_{u in N_r(v)} W_r x_u,    t the type of v

    The paper has one W for a vertex's own row; types whose features are different things need one each. Equal to PyG's
    ``HeteroConv`` of ``SAGEConv`` without roots, and a linear map of each type's own row.
    """

    def __init__(self, in_features: int, out_features: int, *, types: GraphTypes, generator: torch.Generator) -> None:
        """Draw the weights from the generator."""
        super().__init__(in_features, out_features, types=types, generator=generator, rows=out_features)

    def messages(self, block: Block, rows: tuple[Tensor, Tensor], *weights: Tensor) -> Tensor:
        """W_r times the mean over the sources."""
        total = _aggregate_projected(block, rows[0], weights[0])
        return total / _column(block.degrees, total.dtype)


class RGATLayer(_TypedLayer):
    """One relational graph attention layer, as MLPerf Training has it for typed graphs: a GAT for each type of edges.

        z_u  = W_rh x_u                                                for each head h
        s_uv = LeakyReLU(a_rh . z_u + c_rh . x_v)
        y_v  = W_t x_v + b_t + sum_r concatenation or mean over h of sum_{u in N_r(v)} softmax_{v,r}(s_uv) z_u

    with t the type of v. Equal to the sum of PyG's ``GATConv((in, in), ...)`` over types, whose a_destination times its
    weight of destinations is the one vector c here, and a linear map of each type's own row.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        heads: int,
        combine: Combine = "concatenate",
        types: GraphTypes,
        generator: torch.Generator,
    ) -> None:
        """Draw the weights from the generator; `combine` and errors as in `GATLayer`."""
        own = _head_features(out_features, heads, combine)
        super().__init__(in_features, out_features, types=types, generator=generator, rows=heads * own)
        self.heads, self.combine = heads, combine
        self.source_attention = _stack(len(types.edges), heads, own, generator=generator)
        self.destination_attention = _stack(len(types.edges), heads, in_features, generator=generator)

    def edge_parameters(self) -> tuple[Tensor, ...]:
        """The weights, and the two vectors of each head that make scores."""
        return self.relation_weight, self.source_attention, self.destination_attention

    def messages(self, block: Block, rows: tuple[Tensor, Tensor], *weights: Tensor) -> Tensor:
        """Sources, weighted by attention."""
        (sources, destinations), (weight, source_attention, destination_attention) = rows, weights
        projected = linear(sources, weight).view(len(sources), self.heads, -1)
        source_scores = (projected * source_attention).sum(-1)
        destination_scores = linear(destinations[: block.num_dst], destination_attention)
        return _attend(block, projected, source_scores, destination_scores, self.combine)


def _head_features(out_features: int, heads: int, combine: Combine) -> int:
    """Columns of a head: RecipeError where heads do not divide the columns that they are to fill."""
    if combine == "concatenate" and out_features % heads:
        raise RecipeError(
            f"{heads} attention heads cannot share {out_features} columns: choose a divisor of {out_features}"
        )
    return out_features // heads if combine == "concatenate" else out_features


_GATHER_COST = 4.0
"""Time to gather and add one number over the time of one multiply-add inside a matrix product; about 4 to 5
on a core with AVX-512 and rows of 128 float32. It only chooses between two equal results."""


def _aggregate_projected(block: Block, x: Tensor, weight: Tensor, *, scale: Tensor | None = None) -> Tensor:
    """Aggregate the rows of `x W^T` over each destination's sources, in the cheaper of two orders.

    Both steps are linear, so aggregate(x W^T) = aggregate(x) W^T up to rounding. `scale`, [rows, 1], multiplies rows.
    """
    projects = _projects_first(block, x, weight.shape[0])
    # Of the narrower rows, where there are any; and sparse ones can be multiplied by a matrix only.
    rows = linear(x, weight) if projects else x
    total = aggregate(block, rows if scale is None else rows * scale, edge_weights=block.edge_weight)
    return total if projects else linear(total, weight)


def _projects_first(block: Block, x: Tensor, out_features: int) -> bool:
    """Whether projecting all sources costs less than aggregating rows of full width.

    Projecting first gathers narrower rows (where out < in) but multiplies one row per source rather than one
    per destination. Both are counted with their backward pass; an input that needs no gradient (the first
    layer's features) spares the aggregation's.
    """
    if block.exchange is not None:
        return block.exchange.projects_first(x.shape[1], out_features, learnt=x.requires_grad)
    products, gathers = (3, 2) if x.requires_grad else (2, 1)
    gather, product = _GATHER_COST * block.num_edges, products * x.shape[1] * out_features
    projected_first = gather * 2 * out_features + product * block.num_src
    return projected_first < gather * gathers * x.shape[1] + product * block.num_dst
