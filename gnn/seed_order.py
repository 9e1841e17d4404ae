"""Which training vertices are the seeds of which step, on which rank.

Both schemes shuffle the training vertices anew in each epoch, and give every rank the same number of steps,
``ceil(training vertices / batch_size)``: they cut into that many near-equal pieces. So there is no tiny last minibatch,
and no vertex is dropped.

"global" cuts one shuffle of all training vertices; of each piece a rank takes the vertices that it owns. Which vertices
form a minibatch does not depend on the number of ranks. "local" lets each rank cut the shuffle of its own vertices, as
SALIENT++ does (Kaler et al., MLSys 2023, "federated"): a rank has as much work in one step as in the next, but another
number of ranks makes other minibatches. 10 vertices, batches of at most 4, rank 0 owns a to f::

    shuffled     d b a c h g e i f j
    "global"     d b a | c h g | e i f j      rank 0   d b a | c | e f      rank 1   - | h g | i j
    "local"                                   rank 0   d b | a c | e f      rank 1   h | g | i j
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.comm.rows import group_by_owner, near_equal_split

__all__ = ["SeedOrder", "SeedScheme", "count_steps"]

SeedScheme = Literal["global", "local"]
"""Whether all training vertices are shuffled together, or those of each rank apart."""


def count_steps(num_train: int, batch_size: int) -> int:
    """Steps of an epoch: minibatches of at most `batch_size` seeds, over all ranks, that `num_train` seeds make."""
    return -(-num_train // batch_size)


class SeedOrder:
    """The seeds of every step. A pure function of its arguments; only the last epoch asked for is kept.

    Args:
        train_ids: [n] int64, ids of the partition: the training vertices of all ranks, in any order, none twice.
        original_ids: [N] int64, the id in the user's order of each id of the partition; None where they are equal.
        offsets: [ranks + 1], rank r owns the ids offsets[r] .. offsets[r + 1] - 1.
        rank: whose seeds to give.
        batch_size: the most seeds in a step, over all ranks; "local" may have one more for each rank but one.
        scheme: "global" or "local", see the top of this file.
        seed: the run's seed.

    Raises:
        DataError: a rank has no training vertex.
        RecipeError: the batch size is too small for "local".
    """

    def __init__(
        self,
        train_ids: Tensor,
        original_ids: Tensor | None = None,
        *,
        offsets: Sequence[int],
        rank: int,
        batch_size: int,
        scheme: SeedScheme = "global",
        seed: int,
    ) -> None:
        ranks = len(offsets) - 1
        if scheme == "local" and batch_size < ranks:
            raise RecipeError(
                f"batch_size = {batch_size} over {ranks} ranks: order 'local' needs at least one seed per "
                f"rank, so raise it to {ranks} or choose order 'global'"
            )
        if len(train_ids) == 0:
            raise DataError("the training set is empty: give the graph at least one training vertex")
        counts = group_by_owner(train_ids, offsets)[1]
        if 0 in counts:
            sizes = [(part, offsets[part + 1] - offsets[part]) for part in range(ranks) if not counts[part]]
            names = ", ".join(f"rank {part} ({size} vertices)" for part, size in sizes)
            raise DataError(
                f"no training vertex on {names}, of {len(train_ids)} on all {ranks} ranks: partition again "
                "so that the parts are balanced in training vertices, or into fewer parts"
            )
        self._train_ids = train_ids
        self._originals = (train_ids if original_ids is None else original_ids[train_ids]).numpy()
        self._owned = ((train_ids >= offsets[rank]) & (train_ids < offsets[rank + 1])).numpy()
        self._scheme = scheme
        self._seed = seed
        self.steps_per_epoch = count_steps(len(train_ids), batch_size)
        """The same on every rank."""
        cut = [len(train_ids)] if scheme == "global" else counts
        bounds = (near_equal_split(count, self.steps_per_epoch) for count in cut)
        # Seeds over all ranks before each step.
        self._global_bounds: list[int] = [sum(of_ranks) for of_ranks in zip(*bounds, strict=True)]
        self._last_epoch = -1

    def seeds(self, epoch: int, step: int) -> Tensor:
        """The seeds of this rank in a step: int64 [b], ids of the partition; b may be 0 where a minibatch is small.

        Cost: one sort of all training vertices at the first call of an epoch, nothing after.
        """
        if epoch != self._last_epoch:
            # Original ids, so that the order does not depend on the partition. Hashing with one key is
            # one-to-one, so there are no ties, and the order does not depend on that of train_ids either.
            order = np.argsort(hash_ids(stream_key(self._seed, Stream.SHUFFLE, epoch), self._originals))
            places: npt.NDArray[np.intp] = self._owned[order].nonzero()[0]
            self._seeds = self._train_ids[torch.from_numpy(order[places])]
            self._bounds = (
                near_equal_split(len(places), self.steps_per_epoch)
                if self._scheme == "local"
                else np.searchsorted(places, self._global_bounds).tolist()
            )
            self._last_epoch = epoch
        return self._seeds[self._bounds[step] : self._bounds[step + 1]]

    def global_batch_size(self, epoch: int, step: int) -> int:
        """Seeds of one step over all ranks, at least 1: what a sum of losses over ranks is divided by."""
        del epoch
        return self._global_bounds[step + 1] - self._global_bounds[step]
