"""A recipe for a graph of a user's own: how its files are laid out, and settings by what is in them.

The format goes by the file, as in `windrow.gnn.readers.read`. Of an edge list and the vertex file beside it, the mark
between columns, header and columns are told by the rows. Then the graph is read as ``windrow partition`` reads it, so
that whatever it would refuse is refused at once, and settings go by what came out.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import numpy as np

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.numpy_files import load_arrays
from windrow.gnn.graph import Graph, Task
from windrow.gnn.readers.options import EdgeListOptions, GraphOptions
from windrow.gnn.readers.read import read_graph
from windrow.gnn.readers.table_files import TableFile
from windrow.gnn.readers.typed_folder import is_typed_folder, vertex_files
from windrow.gnn.types import edge_type_text
from windrow.gnn.vertex_data import SplitOptions
from windrow.launch.starter_recipe import (
    KINDS,
    Starter,
    column_named,
    entries,
    entry,
    first_lines,
    kind_of,
    learning,
    relative_to_recipe,
    starter,
)

__all__ = ["graph_recipe"]

SOURCES = ("src", "source", "from", "u", "head", "start", "source_id", "src_id", "from_id", "node1", "id1")
DESTINATIONS = ("dst", "dest", "destination", "target", "to", "v", "tail", "end", "target_id", "dst_id", "to_id",
                "node2", "id2")  # fmt: skip
"""Names of the columns of an edge."""
VERTEX_IDS = ("id", "node", "node_id", "vertex", "vertex_id", "name", "uid", "user_id", "key")
LABELS = ("label", "class", "y", "target", "category", "group", "labels", "community", "ml_target")
SPLIT_COLUMNS = ("split", "set", "fold", "subset", "partition", "mask")
SPLIT_VALUES = {"train", "validation", "valid", "val", "test", ""}

OTHER_ENDINGS = (".npz", ".graph", ".metis", ".dgl", ".bin", ".pt", ".pth", ".pkl", ".pickle")
"""Of files that are no edge lists; `windrow.gnn.readers.read` reads or refuses them."""

NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")


@dataclass(frozen=True, slots=True)
class _Table:
    """A CSV or Parquet file, or its first rows: columns, ``pyarrow.ChunkedArray``, by name."""

    file: TableFile
    columns: Mapping[str, Any]

    @property
    def path(self) -> Path:
        return self.file.path

    def listed(self) -> str:
        return ", ".join(f"{name} ({_kind(values)})" for name, values in self.columns.items())


def graph_recipe(path: Path, out: Path, *, vertices: Path | None = None, labels: Sequence[str] = ()) -> Starter:
    """Look at a graph and write a recipe for it.

    Args:
        path: file, or folder of a graph with types or of an OGB data set.
        out: file that the recipe will stand in; it is not written.
        vertices: file of features, labels and splits beside an edge list.
        labels: columns of labels in it, or in that of a type; none: found by name.

    Raises:
        DataError: the files cannot be understood; the message lists what was found and names the option that helps.
        RecipeError: an option is for another format.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; correct the path")
    options: dict[str, Any] = {}
    if is_typed_folder(path):
        options = {"edge_list": _typed_columns(path, labels)}
    elif path.is_dir():
        names = sorted(entry.name for entry in path.glob("split/*") if entry.is_dir())
        options = {"split_name": names[0]} if len(names) > 1 else {}
    elif path.suffix not in OTHER_ENDINGS:
        options = {"format": "edge-list", "edge_list": _edge_list(path, vertices, labels)}
    elif path.suffix == ".npz":
        edges = load_arrays(path).get("edges", np.zeros(0))
        options = {"first_vertex_id": 1} if edges.size and edges.min() == 1 else {}
    if (vertices is not None or labels) and "edge_list" not in options:
        raise RecipeError(
            f"--vertices and --label are for edge lists in CSV or Parquet, and {path} is none: leave them out, "
            "labels are read from it"
        )
    if vertices is not None and is_typed_folder(path):
        raise RecipeError(f"--vertices {vertices}: vertices of each type are in {path / 'vertices'}; leave it out")
    chosen = GraphOptions(path=str(path.absolute()), random_split=SplitOptions(kind="fractions"), **options)
    return _write(path, out, chosen, read_graph(chosen))


def _typed_columns(path: Path, labels: Sequence[str]) -> EdgeListOptions:
    """What columns the files of a graph with types have."""
    tables = [_read(file, whole=False) for file in vertex_files(path).values()]
    for name in labels:
        if not any(name in table.columns for table in tables):
            raise DataError(f"--label {name}: no file in {path / 'vertices'} has such a column")
    named = [column_named(table.columns, VERTEX_IDS) for table in tables]
    layout: dict[str, Any] = {}
    if named and named[0] and len({*named}) == 1:
        is_text = any(_kind(table.columns[named[0]]) == "text" for table in tables)
        layout = {"ids": "names" if is_text else "integers", "vertex_id_column": named[0]}
    for table in tables:
        found = labels or [one for one in [column_named(table.columns, LABELS)] if one]
        if found and found[0] in table.columns:
            split = column_named(table.columns, SPLIT_COLUMNS) or ""
            layout |= {"label_columns": tuple(found), "split_column": split}
            break
    texts = {layout.get("vertex_id_column"), layout.get("split_column")}
    for table in tables:
        for name, values in table.columns.items():
            if name not in texts and _kind(values) not in ("whole numbers", "numbers", "true and false"):
                is_label = name in layout.get("label_columns", ())
                cure = "number the classes 0, 1, 2, ..." if is_label else "make numbers of it, or leave it out"
                raise DataError(
                    f"{table.path}: column {name!r} is {_kind(values)}, but labels and features, which all columns "
                    f"without another use are, must be numbers: {cure}. Columns: {table.listed()}"
                )
    return EdgeListOptions(**layout, **_layout_of([table for table in tables if not table.file.is_parquet], path))


def _layout_of(texts: Sequence[_Table], path: Path) -> dict[str, Any]:
    """How files of text are laid out, which must be the same for all."""
    layout: dict[str, Any] = {}
    if all(table.file.delimiter == ("\t" if ".tsv" in table.path.suffixes else ",") for table in texts):
        texts = [replace(table, file=replace(table.file, delimiter="")) for table in texts]
    for name in ("delimiter", "has_header"):
        found = [getattr(table.file, name) for table in texts]
        if len(set(found)) > 1:
            raise DataError(
                f"{path}: {' and '.join(str(table.path) for table in texts)} differ in {name}, "
                f"{' and '.join(map(repr, found))}: write all in the same way, for example as CSV with a header"
            )
        layout |= dict(zip([name], found, strict=False))
    return layout


def _edge_list(path: Path, vertices: Path | None, labels: Sequence[str]) -> EdgeListOptions:
    """Options of an edge list and the vertex file beside it."""
    edges = _read(path, whole=False)
    if len(edges.columns) < 2:
        raise DataError(
            f"{path}: an edge needs two columns, but there is only {edges.listed()}; put commas or tabs between them"
        )
    names = list(edges.columns)
    source = column_named(edges.columns, SOURCES) or names[0]
    destination = column_named(edges.columns, DESTINATIONS) or next(name for name in names if name != source)
    ends = [edges.columns[name] for name in (source, destination)]
    kinds = {_kind(end) for end in ends}
    if not kinds <= {"whole numbers", "text"}:
        raise DataError(
            f"{path}: columns {source!r} and {destination!r} would be the ends of the edges, but are "
            f"{' and '.join(sorted(kinds))}: vertices are known by whole numbers or names. Columns: {edges.listed()}. "
            "Call the right ones source and destination"
        )
    layout: dict[str, Any] = {
        "source_column": source,
        "destination_column": destination,
        "skip_rows": edges.file.skip_rows,
    }
    tables = [edges]
    if vertices is not None:
        tables.append(_read(vertices, whole=True))
        layout |= {"vertex_file": str(vertices.absolute())} | _vertex_columns(tables[1], labels, ends[0])
    elif labels:
        raise RecipeError(f"--label {labels[0]}: labels are a column of the vertex file; name it by --vertices")
    else:
        from_zero = "text" not in kinds and min(int(end.to_numpy().min()) for end in ends) == 0
        layout["ids"] = "names" if "text" in kinds else "rows" if from_zero else "integers"
    layout |= _layout_of([table for table in tables if not table.file.is_parquet], path)
    return EdgeListOptions(**layout)


def _vertex_columns(table: _Table, given: Sequence[str], ends: Any) -> dict[str, Any]:
    """What the columns of a vertex file are: options of the edge list."""
    for name in given:
        if name not in table.columns:
            raise DataError(f"--label {name}: {table.path} has no such column. Columns: {table.listed()}")
    ids, identity = _vertex_ids(table, given, ends)
    split = column_named(table.columns, SPLIT_COLUMNS)
    words = table.columns[split] if split else None
    if words is None or _kind(words) != "text" or not set(words.fill_null("").unique().to_pylist()) <= SPLIT_VALUES:
        split = ""
    rest = [name for name in table.columns if name not in (identity, split)]
    labels = tuple(given) or tuple(name for name in [column_named(table.columns, LABELS)] if name in rest)
    if not labels:
        raise DataError(
            f"{table.path}: no column has the name of a label ({', '.join(LABELS[:4])}, ...). Name it by --label, or "
            f"several columns of 0 and 1 or of real numbers. Columns: {table.listed()}"
        )
    for name in labels:
        if _kind(table.columns[name]) not in ("whole numbers", "numbers"):
            raise DataError(
                f"{table.path}: label {name!r} is {_kind(table.columns[name])}: number the classes 0, 1, 2, ..., or "
                f"name another column by --label. Columns: {table.listed()}"
            )
    # Truth values are taken for numbers by the reader of Parquet alone.
    numbers = ("whole numbers", "numbers", "true and false")[: 3 if table.file.is_parquet else 2]
    features = tuple(
        name
        for name in rest
        if name not in labels and _kind(table.columns[name]) in numbers and not table.columns[name].null_count
    )
    if not features:
        raise DataError(
            f"{table.path}: no column can be a feature, a number in every row. Columns: {table.listed()}. Add one, "
            "such as each vertex's number of edges"
        )
    return {
        "ids": ids,
        "vertex_id_column": identity,
        "split_column": split,
        "label_columns": labels,
        "feature_columns": features,
    }


def _vertex_ids(table: _Table, labels: Sequence[str], ends: Any) -> tuple[str, str]:
    """What the ends of edges hold, and the column of a vertex file where each of them stands once, if any."""
    from pyarrow import compute

    is_text = _kind(ends) == "text"
    candidates = sorted(set(table.columns) - set(labels), key=lambda name: name.strip().lower() not in VERTEX_IDS)
    for name in candidates:
        values = table.columns[name]
        if _kind(values) not in ("whole numbers", "text") or len(values.unique()) < len(values):
            continue
        ids = values.cast(ends.type) if is_text else values
        if _kind(ids) == _kind(ends) and compute.all(compute.is_in(ends, value_set=ids.combine_chunks())).as_py():
            in_order = not is_text and np.array_equal(np.sort(values.to_numpy()), np.arange(len(values)))
            return "names" if is_text else "rows" if in_order else "integers", name
    rows = len(next(iter(table.columns.values())))
    if is_text or not 0 <= compute.min(ends).as_py() <= compute.max(ends).as_py() < rows:
        raise DataError(
            f"{table.path}: no column holds the vertices that the edges name, such as {ends[0].as_py()!r}, each once. "
            f"Columns: {table.listed()}. Add such a column, or the vertices that are missing"
        )
    return "rows", ""


def _kind(values: Any) -> str:
    return KINDS.get(kind := kind_of(values.type), kind)


def _read(path: Path, *, whole: bool) -> _Table:
    """Read a table, or its first rows."""
    file = _layout(path)
    return _Table(file, file.sample(whole=whole))


def _layout(path: Path) -> TableFile:
    """A table, laid out as its first lines tell."""
    if TableFile(path=path).is_parquet:
        return TableFile(path=path)
    lines = first_lines(path)[:50]
    skip = next((number for number, line in enumerate(lines) if not line.startswith(("#", "%"))), len(lines))
    if skip == len(lines):
        raise DataError(f"{path}: there are no rows")
    counts = {mark: {line.count(mark) for line in lines[skip:] if line} for mark in "\t,;| "}
    delimiter = next((mark for mark, found in counts.items() if len(found) == 1 and found != {0}), ",")
    first, *rest = ([field.strip().strip('"').lower() for field in line.split(delimiter)] for line in lines[skip:])
    # A usual name, text above numbers, or text that never comes again.
    names_columns = not any(map(NUMBER.fullmatch, first)) and (
        not {*first}.isdisjoint((*SOURCES, *DESTINATIONS, *VERTEX_IDS, *LABELS))
        or any(map(NUMBER.fullmatch, rest[0] if rest else []))
        or {*first}.isdisjoint(field for row in rest for field in row)
    )
    return TableFile(path=path, delimiter=delimiter, has_header=names_columns, skip_rows=skip)


def _write(path: Path, out: Path, options: GraphOptions, graph: Graph) -> Starter:
    about = f"{graph.num_vertices:,} vertices, {graph.num_edges:,} edges, counted in both directions"
    commands = [f"windrow partition {out} --parts 2"]
    understood = [about, "no features" if graph.features is None else f"{graph.features.shape[1]:,} features"]
    if graph.types is not None:
        kinds = [f"{name} {one.number:,} ({one.columns} features)" for name, one in graph.types.vertices.items()]
        understood = [
            about,
            "vertices: " + ", ".join(kinds),
            f"edges: {', '.join(map(edge_type_text, graph.types.edges))}",
        ]
    if graph.labels is None:
        understood.append("no labels")
    else:
        splits = {"train": graph.train_ids, "validation": graph.validation_ids, "test": graph.test_ids}
        unit = f"value{'s' * (graph.num_classes > 1)}" if graph.task == "regression" else "classes"
        understood.append(f"task: {graph.task}, {graph.num_classes} {unit}")
        understood.append("split: " + ", ".join(f"{len(ids):,} {name}" for name, ids in splits.items()))
    sections = [
        entry("store", f"stores/{out.stem}", "folder that windrow partition writes, from this file's folder"),
        *_graph(path, out, options, graph),
        "# How it is split among the ranks.\n[partition]\n"
        + entry("num_parts", 2, "one for each rank that trains; --parts changes it"),
    ]
    if not find_spec("dgl"):
        why = "metis, the default, cuts fewer edges and needs DGL, which is not installed"
        sections[-1] += entry("method", "fennel", why)
    if graph.labels is not None:
        commands.append(f"mpirun -n 2 windrow train {out}")
        sections += _learning(graph)
    else:
        where = "a file given by --vertices" if graph.types is None else "the vertex file of a type, named by --label"
        understood.append(f"to train it needs labels: an edge list has them in {where}")
    return starter(path.name, about, understood, commands, *sections)


def _graph(path: Path, out: Path, options: GraphOptions, graph: Graph) -> list[str]:
    """The section [graph] and those inside it."""
    text = "# Which graph, and what to make of it.\n[graph]\n" + entry("path", relative_to_recipe(path, out))
    default = asdict(GraphOptions(path=str(path)))
    chosen = {name: getattr(options, name) for name in ("format", "split_name", "first_vertex_id")}
    text += entries({name: value for name, value in chosen.items() if value != default[name]})
    text += entry("symmetrise", value=True, why="false where the direction of edges matters")
    sections = []
    if graph.features is not None:
        text += entry("standardise", *_standardise(graph))
    if graph.labels is not None:
        text += f'# task = "{graph.task}"  # as read off the labels: {", ".join(get_args(Task))}\n'
        if _has_few_labels(graph) and graph.types is None:
            text += '# self_loops = "add"  # for model.kind = gcn: a vertex hears itself too\n'
        sections.append(RANDOM_SPLIT)
    if options.edge_list != EdgeListOptions():
        found = asdict(options.edge_list)
        if options.edge_list.vertex_file:
            found["vertex_file"] = relative_to_recipe(Path(options.edge_list.vertex_file), out)
        columns = {name: value for name, value in found.items() if value != default["edge_list"][name]}
        files = "the edge list and of the vertex file" if graph.types is None else "the files of vertices and edges"
        sections.append(f"# Columns of {files}.\n[graph.edge_list]\n{entries(columns)}")
    return [text, *sections]


RANDOM_SPLIT = """\
# Which labelled vertices train, validate and are measured at the end, where the files do not say it.
[graph.random_split]
kind = "fractions"
train_fraction = 0.5
validation_fraction = 0.25
"""


def _standardise(graph: Graph) -> tuple[str, str]:
    assert graph.features is not None
    sample = graph.features[:: max(1, graph.num_vertices // 4096)]
    if sample.shape[1] >= 100 and bool((sample >= 0).all()) and float((sample == 0).float().mean()) >= 0.8:
        return "rows", "bags of words: each row adds up to 1; none, or standard: mean 0 and deviation 1"
    return "standard", "each column to mean 0 and deviation 1; none: as they are; rows: each row adds up to 1"


def _learning(graph: Graph) -> list[str]:
    """The sections on how weights are learnt."""
    num_train, few = len(graph.train_ids), _has_few_labels(graph)
    trained = learning(
        f"of {num_train:,} training vertices",
        epochs=150 if few else 100,
        # About 16 steps an epoch.
        batch_size=int(np.clip(1 << max(num_train // 16, 1).bit_length(), 128, 1024)),
        rate=0.01 if few else 0.005,
        patience=20 if few else 15,
        more=entry("weight_decay", 0.05, "against learning by heart; 0.0 for many labels") if few else "",
    )
    if graph.task == "single-label":
        trained += '# metric = "macro_f1"  # instead of accuracy: rare classes count as much as others\n'
    if graph.task == "regression":
        trained += '# metric = "mae"  # instead of rmse, or r2\n'
    network = TYPED if graph.types is not None else FEW if few else MANY
    return [network if graph.features is not None else network.replace(SAMPLER, EMBEDDING + SAMPLER), trained]


FEW_LABELS = 0.1
"""Share of the vertices that train, below which larger networks learn the labels by heart."""


def _has_few_labels(graph: Graph) -> bool:
    return len(graph.train_ids) < FEW_LABELS * graph.num_vertices


# Test figures of one seed, against the defaults of the options. Few labels: accuracy on cora .794 (.772); residual
# layers give .759 there and .160 on amazon computers, where these give .805. Many: ROC-AUC on minesweeper .918 (.911).
FEW = """\
# The network.
[model]
kind = "graphsage"  # gat, gin; gcn where neighbours are mostly alike, as papers that cite each other
hidden = 64  # columns of its layers
num_layers = 2  # hops; one fanout for each
dropout = 0.5  # more against learning by heart

# How minibatches are made.
[sampler]
fanouts = [10, 10]  # neighbours at each hop; -1: all of them
"""
TYPED = """\
# The network: weights for each type of vertices and edges.
[model]
kind = "rgcn"  # rgat: neighbours of a type count by attention
hidden = 64  # columns of its layers
num_layers = 2  # hops; one fanout for each
dropout = 0.3  # more against learning by heart

# How minibatches are made.
[sampler]
fanouts = [10, 10]  # neighbours of each type of edges at each hop; -1: all of them
"""
SAMPLER = "\n# How minibatches are made.\n"
EMBEDDING = """\
embedding = true  # vertices have no features: each learns a row of its own

# These rows.
[tables]
dim = 64  # columns
learning_rate = 0.05  # of Adagrad with one accumulator for each row
initial_scale = 0.1  # first values are between -0.1 and 0.1
"""
MANY = (
    FEW.replace("dropout = 0.5", "dropout = 0.2")
    .replace("[10, 10]", "[10, 10, 10]")
    .replace(
        "num_layers = 2  # hops; one fanout for each\n",
        "num_layers = 3  # hops; one fanout for each\n"
        'normalise = "layer"\nresidual = true  # layers add to what is there, so that there can be many\n',
    )
)
