"""What a user says about embedding tables: the config of each, and how they are stored and learnt.

Names and meaning of configs are TorchRec's, so code moves over by its imports.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import torch

from windrow.comm.errors import RecipeError

__all__ = [
    "EmbeddingBagConfig",
    "EmbeddingConfig",
    "Optimizer",
    "PoolingType",
    "Precision",
    "TableConfig",
    "TableOptions",
    "check_configs",
    "embedding_names",
    "features_of",
    "pooling_of",
]


@unique
class PoolingType(Enum):
    """How the rows of a bag become one vector."""

    SUM = "SUM"
    MEAN = "MEAN"


class TableConfig(Protocol):
    """What is read of a configuration, be it ours or TorchRec's."""

    num_embeddings: int
    embedding_dim: int
    name: str
    feature_names: list[str]


@dataclass(kw_only=True, slots=True)
class EmbeddingConfig:
    """One embedding table whose rows are returned one by one."""

    num_embeddings: int
    """Rows."""
    embedding_dim: int
    """Columns, a multiple of 4."""
    name: str
    """Unique in its collection."""
    feature_names: list[str] = field(default_factory=list)
    """Features whose ids are row numbers of this table; none given: one, of the table's own name."""

    def __post_init__(self) -> None:
        self.feature_names = self.feature_names or [self.name]


@dataclass(kw_only=True, slots=True)
class EmbeddingBagConfig(EmbeddingConfig):
    """One embedding table whose rows are pooled: those of a sample's ids become one vector."""

    pooling: PoolingType = PoolingType.SUM
    """SUM, or MEAN, the sum divided by the number of ids; zeros for a sample without ids."""


UNSUPPORTED: dict[str, tuple[object, str]] = {
    "weight_init_max": (None, "set initial_scale of the tables' options, or write into local_tables()"),
    "weight_init_min": (None, "set initial_scale of the tables' options, or write into local_tables()"),
    "need_pos": (False, "give the positions' weights as weights of the ids"),
    "use_virtual_table": (False, "hash the ids into a table of fixed size"),
}
"""Fields of TorchRec's configurations -> the one value that is understood, and the cure."""


def check_configs(tables: Sequence[TableConfig], *, pooled: bool) -> None:
    """Refuse tables that no collection can be made of.

    Args:
        tables: configurations, ours or TorchRec's.
        pooled: whether they are for pooled embeddings.

    Raises:
        RecipeError: no table; a name twice; no row; columns that are no multiple of 4; a feature twice in one table;
            a pooling or a TorchRec option that is not understood.
    """
    if not tables:
        raise RecipeError("a collection needs at least one table")
    for name, times in Counter(table.name for table in tables).items():
        if times > 1:
            raise RecipeError(f"{times} tables are named {name!r}: give each a name of its own")
    for table in tables:
        if table.num_embeddings < 1:
            raise RecipeError(f"table {table.name!r}: num_embeddings = {table.num_embeddings}: at least 1")
        if table.embedding_dim < 4 or table.embedding_dim % 4:
            raise RecipeError(
                f"table {table.name!r}: embedding_dim = {table.embedding_dim}: must be a multiple of 4"
            )
        if len(set(features_of(table))) != len(features_of(table)):
            raise RecipeError(f"table {table.name!r}: a feature twice in feature_names {table.feature_names}")
        if pooled and pooling_of(table) not in {"SUM", "MEAN"}:
            raise RecipeError(f"table {table.name!r}: pooling {pooling_of(table)}: expected SUM or MEAN")
        _check_unsupported(table)


def features_of(table: TableConfig) -> list[str]:
    """The features of a table: its own name where it names none."""
    return list(table.feature_names) or [table.name]


def pooling_of(table: Any) -> str:
    """Name of the pooling, "SUM" or "MEAN" where it is supported; SUM where the configuration knows of none."""
    pooling = getattr(table, "pooling", PoolingType.SUM)
    return str(pooling.value)


def embedding_names(tables: Sequence[TableConfig]) -> list[list[str]]:
    """Names of the results: the feature's, or ``feature@table`` where several tables are looked up by it.

    Args:
        tables: configurations, ours or TorchRec's.

    Returns:
        One name per table and feature, in their order.
    """
    times = Counter(feature for table in tables for feature in features_of(table))
    return [
        [f"{feature}@{table.name}" if times[feature] > 1 else feature for feature in features_of(table)]
        for table in tables
    ]


def _check_unsupported(table: TableConfig) -> None:
    for name, (understood, cure) in UNSUPPORTED.items():
        value = getattr(table, name, understood)
        if value != understood:
            raise RecipeError(f"table {table.name!r}: {name} = {value!r} is not supported: {cure}")
    data_type = getattr(table, "data_type", None)
    if data_type is not None and str(data_type.value).upper() != "FP32":
        raise RecipeError(
            f"table {table.name!r}: data_type = {data_type}: leave it out and set precision of the tables' options"
        )


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
