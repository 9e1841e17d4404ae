"""The recipe section that says how embedding tables are stored and learnt."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
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
    pretrained: Mapping[str, Path] = field(default_factory=dict)
    """First values by table, instead of random ones: .npy or .safetensors files of [rows, dim], row k for id k. Each
    rank reads its own part."""
    weight_decay: float = 0.0
    """What each value, times itself, adds to its gradient in every step (an L2 penalty, as PyTorch's optimisers have
    it). It moves every row in every step, so it has the costs of adam."""
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
        if not 0 <= self.weight_decay < float("inf"):
            raise RecipeError(f"tables.weight_decay = {self.weight_decay}: must be 0 or above, and finite")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise RecipeError(f"tables.betas = {list(self.betas)}: each must be at least 0 and below 1")
        if self.precision == "fp16" and not self.can_fuse:
            raise RecipeError(
                f'tables.precision = "fp16" does not go with optimizer = "{self.optimizer}" and weight_decay = '
                f"{self.weight_decay:g}, which need dense fp32 gradients: take precision = "
                '"fp32", or rowwise_adagrad, adagrad or sgd without weight_decay'
            )

    @property
    def can_fuse(self) -> bool:
        """Whether the backward pass itself can update the rows it touches: where no other row moves."""
        return not self.moves_every_row

    @property
    def moves_every_row(self) -> bool:
        """Whether a step also changes rows that were not looked up."""
        return self.optimizer == "adam" or self.weight_decay > 0

    @property
    def dtype(self) -> torch.dtype:
        """Type of the stored values."""
        return torch.float16 if self.precision == "fp16" else torch.float32

    def optimizer_bytes_per_row(self, dim: int) -> int:
        """Bytes of optimiser state that a row of ``dim`` columns costs on the rank that stores it."""
        values = {"sgd": 0, "rowwise_adagrad": 1, "adagrad": dim, "adam": 2 * dim}[self.optimizer]
        return values * torch.float32.itemsize
