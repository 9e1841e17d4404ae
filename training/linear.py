"""Dense parameters drawn from an explicit generator, so that creating a model leaves no trace elsewhere."""

import torch
from torch import Tensor, nn

from windrow.training.dense import linear

__all__ = ["Linear", "glorot", "make_linear"]


class Linear(nn.Linear):
    """A linear map that multiplies as `windrow.training.dense` does; in all else PyTorch's."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute x W^T + b for rows x: [rows, in_features] -> [rows, out_features]."""
        return linear(x, self.weight, self.bias)


def glorot(*shape: int, generator: torch.Generator) -> nn.Parameter:
    """A parameter drawn uniformly from +-sqrt(6 / (fan in + fan out)) (Glorot and Bengio, AISTATS 2010).

    Args:
        shape: two sizes, fan out and fan in.
        generator: where the numbers come from; it moves on.
    """
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(shape), generator=generator))


def make_linear(
    in_features: int, out_features: int, *, bias: bool = True, generator: torch.Generator
) -> Linear:
    """A linear map with `glorot` weights and zero bias.

    Args:
        in_features: columns of the input.
        out_features: columns of the output.
        bias: whether a vector is added.
        generator: where the numbers come from; it moves on. The global generator stays untouched.
    """
    # On the meta device the constructor draws no numbers; both parameters are replaced right away.
    with torch.device("meta"):
        layer = Linear(in_features, out_features, bias=bias)
    layer.weight = glorot(out_features, in_features, generator=generator)
    if bias:
        layer.bias = nn.Parameter(torch.zeros(out_features))
    return layer
