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
from windrow.recsys.models.click_models import DenseModel
from windrow.recsys.tables.options import EmbeddingBagConfig, EmbeddingConfig
from windrow.training.dense import glorot, make_linear

if TYPE_CHECKING:
    from windrow.training.dropout import DropoutContext

__all__ = ["NextItem", "RetrievalModel", "RetrievalVectors", "TwoTower", "next_item_tables", "two_tower_tables"]


class RetrievalVectors(NamedTuple):
    """What a model says of a minibatch of B samples and M negatives; scores are dot products of queries and items.

    Attributes:
        queries: of two towers [B + M, dim], users; of the next item [B, dim], sessions. Of length 1; 0 in rows without
            user and history.
        items: [B + M, dim], each sample's own, then the negatives. Of length 1; 0 in rows without item and audience.
    """

    queries: Tensor
    items: Tensor


class RetrievalModel(DenseModel):
    """Scores items for queries, and learns by the sampled softmax loss at the top of this module.

    Args:
        temperature: what cosines are divided by in the loss, above 0: the smaller, the more the hardest negatives
            count.
        log_probabilities: [items] log q of the negative sampler, for the logQ correction; None for none.

    Raises:
        RecipeError: the temperature is not above 0.
    """

    log_probabilities: Tensor | None

    def __init__(self, temperature: float, log_probabilities: Tensor | None) -> None:
        super().__init__()
        if not temperature > 0:
            raise RecipeError(f"temperature = {temperature}: must be above 0")
        self._temperature = temperature
        self.register_buffer("log_probabilities", log_probabilities, persistent=False)

    def loss_sum(self, output: RetrievalVectors, batch: Batch) -> Tensor:
        """Add up the sampled softmax loss; see `DenseModel.loss_sum`.

        Args:
            output: of `finish`, on this minibatch.
            batch: B samples and M negatives, of the model's reader.

        Cost: [B, M] scores, and for two towers a look at each item of the histories.
        """
        num_samples = batch.num_samples
        # Deduplicated, items are in a group of their own.
        parts = [batch.sparse, *(group.expand() for group in batch.deduplicated if ITEM in group.keys)]
        ids = parts[-1][ITEM].values()
        queries = output.queries[:num_samples] / self._temperature
        positive = (queries * output.items[:num_samples]).sum(dim=1)
        negatives = output.items[num_samples:]
        if self.log_probabilities is None:
            negative = queries @ negatives.T
        else:
            correction = self.log_probabilities[ids]
            positive = positive - correction[:num_samples]
            negative = torch.addmm(correction[num_samples:], queries, negatives.T, beta=-1)
        taken = self._taken(batch, ids[:num_samples], ids[num_samples:])
        # Not minus infinity: where every negative was taken, its gradient would be NaN.
        negative = negative.masked_fill(taken, torch.finfo(negative.dtype).min)
        return F.softplus(negative.logsumexp(dim=1) - positive).sum()

    def _taken(self, batch: Batch, own: Tensor, negatives: Tensor) -> Tensor:  # noqa: ARG002  # two towers read the batch
        """[B, M] negatives that are none for the sample: its own item."""
        return negatives == own[:, None]


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


class TwoTower(RetrievalModel):
    """Scores users and items; reads the minibatches of `windrow.recsys.batches.interaction_reader`.

    Args:
        dim: width of the embeddings of each feature.
        temperature, log_probabilities: see `RetrievalModel`.

    Raises:
        RecipeError: the temperature is not above 0.
    """

    def __init__(self, dim: int, *, temperature: float = 0.1, log_probabilities: Tensor | None = None) -> None:
        super().__init__(temperature, log_probabilities)
        self._dim = dim
        # sigmoid(0): begin with oneself and the neighbours alike.
        self.user_gate = nn.Parameter(torch.zeros(1))
        self.item_gate = nn.Parameter(torch.zeros(1))

    def finish(
        self, begun: Tensor, embeddings: Embeddings, context: "DropoutContext | None" = None
    ) -> RetrievalVectors:
        """See `DenseModel.finish`; reads sums of "user", "audience", "history", "item", and drops nothing."""
        del begun, context
        user, audience, history, item = embeddings.pooled().split(self._dim, dim=1)
        return RetrievalVectors(
            F.normalize(torch.lerp(history, user, torch.sigmoid(self.user_gate)), dim=1),
            F.normalize(torch.lerp(audience, item, torch.sigmoid(self.item_gate)), dim=1),
        )

    def _taken(self, batch: Batch, own: Tensor, negatives: Tensor) -> Tensor:
        """And the items of the user's history."""
        taken = super()._taken(batch, own, negatives)
        history = batch.sparse[HISTORY]
        places = torch.isin(history.values(), negatives).nonzero()[:, 0]
        rows = torch.searchsorted(history.offsets(), places, right=True) - 1
        hits, columns = (history.values()[places, None] == negatives).nonzero(as_tuple=True)
        taken[rows[hits], columns] = True
        return taken


def next_item_tables(num_items: int, dim: int) -> list[EmbeddingConfig]:
    """The one table that histories and items share, for an `EmbeddingCollection`.

    Args:
        num_items: rows.
        dim: columns.
    """
    return [EmbeddingConfig(name=ITEM, num_embeddings=num_items, embedding_dim=dim, feature_names=[HISTORY, ITEM])]


class NextItem(RetrievalModel):
    """Scores what comes next; reads the minibatches of `windrow.recsys.batches.sessions`.

    Args:
        dim: d, width of the table.
        hidden: columns of the hidden layers that weigh an item of a history.
        positions: places that have a vector; earlier items share the last one's.
        temperature, log_probabilities: see `RetrievalModel`.
        dropout: chance of an entry of concat(e_n, a) to be dropped in training, in [0, 1).
        generator: where the weights come from; it moves on.

    Raises:
        RecipeError: the temperature is not above 0, or there is no position.
    """

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
        super().__init__(temperature, log_probabilities)
        if positions < 1:
            raise RecipeError(f"positions = {positions}: must be at least 1")
        self._dropout = dropout
        self.positions = glorot(positions, dim, generator=generator)
        self.attention = AttentionPooling(dim, hidden=hidden, generator=generator)
        self.mix = make_linear(2 * dim, dim, generator=generator)

    def finish(
        self, begun: Tensor, embeddings: Embeddings, context: "DropoutContext | None" = None
    ) -> RetrievalVectors:
        """See `DenseModel.finish`; reads rows of "history", and of "item"."""
        items = embeddings.sequences[ITEM]
        normal = replace(items.jagged, values=F.normalize(items.jagged.values, dim=1))
        histories = embeddings.sequences[HISTORY].expand()
        # Those of the negatives are empty.
        rows, lengths = histories.values, histories.lengths[: len(begun)].long()
        places = places_from_the_end(lengths, len(rows)).clamp(max=len(self.positions) - 1)
        placed = rows + expand_rows(self.positions, places)
        latest = rows.index_select(0, lengths.cumsum(0) - 1)
        attended = self.attention(Deduplicated(Jagged.of_lengths(placed, lengths)), latest)
        both = torch.cat([latest, attended], 1)
        if context is not None:
            both = context.drop(both, self._dropout, layer=0)
        return RetrievalVectors(F.normalize(self.mix(both), dim=1), replace(items, jagged=normal).expand().values)
