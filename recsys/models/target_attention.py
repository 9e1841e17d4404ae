"""Attention over a user's list of items by how they fit the item at hand: the list becomes one more embedding.

    sequence   items k_1 .. k_n of a sample      [n, d]     unpooled, any n
    query      embedding q of the item at hand   [d]
    score_i  = w . mlp(concat(k_i, q, k_i - q, k_i * q)) + b
    a        = softmax of the scores over the n items of the sample
    result   = sum of a_i k_i                    [d]; zeros where n = 0

This is the local activation unit of the deep interest network (Zhou et al., KDD 2018, arXiv 1706.06978) with a
rectifier inside and a softmax over the scores, so that long lists do not weigh more than short ones.

The first layer W = [W_1 W_2 W_3 W_4] is linear in what it is given, so that

    W concat(k, q, k - q, k * q) = (W_1 + W_3) k  +  (W_2 - W_3) q  +  W_4 (k * q)

The first term is computed once for each item of a distinct list, the second once for each sample, and only the third
for each item of each sample: a quarter of the work, and no copy of a list that several samples have.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from windrow.recsys.embeddings import SequenceRows
from windrow.recsys.models.item_pairs import ItemPairs
from windrow.recsys.models.mlp import MLP
from windrow.recsys.models.segments import segment_softmax
from windrow.training.dense import linear
from windrow.training.linear import make_linear

__all__ = ["AttentionPooling"]


class AttentionPooling(nn.Module):
    """Pools the items of each sample by their attention to a query; the formula stands at the top of this module.

    Args:
        dim: d, columns of items and queries.
        hidden: columns of the hidden layers that score an item.
        generator: where the weights come from; it moves on.
    """

    def __init__(self, dim: int, *, hidden: Sequence[int] = (36,), generator: torch.Generator) -> None:
        super().__init__()
        self.mlp = MLP([4 * dim, *hidden], generator=generator)
        self.score = make_linear(self.mlp.out_features, 1, generator=generator)

    def forward(self, lists: SequenceRows, queries: Tensor) -> Tensor:
        """Pool.

        Args:
            lists: of B samples, which may share some; items have d columns.
            queries: [B, d].

        Returns:
            [B, d]. Memory: d numbers and those of the hidden layers for each item of each sample, whatever the
            longest list.
        """
        pairs = ItemPairs(lists)
        layers = [*self.mlp.layers, self.score]
        first = layers[0]
        assert isinstance(first, nn.Linear)
        item, query, difference, product = first.weight.chunk(4, 1)
        hidden = pairs.add(
            linear(lists.items, item + difference),
            linear(queries, query - difference, first.bias),
            # Of a part of a matrix oneDNN makes a product element by element, a thousand times as slowly.
            linear(pairs.multiply(lists.items, queries), product.contiguous()),
        )
        for layer in layers[1:]:
            hidden = layer(torch.relu(hidden))
        return pairs.sum(lists.items, segment_softmax(hidden.view(-1), pairs.lengths))
