"""Attention among the items of a list: the list becomes one more embedding, whatever the item at hand.

    items      k_1 .. k_n of a list, oldest first      [n, d]
    x_i      = k_i + p_(n - i)                         p: a learnt vector for each position, counted from the end
    x        = encoder layers of x                     layers of a transformer encoder
    a        = softmax of w . norm(x_i) over the n items
    result   = sum of a_i norm(x_i)                    [d]; zeros where n = 0

Nothing depends on the sample but through its list, so samples that share a list share the result.

Lists of about equal lengths lie side by side, so that a matrix product takes many at once and little of it is
padding::

    lengths            3 1 0 3 2 20 18          order of the lists: 2 1 4 0 3 6 5
    buckets            [0] [1] [2] [3 3] [18 20]
    only the last one is padded: 2 rows of 40
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.embeddings import expand_rows
from windrow.recsys.models.attention import ItemPairs, places_from_the_end, segment_softmax
from windrow.recsys.models.click_models import MLP
from windrow.recsys.models.options import ModelOptions
from windrow.training.dense import glorot, make_linear

__all__ = ["SelfAttentionPooling"]


class SelfAttentionPooling(nn.Module):
    """Pools each list by itself; the formula stands at the top of this module.

    Args:
        dim: d, columns of items.
        options: `sequence_layers`, `sequence_heads`, `sequence_hidden` and `sequence_positions` are read.
        generator: where the weights come from; it moves on.

    Raises:
        RecipeError: heads do not divide d.
    """

    def __init__(self, dim: int, options: ModelOptions, *, generator: torch.Generator) -> None:
        super().__init__()
        self.positions = glorot(options.sequence_positions, dim, generator=generator)
        self.layers = nn.ModuleList(
            EncoderLayer(dim, heads=options.sequence_heads, hidden=options.sequence_hidden, generator=generator)
            for _ in range(options.sequence_layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.score = make_linear(dim, 1, bias=False, generator=generator)

    def forward(self, items: Tensor, lengths: Tensor) -> Tensor:
        """Pool items [n, d] of all lists, one after another, of [U] integer lengths that may be 0: [U, d]."""
        buckets = ListBuckets(lengths.long())
        x = Jagged.of_lengths(items, lengths).select(buckets.order).values
        places = places_from_the_end(buckets.lengths, len(items)).clamp(max=len(self.positions) - 1)
        x = x + expand_rows(self.positions, places)
        for layer in self.layers:
            x = layer(x, buckets)
        x = self.norm(x)
        weights = segment_softmax(self.score(x).view(len(x)), buckets.lengths)
        pooled = ItemPairs(Deduplicated(Jagged.of_lengths(x, buckets.lengths))).sum(x, weights)
        return expand_rows(pooled, buckets.place_of_list)


_BUCKETS_PER_DOUBLING = 8
"""At most an eighth of a bucket is padding; lists of up to 16 items have a bucket for each length."""


def _bucket_limit(length: int) -> int:
    """The greatest length that shares a bucket with this one."""
    step = max(1, (1 << max(length - 1, 0).bit_length()) // (2 * _BUCKETS_PER_DOUBLING))
    return -(-length // step) * step


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Some lists next to one another, as a matrix; of equal lengths it is the items themselves.

    Attributes:
        num_lists: k.
        longest: L, items of the longest list.
        num_items: items of all k lists; k L where all are equally long.
        rows: [k L] int64 item at each place of the matrix, the first one where there is none; None: place by place.
        places: [num_items] int64 place of each item; None where `rows` is.
        is_item: [k, 1, 1, L] bool which places hold items; None where all do.
    """

    num_lists: int
    longest: int
    num_items: int
    rows: Tensor | None
    places: Tensor | None
    is_item: Tensor | None

    def padded(self, items: Tensor) -> Tensor:
        """[num_items, columns] to [k L, columns]; places without an item get some item."""
        return expand_rows(items, self.rows)

    def cut(self, matrix: Tensor) -> Tensor:
        """[k L, columns] to [num_items, columns]."""
        return expand_rows(matrix, self.places)


class ListBuckets:
    """An order of lists [U] by their lengths, and the buckets in it."""

    def __init__(self, lengths: Tensor) -> None:
        self.lengths, self.order = lengths.sort(stable=True)  # Ascending; and the list at each place.
        self.buckets = [
            _bucket(list(group), lengths.device) for _, group in groupby(self.lengths.tolist(), _bucket_limit)
        ]

    @property
    def place_of_list(self) -> Tensor:
        """[U] int64 place of each list in the order."""
        place = torch.empty_like(self.order)
        place[self.order] = torch.arange(len(self.order), device=self.order.device)
        return place


def _bucket(lengths: list[int], device: torch.device) -> Bucket:
    """Of ascending lengths."""
    num_lists, longest, num_items = len(lengths), lengths[-1], sum(lengths)
    if lengths[0] == longest:
        return Bucket(num_lists, longest, num_items, None, None, None)
    is_item = torch.arange(longest, device=device) < torch.tensor(lengths, device=device).unsqueeze(1)
    places = is_item.flatten().nonzero().flatten()
    rows = torch.zeros(num_lists * longest, dtype=torch.int64, device=device)
    rows[places] = torch.arange(num_items, device=device)
    return Bucket(num_lists, longest, num_items, rows, places, is_item.view(num_lists, 1, 1, longest))


class EncoderLayer(nn.Module):
    """Items of a list look at one another (Vaswani et al., NeurIPS 2017), with norms in front of both parts.

        x <- x + O concat over heads of softmax(q k^T / sqrt(d / heads)) v      q, k, v = parts of W norm_1(x)
        x <- x + V mlp(norm_2(x))

    Linear maps see items one after another, without padding; products q k^T take lists of about equal lengths at once.
    """

    def __init__(self, dim: int, *, heads: int, hidden: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        if dim % heads:
            raise RecipeError(
                f"model.sequence_heads = {heads} does not divide the {dim} columns of a sequence's items: choose a "
                "divisor"
            )
        self._heads = heads
        self.attention_norm = nn.LayerNorm(dim)
        self.queries_keys_values = make_linear(dim, 3 * dim, generator=generator)
        self.attended = make_linear(dim, dim, generator=generator)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = MLP([dim, *hidden], generator=generator)
        self.mlp_output = make_linear(self.mlp.out_features, dim, generator=generator)

    def forward(self, items: Tensor, buckets: ListBuckets) -> Tensor:
        """Run the layer on [n, d] items, list after list, in the order of the buckets.

        Cost: n d (4 d + 2 hidden) multiply-adds, and 2 d L for each item of a list of L items.
        """
        projected = self.queries_keys_values(self.attention_norm(items))
        sizes = [bucket.num_items for bucket in buckets.buckets]
        # Split's gradient is one concatenation; that of slices would be as many matrices as there are buckets.
        parts = [
            self._attend(part, bucket)
            for part, bucket in zip(projected.split(sizes), buckets.buckets, strict=True)
            if bucket.num_items
        ]
        # Without items too, every weight gets a gradient.
        together = torch.cat(parts) if parts else projected[:, : items.shape[1]]
        items = items + self.attended(together)
        result: Tensor = items + self.mlp_output(self.mlp(self.mlp_norm(items)))
        return result

    def _attend(self, projected: Tensor, bucket: Bucket) -> Tensor:
        """[items, 3 d] queries, keys and values of a bucket to [items, d]."""
        width = projected.shape[1] // 3
        shape = (bucket.num_lists, bucket.longest, 3, self._heads, width // self._heads)
        query, key, value = bucket.padded(projected).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        mask = bucket.is_item
        if mask is not None:
            mask = mask.expand(-1, 1, bucket.longest, -1)
        attended = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return bucket.cut(attended.transpose(1, 2).reshape(bucket.num_lists * bucket.longest, width))
