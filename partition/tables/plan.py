"""A plan, and the tables it places: which rank holds which shard of which embedding table.

            columns 0        8       16
    rows   0 ┌───────┬───────┐
             │ rank 0│ rank 1│        table-wise    one shard
         500 ├───────┴───────┤        column-wise   whole columns
             │     rank 2    │        row-wise      whole rows
        1000 └───────────────┘        grid          anything else, as here

Ranges of rows may be replicated instead, all of a table's or some: every rank holds them, in all columns. Where the
rows that occur most often are in no range, since ids are hashed say, every rank may have copies of them, listed one by
one, beside the rank that owns them.

A plan may be that of several groups of ranks, each of which holds all tables, cut in the same way: lookups stay inside
a group, and groups exchange the gradients of rows that were looked up (2D parallelism). Of 4 ranks in 2 groups, rank 2
holds what rank 0 does, and rank 3 what rank 1 does.
`TableSpec` is what a planner has to know about a table, `Cost` what a step costs, part by part.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise, product
from typing import Any, Literal, TypeAlias

from windrow.comm.errors import PlanError

__all__ = [
    "COLUMN_MULTIPLE",
    "Copies",
    "Cost",
    "Kind",
    "Plan",
    "Range",
    "Replica",
    "Shard",
    "TableSpec",
    "check_plan",
    "rank_bytes",
    "shard_bytes",
    "sharing_features",
    "specs_by_name",
    "table_placement",
]

_ACCUMULATOR_BYTES = 4.0
"""One float32: the least optimiser state that a row of any piece keeps, where its optimiser keeps any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSpec:
    """One embedding table: its shape, what it weighs, and how often it is looked up."""

    name: str
    """Unique among the tables of a model."""
    rows: int
    """Number of embedding vectors."""
    dim: int
    """Numbers in each vector."""
    features: tuple[str, ...]
    """Features whose ids are row numbers of this table."""
    bytes_per_value: int = 4
    """Size of a weight: 4 for float32, 2 for float16."""
    optimizer_bytes_per_row: float = 0.0
    """Optimiser state of a whole row: 0 for SGD, 4 for row-wise Adagrad, 4 x dim for Adagrad, 8 x dim for Adam."""
    moves_every_row: bool = False
    """Whether a step also changes rows that were not looked up, as Adam and weight decay do."""
    lookups_per_sample: float = 1.0
    """Expected ids per sample, over all its features together."""
    access: tuple[float, ...] = ()
    """Shares of the lookups that go to the most frequent row, the next 2, 4, 8, ... rows, the last ones together
    (`windrow.partition.tables.access`); empty: all rows alike."""
    frequent_first: bool = True
    """Whether rows are in the order of `access`, as those of a vocabulary are, or in any order."""
    hot: tuple[int, ...] = ()
    """Of rows in any order: which ones are looked up most often, the most frequent first, as far as is known."""
    near: tuple[tuple[float, ...], ...] = ()
    """Shares of all lookups that each rank makes of equal ranges of rows, [ranks][ranges]
    (`windrow.partition.tables.affinity`); empty: all ranks alike."""
    lists_per_sample: float = 1.0
    """Lists of ids that are looked up, and vectors that travel, for each sample and feature: below 1 where equal lists
    are looked up once (RecD). ``lookups_per_sample`` counts the ids of these alone."""
    compressed_bytes: int | None = None
    """Memory of what its vectors are computed from, weights and optimiser state, on each rank that holds any piece of
    it, and its share of what several tables have in common; None: a row is stored for each id."""
    pooled: bool = True
    """Whether the rows of a list are summed, and travel as one vector; or one by one."""
    index_dedup: bool = False
    """Of rows that travel one by one: whether a rank asks for each id of a feature once in a step."""
    by_rows: bool = False
    """Whether planners that place whole tables cut this one by rows: it is there to be spread over ranks."""

    def __post_init__(self) -> None:
        if not self.name:
            raise PlanError("a table has an empty name: name it")
        for key in ("rows", "dim", "bytes_per_value"):
            if getattr(self, key) < 1:
                raise PlanError(f"table {self.name!r}: {key} = {getattr(self, key)}: expected at least 1")
        for key in ("optimizer_bytes_per_row", "lookups_per_sample", "lists_per_sample"):
            if not 0 <= getattr(self, key) < float("inf"):
                raise PlanError(f"table {self.name!r}: {key} = {getattr(self, key)}: expected 0 or more")
        octaves = self.rows.bit_length()
        if self.access and (len(self.access) != octaves or min(self.access) < 0 or not sum(self.access) > 0):
            raise PlanError(
                f"table {self.name!r}: access = {self.access}: expected {octaves} shares of 0 or more for octaves of "
                f"{self.rows} rows"
            )
        if self.hot and (self.frequent_first or not self.access):
            raise PlanError(f"table {self.name!r}: hot rows go with access, and with frequent_first = False")

    @property
    def vectors_per_sample(self) -> float:
        """Vectors that are computed and travel: one for each list, or unpooled for each id."""
        return self.lists_per_sample * max(len(self.features), 1) if self.pooled else self.lookups_per_sample

    @property
    def num_bytes(self) -> int:
        """Memory of the whole table on one rank: weights and optimiser state."""
        return shard_bytes(self, self.rows, self.dim)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a step of a plan costs, part by part; costs add up."""

    lookups: float = 0.0
    """Rows that are read, on whichever rank."""
    lookup_bytes: float = 0.0
    """Weights in these rows."""
    id_bytes: float = 0.0
    """Ids, their weights, lengths and headers, from rank to rank."""
    forward_bytes: float = 0.0
    """Vectors on their way home."""
    backward_bytes: float = 0.0
    """Their gradients on the way back."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(**{part.name: getattr(self, part.name) + getattr(other, part.name) for part in fields(self)})


def shard_bytes(spec: TableSpec, num_rows: int, num_columns: int) -> int:
    """Memory of a piece of a table in bytes, rounded up: weights and optimiser state.

    State for each weight (Adagrad, Adam) is shared out with the columns. State for each row (row-wise Adagrad:
    one float32) is kept by every piece of the row, so that cutting columns multiplies it. Columns count as they are
    stored: up to the next multiple of `COLUMN_MULTIPLE`. Of a compressed table every piece needs all that is stored.
    """
    if spec.compressed_bytes is not None:
        return spec.compressed_bytes
    stored = -(-num_columns // COLUMN_MULTIPLE) * COLUMN_MULTIPLE
    state = spec.optimizer_bytes_per_row
    if state > _ACCUMULATOR_BYTES:
        state = max(state * stored / spec.dim, _ACCUMULATOR_BYTES)
    return num_rows * stored * spec.bytes_per_value + -int(-num_rows * state // 1)


def specs_by_name(specs: Sequence[TableSpec]) -> dict[str, TableSpec]:
    """The tables by name, in their order; PlanError where two have the same."""
    names = [spec.name for spec in specs]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise PlanError(f"two tables are named {repeated[0]!r}: give each table a name of its own")
    return dict(zip(names, specs, strict=True))


def sharing_features(specs: Sequence[TableSpec]) -> set[str]:
    """Tables of which some feature also looks into another one."""
    tables = Counter(feature for spec in specs for feature in set(spec.features))
    return {spec.name for spec in specs if any(tables[feature] > 1 for feature in spec.features)}


COPY_BYTES = 4
"""Of a number of a row that several ranks hold: they sum its gradients in float32."""

COLUMN_MULTIPLE = 4
"""Tables are cut between columns at multiples of 4: FBGEMM's kernels read four float32 numbers at once."""

Kind: TypeAlias = Literal["table-wise", "column-wise", "row-wise", "grid", "replicated", "partly replicated"]
Range: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shard:
    """A block of rows and columns of a table on one rank."""

    table: str
    """Name of the table."""
    rank: int
    """Who holds it."""
    rows: Range
    """First row, and the row after the last."""
    columns: Range
    """First column, and the column after the last."""

    @property
    def num_rows(self) -> int:
        """Height."""
        return self.rows[1] - self.rows[0]

    @property
    def num_columns(self) -> int:
        """Width."""
        return self.columns[1] - self.columns[0]

    def __str__(self) -> str:
        return f"rows {_shown(self.rows)}, columns {_shown(self.columns)} (rank {self.rank})"


@dataclass(frozen=True, slots=True)
class Replica:
    """Rows of a table, in all columns, that every rank holds."""

    table: str
    """Name of the table."""
    rows: Range
    """First row, and the row after the last."""

    def __str__(self) -> str:
        return f"rows {_shown(self.rows)} (every rank)"


@dataclass(frozen=True, slots=True)
class Copies:
    """Rows of a table, in all columns, of which every rank holds a copy that it looks up and that learns.

    Their shards own them all the same: what is learnt goes there when tables are saved or moved.
    """

    table: str
    """Name of the table."""
    ids: tuple[int, ...]
    """Rows, in any order."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where every embedding table of a model lives. Nothing is checked here: see `check_plan`."""

    shards: tuple[Shard, ...]
    """Shards."""
    replicated: tuple[Replica, ...] = ()
    """Ranges of rows that every rank holds; with the shards they cover each table exactly once."""
    replica_groups: int = 1
    """So many groups of neighbouring ranks hold all tables each; shards name the ranks of the first."""
    copies: tuple[Copies, ...] = ()
    """Rows of shards that every rank has copies of."""

    @classmethod
    def from_dict(cls, plan: Mapping[str, Any]) -> "Plan":
        """The plan that `to_dict` made this of."""
        return cls(
            tuple(Shard(**shard) for shard in plan["shards"]),
            tuple(Replica(**replica) for replica in plan["replicated"]),
            plan.get("replica_groups", 1),
            tuple(Copies(rows["table"], tuple(rows["ids"])) for rows in plan.get("copies", ())),
        )

    def to_dict(self) -> dict[str, Any]:
        """For `from_dict`, of what any format can hold. Ids stay one tuple, which `dataclasses.asdict` would copy."""
        return {
            "shards": [asdict(shard) for shard in self.shards],
            "replicated": [asdict(replica) for replica in self.replicated],
            "replica_groups": self.replica_groups,
            "copies": [{"table": rows.table, "ids": rows.ids} for rows in self.copies],
        }

    def group_size(self, world_size: int) -> int:
        """Ranks of a group, of so many in all.

        Raises:
            PlanError: groups would differ in size.
        """
        if self.replica_groups < 1 or world_size % self.replica_groups:
            raise PlanError(
                f"replica_groups = {self.replica_groups} of {world_size} ranks: groups have the same number of ranks, "
                "so take a divisor of it"
            )
        return world_size // self.replica_groups

    def shards_of(self, table: str) -> tuple[Shard, ...]:
        """The shards of a table, in the plan's order, without what every rank holds."""
        return tuple(shard for shard in self.shards if shard.table == table)

    def replicas_of(self, table: str) -> tuple[Replica, ...]:
        """The rows of a table that every rank holds, in the plan's order."""
        return tuple(replica for replica in self.replicated if replica.table == table)

    def copied(self, table: str) -> tuple[int, ...]:
        """The rows of a table's shards that every rank has copies of."""
        return next((rows.ids for rows in self.copies if rows.table == table), ())

    def shards_on(self, rank: int) -> tuple[Shard, ...]:
        """The shards on a rank of the first group, in the plan's order, without what every rank holds."""
        return tuple(shard for shard in self.shards if shard.rank == rank)

    def only(self, tables: Collection[str]) -> "Plan":
        """The part that concerns some tables."""
        return replace(
            self,
            shards=tuple(shard for shard in self.shards if shard.table in tables),
            replicated=tuple(replica for replica in self.replicated if replica.table in tables),
            copies=tuple(rows for rows in self.copies if rows.table in tables),
        )

    def kind_of(self, table: str) -> Kind:
        """How a table is cut.

        Raises:
            PlanError: the plan does not hold the table.
        """
        shards = self.shards_of(table)
        if self.replicas_of(table) or self.copied(table):
            return "partly replicated" if shards else "replicated"
        if not shards:
            raise PlanError(f"the plan does not say where table {table!r} lives")
        if len(shards) == 1:
            return "table-wise"
        if len({shard.rows for shard in shards}) == 1:
            return "column-wise"
        return "row-wise" if len({shard.columns for shard in shards}) == 1 else "grid"


def rank_bytes(plan: Plan, specs: Sequence[TableSpec], world_size: int) -> list[int]:
    """Memory that each rank needs for its pieces and for replicated rows, in bytes: weights and optimiser state."""
    named = specs_by_name(specs)
    total = [0] * plan.group_size(world_size)
    for rank in range(len(total)):
        # What a compressed table is computed from is there once, for however many of its pieces.
        compressed: set[str] = set()
        pieces = [(piece.table, piece.num_rows, piece.num_columns) for piece in plan.shards_on(rank)]
        copies = [(copy.table, copy.rows[1] - copy.rows[0], named[copy.table].dim) for copy in plan.replicated]
        copies += [(rows.table, len(rows.ids), named[rows.table].dim) for rows in plan.copies]
        for table, rows, columns in (*pieces, *copies):
            if table not in compressed:
                total[rank] += shard_bytes(named[table], rows, columns)
            if named[table].compressed_bytes is not None:
                compressed.add(table)
    return total * plan.replica_groups


def check_plan(plan: Plan, specs: Sequence[TableSpec], world_size: int, rank_memory_bytes: int | None = None) -> None:
    """Refuse a plan that cannot be carried out. A rank may hold nothing, and several pieces of one table.

    `rank_memory_bytes` is what each rank has for tables and optimiser state; None for no limit.

    Raises:
        PlanError: a table is unknown or missing; a row is covered twice or never; a rank is not there;
            columns are cut elsewhere than at multiples of 4; copied rows are not there, or of a table that cannot have
            copies; or a rank's memory overflows, with the shortfall of the fullest rank in ``shortfall_bytes``.
    """
    if world_size < 1:
        raise PlanError(f"a plan needs at least 1 rank, got {world_size}")
    group_size = plan.group_size(world_size)
    named = specs_by_name(specs)
    pieces: list[Shard | Replica] = [*plan.shards, *plan.replicated]
    for piece in pieces:
        if piece.table not in named:
            raise PlanError(f"the plan names a table {piece.table!r}, but the tables are {', '.join(named)}")
        _check_piece(piece, named[piece.table], group_size)
    _check_copies(plan, named)
    for table, spec in named.items():
        _check_tiling([*plan.shards_of(table), *plan.replicas_of(table)], spec)
    if rank_memory_bytes is not None:
        _check_memory(rank_bytes(plan, specs, world_size), rank_memory_bytes)


def _check_piece(piece: Shard | Replica, spec: TableSpec, group_size: int) -> None:
    place = f"table {spec.name!r}: {piece}: "
    columns = piece.columns if isinstance(piece, Shard) else (0, spec.dim)
    if isinstance(piece, Shard) and not 0 <= piece.rank < group_size:
        raise PlanError(
            f"{place}there is no rank {piece.rank} among {group_size} (0 to {group_size - 1}): start more ranks, or "
            "place the piece elsewhere"
        )
    for what, (start, stop), length in (("rows", piece.rows, spec.rows), ("columns", columns, spec.dim)):
        if not 0 <= start < stop <= length:
            raise PlanError(f"{place}{what} [{start}, {stop}) are not a range inside [0, {length})")
    for column in columns:
        if column % COLUMN_MULTIPLE and column != spec.dim:
            raise PlanError(f"{place}columns are cut at {column}, which is no multiple of {COLUMN_MULTIPLE}")


def _check_copies(plan: Plan, named: Mapping[str, TableSpec]) -> None:
    tables = [rows.table for rows in plan.copies]
    if len(set(tables)) < len(tables):
        raise PlanError("the plan lists copies of a table twice: list them together")
    shared = sharing_features(list(named.values()))
    for rows in plan.copies:
        if rows.table not in named:
            raise PlanError(
                f"the plan has copies of rows of a table {rows.table!r}, but the tables are {', '.join(named)}"
            )
        spec, ids, place = named[rows.table], rows.ids, f"table {rows.table!r}: copies of rows: "
        if spec.compressed_bytes is not None or spec.bytes_per_value != COPY_BYTES:
            raise PlanError(f"{place}ranks sum their gradients in float32, and the table is stored in another form")
        if rows.table in shared:
            raise PlanError(f"{place}a feature of the table also looks into another one")
        if not ids or len(set(ids)) < len(ids):
            raise PlanError(f"{place}expected one id at least, and each once")
        if not 0 <= min(ids) <= max(ids) < spec.rows:
            raise PlanError(f"{place}ids from {min(ids)} to {max(ids)} are not inside [0, {spec.rows})")
        for replica in plan.replicas_of(rows.table):
            twice = [row for row in ids if replica.rows[0] <= row < replica.rows[1]]
            if twice:
                raise PlanError(f"{place}row {twice[0]} is among {replica} already")


def _check_tiling(pieces: Sequence[Shard | Replica], spec: TableSpec) -> None:
    """Look for a cell between the cuts that is not covered once."""
    if not pieces:
        raise PlanError(f"the plan misses table {spec.name!r}: give it a rank, shards, or replicate it")
    held = [
        (f"rank {piece.rank}", piece.rows, piece.columns)
        if isinstance(piece, Shard)
        else ("every rank", piece.rows, (0, spec.dim))
        for piece in pieces
    ]
    all_rows = sorted({0, spec.rows, *(row for _, bounds, _ in held for row in bounds)})
    all_columns = sorted({0, spec.dim, *(column for _, _, bounds in held for column in bounds)})
    for rows, columns in product(pairwise(all_rows), pairwise(all_columns)):
        holders = [
            holder
            for holder, (top, bottom), (left, right) in held
            if top <= rows[0] < bottom and left <= columns[0] < right
        ]
        where = f"table {spec.name!r}: rows {_shown(rows)}, columns {_shown(columns)} are"
        if not holders:
            raise PlanError(f"{where} on no rank: add a shard that covers them, or replicate them")
        if len(holders) > 1:
            raise PlanError(
                f"{where} covered {len(holders)} times, by {', '.join(holders)}: the pieces of a table must not overlap"
            )


def _check_memory(needed: list[int], available: int) -> None:
    rank = max(range(len(needed)), key=needed.__getitem__)
    shortfall = needed[rank] - available
    if shortfall > 0:
        raise PlanError(
            f"rank {rank} needs {needed[rank]} bytes for tables and optimiser state, but has {available}: it lacks "
            f"{shortfall} bytes. Use more ranks, raise plan.rank_memory_bytes, or move tables to other ranks.",
            shortfall_bytes=shortfall,
        )


def _shown(bounds: Range) -> str:
    return f"{bounds[0]}-{bounds[1] - 1}" if bounds[1] - bounds[0] > 1 else str(bounds[0])


def table_placement(tables: Iterable[tuple[TableSpec, Plan]], world_size: int) -> dict[str, Any]:
    """Where embedding tables, each with a plan that holds it, live on so many ranks, for placement.json.

    Bytes are those of weights and optimiser state; a replicated table has a shard on each rank, and any table one
    or more in each group of ranks that holds all. Copies of rows are a shard behind the table's rows::

        {"kind": "log", "world_size": 4, "tables": [
            {"name": "t", "rows": 10, "dim": 8, "bytes": 320, "plan": "row-wise", "shards": [
                {"rank": 0, "first_row": 0, "rows": 5, "first_column": 0, "columns": 8, "bytes": 160}, ...]}, ...]}
    """

    def shards(spec: TableSpec, plan: Plan) -> Iterator[Shard]:
        for first in range(0, world_size, plan.group_size(world_size)):
            yield from (replace(shard, rank=first + shard.rank) for shard in plan.shards_of(spec.name))
        for rank in range(world_size):
            for replica in plan.replicas_of(spec.name):
                yield Shard(spec.name, rank, replica.rows, (0, spec.dim))
            if copied := plan.copied(spec.name):
                yield Shard(spec.name, rank, (spec.rows, spec.rows + len(copied)), (0, spec.dim))

    return {
        "kind": "log",
        "world_size": world_size,
        "tables": [
            {
                "name": spec.name,
                "rows": spec.rows,
                "dim": spec.dim,
                "bytes": spec.num_bytes,
                "plan": plan.kind_of(spec.name),
                "shards": [
                    {
                        "rank": shard.rank,
                        "first_row": shard.rows[0],
                        "rows": shard.num_rows,
                        "first_column": shard.columns[0],
                        "columns": shard.num_columns,
                        "bytes": shard_bytes(spec, shard.num_rows, shard.num_columns),
                    }
                    for shard in shards(spec, plan)
                ],
            }
            for spec, plan in tables
        ],
    }
