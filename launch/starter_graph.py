"""A recipe for a graph of a user's own: how its files are laid out, and settings by what is in them.

The format goes by the file, as in `windrow.gnn.readers.read`. Of an edge list and the vertex file beside it, the mark
between columns, header and columns are told by the rows. Then the graph is read as ``windrow partition`` reads it, so
that whatever it would refuse is refused at once, and settings go by what came out.
"""

import gzip
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.numpy_files import load_arrays
from windrow.gnn.graph import Graph
from windrow.gnn.readers.options import EdgeListOptions, GraphOptions
from windrow.gnn.readers.read import read_graph
from windrow.gnn.vertex_data import SplitOptions
from windrow.launch.starter_recipe import RecipeText, Starter, relative_to_recipe

__all__ = ["graph_recipe"]

SOURCES = (
    "src", "source", "from", "u", "head", "start", "source_id", "src_id", "from_id", "node1", "node_1",
    "id1", "id_1",
)  # fmt: skip
DESTINATIONS = (
    "dst", "dest", "destination", "target", "to", "v", "tail", "end", "destination_id", "target_id", "dst_id", "to_id",
    "node2", "node_2", "id2", "id_2",
)  # fmt: skip
"""Names of the columns of an edge."""
VERTEX_IDS = ("id", "node", "node_id", "nodeid", "vertex", "vertex_id", "new_id", "name", "uid", "user_id", "key")
LABELS = ("label", "class", "y", "target", "category", "group", "labels", "community", "ml_target")
SPLIT_COLUMNS = ("split", "set", "fold", "subset", "partition", "mask")
SPLIT_VALUES = {"train", "validation", "valid", "val", "test", ""}

OTHER_ENDINGS = (".npz", ".graph", ".metis", ".dgl", ".bin", ".pt", ".pth", ".pkl", ".pickle")
"""Of files that are no edge lists; `windrow.gnn.readers.read` reads or refuses them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    """The first rows of a CSV or Parquet file.

    Attributes:
        path: of it.
        columns: by name, ``pyarrow.ChunkedArray``.
        delimiter: empty for Parquet.
        has_header: True for Parquet.
        skip_rows: lines of comment before.
    """

    path: Path
    columns: Mapping[str, Any]
    delimiter: str = ""
    has_header: bool = True
    skip_rows: int = 0

    def listed(self) -> str:
        return ", ".join(f"{name} ({_kind(values)})" for name, values in self.columns.items())

    def named(self, names: Sequence[str]) -> str:
        return next((column for name in names for column in self.columns if column.strip().lower() == name), "")


def graph_recipe(path: Path, out: Path, *, vertices: Path | None = None, labels: Sequence[str] = ()) -> Starter:
    """Look at a graph and write a recipe for it.

    Args:
        path: file, or folder of an OGB data set.
        out: file that the recipe will stand in; it is not written.
        vertices: file of features, labels and splits beside an edge list.
        labels: columns of labels in it; none: found by name.

    Raises:
        DataError: the files cannot be understood; the message lists what was found and names the option that helps.
        RecipeError: an option is for another format.
    """
    ending = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; correct the path")
    options: dict[str, Any] = {}
    if path.is_dir():
        options = _ogb(path)
    elif ending not in OTHER_ENDINGS:
        options = _edge_list(path, vertices, labels)
    elif ending == ".npz":
        edges = load_arrays(path).get("edges", np.zeros(0))
        options = {"first_vertex_id": 1} if edges.size and edges.min() == 1 else {}
    if (vertices is not None or labels) and "edge_list" not in options:
        raise RecipeError(
            f"--vertices and --label are for edge lists in CSV or Parquet, and {path} is none: leave them out, "
            "labels are read from it"
        )
    chosen = GraphOptions(path=str(path.absolute()), random_split=SplitOptions(kind="fractions"), **options)
    graph = read_graph(chosen)
    return _write(path, out, chosen, graph)


def _ogb(folder: Path) -> dict[str, Any]:
    splits = folder / "split"
    names = sorted(entry.name for entry in splits.iterdir() if entry.is_dir()) if splits.is_dir() else []
    return {"split_name": names[0]} if len(names) > 1 else {}


def _edge_list(path: Path, vertices: Path | None, labels: Sequence[str]) -> dict[str, Any]:
    """Options of an edge list and the vertex file beside it."""
    edges = _read_table(path, whole=False)
    if len(edges.columns) < 2:
        raise DataError(
            f"{path}: an edge needs two columns, but there is only {edges.listed()}; put commas or tabs between them"
        )
    names = list(edges.columns)
    source = edges.named(SOURCES) or names[0]
    destination = edges.named(DESTINATIONS) or next(name for name in names if name != source)
    kinds = {_kind(edges.columns[name]) for name in (source, destination)}
    if not kinds <= {"whole numbers", "text"}:
        raise DataError(
            f"{path}: columns {source!r} and {destination!r} would be the ends of the edges, but are "
            f"{' and '.join(sorted(kinds))}: vertices are known by whole numbers or names. Columns: {edges.listed()}. "
            "Call the right ones source and destination"
        )
    layout: dict[str, Any] = {"source_column": source, "destination_column": destination, "skip_rows": edges.skip_rows}
    if vertices is None:
        if labels:
            raise RecipeError(f"--label {labels[0]}: labels are a column of the vertex file; name it by --vertices")
        layout["ids"] = "names" if "text" in kinds else "rows" if _begins_at_zero(edges, layout) else "integers"
        tables = [edges]
    else:
        table = _read_table(vertices, whole=True)
        layout |= _vertex_columns(table, labels, edges.columns[source])
        layout |= {"vertex_file": str(vertices.absolute())}
        tables = [edges, table]
    layout |= _common_style(tables)
    return {"format": "edge-list", "edge_list": EdgeListOptions(**layout)}


def _begins_at_zero(edges: _Table, layout: Mapping[str, Any]) -> bool:
    ends = (edges.columns[layout[name]].to_numpy() for name in ("source_column", "destination_column"))
    return min(int(end.min()) for end in ends) == 0


def _common_style(tables: Sequence[_Table]) -> dict[str, Any]:
    """Mark and header, which one option says for both files."""
    texts = [table for table in tables if table.delimiter]
    style: dict[str, Any] = {}
    usual = all(table.delimiter == ("\t" if ".tsv" in table.path.suffixes else ",") for table in texts)
    for name, values in (
        ("delimiter", {table.delimiter for table in texts}),
        ("has_header", {table.has_header for table in texts}),
    ):
        if len(values) > 1 and not (name == "delimiter" and usual):
            files = " and ".join(str(table.path) for table in texts)
            raise DataError(
                f"{files} differ in {name}, {' and '.join(map(repr, values))}: write both in the same way, for example "
                "as CSV with a header"
            )
        if values and not (name == "delimiter" and usual):
            style[name] = values.pop()
    return style


def _vertex_columns(table: _Table, given: Sequence[str], ends: Any) -> dict[str, Any]:
    """What the columns of a vertex file are: options of the edge list."""
    for name in given:
        if name not in table.columns:
            raise DataError(f"--label {name}: {table.path} has no such column. Columns: {table.listed()}")
    ids, identity = _vertex_ids(table, given, ends)
    split = next((name for name in table.columns if _is_split(name, table.columns[name])), "")
    rest = [name for name in table.columns if name not in (identity, split)]
    labels = tuple(given) or _label_columns(table, rest)
    for name in labels:
        if _kind(table.columns[name]) not in ("whole numbers", "numbers"):
            raise DataError(
                f"{table.path}: label {name!r} is {_kind(table.columns[name])}: number the classes 0, 1, 2, ..., or "
                f"name another column by --label. Columns: {table.listed()}"
            )
    features = tuple(name for name in rest if name not in labels and _is_feature(table, name))
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


def _is_split(name: str, values: Any) -> bool:
    return (
        name.strip().lower() in SPLIT_COLUMNS
        and _kind(values) == "text"
        and set(values.fill_null("").unique().to_pylist()) <= SPLIT_VALUES
    )


def _is_feature(table: _Table, name: str) -> bool:
    """Whether a column is numbers; truth values are in Parquet, where the reader takes them for numbers."""
    values = table.columns[name]
    kinds = ("whole numbers", "numbers") if table.delimiter else ("whole numbers", "numbers", "true and false")
    return _kind(values) in kinds and not values.null_count


def _label_columns(table: _Table, rest: Sequence[str]) -> tuple[str, ...]:
    named = next((column for name in LABELS for column in rest if column.strip().lower() == name), "")
    if named:
        return (named,)
    several = tuple(
        name
        for name in rest
        if re.fullmatch(r"(label|class|y|target)_?\d+", name.strip(), re.IGNORECASE)
        and set(table.columns[name].unique().to_pylist()) <= {0, 1}
    )
    if not several:
        raise DataError(
            f"{table.path}: no column has the name of a label ({', '.join(LABELS[:4])}, ...). Name it by --label, or "
            f"several columns of 0 and 1. Columns: {table.listed()}"
        )
    return several


def _kind(values: Any) -> str:
    from pyarrow import types

    if types.is_boolean(values.type):
        return "true and false"
    if types.is_integer(values.type):
        return "whole numbers"
    if types.is_floating(values.type):
        return "numbers"
    return "text" if types.is_string(values.type) or types.is_large_string(values.type) else str(values.type)


SAMPLE_BYTES = 4 << 20
"""Of an edge list, as text; its first rows say what its columns are."""
SAMPLE_ROWS = 1 << 17


def _read_table(path: Path, *, whole: bool) -> _Table:
    """Read a table, or its first rows."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        if path.suffix in (".parquet", ".pq"):
            with parquet.ParquetFile(path) as file:
                table = file.read() if whole else pa.Table.from_batches([next(file.iter_batches(SAMPLE_ROWS))])
            return _Table(path=path, columns=_by_name(table))
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            data = stream.read() if whole else stream.read(SAMPLE_BYTES)
    except (OSError, EOFError, StopIteration, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: no table that can be read ({error}); correct the path, or write it again") from error
    if not whole and len(data) == SAMPLE_BYTES:
        data = data[: data.rfind(b"\n") + 1]
    lines = data[: 1 << 16].decode("utf-8-sig", errors="replace").splitlines()[:50]
    skip = next((number for number, line in enumerate(lines) if not line.startswith(("#", "%"))), len(lines))
    if skip == len(lines):
        raise DataError(f"{path}: there are no rows")
    delimiter = _delimiter(lines[skip:])
    has_header = _has_header([line.split(delimiter) for line in lines[skip:]])
    try:
        table = csv.read_csv(
            pa.BufferReader(data),
            read_options=csv.ReadOptions(skip_rows=skip, autogenerate_column_names=not has_header),
            parse_options=csv.ParseOptions(delimiter=delimiter),
            convert_options=csv.ConvertOptions(null_values=[""], strings_can_be_null=True),
        )
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{path}: not understood as columns with {delimiter!r} between them ({error}): correct the row"
        ) from error
    return _Table(path=path, columns=_by_name(table), delimiter=delimiter, has_header=has_header, skip_rows=skip)


def _by_name(table: Any) -> dict[str, Any]:
    return dict(zip(table.column_names, table.columns, strict=True))


def _delimiter(lines: Sequence[str]) -> str:
    """The mark that cuts all lines into as many fields, two or more; where none does, a comma."""
    lines = lines[:-1] if len(lines) > 2 else lines
    for mark in "\t,;| ":
        fields = {line.count(mark) for line in lines if line}
        if len(fields) == 1 and fields != {0}:
            return mark
    return ","


def _has_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns: a usual name, text above numbers, or text that never comes again."""
    first, rest = rows[0], rows[1:]
    usual = {*SOURCES, *DESTINATIONS, *VERTEX_IDS, *LABELS}
    if any(_is_number(field) for field in first):
        return False
    if any(field.strip().strip('"').lower() in usual for field in first) or not rest:
        return True
    if any(_is_number(field) for field in rest[0]):
        return True
    return not {*first} & {field for row in rest for field in row}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _has_split(options: GraphOptions) -> bool:
    """Whether the files say which vertices train."""
    path = Path(options.path)
    if path.is_dir():
        return (path / "split").is_dir()
    if path.suffix == ".npz":
        return bool({"train", "train_masks"} & set(load_arrays(path)))
    return bool(options.edge_list.split_column)


def _write(path: Path, out: Path, options: GraphOptions, graph: Graph) -> Starter:
    trainable = graph.features is not None and graph.labels is not None
    text = RecipeText()
    about = f"{graph.num_vertices:,} vertices, {graph.num_edges:,} edges, counted in both directions"
    commands = [f"windrow partition {out} --parts 2"]
    if trainable:
        commands.append(f"mpirun -n 2 windrow train {out}")
    text.comment(f"{path.name}: {about},", "as windrow init found them.", "", *(f"  {line}" for line in commands), "")
    text.value("store", f"stores/{out.stem}", "folder that windrow partition writes, from this file's folder")
    _write_graph(text, path, out, options, graph)
    text.section("partition", "How it is split among the ranks.")
    text.value("num_parts", 2, "one for each rank that trains; --parts changes it")
    if find_spec("dgl") is None:
        text.value("method", "fennel", "metis, the default, cuts fewer edges and needs DGL, which is not installed")
    else:
        text.alternative("method", "fennel", "instead of metis: for graphs that it cannot hold")
    lines = [about]
    if graph.features is None:
        lines.append("no features")
    else:
        lines.append(f"{graph.features.shape[1]:,} features")
    if graph.labels is None:
        lines.append("no labels")
    else:
        lines.append(f"task: {_task(graph)}")
        sizes = ", ".join(f"{len(ids):,} {name}" for name, ids in _splits(graph))
        lines.append(f"split: {sizes} ({'as the files say' if _has_split(options) else 'drawn at random'})")
    if trainable:
        _write_learning(text, graph)
    else:
        lines.append("to train it needs features and labels: an edge list has them in a file given by --vertices")
    return Starter(text=str(text), understood=tuple(lines), commands=tuple(commands))


def _task(graph: Graph) -> str:
    return f"{graph.task}, {graph.num_classes} classes"


def _splits(graph: Graph) -> list[tuple[str, Any]]:
    return [("train", graph.train_ids), ("validation", graph.validation_ids), ("test", graph.test_ids)]


def _write_graph(text: RecipeText, path: Path, out: Path, options: GraphOptions, graph: Graph) -> None:
    text.section("graph", "Which graph, and what to make of it.")
    text.value("path", relative_to_recipe(path, out))
    if options.format != "auto":
        text.value("format", options.format)
    if options.split_name:
        text.value("split_name", options.split_name, "a folder of the data set's splits")
    if options.first_vertex_id:
        text.value("first_vertex_id", options.first_vertex_id, "edges count vertices from it")
    text.value("symmetrise", value=True, why="false where the direction of edges matters")
    if graph.features is not None:
        how, why = _standardise(graph)
        text.value("standardise", how, why)
    if graph.labels is not None:
        if _has_few_labels(graph):
            text.alternative("self_loops", "add", "for model.kind = gcn: a vertex hears itself too")
        text.alternative("task", graph.task, "as read off the labels: binary, single-label or multi-label")
        if not _has_split(options):
            text.section("graph.random_split", "Which vertices train, validate and are measured at the end.")
            for name, value in (("kind", "fractions"), ("train_fraction", 0.5), ("validation_fraction", 0.25)):
                text.value(name, value, "of the labelled vertices" if name == "train_fraction" else "")
    if options.format == "edge-list":
        _write_edge_list(text, out, options.edge_list)


def _write_edge_list(text: RecipeText, out: Path, options: EdgeListOptions) -> None:
    """What differs from the defaults."""
    text.section("graph.edge_list", "Columns of the edge list and of the vertex file.")
    default = EdgeListOptions()
    for name in EdgeListOptions.__dataclass_fields__:
        value = getattr(options, name)
        if name == "vertex_file" and value:
            value = relative_to_recipe(Path(value), out)
        if value != getattr(default, name):
            text.value(name, value)


def _standardise(graph: Graph) -> tuple[str, str]:
    assert graph.features is not None
    sample = graph.features[:: max(1, graph.num_vertices // 4096)]
    if sample.shape[1] >= 100 and bool((sample >= 0).all()) and float((sample == 0).float().mean()) >= 0.8:
        return "rows", "bags of words: each row adds up to 1; none, or standard: mean 0 and deviation 1"
    return "standard", "each column to mean 0 and deviation 1; none: as they are; rows: each row adds up to 1"


def _write_learning(text: RecipeText, graph: Graph) -> None:
    settings = _settings(graph)
    labelled = f"{len(graph.train_ids):,} training vertices"
    text.section("model", "The network.")
    text.value("kind", "graphsage", "gat, gin")
    text.alternative("kind", "gcn", "where neighbours are mostly alike, as papers that cite each other")
    text.value("hidden", 64, "columns of its layers")
    text.value("num_layers", settings.hops, "hops; one fanout for each")
    text.value("dropout", settings.dropout, "more against learning by heart")
    if settings.residual:
        text.value("normalise", "layer")
        text.value("residual", value=True, why="layers add to what is there, so that there can be many")
    text.section("sampler", "How minibatches are made.")
    text.value("fanouts", [FANOUT] * settings.hops, "neighbours at each hop; -1: all of them")
    text.alternative("fanouts", [FANOUT] * (settings.hops + 1), "another hop; then num_layers is one more too")
    text.section("training", "How weights are learnt.")
    text.value("epochs", settings.epochs, "at most: [evaluation] ends it before")
    text.value("batch_size", settings.batch_size, f"over all ranks, of {labelled}")
    text.value("learning_rate", settings.learning_rate, "with a larger batch_size try more")
    if settings.weight_decay:
        text.value("weight_decay", settings.weight_decay, "against learning by heart; 0.0 for many labels")
    text.section("evaluation", "When it is measured, and when it ends.")
    text.value(
        "patience_epochs", settings.patience_epochs, "end after so many epochs without a better validation; 0: never"
    )
    if graph.task == "single-label":
        text.alternative("metric", "macro_f1", "instead of accuracy: rare classes count as much as others")


FANOUT = 10
FEW_LABELS = 0.1
"""Share of the vertices that train, below which larger networks learn the labels by heart."""


def _has_few_labels(graph: Graph) -> bool:
    return len(graph.train_ids) < FEW_LABELS * graph.num_vertices


@dataclass(frozen=True, kw_only=True, slots=True)
class _Settings:
    """What depends on the number of training vertices: see the recipe's comments for the meaning."""

    hops: int
    residual: bool
    dropout: float
    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    patience_epochs: int


def _settings(graph: Graph) -> _Settings:
    """Settings for a graph.

    Test figures of one seed, best epoch of validation, fanouts of 10 and 64 columns. With few labels, 2 hops
    (accuracy)::

                                             cora    citeseer   amazon computers, 20 a class
        defaults of the options              .772    -          -
        residual, weight decay .05           .759    .614       .160
        plain, weight decay .05              .794    .682       .805
        the same as gcn, with self-loops     .788    .692       .723

    With many, residual, after 25 to 30 epochs (ROC-AUC)::

                                             tolokers   minesweeper
        defaults of the options              -          .911
        2 hops, 512 vertices a step          .819       .902
        3 hops, 512                          .822       .912
        3 hops, 256                          -          .918
    """
    num_train = len(graph.train_ids)
    # About 16 steps an epoch.
    batch_size = int(np.clip(1 << max(num_train // 16, 1).bit_length(), 128, 1024))
    if _has_few_labels(graph):
        return _Settings(
            hops=2,
            residual=False,
            dropout=0.5,
            epochs=150,
            batch_size=batch_size,
            learning_rate=0.01,
            weight_decay=0.05,
            patience_epochs=20,
        )
    return _Settings(
        hops=3,
        residual=True,
        dropout=0.2,
        epochs=100,
        batch_size=batch_size,
        learning_rate=0.005,
        weight_decay=0.0,
        patience_epochs=15,
    )
