"""Two towers, one of users and one of items: an item is recommended to a user when their vectors point the same way.

The user's vector is a mix of an embedding of the user's own and the mean of the embeddings of the items that the user
took, as in SimpleX (Mao et al., CIKM 2021); all vectors have length 1, so that scores are cosines::

    user     e_u ---- g ---+
                           (+)--- normalise ---+
    history  mean e_i - (1 - g)                (.) / temperature ---> score
    item     e_i ------------------ normalise --+

The loss is the sampled softmax over the positive p and the shared negatives N of the minibatch::

    -log( exp(s_p) / (exp(s_p) + sum of exp(s_n) over n in N, n != p) )
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windrow.comm.errors import RecipeError
from windrow.recsys.batch import Batch
from windrow.recsys.embedding_configs import EmbeddingBagConfig, PoolingType

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import JaggedTensor
    from windrow.training.dropout import DropoutContext

__all__ = ["TowerVectors", "TwoTower", "two_tower_tables"]


def two_tower_tables(num_users: int, num_items: int, dim: int) -> list[EmbeddingBagConfig]:
    """The tables that two towers read, in the order in which `TwoTower.finish` expects their features.

    Args:
        num_users: rows of "user".
        num_items: rows of "item", which "history" looks into as well.
        dim: columns of both.

    Returns:
        Two tables.
    """
    return [
        EmbeddingBagConfig(name="user", num_embeddings=num_users, embedding_dim=dim, feature_names=["user"]),
        EmbeddingBagConfig(
            name="item",
            num_embeddings=num_items,
            embedding_dim=dim,
            feature_names=["history", "item"],
            pooling=PoolingType.MEAN,
        ),
    ]


class TowerVectors(NamedTuple):
    """What the two towers say of each row of a minibatch; the score of a user and an item is their dot product.

    Attributes:
        users: [rows, dim] of length 1; 0 in rows without user and history.
        items: [rows, dim] of length 1; 0 in rows without item.
    """

    users: Tensor
    items: Tensor


class TwoTower(nn.Module):
    """Scores users and items; reads the minibatches of `windrow.recsys.interaction_reader`.

    Args:
        dim: width of the embeddings of "user", "history" (mean pooling) and "item".
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
        # sigmoid(0): begin with user and history alike.
        self.gate = nn.Parameter(torch.zeros(1))
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
        self,
        begun: Tensor,
        pooled: Tensor,
        sequences: "dict[str, JaggedTensor] | None" = None,
        context: "DropoutContext | None" = None,
    ) -> TowerVectors:
        """Turn embeddings into vectors of users and items.

        Args:
            begun: of `begin`; not used.
            pooled: [rows, 3 * dim]: "user", mean of "history", "item".
            sequences: not used.
            context: not used: there is no dropout.

        Returns:
            Vectors of all rows.
        """
        del begun, sequences, context
        user, history, item = pooled.split(self._dim, dim=1)
        gate = torch.sigmoid(self.gate)
        return TowerVectors(
            users=F.normalize(gate * user + (1 - gate) * history, dim=1), items=F.normalize(item, dim=1)
        )

    def forward(self, dense: Tensor, pooled: Tensor) -> TowerVectors:
        """`begin` and `finish`."""
        return self.finish(self.begin(dense), pooled)

    def loss_sum(self, output: TowerVectors, batch: Batch) -> Tensor:
        """Add up the sampled softmax loss of this rank's positives.

        Args:
            output: of `finish`, on this minibatch.
            batch: B positives, of `InteractionReader.read`.

        Returns:
            Scalar; 0, and still differentiable, where B is 0. Cost: [B, M] scores for M negatives.
        """
        num_positives = batch.num_samples
        ids = batch.sparse["item"].values()
        positive_ids, negative_ids = ids[:num_positives], ids[num_positives:]
        users = output.users[:num_positives]
        positive = (users * output.items[:num_positives]).sum(dim=1) / self._temperature
        negative = users @ output.items[num_positives:].T / self._temperature
        if self.log_probabilities is not None:
            positive = positive - self.log_probabilities[positive_ids]
            negative = negative - self.log_probabilities[negative_ids]
        # Not minus infinity: where every negative is the positive, its gradient would be NaN.
        lowest = torch.finfo(negative.dtype).min
        negative = negative.masked_fill(negative_ids == positive_ids[:, None], lowest)
        return F.softplus(negative.logsumexp(dim=1) - positive).sum()
