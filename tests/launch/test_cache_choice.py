"""windrow.launch.cache_choice: ranks agree, and training asks for as many rows as were expected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.comm.world import World
from windrow.gnn.models import build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.synthetic import community_graph
from windrow.gnn.trainer import MinibatchTrainer
from windrow.launch.cache_choice import CacheChoice, choose_cache
from windrow.launch.recipe import Recipe, make_recipe
from windrow.partition.book import PartitionBook

VERTICES = 1200
EPOCHS = 6


def recipe(epochs: int = EPOCHS, wire: str = "fp32", **cache: Any) -> Recipe:
    sections: dict[str, Any] = {
        "graph": {"path": "g.npz"},
        "model": {"num_layers": 2, "hidden": 4},
        "sampler": {"fanouts": [3, 2]},
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


def test_every_world_agrees_and_gets_what_was_expected(spmd: Callable[..., list[Any]]) -> None:
    asked = recipe(alpha=0.1)

    def body(world: World) -> tuple[float, int, float | None, int]:
        world.meter = Meter()
        graph = graph_of(world)
        choice = choose_cache(world, graph, asked)
        model = build_model(asked.model, in_features=6, out_features=graph.outputs, seed=0)
        trainer = MinibatchTrainer(
            world,
            graph,
            model,
            sampler_options=asked.sampler,
            options=asked.training,
            seed=asked.run.seed,
            pipeline=asked.pipeline,
            cached_ids=choice.cached_ids,
        )
        world.meter.reset()
        for epoch in range(EPOCHS):
            trainer.train_epoch(epoch)
        trainer.close()
        return choice.alpha, len(choice.cached_ids), choice.expected_rows, world.meter.found().remote

    results = spmd(body)
    alphas, kept, expected, remote = zip(*results, strict=True)
    if len(results) == 1:
        assert (alphas, kept, expected, remote) == ((0.0,), (0,), (None,), (0,))
        return
    assert set(alphas) == {0.1}
    assert set(kept) == {int(0.1 * VERTICES / len(results))}
    assert sum(remote) / EPOCHS == pytest.approx(sum(expected), rel=0.05)
    assert [rows / EPOCHS for rows in remote] == pytest.approx(list(expected), rel=0.1)


def on_two_ranks(asked: Recipe) -> list[CacheChoice]:
    return Loopback.run(2, lambda world: choose_cache(world, graph_of(world), asked))


def test_no_cache_needs_no_analysis() -> None:
    for choice in on_two_ranks(recipe(alpha=0)):
        assert (choice.alpha, len(choice.cached_ids), choice.expected_rows) == (0, 0, None)
        assert choice.cached_ids.dtype == torch.int64


def test_automatic_within_the_memory() -> None:
    row_bytes = 4 * 6
    choices = on_two_ranks(recipe(memory_gib=100.5 * row_bytes / 2**30))
    assert [len(choice.cached_ids) for choice in choices] == [100, 100]
    assert {choice.alpha for choice in choices} == {100 * 2 / VERTICES}
    plenty = on_two_ranks(recipe(epochs=500))
    assert [choice.expected_rows for choice in plenty] == [0, 0]
    for rank, choice in enumerate(plenty):
        remote = np.arange(600) + 600 * (1 - rank)
        assert choice.cached_ids.sort().values.tolist() == remote.tolist()
    # In one epoch few rows are asked for twice.
    once = on_two_ranks(recipe(epochs=1))
    assert all(0 < len(choice.cached_ids) < 600 for choice in once)
    assert len({choice.alpha for choice in once}) == 1


def test_copies_are_as_short_as_on_the_wire() -> None:
    choices = on_two_ranks(recipe(wire="bf16", memory_gib=100.5 * 2 * 6 / 2**30))
    assert [len(choice.cached_ids) for choice in choices] == [100, 100]


def test_own_rows_are_never_kept_twice() -> None:
    for rank, choice in enumerate(on_two_ranks(recipe(alpha=0.5, policy="degree"))):
        assert len(choice.cached_ids.unique()) == len(choice.cached_ids) == 300
        assert ((choice.cached_ids < 600) == (rank == 1)).all()
