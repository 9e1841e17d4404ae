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

Metrics are those of LightGCN (He et al., SIGIR 2020), and reciprocal ranks. For a user with the relevant items R and
the recommendations i_1 .. i_k, best first::

    recall@k = |R and {i_1 .. i_k}| / |R|
    ndcg@k   = sum of 1 / log2(1 + j) over the j with i_j in R  /  the same sum over j = 1 .. min(k, |R|)
    mrr@k    = 1 / the least j with i_j in R, 0 where there is none

Users without relevant items are left out of means.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

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
from windrow.recsys.models.retrieval import RetrievalVectors

__all__ = ["NextItemEvaluator", "RankingEvaluator"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Queries = TypeVar("Queries")

USERS_PER_CHUNK = 512
"""Users scored at once, wherever they are: one matrix product has the same shape on any number of ranks."""

ITEMS_PER_BLOCK = 1 << 15
"""Items scored at once: with a chunk of users, 64 MiB of scores."""

SCORES_PER_CHUNK = 1 << 24
"""Scores of sessions computed at once: 64 MiB, however many items there are. Chunks do not depend on the ranks."""

_NO_IDS = np.zeros(0, dtype=np.int64)
_NO_HISTORIES = Jagged(_NO_IDS, np.zeros(1, np.int64))


class _Evaluator(ABC, Generic[Queries]):
    """What both evaluators do: look vectors up in step with the other ranks."""

    query_name: str
    """What a query is, for messages."""

    def __init__(
        self,
        world: World,
        vectors: Callable[[Batch], RetrievalVectors],
        num_items: int,
        *,
        k: int,
        batch_size: int,
        device: torch.device | None,
    ) -> None:
        if not 1 <= k <= num_items:
            raise RecipeError(f"evaluation.k = {k}: must be 1 .. {num_items}, the number of items")
        self._world = world
        self._vectors = vectors
        self._num_items = num_items
        self._k = k
        self.metric = f"recall@{k}"
        self.higher_is_better = True
        self._batch_size = batch_size
        self._device = device or torch.device("cpu")

    @abstractmethod
    def _batch(self, queries: Queries, items: IntArray) -> Batch:
        """A minibatch of these queries and items, each of which may be none."""

    def _look_up(self, queries: Queries, items: IntArray) -> RetrievalVectors:
        found = self._vectors(self._batch(queries, items).to(self._device))
        for name, vectors in ((self.query_name, found.queries), ("an item", found.items)):
            if not torch.isfinite(vectors).all():
                raise DataError(f"the vector of {name} is NaN or infinite: lower the learning rates")
        return found

    def _in_steps(self, look_up: Callable[[IntArray], Tensor], ids: IntArray, most: int) -> Tensor:
        """Look [n] ids up in as many steps on every rank; `most` is the largest n of a rank."""
        steps = -(-most // max(1, self._batch_size // self._world.size))
        bounds = near_equal_split(len(ids), steps)
        return torch.cat([look_up(ids[start:stop]) for start, stop in pairwise(bounds)])

    def _item_vectors(self, nobody: Queries, first: int, last: int) -> Tensor:
        """[last - first, dim] on every rank, each of which looks a share up."""
        shares = near_equal_split(last - first, self._world.size)
        start, stop = shares[self._world.rank], shares[self._world.rank + 1]
        own = np.arange(first + start, first + stop, dtype=np.int64)
        most = max(b - a for a, b in pairwise(shares))
        vectors = self._in_steps(lambda ids: self._look_up(nobody, ids).items, own, most)
        return torch.cat(self._world.all_gather(vectors, stage="item vectors"))

    def _total(self, sums: Tensor) -> list[float]:
        """Add [chunks, metrics] float64 of all ranks, chunk by chunk, so that the sum does not depend on the ranks."""
        everyone = torch.cat(self._world.all_gather(sums, stage="ranking"))
        found: list[float] = everyone.cumsum(dim=0)[-1].tolist()
        return found


@dataclass(slots=True)
class _Best:
    """The best items so far of the users of a chunk.

    Attributes:
        rows: [n] place in the chunk of a user.
        past: [n] item that must not be recommended to that user.
        scores: [users, up to k], best first.
        items: the same shape.
    """

    rows: IntArray
    past: IntArray
    scores: Tensor
    items: Tensor

    def update(self, scores: Tensor, first_item: int, k: int) -> None:
        """Take account of a block of items; `scores` [users, items] are masked in place."""
        inside = (self.past >= first_item) & (self.past < first_item + scores.shape[1])
        places = (self.rows[inside], self.past[inside] - first_item)
        scores[tuple(torch.from_numpy(numbers).to(scores.device) for numbers in places)] = -torch.inf
        found = scores.topk(min(k, scores.shape[1]), dim=1)
        both = torch.cat([self.scores, found.values], dim=1)
        self.scores, chosen = both.topk(min(k, both.shape[1]), dim=1)
        self.items = torch.cat([self.items, found.indices + first_item], dim=1).gather(1, chosen)


class RankingEvaluator(_Evaluator[IntArray]):
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

    query_name = "a user"

    def __init__(
        self,
        world: World,
        vectors: Callable[[Batch], RetrievalVectors],
        interactions: Interactions,
        neighbourhoods: Neighbourhoods,
        *,
        k: int = 20,
        batch_size: int = 16384,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(world, vectors, interactions.num_items, k=k, batch_size=batch_size, device=device)
        wanted = {"validation": interactions.validation, "test": interactions.test}
        self._relevant = {split: lists for split, lists in wanted.items() if len(lists.values) > 0}
        if not self._relevant:
            raise DataError("neither validation nor test items to measure on: set validation_fraction above 0")
        self._interactions = interactions
        self._neighbourhoods = neighbourhoods
        self._users = np.flatnonzero(sum(lists.lengths for lists in self._relevant.values()))

    @torch.no_grad()
    def evaluate(self) -> dict[str, dict[str, float]]:
        """Measure. Collective.

        Returns:
            "recall@k" and "ndcg@k" of each split that has items, the same on every rank and, but for the rounding of
            lookups, on any number of ranks. Cost: users x items x dim multiplications, shared by the ranks.

        Raises:
            DataError: a vector is NaN or infinite.
        """
        train, validation = self._interactions.train, self._interactions.validation
        # Validation first: test leaves out what validation does, and more.
        left_out = {"validation": (train,), "test": (train, validation)}
        chunks, bests = self._search(self._users, {split: left_out[split] for split in self._relevant}, self._k)
        return {split: self._measure(split, chunks, [best[split].items for best in bests]) for split in self._relevant}

    @property
    def num_users(self) -> int:
        """Users that there are."""
        return self._interactions.num_users

    @torch.no_grad()
    def recommend(self, users: IntArray, k: int) -> tuple[Tensor, Tensor]:
        """Find the best items for users, exactly, among all that they are not known to have taken. Collective.

        Args:
            users: [n] their numbers; must agree.
            k: how many items for each.

        Returns:
            [n, k] int64 items, best first, and [n, k] float32 scores, on the CPU of every rank; item -1 and score -inf
            where a user has taken all others. Cost: as of `evaluate`.

        Raises:
            RecipeError: k is less than 1 or more than there are items.
            DataError: there is no such user.
        """
        if not 1 <= k <= self._num_items:
            raise RecipeError(f"k = {k}: must be 1 .. {self._num_items}, the number of items")
        if len(users) and not 0 <= users.min() <= users.max() < self._interactions.num_users:
            wrong = users.min() if users.min() < 0 else users.max()
            raise DataError(f"there is no user {wrong}: they are 0 .. {self._interactions.num_users - 1}")
        known = tuple(self._interactions.splits().values())
        _, bests = self._search(users, {"": known}, k)
        own = [(best[""].items.cpu(), best[""].scores.float().cpu()) for best in bests]
        none = (torch.empty(0, k, dtype=torch.int64), torch.empty(0, k))
        items, scores = (
            torch.cat(self._world.all_gather(torch.cat([empty, *parts]), stage="recommendations"))
            for empty, *parts in zip(none, *own, strict=True)
        )
        return items.masked_fill(scores == -torch.inf, -1), scores

    def _search(
        self, users: IntArray, left_out: Mapping[str, Sequence[Lists]], k: int
    ) -> tuple[list[IntArray], list[dict[str, _Best]]]:
        """This rank's users, chunk by chunk, and their best items under each name, without those of some lists.

        Chunks are cut before they are shared out, so that they are the same on any number of ranks.
        """
        chunks = [users[start : start + USERS_PER_CHUNK] for start in range(0, len(users), USERS_PER_CHUNK)]
        shares = near_equal_split(len(chunks), self._world.size)
        most = max(sum(map(len, chunks[start:stop])) for start, stop in pairwise(shares))
        own = chunks[shares[self._world.rank] : shares[self._world.rank + 1]]
        mine = np.concatenate([_NO_IDS, *own])
        vectors = self._in_steps(lambda ids: self._look_up(ids, _NO_IDS).queries, mine, most)
        of_chunks = vectors.split([len(chunk) for chunk in own])
        bests = [{name: self._start(lists, chunk) for name, lists in left_out.items()} for chunk in own]
        for first in range(0, self._num_items, ITEMS_PER_BLOCK):
            items = self._item_vectors(_NO_IDS, first, min(first + ITEMS_PER_BLOCK, self._num_items))
            for chunk, best in zip(of_chunks, bests, strict=True):
                scores = chunk @ items.T
                for name in left_out:
                    best[name].update(scores, first, k)
        return own, bests

    def _batch(self, queries: IntArray, items: IntArray) -> Batch:
        draws = np.zeros(max(len(queries), len(items)), dtype=np.uint64)
        return Batch(
            dense=torch.empty(len(draws), 0),
            sparse=self._neighbourhoods.features(queries, items, draws[: len(queries)], draws[: len(items)]),
            labels=torch.ones(len(queries)),
            row_ids=torch.from_numpy(queries),
        )

    def _start(self, past: Sequence[Lists], users: IntArray) -> _Best:
        entries = [lists.select(users) for lists in past]
        rows = np.concatenate([lists.rows for lists in entries])
        items = np.concatenate([lists.values for lists in entries])
        empty = torch.empty(len(users), 0, device=self._device)
        return _Best(rows, items, empty, empty.to(torch.int64))

    def _measure(self, split: str, chunks: Sequence[IntArray], recommended: Sequence[Tensor]) -> dict[str, float]:
        relevant = self._relevant[split]
        sums = torch.zeros(len(chunks), 3, dtype=torch.float64)
        for position, (users, items) in enumerate(zip(chunks, recommended, strict=True)):
            counted = relevant.lengths[users] > 0
            num_relevant = relevant.lengths[users][counted]
            hits = _find_hits(items.cpu().numpy()[counted], users[counted], relevant)
            recall, ndcg = hits.sum(axis=1) / num_relevant, _ndcg_at_k(hits, num_relevant)
            sums[position] = torch.tensor([len(hits), recall.sum(), ndcg.sum()])
        num_users, recall_sum, ndcg_sum = self._total(sums)
        return {f"recall@{self._k}": recall_sum / num_users, f"ndcg@{self._k}": ndcg_sum / num_users}


class NextItemEvaluator(_Evaluator[Lists]):
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

    query_name = "a session"

    def __init__(
        self,
        world: World,
        vectors: Callable[[Batch], RetrievalVectors],
        samples: Mapping[str, NextItemSamples],
        *,
        num_items: int,
        k: int = 20,
        batch_size: int = 8192,
        deduplicated: bool = False,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(world, vectors, num_items, k=k, batch_size=batch_size, device=device)
        empty = [split for split, of_split in samples.items() if not len(of_split)]
        if empty or not samples:
            raise DataError(f"{', '.join(empty) or 'no split'}: no samples to measure on")
        self._samples = samples
        self._deduplicated = deduplicated

    @torch.no_grad()
    def evaluate(self) -> dict[str, dict[str, float]]:
        """Measure. Collective.

        Returns:
            "recall@k" and "mrr@k" of each split, the same on every rank and, but for the rounding of vectors, on any
            number of ranks. Cost: samples x items x dim multiplications, shared by the ranks.

        Raises:
            DataError: a vector is NaN or infinite.
        """
        items = self._item_vectors(_NO_HISTORIES, 0, self._num_items)
        return {split: self._measure(samples, items) for split, samples in self._samples.items()}

    def _measure(self, samples: NextItemSamples, items: Tensor) -> dict[str, float]:
        chunk = max(1, SCORES_PER_CHUNK // self._num_items)
        bounds = near_equal_split(len(samples), -(-len(samples) // chunk))
        shares = near_equal_split(len(bounds) - 1, self._world.size)
        most = max(stop - start for start, stop in pairwise(shares))
        # Of ranks with a chunk less, the last row stays 0: all look up the same number of times.
        sums = torch.zeros(most, 2, dtype=torch.float64)
        for place in range(most):
            number = shares[self._world.rank] + place
            if number >= shares[self._world.rank + 1]:
                self._look_up(_NO_HISTORIES, _NO_IDS)
                continue
            start, stop = bounds[number], bounds[number + 1]
            sessions = self._look_up(samples.histories.slice(start, stop), _NO_IDS).queries
            best = (sessions @ items.T).topk(self._k, dim=1).indices.cpu().numpy()
            hits = best == samples.targets[start:stop, None]
            sums[place] = torch.tensor([hits.sum(), _mrr_at_k(hits).sum()], dtype=torch.float64)
        recall_sum, reciprocal_sum = self._total(sums)
        return {f"recall@{self._k}": recall_sum / len(samples), f"mrr@{self._k}": reciprocal_sum / len(samples)}

    def _batch(self, queries: Lists, items: IntArray) -> Batch:
        return make_session_batch(queries, items, np.arange(len(queries)), deduplicated=self._deduplicated)


def _find_hits(recommended: IntArray, users: IntArray, relevant: Lists) -> npt.NDArray[np.bool_]:
    """[n, k] whether user n has the recommended item; `relevant` holds the items of all users, ascending for each.

    Cost: a binary search for each recommendation among the items of the n users.
    """
    chosen = relevant.select(users)
    rows, items = chosen.rows, chosen.values
    # One number for each (row, item), in ascending order as rows and items are.
    width = max(int(recommended.max(initial=0)), int(items.max(initial=0))) + 1
    keys = rows * width + items
    wanted = np.arange(len(users))[:, None] * width + recommended
    places = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    return keys[places] == wanted if len(keys) else np.zeros(recommended.shape, dtype=bool)


def _ndcg_at_k(hits: npt.NDArray[np.bool_], num_relevant: IntArray) -> FloatArray:
    """[n] of [n, k] hits, best recommendation first, and [n] items that are relevant, each at least 1."""
    k = hits.shape[1]
    discounts = 1 / np.log2(np.arange(2, k + 2))
    best = np.cumsum(discounts)[np.minimum(num_relevant, k) - 1]
    ndcg: FloatArray = (hits * discounts).sum(axis=1) / best
    return ndcg


def _mrr_at_k(hits: npt.NDArray[np.bool_]) -> FloatArray:
    """[n] of [n, k] hits, best recommendation first."""
    reciprocal: FloatArray = hits.any(axis=1) / (hits.argmax(axis=1) + 1)
    return reciprocal
