"""What each rank holds, for placement.json, against counting it."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.gnn.partitioned import PartitionedGraph, graph_placement
from windrow.gnn.synthetic import community_graph
from windrow.partition.book import PartitionBook
from windrow.partition.tables.plan import Plan, Replica, Shard, TableSpec, rank_bytes, table_placement
from windrow.partition.tables.planners import PlanOptions, make_plan


@pytest.mark.parametrize("parts", [1, 3, 4])
def test_parts_of_a_graph(parts: int) -> None:
    graph = community_graph(70, 3, seed=1, num_features=4)
    assert graph.features is not None
    # The last of four parts has no vertex.
    assignment = np.arange(70) ** 2 % min(parts, 3)
    book = PartitionBook.from_assignment(assignment, parts)
    degrees = graph.indptr.diff().numpy()
    trained = np.zeros(70, bool)
    trained[graph.train_ids.numpy()] = True
    expected = {
        "kind": "graph",
        "ranks": [
            {
                "vertices": int(mine.sum()),
                "train_vertices": int(trained[mine].sum()),
                "edges": int(degrees[mine].sum()),
                "feature_bytes": graph.features[torch.from_numpy(mine)].nbytes,
                "cached_rows": 0,
                "cached_bytes": 0,
            }
            for mine in (assignment == part for part in range(parts))
        ],
    }
    for rank in range(parts):
        found = graph_placement(PartitionedGraph.from_graph(graph, book, rank), [0] * parts, 16)
        assert found == expected
        assert json.loads(json.dumps(found)) == expected


def test_caches_of_a_graph() -> None:
    book = PartitionBook.from_assignment(np.arange(70) % 2, 2)
    part = PartitionedGraph.from_graph(community_graph(70, 3, seed=1, num_features=4), book, 0)

    ranks = graph_placement(part, [3, 5], 8)["ranks"]
    assert [(rank["cached_rows"], rank["cached_bytes"], rank["feature_bytes"]) for rank in ranks] == [
        (3, 3 * 8, 35 * 16),
        (5, 5 * 8, 35 * 16),
    ]


def test_tables_of_a_log() -> None:
    cut = TableSpec(name="cut", rows=10, dim=8, features=("a",), optimizer_bytes_per_row=4)
    copied = TableSpec(name="copied", rows=3, dim=4, features=("b",))
    shards = (Shard("cut", 1, (0, 5), (0, 8)), Shard("cut", 0, (5, 10), (0, 8)))
    plan = Plan(shards, (Replica("copied", (0, 3)),))
    assert table_placement([(cut, plan), (copied, plan)], 2) == {
        "kind": "log",
        "world_size": 2,
        "tables": [
            {
                "name": "cut",
                "rows": 10,
                "dim": 8,
                "bytes": 10 * (8 * 4 + 4),
                "plan": "row-wise",
                "shards": [
                    {"rank": 1, "first_row": 0, "rows": 5, "first_column": 0, "columns": 8, "bytes": 5 * 36},
                    {"rank": 0, "first_row": 5, "rows": 5, "first_column": 0, "columns": 8, "bytes": 5 * 36},
                ],
            },
            {
                "name": "copied",
                "rows": 3,
                "dim": 4,
                "bytes": 48,
                "plan": "replicated",
                "shards": [
                    {"rank": rank, "first_row": 0, "rows": 3, "first_column": 0, "columns": 4, "bytes": 48}
                    for rank in range(2)
                ],
            },
        ],
    }


@given(
    sizes=st.lists(st.tuples(st.integers(1, 2000), st.sampled_from([4, 8, 16])), min_size=1, max_size=4),
    world_size=st.integers(1, 5),
    planner=st.sampled_from(["round_robin", "row_wise", "column_wise"]),
)
def test_shards_cover_tables_and_weigh_what_the_plan_says(
    sizes: list[tuple[int, int]], world_size: int, planner: str
) -> None:
    specs = [
        TableSpec(name=f"t{n}", rows=rows, dim=dim, features=(f"f{n}",), optimizer_bytes_per_row=4)
        for n, (rows, dim) in enumerate(sizes)
    ]
    plan = make_plan(PlanOptions(planner=planner, replicate_below_bytes=4096), specs, world_size)  # type: ignore[arg-type]
    found = table_placement([(spec, plan) for spec in specs], world_size)
    held = [0] * world_size
    for table, spec in zip(found["tables"], specs, strict=True):
        cells = sum(shard["rows"] * shard["columns"] for shard in table["shards"])
        copies = world_size if table["plan"] == "replicated" else 1
        assert cells == copies * spec.rows * spec.dim
        for shard in table["shards"]:
            held[shard["rank"]] += shard["bytes"]
    assert held == rank_bytes(plan, specs, world_size)
