"""Who samples whom: the neighbour lists of a graph read the other way round, and how far they overlap.

A vertex samples from its own list. What a vertex's chance to be sampled depends on is in whose lists it stands; in an
undirected graph these are the vertices of its own list, and nothing needs to be built.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from windrow.caching.samplers_kernels import (
    estimate_shared,
    fingerprints,
    mark_single_edges,
    transpose,
)
from windrow.comm.random import stream_key

__all__ = ["Samplers", "find_samplers", "in_parallel"]

PAIRS_PER_VERTEX = 8
"""Draws that estimate how far lists overlap. Single estimates are coarse, but sums over many neighbours count."""

CHUNKS_PER_THREAD = 8
"""Pieces of work for each thread, so that none waits long for the last."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Samplers:
    """In whose lists each vertex stands, of one graph."""

    indptr: npt.NDArray[np.int64]
    """int64 [N + 1], where each vertex's list of those who list it starts."""
    indices: npt.NDArray[np.integer]
    """int32 or int64 [E], the lists one after another."""
    single: npt.NDArray[np.bool_] | None
    """bool [E], beside `indices`: whether that vertex is not itself listed by the one that it lists. None where no edge
    is so: an undirected graph."""
    shared: npt.NDArray[np.float32]
    """float32 [N], of the pairs of a vertex that lists this one and one that this one lists, the share where the first
    lists the second too, about: the local clustering coefficient of an undirected graph."""


def find_samplers(indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.integer]) -> Samplers:
    """Read the lists of a graph the other way round.

    Args:
        indptr: int64 [N + 1], where each vertex's list starts.
        indices: int32 or int64 [E], the lists one after another; in any order.

    Returns:
        The same on any number of threads.

    Cost:
        O(E), on as many threads as PyTorch has. Memory: 4 bytes per vertex; for a graph that is not undirected also a
        copy of the lists, one byte per edge, and 8 bytes per vertex and thread while it runs.
    """
    forward, backward = fingerprints(indptr, indices)
    single = None
    out_indptr, out_indices = indptr, indices
    if forward != backward:
        out_indptr, out_indices = np.zeros_like(indptr), np.empty_like(indices)
        transpose(indptr, indices, out_indptr, out_indices)
        marks = single = np.empty(len(indices), np.bool_)
        in_parallel(
            lambda first, last: mark_single_edges(
                first, last, indptr, indices, out_indptr, out_indices, marks
            ),
            out_indptr,
            chunks_per_thread=1,
        )
    shared = np.empty(len(indptr) - 1, np.float32)
    key = np.uint64(stream_key(0))
    in_parallel(
        lambda first, last: estimate_shared(
            first, last, PAIRS_PER_VERTEX, key, indptr, indices, out_indptr, out_indices, shared
        ),
        indptr,
    )
    return Samplers(indptr=out_indptr, indices=out_indices, single=single, shared=shared)


def in_parallel(
    work: Callable[[int, int], object],
    indptr: npt.NDArray[np.int64],
    *,
    chunks_per_thread: int = CHUNKS_PER_THREAD,
) -> None:
    """Call a compiled loop that holds no lock on ranges of vertices, on as many threads as PyTorch has.

    Args:
        work: does the vertices from its first argument to before its second; must do each without regard to others.
        indptr: int64 [N + 1]; the ranges have about equally many vertices and entries.
        chunks_per_thread: ranges for each thread.
    """
    num_vertices = len(indptr) - 1
    threads = torch.get_num_threads()
    if threads == 1:
        work(0, num_vertices)
        return
    weights = indptr + np.arange(num_vertices + 1)
    cuts = np.linspace(0, weights[-1], threads * chunks_per_thread + 1)
    bounds = np.unique(np.append(np.searchsorted(weights, cuts), num_vertices)).tolist()
    with ThreadPoolExecutor(threads, thread_name_prefix="vertices") as pool:
        for done in [pool.submit(work, first, last) for first, last in pairwise(bounds)]:
            done.result()
