"""Blocks and minibatches, and message passing along a block's edges: gather, weigh and sum, the core of every layer.

A block is one hop as a bipartite graph, from sources to destinations; a minibatch is made of several. With N(v) the
edges that enter destination v:

    sum        y_v = sum_{(u, v) in N(v)} w_uv x_u
    softmax    a_uv = exp(s_uv) / sum_{(t, v) in N(v)} exp(s_tv)

The sum is `torch.embedding_bag` with destinations as bags: on CPUs it reaches FBGEMM's prefetching
kernel, on GPUs torch's own, and both add in the order of the edges, so results do not vary from run to
run or with the number of threads. The gradient with respect to x is the same call on the transposed
block; it is not computed (nor is the transpose) where x needs no gradient.

Where a layer multiplies the row of a destination and the mean over its sources by weights of their own, one pass writes
both side by side, so that one product with both weights side by side does it: on CPUs a loop of our own, on all
threads, in the order of the edges too.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from windrow.comm.errors import DataError
from windrow.comm.rows_kernels import sort_by_owner, transpose
from windrow.comm.threads import ROWS_AT_ONCE, in_parallel
from windrow.gnn import message_passing_kernels as kernels
from windrow.gnn.types import EDGE_ARRAYS, EdgeType, GraphTypes

__all__ = [
    "Block",
    "Exchange",
    "Minibatch",
    "Transpose",
    "TypedBlock",
    "add_ends",
    "add_sums",
    "aggregate",
    "divide_by_degrees",
    "edge_softmax",
    "join_means",
    "spread_means",
    "sum_over_bags",
    "weighted_degrees",
]


class Transpose(NamedTuple):
    """The same edges grouped by source, in a group in the order of the block: what a backward pass walks."""

    indptr: Tensor
    """int64 [num_src + 1], where the edges of each source start."""
    indices: Tensor
    """Destination of each edge; dtype of the block's `indices`, [edges]."""
    edge_ids: Tensor
    """Position of each edge in the block's `indices`; dtype of the block's `indices`, [edges]."""


class Exchange(Protocol):
    """Brings rows of sources that other ranks own: `windrow.gnn.halo.HaloExchange`."""

    def start_sums(self, x: Tensor, *, weighted: bool) -> Callable[[], Tensor]:
        """Begin `aggregate`, from rows of the destinations, and give what completes it. Collective, both.

        `weighted`: with `Block.edge_weight`. What is computed in between hides messages.
        """

    def rows(self, x: Tensor) -> Tensor:
        """Rows of all sources from those of the destinations, [num_dst, ...] -> [num_src, ...]. Collective."""

    def projects_first(self, in_features: int, out_features: int, *, learnt: bool) -> bool:
        """Whether rows travel after a linear map rather than before it; `learnt`: the map's input has a gradient."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """One hop: `num_src` vertices send messages to `num_dst` vertices.

    Destinations are the first `num_dst` of the sources, so a layer reads a destination's own row from the prefix of
    its input. Messages to destination `v` come from sources `indices[indptr[v]:indptr[v + 1]]`. Nothing is checked:
    blocks come from a sampler or from a validated graph.
    """

    num_src: int
    """Number of sending vertices = rows of the layer's input."""
    num_dst: int
    """Number of receiving vertices = rows of the layer's output; at most `num_src`."""
    indptr: Tensor
    """int64 [num_dst + 1], from 0 to the number of edges, never falling."""
    indices: Tensor
    """int32 or int64 [edges], positions of sources in 0..num_src - 1."""
    source_degrees: Tensor | None = None
    """int64 [num_src], in-degree of each source in the graph that was sampled, or where there are edge weights their
    sum, float32; None: the block is that graph, or nobody needs it. Degrees inside a block depend on which seeds share
    a minibatch, so a layer that divides by the degree of a source needs these to give the same answer on any number of
    ranks."""
    edge_weight: Tensor | None = None
    """float32 [edges]; None: the graph has none, or the model does not use them."""
    edge_attr: Tensor | None = None
    """float32 [edges, D], features of edges; None likewise."""
    edge_type: Tensor | None = None
    """int16 [edges], type of each edge, never falling among the edges of a destination; None: there are no types."""
    source_types: Tensor | None = None
    """uint8 [num_src], type of each source; None likewise."""
    types: GraphTypes | None = None
    """What these are; None likewise."""
    exchange: Exchange | None = None
    """Full-graph training: every rank has the in-edges of its own vertices, and a layer's input holds their rows only,
    [num_dst, features]; the other sources' come by this. None: the input has the rows of all sources."""

    @classmethod
    def whole(cls, indptr: Tensor, indices: Tensor) -> Self:
        """A whole graph as one block, in which every vertex is a source and a destination; arrays as in `Graph`."""
        num_vertices = indptr.shape[0] - 1
        return cls(num_src=num_vertices, num_dst=num_vertices, indptr=indptr, indices=indices)

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.indices.shape[0]

    @property
    def degrees(self) -> Tensor:
        """In-degree of each destination inside the block, int64 [num_dst]."""
        return self.indptr.diff()

    @cached_property
    def out_degrees(self) -> Tensor:
        """Out-degree of each source inside the block, int64 [num_src]; computed once, then kept."""
        return torch.bincount(self.indices, minlength=self.num_src)

    @cached_property
    def edge_destinations(self) -> Tensor:
        """Destination of each edge, int64 [edges]; computed on first use, then kept."""
        positions = torch.arange(self.num_dst, device=self.device)
        return positions.repeat_interleave(self.degrees, output_size=self.num_edges)

    @cached_property
    def edge_index(self) -> Tensor:
        """int64 [2, edges], source and destination of each edge; computed on first use, then kept.

        As PyTorch Geometric has them, whose layers are called as ``conv((x, x[: block.num_dst]), block.edge_index)``.
        """
        return torch.stack([self.indices.long(), self.edge_destinations])

    def to_dgl(self) -> Any:
        """The same as a DGL block: layers are called as ``conv(block.to_dgl(), (x, x[: block.num_dst]))``."""
        import dgl

        nodes = {"num_src_nodes": self.num_src, "num_dst_nodes": self.num_dst}
        return dgl.create_block(("csc", (self.indptr, self.indices.long(), [])), **nodes, device=self.device)

    @cached_property
    def typed(self) -> "TypedBlock":
        """The same by types, of a graph that has them; computed on first use, then kept. Cost: a sort of the edges."""
        return TypedBlock(self)

    def with_sources(self, x: Tensor) -> tuple["Block", Tensor]:
        """This hop as a layer sees it that looks at each source: a block without exchange, and rows of all sources.

        Collective where the block has an `exchange`; otherwise nothing happens. A layer that only adds rows up calls
        `aggregate` instead, which may send less. Of x, floating [num_dst, ...], or [num_src, ...] without exchange.
        """
        if self.exchange is None:
            return self, x
        whole = replace(self, exchange=None)
        if self.types is not None:
            whole.__dict__["typed"] = self.typed  # It is the same for every step.
        return whole, self.exchange.rows(x)

    @property
    def device(self) -> torch.device:
        """Device that holds both index arrays."""
        return self.indices.device

    @cached_property
    def transpose(self) -> Transpose:
        """The edges grouped by source; computed on first use, then kept.

        Cost: one counting sort (CPU) or one stable sort (other devices) of the edges.
        """
        if self.device.type != "cpu":
            return _transpose_anywhere(self)
        turned = Transpose(
            indptr=torch.zeros(self.num_src + 1, dtype=torch.int64),
            indices=torch.empty_like(self.indices),
            edge_ids=torch.empty_like(self.indices),
        )
        transpose(*(tensor.numpy() for tensor in (self.indptr, self.indices, *turned)))
        return turned

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The block on another device; the block itself where it is there already."""
        target = torch.device(device)
        if self.device == target:
            return self
        moved: dict[str, Any] = {
            name: array.to(target, non_blocking=non_blocking) for name, array in self.arrays().items()
        }
        block = replace(self, **moved)
        if "typed" in self.__dict__:
            block.__dict__["typed"] = self.typed.to(target, non_blocking=non_blocking)
        return block

    def arrays(self) -> dict[str, Tensor]:
        """What the block is made of, by the names of its fields: those that are there."""
        names = ("indptr", "indices", "source_degrees", "edge_weight", "edge_attr", "edge_type", "source_types")
        return {name: array for name in names if (array := getattr(self, name)) is not None}


class TypedBlock:
    """One hop by types of vertices and edges: what a layer with weights for each type walks.

    Vertices of a type are numbered in their order in the block, so that destinations come first, as in PyTorch
    Geometric's ``HeteroData``: its ``HeteroConv`` takes ``split(x)`` and `edge_index`.
    """

    def __init__(self, block: Block) -> None:
        """Sort the edges by type: DataError where there are no types."""
        if block.types is None or block.edge_type is None or block.source_types is None:
            raise DataError(
                "the block has no types of vertices and edges: make the graph by assemble_typed_graph, or read it with "
                'graph.format = "typed"'
            )
        types, device, dtype = block.types, block.device, block.indices.dtype
        self._edge_types = types.edges
        self._names = list(types.vertices)
        self.order, self._sizes = _grouped(block.source_types, len(self._names))
        """Places of the sources in the block, one type after another, int64 [num_src]."""
        counts = torch.bincount(block.source_types[: block.num_dst], minlength=len(self._names)).tolist()
        self.num_dst: dict[str, int] = dict(zip(self._names, counts, strict=True))
        """Destinations of each type."""
        local = torch.empty(block.num_src, dtype=dtype, device=device)
        local[self.order] = torch.cat([torch.arange(size, dtype=dtype, device=device) for size in self._sizes])
        first = torch.tensor([0, *counts[:-1]], device=device).cumsum(0)
        self.places = first[block.source_types[: block.num_dst].long()] + local[: block.num_dst]
        """Where each destination stands among those of all types, one type after another, int64 [num_dst]."""
        by_type, of_types = _grouped(block.edge_type, len(types.edges))
        # Not `edge_destinations`: threads that make cached properties wait for each other.
        at_edge = torch.arange(block.num_dst, device=device).repeat_interleave(block.degrees)
        ends = torch.stack([local[block.indices], local[at_edge]])[:, by_type].split(of_types, 1)
        self.edges: dict[EdgeType, Block] = {}
        """The edges of each type that there are any of, from sources to destinations of its two types. Where these
        differ, `num_dst` may exceed `num_src`, and destinations are none of the sources."""
        for edge, (source, destination), (indices, destinations) in zip(types.edges, types.ends, ends, strict=True):
            if len(indices):
                received = torch.bincount(destinations, minlength=counts[destination])
                self.edges[edge] = Block(
                    num_src=self._sizes[source],
                    num_dst=counts[destination],
                    indptr=torch.cat([received.new_zeros(1), received.cumsum(0)]),
                    indices=indices,
                )

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Self:
        """The same on another device."""
        moved = copy(self)
        moved.order = self.order.to(device, non_blocking=non_blocking)
        moved.places = self.places.to(device, non_blocking=non_blocking)
        moved.edges = {edge: block.to(device, non_blocking=non_blocking) for edge, block in self.edges.items()}
        return moved

    def tensors(self) -> Iterator[Tensor]:
        """All that it consists of."""
        yield from (self.order, self.places)
        for block in self.edges.values():
            yield from block.arrays().values()

    @property
    def edge_index(self) -> dict[EdgeType, Tensor]:
        """int64 [2, edges] by type, source and destination of each edge, as `HeteroData` has them.

        Of all types, also those without an edge here: `HeteroConv` leaves out layers, with their own weights for
        destinations, of types that are not there, and what a vertex gets must not depend on others in its minibatch.
        """
        none = self.order.new_empty(2, 0)
        return {edge: self.edges[edge].edge_index if edge in self.edges else none for edge in self._edge_types}

    def split(self, x: Tensor) -> dict[str, Tensor]:
        """Rows of the sources of each type: of x [num_src, ...], differentiable."""
        return dict(zip(self._names, x[self.order].split(self._sizes), strict=True))

    def join(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Rows of all destinations in the block's order, [num_dst, ...], from those of each type, as `split` has them.

        Of the rows of a type the first `num_dst`, those of its destinations, count: it may have rows of all sources.
        """
        return torch.cat([rows[name][: self.num_dst[name]] for name in self._names])[self.places]


def _grouped(kinds: Tensor, number: int) -> tuple[Tensor, list[int]]:
    """The order that brings so many kinds, integers [n] from 0, one after another, and how many there are of each."""
    counts = torch.bincount(kinds, minlength=number)
    if kinds.device.type != "cpu":
        return torch.sort(kinds, stable=True).indices, counts.tolist()
    order = torch.empty(len(kinds), dtype=torch.int64)
    sort_by_owner(kinds.numpy(), counts.numpy(), order.numpy())
    return order, counts.tolist()


def _transpose_anywhere(block: Block) -> Transpose:
    """`Block.transpose` in torch operations that every device has; the CPU has a faster kernel."""
    by_source, edge_ids = torch.sort(block.indices, stable=True)
    boundaries = torch.arange(block.num_src + 1, device=block.device, dtype=by_source.dtype)
    return Transpose(
        indptr=torch.searchsorted(by_source, boundaries),
        indices=block.edge_destinations[edge_ids].to(by_source.dtype),
        edge_ids=edge_ids.to(by_source.dtype),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Minibatch:
    """Seeds, the vertices whose rows they need, and the blocks that join the two."""

    seeds: Tensor
    """int64 [seeds], ids of the vertices whose outputs are wanted, in the numbering of the partition."""
    input_ids: Tensor
    """int64 [inputs], ids of the sources of `blocks[0]`: the rows to fetch. Unique; the first are `seeds`."""
    blocks: list[Block]
    """One per layer in the order in which layers run: outermost hop first, `blocks[-1]` gives the seeds."""

    def split_by_type(self) -> None:
        """Make `Block.typed` of all blocks ahead of time, in whatever thread calls this."""
        for block in self.blocks:
            block.__dict__["typed"] = TypedBlock(block)

    def without(self, edges: Tensor) -> Self:
        """The same vertices and blocks without some edges, int64 [2, n]: ids of their sources and destinations.

        Cost: a sort of the n edges, and a binary search for each edge of the blocks.
        """
        if not edges.numel() or not len(self.input_ids):
            return self
        largest = 1 + int(max(self.input_ids.max(), edges.max()))
        unwanted = (edges[0] * largest + edges[1]).unique()
        blocks = []
        for block in self.blocks:
            source, destination = self.input_ids[block.edge_index]
            keys = source * largest + destination
            places = torch.searchsorted(unwanted, keys).clamp(max=len(unwanted) - 1)
            kept = unwanted[places] != keys
            counts = torch.bincount(block.edge_destinations[kept], minlength=block.num_dst)
            indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
            of_edges: dict[str, Any] = {
                name: array[kept] for name, array in block.arrays().items() if name in ("indices", *EDGE_ARRAYS)
            }
            blocks.append(replace(block, indptr=indptr, **of_edges))
        return replace(self, blocks=blocks)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The minibatch on another device."""
        return type(self)(
            seeds=self.seeds.to(device, non_blocking=non_blocking),
            input_ids=self.input_ids.to(device, non_blocking=non_blocking),
            blocks=[block.to(device, non_blocking=non_blocking) for block in self.blocks],
        )


_KERNEL_DTYPES = (torch.float32, torch.float64)


def aggregate(block: Block, x: Tensor, *, edge_weights: Tensor | None = None) -> Tensor:
    """Add up the rows of each destination's sources.

    Args:
        block: the bipartite graph; on the device of `x`.
        x: floating [num_src, features], or [num_src, heads, features]; [num_dst, features] where the block has an
            `exchange`: then it is collective.
        edge_weights: floating [edges], or [edges, heads] where `x` has heads. With an `exchange` those of the block.

    Returns:
        [num_dst, features] or [num_dst, heads, features], differentiable in `x` and `edge_weights`; zeros for a
        destination without edges. Cost: edges x features multiply-adds, the same again for each gradient.
    """
    if block.exchange is not None:
        assert edge_weights is None or edge_weights is block.edge_weight, "other weights go with Block.with_sources"
        return block.exchange.start_sums(x, weighted=edge_weights is not None)()
    rows, weights = x.flatten(1).unsqueeze(1), None
    if edge_weights is not None:
        weights = edge_weights.to(x.dtype)  # Under autocast only one of the two may be short.
        rows, weights = (x, weights) if weights.dim() > 1 else (rows, weights.unsqueeze(1))
    total: Tensor = _Sum.apply(rows, weights, block)  # type: ignore[no-untyped-call]
    return total.view(block.num_dst, *x.shape[1:])


def divide_by_degrees(block: Block, rows: Tensor) -> Tensor:
    """Divide the row [features] of each destination by its number of edges, if any, in place, without a gradient."""
    return rows.div_(block.degrees.clamp(min=1).to(rows.dtype).unsqueeze(1))


def join_means(block: Block, x: Tensor) -> Tensor:
    """Each destination's own row and the mean over its sources side by side, zeros without edges; without a gradient.

    Of x, floating [num_src, features]; the result is [num_dst, 2 * features], in new memory: one matrix product
    multiplies both.
    """
    if not _has_kernel(x):
        mean = divide_by_degrees(block, sum_over_bags(x, block.indptr, block.indices))
        return torch.cat([x[: block.num_dst], mean], 1)
    joined = x.new_empty(block.num_dst, 2 * x.shape[1])
    arrays: list[Any] = [tensor.numpy() for tensor in (block.indptr, block.indices, x.detach().contiguous(), joined)]
    in_parallel(partial(kernels.join_means, *arrays), arrays[0], at_once=ROWS_AT_ONCE)
    return joined


def spread_means(block: Block, joined: Tensor) -> Tensor:
    """Compute the gradient of x, [num_src, features], from that of what `join_means` gave, which is not changed."""
    turned = block.transpose
    if not _has_kernel(joined):
        own, mean = joined.chunk(2, 1)
        rows = sum_over_bags(divide_by_degrees(block, mean.clone()), turned.indptr, turned.indices)
        rows[: block.num_dst].add_(own)
        return rows
    rows = joined.new_empty(block.num_src, joined.shape[1] // 2)
    tensors = (block.indptr, turned.indptr, turned.indices, joined.contiguous(), rows)
    arrays: list[Any] = [tensor.numpy() for tensor in tensors]
    in_parallel(partial(kernels.spread_means, *arrays), arrays[1], at_once=ROWS_AT_ONCE)
    return rows


def sum_over_bags(rows: Tensor, indptr: Tensor, indices: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sum chosen rows bag by bag, without a gradient: [bags, features], new memory; zeros for an empty bag.

    Of rows, floating [n, features], bag b has ``indices[indptr[b]:indptr[b + 1]]``, int32, if fewer than 2**31, or
    int64, each times its weight where there are weights.
    """
    if len(indices) > torch.iinfo(indices.dtype).max:
        indices = indices.long()
    # embedding_bag would widen all indices to match the offsets, so the short array changes type instead.
    total: Tensor = torch.embedding_bag(
        rows.detach(), indices, indptr.to(indices.dtype), mode=0, per_sample_weights=weights, include_last_offset=True
    )[0]
    return total


def add_sums(
    rows: Tensor, indptr: Tensor, indices: Tensor, weights: Tensor | None, out: Tensor, places: Tensor
) -> None:
    """Add the sum of each bag, as `sum_over_bags` has them, to the row of `out` at its place, int64; no two equal."""
    if not _has_kernel(rows) or out.dtype != rows.dtype:
        out.index_add_(0, places, sum_over_bags(rows, indptr, indices, weights).to(out.dtype))
        return
    weights = rows.new_empty(0) if weights is None else weights
    arrays: list[Any] = [tensor.numpy() for tensor in (indptr, indices, weights, rows.contiguous(), out, places)]
    in_parallel(partial(kernels.add_sums, *arrays), arrays[0], at_once=ROWS_AT_ONCE)


def weighted_degrees(indptr: Tensor, edge_weight: Tensor) -> Tensor:
    """Sum the weights [edges] of the edges that enter each vertex: [vertices], for `indptr` as in `Block`."""
    return torch.segment_reduce(edge_weight, "sum", offsets=indptr, initial=0)


def add_ends(block: Block, source_values: Tensor, destination_values: Tensor) -> Tensor:
    """Add the values of the two end points of every edge, differentiable in both.

    Values are [num_src, heads] and [num_dst, heads], the result is [edges, heads].
    """
    total: Tensor = _AddEnds.apply(source_values, destination_values, block)  # type: ignore[no-untyped-call]
    return total


def edge_softmax(block: Block, scores: Tensor) -> Tensor:
    """Softmax of edge scores [edges, heads] over the edges that enter each destination, differentiable.

    Cost: three passes over the scores.
    """
    weights: Tensor = _EdgeSoftmax.apply(scores, block)  # type: ignore[no-untyped-call]
    return weights


class _Sum(torch.autograd.Function):
    """Of rows [num_src, heads, features], each head with its weights [edges, heads] or all without."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor | None, block: Block) -> Tensor:
        ctx.block = block
        ctx.save_for_backward(*(() if weights is None else (x, weights)))
        return _bag_sums(x, weights, block.indptr, block.indices)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weights = ctx.saved_tensors or (upstream, None)  # Without weights nobody asks for x.
        x_gradient = weights_gradient = None
        if ctx.needs_input_grad[0]:
            transpose = ctx.block.transpose
            by_source = None if weights is None else weights.index_select(0, transpose.edge_ids)
            x_gradient = _bag_sums(upstream, by_source, transpose.indptr, transpose.indices)
        if ctx.needs_input_grad[1]:
            weights_gradient = _edge_dot(ctx.block, x.detach().contiguous(), upstream.contiguous())
        return x_gradient, weights_gradient, None


class _AddEnds(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source_values: Tensor, destination_values: Tensor, block: Block) -> Tensor:
        ctx.block = block
        at_source = source_values.index_select(0, block.indices)
        return at_source.add_(destination_values.index_select(0, block.edge_destinations))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        # Bags rather than index_add: GPUs add the latter in an order that varies from run to run.
        source_gradient = destination_gradient = None
        if ctx.needs_input_grad[0]:
            transpose = ctx.block.transpose
            source_gradient = sum_over_bags(upstream.contiguous(), transpose.indptr, transpose.edge_ids)
        if ctx.needs_input_grad[1]:
            destination_gradient = _edge_sum(ctx.block, upstream.contiguous())
        return source_gradient, destination_gradient, None


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, block: Block) -> Tensor:
        scores = scores.detach().contiguous()
        if _has_kernel(scores):
            weights = torch.empty_like(scores)
            kernels.subtract_largest(block.indptr.numpy(), scores.numpy(), weights.numpy())
            weights.exp_()  # PyTorch's takes many at once, which a compiled loop's does not.
            kernels.divide_by_sums(block.indptr.numpy(), weights.numpy())
        else:
            at_edge = block.edge_destinations
            largest = scores.new_full((block.num_dst, scores.shape[1]), -torch.inf)
            largest.scatter_reduce_(0, at_edge.unsqueeze(1).expand_as(scores), scores, "amax")
            exponentials = (scores - largest.index_select(0, at_edge)).exp()
            weights = exponentials / _edge_sum(block, exponentials).index_select(0, at_edge)
        ctx.block = block
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (weights,), block = ctx.saved_tensors, ctx.block
        upstream = upstream.contiguous()
        if _has_kernel(weights):
            gradient = torch.empty_like(weights)
            arrays = (block.indptr, weights, upstream, gradient)
            kernels.segment_softmax_backward(*(array.numpy() for array in arrays))
            return gradient, None
        product = weights * upstream
        return product - weights * _edge_sum(block, product).index_select(0, block.edge_destinations), None


def _bag_sums(rows: Tensor, weights: Tensor | None, indptr: Tensor, indices: Tensor) -> Tensor:
    sums = [
        sum_over_bags(
            rows[:, head].contiguous(),
            indptr,
            indices,
            None if weights is None else weights.detach()[:, head].contiguous(),
        )
        for head in range(rows.shape[1])
    ]
    return torch.stack(sums, 1) if len(sums) > 1 else sums[0].unsqueeze(1)


def _edge_dot(block: Block, sources: Tensor, destinations: Tensor) -> Tensor:
    if not _has_kernel(sources):
        at_source = sources.index_select(0, block.indices)
        return (at_source * destinations.index_select(0, block.edge_destinations)).sum(-1)
    products = sources.new_empty(block.num_edges, sources.shape[1])
    kernels.edge_dot(*(tensor.numpy() for tensor in (block.indptr, block.indices, sources, destinations, products)))
    return products


def _has_kernel(tensor: Tensor) -> bool:
    """Whether compiled loops take it; other devices and dtypes go through torch."""
    return tensor.device.type == "cpu" and tensor.dtype in _KERNEL_DTYPES


def _edge_sum(block: Block, rows: Tensor) -> Tensor:
    edges = torch.arange(block.num_edges, device=rows.device)
    return sum_over_bags(rows, block.indptr, edges)
