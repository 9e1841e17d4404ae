"""windrow.gnn.cache_choice: what is predicted is what sampling asks for; ranks agree; who is kept first."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.harness.power_law import power_law_communities
from windrow.caching.selection import CacheOptions
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.comm.wire import WireOptions
from windrow.comm.world import World
from windrow.gnn.cache_choice import CacheChoice, choose_cache, count_accesses, rank_part, row_sizes, seed_order
from windrow.gnn.models import build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.sampler import NeighborSampler, SamplerOptions
from windrow.gnn.synthetic import community_graph
from windrow.gnn.task import NodeTask
from windrow.launch.recipe import Recipe, make_recipe
from windrow.partition.book import PartitionBook
from windrow.training.trainer import Trainer

VERTICES = 1200
EPOCHS = 6


def recipe(epochs: int = EPOCHS, wire: str = "fp32", order: str = "global", **cache: Any) -> Recipe:
    sections: dict[str, Any] = {
        "graph": {"path": "g.npz"},
        "model": {"num_layers": 2, "hidden": 4},
        "sampler": {"fanouts": [3, 2], "order": order},
        "wire": {"vectors": wire},
        "training": {"batch_size": 60, "epochs": epochs},
        "cache": cache,
    }
    return make_recipe({"name": "r", "store": "s", **sections}, source="r.toml", base=Path.cwd())


def graph_of(world: World) -> PartitionedGraph:
    made = community_graph(VERTICES, 4, seed=2, num_features=6, homophily=0.5)
    return PartitionedGraph.from_graph(
        made, PartitionBook.from_assignment(np.arange(VERTICES) % 4 % world.size, world.size), world.rank
    )


@pytest.mark.parametrize("size", [1, 3])
def test_every_rank_agrees_and_gets_what_was_expected(size: int) -> None:
    asked = recipe(alpha=0.1)

    def body(world: World) -> tuple[float, int, float | None, int]:
        world.meter = Meter()
        graph = graph_of(world)
        choice = choose_cache(world, graph, asked.sampling)
        model = build_model(asked.model, in_features=6, out_features=graph.num_outputs, seed=0)
        task = NodeTask(
            graph,
            asked.sampler.fanouts,
            order=asked.sampler.order,
            pipeline=asked.pipeline,
            cached_ids=choice.cached_ids,
            cache=CacheOptions(shared_memory=False),
        )
        trainer = Trainer(world, model, task, asked.training, seed=asked.run.seed)
        world.meter.reset()
        for epoch in range(EPOCHS):
            trainer.train_epoch(epoch)
        trainer.close()
        return choice.alpha, len(choice.cached_ids), choice.expected_rows, world.meter.found().remote

    results = Loopback.run(size, body, deadline_s=60)
    alphas, kept, expected, remote = zip(*results, strict=True)
    if len(results) == 1:
        assert (alphas, kept, expected, remote) == ((0.0,), (0,), (None,), (0,))
        return
    assert set(alphas) == {0.1}
    assert set(kept) == {int(0.1 * VERTICES / len(results))}
    assert sum(remote) / EPOCHS == pytest.approx(sum(expected), rel=0.05)
    assert [rows / EPOCHS for rows in remote] == pytest.approx(list(expected), rel=0.1)


def on_two_ranks(asked: Recipe) -> list[CacheChoice]:
    return Loopback.run(2, lambda world: choose_cache(world, graph_of(world), asked.sampling))


def test_no_cache_needs_no_analysis() -> None:
    for choice in on_two_ranks(recipe(alpha=0)):
        assert (choice.alpha, len(choice.cached_ids), choice.expected_rows) == (0, 0, None)
        assert choice.cached_ids.dtype == torch.int64


def test_automatic_within_the_memory() -> None:
    row_bytes = 4 * 6
    choices = on_two_ranks(recipe(memory_gib=100.5 * row_bytes / 2**30))
    assert [len(choice.cached_ids) for choice in choices] == [100, 100]
    assert {choice.alpha for choice in choices} == {100 * 2 / VERTICES}
    short = on_two_ranks(recipe(wire="bf16", memory_gib=100.5 * row_bytes / 2 / 2**30))
    assert [len(choice.cached_ids) for choice in short] == [100, 100], "copies are as short as on the wire"
    plenty = on_two_ranks(recipe(epochs=500))
    assert [choice.expected_rows for choice in plenty] == [0, 0]
    for rank, choice in enumerate(plenty):
        remote = np.arange(600) + 600 * (1 - rank)
        assert choice.cached_ids.sort().values.tolist() == remote.tolist()
    # In one epoch few rows are asked for twice.
    once = on_two_ranks(recipe(epochs=1))
    assert all(0 < len(choice.cached_ids) < 600 for choice in once)
    assert len({choice.alpha for choice in once}) == 1


def test_own_rows_are_never_kept_twice() -> None:
    for rank, choice in enumerate(on_two_ranks(recipe(alpha=0.5, policy="degree"))):
        assert len(choice.cached_ids.unique()) == len(choice.cached_ids) == 300
        assert ((choice.cached_ids < 600) == (rank == 1)).all()


PARTS = 3
SAMPLED_EPOCHS = 30


@pytest.fixture(scope="module")
def graph() -> PartitionedGraph:
    made = power_law_communities(3000, 24000, seed=3, num_communities=12, mixing=0.2, num_features=4, train_share=0.05)
    assert made.labels is not None
    book = PartitionBook.from_assignment(made.labels.numpy() % PARTS, PARTS)
    return PartitionedGraph.from_graph(made, book, 0)


def counted_per_epoch(graph: PartitionedGraph, part: int, asked: Recipe) -> np.ndarray[Any, Any]:
    sampler = NeighborSampler(
        graph.indptr, graph.indices, asked.sampler.fanouts, seed=9, original_ids=graph.original_ids
    )
    return count_accesses(sampler, seed_order(graph, part, asked.sampling), range(SAMPLED_EPOCHS)) / SAMPLED_EPOCHS


@pytest.mark.parametrize("order", ["global", "local"])
def test_what_is_expected_is_what_sampling_asks_for(graph: PartitionedGraph, order: str) -> None:
    asked = recipe(order=order)
    for part in range(PARTS):
        ranking = rank_part(graph, part, asked.sampling)
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


def test_vertices_of_parts_in_shared_memory_are_not_kept(graph: PartitionedGraph) -> None:
    for policy in ("vip", "degree", "simulation"):
        alone, near = (
            rank_part(graph, 1, recipe(policy=policy).sampling, near=frozenset(parts)) for parts in ([], [0])
        )
        start, stop = near.own
        assert near.num_remote == alone.num_remote - start
        assert near.ranking.tolist() == [vertex for vertex in alone.ranking if vertex >= stop]
        assert near.kept(10**6).tolist() == list(range(stop, graph.num_vertices))
        assert near.expected_rows([50])[0, 0] == 0
        assert near.input_rows == alone.input_rows
        assert near.expected_rows([0])[0, 2:].tolist() == alone.expected_rows([0])[0, 2:].tolist()


def test_room_for_all_keeps_also_what_no_minibatch_needs(graph: PartitionedGraph) -> None:
    ranking = rank_part(graph, 1, recipe(policy="halo").sampling)
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
        policy: rank_part(graph, 0, recipe(policy=policy).sampling).expected_rows([200]).sum()
        for policy in ("vip", "degree", "simulation")
    }
    assert left["vip"] <= left["simulation"] <= left["degree"]
    ranking = rank_part(graph, 0, asked.sampling)
    assert (np.diff(ranking.total[ranking.ranking]) <= 0).all()
    needed = 1 / (asked.training.epochs * ranking.steps)
    assert ranking.worthwhile(asked.training.epochs) == int((ranking.total[ranking.ranking] > needed).sum())


@pytest.mark.parametrize(
    ("storage", "vectors", "dtype", "sizes"),
    [
        ("fp32", "fp32", torch.float32, (40, 40)),
        ("fp32", "fp16", torch.float32, (40, 20)),
        ("bf16", "fp32", torch.float32, (20, 20)),
        ("bf16", "fp32", torch.bfloat16, (20, 20)),
    ],
)
def test_row_sizes(storage: Any, vectors: Any, dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    rows = torch.empty((3, 10), dtype=dtype)
    assert row_sizes(SamplerOptions(storage=storage), WireOptions(vectors=vectors), rows) == sizes
