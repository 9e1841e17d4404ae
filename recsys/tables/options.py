"""The recipe section that says how embedding tables are stored and learnt."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from windrow.comm.errors import RecipeError

__all__ = ["Optimizer", "Precision", "TableOptions"]

Optimizer = Literal["rowwise_adagrad", "adagrad", "sgd", "adam"]
Precision = Literal["fp32", "fp16"]

DIM_MULTIPLE = 4
"""FBGEMM's kernels work on groups of four columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableOptions:
    """How embedding tables are stored, and how they learn."""

    dim: int = 64
    """Columns of every table: a multiple of 4."""
    optimizer: Optimizer = "rowwise_adagrad"
    """rowwise_adagrad: Adagrad with one accumulator per row, 4 bytes; adagrad: one per value; sgd: none; adam: two
    per value, moves every row in every step, and needs memory for a gradient of each table as well."""
    learning_rate: float = 0.02
    """Step size of the tables; the dense part of the model has its own."""
    eps: float = 1e-8
    """Added to the square root in the denominator; not used by sgd."""
    precision: Precision = "fp32"
    """How values are stored; fp16 halves the memory and rounds each update to nearest, so small ones may be lost. The
    optimiser's accumulators are fp32 either way. Not for tables of which every rank holds a copy."""
    initial_scale: float | None = None
    """First values are uniform in [-initial_scale, initial_scale); "none" for sqrt(1 / rows), as in DLRM."""
    betas: tuple[float, float] = (0.9, 0.999)
    """adam only: decay of the first and of the second moment for each step."""

    def __post_init__(self) -> None:
        """Check the ranges, and what goes together.

        Raises:
            RecipeError: names the field, its value and what is allowed.
        """
        for name, kind in (("optimizer", Optimizer), ("precision", Precision)):
            if getattr(self, name) not in get_args(kind):
                raise RecipeError(
                    f'tables.{name} = "{getattr(self, name)}": expected one of {", ".join(get_args(kind))}'
                )
        if self.dim < DIM_MULTIPLE or self.dim % DIM_MULTIPLE:
            raise RecipeError(
                f"tables.dim = {self.dim}: must be a multiple of {DIM_MULTIPLE}, for example 64"
            )
        for name in ("learning_rate", "eps", "initial_scale"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise RecipeError(f"tables.{name} = {value}: must be above 0 and finite")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise RecipeError(f"tables.betas = {list(self.betas)}: each must be at least 0 and below 1")
        if self.precision == "fp16" and not self.can_fuse:
            raise RecipeError(
                f'tables.precision = "fp16" does not go with optimizer = "{self.optimizer}", which learns from dense '
                'fp32 gradients: take precision = "fp32", or rowwise_adagrad, adagrad or sgd'
            )

    @property
    def can_fuse(self) -> bool:
        """Whether the backward pass itself can update the rows it touches: exact for all but adam."""
        return self.optimizer != "adam"

    @property
    def dtype(self) -> torch.dtype:
        """Type of the stored values."""
        return torch.float16 if self.precision == "fp16" else torch.float32

    def optimizer_bytes_per_row(self, dim: int) -> int:
        """Bytes of optimiser state that a row of ``dim`` columns costs on the rank that stores it."""
        values = {"sgd": 0, "rowwise_adagrad": 1, "adagrad": dim, "adam": 2 * dim}[self.optimizer]
        return values * torch.float32.itemsize
