"""What a part will ask for, read from any rank's view of the graph."""

import numpy as np
import torch

from windrow.gnn.demand import demand_of
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.synthetic import community_graph
from windrow.partition.book import PartitionBook


def test_each_part_has_its_own_training_vertices():
    graph = community_graph(50, 3, seed=1, num_features=4)
    book = PartitionBook.from_assignment(np.arange(50) % 3, 3)
    seeds = []
    for part in range(3):
        demand = demand_of(PartitionedGraph.from_graph(graph, book, 1), part, [4, -1], 7)
        assert demand.own == book.part_range(part)
        assert demand.fanouts == (4, -1)
        assert demand.steps == 7
        assert demand.num_vertices == 50
        originals = book.to_original(demand.seeds)
        assert (originals % 3 == part).all()
        seeds += originals.tolist()
    assert sorted(seeds) == sorted(graph.train_ids.tolist())


def test_the_topology_is_not_copied():
    graph = community_graph(20, 2, seed=1, num_features=4)
    view = PartitionedGraph.from_graph(graph, PartitionBook.from_assignment(np.zeros(20, np.int64), 1), 0)
    demand = demand_of(view, 0, (2,), 1)
    assert demand.indices.ctypes.data == view.indices.data_ptr()
    assert demand.indptr.ctypes.data == view.indptr.data_ptr()
    assert torch.equal(torch.from_numpy(demand.seeds), view.train_ids)
