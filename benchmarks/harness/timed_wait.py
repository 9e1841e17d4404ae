"""A model that only waits, as for an accelerator: so long, without a core, and with as many weights to be summed."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from windrow.gnn.message_passing import Block
from windrow.gnn.models import GNN

__all__ = ["TimedWait"]

FORWARD = 1 / 3
"""Of the time of a step: a backward pass takes about twice as long."""
SHARE_ABOVE = 1 / 4
"""Of a layer's time that the one above it takes, which has far fewer rows."""


class TimedWait(nn.Module):
    """Called as the model that it stands for, whose weights it has, layer by layer, and never changes.

    Args:
        model: what it stands for.
        seconds: of the forward and backward pass of a step.
        outputs: columns of what it returns.
    """

    def __init__(self, model: GNN, seconds: float, outputs: int) -> None:
        super().__init__()
        self._weights = [tuple(layer.parameters()) for layer in model.layers]
        self.weights = nn.ParameterList(weight for of_layer in self._weights for weight in of_layer)
        shares = torch.tensor([SHARE_ABOVE**number for number in range(len(self._weights))])
        self._seconds: list[float] = (seconds * shares / shares.sum()).tolist()
        self._outputs = outputs

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        """Zeros, [blocks[-1].num_dst, outputs]."""
        return self.wait(blocks[-1].num_dst, x)

    def wait(self, seeds: int, x: Tensor) -> Tensor:
        """Zeros, [seeds, outputs], where blocks are another library's."""
        found = x.new_zeros(seeds, self._outputs, dtype=torch.float32)
        for seconds, weights in zip(self._seconds, self._weights, strict=True):
            found = _Wait.apply(seconds if self.training else 0.0, found, *weights)  # type: ignore[no-untyped-call]
        return found


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, seconds: float, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.seconds, ctx.shapes = seconds, [weight.shape for weight in weights]
        time.sleep(FORWARD * seconds)
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep((1 - FORWARD) * ctx.seconds)
        return None, gradient, *(gradient.new_zeros(shape) for shape in ctx.shapes)
