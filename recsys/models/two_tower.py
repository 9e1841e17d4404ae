"""Two towers, one of users and one of items: an item is recommended to a user when their vectors point the same way.

Each vector is a mix of an embedding of one's own and of those of one's neighbours: of the items that the user took,
and of the users that took the item. It is one layer of LightGCN (He et al., SIGIR 2020), computed for the users and
items of a minibatch alone from samples of their neighbours (`windrow.recsys.neighbourhoods`), with a learnt mix. All
vectors have length 1, so that scores are cosines::

    user      e_u ------------ g_u ---+
                                     (+)--- normalise ---+
    history   sum w_j e_j - (1 - g_u)                    |
                                                        (.) / temperature ---> score
    item      e_i ------------ g_i ---+                  |
                                     (+)--- normalise ---+
    audience  sum w_v e_v - (1 - g_i)

The loss is the sampled softmax over the positive p and the shared negatives N of the minibatch, without those that the
user is known to have taken::

    -log( exp(s_p) / (exp(s_p) + sum of exp(s_n) over n in N, n not p and not in the history) )
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windrow.comm.errors import RecipeError
from windrow.recsys.batch import Batch
from windrow.recsys.embedding_configs import EmbeddingBagConfig
from windrow.recsys.embeddings import Embeddings
from windrow.recsys.models.sampled_softmax import corrected_scores, sampled_softmax_loss

if TYPE_CHECKING:
    from windrow.training.dropout import DropoutContext

__all__ = ["TowerVectors", "TwoTower", "two_tower_tables"]


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
    """Scores users and items; reads the minibatches of `windrow.recsys.interaction_reader`.

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
