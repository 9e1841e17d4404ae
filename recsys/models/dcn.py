"""DCN-v2: a cross network and a deep MLP, one after the other or side by side."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.recsys.models.cross import CrossNetwork
from windrow.recsys.models.mlp import MLP, make_linear
from windrow.recsys.models.model import ClickModel
from windrow.training.dropout import DropoutContext

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import JaggedTensor

__all__ = ["DCN", "DCNOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DCNOptions:
    """Shape of a DCN-v2."""

    structure: Literal["stacked", "parallel"] = "stacked"
    """stacked: the deep MLP takes what the cross network gives; parallel: both take the input, and the logit sees
    both."""
    cross_layers: int = 3
    """Cross layers: terms of up to one degree more than this many."""
    low_rank: int | None = None
    """Rank of the cross layers' matrices; "none": full. Saves work below half the input's columns."""
    deep: tuple[int, ...] = (512, 256)
    """Columns of the hidden layers of the deep MLP."""

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            RecipeError: a value is out of range or unknown.
        """
        if self.structure not in {"stacked", "parallel"}:
            raise RecipeError(f'model.dcn.structure = "{self.structure}": expected stacked or parallel')
        if self.cross_layers < 1:
            raise RecipeError(f"model.dcn.cross_layers = {self.cross_layers}: must be at least 1")
        if self.low_rank is not None and self.low_rank < 1:
            raise RecipeError(
                f'model.dcn.low_rank = {self.low_rank}: must be at least 1, or "none" for full matrices'
            )
        if any(size < 1 for size in self.deep):
            raise RecipeError(f"model.dcn.deep = {list(self.deep)}: each layer needs at least 1 column")


class DCN(ClickModel):
    """Deep and cross network, version 2 (Wang et al. 2021, arXiv 2008.13535).

        x_0 = concat(dense, embeddings)                  [n]
        stacked:   logit = w . deep(cross(x_0)) + b
        parallel:  logit = w . concat(cross(x_0), deep(x_0)) + b

    Embeddings may have any widths. Nothing of it can start before the embeddings are there.

    Args:
        options: shape.
        num_dense: D.
        pooled_dims: feature -> columns, in the order of the pooled embeddings.
        dropout: chance of an entry to be dropped after each layer of the deep MLP.
        generator: where the weights come from; it moves on.

    Raises:
        RecipeError: there is no input at all.
    """

    def __init__(
        self,
        options: DCNOptions,
        *,
        num_dense: int,
        pooled_dims: Mapping[str, int],
        dropout: float = 0.0,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        width = num_dense + sum(pooled_dims.values())
        if width == 0:
            raise RecipeError(
                "dcn has neither dense columns nor features: name some in [log] and [log.features]"
            )
        self._is_parallel = options.structure == "parallel"
        self.cross = CrossNetwork(
            width, options.cross_layers, low_rank=options.low_rank, generator=generator
        )
        self.deep = MLP([width, *options.deep], dropout=dropout, generator=generator)
        last = self.deep.out_features + (width if self._is_parallel else 0)
        self.logit = make_linear(last, 1, generator=generator)

    def begin(self, dense: Tensor) -> Tensor:
        """Give the dense values back: all work needs the embeddings."""
        return dense

    def finish(
        self,
        begun: Tensor,
        pooled: Tensor,
        sequences: "dict[str, JaggedTensor] | None" = None,
        context: DropoutContext | None = None,
    ) -> Tensor:
        """Run the cross network and the deep MLP; see `ClickModel.finish`."""
        del sequences
        x0 = torch.cat([begun, pooled], 1)
        crossed = self.cross(x0)
        if self._is_parallel:
            hidden = torch.cat([crossed, self.deep(x0, context)], 1)
        else:
            hidden = self.deep(crossed, context)
        logits: Tensor = self.logit(hidden)
        return logits.view(len(pooled))
