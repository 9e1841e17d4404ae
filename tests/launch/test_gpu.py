"""What trains on CPUs trains on a GPU, with the same losses: recipes of graphs and of logs, and links."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import windrow as wr
from windrow import gnn
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.comm.world import World
from windrow.gnn.partitioning import partition_to_store
from windrow.gnn.synthetic import community_graph
from windrow.launch.recipe import Recipe, make_recipe
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.launch.training import make_trainer
from windrow.partition import PartitionOptions
from windrow.recsys import EmbeddingCollection, EmbeddingConfig, TableOptions

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

RANKS = (1, 2)
TOLERANCE, TOLERANCE_BF16 = 2e-3, 1e-2
"""Sums are added in another order."""

GRAPHS: dict[str, dict[str, dict[str, Any]]] = {
    "sage": {},
    "gcn": {"model": {"kind": "gcn"}},
    "gat": {"model": {"kind": "gat"}},
    "gin, residual": {"model": {"kind": "gin", "residual": True, "normalise": "layer"}},
    "copies, fp16": {"cache": {"alpha": 0.5}, "wire": {"vectors": "fp16"}},
    "int8 rows": {"wire": {"vectors": "int8"}},
    "rows of the host": {"cache": {"gpu_share": 0.3, "alpha": 0.2}},
    "no pipeline": {"pipeline": {"depth": 0}},
    "sampled evaluation": {"evaluation": {"method": "sampled"}},
    "whole": {"full_graph": {}},
    "whole, gat": {"full_graph": {}, "model": {"kind": "gat"}},
    "whole, gcn, project": {"full_graph": {"order": "project"}, "model": {"kind": "gcn"}},
    "whole, no overlap, fp16": {"full_graph": {"overlap": False}, "wire": {"vectors": "fp16", "gradients": "fp16"}},
    "whole, adaptive": {"full_graph": {"messages": "adaptive", "assign_every_epochs": 1}},
    "whole, int1": {"full_graph": {"messages": "int1"}},
    "whole, recompute": {"full_graph": {"recompute": True, "keep_first": False}, "model": {"kind": "gat"}},
    "whole, boundary sampling": {"full_graph": {"method": "boundary_sampling", "boundary_share": 0.5}},
    "whole, stale": {"full_graph": {"method": "stale"}},
    "whole, skipping": {"full_graph": {"method": "skip_broadcasts"}},
    "whole, slices": {"full_graph": {"method": "feature_slices"}},
    "window": {"cache": {"alpha": 0.3, "window": 2}},
    "topology on ranks": {"pipeline": {"topology": "partitioned"}},
    "fp8 sums": {"wire": {"sums": "fp8"}},
    "learnt rows": {"model": {"embedding": True}, "tables": {"dim": 8}},
    "learnt rows, int8": {"model": {"embedding": True}, "tables": {"dim": 8}, "wire": {"vectors": "int8"}},
    "learnt rows, robe": {
        "model": {"embedding": True},
        "tables": {"dim": 8, "form": "robe", "compression": 2, "robe_block": 8},
    },
}

CUT: dict[str, Any] = {"planner": "row_wise"}
LOGS: dict[str, dict[str, dict[str, Any]]] = {
    "rowwise adagrad": {},
    "adagrad": {"tables": {"optimizer": "adagrad"}},
    "adam": {"tables": {"optimizer": "adam"}},
    "sgd, fp16": {"tables": {"optimizer": "sgd", "precision": "fp16"}},
    "by rows": {"plan": CUT},
    "by rows, lookahead": {"plan": CUT, "training": {"lookahead": True}},
    "by rows, fp16": {"plan": CUT, "wire": {"vectors": "fp16", "gradients": "bf16"}},
    "by rows, int8": {"plan": CUT, "wire": {"vectors": "int8", "gradients": "int4"}},
    "replicated": {"plan": {"replicate_below_bytes": 1 << 20}},
    "hot rows replicated": {"plan": {"planner": "oper"}},
    "planned anew": {"plan": {"planner": "oper", "replan_every_steps": 2, "replan_margin": 0.0}},
    "robe": {"tables": {"form": "robe", "compression": 2}},
    "tensor train": {"tables": {"form": "tensor_train", "compression": 2}},
    "int8": {"tables": {"form": "int8"}},
    "robe by rows": {"tables": {"form": "robe", "compression": 2, "robe_sharded": True, "robe_block": 8}, "plan": CUT},
    "quotient and remainder": {"tables": {"form": "quotient_remainder", "compression": 2}},
    "codes": {"tables": {"form": "codes", "compression": 2, "code_every": 4}},
    "codes, robe": {"tables": {"form": "codes", "compression": 2, "code_sketch": "robe"}},
    "hot rows": {"tables": {"form": "hashed", "compression": 2, "hot_share": 0.2, "hot_counted": True, "hot_every": 3}},
    "bf16": {"training": {"autocast": "bf16"}},
}


def losses_of(recipe: Recipe | RecommendationRecipe, device: str, ranks: int) -> list[float]:
    """Of two epochs, and the metric after them."""

    def body(world: World) -> list[float]:
        world.meter = Meter()
        with make_trainer(world, recipe, torch.device(device)) as trainer:
            losses = [trainer.train_epoch(epoch) for epoch in range(2)]
            measured = trainer.evaluate("validation")["validation"]
            state = trainer.state_dict()
            trainer.load_state_dict(state)
            return [*losses, *measured.values()]

    found: list[float] = Loopback.run(ranks, body, deadline_s=120)[0]
    return found


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("case", GRAPHS)
def test_graphs(case: str, ranks: int, graph_file: Path, tmp_path: Path) -> None:
    sections: dict[str, dict[str, Any]] = {
        "graph": {"path": str(graph_file)},
        "partition": {"num_parts": ranks, "method": "random"},
        "model": {"hidden": 8, "num_layers": 2, "dropout": 0.3},
        "sampler": {"fanouts": [4, 3]},
        "training": {"epochs": 2, "batch_size": 32, "learning_rate": 0.01},
        "cache": {"shared_memory": False},
    }
    changes = GRAPHS[case]
    if "full_graph" in changes:
        del sections["sampler"], sections["training"]["batch_size"], sections["cache"]
        changes = changes | {"full_graph": changes["full_graph"] | {"enabled": True}}
    sections |= {name: sections.get(name, {}) | values for name, values in changes.items()}
    recipe = make_recipe({"name": "g", "store": "store", **sections}, source="g.toml", base=tmp_path)
    partition_to_store(recipe)
    expected = losses_of(recipe, "cpu", ranks)
    assert losses_of(recipe, "cuda", ranks) == pytest.approx(expected, rel=TOLERANCE)


LINKS: dict[str, Callable[..., gnn.LinkTask | gnn.FullGraphLinkTask]] = {
    "sampled": partial(gnn.LinkTask, fanouts=(4, 3)),
    "in-batch, partitioned": partial(
        gnn.LinkTask, fanouts=(4, 3), negatives="in-batch", pipeline=gnn.PipelineOptions(topology="partitioned")
    ),
    "whole": gnn.FullGraphLinkTask,
    "whole, in-batch": partial(gnn.FullGraphLinkTask, negatives="in-batch"),
}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("case", LINKS)
def test_links_of_learnt_rows(case: str, ranks: int) -> None:
    graph = community_graph(150, 5, seed=1, average_degree=10, homophily=0.95)
    graph, links = gnn.split_links(graph, validation_fraction=0.1, test_fraction=0.1)

    def body(world: World, device: torch.device) -> list[float]:
        part = gnn.partition(graph, world, PartitionOptions(method="random"))
        rows = EmbeddingCollection(
            [EmbeddingConfig(graph.num_vertices, 8, "vertex")],
            world=world,
            optimizer=TableOptions(optimizer="adam"),
            row_ids=part.original_ids,
            plan=part.plan_of_rows("vertex", 8),
            device=device,
            seed=3,
        )
        task = LINKS[case](part, links, embedding=rows, evaluation_negatives=50)
        with wr.Trainer(world, gnn.LightGCN(2).to(device), task, epochs=2, batch_size=200, seed=2) as trainer:
            losses = [trainer.train_epoch(epoch) for epoch in range(2)]
            return [*losses, trainer.evaluate()["test"]["mrr"]]

    on_cpu, on_gpu = (
        Loopback.run(ranks, partial(body, device=torch.device(device)), deadline_s=120)[0] for device in ("cpu", "cuda")
    )
    assert on_gpu == pytest.approx(on_cpu, rel=TOLERANCE)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory, prepare_clicks: Callable[[Path], None]) -> Path:
    """A folder with a click log and its store."""
    folder = tmp_path_factory.mktemp("log")
    prepare_clicks(folder)
    return folder


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("case", LOGS)
def test_logs(case: str, ranks: int, log: Path, click_recipe: Callable[..., RecommendationRecipe]) -> None:
    recipe = click_recipe(log, **LOGS[case])
    expected = losses_of(recipe, "cpu", ranks)
    assert losses_of(recipe, "cuda", ranks) == pytest.approx(
        expected, rel=TOLERANCE_BF16 if case == "bf16" else TOLERANCE
    )
