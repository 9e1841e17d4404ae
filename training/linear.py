"""Dense parameters drawn from an explicit generator, so that creating a model leaves no trace elsewhere."""

import torch
from torch import nn

__all__ = ["glorot", "make_linear"]


def glorot(*shape: int, generator: torch.Generator) -> nn.Parameter:
    """A parameter drawn uniformly from +-sqrt(6 / (fan in + fan out)) (Glorot and Bengio, AISTATS 2010).

    Args:
        shape: two sizes, fan out and fan in.
        generator: where the numbers come from; it moves on.
    """
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(shape), generator=generator))


def make_linear(
    in_features: int, out_features: int, *, bias: bool = True, generator: torch.Generator
) -> nn.Linear:
    """A linear map with `glorot` weights and zero bias.

    Args:
        in_features: columns of the input.
        out_features: columns of the output.
        bias: whether a vector is added.
        generator: where the numbers come from; it moves on. The global generator stays untouched.
    """
    # On the meta device the constructor draws no numbers; both parameters are replaced right away.
    with torch.device("meta"):
        linear = nn.Linear(in_features, out_features, bias=bias)
    linear.weight = glorot(out_features, in_features, generator=generator)
    if bias:
        linear.bias = nn.Parameter(torch.zeros(out_features))
    return linear
