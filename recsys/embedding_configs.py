"""What a user says about an embedding table. Names and meaning are TorchRec's, so code moves over by its imports."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Any, Protocol

from windrow.comm.errors import RecipeError

__all__ = [
    "EmbeddingBagConfig",
    "EmbeddingConfig",
    "PoolingType",
    "TableConfig",
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
