"""DLRM: bottom MLP, dot products of all vectors, top MLP."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.recsys.embeddings import Embeddings
from windrow.recsys.models.interaction import PairwiseDots
from windrow.recsys.models.mlp import MLP
from windrow.recsys.models.model import ClickModel
from windrow.training.dropout import DropoutContext
from windrow.training.linear import make_linear

__all__ = ["DLRM"]


class DLRM(ClickModel):
    """Deep learning recommendation model (Naumov et al. 2019, arXiv 1906.00091).

        v_0 = bottom(dense)                              [d]; left out where D = 0
        v_1 .. v_F = embeddings                          [d] each
        z   = concat(v_0, dots of every two v)           and v_1 .. v_F with `embeddings_in_top`
        logit = w . top(z) + b

    Every layer of both MLPs ends in a rectifier, that of v_0 too. Dropout is in the top MLP only, since the bottom
    MLP runs before the step's other parts.

    Args:
        num_dense: D.
        pooled_dims: feature -> columns, in the order of the pooled embeddings; all equal.
        bottom: columns of the hidden layers of the bottom MLP; a last one as wide as an embedding follows.
        top: columns of the hidden layers of the top MLP.
        embeddings_in_top: whether the top MLP sees the embeddings themselves, not just their dot products.
        dropout: chance of an entry to be dropped after each layer of the top MLP.
        generator: where the weights come from; it moves on.

    Raises:
        RecipeError: dims differ, or there is nothing to multiply with one another.
    """

    def __init__(
        self,
        *,
        num_dense: int,
        pooled_dims: Mapping[str, int],
        bottom: Sequence[int] = (512, 256),
        top: Sequence[int] = (512, 256),
        embeddings_in_top: bool = False,
        dropout: float = 0.0,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self._dim = _common_dim(pooled_dims)
        self._embeddings_in_top = embeddings_in_top
        self.bottom = MLP([num_dense, *bottom, self._dim], generator=generator) if num_dense else None
        num_vectors = len(pooled_dims) + (self.bottom is not None)
        self.dots = PairwiseDots(num_vectors)
        width = self.dots.num_pairs
        width += self._dim * (num_vectors if embeddings_in_top else self.bottom is not None)
        if width == 0:
            raise RecipeError(
                f"dlrm has only the feature {next(iter(pooled_dims))!r} and no dense columns, so no two vectors to "
                "multiply: set model.embeddings_in_top = true or name more features"
            )
        self.top = MLP([width, *top], dropout=dropout, generator=generator)
        self.logit = make_linear(self.top.out_features, 1, generator=generator)

    def begin(self, dense: Tensor) -> Tensor:
        """Run the bottom MLP: [B, D] -> [B, d]; [B, 0] where there are no dense columns."""
        if self.bottom is None:
            return dense
        begun: Tensor = self.bottom(dense)
        return begun

    def finish(self, begun: Tensor, embeddings: Embeddings, context: DropoutContext | None = None) -> Tensor:
        """Multiply, and run the top MLP; see `ClickModel.finish`."""
        pooled = embeddings.pooled()
        rows = len(pooled)
        vectors = pooled if self.bottom is None else torch.cat([begun, pooled], 1)
        dots = self.dots(vectors.view(rows, vectors.shape[1] // self._dim, self._dim))
        kept = vectors if self._embeddings_in_top else begun
        hidden = self.top(torch.cat([kept, dots], 1), context)
        logits: Tensor = self.logit(hidden)
        return logits.view(rows)


def _common_dim(pooled_dims: Mapping[str, int]) -> int:
    if not pooled_dims:
        raise RecipeError("dlrm has no features with embeddings: name at least one in [log.features]")
    first, dim = next(iter(pooled_dims.items()))
    for feature, other in pooled_dims.items():
        if other != dim:
            raise RecipeError(
                f"dlrm multiplies all embeddings with one another, but {first!r} has {dim} columns and {feature!r} "
                f'{other}: give their tables the same dim, or choose model.kind = "dcn"'
            )
    return dim
