"""From edges and raw vertex data, as files hold them, to a validated graph: the way in for every reader.

Edges come as a list and are stored by destination (CSC).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError, RecipeError
from windrow.gnn.graph import Graph, Task, describe_numbering, first_outside
from windrow.gnn.types import EdgeType, GraphTypes, VertexType, edge_type_text
from windrow.gnn.vertex_data import SplitOptions, TaskOption, VertexSplit, float_features, prepare_labels, random_split

__all__ = [
    "SelfLoops",
    "VertexRows",
    "assemble_graph",
    "assemble_typed_graph",
    "check_edges",
    "check_number",
    "check_self_loops",
    "csc_from_edges",
    "csc_from_keys",
    "edges_of",
    "index_dtype",
    "keys_of_edges",
]

SelfLoops = Literal["keep", "add", "remove"]
"""Edges from a vertex to itself: as they come, exactly one on every vertex, or none."""

MAX_VERTICES = 3_037_000_499
"""The largest N with N * N < 2**63: an edge is sorted as the one number destination * N + source."""


def csc_from_edges(
    sources: Tensor | npt.NDArray[np.integer],
    destinations: Tensor | npt.NDArray[np.integer],
    num_vertices: int,
    *,
    symmetrise: bool,
    self_loops: SelfLoops = "keep",
    deduplicate: bool = True,
    describe_edge: Callable[[int], str] = "edge {}".format,
    edge_rows: Sequence[npt.NDArray[np.floating]] = (),
) -> tuple[Tensor, Tensor, list[npt.NDArray[np.floating]]]:
    """Group edges by destination, each vertex's sources ascending.

    Args:
        sources: integers [E]; where messages start.
        destinations: integers [E]; where they arrive.
        num_vertices: N.
        symmetrise: add the reverse of every edge that is not a self-loop; for undirected graphs listed once.
        self_loops: what happens to edges from a vertex to itself.
        deduplicate: keep one of several equal edges. Without it, an undirected edge listed in both directions
            and symmetrised counts twice each way.
        describe_edge: names edge i in an error, for example by file and row.
        edge_rows: arrays [E, ...], what is known of the edges.

    Returns:
        (indptr, indices) as in `windrow.gnn.graph.Graph`, indices int32 wherever N fits; and `edge_rows` in their
        order: a reversed edge has the row of the edge, and an added self-loop ones.

    Raises:
        DataError: an id is negative or not below N, the two lists differ in length, equal edges have different rows, or
            N is over 3,037,000,499.

    Cost:
        One sort of E (or 2 E) 64-bit numbers; peak memory about three such arrays.
    """
    sources, destinations = check_edges(sources, destinations, num_vertices, describe_edge)
    keys, numbers = keys_of_edges(
        sources, destinations, num_vertices, symmetrise=symmetrise, self_loops=self_loops, numbered=bool(edge_rows)
    )
    return csc_from_keys(
        keys, numbers, num_vertices, deduplicate=deduplicate, describe_edge=describe_edge, edge_rows=edge_rows
    )


def check_number(num_vertices: int) -> None:
    """Refuse more vertices than can be told apart in pairs: DataError."""
    if num_vertices > MAX_VERTICES:
        raise DataError(
            f"{num_vertices} vertices are too many: the limit is {MAX_VERTICES}. Where an edge list's ids are not the "
            'numbers from 0 on, set graph.edge_list.ids = "integers"; else split the graph.'
        )


def check_edges(
    sources: Tensor | npt.NDArray[np.integer],
    destinations: Tensor | npt.NDArray[np.integer],
    num_vertices: int,
    describe_edge: Callable[[int], str],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Both ends of edges as int64, each a vertex; DataError as `csc_from_edges`."""
    check_number(num_vertices)
    sources = _checked(sources, "source", num_vertices, describe_edge)
    destinations = _checked(destinations, "destination", num_vertices, describe_edge)
    if sources.size != destinations.size:
        raise DataError(f"there are {sources.size} sources but {destinations.size} destinations; each edge needs both.")
    return sources, destinations


def keys_of_edges(
    sources: npt.NDArray[np.int64],
    destinations: npt.NDArray[np.int64],
    num_vertices: int,
    *,
    symmetrise: bool,
    self_loops: SelfLoops,
    numbered: bool,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """Each edge that the graph will have as the one number destination * N + source, in no order.

    Returns:
        (keys, numbers): where `numbered`, which of the edges each comes from, -1 an added self-loop; else None.
    """
    edges = [destinations * num_vertices + sources]
    loops = sources == destinations
    if self_loops != "keep":
        edges[0] = edges[0][~loops]
    if self_loops == "add":
        edges.append(np.arange(num_vertices, dtype=np.int64) * (num_vertices + 1))
    if symmetrise:
        edges.append((sources * num_vertices + destinations)[~loops])
    numbers = None
    if numbered:
        numbers = _numbers_of_edges(loops, num_vertices, symmetrise=symmetrise, self_loops=self_loops)
    return np.concatenate(edges), numbers


def index_dtype(num_vertices: int) -> torch.dtype:
    """Of neighbour lists: int32 where every id fits."""
    return torch.int32 if num_vertices < 2**31 - 1 else torch.int64


def csc_from_keys(
    keys: npt.NDArray[np.int64],
    numbers: npt.NDArray[np.int64] | None,
    num_vertices: int,
    *,
    own: tuple[int, int] | None = None,
    deduplicate: bool = True,
    describe_edge: Callable[[int], str] = "edge {}".format,
    edge_rows: Sequence[npt.NDArray[np.floating]] = (),
) -> tuple[Tensor, Tensor, list[npt.NDArray[np.floating]]]:
    """The second half of `csc_from_edges`: keys and numbers, as `keys_of_edges` gives them, to neighbour lists.

    `own` is the range of the destinations, whose lists alone are made, indptr beginning with 0; None: all vertices. The
    keys are sorted in place where there are no `edge_rows`.
    """
    if numbers is not None:
        order = np.argsort(keys, kind="stable")
        keys, numbers = keys[order], numbers[order]
    else:
        keys.sort()
    if deduplicate and keys.size:
        is_first = np.concatenate(([True], keys[1:] != keys[:-1]))
        if numbers is not None:
            _check_repeated_rows(numbers, is_first, edge_rows, describe_edge)
            numbers = numbers[is_first]
        keys = keys[is_first]
    first, stop = own or (0, num_vertices)
    indptr = np.searchsorted(keys, np.arange(first, stop + 1, dtype=np.int64) * num_vertices)
    np.remainder(keys, max(num_vertices, 1), out=keys)
    # The last row is that of ADDED_LOOP.
    ordered = [np.concatenate([rows, np.ones_like(rows, shape=(1, *rows.shape[1:]))])[numbers] for rows in edge_rows]
    indices = torch.from_numpy(keys).to(index_dtype(num_vertices))
    return torch.from_numpy(indptr.astype(np.int64, copy=False)), indices, ordered


ADDED_LOOP = -1


def _numbers_of_edges(
    loops: npt.NDArray[np.bool_], num_vertices: int, *, symmetrise: bool, self_loops: SelfLoops
) -> npt.NDArray[np.int64]:
    """Which of the listed edges each key comes from."""
    others = np.flatnonzero(~loops)
    numbers = [np.arange(loops.size) if self_loops == "keep" else others]
    if self_loops == "add":
        numbers.append(np.full(num_vertices, ADDED_LOOP))
    if symmetrise:
        numbers.append(others)
    return np.concatenate(numbers)


def _check_repeated_rows(
    numbers: npt.NDArray[np.int64],
    is_first: npt.NDArray[np.bool_],
    edge_rows: Sequence[npt.NDArray[np.floating]],
    describe_edge: Callable[[int], str],
) -> None:
    """Refuse equal edges of which different things are known: only one could stay."""
    repeats = np.flatnonzero(~is_first)
    for rows in edge_rows:
        differ = rows[numbers[repeats]] != rows[numbers[repeats - 1]]
        differing = np.flatnonzero(differ.any(tuple(range(1, differ.ndim))))
        if differing.size:
            one, other = sorted(numbers[repeats[differing[0]] + np.array([-1, 0])].tolist())
            raise DataError(
                f"{describe_edge(one)} and {describe_edge(other)} join the same vertices, but their weights or "
                "features differ; leave one of them, or set symmetrise to false where direction matters."
            )


def check_self_loops(self_loops: SelfLoops) -> None:
    """Refuse to add some where edges have features: RecipeError."""
    if self_loops == "add":
        raise RecipeError(
            'self_loops = "add" with edge features: those of the added edges are unknown. Put the self-loops into the '
            'data, and set self_loops = "keep"'
        )


def edges_of(indptr: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """List the edges of a graph stored by destination, the inverse of `csc_from_edges`: (sources, destinations)."""
    vertices = torch.arange(indptr.numel() - 1, device=indptr.device)
    return indices, torch.repeat_interleave(vertices, indptr.diff())


def _checked(
    ids: Tensor | npt.NDArray[np.integer],
    side: str,
    num_vertices: int,
    describe_edge: Callable[[int], str],
    of: str = "the graph",
) -> npt.NDArray[np.int64]:
    array = ids.numpy() if isinstance(ids, Tensor) else np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(
            f"the list of {side}s has dtype {array.dtype} and shape {array.shape}; give one integer per edge."
        )
    array = array.astype(np.int64, copy=False)
    position = first_outside(torch.from_numpy(array), num_vertices)
    if position is not None:
        raise DataError(
            f"{describe_edge(position)}: {side} {array[position]} is not a vertex; "
            f"{describe_numbering(num_vertices, of)}. Correct the edge, or the number of vertices."
        )
    return array


def assemble_graph(
    sources: Tensor | npt.NDArray[np.integer],
    destinations: Tensor | npt.NDArray[np.integer],
    num_vertices: int,
    *,
    features: Tensor | npt.NDArray[np.generic] | None = None,
    labels: Tensor | npt.NDArray[np.generic] | None = None,
    split: VertexSplit | None = None,
    edge_weight: Tensor | npt.NDArray[np.generic] | None = None,
    edge_attr: Tensor | npt.NDArray[np.generic] | None = None,
    symmetrise: bool = True,
    self_loops: SelfLoops = "keep",
    deduplicate: bool = True,
    task: TaskOption = "auto",
    random_split_options: SplitOptions | None = None,
    split_seed: int = 0,
    describe_edge: Callable[[int], str] = "edge {}".format,
) -> Graph:
    """Build a graph and check it.

    Args:
        sources: integers [E].
        destinations: integers [E].
        num_vertices: N.
        features: numbers [N, F], or None.
        labels: see `windrow.gnn.vertex_data.prepare_labels`, or None.
        split: the data set's own split; None draws one at random where there are labels.
        edge_weight: numbers [E], or None; a reversed edge has that of the edge, and an added self-loop 1.
        edge_attr: numbers [E, D], or [E] for one feature, or None; likewise, but self-loops cannot be added.
        symmetrise: see `csc_from_edges`, also for the next two and `describe_edge`.
        self_loops: what happens to edges from a vertex to itself.
        deduplicate: keep one of several equal edges.
        task: what the labels mean.
        random_split_options: how a random split is drawn; None for the defaults.
        split_seed: seed of a random split.
        describe_edge: names edge i in an error.

    Returns:
        A graph that `Graph.validate` accepts, else DataError; where it has labels, one that can be trained on.
    """
    if edge_attr is not None:
        check_self_loops(self_loops)
    present: dict[str, Tensor] = {}
    if edge_weight is not None:
        present["edge_weight"] = float_features(edge_weight, "edge weights").squeeze(1)
    if edge_attr is not None:
        present["edge_attr"] = float_features(edge_attr, "edge features")
    for name, rows in present.items():
        if len(rows) != len(sources):
            raise DataError(f"there are {len(rows)} rows of {name} for {len(sources)} edges; give one for each.")
    indptr, indices, edge_rows = csc_from_edges(
        sources,
        destinations,
        num_vertices,
        symmetrise=symmetrise,
        self_loops=self_loops,
        deduplicate=deduplicate,
        describe_edge=describe_edge,
        edge_rows=[rows.numpy() for rows in present.values()],
    )
    edge_data: dict[str, Any] = dict(zip(present, map(torch.from_numpy, edge_rows), strict=True))
    graph = Graph(
        indptr=indptr,
        indices=indices,
        features=None if features is None else float_features(features),
        **edge_data,
        **_label_fields(labels, split, task, random_split_options, split_seed),
    )
    graph.validate(training=graph.labels is not None)
    return graph


def _label_fields(
    labels: Tensor | npt.NDArray[np.generic] | None,
    split: VertexSplit | None,
    task: TaskOption,
    options: SplitOptions | None,
    seed: int,
) -> dict[str, Any]:
    """The fields of a graph that concern labels, the split drawn where there is none."""
    known: Tensor | None = None
    meaning: Task = "single-label"
    num_classes = 0
    if labels is not None:
        known, meaning, num_classes = prepare_labels(labels, task)
        split = split or random_split(known, options or SplitOptions(), seed=seed)
    split = split or VertexSplit(*torch.empty((3, 0), dtype=torch.int64))
    return {"labels": known, "task": meaning, "num_classes": num_classes, **split._asdict()}


class VertexRows(NamedTuple):
    """The vertices of one type."""

    number: int
    """How many there are."""
    features: Tensor | npt.NDArray[np.generic] | None = None
    """Numbers [number, F], F being this type's own, or None."""
    labels: Tensor | npt.NDArray[np.generic] | None = None
    """See `windrow.gnn.vertex_data.prepare_labels`; None for all types but one."""
    split: VertexSplit | None = None
    """Of those with labels, by their numbers among this type; None draws one at random."""


Ends = tuple[Tensor | npt.NDArray[np.integer], Tensor | npt.NDArray[np.integer]]


def assemble_typed_graph(
    vertices: Mapping[str, VertexRows],
    edges: Mapping[EdgeType, Ends],
    *,
    symmetrise: bool = True,
    self_loops: SelfLoops = "keep",
    deduplicate: bool = True,
    task: TaskOption = "auto",
    random_split_options: SplitOptions | None = None,
    split_seed: int = 0,
    describe_edge: Callable[[EdgeType, int], str] = lambda edge, place: f"edge {place} of {edge_type_text(edge)}",
) -> Graph:
    """Build a graph whose vertices and edges have types, and check it.

    Args:
        vertices: by type; the graph's numbering is one type after another.
        edges: by type, sources and destinations, integers [E] each: numbers within the types of the ends.
        symmetrise: of edges that join one type, add the reverse of each; of those that join two, add a type ``rev_...``
            of their reverses, unless it is there. So messages go both ways.
        self_loops: what happens to edges from a vertex to itself; "add" is refused: layers for types have weights for a
            vertex's own row.
        deduplicate: keep one of several equal edges of a type.
        task: what the labels mean.
        random_split_options: how a random split is drawn; None for the defaults.
        split_seed: seed of a random split.
        describe_edge: names edge i of a type in an error.

    Returns:
        A graph that `Graph.validate` accepts, else DataError. Feature rows have as many columns as the type with the
        most, behind a type's own zeros.

    Raises:
        RecipeError: self-loops are to be added.
    """
    if self_loops == "add":
        raise RecipeError(
            'self_loops = "add" with types of edges: layers for them have weights for a vertex\'s own row; leave it out'
        )
    features, columns = _joined_features(vertices)
    given = _with_reverses(edges) if symmetrise else dict(edges)
    types = GraphTypes({name: VertexType(rows.number, columns[name]) for name, rows in vertices.items()}, tuple(given))
    lists = []
    for edge, ends in given.items():
        sources, destinations = _numbered(edge, ends, types, partial(describe_edge, edge))
        is_other = sources != destinations
        if self_loops == "remove":
            sources, destinations, is_other = sources[is_other], destinations[is_other], is_other[is_other]
        if symmetrise and edge[0] == edge[2]:
            turned = sources[is_other]
            sources, destinations = np.append(sources, destinations[is_other]), np.append(destinations, turned)
        lists.append((sources, destinations))
    indptr, indices, edge_type = _csc_of_types(lists, int(types.offsets[-1]), deduplicate=deduplicate)
    known = _labels_of_types(vertices, types, task, random_split_options, split_seed)
    graph = Graph(indptr=indptr, indices=indices, features=features, edge_type=edge_type, types=types, **known)
    graph.validate(training=graph.labels is not None)
    return graph


def _joined_features(vertices: Mapping[str, VertexRows]) -> tuple[Tensor | None, dict[str, int]]:
    """Features of all types below one another, zeros behind those of narrow ones, and how many columns each has."""
    own = {name: float_features(rows.features) for name, rows in vertices.items() if rows.features is not None}
    columns = {name: own[name].shape[1] if name in own else 0 for name in vertices}
    for name, values in own.items():
        if len(values) != vertices[name].number:
            raise DataError(
                f"there are {len(values)} rows of features for {vertices[name].number} vertices of type {name!r}; give "
                "exactly one row per vertex."
            )
    if not own:
        return None, columns
    features = torch.zeros(sum(rows.number for rows in vertices.values()), max(columns.values()))
    first = 0
    for name, rows in vertices.items():
        if name in own:
            features[first : first + rows.number, : columns[name]] = own[name]
        first += rows.number
    return features, columns


def _with_reverses(edges: Mapping[EdgeType, Ends]) -> dict[EdgeType, Ends]:
    """The same and a type of reverses for each type that joins two types and is no such type itself."""
    given = dict(edges)
    for (source, name, destination), ends in edges.items():
        is_reverse = name.startswith("rev_") and (destination, name.removeprefix("rev_"), source) in edges
        if source != destination and not is_reverse:
            given.setdefault((destination, f"rev_{name}", source), ends[::-1])
    return given


def _labels_of_types(
    vertices: Mapping[str, VertexRows], types: GraphTypes, task: TaskOption, options: SplitOptions | None, seed: int
) -> dict[str, Any]:
    """The fields of a graph that concern labels, those of the one type that has them."""
    labelled = [name for name, rows in vertices.items() if rows.labels is not None or rows.split is not None]
    if len(labelled) > 1:
        raise DataError(f"the types {', '.join(labelled)} have labels or splits; leave those of the one to learn.")
    rows, first = VertexRows(0), 0
    for name in labelled:
        rows, first = vertices[name], types.range_of(name)[0]
    known = _label_fields(rows.labels, rows.split, task, options, seed)
    known |= {name: known[name] + first for name in VertexSplit._fields}
    if rows.labels is not None:
        own = known["labels"]
        if len(own) != rows.number:
            raise DataError(f"there are {len(own)} labels for {rows.number} vertices of type {labelled[0]!r}.")
        unknown = {"multi-label": 0, "regression": torch.nan}.get(known["task"], -1)
        known["labels"] = own.new_full((int(types.offsets[-1]), *own.shape[1:]), unknown)
        known["labels"][first : first + rows.number] = own
    return known


def _numbered(
    edge: EdgeType, ends: Ends, types: GraphTypes, describe: Callable[[int], str]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sources and destinations of a type of edges by the numbers of the whole graph."""
    sources, destinations = (
        _checked(ids, side, types.vertices[of].number, describe, f"type {of!r}") + types.range_of(of)[0]
        for ids, side, of in zip(ends, ("source", "destination"), edge[::2], strict=True)
    )
    if sources.size != destinations.size:
        raise DataError(
            f"{edge_type_text(edge)}: there are {sources.size} sources but {destinations.size} destinations; each edge "
            "needs both."
        )
    return sources, destinations


def _csc_of_types(
    lists: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]], num_vertices: int, *, deduplicate: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Sort edges, sources and destinations of each type, by destination, type and source: indptr, indices and types."""
    none = np.empty(0, np.int64)
    sources, destinations = (np.concatenate([none, *(ends[side] for ends in lists)]) for side in (0, 1))
    kinds = np.repeat(np.arange(len(lists), dtype=np.int16), [len(own) for own, _ in lists])
    order = np.lexsort((sources, kinds, destinations))
    sources, destinations, kinds = sources[order], destinations[order], kinds[order]
    if deduplicate and len(kinds):
        is_new = np.append(True, np.diff(sources) != 0)
        is_new[1:] |= (np.diff(destinations) != 0) | (np.diff(kinds) != 0)
        sources, destinations, kinds = sources[is_new], destinations[is_new], kinds[is_new]
    indptr = np.searchsorted(destinations, np.arange(num_vertices + 1)).astype(np.int64, copy=False)
    dtype = index_dtype(num_vertices)
    return torch.from_numpy(indptr), torch.from_numpy(sources).to(dtype), torch.from_numpy(kinds)
