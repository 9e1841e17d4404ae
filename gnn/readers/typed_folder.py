"""Graphs with types of vertices and edges, as folders of CSV or Parquet files.

::

    vertices/paper.parquet                    one row per vertex: features, label and split, as in the vertex file of an
    vertices/author.csv                       edge list (`windrow.gnn.readers.edge_list`)
    edges/author__writes__paper.parquet       one row per edge, its ends in the first two columns

The options are those of edge lists, for all files alike; those of label and split concern the file that has such
columns, and `skip_rows` files of edges. All other columns of a vertex file are features, so they must be numbers. A
type whose vertices have nothing needs no file where ids are row numbers: it has as many as edges name.
"""

from dataclasses import replace
from pathlib import Path

from windrow.comm.errors import DataError, RecipeError
from windrow.gnn.build import VertexRows, assemble_typed_graph
from windrow.gnn.graph import Graph
from windrow.gnn.readers.edge_list import read_edges, read_vertex_table
from windrow.gnn.readers.options import TABLE_ENDINGS, EdgeListOptions, GraphOptions
from windrow.gnn.readers.table_files import TableFile
from windrow.gnn.types import EdgeType

__all__ = ["columns_of_type", "is_typed_folder", "read_typed_folder", "vertex_files"]


def is_typed_folder(path: Path) -> bool:
    """Whether a folder looks like one of these."""
    return (path / "edges").is_dir()


def read_typed_folder(options: GraphOptions) -> Graph:
    """Read a folder; see the module, and `windrow.gnn.build.assemble_typed_graph` for the graph."""
    folder, columns = Path(options.path), options.edge_list
    for name in ("vertex_file", "feature_columns", "weight_column", "edge_feature_columns"):
        if given := getattr(columns, name):
            raise RecipeError(
                f'graph.edge_list.{name} = {given!r} with graph.format = "typed", where each type of vertices has a '
                "file, whose columns without another use are its features, and edges have types alone: leave it out"
            )
    edge_files = {_edge_type(name, path): path for name, path in _files(folder / "edges").items()}
    if not edge_files:
        raise DataError(
            f"{folder / 'edges'}: there are no files of edges; write SOURCE__NAME__DESTINATION with one of the endings "
            f"{', '.join(TABLE_ENDINGS)}"
        )
    chosen = {name: _columns(columns, path) for name, path in vertex_files(folder).items()}
    for wanted, option in ((columns.label_columns, "label_columns"), (columns.split_column, "split_column")):
        if wanted and not any(getattr(own, option) for own in chosen.values()):
            raise DataError(f"{folder / 'vertices'}: no file has a column of graph.edge_list.{option} = {wanted!r}")
    tables = {name: read_vertex_table(own) for name, own in chosen.items()}
    unknown = sorted({end for edge in edge_files for end in edge[::2]} - tables.keys())
    if unknown and columns.ids != "rows":
        raise DataError(
            f"{folder}: there is no file vertices/{unknown[0]} with one of the endings {', '.join(TABLE_ENDINGS)}, "
            f'which says what the vertices of that type are called (ids = "{columns.ids}"); add it'
        )
    edges = {
        edge: read_edges(path, columns, (tables.get(edge[0]), tables.get(edge[2]))) for edge, path in edge_files.items()
    }
    vertices = {name: VertexRows(table.num_vertices, **table.data) for name, table in tables.items()}
    for name in unknown:
        ends = [found[place] for edge, found in edges.items() for place in (0, 1) if edge[2 * place] == name]
        vertices[name] = VertexRows(1 + max(int(ids.max(initial=-1)) for ids in ends))
    return assemble_typed_graph(
        dict(sorted(vertices.items())),
        {edge: (found.sources, found.destinations) for edge, found in edges.items()},
        describe_edge=lambda edge, place: f"{edge_files[edge]}, row {place + 1}",
        **options.assembly,
    )


def vertex_files(folder: Path) -> dict[str, Path]:
    """The vertex file of each type that has one."""
    return _files(folder / "vertices")


def columns_of_type(folder: Path, columns: EdgeListOptions, vertex_type: str) -> EdgeListOptions:
    """The options by which the vertex file of a type is read, also where it is gone."""
    path = vertex_files(folder).get(vertex_type, folder / "vertices" / vertex_type)
    return replace(columns, vertex_file=str(path), label_columns=(), split_column="")


def _columns(options: EdgeListOptions, path: Path) -> EdgeListOptions:
    """The same for one vertex file: without label and split where it has none of these columns."""
    present = TableFile(path=path, delimiter=options.delimiter, has_header=options.has_header).column_names()
    return replace(
        options,
        vertex_file=str(path),
        label_columns=options.label_columns if {*options.label_columns} & {*present} else (),
        split_column=options.split_column if options.split_column in present else "",
    )


def _files(folder: Path) -> dict[str, Path]:
    """The table files of a folder by name without ending."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        ending = next((one for one in TABLE_ENDINGS if path.name.endswith(one)), None)
        if ending is None:
            continue
        name = path.name.removesuffix(ending)
        if name in found:
            raise DataError(f"{found[name]} and {path} are of the same type: leave one of them")
        found[name] = path
    return found


def _edge_type(name: str, path: Path) -> EdgeType:
    parts = name.split("__")
    if len(parts) != 3 or not all(parts):
        raise DataError(
            f"{path}: the name of a file of edges is the type of their sources, their own and that of their "
            "destinations, as in author__writes__paper.parquet; rename it"
        )
    return parts[0], parts[1], parts[2]
