"""A binary max-heap of vertices whose priorities can change, for compiled code.

    heap      [v3, v1, v7, ...]   vertices; the parent of slot i is slot (i - 1) // 2
    position  position[v] = slot of v, or -1 while v is outside
    priority  priority[v], int64; larger comes out first

The heap's length lives in the caller; `push_or_update` and `remove` return the new one.
"""

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["push_or_update", "remove"]

Ids = npt.NDArray[np.int32]
Priorities = npt.NDArray[np.int64]


@numba.njit(cache=True)
def _sift_up(heap: Ids, position: Ids, priority: Priorities, slot: int) -> int:
    vertex = heap[slot]
    while slot > 0:
        parent = (slot - 1) // 2
        if priority[heap[parent]] >= priority[vertex]:
            break
        heap[slot] = heap[parent]
        position[heap[slot]] = slot
        slot = parent
    heap[slot] = vertex
    position[vertex] = slot
    return slot


@numba.njit(cache=True)
def _sift_down(heap: Ids, position: Ids, priority: Priorities, length: int, slot: int) -> None:
    vertex = heap[slot]
    while True:
        child = 2 * slot + 1
        if child >= length:
            break
        if child + 1 < length and priority[heap[child + 1]] > priority[heap[child]]:
            child += 1
        if priority[heap[child]] <= priority[vertex]:
            break
        heap[slot] = heap[child]
        position[heap[slot]] = slot
        slot = child
    heap[slot] = vertex
    position[vertex] = slot


@numba.njit(cache=True)
def push_or_update(
    heap: Ids, position: Ids, priority: Priorities, length: int, vertex: int, new_priority: np.int64
) -> int:
    """Insert a vertex or change its priority. Cost O(log length).

    Args:
        heap: int32 [N].
        position: int32 [N].
        priority: int64 [N].
        length: number of vertices inside.
        vertex: which vertex.
        new_priority: its priority from now on.

    Returns:
        The heap's length afterwards.
    """
    priority[vertex] = new_priority
    if position[vertex] < 0:
        heap[length] = vertex
        position[vertex] = length
        length += 1
    slot = _sift_up(heap, position, priority, position[vertex])
    _sift_down(heap, position, priority, length, slot)
    return length


@numba.njit(cache=True)
def remove(heap: Ids, position: Ids, priority: Priorities, length: int, vertex: int) -> int:
    """Take a vertex out of the heap. Cost O(log length).

    Args:
        heap: int32 [N].
        position: int32 [N].
        priority: int64 [N].
        length: number of vertices inside.
        vertex: which vertex; it must be inside.

    Returns:
        The heap's length afterwards.
    """
    slot = position[vertex]
    position[vertex] = -1
    length -= 1
    if slot != length:
        heap[slot] = heap[length]
        position[heap[slot]] = slot
        slot = _sift_up(heap, position, priority, slot)
        _sift_down(heap, position, priority, length, slot)
    return length
