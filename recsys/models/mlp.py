"""The feed-forward net inside every model."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from windrow.training.dropout import DropoutContext
from windrow.training.linear import make_linear

__all__ = ["MLP"]


class MLP(nn.Module):
    """Layers of x <- drop(relu(W x + b)), and no other kind: a logit needs a linear map after them.

    Args:
        sizes: columns of the input, then of each layer; one number alone makes an MLP that changes nothing.
        dropout: chance of an entry to be dropped after each layer, in [0, 1).
        first_place: number of the first layer among all places of the model where something is dropped.
        generator: where the weights come from; it moves on.
    """

    def __init__(
        self, sizes: Sequence[int], *, dropout: float = 0.0, first_place: int = 0, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.out_features = sizes[-1]
        self.layers = nn.ModuleList(
            make_linear(sizes[i], sizes[i + 1], generator=generator) for i in range(len(sizes) - 1)
        )
        self._dropout = dropout
        self._first_place = first_place

    def forward(self, x: Tensor, context: DropoutContext | None = None) -> Tensor:
        """Run all layers.

        Args:
            x: [B, sizes[0]].
            context: what dropout's choices depend on; None: nothing is dropped.

        Returns:
            [B, sizes[-1]].
        """
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if context is None:
                x = torch.relu(x)
            else:
                x = context.drop(x, self._dropout, layer=self._first_place + index, rectify=True)
        return x
