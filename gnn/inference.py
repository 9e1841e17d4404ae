"""Distributed inference: exact, or from sampled neighbourhoods; and its results on rank 0 in the user's order.

Exact: the whole graph, one layer at a time, each rank its own vertices, so that no vertex is computed twice and no
neighbour is left out. Before each layer a rank fetches the rows of the sources that others own.

Sampled: through the pipeline of training. What a vertex samples depends on its id alone, not on the vertices that share
its minibatch, so that the result does not depend on the number of ranks or on the size of minibatches.

Rows of all ranks come to rank 0 a chunk at a time: memory stays bounded, whatever the graph::

    the user's ids         0  1  2  3  4  5          chunks of 4
    vertices of rank 0        1     3  4             rank 0 receives  1 3 | 0 2   places them  0 1 2 3
    vertices of rank 1     0     2        5                           4 | 5                    4 5

Which rank has which vertex of a chunk is known everywhere, so that rows alone travel, each once.
"""

import contextlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from windrow.caching.cached_store import CachedStore
from windrow.comm.errors import RecipeError
from windrow.comm.fetch import fetch_rows
from windrow.comm.meter import Stopwatch
from windrow.comm.rows import group_by_owner, near_equal_split
from windrow.comm.transfer import chunk_bounds
from windrow.comm.wire import Wire
from windrow.comm.world import World
from windrow.gnn.message_passing import Block, weighted_degrees
from windrow.gnn.models import GNN
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.pipeline import MinibatchPipeline, PipelineOptions, SeedTask
from windrow.gnn.sampler import NeighborSampler
from windrow.training.dropout import run_model
from windrow.training.embedding import EmbeddingModule
from windrow.training.task import device_of

__all__ = [
    "Report",
    "block_of_range",
    "gather_predictions",
    "in_degrees",
    "infer_exactly",
    "infer_sampled",
    "own_vertices",
    "rows_in_users_order",
    "sampled_steps",
    "wanted_vertices",
]

CHUNK_VERTICES = 1 << 16
"""Vertices whose layer output is computed at a time: bounds the memory for their sources' rows."""


Report = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done, 0 to 1, to show progress."""


@torch.no_grad()
def infer_exactly(
    world: World,
    graph: PartitionedGraph,
    model: GNN,
    *,
    embedding: EmbeddingModule | None = None,
    hidden: bool = False,
    chunk_vertices: int = CHUNK_VERTICES,
    progress: Report = lambda *_: None,
) -> Tensor:
    """Compute the outputs of this rank's vertices with all neighbours, without dropout. Collective.

    Args:
        world: all ranks call this with the same weights and chunk size.
        graph: this rank's view.
        model: on any device; the rows of this part and of one chunk's sources are there at a time.
        embedding: rows that were learnt, which the model takes behind the features.
        hidden: stop at the last hidden rows, those that outputs are made of; RecipeError where there are none.
        chunk_vertices: vertices computed at a time.
        progress: called after each.

    Returns:
        [rows of this part, outputs], or [rows of this part, hidden], in the order of the partition.

    Cost: per layer, one pass over the edges of this part and one fetch per chunk of its distinct sources.
    """
    start, stop = graph.own_range
    edge_weight = graph.edge_weight_for(model)
    degrees = in_degrees(graph, edge_weight) if model.needs_source_degrees else None
    device = device_of(model)
    rows = graph.features.to(device, torch.float32)
    if embedding is not None:
        rows = torch.cat([rows, embedding.start_rows(torch.arange(start, stop)).finish().to(device)], 1)
    rows = model.embed(rows)
    wire = Wire(world, stage="inference", dtype=rows.dtype, device=rows.device)
    if hidden and model.num_hidden_layers == 0:
        raise RecipeError("model.num_layers = 1: a model of one layer has no hidden vectors")
    num_layers = model.num_hidden_layers if hidden else model.options.num_layers
    # Every rank goes through as many chunks as the largest part needs, so that all fetch together.
    firsts = range(0, _largest_part(graph), chunk_vertices)
    for layer in range(num_layers):
        chunks = []
        for number, first in enumerate(firsts, start=1):
            last = min(start + first + chunk_vertices, stop)
            block, sources = block_of_range(graph, degrees, edge_weight, min(start + first, stop), last)
            of_sources = fetch_rows(wire, graph.offsets, rows, sources)
            chunks.append(model.layer_forward(layer, block.to(device), of_sources))
            progress("layers", (layer + number / len(firsts)) / num_layers)
        rows = torch.cat(chunks)
    return rows if hidden else model.readout(rows)


def _largest_part(graph: PartitionedGraph) -> int:
    return max(stop - start for start, stop in pairwise(graph.offsets))


def in_degrees(graph: PartitionedGraph, edge_weight: Tensor | None) -> Tensor:
    """In-degree of each vertex of all parts, or where edges have weights the sum of these: [N]."""
    return graph.indptr.diff() if edge_weight is None else weighted_degrees(graph.indptr, edge_weight)


def block_of_range(
    graph: PartitionedGraph, degrees: Tensor | None, edge_weight: Tensor | None, start: int, stop: int
) -> tuple[Block, Tensor]:
    """The block of all in-edges of the vertices start..stop - 1, and the ids of its sources: these, others ascending.

    Of all vertices `degrees` [N], and of all edges `edge_weight` [E], are known or None.
    """
    indptr = graph.indptr[start : stop + 1]
    edges = slice(int(indptr[0]), int(indptr[-1]))
    neighbours = graph.indices[edges].long()
    is_other = (neighbours < start) | (neighbours >= stop)
    others, positions = neighbours[is_other].unique(return_inverse=True)
    indices = neighbours - start
    indices[is_other] = positions + (stop - start)
    sources = torch.cat([torch.arange(start, stop), others])
    types: dict[str, Any] = {}
    if graph.types is not None and graph.edge_type is not None:
        source_types = graph.types.of(graph.original_ids[sources])
        types = {"edge_type": graph.edge_type[edges], "source_types": source_types, "types": graph.types}
    block = Block(
        num_src=len(sources),
        num_dst=stop - start,
        indptr=indptr - indptr[0],
        indices=indices,
        source_degrees=None if degrees is None else degrees[sources],
        edge_weight=None if edge_weight is None else edge_weight[edges],
        **types,
    )
    return block, sources


def gather_predictions(world: World, graph: PartitionedGraph, own_rows: Tensor, ids: Tensor | None = None) -> Tensor:
    """Bring the rows of all ranks together. Collective.

    Args:
        world: all ranks call this.
        graph: this rank's view.
        own_rows: [own vertices, ...], in the order of `own_vertices`.
        ids: int64 [n], distinct ids of the partition, over all parts; None for all vertices; must agree.

    Returns:
        On every rank and on the CPU, [n, ...] in the order of the ids, or [N, ...], whose row v belongs to the vertex
        that the user calls v.
    """
    rows = torch.cat(world.all_gather(own_rows.cpu(), stage=PREDICTIONS_STAGE))
    if ids is None:
        return rows[torch.from_numpy(graph.book.old_to_new)]
    order, _ = group_by_owner(ids, graph.offsets)
    return rows if order is None else torch.empty_like(rows).index_copy_(0, order, rows)


def own_vertices(graph: PartitionedGraph, ids: Tensor | None) -> Tensor:
    """The vertices that this rank computes, of distinct ids of the partition over all parts and in their order.

    None stands for all vertices, ascending.
    """
    start, stop = graph.own_range
    return torch.arange(start, stop) if ids is None else ids[(ids >= start) & (ids < stop)]


def sampled_steps(graph: PartitionedGraph, ids: Tensor | None, batch_size: int) -> int:
    """How many minibatches `infer_sampled` goes through with these arguments, the same on every rank."""
    largest = _largest_part(graph)
    if ids is not None:
        largest = max(int(((ids >= start) & (ids < stop)).sum()) for start, stop in pairwise(graph.offsets))
    return -(-largest // max(1, batch_size // graph.book.num_parts))


@torch.no_grad()
def infer_sampled(
    world: World,
    graph: PartitionedGraph,
    model: nn.Module,
    ids: Tensor | None,
    *,
    sampler: NeighborSampler,
    store: CachedStore,
    options: PipelineOptions,
    batch_size: int,
    embedding: EmbeddingModule | None = None,
    progress: Report = lambda *_: None,
) -> Tensor:
    """Compute the outputs of this rank's vertices from sampled neighbours, without dropout. Collective.

    Args:
        world: all ranks call this, with the same weights, fanouts and sizes.
        graph: this rank's view.
        model: in evaluation mode, on any device.
        ids: int64 [n], distinct ids of the partition, over all parts; None for all vertices; must agree.
        sampler: of this rank; it has one fanout for each layer.
        store: where rows of features are.
        options: how far ahead minibatches are made.
        batch_size: vertices of a minibatch, over all ranks.
        embedding: rows that were learnt, which the model takes behind the features.
        progress: called after each minibatch.

    Returns:
        float32 [own vertices, outputs] on the CPU, in the order of `own_vertices`.
    """
    own = own_vertices(graph, ids)
    steps = sampled_steps(graph, ids, batch_size)
    if steps == 0:
        return torch.empty((0, graph.num_outputs))
    outputs: Tensor | None = None
    bounds = list(pairwise(near_equal_split(len(own), steps)))
    device = device_of(model)
    pipeline = MinibatchPipeline(
        world, sampler, store, options, device=device, stopwatch=Stopwatch(), embedding=embedding
    )
    # One key for all steps: what a vertex samples then does not depend on which seeds share its step.
    tasks = (SeedTask(seeds=own[first:last], epoch=0, step=0) for first, last in bounds)
    with contextlib.closing(pipeline), world.background_progress():
        for step, ((first, last), loaded) in enumerate(zip(bounds, pipeline.run(tasks), strict=True), start=1):
            inputs = loaded.inputs()
            if first < last:
                found: Tensor = run_model(model, loaded.minibatch.blocks, inputs)
                if outputs is None:
                    outputs = torch.empty((len(own), *found.shape[1:]))
                outputs[first:last] = found
            progress("minibatches", step / steps)
    # A rank without a vertex has seen no output, and a model of the user's may have others than there are labels.
    shapes = world.all_gather_object(None if outputs is None else outputs.shape[1:], stage="shape of outputs")
    if outputs is None:
        outputs = torch.empty((0, *next(shape for shape in shapes if shape is not None)))
    return outputs


PREDICTIONS_STAGE = "predictions"
ROOT = 0


def wanted_vertices(graph: PartitionedGraph, ids: Tensor | None) -> Tensor:
    """The user's ids, ascending, of distinct ids of the partition, int64 [n]; None for all vertices."""
    if ids is None:
        return torch.arange(graph.num_vertices)
    return graph.original_ids[ids].sort().values


def rows_in_users_order(
    world: World, graph: PartitionedGraph, wanted: Tensor, own_ids: Tensor, own_rows: Tensor, *, chunk_rows: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Bring rows to rank 0, chunk by chunk. Collective: every rank goes through all chunks.

    `wanted` are ascending ids of the user; `own_ids` ascending ids of the partition in this rank's range, those that
    are wanted among them, and `own_rows` [len(own_ids), ...] their rows, on any device. `wanted`, `chunk_rows`, the
    most rows that are brought together at a time, and the rows' shape and dtype must agree.

    Yields the user's ids of a chunk, ascending, and on rank 0 their rows on the CPU; on other ranks no rows.

    Memory: rank 0 holds a chunk twice, other ranks what they send of it, besides 8 bytes for each id.
    """
    old_to_new = torch.from_numpy(graph.book.old_to_new)
    for first, last in chunk_bounds(len(wanted), chunk_rows):
        chunk = wanted[first:last]
        ids = old_to_new[chunk]
        own = own_vertices(graph, ids)
        places = torch.searchsorted(own_ids, own).to(own_rows.device)
        order, counts = group_by_owner(ids, graph.offsets) if world.rank == ROOT else (None, [0] * world.size)
        sends = [len(own) if rank == ROOT else 0 for rank in range(world.size)]
        rows = received = world.all_to_all(own_rows[places].cpu(), sends, counts, stage=PREDICTIONS_STAGE)
        if order is not None:
            rows = torch.empty_like(received)
            rows[order] = received
        yield chunk, rows
