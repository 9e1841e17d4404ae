"""Several labels, real labels and sample weights, from a Parquet file to predictions of new rows, on any world."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch import Tensor, nn

import windrow as wr
from windrow import recsys
from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.loopback import Loopback
from windrow.comm.world import World
from windrow.recsys.batches.batch import Batch
from windrow.recsys.models.click_models import label_loss
from windrow.training.dense import make_linear
from windrow.training.task import summed_loss

ROWS = 600


def write_log(path: Path, seed: int, *, items: int) -> Path:
    draw = np.random.default_rng(seed)
    item, x = draw.integers(0, items, ROWS), draw.normal(size=ROWS)
    chance = 1 / (1 + np.exp(-(3 * (item % 2) - 1.5 + x)))
    columns = {
        "click": (draw.random(ROWS) < chance).astype(np.int64),
        "buy": (draw.random(ROWS) < 1 - chance).astype(np.int64),
        "stars": 2.0 * (item % 2) + x,
        "x": x,
        "item": [f"item {number}" for number in item],
    }
    parquet.write_table(pa.table(columns), path)
    return path


class TwoTaskNet(nn.Module):
    """One output for each label."""

    def __init__(self, tables: recsys.EmbeddingBagCollection, num_dense: int, num_labels: int = 2) -> None:
        super().__init__()
        self.tables = tables
        width = num_dense + sum(tables.embedding_dims)
        self.heads = make_linear(width, num_labels, generator=torch.Generator().manual_seed(1))

    def forward(self, batch: Batch, dropout: Any = None) -> Tensor:
        outputs: Tensor = self.heads(torch.cat([batch.dense, self.tables(batch.sparse).values()], 1))
        return outputs if self.heads.out_features > 1 else outputs.flatten()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    options: dict[str, Any] = {"dense": ["x"], "features": ["item"]}
    monday = write_log(folder / "monday.parquet", 1, items=12)
    recsys.prepare(monday, folder / "monday", label=["click", "buy"], **options)
    recsys.prepare(monday, folder / "stars", label="stars", label_kind="real", **options)
    tuesday = write_log(folder / "tuesday.parquet", 2, items=18)
    recsys.prepare(tuesday, folder / "tuesday", label=["click", "buy"], vocabularies_from=folder / "monday", **options)
    return folder


def make_trainer(world: World, log: recsys.LogStore, **options: Any) -> wr.Trainer:
    tables = recsys.EmbeddingBagCollection(
        log.tables(dim=8), world=world, optimizer=recsys.TableOptions(learning_rate=0.1), plan="greedy"
    )
    model = TwoTaskNet(tables, log.num_dense, len(log.labels))
    settings = {"epochs": 3, "batch_size": 64, "learning_rate": 0.02, "reader_shards": 4} | options
    return wr.Trainer(world, model, recsys.ClickTask(log), **settings)


def test_two_labels_learn_the_same_on_any_world_and_score_new_rows(spmd: Any, folder: Path) -> None:
    log = recsys.LogStore.open(folder / "monday")
    new = recsys.prepare_rows(folder / "new", [folder / "tuesday.parquet"], log, overwrite=True)

    def body(world: World) -> tuple[dict[str, dict[str, float]], Tensor, dict[str, dict[str, float]]]:
        with make_trainer(world, log) as trainer:
            for epoch in range(3):
                trainer.train_epoch(epoch)
            return trainer.evaluate("test"), trainer.predict(log=new), trainer.evaluate(log=new)

    figures, scores, measured = body(Loopback.single())
    assert figures["test"]["auc"] == pytest.approx((figures["test"]["click.auc"] + figures["test"]["buy.auc"]) / 2)
    assert min(figures["test"]["click.auc"], figures["test"]["buy.auc"]) > 0.7
    assert scores.shape == (ROWS, 2)
    labels = torch.tensor(parquet.read_table(folder / "tuesday.parquet")["click"].to_pylist())
    clicked, others = scores[labels > 0, 0], scores[labels == 0, 0]
    area = (clicked.unsqueeze(1) > others).double().mean() + (clicked.unsqueeze(1) == others).double().mean() / 2
    assert measured["test"]["click.auc"] == pytest.approx(float(area))
    for found, other_scores, other in spmd(body):
        assert found["test"] == pytest.approx(figures["test"], abs=1e-3)
        torch.testing.assert_close(other_scores, scores, rtol=1e-4, atol=1e-4)
        assert other["test"] == pytest.approx(measured["test"], abs=1e-3)


def test_real_labels(folder: Path) -> None:
    with make_trainer(Loopback.single(), recsys.LogStore.open(folder / "stars"), epochs=8) as trainer:
        for epoch in range(8):
            trainer.train_epoch(epoch)
        figures = trainer.evaluate("test")["test"]
        assert trainer.task.metric == "rmse"
        assert not trainer.task.higher_is_better
    assert figures["r2"] > 0.8
    assert figures["mae"] <= figures["rmse"]


def test_weights_of_samples_are_those_of_repeated_samples(tmp_path: Path) -> None:
    """A weight of 2 is as the sample twice, where minibatches are the whole log."""
    path = write_log(tmp_path / "log.parquet", 3, items=5)
    table = parquet.read_table(path)
    weights = np.arange(ROWS) % 3
    parquet.write_table(table.append_column("weight", pa.array(weights.astype(np.float32))), path)
    parquet.write_table(table.take(np.repeat(np.arange(ROWS), weights)), tmp_path / "repeated.parquet")
    split = recsys.LogSplitOptions(fractions=(1.0, 0.0, 0.0))
    # Rows of a vocabulary go by counts, which differ.
    features = {"item": recsys.FeatureOptions(ids="hash", rows=50)}
    common: dict[str, Any] = {"label": "click", "dense": ["x"], "features": features, "split": split}
    weighted = recsys.prepare(path, tmp_path / "weighted", sample_weight="weight", **common)
    repeated = recsys.prepare(tmp_path / "repeated.parquet", tmp_path / "repeated", **common)
    found = []
    for log in (weighted, repeated):
        with make_trainer(Loopback.single(), log, batch_size=10_000, optimizer="sgd") as trainer:
            # Both divide by the number of their samples; there are as many, since weights are 1 on average.
            found.append([trainer.train_epoch(epoch) for epoch in range(3)])
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_a_mean_over_weighted_samples_is_refused() -> None:
    labels, weights = torch.zeros(3, 2), torch.tensor([1.0, 0.0, 2.0])
    outputs = torch.randn(3, 2, generator=torch.Generator().manual_seed(1))
    each = label_loss(outputs, labels, weights)
    singles = [label_loss(outputs[row : row + 1], labels[row : row + 1]) for row in range(3)]
    assert float(each) == pytest.approx(float(singles[0] + 2 * singles[2]))
    with pytest.raises(RecipeError, match=r"outputs of shape \[3\] for labels of shape \[3, 2\]"):
        label_loss(outputs[:, 0], labels)
    with pytest.raises(RecipeError, match="return one value for each row"):
        summed_loss(nn.functional.mse_loss, outputs, labels, weights)


def test_a_day_starts_from_the_day_before(folder: Path, tmp_path: Path) -> None:
    monday, tuesday = (recsys.LogStore.open(folder / day) for day in ("monday", "tuesday"))
    assert tuesday.table_rows()["item"] > monday.table_rows()["item"]
    with make_trainer(Loopback.single(), monday) as trainer:
        trainer.fit(run_folder=tmp_path / "monday")
        (learnt,) = [part.tensor.clone() for part in local_state(trainer) if part.name == "weight"]
    with make_trainer(Loopback.single(), tuesday) as trainer:
        (first,) = [part.tensor.clone() for part in local_state(trainer) if part.name == "weight"]
        trainer.load_weights(tmp_path / "monday", "latest", grown=True)
        (grown,) = [part.tensor.clone() for part in local_state(trainer) if part.name == "weight"]
        warm = trainer.evaluate("test")["test"]["auc"]
    assert torch.equal(grown[: len(learnt)], learnt)
    assert torch.equal(grown[len(learnt) :], first[len(learnt) :])
    with make_trainer(Loopback.single(), tuesday, epochs=1) as trainer:
        result = trainer.fit(run_folder=tmp_path / "tuesday", init_from=tmp_path / "monday")
    assert (result.test or 0) > warm - 0.05
    assert warm > 0.65
    with (
        make_trainer(Loopback.single(), recsys.LogStore.open(folder / "stars")) as trainer,
        pytest.raises(StoreError, match="trained on another log"),
    ):
        trainer.fit(run_folder=tmp_path / "other", init_from=tmp_path / "monday")


def local_state(trainer: wr.Trainer) -> list[Any]:
    return [part for table in trainer.task.local_tables() or () for part in table.state()]
