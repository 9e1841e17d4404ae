"""Measure retrieval models: every user, or every history of a session, against every item, all ranks together.

Each rank recommends to its share of the users. Items pass by in blocks: ranks look up a share of a block each, gather
it, score their users against it and keep the best k so far::

    items     block 0          block 1          ...
    users     chunk x block -> best k -> chunk x block -> better k -> ...        masked: items of the user's past

So a rank holds the vectors of its own users, one block of items and one chunk x block of scores, however many items
there are.

For sessions, each rank holds the vectors of all items::

    all items -> vectors, whole on every rank
    samples   -> chunks, shared out -> vectors -> [chunk, items] scores -> best k: is the item that came next there?
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.rows import near_equal_split
from windrow.comm.world import World
from windrow.recsys.batches.arrow_columns import Lists
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.interaction_reader import Neighbourhoods
from windrow.recsys.batches.interactions import Interactions
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.sessions import NextItemSamples, make_session_batch
from windrow.recsys.models.retrieval import NextItemVectors, TowerVectors
from windrow.recsys.ranking_metrics import (
    check_finite,
    find_hits,
    gather_item_vectors,
    mrr_at_k,
    ndcg_at_k,
    recall_at_k,
    sum_of_chunks,
)

__all__ = ["NextItemEvaluator", "RankingEvaluator"]

IntArray = npt.NDArray[np.int64]

USERS_PER_CHUNK = 512
"""Users scored at once, wherever they are: one matrix product has the same shape on any number of ranks."""

ITEMS_PER_BLOCK = 1 << 15
"""Items scored at once: with a chunk of users, 64 MiB of scores."""


@dataclass(frozen=True, slots=True)
class _Past:
    """Items that must not be recommended to the users of a chunk.

    Attributes:
        rows: [n] place of the user in the chunk.
        items: [n].
    """

    rows: IntArray
    items: IntArray

    def mask(self, scores: Tensor, first_item: int) -> None:
        """Make the scores of [users, items from first_item on] minus infinity where an item is in the past."""
        inside = (self.items >= first_item) & (self.items < first_item + scores.shape[1])
        rows, columns = (torch.from_numpy(array[inside]) for array in (self.rows, self.items - first_item))
        scores[rows.to(scores.device), columns.to(scores.device)] = -torch.inf


@dataclass(slots=True)
class _Best:
    """The best items so far of the users of a chunk.

    Attributes:
        past: what is left out.
        scores: [users, up to k], best first.
        items: the same shape.
    """

    past: _Past
    scores: Tensor
    items: Tensor

    def update(self, scores: Tensor, first_item: int, k: int) -> None:
        """Take account of a block of items; `scores` [users, items] are masked in place."""
        self.past.mask(scores, first_item)
        found = scores.topk(min(k, scores.shape[1]), dim=1)
        both = torch.cat([self.scores, found.values], dim=1)
        self.scores, places = both.topk(min(k, both.shape[1]), dim=1)
        self.items = torch.cat([self.items, found.indices + first_item], dim=1).gather(1, places)


class RankingEvaluator:
    """Measures recall@k and ndcg@k with full ranking, as LightGCN does (He et al., SIGIR 2020).

    Validation items are searched among all items without the user's training items, test items among all without the
    user's training and validation items. Means are over the users that have items in the split.

    Args:
        world: all its ranks make the same evaluator.
        vectors: collective: from a minibatch of `windrow.recsys.batches.interaction_reader` to the vectors of its
            rows, such as a `Recommender` of a `TwoTower` gives.
        interactions: the same on every rank.
        neighbourhoods: give histories and audiences.
        k: length of the lists of recommendations.
        batch_size: users, or items, that all ranks together look up at once.
        device: where `vectors` computes.

    Raises:
        DataError: neither validation nor test items.
        RecipeError: k is less than 1 or more than there are items.
    """

    def __init__(
        self,
        world: World,
        vectors: Callable[[Batch], TowerVectors],
        interactions: Interactions,
        neighbourhoods: Neighbourhoods,
        *,
        k: int = 20,
        batch_size: int = 16384,
        device: torch.device | None = None,
    ) -> None:
        if not 1 <= k <= interactions.num_items:
            raise RecipeError(
                f"evaluation.k = {k}: must be 1 .. {interactions.num_items}, the number of items"
            )
        wanted = {"validation": interactions.validation, "test": interactions.test}
        self._relevant = {split: lists for split, lists in wanted.items() if len(lists.values) > 0}
        if not self._relevant:
            raise DataError(
                "neither validation nor test items to measure on: set validation_fraction above 0"
            )
        self.metric = f"recall@{k}"
        self.higher_is_better = True
        self._world = world
        self._vectors = vectors
        self._interactions = interactions
        self._neighbourhoods = neighbourhoods
        self._k = k
        self._batch_size = batch_size
        self._device = device or torch.device("cpu")
        # Chunks are cut before they are shared out, so that they are the same on any number of ranks.
        users = np.flatnonzero(sum(lists.lengths for lists in self._relevant.values()))
        chunks = [users[start : start + USERS_PER_CHUNK] for start in range(0, len(users), USERS_PER_CHUNK)]
        shares = near_equal_split(len(chunks), world.size)
        self._chunks = chunks[shares[world.rank] : shares[world.rank + 1]]
        self._most_users = max(sum(map(len, chunks[start:stop])) for start, stop in pairwise(shares))

    @torch.no_grad()
    def evaluate(self) -> dict[str, dict[str, float]]:
        """Measure. Collective.

        Returns:
            "recall@k" and "ndcg@k" of each split that has items, the same on every rank and, but for the rounding of
            lookups, on any number of ranks. Cost: users x items x dim multiplications, shared by the ranks.

        Raises:
            DataError: a vector is NaN or infinite.
        """
        users = self._user_vectors()
        bests = [{split: self._start(split, chunk) for split in self._relevant} for chunk in self._chunks]
        for first_item in range(0, self._interactions.num_items, ITEMS_PER_BLOCK):
            items = gather_item_vectors(
                self._world,
                lambda ids: self._look_up(np.zeros(0, dtype=np.int64), ids).items,
                first_item,
                min(first_item + ITEMS_PER_BLOCK, self._interactions.num_items),
                batch_size=self._batch_size,
            )
            start = 0
            for chunk, best in zip(self._chunks, bests, strict=True):
                scores = users[start : start + len(chunk)] @ items.T
                # Validation first: test leaves out what validation does, and more.
                for split in self._relevant:
                    best[split].update(scores, first_item, self._k)
                start += len(chunk)
        return {
            split: self._measure(split, [best[split].items for best in bests]) for split in self._relevant
        }

    def _user_vectors(self) -> Tensor:
        """Vectors of the users of this rank's chunks; all ranks take the same number of steps."""
        mine = np.concatenate([np.zeros(0, dtype=np.int64), *self._chunks])
        steps = -(-self._most_users // max(1, self._batch_size // self._world.size))
        parts = []
        for start, stop in pairwise(near_equal_split(len(mine), steps)):
            parts.append(self._look_up(mine[start:stop], np.zeros(0, dtype=np.int64)).users)
        return torch.cat(parts)

    def _look_up(self, users: IntArray, items: IntArray) -> TowerVectors:
        draws = np.zeros(max(len(users), len(items)), dtype=np.uint64)
        batch = Batch(
            dense=torch.empty(max(len(users), len(items)), 0),
            sparse=self._neighbourhoods.features(users, items, draws[: len(users)], draws[: len(items)]),
            labels=torch.ones(len(users)),
            row_ids=torch.from_numpy(users),
        )
        vectors = self._vectors(batch.to(self._device))
        check_finite(vectors.users, "a user")
        check_finite(vectors.items, "an item")
        return vectors

    def _start(self, split: str, users: IntArray) -> _Best:
        past = [self._interactions.train, self._interactions.validation][: 2 if split == "test" else 1]
        entries = [lists.select(users) for lists in past]
        rows = np.concatenate([lists.rows for lists in entries])
        items = np.concatenate([lists.values for lists in entries])
        empty = torch.empty(len(users), 0, device=self._device)
        return _Best(_Past(rows, items), empty, empty.to(torch.int64))

    def _measure(self, split: str, recommended: list[Tensor]) -> dict[str, float]:
        relevant = self._relevant[split]
        sums = torch.zeros(len(self._chunks), 3, dtype=torch.float64)
        for position, (users, items) in enumerate(zip(self._chunks, recommended, strict=True)):
            counted = relevant.lengths[users] > 0
            num_relevant = relevant.lengths[users][counted]
            hits = find_hits(items.cpu().numpy()[counted], users[counted], relevant)
            recall, ndcg = recall_at_k(hits, num_relevant), ndcg_at_k(hits, num_relevant)
            sums[position] = torch.tensor([len(hits), recall.sum(), ndcg.sum()])
        num_users, recall_sum, ndcg_sum = sum_of_chunks(self._world, sums)
        return {f"recall@{self._k}": recall_sum / num_users, f"ndcg@{self._k}": ndcg_sum / num_users}


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
            part = samples.histories.slice(start, stop)
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

    def _look_up(self, histories: Lists, items: np.ndarray) -> NextItemVectors:
        numbers = np.arange(len(histories))
        batch = make_session_batch(histories, items, numbers, deduplicated=self._deduplicated)
        vectors = self._vectors(batch.to(self._device))
        check_finite(vectors.sessions, "a session")
        check_finite(vectors.items, "an item")
        return vectors


_NO_HISTORIES = Jagged(np.zeros(0, np.int64), np.zeros(1, np.int64))
