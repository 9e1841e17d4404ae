"""Row-wise Adagrad for dense gradients: one accumulator for each row instead of one for each value.

The mean over a row's D columns takes the place of the single square (as in FBGEMM's and TorchRec's kernels)::

    accumulator[row] += (1 / D) * sum over columns of gradient[row, column] ** 2
    weight[row]      -= learning_rate * gradient[row] / (sqrt(accumulator[row]) + eps)

Adagrad itself: Duchi, Hazan, Singer: Adaptive Subgradient Methods, JMLR 2011.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["RowWiseAdagrad", "update_rows"]


class RowWiseAdagrad(Optimizer):
    """PyTorch's optimiser interface around `update_rows`; the state of a parameter is ``sum``, [rows] float32.

    Args:
        parameters: each [rows, dim].
        lr: step size.
        eps: added to the square root.
        weight_decay: times the weight, added to the gradient.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, lr: float, eps: float, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "eps": eps, "weight_decay": weight_decay})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["sum"] = parameter.new_zeros(len(parameter))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient.

        Args:
            closure: computes loss and gradients anew, as for PyTorch's optimisers; or None.

        Returns:
            What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    accumulator = self.state[parameter]["sum"]
                    gradient = parameter.grad
                    if group["weight_decay"]:
                        gradient = gradient.add(parameter, alpha=group["weight_decay"])
                    update_rows(parameter, gradient, accumulator, group["lr"], group["eps"])
        return loss


def update_rows(
    weight: Tensor, gradient: Tensor, accumulator: Tensor, learning_rate: float, eps: float
) -> None:
    """One step of row-wise Adagrad, in place; rows with a zero gradient keep their values.

    Args:
        weight: [rows, dim] float32.
        gradient: of the same shape.
        accumulator: [rows] float32.
        learning_rate: step size.
        eps: above 0.
    """
    accumulator.add_(torch.linalg.vecdot(gradient, gradient), alpha=1 / weight.shape[1])
    scale = accumulator.sqrt().add_(eps).reciprocal_().mul_(-learning_rate)
    weight.addcmul_(gradient, scale[:, None])
