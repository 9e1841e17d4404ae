"""windrow.launch.recommendation_job: a two-tower run, and sequences; whole click runs: test_recommendation_job.py."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.comm.loopback import Loopback
from windrow.comm.random import hash_ids
from windrow.launch import journal
from windrow.launch.recommendation_job import click_parts
from windrow.launch.recommendation_recipe import RecommendationRecipe, make_recommendation_recipe
from windrow.launch.training import train
from windrow.recsys.log.prepare import prepare_log


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "write_plot", lambda *_, **__: None)


def test_a_two_tower_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    users, items = np.repeat(np.arange(40), 12), np.tile(np.arange(12), 40)
    items = items * 2 + users % 2  # Two kinds of users, each with its own items.
    held_out = hash_ids(1, np.arange(len(users))) % 4 == 0
    for name, chosen in (("train", ~held_out), ("test", held_out)):
        lines = [f"{user},{item}" for user, item in zip(users[chosen], items[chosen], strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["user,item", *lines]) + "\n")
    recipe = make_recommendation_recipe(
        {
            "name": "towers",
            "log": {"paths": ["train.csv"], "format": "interactions"},
            "split": {"by": "files", "test_paths": ["test.csv"]},
            "interactions": {"validation_fraction": 0.2, "num_negatives": 16, "max_history": 5},
            "tables": {"dim": 8, "learning_rate": 0.1},
            "model": {"kind": "two_tower"},
            "training": {"epochs": 4, "batch_size": 32},
            "evaluation": {"k": 12},
            "run": {"tensorboard": False, "threads": 1},
        },
        source="r.toml",
        base=tmp_path,
    )
    result = train(recipe, run_folder=tmp_path / "run")
    assert result.metric == "recall@12"
    assert result.test is not None
    assert result.test > 0.7
    assert 0 < result.figures["test ndcg@12"] <= 1
    assert "test ndcg" in capsys.readouterr().out


def test_sequences_have_tables_of_their_own(
    tmp_path: Path, click_recipe: Callable[..., RecommendationRecipe]
) -> None:
    features = {
        "item": {"ids": "rows", "rows": 50},
        "past": {"ids": "rows", "rows": 50, "multi_hot": True, "table": "item"},
    }
    rows = [f"{n % 2},{n % 50},{n % 7}|{n % 5}" for n in range(200)]
    (tmp_path / "log.csv").write_text("\n".join(["click,item,past", *rows]) + "\n")
    recipe = click_recipe(
        tmp_path,
        log={"dense": [], "features": features},
        model={"top": [8], "sequences": ["past"], "sequence_query": "item"},
    )
    prepare_log(recipe.store, recipe.log, recipe.split)
    parts = click_parts(Loopback.single(), recipe, torch.device("cpu"))
    stored = [
        (piece.name, piece.num_rows) for table in parts.recommender.local_tables() for piece in table.members
    ]
    assert stored == [("item", 50), ("item_sequence", 50)]
    assert set(parts.evaluator.evaluate()) == {"validation", "test"}


def test_tables_of_different_dims(tmp_path: Path, click_recipe: Callable[..., RecommendationRecipe]) -> None:
    """dcn takes them; dlrm, which multiplies embeddings with one another, says what to do."""
    features = {name: {"ids": "rows", "rows": 50} for name in ("item", "user")}
    (tmp_path / "log.csv").write_text(
        "\n".join(["click,item,user", *(f"{n % 2},{n % 50},{n % 7}" for n in range(200))])
    )
    tables = {"dim": 8, "user": {"dim": 4, "optimizer": "sgd", "learning_rate": 0.5}}
    recipe = click_recipe(
        tmp_path, log={"dense": [], "features": features}, tables=tables, model={"top": [8]}
    )
    prepare_log(recipe.store, recipe.log, recipe.split)
    with pytest.raises(
        RecipeError, match="'item' has 8 columns and 'user' 4: give their tables the same dim"
    ):
        click_parts(Loopback.single(), recipe, torch.device("cpu"))
    settings = recipe.settings() | {"model": {"kind": "dcn", "deep": [8]}}
    recipe = make_recommendation_recipe(settings, source="r.toml", base=tmp_path)
    parts = click_parts(Loopback.single(), recipe, torch.device("cpu"))
    assert set(parts.evaluator.evaluate()) == {"validation", "test"}
