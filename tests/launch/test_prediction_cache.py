"""windrow.launch.cache_choice: fewer rows travel, and never more than fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from windrow.caching.cached_store import CachedStore
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.comm.world import World
from windrow.gnn.inference import infer_sampled
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.pipeline import PipelineOptions
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.synthetic import community_graph
from windrow.launch.cache_choice import choose_inference_cache
from windrow.launch.recipe import Recipe, make_recipe
from windrow.partition.book import PartitionBook

NUM_VERTICES, FANOUTS = 600, (3, 2)
GRAPH = community_graph(NUM_VERTICES, 3, seed=3, num_features=6)


def make(**cache: Any) -> Recipe:
    sections: dict[str, Any] = {
        "graph": {"path": "g.npz"},
        "model": {"num_layers": 2},
        "sampler": {"fanouts": list(FANOUTS)},
        "evaluation": {"batch_size": 60},
        "cache": cache,
    }
    return make_recipe({"name": "r", "store": "s", **sections}, source="r.toml", base=Path("/"))


def make_part(world: World) -> PartitionedGraph:
    assignment = np.arange(NUM_VERTICES) * 7 % 3 % world.size
    return PartitionedGraph.from_graph(
        GRAPH, PartitionBook.from_assignment(assignment, world.size), world.rank
    )


def rows_moved(world: World, part: PartitionedGraph, cached_ids: torch.Tensor) -> int:
    """Rows that a pass over all vertices brings here, filling the cache included."""
    world.meter = meter = Meter()
    store = CachedStore(world, part.offsets, part.features, cached_ids=cached_ids, stage="features")
    sampler = NeighborSampler(
        part.indptr, part.indices, FANOUTS, seed=1, original_ids=part.original_ids, source_degrees=True
    )
    infer_sampled(
        world,
        part,
        build_model(ModelOptions(hidden=4, num_layers=2), in_features=6, out_features=3, seed=2).eval(),
        None,
        sampler=sampler,
        store=store,
        options=PipelineOptions(),
        batch_size=60,
    )
    return meter.totals("features: rows").rows_received + meter.totals("features: cache: rows").rows_received


@pytest.mark.parametrize("alpha", [0.5, "auto"])
def test_fewer_rows_travel(alpha: float | str) -> None:
    def body(world: World) -> tuple[int, int, int]:
        part = make_part(world)
        chosen = choose_inference_cache(world, part, None, make(alpha=alpha), FANOUTS)
        start, stop = part.own_range
        assert not bool(((chosen >= start) & (chosen < stop)).any())
        assert len(chosen.unique()) == len(chosen)
        return len(chosen), rows_moved(world, part, chosen), rows_moved(world, part, chosen[:0])

    for kept, with_cache, without in Loopback.run(3, body):
        assert kept > 0
        assert with_cache < without
        if alpha == 0.5:
            assert kept <= 100


def test_what_is_needed_once_is_not_kept() -> None:
    """One minibatch for everything: each row travels once, whatever is kept."""

    def body(world: World) -> int:
        recipe = make(alpha=1.0)
        changed = make_recipe(
            recipe.settings() | {"evaluation": {"batch_size": 10_000}}, source="r.toml", base=Path("/")
        )
        return len(choose_inference_cache(world, make_part(world), None, changed, FANOUTS))

    assert Loopback.run(3, body) == [0, 0, 0]


def test_no_room_no_vertices_and_nobody_else() -> None:
    def kept(world: World, ids: torch.Tensor | None, **cache: Any) -> int:
        return len(choose_inference_cache(world, make_part(world), ids, make(**cache), FANOUTS))

    nothing = torch.empty(0, dtype=torch.int64)
    assert Loopback.run(2, lambda world: kept(world, None, alpha=0.0)) == [0, 0]
    assert Loopback.run(2, lambda world: kept(world, nothing, alpha=1.0)) == [0, 0]
    assert Loopback.run(2, lambda world: kept(world, None, memory_gib=0.0)) == [0, 0]
    assert kept(Loopback.single(), None) == 0
