"""Cross layers: products of the input with itself, of a degree that grows by one with every layer."""

import torch
from torch import Tensor, nn

from windrow.training.linear import make_linear

__all__ = ["CrossNetwork"]


class CrossNetwork(nn.Module):
    """The cross network of DCN-v2 (Wang et al. 2021, arXiv 2008.13535).

        x_{l+1} = x_0 * (W_l x_l + b_l) + x_l            with * entry by entry
        W_l = U_l V_l^T                                  of low rank r, where asked for: U_l, V_l [n, r]

    Cost for each layer and sample: n^2 multiply-adds, or 2 n r of low rank.

    Args:
        width: n, columns of the input.
        num_layers: 0 gives the input back.
        low_rank: r; None: W_l is any matrix.
        generator: where the weights come from; it moves on.
    """

    def __init__(
        self, width: int, num_layers: int, *, low_rank: int | None = None, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.narrow = nn.ModuleList()
        if low_rank is not None:
            self.narrow.extend(
                make_linear(width, low_rank, bias=False, generator=generator) for _ in range(num_layers)
            )
        self.wide = nn.ModuleList(
            make_linear(low_rank or width, width, generator=generator) for _ in range(num_layers)
        )

    def forward(self, x0: Tensor) -> Tensor:
        """Run all layers: [B, n] -> [B, n]."""
        x = x0
        for index, wide in enumerate(self.wide):
            inner = self.narrow[index](x) if self.narrow else x
            x = torch.addcmul(x, x0, wide(inner))
        return x
