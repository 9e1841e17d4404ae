"""Graphs from files and from other libraries' objects, each validated before it is returned."""

from windrow.gnn.readers.edge_list import read_edge_list_and_names
from windrow.gnn.readers.libraries import from_dgl, from_pyg
from windrow.gnn.readers.options import EdgeListOptions, GraphOptions
from windrow.gnn.readers.read import read_graph

__all__ = ["EdgeListOptions", "GraphOptions", "from_dgl", "from_pyg", "read_edge_list_and_names", "read_graph"]
