"""windrow.gnn.remote_lists: minibatches are those of a rank that reads all lists, and only own lists are read."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from windrow.comm.errors import RecipeError
from windrow.comm.meter import Meter
from windrow.comm.world import World
from windrow.gnn.graph import Graph
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.pipeline import PipelineOptions
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.synthetic import community_graph, typed_community_graph
from windrow.gnn.task import NodeTask
from windrow.partition.book import PartitionBook

VERTICES = 300
FANOUTS = (3, 70, -1)


class UsesEdges(nn.Module):
    """A model that gets degrees, weights and features of edges."""

    needs_source_degrees = True


def make_graph() -> Graph:
    """Some lists are longer than a word of bits, some empty."""
    graph = community_graph(VERTICES, 3, seed=1, average_degree=30, num_features=4)
    generator = torch.Generator().manual_seed(2)
    weight = torch.rand(graph.num_edges, generator=generator)
    return replace(graph, edge_weight=weight, edge_attr=torch.stack([weight, -weight], 1))


def view_of(graph: Graph, rank: int, size: int) -> PartitionedGraph:
    """Neighbouring vertices are on different ranks, and the last rank has few."""
    owner = torch.arange(graph.num_vertices) % (2 * size - 1) // 2
    return PartitionedGraph.from_graph(graph, PartitionBook.from_assignment(owner.numpy(), size), rank)


def without_other_lists(view: PartitionedGraph) -> PartitionedGraph:
    """Edges of other parts are nonsense."""
    start, stop = (int(view.indptr[end]) for end in view.own_range)

    def kept(rows: Tensor | None) -> Tensor | None:
        if rows is not None:
            rows = torch.cat([torch.full_like(rows[:start], -9), rows[start:stop], torch.full_like(rows[stop:], -9)])
        return rows

    indices = kept(view.indices)
    assert indices is not None
    return replace(view, indices=indices, edge_weight=kept(view.edge_weight), edge_attr=kept(view.edge_attr))


def sample_all(sampler: NeighborSampler, rank: int) -> list[dict[str, Tensor]]:
    """Minibatches of seeds from anywhere, other ones on each rank, and on some none."""
    found = []
    for step in range(4):
        count = 0 if step == 2 and rank == 0 else 5 + 3 * rank
        seeds = torch.randperm(VERTICES, generator=torch.Generator().manual_seed(10 * step + rank))[:count]
        minibatch = sampler.sample(seeds, epoch=1, step=step)
        arrays = {"inputs": minibatch.input_ids}
        for number, block in enumerate(minibatch.blocks):
            arrays |= {f"{name} {number}": values for name, values in block.arrays().items()}
        found.append(arrays)
    return found


@pytest.mark.parametrize("uses_edges", [False, True])
def test_minibatches_are_those_from_all_lists(spmd: Any, uses_edges: bool) -> None:
    graph = make_graph() if uses_edges else replace(make_graph(), edge_weight=None, edge_attr=None)
    model = UsesEdges() if uses_edges else nn.Module()

    def body(world: World) -> None:
        world.meter = Meter()
        view = view_of(graph, world.rank, world.size)
        expected = sample_all(view.sampler(FANOUTS, model, seed=7), world.rank)
        together = without_other_lists(view).sampler(FANOUTS, model, seed=7, world=world)
        found = sample_all(together, world.rank)
        for mine, theirs in zip(found, expected, strict=True):
            assert mine.keys() == theirs.keys()
            assert ("edge_attr 0" in mine, "source_degrees 0" in mine) == (uses_edges, uses_edges)
            for name, values in mine.items():
                assert values.dtype == theirs[name].dtype
                assert torch.equal(values, theirs[name]), name
        assert (world.meter.totals("neighbours").bytes_received > 0) == (world.size > 1)

    spmd(body)


def test_where_edges_have_types_every_rank_reads_all_lists() -> None:
    part = view_of(typed_community_graph(100, 3, seed=1), 0, 1)
    with pytest.raises(RecipeError, match=r'pipeline\.topology = "partitioned": where edges have types'):
        NodeTask(part, pipeline=PipelineOptions(topology="partitioned"))


def test_ranks_sample_together_in_one_thread_each() -> None:
    with pytest.raises(RecipeError, match=r'sampler_threads = 2 with pipeline\.topology = "partitioned": ranks sample'):
        PipelineOptions(topology="partitioned", sampler_threads=2)
