"""DCN-v2: a cross network and a deep MLP, one after the other or side by side."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.recsys.embeddings import Embeddings
from windrow.recsys.models.cross import CrossNetwork
from windrow.recsys.models.mlp import MLP
from windrow.recsys.models.model import ClickModel
from windrow.training.dropout import DropoutContext
from windrow.training.linear import make_linear

__all__ = ["DCN", "Structure"]

Structure = Literal["stacked", "parallel"]
"""Where the deep MLP stands: behind the cross network, or beside it."""


class DCN(ClickModel):
    """Deep and cross network, version 2 (Wang et al. 2021, arXiv 2008.13535).

        x_0 = concat(dense, embeddings)                  [n]
        stacked:   logit = w . deep(cross(x_0)) + b
        parallel:  logit = w . concat(cross(x_0), deep(x_0)) + b

    Embeddings may have any widths. Nothing of it can start before the embeddings are there.

    Args:
        num_dense: D.
        pooled_dims: feature -> columns, in the order of the pooled embeddings.
        structure: where the deep MLP stands.
        cross_layers: number of cross layers.
        low_rank: rank of their matrices; None: full.
        deep: columns of the hidden layers of the deep MLP.
        dropout: chance of an entry to be dropped after each layer of the deep MLP.
        generator: where the weights come from; it moves on.

    Raises:
        RecipeError: there is no input at all.
    """

    def __init__(
        self,
        *,
        num_dense: int,
        pooled_dims: Mapping[str, int],
        structure: Structure = "stacked",
        cross_layers: int = 3,
        low_rank: int | None = None,
        deep: Sequence[int] = (512, 256),
        dropout: float = 0.0,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        width = num_dense + sum(pooled_dims.values())
        if width == 0:
            raise RecipeError(
                "dcn has neither dense columns nor features: name some in [log] and [log.features]"
            )
        self._is_parallel = structure == "parallel"
        self.cross = CrossNetwork(width, cross_layers, low_rank=low_rank, generator=generator)
        self.deep = MLP([width, *deep], dropout=dropout, generator=generator)
        last = self.deep.out_features + (width if self._is_parallel else 0)
        self.logit = make_linear(last, 1, generator=generator)

    def begin(self, dense: Tensor) -> Tensor:
        """Give the dense values back: all work needs the embeddings."""
        return dense

    def finish(self, begun: Tensor, embeddings: Embeddings, context: DropoutContext | None = None) -> Tensor:
        """Run the cross network and the deep MLP; see `ClickModel.finish`."""
        pooled = embeddings.pooled()
        x0 = torch.cat([begun, pooled], 1)
        crossed = self.cross(x0)
        deep = self.deep(x0 if self._is_parallel else crossed, context)
        hidden = torch.cat([crossed, deep], 1) if self._is_parallel else deep
        logits: Tensor = self.logit(hidden)
        return logits.view(len(pooled))
