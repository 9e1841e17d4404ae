"""Graphs in METIS's text format (METIS manual 5.1, section 4.1.1).

::

% comment
3 2          vertices, undirected edges, [format [number of vertex weights]]
2 3          neighbours of vertex 1, counted from 1
1
1            an empty line is a vertex without neighbours
"""

from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.gnn.build import assemble_graph, edges_of
from windrow.gnn.graph import Graph
from windrow.gnn.readers.options import GraphOptions

__all__ = ["read_metis", "write_metis"]


def read_metis(options: GraphOptions) -> Graph:
    """Read a METIS graph file; weights of vertices and edges are skipped: they are made for partitioning.

    One pass over the lines in Python and two sorts: a few seconds per million edges.
    """
    path = Path(options.path)
    lines = _content_lines(path)
    header_line, header = next(lines, (1, ""))
    num_vertices, num_edges, weights_before, step = _parse_header(path, header_line, header)
    neighbours = array("q")
    counts, line_numbers = array("q"), array("q")
    for line_number, text in lines:
        if len(counts) == num_vertices:
            if text.strip():
                _refuse(path, line_number, f"there are more than {num_vertices} vertices; correct the header.")
            continue
        try:
            numbers = list(map(int, text.split()))
        except ValueError:
            _refuse(path, line_number, f"{text.strip()!r} is no list of whole numbers; correct it.")
        entries = numbers[weights_before:]
        if len(numbers) < weights_before or len(entries) % step:
            _refuse(
                path,
                line_number,
                f"{len(numbers)} numbers do not make {weights_before} vertex weights and {step} numbers per "
                "neighbour; correct the line or the header's format.",
            )
        neighbours.extend(entries[::step])
        counts.append(len(entries) // step)
        line_numbers.append(line_number)
    if len(counts) != num_vertices:
        raise DataError(
            f"{path}: the header says {num_vertices} vertices, but there are {len(counts)} lines of "
            "neighbours; the file is cut short or its header is wrong."
        )
    sources = np.array(neighbours, dtype=np.int64) - 1
    destinations = np.repeat(np.arange(num_vertices), np.array(counts, dtype=np.int64))
    if sources.size != 2 * num_edges:
        raise DataError(
            f"{path}: the header says {num_edges} edges, which makes {2 * num_edges} neighbours, but there "
            f"are {sources.size}; list each edge at both ends, or correct the header."
        )
    graph = assemble_graph(
        sources,
        destinations,
        num_vertices,
        symmetrise=False,
        self_loops=options.self_loops,
        describe_edge=lambda edge: f"{path}, line {line_numbers[destinations[edge]]} (ids there count from 1)",
    )
    _check_symmetric(path, sources, destinations, num_vertices, line_numbers)
    return graph


def write_metis(path: Path, graph: Graph) -> None:
    """Write the topology of an undirected graph, which has every edge in both directions.

    Raises:
        DataError: the graph has self-loops, or an edge whose reverse is missing.
    """
    sources, destinations = edges_of(graph.indptr, graph.indices)
    if bool((sources == destinations).any()):
        raise DataError(f"{path}: METIS files have no self-loops; build the graph with self_loops='remove'.")
    if _one_way_edges(sources.numpy(), destinations.numpy(), graph.num_vertices) is not None:
        raise DataError(f"{path}: METIS files hold undirected graphs; build the graph with symmetrise=True.")
    offsets = graph.indptr.tolist()
    numbers = list(map(str, (graph.indices.long() + 1).tolist()))
    with path.open("w", encoding="ascii") as file:
        file.write(f"{graph.num_vertices} {graph.num_edges // 2}\n")
        for start, stop in pairwise(offsets):
            file.write(" ".join(numbers[start:stop]) + "\n")


def _content_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text) of every line that is no comment."""
    with path.open(encoding="ascii", errors="replace") as file:
        for number, text in enumerate(file, start=1):
            if not text.startswith("%"):
                yield number, text


def _parse_header(path: Path, line: int, text: str) -> tuple[int, int, int, int]:
    """Return (vertices, edges, weights before a vertex's neighbours, numbers per neighbour)."""
    tokens = text.split()
    if not 2 <= len(tokens) <= 4 or not all(token.isdecimal() for token in tokens):
        _refuse(path, line, f"the header is {text.strip()!r}; it must be 'vertices edges [format [weights]]'.")
    code = tokens[2] if len(tokens) > 2 else "0"
    if len(code) > 3 or set(code) - {"0", "1"}:
        _refuse(path, line, f"the header's format is {code!r}; it must be up to three digits 0 or 1.")
    has_sizes, has_vertex_weights, has_edge_weights = (digit == "1" for digit in code.rjust(3, "0"))
    num_weights = int(tokens[3]) if len(tokens) > 3 else 1
    return int(tokens[0]), int(tokens[1]), has_sizes + has_vertex_weights * num_weights, 1 + has_edge_weights


def _check_symmetric(
    path: Path,
    sources: npt.NDArray[np.int64],
    destinations: npt.NDArray[np.int64],
    num_vertices: int,
    line_numbers: "array[int]",
) -> None:
    loops = np.flatnonzero(sources == destinations)
    if loops.size:
        vertex = int(sources[loops[0]])
        _refuse(path, line_numbers[vertex], f"vertex {vertex + 1} lists itself; remove the self-loop.")
    one_way = _one_way_edges(sources, destinations, num_vertices)
    if one_way is None:
        return
    if not one_way.size:
        raise DataError(f"{path}: an edge is listed more often at one end than at the other; list it once at each.")
    destination, source = divmod(int(one_way[0]), num_vertices)
    _refuse(
        path,
        line_numbers[destination],
        f"vertex {destination + 1} lists {source + 1}, but line {line_numbers[source]} of vertex "
        f"{source + 1} does not list {destination + 1}; list each edge at both ends.",
    )


def _one_way_edges(
    sources: npt.NDArray[np.integer], destinations: npt.NDArray[np.integer], num_vertices: int
) -> npt.NDArray[np.int64] | None:
    """Edges without a reverse, as destination * N + source; None where each is there as often as its reverse."""
    listed = np.sort(destinations * np.int64(num_vertices) + sources)
    reversed_ = np.sort(sources * np.int64(num_vertices) + destinations)
    # Looked for only now: set operations of NumPy are far slower than sorting.
    return None if np.array_equal(listed, reversed_) else np.setdiff1d(listed, reversed_)


def _refuse(path: Path, line: int, problem: str) -> NoReturn:
    raise DataError(f"{path}, line {line}: {problem}")
