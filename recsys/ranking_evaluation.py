"""Measure retrieval models: every user, or every history of a session, against every item, all ranks together.

Each rank recommends to its share of the queries, users say. Items pass by in blocks: ranks look up a share of a block
each, gather it, score their users against it and keep the best k so far::

    items     block 0          block 1          ...
    users     chunk x block -> best k -> chunk x block -> better k -> ...        masked: items of the user's past

So a rank holds the vectors of its own users, one block of items and one chunk x block of scores, however many items
there are.

Metrics are those of LightGCN (He et al., SIGIR 2020), and reciprocal ranks. For a user with the relevant items R and
the recommendations i_1 .. i_k, best first::

    recall@k = |R and {i_1 .. i_k}| / |R|
    ndcg@k   = sum of 1 / log2(1 + j) over the j with i_j in R  /  the same sum over j = 1 .. min(k, |R|)
    mrr@k    = 1 / the least j with i_j in R, 0 where there is none

Users without relevant items are left out of means.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

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

QUERIES_PER_CHUNK = 512
"""Users or sessions scored at once, wherever they are: one matrix product has the same shape on any number of ranks."""

ITEMS_PER_BLOCK = 1 << 15
"""Items scored at once: with a chunk of queries, 64 MiB of scores."""

_NO_IDS = np.zeros(0, dtype=np.int64)

_BatchOf: TypeAlias = Callable[[IntArray, IntArray], Batch]
"""A minibatch of some queries and some items, by their numbers; each may be none."""


@dataclass(slots=True)
class _Best:
    """The best items so far of the queries of a chunk.

    Attributes:
        rows: [n] place in the chunk of a query.
        past: [n] item that must not be recommended to it.
        scores: [queries, up to k], best first.
        items: the same shape.
    """

    rows: IntArray
    past: IntArray
    scores: Tensor
    items: Tensor

    def update(self, scores: Tensor, first_item: int, k: int) -> None:
        """Take account of a block of items; `scores` [queries, items] are masked in place."""
        inside = (self.past >= first_item) & (self.past < first_item + scores.shape[1])
        places = (self.rows[inside], self.past[inside] - first_item)
        scores[tuple(torch.from_numpy(numbers).to(scores.device) for numbers in places)] = -torch.inf
        found = scores.topk(min(k, scores.shape[1]), dim=1)
        both = torch.cat([self.scores, found.values], dim=1)
        self.scores, chosen = both.topk(min(k, both.shape[1]), dim=1)
        self.items = torch.cat([self.items, found.indices + first_item], dim=1).gather(1, chosen)


class _Evaluator:
    """What both evaluators do: search the best items of this rank's share of the queries, in step with other ranks."""

    higher_is_better = True
    splits: tuple[str, ...]
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
        self._batch_size = batch_size
        self._device = device or torch.device("cpu")

    def _look_up(self, batch: Batch) -> RetrievalVectors:
        found = self._vectors(batch.to(self._device))
        for name, vectors in ((self.query_name, found.queries), ("an item", found.items)):
            if not torch.isfinite(vectors).all():
                raise DataError(f"the vector of {name} is NaN or infinite: lower the learning rates")
        return found

    def _in_steps(self, look_up: Callable[[IntArray], Tensor], ids: IntArray, most: int) -> Tensor:
        """Look [n] ids up in as many steps on every rank; `most` is the largest n of a rank."""
        steps = -(-most // max(1, self._batch_size // self._world.size))
        bounds = near_equal_split(len(ids), steps)
        return torch.cat([look_up(ids[start:stop]) for start, stop in pairwise(bounds)])

    def _item_vectors(self, batch_of: _BatchOf, first: int, last: int) -> Tensor:
        """[last - first, dim] on every rank, each of which looks a share up."""
        shares = near_equal_split(last - first, self._world.size)
        start, stop = shares[self._world.rank], shares[self._world.rank + 1]
        own = np.arange(first + start, first + stop, dtype=np.int64)
        most = max(b - a for a, b in pairwise(shares))
        vectors = self._in_steps(lambda ids: self._look_up(batch_of(_NO_IDS, ids)).items, own, most)
        return torch.cat(self._world.all_gather(vectors, stage="item vectors"))

    def _search(
        self, queries: IntArray, batch_of: _BatchOf, left_out: Mapping[str, Sequence[Lists]], k: int
    ) -> tuple[list[IntArray], list[dict[str, _Best]]]:
        """This rank's queries, chunk by chunk, and their best items under each name, without those of some lists.

        Chunks are cut before they are shared out, so that they are the same on any number of ranks.
        """
        chunks = [queries[start : start + QUERIES_PER_CHUNK] for start in range(0, len(queries), QUERIES_PER_CHUNK)]
        shares = near_equal_split(len(chunks), self._world.size)
        most = max(sum(map(len, chunks[start:stop])) for start, stop in pairwise(shares))
        own = chunks[shares[self._world.rank] : shares[self._world.rank + 1]]
        mine = np.concatenate([_NO_IDS, *own])
        vectors = self._in_steps(lambda ids: self._look_up(batch_of(ids, _NO_IDS)).queries, mine, most)
        of_chunks = vectors.split([len(chunk) for chunk in own])
        bests = [{name: self._start(lists, chunk) for name, lists in left_out.items()} for chunk in own]
        # Used again and again: memory that is new to the process takes as long as the products do.
        room = vectors.new_empty(QUERIES_PER_CHUNK * min(ITEMS_PER_BLOCK, self._num_items))
        for first in range(0, self._num_items, ITEMS_PER_BLOCK):
            items = self._item_vectors(batch_of, first, min(first + ITEMS_PER_BLOCK, self._num_items))
            for chunk, best in zip(of_chunks, bests, strict=True):
                out = room[: len(chunk) * len(items)].view(len(chunk), len(items))
                scores = torch.mm(chunk, items.T, out=out)
                for name in left_out:
                    best[name].update(scores, first, k)
        return own, bests

    def _start(self, past: Sequence[Lists], queries: IntArray) -> _Best:
        entries = [lists.select(queries) for lists in past]
        rows = np.concatenate([_NO_IDS, *(lists.rows for lists in entries)])
        items = np.concatenate([_NO_IDS, *(lists.values for lists in entries)])
        empty = torch.empty(len(queries), 0, device=self._device)
        return _Best(rows, items, empty, empty.to(torch.int64))

    def _means(self, names: Sequence[str], figures: Sequence[FloatArray]) -> dict[str, float]:
        """Means over all ranks of figures [queries, metrics] of each chunk; they do not depend on the ranks."""
        sums = [torch.from_numpy(np.append(of_chunk.sum(axis=0), len(of_chunk))) for of_chunk in figures]
        own = torch.stack(sums) if sums else torch.zeros(0, len(names) + 1, dtype=torch.float64)
        *totals, count = torch.cat(self._world.all_gather(own, stage="ranking")).cumsum(dim=0)[-1].tolist()
        return {f"{name}@{self._k}": total / count for name, total in zip(names, totals, strict=True)}


class RankingEvaluator(_Evaluator):
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
        self.splits = tuple(self._relevant)
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
        left_out: dict[str, tuple[Lists, ...]] = {"validation": (train,), "test": (train, validation)}
        left_out = {split: left_out[split] for split in self._relevant}
        chunks, bests = self._search(self._users, self._batch, left_out, self._k)
        return {
            split: self._means(
                ("recall", "ndcg"),
                [
                    _recall_and_ndcg(best[split].items.cpu().numpy(), users, relevant)
                    for users, best in zip(chunks, bests, strict=True)
                ],
            )
            for split, relevant in self._relevant.items()
        }

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
        none = (torch.empty(0, k, dtype=torch.int64), torch.empty(0, k))
        if not len(users):
            return none
        if not 0 <= users.min() <= users.max() < self._interactions.num_users:
            wrong = users.min() if users.min() < 0 else users.max()
            raise DataError(f"there is no user {wrong}: they are 0 .. {self._interactions.num_users - 1}")
        known = tuple(self._interactions.splits().values())
        _, bests = self._search(users, self._batch, {"": known}, k)
        own = [(best[""].items.cpu(), best[""].scores.float().cpu()) for best in bests]
        items, scores = (
            torch.cat(self._world.all_gather(torch.cat([empty, *parts]), stage="recommendations"))
            for empty, *parts in zip(none, *own, strict=True)
        )
        return items.masked_fill(scores == -torch.inf, -1), scores

    def _batch(self, queries: IntArray, items: IntArray) -> Batch:
        draws = np.zeros(max(len(queries), len(items)), dtype=np.uint64)
        return Batch(
            dense=torch.empty(len(draws), 0),
            sparse=self._neighbourhoods.features(queries, items, draws[: len(queries)], draws[: len(items)]),
            labels=torch.ones(len(queries)),
            row_ids=torch.from_numpy(queries),
        )


class NextItemEvaluator(_Evaluator):
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
        self.splits, self._deduplicated = tuple(samples), deduplicated
        self._targets = np.concatenate([of_split.targets for of_split in samples.values()])
        self._split_of = np.repeat(np.arange(len(samples)), [len(of_split) for of_split in samples.values()])
        histories = [of_split.histories.slice(0, len(of_split)) for of_split in samples.values()]
        lengths = np.concatenate([lists.lengths for lists in histories])
        self._histories = Jagged.of_lengths(np.concatenate([lists.values for lists in histories]), lengths)

    @torch.no_grad()
    def evaluate(self) -> dict[str, dict[str, float]]:
        """Measure. Collective.

        Returns:
            "recall@k" and "mrr@k" of each split, the same on every rank and, but for the rounding of vectors, on any
            number of ranks. Cost: samples x items x dim multiplications, shared by the ranks; items are looked up once.

        Raises:
            DataError: a vector is NaN or infinite.
        """

        def batch_of(queries: IntArray, items: IntArray) -> Batch:
            histories = self._histories.select(queries)
            return make_session_batch(histories, items, np.arange(len(queries)), deduplicated=self._deduplicated)

        chunks, bests = self._search(np.arange(len(self._targets)), batch_of, {"": ()}, self._k)
        figures: dict[str, list[FloatArray]] = {split: [] for split in self.splits}
        for chunk, best in zip(chunks, bests, strict=True):
            hits = best[""].items.cpu().numpy() == self._targets[chunk, None]
            of_chunk = np.column_stack([hits.any(axis=1), _mrr_at_k(hits)])
            for number, of_split in enumerate(figures.values()):
                of_split.append(of_chunk[self._split_of[chunk] == number])
        return {split: self._means(("recall", "mrr"), of_split) for split, of_split in figures.items()}


def _recall_and_ndcg(recommended: IntArray, users: IntArray, relevant: Lists) -> FloatArray:
    """[n, 2] of those users that have relevant items."""
    counted = relevant.lengths[users] > 0
    num_relevant = relevant.lengths[users][counted]
    hits = _find_hits(recommended[counted], users[counted], relevant)
    return np.column_stack([hits.sum(axis=1) / num_relevant, _ndcg_at_k(hits, num_relevant)])


def _find_hits(recommended: IntArray, users: IntArray, relevant: Lists) -> npt.NDArray[np.bool_]:
    """[n, k] whether user n has the recommended item; `relevant` holds the items of all users."""
    chosen = relevant.select(users)
    # One number for each (row, item).
    width = max(int(recommended.max(initial=0)), int(chosen.values.max(initial=0))) + 1
    return np.isin(np.arange(len(users))[:, None] * width + recommended, chosen.rows * width + chosen.values)


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
