"""PyTorch's optimisers without its compiler."""

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from windrow.comm.gradients import gradient_strides

if TYPE_CHECKING:
    from windrow.training.task import TrainingOptions

__all__ = ["make_optimizer", "without_compiler"]

AnyOptimizer = TypeVar("AnyOptimizer", bound=torch.optim.Optimizer)

# One that is left out imports the compiler when it is first called.
_WRAPPED = ("add_param_group", "load_state_dict", "state_dict", "step", "zero_grad")


def without_compiler(kind: type[AnyOptimizer]) -> type[AnyOptimizer]:
    """The same optimiser, that cannot be compiled.

    PyTorch wraps methods of its optimisers so that `torch.compile` passes over them, and the first call of one imports
    the compiler: nearly the time that importing PyTorch itself takes, and 130 MiB.

    Args:
        kind: one of PyTorch's, or a class derived from `torch.optim.Optimizer`. Its steps need no gradients.

    Returns:
        A class with the same arguments, results and state.
    """
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in _WRAPPED}
    # The wrapper of a step has one more task: to turn gradients off.
    return type(kind.__name__, (kind,), {**plain, "step": torch.no_grad()(plain["step"])})


def make_optimizer(parameters: Sequence[nn.Parameter], options: "TrainingOptions") -> torch.optim.Optimizer:
    """That of the dense part; there may be no parameters."""
    kinds = {"adam": torch.optim.AdamW, "adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}
    kind: Any = without_compiler(kinds[options.optimizer])
    # An optimiser of nothing is refused by torch.
    learnt = parameters or [nn.Parameter(torch.empty(0))]
    # A third of the time of the separate operations on CPUs; for real numbers only, and memory in the same order as
    # that of gradients and state: PyTorch's loop takes them one after another, whatever their strides.
    fused = options.optimizer == "adam" and all(
        one.is_floating_point() and one.stride() == gradient_strides(one) for one in learnt
    )
    how = {"fused": True} if fused else {}
    optimizer: torch.optim.Optimizer = kind(learnt, lr=options.learning_rate, weight_decay=options.weight_decay, **how)
    return optimizer
