"""Edge lists in CSV or Parquet, with an optional vertex file beside them.

::

    edges.csv           vertices.csv
    source,destination  id,age,income,class,split
    anna,bert           bert,0.3,1.5,1,train
    bert,carl           anna,0.7,0.2,0,test

Further columns of the edge list, weights among them, are passed over: no model here uses edge weights.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.gnn.assemble import assemble_graph
from windrow.gnn.graph import Graph
from windrow.gnn.readers.options import EdgeListOptions, GraphOptions
from windrow.gnn.readers.table_files import ColumnType, TableStyle, column_names, iterate_batches
from windrow.gnn.readers.vertex_names import look_up, number_names
from windrow.gnn.readers.vertex_table import VertexTable, read_vertex_table

__all__ = ["read_edge_list", "read_edge_list_and_names"]


def read_edge_list(options: GraphOptions) -> Graph:
    """Read an edge list.

    Args:
        options: `path`, `edge_list` and the options of every format.

    Returns:
        A validated graph; see `read_edge_list_and_names` for the numbering of its vertices.

    Raises:
        DataError: a file is unreadable or breaks a law; the message names the file and the row.
    """
    return read_edge_list_and_names(options)[0]


def read_edge_list_and_names(options: GraphOptions) -> tuple[Graph, npt.NDArray[np.generic]]:
    """Read an edge list, and the ids by which its files know the vertices.

    Args:
        options: `path`, `edge_list` and the options of every format.

    Returns:
        (graph, names): `names[v]` is the id of vertex v in the files, int64 [N] or, with `ids` "names", str
        [N] (dtype object).

    Raises:
        DataError: a file is unreadable or breaks a law; the message names the file and the row.

    Cost:
        The edges as 64-bit numbers (or as strings, for "names") and what `csc_from_edges` needs.
    """
    columns = options.edge_list
    table = read_vertex_table(columns) if columns.vertex_file else None
    sources, destinations, names = _read_edges(Path(options.path), columns, table)
    num_vertices = len(names)
    graph = assemble_graph(
        sources,
        destinations,
        num_vertices,
        features=None if table is None else table.features,
        labels=None if table is None else table.labels,
        split=None if table is None else table.split,
        symmetrise=options.symmetrise,
        self_loops=options.self_loops,
        task=options.task,
        random_split_options=options.random_split,
        split_seed=options.split_seed,
        describe_edge=lambda edge: f"{options.path}, row {edge + 1}",
    )
    return graph, names


def _read_edges(
    path: Path, options: EdgeListOptions, table: VertexTable | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.generic]]:
    """Return (sources, destinations, names), the first two as vertex numbers."""
    style = TableStyle(
        delimiter=options.delimiter, has_header=options.has_header, skip_rows=options.skip_rows
    )
    source, destination = _edge_columns(path, style, options)
    kind: ColumnType = "string" if options.ids == "names" else "int64"
    batches = list(iterate_batches(path, {source: kind, destination: kind}, style))
    ends = [[batch[name] for batch in batches] for name in (source, destination)]
    if table is not None and table.names is not None:
        found = [
            look_up(table.names, end, f"{path}, column {name!r}")
            for name, end in zip((source, destination), ends, strict=True)
        ]
        return found[0], found[1], table.names.to_numpy(zero_copy_only=False)
    if options.ids != "rows":
        names, sources, destinations = number_names(ends[0], ends[1], options.order)
        return sources, destinations, names.to_numpy(zero_copy_only=False)
    sources, destinations = (
        np.concatenate([np.empty(0, dtype=np.int64), *(batch.to_numpy() for batch in end)]) for end in ends
    )
    largest = max(sources.max(initial=-1), destinations.max(initial=-1))
    num_vertices = int(largest) + 1 if table is None else table.num_vertices
    return sources, destinations, np.arange(num_vertices)


def _edge_columns(path: Path, style: TableStyle, options: EdgeListOptions) -> tuple[str, str]:
    present = column_names(path, style)
    if len(present) < 2:
        raise DataError(f"{path}: the only column is {present}; an edge needs two. Is the delimiter right?")
    source = options.source_column or present[0]
    destination = options.destination_column or present[1]
    if source == destination:
        raise DataError(f"{path}: source and destination are both column {source!r}; name two columns.")
    return source, destination
