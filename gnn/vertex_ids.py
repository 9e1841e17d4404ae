"""Ids that must be vertices of a graph: the search for one that is not, and how to say so."""

import torch
from torch import Tensor

__all__ = ["describe_numbering", "first_outside"]


def first_outside(ids: Tensor, num_vertices: int) -> int | None:
    """Find the first id that is no vertex.

    Args:
        ids: integers, [n].
        num_vertices: N.

    Returns:
        Its position, or None where every id is in [0, N).
    """
    if ids.numel() == 0:
        return None
    smallest, largest = torch.aminmax(ids)
    if int(smallest) >= 0 and int(largest) < num_vertices:
        return None
    return int(((ids < 0) | (ids >= num_vertices)).nonzero()[0])


def describe_numbering(num_vertices: int) -> str:
    """Say which ids are vertices, as part of an error's sentence.

    Args:
        num_vertices: N.

    Returns:
        For example "the graph has 5 vertices, numbered 0 to 4".
    """
    if num_vertices == 0:
        return "the graph has no vertices"
    return f"the graph has {num_vertices} vertices, numbered 0 to {num_vertices - 1}"
