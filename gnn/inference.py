"""Exact predictions for every vertex: the whole graph, one layer at a time, each rank its own vertices.

A layer's outputs of all vertices are computed before the next layer starts, so no vertex is computed twice and
no neighbour is left out. Before each layer a rank fetches the rows of the sources that others own.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from windrow.comm.exchange import RowExchange
from windrow.comm.world import World
from windrow.gnn.block import Block
from windrow.gnn.models import GNN
from windrow.gnn.partitioned import PartitionedGraph

__all__ = ["exact_chunks", "gather_predictions", "infer_exactly"]

CHUNK_VERTICES = 1 << 16
"""Vertices whose layer output is computed at a time: bounds the memory for their sources' rows."""


def exact_chunks(graph: PartitionedGraph, model: GNN, *, chunk_vertices: int = CHUNK_VERTICES) -> int:
    """How many chunks `infer_exactly` goes through, over all layers.

    Args:
        graph: any rank's view.
        model: as for `infer_exactly`.
        chunk_vertices: likewise.
    """
    return model.options.num_layers * -(-_largest_part(graph) // chunk_vertices)


@torch.no_grad()
def infer_exactly(
    world: World,
    graph: PartitionedGraph,
    model: GNN,
    *,
    chunk_vertices: int = CHUNK_VERTICES,
    after_chunk: Callable[[], None] | None = None,
) -> Tensor:
    """Compute the outputs of this rank's vertices with all neighbours, without dropout. Collective.

    Args:
        world: all ranks call this with the same weights and chunk size.
        graph: this rank's view.
        model: on any device; the rows of this part and of one chunk's sources are there at a time.
        chunk_vertices: vertices computed at a time.
        after_chunk: called after each, to show progress.

    Returns:
        [rows of this part, outputs] in the order of the partition.

    Cost: per layer, one pass over the edges of this part and one fetch per chunk of its distinct sources.
    """
    start, stop = graph.own_range
    degrees = graph.indptr.diff()
    device = next(model.parameters()).device
    hidden = model.embed(graph.features.to(device, torch.float32))
    for layer in range(model.options.num_layers):
        exchange = RowExchange(world, graph.offsets, hidden, stage="inference")
        chunks = []
        # Every rank goes through as many chunks as the largest part needs, so that all fetch together.
        for first in range(0, _largest_part(graph), chunk_vertices):
            last = min(start + first + chunk_vertices, stop)
            block, sources = _chunk(graph, degrees, min(start + first, stop), last)
            rows = exchange.fetch(sources, unique=True)
            chunks.append(model.layer_forward(layer, block.to(device), rows))
            if after_chunk is not None:
                after_chunk()
        hidden = torch.cat(chunks)
    return model.readout(hidden)


def _largest_part(graph: PartitionedGraph) -> int:
    return max(stop - start for start, stop in pairwise(graph.offsets))


def _chunk(graph: PartitionedGraph, degrees: Tensor, start: int, stop: int) -> tuple[Block, Tensor]:
    """The block of all in-edges of the vertices start..stop - 1, and the ids of its sources."""
    indptr = graph.indptr[start : stop + 1]
    neighbours = graph.indices[int(indptr[0]) : int(indptr[-1])].long()
    destinations = torch.arange(start, stop)
    is_destination = (neighbours >= start) & (neighbours < stop)
    others, positions = neighbours[~is_destination].unique(return_inverse=True)
    indices = torch.empty_like(neighbours)
    indices[is_destination] = neighbours[is_destination] - start
    indices[~is_destination] = positions + (stop - start)
    sources = torch.cat([destinations, others])
    block = Block(
        num_sources=len(sources),
        num_destinations=stop - start,
        indptr=indptr - indptr[0],
        indices=indices,
        source_degrees=degrees[sources],
    )
    return block, sources


def gather_predictions(world: World, graph: PartitionedGraph, own_rows: Tensor) -> Tensor:
    """Bring the rows of all ranks together, in the user's order of vertices. Collective.

    Args:
        world: all ranks call this.
        graph: this rank's view.
        own_rows: [rows of this part, ...] from `infer_exactly`; row shape and dtype must agree.

    Returns:
        [N, ...] on every rank; row v belongs to the vertex that the user calls v.
    """
    rows = torch.cat(world.all_gather(own_rows.cpu(), stage="predictions"))
    return rows[torch.from_numpy(graph.book.old_to_new)]
