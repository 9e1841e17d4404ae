"""Minibatches of implicit feedback: positives and shared negatives, with their neighbourhoods, in one container.

A rank with B positives and M negatives gets B + M rows of four features::

    row              user    audience    history    item
    0 .. B - 1       [u]     [u, ...]    [i, ...]   [positive]
    B .. B + M - 1   []      [u, ...]    []         [negative]       the same M negatives on every rank

A user's history of items and an item's audience of users are samples of bounded length with weights. Of n_r neighbours
of row r, of which k are in the sample, neighbour j with n_j neighbours of its own has the weight ::

    w = n_r / k / sqrt(n_r n_j)

so that sums of weighted embeddings estimate without bias what one layer of LightGCN sums over all neighbours (He et
al., SIGIR 2020), and equal it where all are in the sample.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.recsys.batches.arrow_columns import Lists
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.interactions import Interactions, item_lists_from_pairs
from windrow.recsys.batches.jagged import keyed, list_positions
from windrow.recsys.batches.sampling import NegativeSampler, ShuffledSource

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = ["FEATURES", "InteractionReader", "NeighbourSampler", "Neighbourhoods"]

FEATURES = ("user", "audience", "history", "item")
"""The features of a minibatch, in this order: the first two look into the table of users, the others into that of
items."""

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


class NeighbourSampler:
    """Gives each row of a matrix without values some of its columns.

    Args:
        lists: the matrix.
        column_counts: [columns] in how many rows each column is.
        limit: the most columns in a sample; 0 for none, None for all.
        seed: of the order in which columns stand.
    """

    def __init__(self, lists: Lists, column_counts: IntArray, limit: int | None, *, seed: int) -> None:
        self._indptr, self._counts = lists.offsets, lists.lengths
        self._limit = len(column_counts) if limit is None else limit
        self._column_factors = 1 / np.sqrt(np.maximum(column_counts, 1))
        # Shuffled once for each row, so that consecutive ones are a sample.
        row_keys = hash_ids(stream_key(seed, Stream.HISTORY), lists.rows)
        keys = hash_ids(0, row_keys ^ lists.values.astype(np.uint64))
        self._columns = lists.values[np.lexsort((keys, lists.rows))]

    def sample(self, rows: IntArray, draws: npt.NDArray[np.uint64]) -> tuple[IntArray, IntArray, FloatArray]:
        """Draw a sample for each of `rows` [n], any row any number of times.

        A row's columns stand in a circle, in a seeded order; a sample is some consecutive ones, from where the random
        number in `draws` [n] says.

        Returns:
            Columns of all samples, [n] the length of each, and the weight of each column. Cost: proportional to the
            columns returned.
        """
        counts = self._counts[rows]
        lengths = np.minimum(counts, self._limit)
        starts = (draws % np.maximum(counts, 1).astype(np.uint64)).astype(np.int64)
        places = list_positions(starts, lengths)
        circles = np.repeat(counts, lengths)
        places -= np.where(places >= circles, circles, 0)
        columns = self._columns[places + np.repeat(self._indptr[rows], lengths)]
        row_factors = np.repeat(np.sqrt(counts) / np.maximum(lengths, 1), lengths)
        return columns, lengths, (row_factors * self._column_factors[columns]).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Neighbourhoods:
    """Histories and audiences of one training split.

    Attributes:
        histories: items of each user.
        audiences: users of each item.
    """

    histories: NeighbourSampler
    audiences: NeighbourSampler

    @classmethod
    def of(
        cls, interactions: Interactions, max_history: int | None = None, max_audience: int | None = None, *, seed: int
    ) -> Self:
        """Both sides of a training split: at most `max_history` items of a user, `max_audience` users of an item.

        None is for all. Interactions and seed are the same on every rank.
        """
        train = interactions.train
        by_item = item_lists_from_pairs(train.values, train.rows, interactions.num_items)
        return cls(
            NeighbourSampler(train, by_item.lengths, max_history, seed=seed),
            NeighbourSampler(by_item, train.lengths, max_audience, seed=seed),
        )

    def features(
        self, users: IntArray, items: IntArray, user_draws: npt.NDArray[np.uint64], item_draws: npt.NDArray[np.uint64]
    ) -> "KeyedJaggedTensor":
        """Put users and items, each with a sample of its neighbours, into one container.

        Args:
            users: [B] user ids.
            items: [N] item ids.
            user_draws: [B] random numbers that choose histories.
            item_draws: [N] random numbers that choose audiences.

        Returns:
            `FEATURES` with ``max(B, N)`` rows: row i has user i and the history, item i and the audience. Weighted;
            users and items themselves weigh 1.
        """
        history, history_lengths, history_weights = self.histories.sample(users, user_draws)
        audience, audience_lengths, audience_weights = self.audiences.sample(items, item_draws)
        rows = max(len(users), len(items))
        lengths = np.zeros((len(FEATURES), rows), dtype=np.int64)
        lengths[0, : len(users)] = 1
        lengths[1, : len(items)] = audience_lengths
        lengths[2, : len(users)] = history_lengths
        lengths[3, : len(items)] = 1
        ones = np.ones(rows, dtype=np.float32)
        weights = [ones[: len(users)], audience_weights, history_weights, ones[: len(items)]]
        return keyed(
            FEATURES,
            torch.from_numpy(np.concatenate([users, audience, history, items])),
            torch.from_numpy(lengths.ravel()),
            torch.from_numpy(np.concatenate(weights)),
            num_samples=rows,
        )


class InteractionReader(ShuffledSource):
    """The minibatches of one rank. A pure function of (epoch, step); only the last epoch's order is kept.

    The training pairs are shuffled anew in each epoch and cut into global minibatches, of which each rank takes a
    near-equal part in rank order: neither minibatches nor neighbourhoods nor negatives depend on the number of ranks.

    Args:
        interactions: the same on every rank.
        rank: whose rows to give.
        size: number of ranks.
        batch_size: positives in a step, over all ranks, at least 1.
        negatives: draws those of each step; the same on every rank.
        neighbourhoods: give histories and audiences; the same on every rank.
        seed: the run's seed.

    Raises:
        RecipeError: the batch size is out of range.
    """

    def __init__(
        self,
        interactions: Interactions,
        *,
        rank: int,
        size: int,
        batch_size: int,
        negatives: NegativeSampler,
        neighbourhoods: Neighbourhoods,
        seed: int,
    ) -> None:
        super().__init__(len(interactions.train.values), rank=rank, size=size, batch_size=batch_size, seed=seed)
        self._users, self._items = interactions.train.rows, interactions.train.values
        self._negatives = negatives
        self._neighbourhoods = neighbourhoods

    def read(self, epoch: int, step: int) -> Batch:
        """This rank's part of one step: B positives and M negatives; B may be 0.

        labels are [B] ones, dense is [B + M, 0], row_ids are [B] numbers of training pairs. Cost: a sort of all pairs
        at the first call of an epoch, then proportional to the ids in the minibatch.
        """
        pairs = self.samples_of(epoch, step)
        users, positives = self._users[pairs], self._items[pairs]
        items = np.concatenate([positives, self._negatives.sample(epoch, step)])
        user_draws = hash_ids(stream_key(self._seed, Stream.HISTORY, epoch), pairs)
        # A pair has one number in an epoch, a negative one in a step.
        numbers = np.concatenate([pairs, len(self._items) + np.arange(len(items) - len(pairs))])
        item_draws = hash_ids(stream_key(self._seed, Stream.AUDIENCE, epoch, step), numbers)
        return Batch(
            dense=torch.empty(len(items), 0),
            sparse=self._neighbourhoods.features(users, items, user_draws, item_draws),
            labels=torch.ones(len(pairs)),
            row_ids=torch.from_numpy(pairs),
        )
