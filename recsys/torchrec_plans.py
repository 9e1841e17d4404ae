"""Plans of embedding tables from TorchRec and for it, and its planner.

TorchRec's planner proposes ways to cut each table, places the pieces greedily, and keeps the proposal whose slowest
rank, by its cost model, is fastest (Ivchenko et al.: TorchRec, RecSys 2022). It is asked offline here: on the meta
device, without a process group.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from windrow.comm.errors import PlanError, nearest_name
from windrow.partition.tables.costs import Workload
from windrow.partition.tables.plan import Plan, Range, Replica, Shard, TableSpec, check_plan, shard_bytes, specs_by_name

if TYPE_CHECKING:
    from windrow.comm.links import Links

__all__ = ["even_rows", "from_torchrec", "plan_with_torchrec", "to_torchrec"]


# ---------------------------------------------------------------------------------------------------------- conversions


def from_torchrec(sharding: Any, specs: Sequence[TableSpec]) -> Plan:
    """A plan of TorchRec's as one of ours: what is data-parallel is replicated, all else is where its metadata says.

    Whether the plan covers the tables and fits the ranks is for `check_plan`. Compute kernels are left out.

    Args:
        sharding: a ``ShardingPlan``, or of one module an ``EmbeddingModuleShardingPlan``.
        specs: the tables; pieces are in their order.

    Raises:
        PlanError: a table is unknown or in two modules; a shard names no rank, or another one than ``ranks``.
    """
    named = specs_by_name(specs)
    found: dict[str, Any] = {}
    for module in sharding.plan.values() if hasattr(sharding, "plan") else [sharding]:
        for table, parameter in module.items():
            if table not in named:
                raise PlanError(
                    f"the sharding plan has a table {table!r}. {nearest_name(table, named)} Of a larger model, hand "
                    "over the plan of one module: sharding.plan[path]"
                )
            if table in found:
                raise PlanError(
                    f"table {table!r} is in two modules of the sharding plan: hand over one: sharding.plan[path]"
                )
            found[table] = parameter
    shards: list[Shard] = []
    replicated: list[Replica] = []
    for table in filter(found.__contains__, named):
        if found[table].sharding_type == "data_parallel":
            replicated.append(Replica(table, (0, named[table].rows)))
        else:
            shards += _shards(table, found[table])
    return Plan(tuple(shards), tuple(replicated))


def _shards(table: str, parameter: Any) -> Iterator[Shard]:
    """The shards of a table that have rows, by their metadata."""
    if parameter.sharding_spec is None:
        raise PlanError(
            f"table {table!r}: {parameter.sharding_type} without a sharding_spec does not say where rows are: make the "
            "plan by construct_module_sharding_plan or a planner"
        )
    pieces = parameter.sharding_spec.shards
    ranks: list[Any] = [None if piece.placement is None else piece.placement.rank() for piece in pieces]
    if None in ranks:
        placement = pieces[ranks.index(None)].placement
        raise PlanError(f'table {table!r}: a shard is placed on {placement}: expected a rank, such as "rank:0/cpu"')
    if parameter.ranks is not None and len(parameter.ranks) == len(ranks) and list(parameter.ranks) != ranks:
        raise PlanError(f"table {table!r}: its shards are placed on ranks {ranks}, but ranks = {parameter.ranks}")
    for piece, rank in zip(pieces, ranks, strict=True):
        (top, left), (height, width) = piece.shard_offsets, piece.shard_sizes
        if height:
            yield Shard(table, rank, (top, top + height), (left, left + width))


def to_torchrec(
    plan: Plan,
    specs: Sequence[TableSpec],
    world_size: int,
    *,
    module: str = "",
    local_world_size: int | None = None,
    device: str = "cpu",
    compute_kernel: str = "fused",
) -> Any:
    """A plan of ours as TorchRec's ``ShardingPlan``, for ``DistributedModelParallel(plan=...)``.

    ============================================== =====================================
    whole on one rank                              ``table_wise``
    cut by columns                                 ``column_wise``
    cut by rows, as `even_rows` of all ranks       ``row_wise``
    the same of the ranks of a host                ``table_row_wise``
    by columns, and each so over a host            ``grid_shard``
    replicated                                     ``data_parallel``
    ============================================== =====================================

    Args:
        plan: which `check_plan` accepts.
        specs: the tables of one ``EmbeddingBagCollection``.
        world_size: number of ranks.
        module: path of the collection in the model; empty if it is the model.
        local_world_size: ranks of a host; all by default.
        device: where ranks hold tables: cpu or cuda.
        compute_kernel: TorchRec's kernel of all tables but replicated ones, for which it has "dense" alone.

    Raises:
        PlanError: the plan is not right, is of several groups, or cuts a table as TorchRec cannot; names the table.
    """
    from torchrec.distributed.sharding_plan import placement
    from torchrec.distributed.types import (
        EmbeddingModuleShardingPlan,
        EnumerableShardingSpec,
        ParameterSharding,
        ShardingPlan,
        ShardMetadata,
    )

    check_plan(plan, specs, world_size)
    if plan.replica_groups > 1:
        raise PlanError(
            f"replica_groups = {plan.replica_groups}: a ShardingPlan is that of one group; give a plan of one, and the "
            "number of groups to TorchRec's DMPCollection"
        )
    local = local_world_size or world_size
    tables = EmbeddingModuleShardingPlan()
    for spec in specs:
        kind, pieces = _as_torchrec(plan, spec, world_size, local)
        metadata = [
            ShardMetadata(
                shard_offsets=[piece.rows[0], piece.columns[0]],
                shard_sizes=[piece.num_rows, piece.num_columns],
                placement=placement(device, piece.rank, local),
            )
            for piece in pieces
        ]
        tables[spec.name] = ParameterSharding(
            sharding_type=kind,
            compute_kernel=compute_kernel if pieces else "dense",
            ranks=[piece.rank for piece in pieces] or list(range(world_size)),
            sharding_spec=EnumerableShardingSpec(metadata) if pieces else None,
        )
    return ShardingPlan(plan={module: tables})


def even_rows(spec: TableSpec, ranks: Sequence[int], columns: Range | None = None) -> list[Shard]:
    """A table cut by rows as TorchRec cuts it: ceil(rows / ranks) for each in their order; the last may get none.

    `columns` are all by default.
    """
    height = -(-spec.rows // len(ranks))
    bounds = [min(number * height, spec.rows) for number in range(len(ranks) + 1)]
    return [
        Shard(spec.name, rank, (top, bottom), columns or (0, spec.dim))
        for rank, (top, bottom) in zip(ranks, pairwise(bounds), strict=True)
    ]


def _as_torchrec(plan: Plan, spec: TableSpec, world_size: int, local: int) -> tuple[str, list[Shard]]:
    """How TorchRec calls the cut of a table, and its shards in TorchRec's order, those without rows too."""
    kind, shards = plan.kind_of(spec.name), plan.shards_of(spec.name)
    if kind == "replicated":
        return "data_parallel", []
    if kind == "partly replicated":
        raise PlanError(
            f"table {spec.name!r} is partly replicated, which TorchRec cannot: replicate all of its rows or none"
        )
    if kind == "table-wise":
        return "table_wise", list(shards)
    by_column = sorted(shards, key=lambda shard: (shard.columns, shard.rows))
    if kind == "column-wise":
        return "column_wise", by_column
    if kind == "row-wise" and _with_rows(even_rows(spec, range(world_size))) == by_column:
        return "row_wise", even_rows(spec, range(world_size))
    pieces: list[Shard] = []
    for columns in dict.fromkeys(shard.columns for shard in by_column):
        block = [shard for shard in by_column if shard.columns == columns]
        host = block[0].rank // local * local
        even = even_rows(spec, range(host, host + local), columns)
        if local == world_size or _with_rows(even) != block:
            raise PlanError(
                f"table {spec.name!r} is cut into {', '.join(map(str, block))}: TorchRec cuts rows evenly, over all "
                f"{world_size} ranks or over the {local} of a host, in their order: cut them by even_rows"
            )
        pieces += even
    return ("grid_shard" if kind == "grid" else "table_row_wise"), pieces


def _with_rows(shards: Sequence[Shard]) -> list[Shard]:
    return [shard for shard in shards if shard.num_rows]


# -------------------------------------------------------------------------------------------------------------- planner

_SHARDING_TYPES = ("data_parallel", "table_wise", "column_wise", "row_wise")


def plan_with_torchrec(
    specs: Sequence[TableSpec],
    world_size: int,
    memory: float = float("inf"),
    workload: Workload | None = None,
    *,
    sharding_types: Sequence[str] = _SHARDING_TYPES,
    min_columns: int | None = None,
    memory_bytes_per_s: float | None = None,
) -> Plan:
    """Ask TorchRec's planner for a plan for CPUs: the planner "torchrec" of recipes.

    It searches by its own costs, told ids per sample and batch size; what a rank may hold is counted as `check_plan`
    counts it, weights and optimiser state. All tables count as pooled. On CPUs TorchRec itself does not propose to cut
    rows, though it can, and its costs know of it: here it does.

    Args:
        specs: the tables.
        world_size: number of ranks.
        memory: what each rank has for them, in bytes.
        workload: samples of each rank, and links, of which hosts and bandwidths count; without links TorchRec's own
            bandwidths, those of GPUs (NVLink).
        sharding_types: TorchRec's names of the cuts that it may propose; all but ``grid_shard``, which it never does of
            its own accord.
        min_columns: narrowest piece of columns; TorchRec's is 128.
        memory_bytes_per_s: bandwidth of a rank's memory.

    Returns:
        The same plan for the same arguments, in any process.

    Raises:
        PlanError: it finds no plan that fits, with what the fullest rank would lack in any other at least, 0 where
            another might fit; or an argument is wrong.

    Cost: 1 s for 26 tables, and up to 6 s for fewer: of up to 10000 proposals it tries all.
    """
    from torchrec.distributed.planner.types import (
        HardwareConfig,
        KernelConfig,
        PlannerError,
        TopologyFactory,
        TrainerConfig,
    )
    from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingType

    known = [kind.value for kind in ShardingType if kind is not ShardingType.GRID_SHARD]
    for kind in sharding_types:
        if kind not in known:
            raise PlanError(f"sharding_types: there is no {kind!r}. {nearest_name(kind, known)}")
    if not specs:
        return Plan(())
    workload = workload or Workload()
    local_world_size, intra_host, inter_host = _hosts(workload.links, world_size)
    bandwidths = {"intra_host_bw": intra_host, "inter_host_bw": inter_host, "ddr_mem_bw": memory_bytes_per_s}
    limit = int(min(memory, sys.maxsize))
    topology = TopologyFactory.create_topology(
        # TorchRec's memory is left without limit, and its search as it is. Its SSDs, which no kernel of a CPU uses, are
        # what a rank holds as we count it.
        TrainerConfig(
            world_size=world_size, local_world_size=local_world_size, ddr_cap_bytes=sys.maxsize, ssd_cap_bytes=limit
        ),
        HardwareConfig(**{name: rate and rate / 1000 for name, rate in bandwidths.items()}),  # bytes per ms
        KernelConfig(compute_device="cpu", use_hardware_based_bandwidth=True),
    )
    rank_memory = _RankMemory(specs)
    planner = _planner(specs, topology, rank_memory, batch_size=workload.batch_size, min_columns=min_columns)
    try:
        with _in_silence():
            sharding = planner.plan(*_module_and_sharders(specs, sharding_types))
    except PlannerError as error:
        raise rank_memory.too_little(world_size, limit) from error
    (tables,) = sharding.plan.values()
    return from_torchrec(
        EmbeddingModuleShardingPlan({specs[int(number)].name: found for number, found in tables.items()}), specs
    )


def _hosts(links: "Links | None", world_size: int) -> tuple[int, float | None, float | None]:
    """Ranks of a host, and bytes per second within and between hosts; None where that is not known, or there are none.

    Raises:
        PlanError: hosts have different numbers of ranks, which TorchRec cannot say.
    """
    if links is None:
        return world_size, None, None
    names, host, ranks = np.unique(links.hosts, return_inverse=True, return_counts=True)
    if links.size != world_size or len(set(ranks.tolist())) > 1:
        raise PlanError(
            f"the links are of {links.size} ranks, {ranks.tolist()} on hosts {', '.join(names)}: TorchRec's planner "
            f"wants {world_size}, as many on each host"
        )
    near = host[:, None] == host[None, :]
    rates = []
    for pairs in (near & ~np.eye(world_size, dtype=bool), ~near):
        seconds = links.seconds_per_byte[pairs]
        rates.append(1 / float(seconds.mean()) if seconds.any() else None)
    return int(ranks[0]), rates[0], rates[1]


class _RankMemory:
    """An estimator of TorchRec's planner that fills in, as SSD, what a shard takes as we count it."""

    def __init__(self, specs: Sequence[TableSpec]) -> None:
        self._specs = specs
        self._proposed: dict[int, list[list[int]]] = {}  # table -> bytes of the pieces of each way to cut it

    def estimate(self, sharding_options: list[Any], sharder_data_map: Any) -> None:
        """Called with all ways to cut the tables."""
        del sharder_data_map
        for option in sharding_options:
            number = int(option.name)
            sizes = [shard_bytes(self._specs[number], *shard.size) for shard in option.shards]
            for shard, size in zip(option.shards, sizes, strict=True):
                shard.storage.ssd = size
            self._proposed.setdefault(number, []).append(sizes)

    def too_little(self, world_size: int, memory: int) -> PlanError:
        """The error of a planner that has found no plan, by what any takes at least."""
        largest = {number: min(map(max, ways)) for number, ways in self._proposed.items()}
        table = max(largest, key=largest.__getitem__)
        mean = -(-sum(min(map(sum, ways)) for ways in self._proposed.values()) // world_size)
        shortfall = max(largest[table] - memory, mean - memory, 0)
        lack = f"it lacks {shortfall} bytes or more" if shortfall else "pieces might fit, but not where it places them"
        return PlanError(
            f"TorchRec's planner finds no plan for ranks of {memory} bytes, of which {world_size} need {mean} each on "
            f"average, and table {self._specs[table].name!r} {largest[table]} on one: {lack}. Use more ranks, raise "
            "plan.rank_memory_bytes, or let it cut tables otherwise (sharding_types, min_columns).",
            shortfall_bytes=shortfall,
        )


def _planner(
    specs: Sequence[TableSpec], topology: Any, rank_memory: _RankMemory, *, batch_size: int, min_columns: int | None
) -> Any:
    """TorchRec's planner of tables that are named by their numbers."""
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
    from torchrec.distributed.planner.constants import DEFAULT_PERF_ESTIMATOR
    from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
    from torchrec.distributed.planner.estimator import EmbeddingPerfEstimatorFactory
    from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation

    constraints = {
        str(number): ParameterConstraints(
            pooling_factors=[spec.lookups_per_sample / len(_features(spec))] * len(_features(spec)),
            min_partition=min_columns,
        )
        for number, spec in enumerate(specs)
    }
    common = {"topology": topology, "constraints": constraints}
    estimators = [
        EmbeddingPerfEstimatorFactory.create(DEFAULT_PERF_ESTIMATOR, **common),
        EmbeddingStorageEstimator(**common),
        rank_memory,
    ]
    return EmbeddingShardingPlanner(
        batch_size=batch_size,
        enumerator=EmbeddingEnumerator(batch_size=batch_size, estimator=estimators, **common),
        storage_reservation=FixedPercentageStorageReservation(0.0),
        stats=[],
        **common,
    )


def _module_and_sharders(specs: Sequence[TableSpec], sharding_types: Sequence[str]) -> tuple[Any, list[Any]]:
    """A collection without memory, and what proposes its cuts. TorchRec refuses names with dots, hence numbers."""
    import torch
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    tables = [
        EmbeddingBagConfig(
            name=str(number),
            num_embeddings=spec.rows,
            embedding_dim=spec.dim,
            feature_names=[f"{number}_{feature}" for feature in _features(spec)],
            data_type=DataType.FP16 if spec.bytes_per_value == torch.float16.itemsize else DataType.FP32,
        )
        for number, spec in enumerate(specs)
    ]
    sharder = EmbeddingBagCollectionSharder()
    # Not by the constraints, which become a set: its order is another one in each process, and breaks ties.
    sharder.sharding_types = lambda compute_device_type: list(sharding_types)  # noqa: ARG005
    return EmbeddingBagCollection(tables=tables, device=torch.device("meta")), [sharder]


def _features(spec: TableSpec) -> range:
    return range(max(len(spec.features), 1))


@contextlib.contextmanager
def _in_silence() -> Iterator[None]:
    """Without TorchRec's words on plans without a process group, which it says by the root logger.

    The handler keeps them from giving that logger one for good. Both are this call's own: threads may be ranks.
    """
    root, handler = logging.getLogger(), logging.NullHandler()

    def said_elsewhere(record: logging.LogRecord) -> bool:
        return f"{os.sep}torchrec{os.sep}" not in record.pathname

    root.addHandler(handler)
    root.addFilter(said_elsewhere)
    try:
        yield
    finally:
        root.removeFilter(said_elsewhere)
        root.removeHandler(handler)
