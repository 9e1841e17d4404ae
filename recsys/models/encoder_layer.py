"""One layer of a transformer encoder on lists of different lengths."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from windrow.comm.errors import RecipeError
from windrow.recsys.models.list_buckets import Bucket, ListBuckets
from windrow.recsys.models.mlp import MLP
from windrow.training.linear import make_linear

__all__ = ["EncoderLayer"]


class EncoderLayer(nn.Module):
    """Items of a list look at one another (Vaswani et al., NeurIPS 2017), with norms in front of both parts.

        x <- x + O concat over heads of softmax(q k^T / sqrt(d / heads)) v      q, k, v = parts of W norm_1(x)
        x <- x + V mlp(norm_2(x))

    Linear maps see items one after another, without padding; products q k^T take lists of about equal lengths at once.

    Args:
        dim: d, columns of an item.
        heads: divides d.
        hidden: columns of the hidden layers of the second part.
        generator: where the weights come from; it moves on.

    Raises:
        RecipeError: heads do not divide d.
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
        """Run the layer.

        Args:
            items: [n, d] list after list, in the order of the buckets.
            buckets: of the lists.

        Returns:
            [n, d]. Cost: n d (4 d + 2 hidden) multiply-adds, and 2 d L for each item of a list of L items.
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
