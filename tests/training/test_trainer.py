"""windrow.training.trainer: models, losses and metrics of one's own; what every task can be trained with."""

import builtins
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.comm.hierarchy import hierarchical
from windrow.comm.loopback import Loopback
from windrow.comm.wire import WireOptions
from windrow.comm.world import World
from windrow.gnn import EvaluationOptions, NodeTask, PartitionedGraph
from windrow.gnn.message_passing import Block
from windrow.gnn.synthetic import community_graph
from windrow.partition.book import PartitionBook
from windrow.training.callbacks import Callback, MLflow, TensorBoard, Tracker, WeightsAndBiases
from windrow.training.dense import make_linear
from windrow.training.dropout import DropoutContext
from windrow.training.journal import EpochRecord, TrainingResult, read_records
from windrow.training.replicas import check_buffers
from windrow.training.schedule import ScheduleOptions
from windrow.training.task import measured, summed_loss
from windrow.training.trainer import Trainer

FEATURES, CLASSES = 6, 3


class Net(nn.Module):
    """Two layers: own row and mean of neighbours."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        sizes = [(FEATURES, 8), (8, CLASSES)]
        generator = torch.Generator().manual_seed(3)
        self.own = nn.ModuleList(make_linear(*size, generator=generator) for size in sizes)
        self.others = nn.ModuleList(make_linear(*size, generator=generator) for size in sizes)
        self.probability = dropout

    def forward(self, blocks: Sequence[Block], x: Tensor, dropout: DropoutContext | None = None) -> Tensor:
        for number, block in enumerate(blocks):
            source, target = block.edge_index
            mean = x.new_zeros(block.num_dst, x.shape[1]).index_add(0, target, x[source])
            mean = mean / block.degrees.clamp(min=1).unsqueeze(1)
            x = self.own[number](x[: block.num_dst]) + self.others[number](mean)
            x = self.drop(x.relu(), dropout) if number == 0 else x
        return x

    def drop(self, x: Tensor, dropout: DropoutContext | None) -> Tensor:
        return x if dropout is None else dropout.drop(x, self.probability, layer=0)


class DrawingNet(Net):
    """Draws from torch's generator."""

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(blocks, x)

    def drop(self, x: Tensor, dropout: DropoutContext | None) -> Tensor:
        return nn.functional.dropout(x, self.probability, self.training)


def part_of(world: World) -> PartitionedGraph:
    graph = community_graph(240, CLASSES, seed=1, average_degree=8, num_features=FEATURES)
    book = PartitionBook.from_assignment(torch.arange(graph.num_vertices).numpy() % world.size, world.size)
    return PartitionedGraph.from_graph(graph, book, world.rank)


def make_trainer(world: World, *, net: Net | None = None, fanouts: tuple[int, ...] = (4, 3), **options: Any) -> Trainer:
    task = NodeTask(
        part_of(world), fanouts, **{name: options.pop(name) for name in ("loss", "metrics") if name in options}
    )
    settings = {"batch_size": 20, "learning_rate": 0.01, "epochs": 3, "seed": 5} | options
    return Trainer(world, net or Net(), task, **settings)


def accuracy(output: Tensor, labels: Tensor) -> float:
    return float((output.argmax(1) == labels).float().mean())


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


@pytest.mark.parametrize(
    "loss", [nn.functional.cross_entropy, nn.CrossEntropyLoss(reduction="none"), None], ids=["mean", "rows", "default"]
)
def test_a_model_and_a_loss_of_ones_own_do_not_depend_on_the_world(spmd: Any, loss: Any) -> None:
    def body(world: World) -> tuple[list[float], dict[str, Any], Tensor]:
        with make_trainer(world, loss=loss, metrics={"mine": accuracy}, fanouts=(-1, -1)) as trainer:
            losses = [trainer.train_epoch(epoch) for epoch in range(3)]
            chosen = trainer.task.graph.original_ids[trainer.task.graph.test_ids]  # type: ignore[attr-defined]
            # Of other minibatches, whose products are rounded otherwise.
            torch.testing.assert_close(trainer.predict("test"), trainer.predict()[chosen], rtol=1e-5, atol=1e-6)
            return losses, trainer.evaluate(), trainer.predict()

    expected, figures, scores = body(Loopback.single())
    assert expected[-1] < 0.9 * expected[0]
    assert set(figures) == {"validation", "test"}
    assert scores.shape == (240, CLASSES)
    for losses, values, predicted in spmd(body):
        assert losses == pytest.approx(expected, rel=1e-4)
        assert values["test"]["mine"] == pytest.approx(figures["test"]["mine"], abs=0.03)
        torch.testing.assert_close(predicted, scores, rtol=1e-2, atol=1e-2)


def test_weights_are_those_of_rank_0() -> None:
    def body(world: World) -> Tensor:
        net = Net()
        with torch.no_grad():
            net.own[0].weight.add_(world.rank)
        return weights(make_trainer(world, net=net))

    first, *others = Loopback.run(3, body)
    assert torch.equal(first, weights(make_trainer(Loopback.single())))
    assert all(torch.equal(first, other) for other in others)


def test_gradients_of_several_steps_are_those_of_one_large_minibatch() -> None:
    def step(accumulate: int) -> Tensor:
        trainer = make_trainer(
            Loopback.single(), fanouts=(-1, -1), optimizer="sgd", learning_rate=0.5, accumulate=accumulate
        )
        trainer.train_epoch(0)
        return weights(trainer)

    # All minibatches of the epoch together are the whole training set, whatever its order.
    whole = make_trainer(Loopback.single(), fanouts=(-1, -1), optimizer="sgd", learning_rate=0.5, batch_size=1000)
    whole.train_epoch(0)
    torch.testing.assert_close(step(1000), weights(whole))
    assert not torch.allclose(step(1), weights(whole))


def test_a_checkpoint_never_separates_gradients_that_are_added_up(tmp_path: Path) -> None:
    trainer = make_trainer(Loopback.single(), accumulate=2)
    with pytest.raises(RecipeError, match=r"checkpoint_every_steps = 3: must be a multiple of training.accumulate = 2"):
        trainer.fit(run_folder=tmp_path / "run", checkpoint_every_steps=3)


def test_the_norm_of_gradients_is_clipped() -> None:
    trainer = make_trainer(Loopback.single(), optimizer="sgd", learning_rate=1.0, clip_norm=0.01)
    before = weights(trainer)
    trainer.train_step(0, 0)
    assert float((weights(trainer) - before).norm()) == pytest.approx(0.01, rel=1e-3)


def test_forward_passes_run_under_autocast() -> None:
    seen = set()

    def loss(output: Tensor, labels: Tensor) -> Tensor:
        seen.add(output.dtype)
        return nn.functional.cross_entropy(output.float(), labels)

    trainer = make_trainer(Loopback.single(), loss=loss, autocast="bf16")
    losses = [trainer.train_epoch(epoch) for epoch in range(4)]
    assert losses[-1] < losses[0]
    assert seen == {torch.bfloat16}
    assert {parameter.dtype for parameter in trainer.model.parameters()} == {torch.float32}


class NamingNet(Net):
    """Takes the context of dropout by its name alone, behind another parameter."""

    def forward(  # type: ignore[override]
        self, blocks: Sequence[Block], x: Tensor, _: bool = False, *, dropout: DropoutContext | None
    ) -> Tensor:
        return super().forward(blocks, x, dropout)


def test_dropout_is_given_by_name_in_training_and_in_evaluation() -> None:
    nets = [kind(dropout=0.4) for kind in (Net, NamingNet)]
    first, second = (make_trainer(Loopback.single(), net=net) for net in nets)
    assert first.train_epoch(0) == second.train_epoch(0)
    assert first.evaluate() == second.evaluate()


def columns_first(weight: Tensor) -> Tensor:
    return weight.t().contiguous().t()


def with_gaps(weight: Tensor) -> Tensor:
    return torch.stack([weight, weight], 2)[..., 0]


@pytest.mark.parametrize("kept", [columns_first, with_gaps])
def test_weights_may_be_in_any_order_in_memory(spmd: Any, kept: Callable[[Tensor], Tensor]) -> None:
    def body(world: World) -> tuple[list[float], list[float]]:
        def losses(net: Net) -> list[float]:
            with make_trainer(world, net=net) as trainer:
                return [trainer.train_epoch(epoch) for epoch in range(3)]

        other = Net()
        for linear in (*other.own, *other.others):
            assert isinstance(linear, nn.Linear)
            linear.weight = nn.Parameter(kept(linear.weight.detach()))
        return losses(Net()), losses(other)

    for plain, found in spmd(body):
        assert found == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_callbacks_may_measure_between_steps(spmd: Any, wire: str) -> None:
    """In fp32 through the store that minibatches are under way in."""

    def body(world: World, kind: type[Net] = Net) -> tuple[list[float], list[float]]:
        def losses(*, measures: bool) -> list[float]:
            with make_trainer(world, net=kind(dropout=0.4), wire=wire) as trainer:

                def after_step(done: int) -> None:
                    if measures and done % 2:
                        trainer.evaluate("validation")

                return [trainer.train_epoch(epoch, after_step=after_step) for epoch in range(2)]

        return losses(measures=False), losses(measures=True)

    # Ranks that are threads draw from one generator of torch.
    for without, between in [*spmd(body), body(Loopback.single(), DrawingNet)]:
        assert between == without


@pytest.mark.parametrize("kind", [Net, DrawingNet])
def test_a_killed_run_ends_as_one_that_was_not(tmp_path: Path, kind: type[Net]) -> None:
    class KilledError(Exception):
        pass

    class Kill(Callback):
        def on_step(self, trainer: Trainer, done: int) -> None:
            if (trainer.finished_epochs, done) == (1, 3):
                raise KilledError

    def make(*callbacks: Callback) -> Trainer:
        return make_trainer(Loopback.single(), net=kind(dropout=0.4), callbacks=callbacks)

    whole = make()
    settings: dict[str, Any] = {"checkpoint_every_steps": 2, "resume": "auto"}
    whole.fit(run_folder=tmp_path / "whole", **settings)
    with pytest.raises(KilledError):
        make(Kill()).fit(run_folder=tmp_path / "run", **settings)
    resumed = make()
    result = resumed.fit(run_folder=tmp_path / "run", **settings)
    assert result.epochs == 3
    assert torch.equal(weights(resumed), weights(whole))
    other = make_trainer(Loopback.single(), learning_rate=0.02)
    with pytest.raises(StoreError, match=r"training.learning_rate was 0.01 and is 0.02"):
        other.fit(run_folder=tmp_path / "run", resume=True)


def test_a_killed_run_adds_what_its_sums_had_left_out(tmp_path: Path) -> None:
    class StopAfter(Callback):
        def __init__(self, epochs: int) -> None:
            self.epochs = epochs

        def on_epoch(self, trainer: Trainer, record: EpochRecord) -> None:
            trainer.should_stop = record.epoch >= self.epochs

    def run(world: World, first: int, folder: Path) -> Tensor:
        for limit in (first, 3):
            with make_trainer(world, wire="int8", callbacks=[StopAfter(limit)]) as trainer:
                trainer.fit(run_folder=folder, resume="auto")
        return weights(trainer)

    whole, *others = Loopback.run(2, lambda world: run(world, 3, tmp_path / "whole"))
    killed = Loopback.run(2, lambda world: run(world, 1, tmp_path / "killed"))
    assert all(torch.equal(whole, found) for found in (*others, *killed))
    # On one rank nothing is rounded, so there is nothing left out.
    moved = run(Loopback.single(), 3, tmp_path / "alone")
    assert not torch.equal(moved, whole)
    torch.testing.assert_close(moved, whole, rtol=0.1, atol=0.05)


def test_a_way_of_sums_without_a_world_for_it_is_refused() -> None:
    with pytest.raises(RecipeError, match=r'wire.topology = "hierarchical" says how recipes sum: here give sums_world'):
        make_trainer(Loopback.single(), wire=WireOptions(topology="hierarchical"))


def test_fp8_goes_with_flat_sums() -> None:
    def body(world: World) -> None:
        task, wire = NodeTask(part_of(world), (4, 3)), WireOptions(sums="fp8")
        Trainer(world, Net(), task, wire=wire, sums_world=hierarchical(world, "aabb"))

    with pytest.raises(RecipeError, match=r'wire.sums = "fp8" with a world of sums within hosts'):
        Loopback.run(4, body)


class Recorder(Callback):
    """Writes down what it is called for, and may stop the run."""

    def __init__(self, stop_after: int = 99) -> None:
        self.calls: list[Any] = []
        self.stop_after = stop_after

    def on_start(self, trainer: Trainer) -> None:
        self.calls.append(("start", trainer.run_folder.path.name))

    def on_step(self, trainer: Trainer, done: int) -> None:
        self.calls.append(done)

    def on_epoch(self, trainer: Trainer, record: EpochRecord) -> None:
        self.calls.append(("epoch", record.epoch))
        trainer.should_stop = record.epoch == self.stop_after

    def on_checkpoint(self, trainer: Trainer, folder: Path) -> None:
        self.calls.append(("checkpoint", folder.name))

    def on_end(self, trainer: Trainer, result: TrainingResult) -> None:
        self.calls.append(("end", result.epochs))

    def on_close(self, trainer: Trainer, error: BaseException | None) -> None:
        self.calls.append(("closed", type(error)))


def test_callbacks_are_called_in_order_and_may_stop_the_run(tmp_path: Path) -> None:
    recorder = Recorder(stop_after=2)
    trainer = make_trainer(Loopback.single(), callbacks=[recorder])
    trainer.fit(run_folder=tmp_path / "run")
    epoch = list(range(1, trainer.steps_per_epoch + 1))
    first = [*epoch, ("epoch", 1), ("checkpoint", "checkpoints")]
    second = [*epoch, ("epoch", 2), ("checkpoint", "checkpoints")]
    assert recorder.calls == [("start", "run"), *first, *second, ("end", 2), ("closed", type(None))]
    recorder.calls.clear()
    # The same trainer goes on, in a run of its own.
    assert trainer.fit(run_folder=tmp_path / "rest").epochs == 3
    assert [call for call in recorder.calls if call in [("epoch", 2), ("epoch", 3)]] == [("epoch", 3)]


def test_a_run_that_does_not_improve_ends_early(tmp_path: Path) -> None:
    trainer = make_trainer(Loopback.single(), metrics={"constant": lambda output, labels: 0.5}, epochs=9)
    assert trainer.fit(run_folder=tmp_path / "run", patience=2).epochs == 3
    part = part_of(Loopback.single())
    constant = {"constant": lambda output, labels: 0.5}
    evaluation = EvaluationOptions(method="sampled", patience_epochs=3, every_epochs=2)
    task = NodeTask(part, (4, 3), metrics=constant, evaluation=evaluation)
    trainer = Trainer(Loopback.single(), Net(), task, epochs=9)
    trainer.fit(run_folder=tmp_path / "of the task")
    records = read_records(trainer.run_folder.metrics_file)
    assert [record.validation for record in records] == [None, 0.5, None, 0.5, None, 0.5]
    part = replace(part, validation_ids=part.validation_ids[:0])
    without = Trainer(Loopback.single(), Net(), NodeTask(part, (4, 3)))
    with pytest.raises(RecipeError, match="patience = 2 without a validation split: give it samples"):
        without.fit(run_folder=tmp_path / "without", patience=2)


def test_tensorboard_gets_the_same_figures(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = tmp_path / "run"
    result = make_trainer(Loopback.single(), callbacks=[TensorBoard()]).fit(run_folder=run)
    records = read_records(run / "metrics.jsonl")
    events = accumulator.EventAccumulator(str(run / "tensorboard")).Reload()
    assert [e.value for e in events.Scalars("loss/train")] == pytest.approx([record.loss for record in records])
    assert [e.value for e in events.Scalars("accuracy/test")] == pytest.approx([record.test for record in records])
    assert "seconds/sample" in events.Tags()["scalars"]
    assert result.epochs == 3


@pytest.mark.filterwarnings("ignore")  # Theirs.
def test_wandb_gets_the_same_figures(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    seen: list[dict[str, float]] = []
    callback = WeightsAndBiases(project="test", mode="offline", dir=str(tmp_path))
    make_trainer(Loopback.single(), callbacks=[callback, Seen(lambda: seen.append(dict(wandb.run.summary)))]).fit(
        run_folder=tmp_path / "run"
    )
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    assert [found["loss/train"] for found in seen] == [record.loss for record in records]
    assert wandb.run is None


@pytest.mark.filterwarnings("ignore")
def test_mlflow_gets_the_same_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    make_trainer(Loopback.single(), callbacks=[MLflow("mine")]).fit(run_folder=tmp_path / "run")
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    (run,) = mlflow.MlflowClient(uri).search_runs([mlflow.get_experiment_by_name("mine").experiment_id])
    history = mlflow.MlflowClient(uri).get_metric_history(run.info.run_id, "loss/train")
    assert [point.value for point in history] == [record.loss for record in records]
    assert run.info.status == "FINISHED"


class Notes(Tracker):
    """A program that has runs of its own, in a list."""

    def __init__(self, runs: list[dict[str, Any]]) -> None:
        self.runs = runs

    def _open(self, trainer: Trainer, known: str | None) -> Any:
        called = known or f"run {len(self.runs)}"
        run: dict[str, Any] = {"name": called, "epochs": []}
        self.runs.append(run)

        def close(failed: bool) -> None:
            run["failed"] = failed

        return lambda scalars, epoch: run["epochs"].append(epoch), close, called


class Contented(Callback):
    """Returns what a tracker's own call gave."""

    def on_close(self, trainer: Trainer, error: BaseException | None) -> bool:  # type: ignore[override]
        return True


def test_a_callback_does_not_hide_the_error_of_a_run(tmp_path: Path) -> None:
    trainer = make_trainer(Loopback.single(), callbacks=[Contented(), Fail(after=1)])
    with pytest.raises(KilledError):
        trainer.fit(run_folder=tmp_path / "run")


def test_runs_of_other_programs_go_on_with_the_training_and_are_closed(tmp_path: Path) -> None:
    runs: list[dict[str, Any]] = []
    for after in (1, 2):  # The first has no checkpoint yet, so that the second begins anew.
        trainer = make_trainer(Loopback.single(), callbacks=[Notes(runs), Fail(after=after)])
        with pytest.raises(KilledError):
            trainer.fit(run_folder=tmp_path / "run", resume="auto")
    make_trainer(Loopback.single(), callbacks=[Notes(runs)]).fit(run_folder=tmp_path / "run", resume=True)
    make_trainer(Loopback.single(), callbacks=[Notes(runs)]).fit(run_folder=tmp_path / "elsewhere" / "run")
    assert runs == [
        {"name": "run 0", "epochs": [1], "failed": True},
        {"name": "run 1", "epochs": [1, 2], "failed": True},
        {"name": "run 1", "epochs": [2, 3], "failed": False},
        {"name": "run 3", "epochs": [1, 2, 3], "failed": False},
    ]


def test_two_trackers_of_one_kind_keep_two_runs(tmp_path: Path) -> None:
    one: list[dict[str, Any]] = []
    other: list[dict[str, Any]] = [{}]
    for epochs in (2, 3):
        trainer = make_trainer(Loopback.single(), epochs=epochs, callbacks=[Notes(one), Notes(other)])
        trainer.fit(run_folder=tmp_path / "run", resume="auto")
    assert [[run["name"] for run in runs if run] for runs in (one, other)] == [["run 0"] * 2, ["run 1"] * 2]


class KilledError(Exception):
    pass


class Fail(Callback):
    """Ends a run by an error, after an epoch or in its first step."""

    def __init__(self, *, after: int) -> None:
        self.after = after

    def on_step(self, trainer: Trainer, done: int) -> None:
        if not self.after:
            raise KilledError

    def on_epoch(self, trainer: Trainer, record: EpochRecord) -> None:
        if record.epoch == self.after:
            raise KilledError


class Seen(Callback):
    """Calls back after every epoch."""

    def __init__(self, look: Callable[[], None]) -> None:
        self.look = look

    def on_epoch(self, trainer: Trainer, record: EpochRecord) -> None:
        self.look()


@pytest.mark.parametrize(("callback", "name"), [(WeightsAndBiases(), "wandb"), (MLflow(), "mlflow")])
def test_a_tracker_that_is_not_installed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callback: Callback, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]  # as where it is not installed
    with pytest.raises(RecipeError, match=f"pip install {name}"):
        make_trainer(Loopback.single(), callbacks=[callback]).fit(run_folder=tmp_path / "run")


def test_missing_tensorboard_is_refused_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_tensorboard(name: str, *rest: object) -> object:
        if "tensorboard" in name:
            raise ImportError(name)
        return real(name, *rest)  # type: ignore[arg-type]

    trainer = make_trainer(Loopback.single(), callbacks=[TensorBoard()])
    monkeypatch.setattr(builtins, "__import__", without_tensorboard)
    with pytest.raises(RecipeError, match="install it, or set this to false"):
        trainer.fit(run_folder=tmp_path / "run")


def test_a_loss_that_is_lost_ends_the_run(tmp_path: Path) -> None:
    trainer = make_trainer(Loopback.single(), loss=lambda output, labels: output.sum() * math.nan)
    with pytest.raises(DataError, match=r"the training diverged; lower training.learning_rate"):
        trainer.fit(run_folder=tmp_path / "run")


def test_settings_of_a_run_without_a_recipe_are_kept(tmp_path: Path) -> None:
    make_trainer(Loopback.single(), epochs=1).fit(run_folder=tmp_path / "run", name="mine")
    assert "learning_rate = 0.01" in (tmp_path / "run" / "recipe.toml").read_text()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["epochs"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_nrom": 1.0}, "has no key 'clip_nrom'. Did you mean 'clip_norm'"),
        ({"clip_norm": -1.0}, "^clip_norm = -1.0 must be a number of at least 0$"),
        ({"accumulate": 0}, "^accumulate = 0 must be an integer of at least 1$"),
        ({"wire": "bf17"}, "vectors = 'bf17' must be one of 'fp32', 'fp16', 'bf16', 'int8', 'int4'"),
        ({"net": nn.Sequential(nn.BatchNorm1d(3))}, r"^0 is BatchNorm1d: .*Use nn.LayerNorm"),
        ({"net": nn.Sequential(nn.Linear(3, 3).bfloat16())}, r"^weights in torch.bfloat16 learn nothing from small"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make_trainer(Loopback.single(), **options)


def test_numbers_of_numpy_are_numbers() -> None:
    trainer = make_trainer(Loopback.single(), batch_size=np.int64(20), learning_rate=np.float32(0.5))
    assert (trainer.options.batch_size, trainer.options.learning_rate) == (20, 0.5)
    assert isinstance(trainer.options.batch_size, int)


def test_a_split_that_is_not_there_is_refused() -> None:
    trainer = make_trainer(Loopback.single())
    for ask in (trainer.evaluate, trainer.predict):
        with pytest.raises(RecipeError, match="there is no split 'tset': choose from train, validation, test"):
            ask("tset")


def test_a_mean_over_no_rows_is_no_loss() -> None:
    output = torch.zeros(0, 3, requires_grad=True)
    loss = summed_loss(nn.functional.cross_entropy, output, torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0


@pytest.mark.parametrize("found", [torch.zeros(2), torch.zeros(3, 2), 1.0], ids=str)
def test_a_loss_of_another_shape_is_refused(found: Any) -> None:
    with pytest.raises(RecipeError, match="for 3 rows: return their mean"):
        summed_loss(lambda output, labels: found, None, torch.zeros(3))


def test_a_loss_without_gradient_is_refused() -> None:
    trainer = make_trainer(Loopback.single(), loss=lambda *pair: nn.functional.cross_entropy(*pair).detach())
    with pytest.raises(RecipeError, match="the loss has no gradient"):
        trainer.train_epoch(0)


def test_models_that_are_not_whole_are_refused() -> None:
    task = NodeTask(part_of(Loopback.single()), (4, 3))
    with pytest.raises(RecipeError, match=r"^0 is LazyLinear without sizes yet: give it its number of inputs"):
        Trainer(Loopback.single(), nn.Sequential(nn.LazyLinear(3)), task)
    trainer = make_trainer(Loopback.single(), fanouts=(4, 3, 2), net=Shallow())
    with pytest.raises(RecipeError, match=r"rows for 20 vertices: it has to walk all 3 blocks"):
        trainer.train_epoch(0)


class Shallow(Net):
    """Walks two blocks, whatever it gets."""

    def forward(self, blocks: Sequence[Block], x: Tensor, dropout: DropoutContext | None = None) -> Tensor:
        return super().forward(blocks[:2], x, dropout)


def test_weights_may_be_frozen_and_freed(spmd: Any) -> None:
    def body(world: World) -> list[Tensor]:
        with make_trainer(world, learning_rate=0.1) as trainer:
            weight = trainer.model.own[0].weight
            found = []
            for epoch, learns in enumerate((False, True, False)):
                weight.requires_grad_(learns)
                trainer.train_epoch(epoch)
                found.append(weight.detach().clone())
        return found

    expected = body(Loopback.single())
    assert torch.equal(expected[1], expected[2])
    assert not torch.equal(expected[0], expected[1])
    for found in spmd(body):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_frozen_weights_are_frozen_in_a_resumed_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Freeze(Callback):
        def on_epoch(self, trainer: Trainer, record: EpochRecord) -> None:
            trainer.model.own[0].weight.requires_grad_(record.epoch > 1)  # type: ignore[union-attr]

    whole = make_trainer(Loopback.single(), learning_rate=0.1, callbacks=[Freeze()])
    whole.fit(run_folder=tmp_path / "whole")
    with pytest.raises(KilledError):
        make_trainer(Loopback.single(), learning_rate=0.1, callbacks=[Freeze(), Fail(after=2)]).fit(
            run_folder=tmp_path / "run"
        )
    resumed = make_trainer(Loopback.single(), learning_rate=0.1, callbacks=[Freeze()])
    resumed.fit(run_folder=tmp_path / "run", resume=True)
    assert "weights are frozen, or not, as they were in the checkpoint" in capsys.readouterr().out
    assert torch.equal(weights(resumed), weights(whole))


def test_a_run_may_go_on_for_more_epochs_where_rates_do_not_depend_on_them(tmp_path: Path) -> None:
    whole = make_trainer(Loopback.single())
    whole.fit(run_folder=tmp_path / "whole")
    for epochs in (2, 3):
        trainer = make_trainer(Loopback.single(), epochs=epochs)
        assert trainer.fit(run_folder=tmp_path / "run", resume="auto").epochs == epochs
    assert torch.equal(weights(trainer), weights(whole))
    # What comes later knows of them.
    assert "epochs = 3" in (tmp_path / "run" / "recipe.toml").read_text()
    with pytest.raises(StoreError, match=r"training\.epochs was 3 and is 2"):
        make_trainer(Loopback.single(), epochs=2).fit(run_folder=tmp_path / "run", resume=True)
    falling = ScheduleOptions(kind="linear")
    make_trainer(Loopback.single(), epochs=2, schedule=falling).fit(run_folder=tmp_path / "falling")
    with pytest.raises(StoreError, match=r"training\.epochs was 2 and is 3"):
        make_trainer(Loopback.single(), schedule=falling).fit(run_folder=tmp_path / "falling", resume=True)


class Counting(Net):
    """Remembers a mean of what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, blocks: Sequence[Block], x: Tensor, dropout: DropoutContext | None = None) -> Tensor:
        self.seen += x.mean()
        return super().forward(blocks, x, dropout)


def test_buffers_that_part_are_refused() -> None:
    make_trainer(Loopback.single(), net=Counting()).train_epoch(0)
    with pytest.raises(RecipeError, match="the buffer 'seen' of the model is not the same on all ranks"):
        Loopback.run(2, lambda world: make_trainer(world, net=Counting()).train_epoch(0))


def test_tied_weights_are_no_buffers() -> None:
    def body(world: World) -> None:
        net = Net()
        net.own[1].weight = net.others[1].weight
        # Sums of gradients may differ in the last bit.
        check_buffers(world, net, lambda: {name: value + world.rank for name, value in net.state_dict().items()})

    Loopback.run(2, body)


def test_one_rank_may_stop_all(spmd: Any, shared_tmp_path: Path) -> None:
    class Stop(Callback):
        def on_epoch(self, trainer: Trainer, record: EpochRecord) -> None:
            trainer.should_stop = trainer.world.rank == trainer.world.size - 1

    def body(world: World) -> int:
        with make_trainer(world, callbacks=[Stop()]) as trainer:
            return trainer.fit(run_folder=shared_tmp_path / "run").epochs

    assert set(spmd(body)) == {1}


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    for after in (0, 1):
        with pytest.raises(KilledError):
            make_trainer(Loopback.single(), learning_rate=0.5, callbacks=[Fail(after=after)]).fit(
                run_folder=tmp_path / "run", resume="auto"
            )
        (tmp_path / "run" / "job.txt").write_text("what the user put beside it stays")
    with pytest.raises(StoreError, match="is already in use"):
        make_trainer(Loopback.single()).fit(run_folder=tmp_path / "run")
    trainer = make_trainer(Loopback.single())
    assert trainer.fit(run_folder=tmp_path / "run", resume="auto").epochs == 3
    assert [record.epoch for record in read_records(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3]
    assert "learning_rate = 0.01" in (tmp_path / "run" / "recipe.toml").read_text()
    assert (tmp_path / "run" / "job.txt").exists()
    with pytest.raises(RecipeError, match="all 3 epochs of this trainer are done"):
        trainer.fit(run_folder=tmp_path / "again")
    for changed, words in (
        ({"fanouts": (2, 2)}, r"task.fanouts was \[4, 3\] and is \[2, 2\]"),
        ({"wire": "bf16"}, "wire.vectors was 'fp32' and is 'bf16'"),
    ):
        with pytest.raises(StoreError, match=words):
            make_trainer(Loopback.single(), **changed).fit(run_folder=tmp_path / "run", resume="auto")


@pytest.mark.parametrize(
    ("found", "what"), [(torch.zeros(3), r"a tensor of shape \[3\]"), ("good", "'good'"), (None, "None")], ids=str
)
def test_a_metric_that_is_no_number_is_refused(found: Any, what: str) -> None:
    with pytest.raises(RecipeError, match=f"metric 'mine' gives {what} for 3 rows: return one number"):
        measured({"mine": lambda output, labels: found}, torch.zeros(3, 2), torch.zeros(3))
