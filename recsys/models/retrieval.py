"""Retrieval models, which score one item against many: two towers of users and items, and the next item of a session.

Both learn by a softmax over the item p that was taken and a sample N of all items, the shared negatives of the
minibatch, without those that the user is known to have taken::

    -log( exp(s_p) / (exp(s_p) + sum of exp(s_n) over n in N, n not p and not in the history) )

Scores are corrected for how often an item is drawn, s - log q (logQ correction; Yi et al., Sampling-Bias-Corrected
Neural Modeling for Large Corpus Item Recommendations, RecSys 2019), so that those drawn often are not punished for it.

Two towers: an item is recommended to a user when their vectors point the same way. Each vector is a mix of an embedding
of one's own and of those of one's neighbours: of the items that the user took, and of the users that took the item. It
is one layer of LightGCN (He et al., SIGIR 2020), computed for the users and items of a minibatch alone from samples of
their neighbours (`windrow.recsys.batches.interaction_reader`), with a learnt mix. All vectors have length 1, so that
scores are cosines::

    user      e_u ------------ g_u ---+
                                     (+)--- normalise ---+
    history   sum w_j e_j - (1 - g_u)                    |
                                                        (.) / temperature ---> score
    item      e_i ------------ g_i ---+                  |
                                     (+)--- normalise ---+
    audience  sum w_v e_v - (1 - g_i)

Next item: the items clicked so far become one vector, which is compared with those of all items::

    history    e_1 .. e_n, rows of a table, oldest first          [n, d]
    x_i      = e_i + p_(n - i)                                    p: a vector for each place, counted from the end
    a        = attention of x_1 .. x_n to e_n, see `windrow.recsys.models.attention`
    session  = normalise(W concat(e_n, a))                        [d]
    score of item j = session . normalise(e_j) / temperature

The last click and a sum of all, weighted by how they fit it, are NARM's and STAMP's idea (Li et al., Neural Attentive
Session-based Recommendation, CIKM 2017; Liu et al., STAMP, KDD 2018); vectors of length 1 keep often clicked items from
winning by length alone (Gupta et al., NISER, 2019).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.batches.sessions import HISTORY, ITEM
from windrow.recsys.embeddings import Embeddings, expand_rows
from windrow.recsys.models.attention import AttentionPooling, places_from_the_end
from windrow.recsys.tables.options import EmbeddingBagConfig, EmbeddingConfig
from windrow.training.dense import glorot, make_linear

if TYPE_CHECKING:
    from windrow.training.dropout import DropoutContext

__all__ = [
    "NextItem",
    "NextItemVectors",
    "TowerVectors",
    "TwoTower",
    "corrected_scores",
    "next_item_tables",
    "sampled_softmax_loss",
    "two_tower_tables",
]


def two_tower_tables(num_users: int, num_items: int, dim: int) -> list[EmbeddingBagConfig]:
    """The tables that two towers read, in the order in which `TwoTower.finish` expects their features.

    Args:
        num_users: rows of "user", which "audience" looks into as well.
        num_items: rows of "item", which "history" looks into as well.
        dim: columns of both.

    Returns:
        Two tables, for features with weights.
    """
    return [
        EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=features)
        for name, rows, features in (
            ("user", num_users, ["user", "audience"]),
            ("item", num_items, ["history", "item"]),
        )
    ]


class TowerVectors(NamedTuple):
    """What the two towers say of each row of a minibatch; the score of a user and an item is their dot product.

    Attributes:
        users: [rows, dim] of length 1; 0 in rows without user and history.
        items: [rows, dim] of length 1; 0 in rows without item and audience.
    """

    users: Tensor
    items: Tensor


class TwoTower(nn.Module):
    """Scores users and items; reads the minibatches of `windrow.recsys.batches.interaction_reader`.

    Args:
        dim: width of the embeddings of each feature.
        temperature: what cosines are divided by in the loss, above 0: the smaller, the more the hardest negatives
            count.
        log_probabilities: [items] of the negative sampler: subtracted from scores in the loss, so that items that
            are drawn often are not punished for it (logQ correction; Yi et al., Sampling-Bias-Corrected Neural
            Modeling for Large Corpus Item Recommendations, RecSys 2019); None for no correction.

    Raises:
        RecipeError: the temperature is not above 0.
    """

    log_probabilities: Tensor | None

    def __init__(
        self, dim: int, *, temperature: float = 0.1, log_probabilities: Tensor | None = None
    ) -> None:
        super().__init__()
        if not temperature > 0:
            raise RecipeError(f"temperature = {temperature}: must be above 0")
        self._dim = dim
        self._temperature = temperature
        # sigmoid(0): begin with oneself and the neighbours alike.
        self.user_gate = nn.Parameter(torch.zeros(1))
        self.item_gate = nn.Parameter(torch.zeros(1))
        self.register_buffer("log_probabilities", log_probabilities, persistent=False)

    def begin(self, dense: Tensor) -> Tensor:
        """Nothing to compute before the embeddings are there.

        Args:
            dense: [rows, 0].

        Returns:
            `dense`.
        """
        return dense

    def finish(
        self, begun: Tensor, embeddings: Embeddings, context: "DropoutContext | None" = None
    ) -> TowerVectors:
        """Turn embeddings into vectors of users and items.

        Args:
            begun: of `begin`; not used.
            embeddings: sums of "user", "audience", "history", "item", in this order.
            context: not used: there is no dropout.

        Returns:
            Vectors of all rows.
        """
        del begun, context
        user, audience, history, item = embeddings.pooled().split(self._dim, dim=1)
        return TowerVectors(
            users=F.normalize(torch.lerp(history, user, torch.sigmoid(self.user_gate)), dim=1),
            items=F.normalize(torch.lerp(audience, item, torch.sigmoid(self.item_gate)), dim=1),
        )

    def forward(self, dense: Tensor, embeddings: Embeddings) -> TowerVectors:
        """`begin` and `finish`."""
        return self.finish(self.begin(dense), embeddings)

    def loss_sum(self, output: TowerVectors, batch: Batch) -> Tensor:
        """Add up the sampled softmax loss of this rank's positives.

        Args:
            output: of `finish`, on this minibatch.
            batch: B positives, of `InteractionReader.read`.

        Returns:
            Scalar; 0, and still differentiable, where B is 0. Cost: [B, M] scores for M negatives, and a look at each
            item of the histories.
        """
        num_positives = batch.num_samples
        ids = batch.sparse["item"].values()
        positive_ids, negative_ids = ids[:num_positives], ids[num_positives:]
        positive, negative = corrected_scores(
            output.users[:num_positives],
            output.items,
            ids,
            temperature=self._temperature,
            log_probabilities=self.log_probabilities,
        )
        taken = negative_ids == positive_ids[:, None]
        history = batch.sparse["history"]
        places = torch.isin(history.values(), negative_ids).nonzero()[:, 0]
        rows = torch.searchsorted(history.offsets(), places, right=True) - 1
        hits, columns = (history.values()[places, None] == negative_ids).nonzero(as_tuple=True)
        taken[rows[hits], columns] = True
        return sampled_softmax_loss(positive, negative, taken)


def next_item_tables(num_items: int, dim: int) -> list[EmbeddingConfig]:
    """The one table that histories and items share, for an `EmbeddingCollection`.

    Args:
        num_items: rows.
        dim: columns.
    """
    return [
        EmbeddingConfig(name=ITEM, num_embeddings=num_items, embedding_dim=dim, feature_names=[HISTORY, ITEM])
    ]


class NextItemVectors(NamedTuple):
    """What the model says of a minibatch; the score of a session and an item is their dot product.

    Attributes:
        sessions: [B, dim] of length 1.
        items: [B + M, dim] of length 1.
    """

    sessions: Tensor
    items: Tensor


class NextItem(nn.Module):
    """Scores what comes next; reads the minibatches of `windrow.recsys.batches.sessions`.

    Args:
        dim: d, width of the table.
        hidden: columns of the hidden layers that weigh an item of a history.
        positions: places that have a vector; earlier items share the last one's.
        temperature: what cosines are divided by in the loss, above 0.
        dropout: chance of an entry of concat(e_n, a) to be dropped in training, in [0, 1).
        log_probabilities: [items] of the negative sampler, for the logQ correction; None for none.
        generator: where the weights come from; it moves on.

    Raises:
        RecipeError: the temperature is not above 0, or there is no position.
    """

    log_probabilities: Tensor | None

    def __init__(
        self,
        dim: int,
        *,
        hidden: Sequence[int] = (32,),
        positions: int = 20,
        temperature: float = 0.07,
        dropout: float = 0.0,
        log_probabilities: Tensor | None = None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if not temperature > 0:
            raise RecipeError(f"temperature = {temperature}: must be above 0")
        if positions < 1:
            raise RecipeError(f"positions = {positions}: must be at least 1")
        self._temperature = temperature
        self._dropout = dropout
        self.positions = glorot(positions, dim, generator=generator)
        self.attention = AttentionPooling(dim, hidden=hidden, generator=generator)
        self.mix = make_linear(2 * dim, dim, generator=generator)
        self.register_buffer("log_probabilities", log_probabilities, persistent=False)

    def begin(self, dense: Tensor) -> Tensor:
        """Nothing to compute before the embeddings are there.

        Args:
            dense: [B, 0].

        Returns:
            `dense`.
        """
        return dense

    def finish(
        self, begun: Tensor, embeddings: Embeddings, context: "DropoutContext | None" = None
    ) -> NextItemVectors:
        """Turn embeddings into vectors of sessions and items.

        Args:
            begun: of `begin`; its rows are the samples.
            embeddings: rows of the features "history" and "item".
            context: what dropout's choices depend on; None: nothing is dropped.

        Returns:
            Vectors of all samples and items.
        """
        items = embeddings.sequences[ITEM]
        normal = replace(items.jagged, values=F.normalize(items.jagged.values, dim=1))
        return NextItemVectors(
            self._sessions(embeddings.sequences[HISTORY].expand(), len(begun), context),
            replace(items, jagged=normal).expand().values,
        )

    def forward(self, dense: Tensor, embeddings: Embeddings) -> NextItemVectors:
        """`begin` and `finish`."""
        return self.finish(self.begin(dense), embeddings)

    def loss_sum(self, output: NextItemVectors, batch: Batch) -> Tensor:
        """Add up the sampled softmax loss of this rank's samples.

        Args:
            output: of `finish`, on this minibatch.
            batch: B samples and M negatives, of `SessionReader.read`.

        Returns:
            Scalar; 0, and still differentiable, where B is 0. Cost: [B, M] scores.
        """
        num_samples = batch.num_samples
        ids = _item_ids(batch)
        positive, negative = corrected_scores(
            output.sessions,
            output.items,
            ids,
            temperature=self._temperature,
            log_probabilities=self.log_probabilities,
        )
        taken = ids[num_samples:] == ids[:num_samples, None]
        return sampled_softmax_loss(positive, negative, taken)

    def _sessions(
        self, histories: Jagged[Tensor], num_samples: int, context: "DropoutContext | None"
    ) -> Tensor:
        """[B, d] from the lists of the first B rows; others are empty."""
        rows, lengths = histories.values, histories.lengths[:num_samples].long()
        last = lengths.cumsum(0) - 1
        places = places_from_the_end(lengths, len(rows)).clamp(max=len(self.positions) - 1)
        placed = rows + expand_rows(self.positions, places)
        latest = rows.index_select(0, last)
        attended = self.attention(Deduplicated(Jagged.of_lengths(placed, lengths)), latest)
        both = torch.cat([latest, attended], 1)
        if context is not None:
            both = context.drop(both, self._dropout, layer=0)
        return F.normalize(self.mix(both), dim=1)


def _item_ids(batch: Batch) -> Tensor:
    """[B + M] int64."""
    parts = [batch.sparse, *(group.expand() for group in batch.deduplicated if ITEM in group.keys)]
    ids: Tensor = parts[-1][ITEM].values()
    return ids


def corrected_scores(
    queries: Tensor,
    items: Tensor,
    ids: Tensor,
    *,
    temperature: float,
    log_probabilities: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Score each sample's own item, and the negatives that all share.

    Args:
        queries: [B, d].
        items: [B + M, d], each sample's own, then the negatives.
        ids: [B + M] int64 of the items.
        temperature: what dot products are divided by.
        log_probabilities: [items] log q by id; None for no correction.

    Returns:
        [B] scores of own items, [B, M] of negatives.
    """
    queries, num_positives = queries / temperature, len(queries)
    positive = (queries * items[:num_positives]).sum(dim=1)
    negatives = items[num_positives:]
    if log_probabilities is None:
        return positive, queries @ negatives.T
    correction = log_probabilities[ids]
    return positive - correction[:num_positives], torch.addmm(
        correction[num_positives:], queries, negatives.T, beta=-1
    )


def sampled_softmax_loss(positive: Tensor, negative: Tensor, taken: Tensor) -> Tensor:
    """Add up the loss of all samples; the formula stands at the top of this module.

    Args:
        positive: [B] scores.
        negative: [B, M] scores.
        taken: [B, M] bool negatives that are none for the sample.

    Returns:
        Scalar; 0, and still differentiable, where B is 0 or all negatives are taken.
    """
    # Not minus infinity: where every negative was taken, its gradient would be NaN.
    negative = negative.masked_fill(taken, torch.finfo(negative.dtype).min)
    return F.softplus(negative.logsumexp(dim=1) - positive).sum()
