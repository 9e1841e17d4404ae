"""Measure a model of sessions: each history against every item, all ranks together.

::

    all items -> vectors, whole on every rank
    samples   -> chunks, shared out -> vectors -> [chunk, items] scores -> best k: is the item that came next there?
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.splits import near_equal_split
from windrow.comm.world import World
from windrow.recsys.batch import Batch
from windrow.recsys.full_ranking import check_finite, gather_item_vectors, sum_of_chunks
from windrow.recsys.id_lists import IdLists
from windrow.recsys.models.next_item import NextItemVectors
from windrow.recsys.ranking_metrics import mrr_at_k, recall_at_k
from windrow.recsys.session_batch import make_session_batch
from windrow.recsys.sessions import NextItemSamples

__all__ = ["NextItemEvaluator"]

SCORES_PER_CHUNK = 1 << 24
"""Scores computed at once: 64 MiB, however many items there are. Chunks do not depend on the number of ranks."""


class NextItemEvaluator:
    """Recall and mean reciprocal rank of what came next among all items; none is left out, whatever was clicked.

    Args:
        world: all its ranks make the same evaluator.
        vectors: what a batch of `make_session_batch` gives, as a `Recommender` of a `NextItem` does; collective.
        samples: by split; the same on every rank.
        num_items: rows of the table, all of which are recommended; at least k.
        k: items that are recommended to each session.
        batch_size: items looked up at once, over all ranks.
        deduplicated: whether the tables were made for the group of `make_session_batch`.
        device: of the model; None for the CPU.

    Raises:
        RecipeError: k is out of range.
        DataError: there is nothing to measure on.
    """

    def __init__(
        self,
        world: World,
        vectors: Callable[[Batch], NextItemVectors],
        samples: Mapping[str, NextItemSamples],
        *,
        num_items: int,
        k: int = 20,
        batch_size: int = 8192,
        deduplicated: bool = False,
        device: torch.device | None = None,
    ) -> None:
        if not 1 <= k <= num_items:
            raise RecipeError(f"k = {k}: expected 1 to {num_items}, the number of items")
        empty = [split for split, of_split in samples.items() if not len(of_split)]
        if empty or not samples:
            raise DataError(f"{', '.join(empty) or 'no split'}: no samples to measure on")
        self._world = world
        self._vectors = vectors
        self._samples = samples
        self._num_items = num_items
        self._k = k
        self._batch_size = batch_size
        self._deduplicated = deduplicated
        self._device = device or torch.device("cpu")

    @torch.no_grad()
    def evaluate(self) -> dict[str, dict[str, float]]:
        """Measure. Collective.

        Returns:
            "recall@k" and "mrr@k" of each split, the same on every rank and, but for the rounding of vectors, on any
            number of ranks. Cost: samples x items x dim multiplications, shared by the ranks.

        Raises:
            DataError: a vector is NaN or infinite.
        """
        items = gather_item_vectors(
            self._world,
            lambda ids: self._look_up(_NO_HISTORIES, ids).items,
            0,
            self._num_items,
            batch_size=self._batch_size,
        )
        return {split: self._measure(samples, items) for split, samples in self._samples.items()}

    def _measure(self, samples: NextItemSamples, items: Tensor) -> dict[str, float]:
        size, rank = self._world.size, self._world.rank
        chunk = max(1, SCORES_PER_CHUNK // self._num_items)
        bounds = near_equal_split(len(samples), -(-len(samples) // chunk))
        shares = near_equal_split(len(bounds) - 1, size)
        most = max(stop - start for start, stop in pairwise(shares))
        # Of ranks with a chunk less, the last row stays 0: all look up the same number of times.
        sums = torch.zeros(most, 2, dtype=torch.float64)
        for place in range(most):
            number = shares[rank] + place
            if number >= shares[rank + 1]:
                self._look_up(_NO_HISTORIES, np.zeros(0, np.int64))
                continue
            start, stop = bounds[number], bounds[number + 1]
            part = _cut(samples.histories, start, stop)
            sessions = self._look_up(part, np.zeros(0, np.int64)).sessions
            best = (sessions @ items.T).topk(self._k, dim=1).indices.cpu().numpy()
            hits = best == samples.targets[start:stop, None]
            recall = recall_at_k(hits, np.ones(len(hits), np.int64))
            sums[place] = torch.tensor([recall.sum(), mrr_at_k(hits).sum()])
        recall_sum, reciprocal_sum = sum_of_chunks(self._world, sums)
        return {
            f"recall@{self._k}": recall_sum / len(samples),
            f"mrr@{self._k}": reciprocal_sum / len(samples),
        }

    def _look_up(self, histories: IdLists, items: np.ndarray) -> NextItemVectors:
        numbers = np.arange(len(histories.offsets) - 1)
        batch = make_session_batch(histories, items, numbers, deduplicated=self._deduplicated)
        vectors = self._vectors(batch.to(self._device))
        check_finite(vectors.sessions, "a session")
        check_finite(vectors.items, "an item")
        return vectors


_NO_HISTORIES = IdLists(np.zeros(1, np.int64), np.zeros(0, np.int64), None)


def _cut(lists: IdLists, start: int, stop: int) -> IdLists:
    offsets = lists.offsets[start : stop + 1].astype(np.int64)
    return IdLists(offsets - offsets[0], lists.ids[offsets[0] : offsets[-1]], None)
