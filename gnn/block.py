"""One hop of message passing as a bipartite graph, and the minibatch made of several hops."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor

from windrow.gnn.message_passing_kernels import counting_sort_by_source

__all__ = ["Block", "Minibatch", "Transpose"]


class Transpose(NamedTuple):
    """The same edges grouped by source: what a backward pass walks.

    Source `u` sends along the edges at positions `indptr[u]:indptr[u + 1]`; inside a group the
    edges keep their order in the block.
    """

    indptr: Tensor
    """int64 [num_sources + 1]."""
    indices: Tensor
    """Destination of each edge; dtype of the block's `indices`, [edges]."""
    edge_ids: Tensor
    """Position of each edge in the block's `indices`; dtype of the block's `indices`, [edges]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """One hop: `num_sources` vertices send messages to `num_destinations` vertices.

    Destinations are the first `num_destinations` of the sources, so a layer reads a destination's
    own row from the prefix of its input. The edges are in compressed sparse column form: messages
    to destination `v` come from sources `indices[indptr[v]:indptr[v + 1]]`. The constructor checks
    nothing that costs time: blocks come from a sampler or from a validated graph.
    """

    num_sources: int
    """Number of sending vertices = rows of the layer's input."""
    num_destinations: int
    """Number of receiving vertices = rows of the layer's output; at most `num_sources`."""
    indptr: Tensor
    """int64 [num_destinations + 1], from 0 to the number of edges, never falling."""
    indices: Tensor
    """int32 or int64 [edges], positions of sources in 0..num_sources - 1."""
    source_degrees: Tensor | None = None
    """int64 [num_sources], in-degree of each source in the graph that was sampled; None: the block is that
    graph, or nobody needs it. Degrees inside a block depend on which seeds share a minibatch, so a layer that
    divides by the degree of a source needs these to give the same answer on any number of ranks."""

    @classmethod
    def whole(cls, indptr: Tensor, indices: Tensor) -> Self:
        """A whole graph as one block, in which every vertex is a source and a destination.

        Args:
            indptr: int64 [vertices + 1].
            indices: int32 or int64 [edges], in-neighbours of each vertex.
        """
        num_vertices = indptr.shape[0] - 1
        return cls(num_sources=num_vertices, num_destinations=num_vertices, indptr=indptr, indices=indices)

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.indices.shape[0]

    @property
    def degrees(self) -> Tensor:
        """In-degree of each destination inside the block, int64 [num_destinations]."""
        return self.indptr.diff()

    @cached_property
    def out_degrees(self) -> Tensor:
        """Out-degree of each source inside the block, int64 [num_sources]; computed once, then kept."""
        return torch.bincount(self.indices, minlength=self.num_sources)

    @cached_property
    def edge_destinations(self) -> Tensor:
        """Destination of each edge, int64 [edges]; computed on first use, then kept."""
        positions = torch.arange(self.num_destinations, device=self.device)
        return positions.repeat_interleave(self.degrees, output_size=self.num_edges)

    @property
    def device(self) -> torch.device:
        """Device that holds both index arrays."""
        return self.indices.device

    def transpose(self) -> Transpose:
        """The edges grouped by source; computed on first use, then kept.

        Cost: one counting sort (CPU) or one stable sort (other devices) of the edges.
        """
        return self._transpose

    @cached_property
    def _transpose(self) -> Transpose:
        return _transpose(self)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The block on another device; the block itself where it is there already."""
        target = torch.device(device)
        if self.device == target:
            return self
        return type(self)(
            num_sources=self.num_sources,
            num_destinations=self.num_destinations,
            indptr=self.indptr.to(target, non_blocking=non_blocking),
            indices=self.indices.to(target, non_blocking=non_blocking),
            source_degrees=None
            if self.source_degrees is None
            else self.source_degrees.to(target, non_blocking=non_blocking),
        )


def _transpose(block: Block) -> Transpose:
    if block.device.type == "cpu":
        indptr, indices, edge_ids = counting_sort_by_source(
            block.indptr.numpy(), block.indices.numpy(), block.num_sources
        )
        return Transpose(
            indptr=torch.from_numpy(indptr),
            indices=torch.from_numpy(indices),
            edge_ids=torch.from_numpy(edge_ids),
        )
    return transpose_anywhere(block)


def transpose_anywhere(block: Block) -> Transpose:
    """`Block.transpose` in torch operations that every device has; the CPU has a faster kernel."""
    by_source, edge_ids = torch.sort(block.indices, stable=True)
    boundaries = torch.arange(block.num_sources + 1, device=block.device, dtype=by_source.dtype)
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

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The minibatch on another device."""
        return type(self)(
            seeds=self.seeds.to(device, non_blocking=non_blocking),
            input_ids=self.input_ids.to(device, non_blocking=non_blocking),
            blocks=[block.to(device, non_blocking=non_blocking) for block in self.blocks],
        )
