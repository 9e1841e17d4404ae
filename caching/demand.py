"""What the minibatches of one rank will ask for: all that a ranking of vertices may look at."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Demand"]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Demand:
    """The sampled neighbourhoods of one rank's training vertices, as far as they are known before sampling."""

    indptr: npt.NDArray[np.int64]
    """int64 [N + 1], where each vertex's list of in-neighbours starts: a vertex samples from its own list."""
    indices: npt.NDArray[np.integer]
    """int32 or int64 [E], the lists one after another."""
    own: tuple[int, int]
    """First id of the vertices whose rows this rank holds anyway, and the one after its last."""
    seeds: npt.NDArray[np.int64]
    """int64 [n], the training vertices of this rank, each in one minibatch of every epoch."""
    steps: int
    """Minibatches in an epoch, at least 1: a seed is in each of them with probability 1 / steps."""
    fanouts: tuple[int, ...]
    """Neighbours sampled per vertex at each hop, from the seeds outwards; -1 for all."""

    @property
    def num_vertices(self) -> int:
        """N."""
        return len(self.indptr) - 1
