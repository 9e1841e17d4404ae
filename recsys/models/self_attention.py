"""Attention among the items of a list: the list becomes one more embedding, whatever the item at hand.

    items      k_1 .. k_n of a list, oldest first      [n, d]
    x_i      = k_i + p_(n - i)                         p: a learnt vector for each position, counted from the end
    x        = encoder layers of x                     see `windrow.recsys.models.encoder_layer`
    a        = softmax of w . norm(x_i) over the n items
    result   = sum of a_i norm(x_i)                    [d]; zeros where n = 0

Nothing depends on the sample but through its list, so samples that share a list share the result.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from windrow.recsys.embeddings import SequenceRows
from windrow.recsys.expansion import expand_lists, expand_rows
from windrow.recsys.models.encoder_layer import EncoderLayer
from windrow.recsys.models.item_pairs import ItemPairs
from windrow.recsys.models.list_buckets import ListBuckets
from windrow.recsys.models.segments import places_from_the_end, segment_softmax
from windrow.training.linear import glorot, make_linear

__all__ = ["SelfAttentionPooling"]


class SelfAttentionPooling(nn.Module):
    """Pools each list by itself; the formula stands at the top of this module.

    Args:
        dim: d, columns of items.
        layers: encoder layers.
        heads: of each layer; divides d.
        hidden: columns of the hidden layers of an encoder layer's second part.
        positions: positions that have a vector; earlier items share the last one's.
        generator: where the weights come from; it moves on.

    Raises:
        RecipeError: heads do not divide d.
    """

    def __init__(
        self,
        dim: int,
        *,
        layers: int = 1,
        heads: int = 4,
        hidden: Sequence[int] = (36,),
        positions: int = 128,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.positions = glorot(positions, dim, generator=generator)
        self.layers = nn.ModuleList(
            EncoderLayer(dim, heads=heads, hidden=hidden, generator=generator) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.score = make_linear(dim, 1, bias=False, generator=generator)

    def forward(self, items: Tensor, lengths: Tensor) -> Tensor:
        """Pool.

        Args:
            items: [n, d] of all lists, one after another.
            lengths: [U] integer items of each list; may hold zeros.

        Returns:
            [U, d].
        """
        buckets = ListBuckets(lengths.long())
        x, _ = expand_lists(items, lengths, buckets.order)
        places = places_from_the_end(buckets.lengths, len(items)).clamp(max=len(self.positions) - 1)
        x = x + expand_rows(self.positions, places)
        for layer in self.layers:
            x = layer(x, buckets)
        x = self.norm(x)
        weights = segment_softmax(self.score(x).view(len(x)), buckets.lengths)
        pooled = ItemPairs(SequenceRows(x, buckets.lengths, None)).sum(x, weights)
        return expand_rows(pooled, buckets.place_of_list)
