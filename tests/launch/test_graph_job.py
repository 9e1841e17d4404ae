"""windrow.launch.training: the trainer of a graph's recipe. Whole runs are in test_training.py."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.comm.world import World
from windrow.gnn.explain_caches import explain
from windrow.gnn.full_graph import FullGraphOptions
from windrow.gnn.message_bits import Messages
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.partitioning import graph_to_store, partition_to_store
from windrow.gnn.readers import read_graph
from windrow.launch.recipe import Recipe, make_recipe
from windrow.launch.training import make_trainer
from windrow.training.trainer import Trainer


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, graph_file: Path) -> Recipe:
    """A recipe of a small graph whose store is there."""
    folder = tmp_path_factory.mktemp("graph")
    shutil.copy(graph_file, folder)
    sections = {
        "graph": {"path": "graph.npz"},
        "partition": {"num_parts": 1, "method": "random"},
        "model": {"hidden": 8, "num_layers": 2},
        "sampler": {"fanouts": [4, 3], "order": "local"},
        "training": {"epochs": 2, "batch_size": 32},
    }
    made = make_recipe({"name": "tiny", "store": "store", **sections}, source="r.toml", base=folder)
    partition_to_store(made)
    return made


def trainer_of(recipe: Recipe) -> Trainer:
    world = Loopback.single()
    world.meter = Meter()
    return make_trainer(world, recipe, torch.device("cpu"))


def test_an_epoch_in_two_parts_is_an_epoch(recipe: Recipe) -> None:
    whole, first, second = trainer_of(recipe), trainer_of(recipe), trainer_of(recipe)
    loss = whole.train_epoch(0)

    class Enough(BaseException):
        """Ends an epoch early."""

    def stop(done: int) -> None:
        if done == 2:
            raise Enough

    with pytest.raises(Enough):
        first.train_epoch(0, after_step=stop)
    second.load_state_dict(first.state_dict())
    rest: list[int] = []
    assert second.train_epoch(
        0, first_step=2, loss_before=first.loss_so_far(), after_step=rest.append
    ) == pytest.approx(loss, rel=1e-12)
    assert rest == list(range(3, whole.steps_per_epoch + 1))
    ends = [one.state_dict()["model"] for one in (whole, second)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_the_size_of_copies_is_the_one_that_they_have(recipe: Recipe) -> None:
    changed = recipe.settings() | {
        "store": str(recipe.store.parent / "two"),
        "partition": {"num_parts": 2, "method": "random"},
        "sampler": {"fanouts": [4, 3]},
        "wire": {"vectors": "fp16"},
        "cache": {"alpha": 0.5, "shared_memory": False},
    }
    asked = make_recipe(changed, source="r.toml", base=Path("/"))
    partition_to_store(asked)
    graph = PartitionedGraph.open(asked.store, rank=0, size=2, read_features=False)
    explained = explain(graph, asked.sampling).marks["recipe"].remote_rows
    assert explained > 1

    def body(world: World) -> tuple[str, list[dict[str, int]], int]:
        world.meter = Meter()
        one = make_trainer(world, asked, torch.device("cpu"))
        found = ("".join(one.task.opening_lines()), one.task.placement()["ranks"], one.task.store.cached.nbytes)
        one.close()
        return found

    for rank, (line, ranks, kept_bytes) in enumerate(Loopback.run(2, body)):
        assert kept_bytes == ranks[rank]["cached_bytes"] == 60 * 6 * 2
        assert ranks[rank]["feature_bytes"] == ranks[rank]["vertices"] * 6 * 4
        assert "alpha 0.5, up to 60 rows of other ranks (720 B)" in line
        # The figure that windrow explain has.
        assert f"; all ranks together will ask for about {explained:,.0f} more in an epoch" in line


def test_edge_weights_are_used_where_the_recipe_asks(recipe: Recipe) -> None:
    graph = read_graph(recipe.graph)
    weight = torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(1))

    def first_loss(edge_weight: torch.Tensor | None, **model: bool) -> tuple[float, str]:
        shape = {"hidden": 8, "num_layers": 2, "kind": "gcn", **model}
        changed = recipe.settings() | {"store": "weights", "model": shape}
        asked = make_recipe(changed, source="r.toml", base=recipe.store.parent)
        graph_to_store(replace(graph, edge_weight=edge_weight), asked.store, asked.partition, overwrite=True)
        with make_trainer(Loopback.single(), asked, torch.device("cpu")) as trainer:
            return trainer.train_step(0, 0), "".join(trainer.task.opening_lines())

    assert first_loss(weight)[0] == first_loss(None)[0] != first_loss(weight, edge_weights=True)[0]
    assert "has edge weights, which the model does not use" in first_loss(weight)[1]
    with pytest.raises(RecipeError, match=r"model\.edge_weights = true, but the graph has no edge weights"):
        first_loss(None, edge_weights=True)
    with pytest.raises(DataError, match="an edge weight is negative"):
        first_loss(-weight, edge_weights=True)


def test_gradient_sums_of_half_the_bytes_leave_all_ranks_with_the_same_weights(recipe: Recipe) -> None:
    changed = recipe.settings() | {
        "store": str(recipe.store.parent / "halved"),
        "partition": {"num_parts": 2, "method": "random"},
    }

    def train(sums: str) -> list[tuple[int, list[float]]]:
        asked = make_recipe(changed | {"wire": {"sums": sums}}, source="r.toml", base=Path("/"))

        def body(world: World) -> tuple[int, list[float]]:
            world.meter = Meter()
            one = make_trainer(world, asked, torch.device("cpu"))
            one.train_epoch(0)
            weights = torch.cat([value.flatten() for value in one.state_dict()["model"].values()])
            one.close()
            return world.meter.totals("gradients").bytes_reduced, weights.tolist()

        return Loopback.run(2, body)

    partition_to_store(make_recipe(changed, source="r.toml", base=Path("/")))
    exact, rounded = train("fp32"), train("bf16")
    assert rounded[0] == rounded[1]
    assert 2 * rounded[0][0] == exact[0][0] > 0
    assert rounded[0][1] != exact[0][1]
    assert rounded[0][1] == pytest.approx(exact[0][1], abs=0.02)


def test_another_number_of_ranks_is_refused_with_local_order(recipe: Recipe) -> None:
    with pytest.raises(StoreError, match=r"written by 2 ranks.*resume on 2 ranks"):
        trainer_of(recipe).task.check_world_size(2)
    globally = make_recipe(recipe.settings() | {"sampler": {"fanouts": [4, 3]}}, source="r.toml", base=Path("/"))
    trainer_of(globally).task.check_world_size(2)


@pytest.mark.parametrize(("messages", "embedding"), [("wire", False), ("adaptive", False), ("wire", True)])
def test_the_whole_graph_is_trained_on(recipe: Recipe, messages: Messages, embedding: bool, tmp_path: Path) -> None:
    whole = replace(
        recipe,
        store=tmp_path / "two",
        partition=replace(recipe.partition, num_parts=2),
        full_graph=FullGraphOptions(enabled=True, messages=messages),
        model=replace(recipe.model, embedding=embedding),
    )
    partition_to_store(whole)

    def body(world: World) -> tuple[float, float, list[str]]:
        world.meter = Meter()
        with make_trainer(world, whole, torch.device("cpu")) as trainer:
            losses = [trainer.train_epoch(epoch) for epoch in range(3)]
            return losses[0], losses[2], list(trainer.task.opening_lines())

    for first, last, (line,) in Loopback.run(2, body):
        assert last < first
        assert line.startswith("halo: ")
        assert "fewer than sources of other parts" in line
