"""Types of the vertices and of the edges of a graph.

Vertices of all types have one numbering, one type after another, and edges of all types one list; only the sampler and
layers that are made for it look at types::

    author 0 .. 3    paper 4 .. 9                       vertex 5 is paper 1
    ("author", "writes", "paper")                       type 0 of edges, from authors to papers
    ("paper", "rev_writes", "author")                   type 1
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor

from windrow.comm.errors import DataError

__all__ = ["EDGE_ARRAYS", "EdgeType", "GraphTypes", "VertexType", "edge_type_text"]

EdgeType: TypeAlias = tuple[str, str, str]
"""Type of the sources, name, type of the destinations: as in DGL and PyTorch Geometric."""

EDGE_ARRAYS = ("edge_weight", "edge_attr", "edge_type")
"""What a graph may have of each edge."""

MOST_VERTEX_TYPES = 1 << 8
MOST_EDGE_TYPES = 1 << 15


class VertexType(NamedTuple):
    """What is known of the vertices of a type."""

    number: int
    """How many there are."""
    columns: int
    """Columns of their features; in a graph's feature rows, which all have the most of any type, zeros follow."""


@dataclass(frozen=True)
class GraphTypes:
    """The types of a graph; compared by what they say, and not hashed.

    Raises:
        DataError: there is no type, or too many, a name is there twice, or an edge's end is of an unknown type.
    """

    vertices: Mapping[str, VertexType]
    """By name, in the order of the vertices' numbers."""
    edges: tuple[EdgeType, ...]
    """An edge's type is its place here."""

    __hash__ = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if not 0 < len(self.vertices) <= MOST_VERTEX_TYPES or len(self.edges) > MOST_EDGE_TYPES:
            raise DataError(
                f"there are {len(self.vertices)} types of vertices and {len(self.edges)} of edges; give 1 to "
                f"{MOST_VERTEX_TYPES} of vertices and at most {MOST_EDGE_TYPES} of edges"
            )
        for number, edge in enumerate(self.edges):
            unknown = [end for end in edge[::2] if end not in self.vertices]
            if unknown:
                raise DataError(
                    f"edges {edge_type_text(edge)} have an end of type {unknown[0]!r}, but vertices are of the types "
                    f"{', '.join(self.vertices)}: correct it"
                )
            if edge in self.edges[:number]:
                raise DataError(f"edges {edge_type_text(edge)} are there twice: give them together, or other names")

    @cached_property
    def offsets(self) -> Tensor:
        """int64 [types + 1], where the vertices of each type start."""
        return torch.tensor([0, *(one.number for one in self.vertices.values())]).cumsum(0)

    @cached_property
    def ends(self) -> list[tuple[int, int]]:
        """Of each type of edges, the places of the types of its sources and destinations."""
        places = {name: place for place, name in enumerate(self.vertices)}
        return [(places[source], places[destination]) for source, _, destination in self.edges]

    @property
    def columns(self) -> int:
        """Columns of a graph's feature rows: the most that a type has."""
        return max(one.columns for one in self.vertices.values())

    def range_of(self, vertex_type: str) -> tuple[int, int]:
        """First vertex of a type, and the one after the last: DataError where there is no such type."""
        if vertex_type not in self.vertices:
            raise DataError(f"there are no vertices of type {vertex_type!r}: there are {', '.join(self.vertices)}")
        place = list(self.vertices).index(vertex_type)
        return int(self.offsets[place]), int(self.offsets[place + 1])

    def of(self, vertices: Tensor) -> Tensor:
        """Type of each vertex, by the user's ids, int64 [n] -> uint8 [n]: places in `vertices`."""
        return torch.searchsorted(self.offsets[1:], vertices, right=True).to(torch.uint8)

    def to_json(self) -> dict[str, Any]:
        """What JSON can hold, for `from_json`."""
        return {
            "vertices": {name: list(one) for name, one in self.vertices.items()},
            "edges": [list(edge) for edge in self.edges],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """The types that `to_json` wrote."""
        vertices = {name: VertexType(*one) for name, one in found["vertices"].items()}
        return cls(vertices, tuple((source, name, destination) for source, name, destination in found["edges"]))


def edge_type_text(edge: EdgeType) -> str:
    """A type of edges as one word, also of file names: author__writes__paper."""
    return "__".join(edge)
