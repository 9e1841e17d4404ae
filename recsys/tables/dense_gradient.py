"""Tables with a gradient as large as themselves.

For what moves every row (adam, weight decay), and for tables of which every rank holds a copy.
The updates are those of `windrow.recsys.tables.fbgemm`, applied to every row. Where a row was not looked up its
gradient is zero, and but for those two it stays as it is.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from torch.optim import SGD, Adagrad, Adam, Optimizer

from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.pooling import pool_rows
from windrow.recsys.tables.rowwise_adagrad import RowWiseAdagrad
from windrow.recsys.tables.table import LocalTable, TableBatch

__all__ = ["DenseGradientTableBatch"]

STATE_NAMES = {
    "sum": "sum_of_squares",
    "exp_avg": "first_moment",
    "exp_avg_sq": "second_moment",
    "step": "step",
}
"""PyTorch's name of a state -> ours."""


class DenseGradientTableBatch(TableBatch):
    """Members are float32 parameters, with PyTorch's optimisers and `RowWiseAdagrad`.

    Where ranks hold copies, ``GradientReducer(world, batch.parameters())`` sums the gradients between the backward
    pass and `step`. Values are zero until they are written to `weight`.

    Args:
        members: see `TableBatch`.
        lookups: see `TableBatch`.
        options: optimiser and its settings; precision must be fp32.
        pooled: see `TableBatch`.
        device: of everything. The batch cannot move later: the optimiser state would stay behind.
    """

    def __init__(
        self,
        members: tuple[LocalTable, ...],
        lookups: tuple[int, ...],
        options: TableOptions,
        *,
        pooled: bool = True,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(members, lookups, pooled=pooled)
        assert options.dtype == torch.float32, "dense gradients are fp32"
        self._weights = nn.ParameterList(
            nn.Parameter(torch.zeros(member.num_rows, member.dim, device=device)) for member in members
        )
        self._parameters_in_order = tuple(self._weights)
        self._keeps_steps = options.optimizer == "adam"
        self._moves_every_row = options.moves_every_row
        self._optimizer = _make_optimizer(self._parameters_in_order, options)

    def forward(self, values: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        """See `TableBatch.forward`."""
        if self.pooled:
            return pool_rows(self._parameters_in_order, self.lookups, values, offsets, weights)
        num_samples = (len(offsets) - 1) // len(self.lookups)
        bounds = [0] * (len(self.lookups) + 1) if num_samples == 0 else offsets[::num_samples].tolist()
        rows = [
            embedding(values[start:stop], self._parameters_in_order[member])
            for member, start, stop in zip(self.lookups, bounds[:-1], bounds[1:], strict=True)
        ]
        return torch.cat(rows)

    def step(self) -> None:
        """See `TableBatch.step`. Reads and writes every row."""
        if self._moves_every_row:
            # By past moments or by decay: so a missing gradient is a zero one, never a skipped step.
            for parameter in self._parameters_in_order:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        self._optimizer.step()
        # Never to None: the gradient may be a view into the bucket in which ranks sum it.
        self._optimizer.zero_grad(set_to_none=False)

    def set_learning_rate(self, learning_rate: float) -> None:
        """See `TableBatch.set_learning_rate`."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate

    def weight(self, member: int) -> Tensor:
        """See `TableBatch.weight`."""
        values: Tensor = self._parameters_in_order[member].detach()
        return values

    def optimizer_state(self, member: int) -> dict[str, Tensor]:
        """See `TableBatch.optimizer_state`."""
        state = self._optimizer.state[self._parameters_in_order[member]]
        return {
            STATE_NAMES[name]: value for name, value in state.items() if self._keeps_steps or name != "step"
        }


def _make_optimizer(parameters: tuple[nn.Parameter, ...], options: TableOptions) -> Optimizer:
    """The optimiser of a section, with its state in place from the start."""
    rate, eps, decay = options.learning_rate, options.eps, options.weight_decay
    match options.optimizer:
        case "sgd":
            return SGD(parameters, lr=rate, weight_decay=decay, fused=True)
        case "rowwise_adagrad":
            return RowWiseAdagrad(parameters, lr=rate, eps=eps, weight_decay=decay)
        case "adagrad":
            # PyTorch has a fused Adagrad for CPUs only.
            fused = parameters[0].device.type == "cpu"
            return Adagrad(parameters, lr=rate, eps=eps, weight_decay=decay, fused=fused)
        case "adam":
            adam = Adam(parameters, lr=rate, eps=eps, betas=options.betas, weight_decay=decay, fused=True)
            for parameter in parameters:
                adam.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter, requires_grad=False),
                    "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
                }
            return adam
