"""Options of the graph readers."""

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from windrow.comm.errors import RecipeError
from windrow.comm.options import NonNegativeInt, checked_dataclass, resolved_path
from windrow.gnn.build import SelfLoops
from windrow.gnn.vertex_data import SplitOptions, Standardise, TaskOption

__all__ = ["TABLE_ENDINGS", "EdgeListOptions", "GraphFormat", "GraphOptions"]

TABLE_ENDINGS = (".parquet", ".pq", ".csv", ".tsv", ".csv.gz", ".tsv.gz")
"""Of files that are read as tables: an edge list, or a type of vertices or edges."""

GraphFormat = Literal["auto", "npz", "edge-list", "metis", "ogb", "dgl", "typed"]
"""How a graph is stored on disk; "auto" goes by the file's ending."""


@checked_dataclass
class EdgeListOptions:
    """Columns of an edge list and of the vertex file beside it (CSV or Parquet)."""

    source_column: str = ""
    """Column of the edges' sources; empty for the first column."""
    destination_column: str = ""
    """Column of the edges' destinations; empty for the second column."""
    weight_column: str = ""
    """Column of the edges' weights; empty for none."""
    edge_feature_columns: tuple[str, ...] = ()
    """Columns of features of edges; empty for none."""
    ids: Literal["rows", "integers", "names"] = "rows"
    """What the two columns hold: "rows" numbers 0 to N - 1; "integers" any whole numbers; "names" any text.
    The last two are numbered by their row in the vertex file, or without one as met reading the rows, source before
    destination."""
    vertex_file: str = ""
    """CSV or Parquet file with one row per vertex; empty for none."""
    vertex_id_column: str = ""
    """Column of the vertex file that holds the ids; empty where row i is vertex i (with `ids` "rows")."""
    feature_columns: tuple[str, ...] = ()
    """Columns of features; empty for every column of the vertex file that has no other use."""
    label_columns: tuple[str, ...] = ()
    """One column of class numbers, one column of 0 and 1 for each class of a multi-label task, or one or more of real
    numbers for regression; empty for none."""
    split_column: str = ""
    """Column that says train, validation (or valid, val), test, or nothing; empty for a random split."""
    delimiter: Annotated[str, Field(max_length=1)] = ""
    """What separates CSV columns; empty for a tab in .tsv files and a comma in others."""
    has_header: bool = True
    """Whether a CSV file's first row names the columns; without it they are named f0, f1, ..."""
    skip_rows: NonNegativeInt = 0
    """Lines before the header or first row of the edge list to pass over, such as comments."""

    def __post_init__(self) -> None:
        if self.vertex_file and self.ids != "rows" and not self.vertex_id_column:
            raise RecipeError(
                f"ids is {self.ids!r} and there is a vertex_file, so its ids are needed: set vertex_id_column."
            )

    def check_vertex_file(self) -> None:
        """Refuse columns of a vertex file where there is none: RecipeError."""
        used = [name for name in (self.vertex_id_column, *self.label_columns, self.split_column) if name]
        if not self.vertex_file and (used or self.feature_columns):
            raise RecipeError(f"columns {[*used, *self.feature_columns]} belong to a vertex file; set vertex_file.")


@checked_dataclass
class GraphOptions:
    """Which graph to read, and what to make of it."""

    path: Annotated[str, Field(min_length=1)]
    """File, or folder of a graph with types or of an OGB data set."""
    format: GraphFormat = "auto"
    """How it is stored; "auto": .npz; .csv, .tsv, .csv.gz, .parquet, .pq (edge list); .graph, .metis; .dgl, .bin;
    a folder with a folder "edges" (typed: a file for each type of vertices and edges), another folder (OGB)."""
    split: NonNegativeInt = 0
    """Which of a data set's several fixed splits to use."""
    split_name: str = ""
    """Which folder of splits of an OGB data set to use; empty for the only one."""
    split_seed: int = 0
    """Seed of the random split of a data set without fixed splits."""
    random_split: SplitOptions = field(default_factory=SplitOptions)
    """How a random split is drawn."""
    symmetrise: bool = True
    """Add the reverse of every edge: for undirected graphs, whose files list each edge once. Reverses of edges between
    vertices of two types are a type of their own, "rev_..."."""
    self_loops: SelfLoops = "keep"
    """Edges from a vertex to itself: "keep" as they come, "add" one to every vertex, or "remove"."""
    standardise: Standardise = "none"
    """Features: "none" as they are; "standard" each column to mean 0 and variance 1 over all vertices; "rows"
    each row divided by the sum of its magnitudes."""
    task: TaskOption = "auto"
    """What the labels mean; "auto" reads it off them: numbers with a fraction are regression, whole ones classes."""
    first_vertex_id: NonNegativeInt = 0
    """The id that an npz file gives its first vertex: 0, or 1 in files that count from 1."""
    edge_list: EdgeListOptions = field(default_factory=EdgeListOptions)
    """Columns of an edge list, or of the files of a graph with types."""

    def __post_init__(self) -> None:
        """Refuse columns of a vertex file where there is none: RecipeError."""
        if self.format == "edge-list" or (self.format == "auto" and self.path.endswith(TABLE_ENDINGS)):
            self.edge_list.check_vertex_file()

    @property
    def assembly(self) -> Mapping[str, Any]:
        """The keywords of `windrow.gnn.build.assemble_graph` that every format has."""
        return {
            "symmetrise": self.symmetrise,
            "self_loops": self.self_loops,
            "task": self.task,
            "random_split_options": self.random_split,
            "split_seed": self.split_seed,
        }

    def resolved(self, folder: Path) -> "GraphOptions":
        """The same options with absolute paths; relative ones start from a folder, for example that of a recipe."""
        vertex_file = self.edge_list.vertex_file
        if vertex_file:
            vertex_file = str(resolved_path(folder / vertex_file))
        return replace(
            self,
            path=str(resolved_path(folder / self.path)),
            edge_list=replace(self.edge_list, vertex_file=vertex_file),
        )
