"""windrow.recsys.task.ClickTask: a prepared log, a model, a loss and metrics of a user's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import windrow as wr
from windrow import recsys
from windrow.comm.errors import RecipeError
from windrow.comm.loopback import Loopback
from windrow.comm.world import World
from windrow.recsys.batches.batch import Batch
from windrow.recsys.models.click_models import ClickModel
from windrow.training.dense import make_linear

DIM = 8


class OwnNet(nn.Module):
    """Tables of one's own model, and a linear map."""

    def __init__(self, world: World, *, forgets: bool = False, tables: recsys.TableOptions | None = None) -> None:
        super().__init__()
        configs = [
            recsys.EmbeddingBagConfig(num_embeddings=rows, embedding_dim=DIM, name=name, feature_names=[name])
            for name, rows in (("item", 14), ("user", 64))
        ]
        options = tables or recsys.TableOptions(dim=DIM, learning_rate=0.1)
        self.tables = recsys.EmbeddingBagCollection(configs, world=world, optimizer=options, seed=1)
        self.linear = make_linear(2 * DIM + 1, 1, generator=torch.Generator().manual_seed(1))
        self.forgets = forgets

    def forward(self, batch: Batch, dropout: Any = None) -> Tensor:
        pooled = torch.zeros(batch.num_samples, 2 * DIM) if self.forgets else self.tables(batch.sparse).values()
        output: Tensor = self.linear(torch.cat([batch.dense, pooled], 1))
        return output.flatten()


def area(output: Tensor, labels: Tensor) -> float:
    """Share of pairs in the right order."""
    clicked, others = output[labels > 0], output[labels == 0]
    return float((clicked.unsqueeze(1) > others).float().mean())


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory, prepare_clicks: Callable[[Path], None]) -> recsys.LogStore:
    folder = tmp_path_factory.mktemp("clicks")
    prepare_clicks(folder)
    return recsys.LogStore.open(folder / "clicks")


def train(
    world: World, log: recsys.LogStore, *, tables: recsys.TableOptions | None = None, **options: Any
) -> tuple[list[float], dict[str, dict[str, float]]]:
    task = recsys.ClickTask(
        log,
        loss=nn.functional.binary_cross_entropy_with_logits,
        metrics={"area": area},
        evaluation=recsys.RecommendationEvaluationOptions(batch_size=100),
    )
    settings = {"epochs": 4, "batch_size": 48, "learning_rate": 0.01, "reader_shards": 4} | options
    with wr.Trainer(world, OwnNet(world, tables=tables), task, **settings) as trainer:
        return [trainer.train_epoch(epoch) for epoch in range(4)], trainer.evaluate()


def test_a_model_of_ones_own_learns_the_same_on_any_world(spmd: Any, log: recsys.LogStore) -> None:
    losses, figures = train(Loopback.single(), log)
    assert losses[-1] < losses[0]
    assert figures["test"]["area"] > 0.75
    for found, measured in spmd(lambda world: train(world, log)):
        assert found == pytest.approx(losses, rel=1e-4)
        assert measured["test"]["area"] == pytest.approx(figures["test"]["area"], abs=0.02)


def test_predictions_stand_in_the_order_of_the_log(spmd: Any, log: recsys.LogStore) -> None:
    def body(world: World) -> tuple[Tensor, float]:
        task = recsys.ClickTask(
            log, metrics={"area": area}, evaluation=recsys.RecommendationEvaluationOptions(batch_size=32)
        )
        with wr.Trainer(world, OwnNet(world), task, epochs=1, batch_size=48, reader_shards=4) as trainer:
            trainer.train_epoch(0)
            return trainer.predict("validation"), trainer.evaluate("validation")["validation"]["area"]

    expected, figure = body(Loopback.single())
    reader = recsys.BatchReader(log, "validation", rank=0, size=1, batch_size=10_000, reader_shards=1, shuffle="none")
    with reader.batches(0) as batches:
        labels = next(batches).labels
    assert area(expected, labels) == pytest.approx(figure)
    for found, _ in spmd(body):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_steps_run_under_autocast(log: recsys.LogStore) -> None:
    exact, _ = train(Loopback.single(), log)
    rounded, _ = train(Loopback.single(), log, autocast="bf16")
    assert exact != rounded
    assert rounded == pytest.approx(exact, rel=0.05)


def test_steps_are_added_up_for_tables_too(spmd: Any, log: recsys.LogStore) -> None:
    losses, _ = train(Loopback.single(), log)
    for found, _ in spmd(lambda world: train(world, log, batch_size=16, accumulate=3)):
        assert found == pytest.approx(losses, rel=1e-4)


def test_lookahead_changes_nothing(spmd: Any, log: recsys.LogStore) -> None:
    def body(world: World) -> None:
        assert train(world, log, lookahead=True) == train(world, log)

    spmd(body)


def test_lookahead_is_refused_where_nothing_could_be_early(log: recsys.LogStore) -> None:
    with pytest.raises(RecipeError, match=r"training\.lookahead = true with training\.accumulate = 2"):
        train(Loopback.single(), log, lookahead=True, accumulate=2)
    for options in (recsys.TableOptions(optimizer="adam"), recsys.TableOptions(form="hashed", compression=2)):

        def body(world: World, options: recsys.TableOptions = options) -> None:
            train(world, log, tables=options, lookahead=True)

        with pytest.raises(RecipeError, match="a step may change every row of every table"):
            Loopback.run(2, body)


def test_a_killed_run_goes_on_bit_for_bit(log: recsys.LogStore, tmp_path: Path) -> None:
    def run(epochs_first: int, folder: Path) -> Tensor:
        for limit in (epochs_first, 4):
            world = Loopback.single()
            model = OwnNet(world)
            callbacks = [StopAfter(limit)]
            with wr.Trainer(world, model, recsys.ClickTask(log), epochs=4, callbacks=callbacks) as trainer:
                trainer.fit(run_folder=folder, resume="auto")
        return torch.cat([model.linear.weight.detach().flatten(), *table_values(model)])

    assert torch.equal(run(2, tmp_path / "killed"), run(4, tmp_path / "whole"))


def table_values(model: OwnNet) -> list[Tensor]:
    return [part.tensor.flatten().clone() for table in model.tables.local_tables() for part in table.state()]


class StopAfter(wr.Callback):
    """Ends a run after some epochs."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_epoch(self, trainer: wr.Trainer, record: Any) -> None:
        trainer.should_stop = record.epoch >= self.epochs


class Dropping(ClickModel):
    """Draws from torch's generator inside a `Recommender`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = make_linear(2 * DIM, 1, generator=torch.Generator().manual_seed(1))
        self.drop = nn.Dropout(0.5)

    def finish(self, begun: Tensor, embeddings: Any, context: Any = None) -> Tensor:
        output: Tensor = self.linear(self.drop(embeddings.pooled()))
        return output.flatten()


def test_dropout_of_pytorch_in_a_recommender_is_that_of_the_step(log: recsys.LogStore) -> None:
    def losses(first: int) -> float:
        world = Loopback.single()
        model = recsys.Recommender(OwnNet(world).tables, None, Dropping())
        with torch.random.fork_rng(), wr.Trainer(world, model, recsys.ClickTask(log), batch_size=48) as trainer:
            torch.rand(first)
            return trainer.train_epoch(0)

    assert losses(0) == losses(5)


def test_what_would_not_be_honoured_is_refused(log: recsys.LogStore) -> None:
    world = Loopback.single()
    with pytest.raises(RecipeError, match=r"holds no embedding tables: make an EmbeddingBagCollection"):
        wr.Trainer(world, nn.Identity(), recsys.ClickTask(log))
    with pytest.raises(RecipeError, match=r"vectors = 'bf16'.*but the tables were made for 'fp32'"):
        wr.Trainer(world, OwnNet(world), recsys.ClickTask(log), wire="bf16")
    with wr.Trainer(world, OwnNet(world, forgets=True), recsys.ClickTask(log)) as trainer:
        with pytest.raises(RecipeError, match=r"OwnNet did not call all of its collections"):
            trainer.train_epoch(0)
        with pytest.raises(RecipeError, match="'train' is not measured on"):
            trainer.evaluate("train")
        with pytest.raises(RecipeError, match="there is no split 'tset'"):
            trainer.predict("tset")
    with wr.Trainer(world, OwnNet(world), recsys.ClickTask(log, metrics={})) as trainer:
        assert "auc" in trainer.evaluate()["validation"]


def test_two_outputs_need_metrics_of_ones_own(log: recsys.LogStore) -> None:
    class TwoOutputs(OwnNet):
        def forward(self, batch: Batch, dropout: Any = None) -> Tensor:
            return torch.stack([super().forward(batch), batch.dense[:, 0]], 1)

    def loss(output: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, labels.long())

    world = Loopback.single()
    message = r"shape \[48, 2\] for labels of shape \[48\]: .* loss and metrics of your"
    trainer = wr.Trainer(world, TwoOutputs(world), recsys.ClickTask(log, loss=loss), batch_size=48)
    with trainer, pytest.raises(RecipeError, match=message):
        trainer.train_epoch(0)
    metrics = {"accuracy": lambda output, labels: float((output.argmax(1) == labels).float().mean())}
    with wr.Trainer(world, TwoOutputs(world), recsys.ClickTask(log, loss=loss, metrics=metrics)) as trainer:
        trainer.train_epoch(0)
        assert trainer.evaluate()["test"]["accuracy"] > 0.4


def test_tables_stay_where_they_were_made() -> None:
    net = OwnNet(Loopback.single())
    assert net.to("cpu").float() is net
    for move in (net.half, lambda: net.to("meta")):
        with pytest.raises(RecipeError, match=r"Collection was made on cpu in torch\.float32 and cannot move"):
            move()


def test_patience_needs_validation_samples(log: recsys.LogStore, tmp_path: Path) -> None:
    world, source = Loopback.single(), log.path.parent / "log.csv"
    split = recsys.LogSplitOptions(fractions=(0.9, 0.0, 0.1))
    without = recsys.prepare(
        source, tmp_path / "store", label="click", dense="age", features=("item", "user"), split=split
    )
    trainer = wr.Trainer(world, OwnNet(world), recsys.ClickTask(without), epochs=2)
    with trainer, pytest.raises(RecipeError, match="patience = 1 without a validation split"):
        trainer.fit(run_folder=tmp_path / "run", patience=1)
