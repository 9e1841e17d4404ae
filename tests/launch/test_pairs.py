"""Every technique with every other: each pair trains as it should on any number of ranks, or is refused with a reason.

What a technique does to a recipe is a few settings. A pair that changes how rows travel, and not what is learnt, must
learn what the plain recipe learns; one that changes what is learnt, what it learns on one rank; and one that rounds
what travels nearly that. docs/pairs.md shows the outcome: python -P tests/launch/test_pairs.py > docs/pairs.md
"""

from collections.abc import Callable, Mapping
from functools import cache
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from windrow.comm.errors import RecipeError
from windrow.comm.launcher import launched_size
from windrow.comm.links import NetworkDescription, described_links
from windrow.comm.loopback import Loopback
from windrow.comm.world import World
from windrow.gnn.partitioning import graph_to_store
from windrow.gnn.synthetic import community_graph
from windrow.launch import training
from windrow.launch.recipe import AnyRecipe, make_any_recipe
from windrow.launch.training import make_trainer
from windrow.partition.options import PartitionOptions
from windrow.recsys.log.prepare import prepare_log
from windrow.training.trainer import Trainer

WORLDS = ("loopback", 1), ("mpi", 2), ("mpi", 4)
"""What kinds of world have to do with it is tested elsewhere."""

Kind = Literal["graph", "log"]
KINDS: tuple[Kind, ...] = ("graph", "log")
Settings = Mapping[str, Mapping[str, Any]]


class Technique(NamedTuple):
    """What it is called, and its settings."""

    name: str
    graph: Settings | None
    """None: it has no meaning there, and what it sets in the other kind of recipe is refused."""
    log: Settings | None
    acts: Callable[[Trainer], object]
    """Whether a trainer of several ranks, after an epoch, did what it says. Collective."""
    refused: str = ""
    """What is said in the kind of recipe that has no use for it."""
    learns_other: bool = False
    """Whether what is learnt is another thing, on one rank as well."""
    rounds: float = 0.0
    """By how much of the loss it may be off, where something travels."""

    def of(self, kind: Kind) -> Settings | None:
        """Its settings in a recipe of this kind."""
        return self.graph if kind == "graph" else self.log


def forms_of(trainer: Trainer) -> set[str]:
    """Names of the forms of compressed tables."""
    collections: Any = trainer.task.embeddings
    return {type(form).__name__ for collection in collections for form in collection.table_forms()}


def plan_of(trainer: Trainer) -> Any:
    (collection,) = trainer.task.embeddings
    return collection.plan


def places_rows(trainer: Trainer) -> bool:
    """Whether some rows of a table are on every rank, or a table is cut by rows."""
    plan = plan_of(trainer)
    return bool(plan.replicated) or any(shard.rows[0] > 0 for shard in plan.shards)


def task_of(trainer: Trainer) -> Any:
    return trainer.task


TT = {"form": "tensor_train", "compression": 2}
ROBE = {"form": "robe", "compression": 3, "robe_block": 4}
ROWS: Settings = {"model": {"embedding": True}}
SUMS: Settings = {"wire": {"sums": "fp8"}}
FEW_BITS = {"vectors": "int8", "gradients": "int8"}
TECHNIQUES = (
    Technique(
        "VIP cache", {"cache": {"alpha": 0.3}}, None, lambda trainer: task_of(trainer).store.cached.nbytes,
        refused="copies are part of a plan",
    ),
    Technique(
        "pipeline", {"pipeline": {"depth": 3}}, None, lambda trainer: task_of(trainer)._pipeline_options.depth == 3,
        refused="always under way",
    ),
    Technique(
        "AdaQP", {"full_graph": {"enabled": True, "messages": "adaptive", "assign_every_epochs": 1}}, None,
        lambda trainer: task_of(trainer).bits.state, refused="a sample has no neighbours", learns_other=True,
        rounds=0.05,
    ),
    Technique(
        "learnt vertex rows", ROWS, None, lambda trainer: trainer.task.embeddings, refused="has no key 'embedding'",
        learns_other=True,
    ),
    Technique(
        "ROBE", {**ROWS, "tables": ROBE}, {"tables": {"user": ROBE}}, lambda trainer: "Robe" in forms_of(trainer),
        learns_other=True,
    ),
    Technique(
        "TT-Rec", {**ROWS, "tables": TT}, {"tables": {"cart": TT}},
        lambda trainer: "TensorTrain" in forms_of(trainer), learns_other=True,
    ),
    Technique(
        "RecD", None, {"deduplication": {"groups": [["cart"]]}},
        lambda trainer: any(collection.groups for collection in task_of(trainer).embeddings),
        refused="names each of its vertices once",
    ),
    Technique(
        "NeuroShard", None, {"plan": {"planner": "neuroshard"}}, lambda trainer: plan_of(trainer).shards,
        refused="as the partition has it",
    ),
    Technique(
        "OPER", None, {"plan": {"planner": "oper"}}, places_rows,
        refused="as the partition has it",
    ),
    Technique(
        "lookahead", None, {"training": {"lookahead": True}},
        lambda trainer: any(tables.lookahead.is_possible for tables in task_of(trainer).embeddings),
        refused="has no key 'lookahead'",
    ),
    Technique(
        "quantised rows", {"wire": {"vectors": "int8"}}, {"wire": FEW_BITS},
        lambda trainer: trainer.task.setup.wire.vectors == "int8", rounds=0.03,
    ),
    Technique("fp8 sums", SUMS, SUMS, lambda trainer: trainer.task.setup.wire.sums == "fp8", rounds=0.03),
)  # fmt: skip
PAIRS = list(combinations_with_replacement(TECHNIQUES, 2))
"""A technique with itself stands for the technique alone."""

RUN = {"tensorboard": False, "threads": 1, "deadline_s": 60, "shared_memory": False}
TABLES = {"dim": 8, "optimizer": "adagrad", "learning_rate": 0.1, "initial_scale": 0.1}
PLAIN: Mapping[Kind, Settings] = {
    "graph": {
        "graph": {"path": "graph.npz"},
        "model": {"hidden": 8, "num_layers": 2},
        "sampler": {"fanouts": [4, 3]},
        "training": {"epochs": 2, "batch_size": 48, "learning_rate": 0.01},
        "run": RUN,
    },
    "log": {
        "log": {
            "paths": ["log.parquet"],
            "format": "parquet",
            "dense": ["age"],
            "session": "visit",
            "features": {
                "item": {"ids": "rows", "rows": 30},
                "user": {"ids": "rows", "rows": 120},
                "cart": {"ids": "rows", "rows": 400, "multi_hot": True},
            },
        },
        "split": {"by": "files"},
        "plan": {"replicate_below_bytes": 0, "rank_memory_bytes": 40_000},
        "tables": TABLES,
        "model": {"bottom": [8], "top": [8]},
        "training": {"epochs": 2, "batch_size": 64, "learning_rate": 0.01, "reader_shards": 4},
        "run": RUN,
    },
}
GRAPH_ALONE: Settings = {"pipeline": {"depth": 0}, "cache": {"alpha": 0, "shared_memory": False}}
"""Where nothing is said of it, and minibatches are sampled."""


def merged(first: Settings, *others: Settings) -> dict[str, dict[str, Any]]:
    """Settings, of which later ones win, down to tables."""
    found = {name: dict(section) for name, section in first.items()}
    for other in others:
        for name, section in other.items():
            found[name] = found.get(name, {}) | section
    return found


def settings_of(kind: Kind, techniques: "tuple[Technique, ...]") -> dict[str, dict[str, Any]]:
    """A recipe with some techniques."""
    given = [one.of(kind) or one.graph or one.log or {} for one in techniques]
    base = PLAIN[kind]
    if kind == "graph" and not any("full_graph" in each for each in given):
        base = merged(base, GRAPH_ALONE)
    if kind == "graph" and any("model" in each for each in given):
        base = merged(base, {"tables": TABLES})
    return merged(base, *given)


def shared_setting(kind: Kind, one: Technique, other: Technique) -> str:
    """The setting that both would set, to different values; empty where there is none."""
    first, second = one.of(kind), other.of(kind)
    if first is None or second is None:
        return ""
    for section in first.keys() & second.keys():
        for key in first[section].keys() & second[section].keys():
            if first[section][key] != second[section][key]:
                return f"{section}.{key}"
    return ""


class Refusal(NamedTuple):
    """Why a pair is not trained."""

    said: str
    """Part of the message."""
    why: str
    """For the documentation."""


ALL_VERTICES = Refusal(
    "every step takes all vertices", "every step takes all vertices, so nothing is sampled or cached"
)
REFUSED: Mapping[tuple[Kind, frozenset[str]], Refusal] = {
    ("graph", frozenset({"VIP cache", "AdaQP"})): ALL_VERTICES,
    ("graph", frozenset({"pipeline", "AdaQP"})): ALL_VERTICES,
    ("graph", frozenset({"quantised rows", "AdaQP"})): Refusal(
        "says how rows travel as well", "both say in how many bits rows travel: one of the two"
    ),
}
"""Pairs that have a meaning each, but none together."""


def expected_refusal(kind: Kind, one: Technique, other: Technique) -> str | None:
    """Part of the message with which a pair is refused; None: it trains."""
    if one.of(kind) is None or other.of(kind) is None:
        return "|".join(filter(None, (each.refused for each in (one, other) if each.of(kind) is None)))
    refusal = REFUSED.get((kind, frozenset({one.name, other.name})))
    return refusal and refusal.said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph's stores of 1, 2 and 4 parts, and a prepared log, in which carts repeat."""
    folder = tmp_path_factory.mktemp("pairs")
    graph = community_graph(240, 3, seed=7, num_features=6, signal=1.0)
    for parts in (1, 2, 4):
        graph_to_store(graph, folder / f"graph-{parts}", PartitionOptions(num_parts=parts, method="random"))
    draw = np.random.default_rng(3)
    items, users = draw.integers(0, 30, 512), (120 * draw.random(512) ** 4).astype(np.int64)
    carts = [(400 * draw.random(draw.integers(0, 6)) ** 4).astype(int).tolist() for _ in range(128)]
    columns = {
        "label": (draw.random(512) < np.where(items % 2, 0.8, 0.2)).astype(np.int64),
        "age": draw.normal(size=512),
        "visit": np.arange(512) // 8,
        "item": items,
        "user": users,
        "cart": pa.array([carts[number // 4] for number in range(512)], pa.list_(pa.int64())),
    }
    parquet.write_table(pa.table(columns), folder / "log.parquet")
    recipe = recipe_of("log", folder, settings_of("log", ()), 1)
    prepare_log(recipe.store, recipe.log, recipe.split)  # type: ignore[union-attr]
    return folder


def recipe_of(kind: Kind, folder: Path, settings: Settings, ranks: int) -> AnyRecipe:
    """With the store for so many ranks."""
    store = f"graph-{ranks}" if kind == "graph" else "prepared"
    return make_any_recipe({"name": "pair", "store": store, **settings}, source="pair.toml", base=folder)


def losses(world: World, recipe: AnyRecipe, techniques: tuple[Technique, ...] = ()) -> list[float]:
    """Of two epochs, in which these techniques act."""
    with make_trainer(world, recipe, torch.device("cpu")) as trainer:
        found = [trainer.train_epoch(epoch) for epoch in range(2)]
        if world.size > 1:
            assert [one.name for one in techniques if not one.acts(trainer)] == []
        return found


@cache
def reference(kind: Kind, techniques: tuple[str, ...], folder: Path) -> list[float]:
    """Losses of a recipe of these techniques on one rank."""
    chosen = tuple(one for one in TECHNIQUES if one.name in techniques)
    return losses(Loopback.single(), recipe_of(kind, folder, settings_of(kind, chosen), 1))


CASES = [(kind, one, other) for kind in KINDS for one, other in PAIRS if not shared_setting(kind, one, other)]
"""Without those that nobody can ask for: two values of one setting."""


@pytest.mark.parametrize(("kind", "one", "other"), CASES, ids=lambda case: case if isinstance(case, str) else case.name)
def test_a_pair(
    spmd: Callable[..., list[Any]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Kind,
    one: Technique,
    other: Technique,
) -> None:
    # Planners that ask costs would find that a fast network needs no copies of rows.
    slow = NetworkDescription(nodes=launched_size(), rate="1mbit")
    monkeypatch.setattr(training, "kept_links", lambda *_: described_links(slow))
    techniques = (one,) if one is other else (one, other)
    settings = settings_of(kind, techniques)
    refusal = expected_refusal(kind, one, other)
    if refusal is not None:
        with pytest.raises(RecipeError, match=refusal):
            spmd(lambda world: losses(world, recipe_of(kind, folder, settings, world.size)))
        return
    expected = reference(kind, tuple(each.name for each in techniques if each.learns_other), folder)
    found = spmd(lambda world: (world.size, losses(world, recipe_of(kind, folder, settings, world.size), techniques)))
    rounds = sum(each.rounds for each in techniques) * (found[0][0] > 1)
    assert expected[1] < expected[0]
    for _, of_rank in found:
        assert of_rank == pytest.approx(expected, rel=1e-5 + rounds)
        assert not rounds or of_rank != pytest.approx(expected, rel=1e-6)


def outcome(one: Technique, other: Technique) -> str:
    """What the matrix says of a pair."""
    found, why = [], []
    for kind in KINDS:
        if one.of(kind) is None or other.of(kind) is None:
            continue
        if setting := shared_setting(kind, one, other):
            why.append(f"both are values of `{setting}`")
        elif refusal := REFUSED.get((kind, frozenset({one.name, other.name}))):
            why.append(refusal.why)
        else:
            found.append(kind)
    if found:
        return " and ".join(found)
    return f"no: {why[0]}" if why else "no: one is of graphs, the other of logs"


HEAD = """# Every technique with every other

<!-- Written by: python -P tests/launch/test_pairs.py > docs/pairs.md -->

Each pair was trained for two epochs on 1, 2 and 4 ranks, on a graph, a click log or both, and learnt what it has to:
the losses of the plain recipe where it changes how rows travel, those that it has on one rank where it changes what is
learnt, within 0.001 %, and within 3 % (messages of AdaQP 5 %) where what travels is rounded. On the diagonal stands a
technique alone. `tests/launch/test_pairs.py` does this, and has the settings of each.

"""


def matrix() -> str:
    """docs/pairs.md."""
    names = [one.name for one in TECHNIQUES]
    said = {frozenset({one.name, other.name}): outcome(one, other) for one, other in PAIRS}
    reasons = list(dict.fromkeys(text for text in said.values() if text.startswith("no: ")))
    cells = {pair: f"no ({reasons.index(text) + 1})" if text in reasons else text for pair, text in said.items()}
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {row} | {' | '.join(cells[frozenset({row, column})] for column in names)} |" for row in names]
    lines += ["", *(f"{number}. {text.removeprefix('no: ')}" for number, text in enumerate(reasons, start=1))]
    return HEAD + "\n".join(lines) + "\n"


def test_the_documentation_says_what_was_tested(repository: Path) -> None:
    assert (repository / "docs" / "pairs.md").read_text("utf-8") == matrix()


if __name__ == "__main__":
    print(matrix(), end="")
