"""Random partition: the baseline, and the choice for graphs without structure."""

import numpy as np
import numpy.typing as npt

from windrow.comm.random import Stream, hash_ids, stream_key

__all__ = ["random_assignment"]


def random_assignment(roles: npt.NDArray[np.integer], num_parts: int, *, seed: int) -> npt.NDArray[np.int32]:
    """Deal vertices out to the parts like cards, role by role, in random order.

    Args:
        roles: integer [N], each vertex's role (see `windrow.partition.constraints.vertex_roles`).
        num_parts: number of parts.
        seed: of the order.

    Returns:
        int32 [N]. Each part's number of vertices, and of vertices of each role, differs by at most 1 between parts
        (per role by at most 1, in total by at most 1). Cost O(N log N) time, 25 N bytes.
    """
    draw = hash_ids(stream_key(seed, Stream.PARTITION), np.arange(len(roles)))
    order = np.lexsort((draw, roles))
    assignment = np.empty(len(roles), np.int32)
    assignment[order] = np.arange(len(roles)) % num_parts
    return assignment
