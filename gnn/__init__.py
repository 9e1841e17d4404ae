"""Graph neural networks: the graph, its minibatches, the models, and training and measuring on partitioned features.

What a program of one's own needs is here; the modules hold the rest.
"""

from windrow.gnn.build import VertexRows, assemble_graph, assemble_typed_graph
from windrow.gnn.evaluation import EvaluationOptions, Evaluator
from windrow.gnn.full_graph import FullGraphOptions, FullGraphTask
from windrow.gnn.graph import Graph
from windrow.gnn.inference import gather_predictions, infer_exactly
from windrow.gnn.link_task import FullGraphLinkTask, LinkTask
from windrow.gnn.links import Links, split_links
from windrow.gnn.models import GNN, LightGCN, ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph, open_store, partition
from windrow.gnn.pipeline import PipelineOptions
from windrow.gnn.readers.libraries import from_dgl, from_pyg
from windrow.gnn.sampler import NeighborSampler, SamplerOptions
from windrow.gnn.task import NodeTask, TrainingOptions
from windrow.gnn.types import GraphTypes
from windrow.gnn.vertex_data import SplitOptions, VertexSplit

__all__ = [
    "GNN",
    "EvaluationOptions",
    "Evaluator",
    "FullGraphLinkTask",
    "FullGraphOptions",
    "FullGraphTask",
    "Graph",
    "GraphTypes",
    "LightGCN",
    "LinkTask",
    "Links",
    "ModelOptions",
    "NeighborSampler",
    "NodeTask",
    "PartitionedGraph",
    "PipelineOptions",
    "SamplerOptions",
    "SplitOptions",
    "TrainingOptions",
    "VertexRows",
    "VertexSplit",
    "assemble_graph",
    "assemble_typed_graph",
    "build_model",
    "from_dgl",
    "from_pyg",
    "gather_predictions",
    "infer_exactly",
    "open_store",
    "partition",
    "split_links",
]
