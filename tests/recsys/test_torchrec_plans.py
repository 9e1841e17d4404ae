"""windrow.recsys.torchrec_plans: plans that go to TorchRec and back, and its planner."""

import logging
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.distributed import sharding_plan as theirs
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from benchmarks.torchrec_peer import MLPERF_MULTI_HOT, MLPERF_ROWS
from windrow.comm.errors import PlanError
from windrow.comm.links import Links
from windrow.partition.tables.costs import Workload
from windrow.partition.tables.plan import Plan, Replica, Shard, TableSpec, check_plan, rank_bytes
from windrow.partition.tables.planners import PlanOptions, make_plan
from windrow.recsys.torchrec_plans import even_rows, from_torchrec, plan_with_torchrec, to_torchrec

RANKS, HOST = 4, 2
MLPERF = [
    TableSpec(
        name=f"table.{number}",
        rows=rows,
        dim=64,
        features=("f",),
        optimizer_bytes_per_row=4,
        lookups_per_sample=float(ids),
    )
    for number, (rows, ids) in enumerate(zip(MLPERF_ROWS, MLPERF_MULTI_HOT, strict=True))
]


LARGE_BATCH = Workload(batch_size=2048)


def network(ranks: int, local: int, inside: float = 1e9, between: float = 1e9) -> Links:
    """So many ranks on each host, and bytes per second."""
    hosts = [str(rank // local) for rank in range(ranks)]
    rates = [[inside if one == other else between for other in hosts] for one in hosts]
    none = np.zeros((ranks, ranks))
    return Links(hosts=tuple(hosts), latency_s=none, seconds_per_byte=1 / np.array(rates), hidden_s=none)


UNEVEN = replace(network(4, 4), hosts=("a", "b", "b", "b"))


def table(name: str = "t", **changes: Any) -> TableSpec:
    return TableSpec(**{"name": name, "rows": 10, "dim": 16, "features": (name,), **changes})


@st.composite
def planned(draw, name: str) -> tuple[TableSpec, list[Shard]]:
    """A table, and its shards; none if it is replicated."""
    spec = table(name, rows=draw(st.integers(1, 20)), dim=draw(st.integers(1, 40)))
    cuts = draw(st.sets(st.integers(1, 10).map(lambda group: 4 * group).filter(lambda cut: cut < spec.dim)))
    edges = [0, *sorted(cuts), spec.dim]
    columns = list(pairwise(edges))
    rank, host = st.integers(0, RANKS - 1), st.integers(0, RANKS // HOST - 1)
    kind = draw(st.sampled_from(["table", "columns", "rows", "host", "grid", "replicated"]))
    hosts = [range(HOST * first, HOST * first + HOST) for first in [draw(host) for _ in columns]]
    found = {
        "table": [Shard(name, draw(rank), (0, spec.rows), (0, spec.dim))],
        "columns": [Shard(name, draw(rank), (0, spec.rows), span) for span in columns],
        "rows": even_rows(spec, range(RANKS)),
        "host": even_rows(spec, hosts[0]),
        "grid": [shard for span, ranks in zip(columns, hosts, strict=True) for shard in even_rows(spec, ranks, span)],
        "replicated": [],
    }[kind]
    return spec, [shard for shard in found if shard.num_rows]


@given(tables=st.tuples(*(planned(f"t{number}") for number in range(3))))
def test_round_trip(tables: tuple[tuple[TableSpec, list[Shard]], ...]) -> None:
    specs = [spec for spec, _ in tables]
    replicated = [Replica(spec.name, (0, spec.rows)) for spec, shards in tables if not shards]
    plan = Plan(tuple(shard for _, shards in tables for shard in shards), tuple(replicated))
    sharding = to_torchrec(plan, specs, RANKS, module="model.bags", local_world_size=HOST)
    for handed_over in (sharding, sharding.plan["model.bags"]):
        back = from_torchrec(handed_over, specs)
        assert back.replicated == plan.replicated
        assert set(back.shards) == set(plan.shards)
        assert len(back.shards) == len(plan.shards)


@pytest.mark.parametrize("rows", [3, 5, 8, 10, 11])
def test_torchrec_makes_the_same_plans(rows: int) -> None:
    """Its own constructors of each kind of sharding against our conversion of its result to a plan and back."""
    placements = {
        "whole": theirs.table_wise(rank=3, compute_kernel="fused"),
        "columns": theirs.column_wise(ranks=[2, 0], compute_kernel="fused"),
        "narrow": theirs.column_wise(size_per_rank=[4, 252], compute_kernel="fused"),
        "rows": theirs.row_wise(compute_kernel="fused"),
        "rows_of_a_host": theirs.table_row_wise(host_index=1),
        "grid": theirs.grid_shard(host_indexes=[1, 0]),
        "copied": theirs.data_parallel(),
    }
    specs = [table(name, rows=rows, dim=256) for name in placements]
    bags = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(num_embeddings=rows, embedding_dim=256, name=name, feature_names=[name])
            for name in placements
        ],
        device=torch.device("meta"),
    )
    sharder = EmbeddingBagCollectionSharder()
    sharding = theirs.construct_module_sharding_plan(bags, placements, sharder, HOST, RANKS, "cpu")
    for name in ("rows_of_a_host", "grid"):
        sharding[name].compute_kernel = "fused"  # these constructors do not take it
    plan = from_torchrec(sharding, specs)
    check_plan(plan, specs, RANKS)
    kinds = ("table-wise", "column-wise", "column-wise", "row-wise", "row-wise", "grid", "replicated")
    assert tuple(plan.kind_of(spec.name) for spec in specs) == kinds
    assert to_torchrec(plan, specs, RANKS, local_world_size=HOST) == ShardingPlan({"": sharding})


def test_kernels_and_devices_are_as_asked() -> None:
    plan = Plan((Shard("t", 3, (0, 10), (0, 16)),), (Replica("u", (0, 10)),))
    sharding = to_torchrec(
        plan, [table(), table("u")], 4, local_world_size=2, device="cuda", compute_kernel="fused_uvm"
    ).plan[""]
    assert str(sharding["t"].sharding_spec.shards[0].placement) == "rank:3/cuda:1"
    assert [sharding[name].compute_kernel for name in "tu"] == ["fused_uvm", "dense"]


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([(0, (0, 5)), (1, (5, 10))], r"table 't' is cut into rows 0-4.*evenly, over all 4 ranks.*even_rows"),
        ([(1, (0, 3)), (0, (3, 6)), (2, (6, 9)), (3, (9, 10))], "table 't' is cut into .*in their order"),
        ([(0, (0, 3)), (1, (3, 5)), (2, (5, 7)), (3, (7, 10))], "table 't' is cut into"),
        ([(0, (0, 9))], "rows 9, columns 0-15 are on no rank"),
        ([(None, (0, 4)), (1, (4, 10))], "table 't' is partly replicated.*all of its rows or none"),
    ],
)
def test_what_torchrec_cannot_do_is_refused(pieces: list[Any], message: str) -> None:
    shards = tuple(Shard("t", rank, rows, (0, 16)) for rank, rows in pieces if rank is not None)
    copies = tuple(Replica("t", rows) for rank, rows in pieces if rank is None)
    with pytest.raises(PlanError, match=message):
        to_torchrec(Plan(shards, copies), [table()], 4)


def test_a_plan_of_several_groups_is_refused() -> None:
    plan = Plan((Shard("item", 0, (0, 10), (0, 8)),), replica_groups=2)
    with pytest.raises(PlanError, match="replica_groups = 2: a ShardingPlan is that of one group"):
        to_torchrec(plan, [TableSpec(name="item", rows=10, dim=8, features=())], 2)


def test_plans_of_torchrec_that_say_too_little_are_refused() -> None:
    specs = [table("item")]
    sharding = to_torchrec(Plan((Shard("item", 1, (0, 10), (0, 16)),)), specs, 2).plan[""]
    with pytest.raises(PlanError, match=r"a table 'item'\. Did you mean 'itm'\?.*sharding\.plan\[path\]"):
        from_torchrec(sharding, [table("itm")])
    with pytest.raises(PlanError, match="'item' is in two modules"):
        from_torchrec(ShardingPlan({"a": sharding, "b": sharding}), specs)
    assert from_torchrec(EmbeddingModuleShardingPlan(), specs) == Plan(())
    # TorchRec's table_wise(rank=1, device="cpu") places the table on rank 0.
    sharding["item"].ranks = [0]
    with pytest.raises(PlanError, match=r"placed on ranks \[1\], but ranks = \[0\]"):
        from_torchrec(sharding, specs)
    sharding["item"].sharding_spec.shards[0].placement = None
    with pytest.raises(PlanError, match='placed on None: expected a rank, such as "rank:0/cpu"'):
        from_torchrec(sharding, specs)
    sharding["item"].sharding_spec = None
    with pytest.raises(PlanError, match="table_wise without a sharding_spec"):
        from_torchrec(sharding, specs)


# -------------------------------------------------------------------------------------------------------------- planner


def test_the_planner_on_the_tables_of_mlperf() -> None:
    memory = 14_000_000_000  # of 53 GB of tables
    plan = plan_with_torchrec(MLPERF, 4, memory, LARGE_BATCH)
    check_plan(plan, MLPERF, 4, memory)
    # By far the most looked up, with 100 ids per sample: on one rank it would take as long as all others together.
    assert plan.kind_of("table.20") == "row-wise"
    whole = plan_with_torchrec(MLPERF, 4, workload=LARGE_BATCH, sharding_types=["table_wise"])
    assert Counter(map(whole.kind_of, (spec.name for spec in MLPERF))) == {"table-wise": 26}
    busiest = next(shard.rank for shard in whole.shards if shard.table == "table.20")
    assert len(whole.shards_on(busiest)) == 1


@settings(max_examples=25, deadline=None)
@given(
    specs=st.lists(
        st.builds(
            dict,
            rows=st.integers(1, 5000),
            dim=st.integers(1, 300),
            features=st.sampled_from([(), ("a",), ("a", "b")]),
            bytes_per_value=st.sampled_from([2, 4]),
            optimizer_bytes_per_row=st.sampled_from([0.0, 4.0, 800.0]),
            lookups_per_sample=st.floats(0, 50),
        ),
        max_size=3,
    ).map(lambda found: [table(f"t{number}", **changes) for number, changes in enumerate(found)]),
    hosts=st.integers(1, 2),
    local=st.integers(1, 3),
    min_columns=st.sampled_from([None, 4]),
)
def test_every_plan_is_fine(specs: list[TableSpec], hosts: int, local: int, min_columns: int | None) -> None:
    ranks = hosts * local
    kinds = ["data_parallel", "table_wise", "column_wise", "table_column_wise", "row_wise", "table_row_wise"]
    workload = Workload(links=network(ranks, local))
    options = {"workload": workload, "sharding_types": kinds, "min_columns": min_columns}
    plan = plan_with_torchrec(specs, ranks, **options)
    check_plan(plan, specs, ranks)
    assert plan_with_torchrec(specs, ranks, **options) == plan
    most = max(rank_bytes(plan, specs, ranks))
    check_plan(plan_with_torchrec(specs, ranks, most, **options), specs, ranks, most)


@pytest.mark.parametrize(
    ("local", "changed"), [(2, {"batch_size": 64}), (2, {"memory": 1e7}), (2, {"inside": 1e12}), (1, {"between": 1e12})]
)
def test_batches_and_bandwidths_count(local: int, changed: dict[str, float]) -> None:
    """A copied table sends all rows; a cut one a vector per sample and rank, which is less of small batches."""

    def kind(batch_size: int = 4096, inside: float = 1e9, between: float = 1e9, memory: float = 1e9) -> str:
        workload = Workload(batch_size=batch_size, links=network(2, local, inside, between))
        plan = plan_with_torchrec([table(rows=1000)], 2, workload=workload, memory_bytes_per_s=memory)
        return plan.kind_of("t")

    assert kind() == "replicated"
    assert kind(**changed) == "row-wise"


def test_what_does_not_fit_is_refused_with_what_lacks() -> None:
    specs = [table("small"), table("large", rows=100, optimizer_bytes_per_row=4)]
    need = specs[1].num_bytes
    assert plan_with_torchrec(specs, 2, need, sharding_types=["table_wise"]).kind_of("large") == "table-wise"
    with pytest.raises(PlanError, match=rf"table 'large' {need} on one: it lacks 1 bytes or more") as caught:
        plan_with_torchrec(specs, 2, need - 1, sharding_types=["table_wise"])
    assert caught.value.shortfall_bytes == 1
    half = -(-(specs[0].num_bytes + need) // 2)
    with pytest.raises(PlanError, match=f"2 need {half} each on average.*it lacks 10 bytes") as caught:
        plan_with_torchrec(specs, 2, half - 10, sharding_types=["row_wise"])
    assert caught.value.shortfall_bytes == 10
    thirds = [table(f"t{number}") for number in range(3)]
    with pytest.raises(PlanError, match="pieces might fit, but not where it places them") as caught:
        plan_with_torchrec(thirds, 2, 1.5 * thirds[0].num_bytes, sharding_types=["table_wise"])
    assert caught.value.shortfall_bytes == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sharding_types": ["rowwise"]}, r"sharding_types: there is no 'rowwise'\. Did you mean 'row_wise'\?"),
        ({"workload": Workload(links=UNEVEN)}, "4 ranks, \\[1, 3\\] on hosts a, b: TorchRec's planner wants 4"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan_with_torchrec([table()], 4, **options)


def test_recipes_name_the_planner_and_hear_nothing_of_it(caplog: pytest.LogCaptureFixture) -> None:
    root = logging.getLogger()
    before = list(root.handlers), list(root.filters)
    options = PlanOptions(planner="torchrec", replicate_below_bytes=200)
    specs = [table(), table("u", rows=3)]
    plan = make_plan(options, specs, 2)
    assert plan.replicas_of("u")
    assert plan == make_plan(PlanOptions(planner="windrow.recsys.torchrec_plans:plan_with_torchrec"), specs, 2)
    copies = plan_with_torchrec(specs, 2, sharding_types=["data_parallel"])
    assert [copy.table for copy in copies.replicated] == ["t", "u"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (list(root.handlers), list(root.filters)) == before
