"""Fixtures for tests of whole runs: a click log small enough to train on in no time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windrow.comm.random import hash_ids
from windrow.gnn.synthetic import community_graph
from windrow.launch import journal
from windrow.launch.recommendation_recipe import RecommendationRecipe, make_recommendation_recipe

NUM_SAMPLES = 600
NUM_ITEMS, NUM_USERS = 12, 40

SETTINGS: dict[str, dict[str, Any]] = {
    "log": {
        "paths": ["log.csv"],
        "format": "csv",
        "label": "click",
        "dense": ["age"],
        "features": {"item": {}, "user": {"ids": "hash", "rows": 64}},
    },
    "split": {"by": "hash", "fractions": [0.6, 0.2, 0.2]},
    "tables": {"dim": 8, "learning_rate": 0.1},
    "plan": {"replicate_below_bytes": 0},
    "model": {"bottom": [8], "top": [8], "dropout": 0.1},
    "training": {"epochs": 3, "batch_size": 48, "learning_rate": 0.01, "lanes": 4},
    "run": {"tensorboard": False, "threads": 1, "deadline_s": 60, "keep_checkpoints": 9},
}


@pytest.fixture(autouse=True)
def few_plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than these runs, so one run with it is enough."""
    if request.node.name != "test_a_run_leaves_everything_behind":
        monkeypatch.setattr(journal, "write_plot", lambda *_, **__: None)


@pytest.fixture(scope="session")
def graph_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with a graph of 240 vertices in three communities, and all that training needs."""
    graph = community_graph(240, 3, seed=7, num_features=6, signal=1.0)
    assert graph.features is not None
    assert graph.labels is not None
    path = tmp_path_factory.mktemp("graph") / "graph.npz"
    np.savez(
        path,
        edges=np.stack([graph.indices.numpy(), np.repeat(np.arange(240), graph.in_degrees.numpy())], 1),
        x=graph.features.numpy(),
        y=graph.labels.numpy(),
        train=graph.train_ids.numpy(),
        val=graph.validation_ids.numpy(),
        test=graph.test_ids.numpy(),
    )
    return path


@pytest.fixture(scope="session")
def click_recipe() -> Callable[..., RecommendationRecipe]:
    """Make the recipe of a small click log: ``click_recipe(folder, tables={"dim": 4})``."""
    return _click_recipe


@pytest.fixture(scope="session")
def prepare_clicks() -> Callable[[Path], None]:
    """Write the click log, and its store, into a folder."""
    return _prepare_clicks


def _click_recipe(folder: Path, **changes: dict[str, Any]) -> RecommendationRecipe:
    sections = {
        name: SETTINGS.get(name, {}) | changes.get(name, {}) for name in SETTINGS.keys() | changes.keys()
    }
    values = {"name": "clicks", "store": "clicks", **sections}
    return make_recommendation_recipe(values, source="clicks.toml", base=folder)


def _prepare_clicks(folder: Path) -> None:
    """Clicks that depend on the item: even ones are liked."""
    from windrow.recsys.log.prepare import prepare_log

    draws = [hash_ids(key, np.arange(NUM_SAMPLES)) for key in (1, 2, 3, 4)]
    items, users = draws[0] % NUM_ITEMS, draws[1] % NUM_USERS
    ages = draws[2] % 50
    clicks = (draws[3] % 100) < np.where(items % 2 == 0, 90, 10)
    lines = ["click,age,item,user"]
    lines += [
        f"{click:d},{age},i{item},u{user}"
        for click, age, item, user in zip(clicks, ages, items, users, strict=True)
    ]
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    recipe = _click_recipe(folder)
    prepare_log(recipe.store, recipe.log, recipe.split, overwrite=True)
