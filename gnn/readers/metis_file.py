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
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.gnn.build import assemble_graph
from windrow.gnn.graph import Graph
from windrow.gnn.readers.options import GraphOptions

__all__ = ["read_metis"]


def read_metis(options: GraphOptions) -> Graph:
    """Read a METIS graph file; weights of vertices and edges are skipped: they are made for partitioning.

    One pass over the lines in Python and two sorts: a few seconds per million edges.
    """
    path = Path(options.path)
    lines = _content_lines(path)
    header_line, header = next(lines, (1, ""))
    num_vertices, num_edges, weights_before, step = _parse_header(path, header_line, header)
    neighbours, counts, line_numbers = array("q"), array("q"), array("q")
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
            asked = f"{weights_before} vertex weights and {step} numbers per neighbour"
            _refuse(path, line_number, f"{len(numbers)} numbers do not make {asked}; correct the line or the header.")
        neighbours.extend(entries[::step])
        counts.append(len(entries) // step)
        line_numbers.append(line_number)
    if (len(counts), len(neighbours)) != (num_vertices, 2 * num_edges):
        raise DataError(
            f"{path}: the header says {num_vertices} vertices and {num_edges} edges, which makes {2 * num_edges} "
            f"neighbours, but there are {len(counts)} lines of {len(neighbours)} neighbours; the file is cut "
            "short, lists an edge at one end only, or its header is wrong."
        )
    sources = np.array(neighbours, dtype=np.int64) - 1
    destinations = np.repeat(np.arange(num_vertices), np.array(counts, dtype=np.int64))
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
    listed = np.sort(destinations * np.int64(num_vertices) + sources)
    reversed_ = np.sort(sources * np.int64(num_vertices) + destinations)
    differing = np.flatnonzero(listed != reversed_)
    if not differing.size:
        return
    first = differing[0]
    # The lesser of the two is missing in the other.
    destination, source = divmod(int(min(listed[first], reversed_[first])), num_vertices)
    if reversed_[first] < listed[first]:
        destination, source = source, destination
    _refuse(
        path,
        line_numbers[destination],
        f"vertex {destination + 1} lists {source + 1}, but line {line_numbers[source]} of vertex "
        f"{source + 1} does not list {destination + 1} as often; list each edge once at both ends.",
    )


def _refuse(path: Path, line: int, problem: str) -> NoReturn:
    raise DataError(f"{path}, line {line}: {problem}")
