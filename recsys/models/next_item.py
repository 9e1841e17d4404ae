"""What comes next in a session: the items clicked so far become one vector, which is compared with those of all items.

    history    e_1 .. e_n, rows of a table, oldest first          [n, d]
    x_i      = e_i + p_(n - i)                                    p: a vector for each place, counted from the end
    a        = attention of x_1 .. x_n to e_n, see `windrow.recsys.models.target_attention`
    session  = normalise(W concat(e_n, a))                        [d]
    score of item j = session . normalise(e_j) / temperature

The last click and a sum of all, weighted by how they fit it, are NARM's and STAMP's idea (Li et al., Neural Attentive
Session-based Recommendation, CIKM 2017; Liu et al., STAMP, KDD 2018); vectors of length 1 keep often clicked items from
winning by length alone (Gupta et al., NISER, 2019). The loss is a softmax over the item that came next and the
negatives of the minibatch, see `windrow.recsys.models.sampled_softmax`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windrow.comm.errors import RecipeError
from windrow.recsys.batch import Batch
from windrow.recsys.embedding_configs import EmbeddingConfig
from windrow.recsys.embeddings import Embeddings, SequenceRows
from windrow.recsys.expansion import expand_rows
from windrow.recsys.models.sampled_softmax import corrected_scores, sampled_softmax_loss
from windrow.recsys.models.segments import places_from_the_end
from windrow.recsys.models.target_attention import AttentionPooling
from windrow.recsys.session_batch import HISTORY, ITEM
from windrow.training.linear import glorot, make_linear

if TYPE_CHECKING:
    from windrow.training.dropout import DropoutContext

__all__ = ["NextItem", "NextItemVectors", "next_item_tables"]


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
    """Scores what comes next; reads the minibatches of `windrow.recsys.session_reader`.

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
        items = SequenceRows(F.normalize(items.items, dim=1), items.lengths, items.inverse)
        return NextItemVectors(
            self._sessions(embeddings.sequences[HISTORY].expanded(), len(begun), context),
            items.expanded().items,
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
        self, histories: SequenceRows, num_samples: int, context: "DropoutContext | None"
    ) -> Tensor:
        """[B, d] from the lists of the first B rows; others are empty."""
        rows, lengths = histories.items, histories.lengths[:num_samples].long()
        last = lengths.cumsum(0) - 1
        places = places_from_the_end(lengths, len(rows)).clamp(max=len(self.positions) - 1)
        placed = rows + expand_rows(self.positions, places)
        latest = rows.index_select(0, last)
        attended = self.attention(SequenceRows(placed, lengths, None), latest)
        both = torch.cat([latest, attended], 1)
        if context is not None:
            both = context.drop(both, self._dropout, layer=0)
        return F.normalize(self.mix(both), dim=1)


def _item_ids(batch: Batch) -> Tensor:
    """[B + M] int64."""
    parts = [batch.sparse, *(group.expand() for group in batch.deduplicated if ITEM in group.keys)]
    ids: Tensor = parts[-1][ITEM].values()
    return ids
