"""windrow.launch.cache_choice: what is predicted is what sampling asks for; who is kept first."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from windrow.comm.wire import WireOptions
from windrow.gnn.demand import count_accesses
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.synthetic_communities import power_law_communities
from windrow.gnn.trainer import SamplerOptions
from windrow.launch.cache_choice import rank_part, row_sizes, seed_order
from windrow.launch.recipe import Recipe, make_recipe
from windrow.partition.book import PartitionBook

PARTS = 3
EPOCHS = 30


def recipe(**changes: Any) -> Recipe:
    sections = {
        "graph": {"path": "g.npz"},
        "model": {"num_layers": 2, "hidden": 8},
        "sampler": {"fanouts": [4, 3]},
        "training": {"batch_size": 40, "epochs": 5},
    }
    return make_recipe({"name": "r", "store": "s", **sections, **changes}, source="r.toml", base=Path.cwd())


@pytest.fixture(scope="module")
def graph() -> PartitionedGraph:
    made = power_law_communities(
        3000, 24000, seed=3, num_communities=12, mixing=0.2, num_features=4, train_share=0.05
    )
    assert made.labels is not None
    book = PartitionBook.from_assignment(made.labels.numpy() % PARTS, PARTS)
    return PartitionedGraph.from_graph(made, book, 0)


def counted_per_epoch(graph: PartitionedGraph, part: int, asked: Recipe) -> np.ndarray[Any, Any]:
    sampler = NeighborSampler(
        graph.indptr, graph.indices, asked.sampler.fanouts, seed=9, original_ids=graph.original_ids
    )
    return count_accesses(sampler, seed_order(graph, part, asked), range(EPOCHS)) / EPOCHS


@pytest.mark.parametrize("order", ["global", "local"])
def test_what_is_expected_is_what_sampling_asks_for(graph: PartitionedGraph, order: str) -> None:
    asked = recipe(sampler={"fanouts": [4, 3], "order": order})
    for part in range(PARTS):
        ranking = rank_part(graph, part, asked)
        counts = counted_per_epoch(graph, part, asked)
        assert ranking.input_rows == pytest.approx(counts.sum(), rel=0.03)
        capacities = [0, 50, 400, ranking.num_remote]
        for rows, capacity in zip(ranking.expected_rows(capacities), capacities, strict=True):
            left = counts.copy()
            left[slice(*ranking.own)] = 0
            left[ranking.kept(capacity)] = 0
            measured = [left[start:stop].sum() for start, stop in zip(
                ranking.offsets, ranking.offsets[1:], strict=False)]  # fmt: skip
            assert rows == pytest.approx(measured, rel=0.1, abs=2.0)
            assert rows.sum() == pytest.approx(sum(measured), rel=0.05, abs=2.0)
            assert rows[part] == 0


def test_room_for_all_keeps_also_what_no_minibatch_needs(graph: PartitionedGraph) -> None:
    ranking = rank_part(graph, 1, recipe(cache={"policy": "halo"}))
    start, stop = ranking.own
    everyone = np.r_[0:start, stop : graph.num_vertices]
    assert ranking.num_remote == len(everyone) == ranking.num_kept(10**6)
    assert np.sort(ranking.kept(10**6)).tolist() == everyone.tolist()
    # Beyond one hop nothing has a score, so that short of all rows the cache stays smaller than it might be.
    assert ranking.num_kept(ranking.num_remote - 1) == len(ranking.ranking) < ranking.num_remote - 1
    assert ranking.expected_rows([ranking.num_remote - 1]).sum() > 0
    assert ranking.expected_rows([ranking.num_remote]).sum() == 0
    assert not np.shares_memory(ranking.kept(5), ranking.ranking)


def test_vip_keeps_what_is_needed_most(graph: PartitionedGraph) -> None:
    asked = recipe()
    left = {
        policy: rank_part(graph, 0, recipe(cache={"policy": policy})).expected_rows([200]).sum()
        for policy in ("vip", "degree", "simulation")
    }
    assert left["vip"] <= left["simulation"] <= left["degree"]
    ranking = rank_part(graph, 0, asked)
    assert (np.diff(ranking.total[ranking.ranking]) <= 0).all()
    needed = 1 / (asked.training.epochs * ranking.steps)
    assert ranking.worthwhile(asked.training.epochs) == int((ranking.total[ranking.ranking] > needed).sum())


@pytest.mark.parametrize(
    ("options", "dtype", "sizes"),
    [
        ({}, torch.float32, (40, 40)),
        ({"vectors": "fp16"}, torch.float32, (40, 20)),
        ({"storage": "bf16"}, torch.float32, (20, 20)),
        ({"storage": "bf16"}, torch.bfloat16, (20, 20)),
    ],
)
def test_row_sizes(options: dict[str, Any], dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    sampler = SamplerOptions(storage=options.get("storage", "fp32"))
    wire = WireOptions(vectors=options.get("vectors", "fp32"))
    assert row_sizes(sampler, wire, torch.empty((3, 10), dtype=dtype)) == sizes
