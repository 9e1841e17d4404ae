"""Graph neural networks: the graph, its minibatches, the models, and training and measuring on partitioned features.

What a program of one's own needs is here; the modules hold the rest.
"""

from windrow.gnn.build import assemble_graph
from windrow.gnn.evaluation import EvaluationOptions, Evaluator
from windrow.gnn.full_graph import FullGraphOptions, FullGraphTask
from windrow.gnn.graph import Graph
from windrow.gnn.inference import gather_predictions, infer_exactly
from windrow.gnn.link_task import Links, LinkTask, split_links
from windrow.gnn.models import GNN, ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph, open_store, partition
from windrow.gnn.readers.libraries import from_dgl, from_pyg
from windrow.gnn.sampler import NeighborSampler, SamplerOptions
from windrow.gnn.task import NodeTask, TrainingOptions
from windrow.gnn.vertex_data import SplitOptions, VertexSplit

__all__ = [
    "GNN",
    "EvaluationOptions",
    "Evaluator",
    "FullGraphOptions",
    "FullGraphTask",
    "Graph",
    "LinkTask",
    "Links",
    "ModelOptions",
    "NeighborSampler",
    "NodeTask",
    "PartitionedGraph",
    "SamplerOptions",
    "SplitOptions",
    "TrainingOptions",
    "VertexSplit",
    "assemble_graph",
    "build_model",
    "from_dgl",
    "from_pyg",
    "gather_predictions",
    "infer_exactly",
    "open_store",
    "partition",
    "split_links",
]
