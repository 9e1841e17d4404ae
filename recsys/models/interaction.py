"""Dot products of every two of a sample's vectors: the interaction of DLRM."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from windrow.comm.errors import DataError
from windrow.recsys.models.interaction_kernels import multiply_pairs, multiply_pairs_backward

__all__ = ["PairwiseDots"]


class PairwiseDots(nn.Module):
    """Dot products of each vector with those before it (Naumov et al. 2019, arXiv 1906.00091).

    For F = 4 vectors a, b, c, d, the lower triangle row by row: ba, ca, cb, da, db, dc.

    Float32 on a CPU goes sample by sample through a compiled loop, so that only the triangle is computed, in the
    first-level cache: about nine times as fast forward, and five times backward, as what follows. Elsewhere, forward
    is one batched product Z = X X^T and one gather of the triangle; backward, S X with the symmetric S that has the
    upstream values on both sides of an empty diagonal.

    Args:
        num_vectors: F.
    """

    def __init__(self, num_vectors: int) -> None:
        super().__init__()
        self.num_vectors = num_vectors
        self.num_pairs = num_vectors * (num_vectors - 1) // 2
        row, column = torch.tril_indices(num_vectors, num_vectors, -1)
        # Where each pair stands in Z; and which pair stands at each place of S, one past the last for the diagonal.
        places = row * num_vectors + column
        pairs = torch.full((num_vectors, num_vectors), self.num_pairs)
        pairs[row, column] = pairs[column, row] = torch.arange(self.num_pairs)
        self.register_buffer("_places", places, persistent=False)
        self.register_buffer("_pairs", pairs.flatten(), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Multiply.

        Args:
            vectors: [B, F, d] floating.

        Returns:
            [B, num_pairs], differentiable once in `vectors`. Cost: B F^2 d multiply-adds forward, the same backward.

        Raises:
            DataError: other features than the model was made for.
        """
        if vectors.shape[1] != self.num_vectors:
            raise DataError(
                f"{vectors.shape[1]} vectors of each sample, but the model was made for {self.num_vectors}: give it "
                "those features"
            )
        result: Tensor = _Dots.apply(vectors, self._places, self._pairs)  # type: ignore[no-untyped-call]
        return result


class _Dots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, places: Tensor, pairs: Tensor) -> Tensor:
        ctx.save_for_backward(vectors, pairs)
        if _is_compiled(vectors):
            dots = vectors.new_empty(len(vectors), len(places))
            multiply_pairs(vectors.detach().contiguous().numpy(), dots.numpy())
            return dots
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return products.flatten(1).index_select(1, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        vectors, pairs = ctx.saved_tensors
        if _is_compiled(vectors):
            gradient = torch.empty(vectors.shape)
            multiply_pairs_backward(
                vectors.detach().contiguous().numpy(), upstream.contiguous().numpy(), gradient.numpy()
            )
            return gradient, None, None
        with_zero = torch.nn.functional.pad(upstream, (0, 1))
        symmetric = with_zero.index_select(1, pairs).view(len(vectors), vectors.shape[1], vectors.shape[1])
        return torch.bmm(symmetric, vectors), None, None


def _is_compiled(vectors: Tensor) -> bool:
    return vectors.device.type == "cpu" and vectors.dtype == torch.float32
