"""What a user says about embedding tables: the config of each, and how they are stored and learnt.

Names and meaning of configs are TorchRec's, so code moves over by its imports.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from enum import Enum, unique
from functools import partial
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from windrow.comm.errors import RecipeError, nearest_name
from windrow.comm.options import (
    NonNegativeFloat,
    NonNegativeInt,
    PathOption,
    PositiveFloat,
    PositiveInt,
    Probability,
    Sections,
    Share,
    checked_dataclass,
)

__all__ = [
    "EmbeddingBagConfig",
    "EmbeddingConfig",
    "Optimizer",
    "PoolingType",
    "Precision",
    "TableConfig",
    "TableOptions",
    "TableOverrides",
    "check_configs",
    "check_names",
    "embedding_names",
    "features_of",
    "init_fn_of",
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


@dataclass(slots=True)
class EmbeddingConfig:
    """One embedding table whose rows are returned one by one."""

    num_embeddings: int
    """Rows."""
    embedding_dim: int
    """Columns. Those beyond the last multiple of 4 cost as much memory and time as 4."""
    name: str
    """Unique in its collection."""
    _: KW_ONLY
    feature_names: list[str] = field(default_factory=list)
    """Features whose ids are row numbers of this table; none given: one, of the table's own name."""
    init_fn: Callable[[Tensor], Any] | None = None
    """Writes the first values into the table, a parameter [rows, dim] float32 on the CPU, in place of uniform ones.
    Every rank that stores a part of the table calls it once, with PyTorch's CPU generator seeded alike, and keeps its
    part: values do not depend on the plan, but the whole table is in memory for a moment."""

    def __post_init__(self) -> None:
        self.feature_names = self.feature_names or [self.name]


@dataclass(kw_only=True, slots=True)
class EmbeddingBagConfig(EmbeddingConfig):
    """One embedding table whose rows are pooled: those of a sample's ids become one vector."""

    pooling: PoolingType = PoolingType.SUM
    """SUM, or MEAN, the sum divided by the number of ids; zeros for a sample without ids."""


_UNSUPPORTED: dict[str, tuple[object, str]] = {
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
        RecipeError: no table; a name twice; no row; no column; a feature twice in one table;
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
        if table.embedding_dim < 1:
            raise RecipeError(f"table {table.name!r}: embedding_dim = {table.embedding_dim}: at least 1")
        if len(set(features_of(table))) != len(features_of(table)):
            raise RecipeError(f"table {table.name!r}: a feature twice in feature_names {table.feature_names}")
        if pooled and pooling_of(table) not in {"SUM", "MEAN"}:
            raise RecipeError(f"table {table.name!r}: pooling {pooling_of(table)}: expected SUM or MEAN")
        _check_unsupported(table)


def features_of(table: TableConfig) -> list[str]:
    """The features of a table: its own name where it names none."""
    return list(table.feature_names) or [table.name]


def init_fn_of(table: TableConfig) -> Callable[[Tensor], Any] | None:
    """What writes a table's first values; None for the usual ones, which each rank makes for its own rows.

    TorchRec's configurations name a function for these as well, which is not called.
    """
    found: Callable[[Tensor], Any] | None = getattr(table, "init_fn", None)
    usual = (1 / table.num_embeddings) ** 0.5
    if isinstance(found, partial) and found.func is nn.init.uniform_ and not found.args:
        return None if found.keywords == {"a": -usual, "b": usual} else found
    return found


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


def check_names(section: str, names: Iterable[str], tables: Sequence[str]) -> None:
    """Refuse what is said of a table that is not there.

    Args:
        section: of the recipe, for the message.
        names: what it names.
        tables: the tables there are.

    Raises:
        RecipeError: says the nearest name, or all of them.
    """
    for name in names:
        if name not in tables:
            raise RecipeError(f"{section}.{name}: there is no such table. {nearest_name(name, tables)}")


def _check_unsupported(table: TableConfig) -> None:
    for name, (understood, cure) in _UNSUPPORTED.items():
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
FormName = Literal["dense", "hashed", "quotient_remainder", "narrow", "robe", "tensor_train", "codes", "int8", "int4"]
HotBy = Literal["lookups", "gradients"]
Sketch = Literal["rows", "robe"]
FirstCores = Literal["sampled_gaussian", "gaussian", "uniform", "published_code"]
Compression = Annotated[float, Field(gt=1)]
Cores = Annotated[int, Field(ge=2, le=4)]


@checked_dataclass
class TableOverrides:
    """What differs for one table: the recipe's section [tables.NAME]. None: as [tables] says."""

    dim: PositiveInt | None = None
    """Columns. Collections made in Python take them from the table's configuration."""
    optimizer: Optimizer | None = None
    """Which one."""
    learning_rate: PositiveFloat | None = None
    """Step size; a schedule changes it by the same factor as that of [tables]."""
    eps: PositiveFloat | None = None
    """Added to the square root in the denominator."""
    precision: Precision | None = None
    """How values are stored."""
    initial_scale: PositiveFloat | None = None
    """First values are uniform in [-initial_scale, initial_scale)."""
    weight_decay: NonNegativeFloat | None = None
    """What each value, times itself, adds to its gradient in every step."""
    betas: tuple[Probability, Probability] | None = None
    """adam only: decay of the moments."""
    form: FormName | None = None
    """In what form vectors are stored."""
    compression: Compression | None = None
    """Numbers of the dense table for each that is stored."""
    robe_block: PositiveInt | None = None
    """robe only: numbers read in one piece."""
    robe_published_code: bool | None = None
    """robe only: as in the published code."""
    robe_sharded: bool | None = None
    """robe only: whether the array is cut over ranks."""
    tt_cores: Cores | None = None
    """tensor_train only: cores."""
    tt_rank: PositiveInt | None = None
    """tensor_train only: rank of all bonds."""
    tt_first_values: FirstCores | None = None
    """tensor_train only: what first values of cores are drawn from."""
    code_parts: PositiveInt | None = None
    """codes only: parts of a vector."""
    code_every: NonNegativeInt | None = None
    """codes only: steps between choosing codes anew."""
    code_sketch: Sketch | None = None
    """codes only: where entries begin that hashes choose."""
    code_file: PathOption | None = None
    """codes only: a .npy file of codes."""
    hot_share: Share | None = None
    """Of all forms but dense: share of rows that are kept as they are."""
    hot_bytes: NonNegativeInt | None = None
    """The same in bytes."""
    hot_counted: bool | None = None
    """Whether hot rows are found by counting."""
    hot_by: HotBy | None = None
    """What is counted."""
    hot_leave: bool | None = None
    """Whether hot rows give their places up to others."""
    hot_every: PositiveInt | None = None
    """Steps between taking rows in."""


@checked_dataclass
class TableOptions:
    """How embedding tables are stored, and how they learn.

    What is said here holds for all tables but for what `per_table` says otherwise. Tables of different optimiser,
    rate and precision are looked up by one call for each kind on a rank.
    """

    dim: PositiveInt = 64
    """Columns of every table. Those beyond the last multiple of 4 cost as much memory and time as 4."""
    optimizer: Optimizer = "rowwise_adagrad"
    """rowwise_adagrad: Adagrad with one accumulator per row, 4 bytes; adagrad: one per value; sgd: none; adam: two
    per value, moves every row in every step, and needs memory for a gradient of each table as well."""
    learning_rate: PositiveFloat = 0.02
    """Step size of the tables; the dense part of the model has its own."""
    eps: PositiveFloat = 1e-8
    """Added to the square root in the denominator; not used by sgd."""
    precision: Precision = "fp32"
    """How values are stored; fp16 halves the memory and rounds each update to nearest, so small ones may be lost. The
    optimiser's accumulators are fp32 either way. Not for tables of which every rank holds a copy."""
    initial_scale: PositiveFloat | None = None
    """First values are uniform in [-initial_scale, initial_scale); "none" for sqrt(1 / rows), as in DLRM."""
    pretrained: Mapping[str, PathOption] = field(default_factory=dict)
    """First values by table, instead of others: .npy or .safetensors files of [rows, dim], row k for id k. Each rank
    reads its own part; of rows that stand in another order than that of their ids, all."""
    weight_decay: NonNegativeFloat = 0.0
    """What each value, times itself, adds to its gradient in every step (an L2 penalty, as PyTorch's optimisers have
    it). It moves every row in every step, so it has the costs of adam."""
    betas: tuple[Probability, Probability] = (0.9, 0.999)
    """adam only: decay of the first and of the second moment for each step."""
    form: FormName = "dense"
    """How vectors are stored. dense: a row for each id. In fewer numbers: robe, blocks at hashed places of one array
    that all such tables share; tensor_train, the product of 2 to 4 cores; hashed, rows that ids share by a hash;
    quotient_remainder, the product of two rows that others share; narrow, fewer columns and a matrix that widens
    them; codes, parts that are chosen from codebooks; int8 and int4, a row for each id in so many bits a number, with
    rowwise_adagrad or sgd. See docs/compression.md."""
    compression: Compression = 100.0
    """Of all forms but dense, int8 and int4: numbers of the dense table for each that is stored."""
    robe_block: PositiveInt = 32
    """robe only: numbers that are read in one piece (Z). Best a divisor of dim; a cache line holds 16."""
    robe_published_code: bool = False
    """robe only: without signs, with blocks that end within the array, and with the prime and the coefficients of the
    code that the paper's authors published."""
    robe_sharded: bool = False
    """robe only: whether the array is a table of its own, which planners cut by rows and owners look up, not a copy on
    each rank: for pooled features, and arrays that are too large for one rank. Blocks, which must divide dim, begin at
    multiples of their length, with one sign each."""
    tt_cores: Cores = 3
    """tensor_train only: matrices that are multiplied for a row."""
    tt_rank: PositiveInt | None = None
    """tensor_train only: rank of all bonds between cores; "none" for the largest that `compression` allows."""
    tt_first_values: FirstCores = "sampled_gaussian"
    """tensor_train only: what first values of cores are drawn from: a normal distribution without its middle, all of
    it, or a uniform one, each so wide that vectors have the variance of a dense table's; published_code: the first of
    these as wide as the paper's authors published it, thousands of times that."""
    code_parts: PositiveInt = 4
    """codes only: parts of a vector, which must divide dim; each row has a code for each."""
    code_every: NonNegativeInt = 0
    """codes only: steps after which rows that have become alike get the same codes (CCE); codes then take 4 bytes for
    each row and part. 0: codes are hashes, or those of tables.pretrained. What helpers have learnt since is lost, so
    let the last time be well before the end."""
    code_file: PathOption | None = None
    """codes only: codes in place of hashes, a .npy file of whole numbers from 0 on, row k for id k, [rows, code_parts]
    or [rows] for all parts: clusters of a graph's vertices, say. A part of a row is then an entry of its code, which
    others have too, and one that a hash names, of all entries that `compression` leaves. A code takes 4 bytes more."""
    code_sketch: Sketch = "rows"
    """codes only: where entries begin that hashes choose. rows: where one ends; robe: at any number of all codebooks
    of a table, with signs, as blocks of robe do."""
    hot_share: Share = 0.0
    """Of all forms but dense: share of a table's rows that are kept as they are beside the form, and learn alone; what
    they take comes on top."""
    hot_bytes: NonNegativeInt = 0
    """The same as bytes of vectors for each table; the larger of the two holds."""
    hot_counted: bool = False
    """Which rows are hot. false: the first ones, which in a prepared log are those that occur most often; true: those
    that are looked up most in the run, in any order of ids."""
    hot_by: HotBy = "lookups"
    """With hot_counted, what is counted of rows: lookups, or gradients, their lengths over the mean (as in CAFE)."""
    hot_leave: bool = False
    """With hot_counted, whether rows give their places up to others that are wanted more by now (as in CAFE): what
    they have learnt alone is lost. false: rows stay, and half of the places that are left are given away each time."""
    hot_every: PositiveInt = 100
    """With hot_counted, steps after which rows are taken in."""
    per_table: Sections[TableOverrides] = field(default_factory=dict)
    """What differs for single tables, by name; in a recipe the sections [tables.NAME]."""

    def __post_init__(self) -> None:
        """Check what goes together.

        Raises:
            RecipeError: names the fields, their values and the cure.
        """
        if self.precision == "fp16" and self.moves_every_row:
            raise RecipeError(
                f'tables.precision = "fp16" does not go with optimizer = "{self.optimizer}" and weight_decay = '
                f"{self.weight_decay:g}, which need dense fp32 gradients: take precision = "
                '"fp32", or rowwise_adagrad, adagrad or sgd without weight_decay'
            )
        if self.precision == "fp16" and self.form != "dense":
            raise RecipeError(
                f'tables.form = "{self.form}" does not go with precision = "fp16": stored numbers have dense fp32 '
                'gradients. Take precision = "fp32", and a larger compression'
            )
        if self.form == "robe" and self.robe_sharded and (self.robe_published_code or self.keeps_hot_rows):
            raise RecipeError(
                "tables.robe_sharded = true goes neither with robe_published_code, whose blocks begin anywhere, nor "
                "with hot_share and hot_bytes, whose rows are on every rank: leave them out, or set robe_sharded = "
                "false"
            )
        if self.keeps_hot_rows and not self.hot_counted and (self.hot_leave or self.hot_by != "lookups"):
            raise RecipeError(
                f"tables.hot_counted = false does not go with hot_leave = {str(self.hot_leave).lower()} and hot_by = "
                f'"{self.hot_by}": the first rows are hot, and stay. Set hot_counted = true'
            )
        self._check_overrides()

    def _check_overrides(self) -> None:
        for name in self.pretrained:
            if self.per_table.get(name, TableOverrides()).code_file or self.code_file:
                raise RecipeError(
                    f"tables.pretrained has rows of {name!r}, from which codes would be chosen, and code_file has its "
                    "codes: leave one of the two out"
                )
        for name in self.per_table:
            try:
                self.of(name)
            except RecipeError as error:
                raise RecipeError(f"table {name!r}: {error}") from error

    def of(self, table: str) -> "TableOptions":
        """What holds for one table, without further overrides."""
        changed = self.per_table.get(table, TableOverrides())
        given = {entry.name: getattr(changed, entry.name) for entry in fields(changed)}
        return replace(self, per_table={}, **{name: value for name, value in given.items() if value is not None})

    def of_one_batch(self, table: str) -> "TableOptions":
        """What tables have in common that one call can look up; equal for those that can."""
        own = replace(self.of(table), dim=1, initial_scale=None, pretrained={})
        return replace(
            own, hot_share=0.0, hot_bytes=0, hot_counted=False, hot_by="lookups", hot_leave=False, hot_every=1
        )

    def as_dense(self) -> "TableOptions":
        """The same without compression."""
        own = {name: replace(found, form=None) for name, found in self.per_table.items()}
        return replace(self, form="dense", per_table=own)

    def only(self, tables: Iterable[str]) -> "TableOptions":
        """The same without what is said of other tables than these."""
        kept = set(tables)
        per_table = {name: found for name, found in self.per_table.items() if name in kept}
        pretrained = {name: path for name, path in self.pretrained.items() if name in kept}
        return replace(self, per_table=per_table, pretrained=pretrained)

    @property
    def keeps_hot_rows(self) -> bool:
        """Whether some rows of compressed tables are kept as they are."""
        return self.hot_share > 0 or self.hot_bytes > 0

    @property
    def moves_every_row(self) -> bool:
        """Whether a step also changes rows that were not looked up: then tables cannot learn in the backward pass."""
        return self.optimizer == "adam" or self.weight_decay > 0

    @property
    def dtype(self) -> torch.dtype:
        """Type of the stored values."""
        return torch.float16 if self.precision == "fp16" else torch.float32

    def optimizer_bytes_per_row(self, dim: int) -> int:
        """Bytes of optimiser state that a row of ``dim`` columns costs on the rank that stores it."""
        values = {"sgd": 0, "rowwise_adagrad": 1, "adagrad": dim, "adam": 2 * dim}[self.optimizer]
        return values * torch.float32.itemsize
