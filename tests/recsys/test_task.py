import contextlib
import copy
import json
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.hierarchy import hierarchical
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.comm.random import hash_ids, stream_key
from windrow.comm.rows import near_equal_split
from windrow.comm.wire import WireOptions
from windrow.partition.tables.planners import plan_with_planner
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.jagged import keyed
from windrow.recsys.embeddings import Embeddings
from windrow.recsys.models.click_models import ClickModel, label_loss
from windrow.recsys.recommender import Recommender, pipelined
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.sharded.tables_of_ranks import table_specs
from windrow.recsys.tables.options import EmbeddingBagConfig, EmbeddingConfig, TableOptions
from windrow.recsys.task import RecommendationTask, TrainingOptions
from windrow.training.callbacks import Callback
from windrow.training.schedule import ScheduleOptions, learning_rate_factor
from windrow.training.task import summed_loss
from windrow.training.trainer import Trainer

DIM = 8
SAMPLES = 50
STEPS = 5
TABLES = [
    EmbeddingBagConfig(num_embeddings=40, embedding_dim=DIM, name="user", feature_names=["user"]),
    EmbeddingBagConfig(num_embeddings=30, embedding_dim=DIM, name="item", feature_names=["item", "history"]),
]
SEQUENCE_TABLES = [EmbeddingConfig(num_embeddings=30, embedding_dim=DIM, name="seen", feature_names=["history"])]


class SumModel(ClickModel):
    """The sum of everything is the logit; two weights to learn; dropout on request."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([0.5, 1.5]))
        self.dropout = dropout

    def begin(self, dense):
        return dense.sum(1) * self.scale[0]

    def finish(self, begun, embeddings, context=None):
        pooled = embeddings.pooled()
        if context is not None and self.dropout:
            pooled = context.drop(pooled, self.dropout, layer=0)
        logits = begun + pooled.sum(1) * self.scale[1]
        if embeddings.sequences:
            rows = embeddings.sequences["history"].expand()
            sample = torch.repeat_interleave(torch.arange(len(logits)), rows.lengths.long())
            logits = logits.index_add(0, sample, rows.values.sum(1))
        return logits


class MadeUpLog:
    """Batches that are functions of (epoch, step); this rank's share of each."""

    steps_per_epoch = STEPS
    samples_per_epoch = STEPS * SAMPLES

    def __init__(self, world):
        self._world = world
        self.open = 0

    def global_batch_size(self, epoch, step):
        return SAMPLES

    @contextlib.contextmanager
    def batches(self, epoch, first_step=0):
        self.open += 1
        try:
            yield (self._batch(epoch, step) for step in range(first_step, STEPS))
        finally:
            self.open -= 1

    def _batch(self, epoch, step):
        def numbers(purpose, *shape):
            drawn = hash_ids(stream_key(7, epoch, step, purpose), np.arange(np.prod(shape)))
            return (drawn >> np.uint64(33)).astype(np.int64).reshape(shape)

        bounds = near_equal_split(SAMPLES, self._world.size)
        own = slice(bounds[self._world.rank], bounds[self._world.rank + 1])
        user, item, history = (numbers(place + 1, SAMPLES, 3) % rows for place, rows in enumerate((40, 30, 30)))
        lists = [*user[own, :1], *item[own, :1]]
        lists += [ids[:length] for ids, length in zip(history[own], numbers(0, SAMPLES)[own] % 4, strict=True)]
        sparse = keyed(
            ["user", "item", "history"],
            torch.from_numpy(np.concatenate([*lists, history[0, :0]])),
            torch.tensor([len(ids) for ids in lists]),
            num_samples=own.stop - own.start,
        )
        dense = torch.from_numpy(numbers(9, SAMPLES, 2) % 100).float() / 100
        labels = torch.from_numpy((item[:, 0] % 2).astype(np.float32))
        return Batch(dense[own], sparse, labels[own], torch.arange(own.start, own.stop) + step * SAMPLES)


def make_trainer(
    world,
    *,
    planner="row_wise",
    dropout=0.0,
    sequences=False,
    optimizer="adam",
    tables="adagrad",
    sums="fp32",
    rows="fp32",
    hosts=None,
    callbacks=(),
    form=None,
    **more,
):
    options = TableOptions(dim=DIM, optimizer=tables, learning_rate=0.1, **form or {})
    plan = plan_with_planner(planner, table_specs(TABLES, options), world.size, replicate_below_bytes=0)
    wire = WireOptions(vectors=rows, gradients=rows, sums=sums)
    made = {"world": world, "optimizer": options, "seed": 1, "wire": wire}
    bags = EmbeddingBagCollection(TABLES, plan=plan, **made)
    collection = EmbeddingCollection(SEQUENCE_TABLES, **made) if sequences else None
    return Trainer(
        world,
        Recommender(bags, collection, SumModel(dropout)),
        RecommendationTask(MadeUpLog(world)),
        TrainingOptions(epochs=2, optimizer=optimizer, learning_rate=0.05, **more),
        seed=3,
        wire=wire,
        sums_world=None if hosts is None else hierarchical(world, hosts),
        callbacks=callbacks,
    )


def total_sent(world, what):
    sent = torch.tensor(world.meter.totals(f"embedding bags: {what}").bytes_sent)
    return int(world.all_reduce(sent, stage="test"))


def numel_of_model():
    return sum(parameter.numel() for parameter in SumModel().parameters())


def two_epochs(world, **settings):
    trainer = make_trainer(world, **settings)
    losses = [trainer.train_epoch(epoch) for epoch in range(2)]
    trainer.close()
    return losses


def reference_losses(schedule=None):
    """The same job written plainly: one process, nn.EmbeddingBag, no pipeline."""
    world = Loopback.single()
    parts = [part for table in make_trainer(world).task.local_tables() for part in table.state()]
    bags = {
        part.piece.name: torch.nn.EmbeddingBag.from_pretrained(part.tensor.clone(), mode="sum", freeze=False)
        for part in parts
        if part.name == "weight"
    }
    model = SumModel()
    optimizers = {
        torch.optim.Adagrad([bag.weight for bag in bags.values()], lr=0.1, eps=1e-8): 0.1,
        torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.0): 0.05,
    }
    features = {feature: table.name for table in TABLES for feature in table.feature_names}
    losses = []
    for epoch in range(2):
        total = 0.0
        with MadeUpLog(world).batches(epoch) as batches:
            for step, batch in enumerate(batches):
                given = {name: batch.sparse[name] for name in features}
                pooled = [bags[features[name]](ids.values(), ids.offsets()[:-1]) for name, ids in given.items()]
                embeddings = Embeddings.of(torch.cat(pooled, 1), dict.fromkeys(features, DIM))
                loss = model.loss_sum(model(batch.dense, embeddings), batch)
                factor = learning_rate_factor(schedule or ScheduleOptions(), epoch * STEPS + step, 2 * STEPS)
                for optimizer, peak in optimizers.items():
                    optimizer.zero_grad()
                    optimizer.param_groups[0]["lr"] = peak * factor
                (loss / SAMPLES).backward()
                for optimizer in optimizers:
                    optimizer.step()
                total += loss.item()
        losses.append(total / (STEPS * SAMPLES))
    return losses


@pytest.mark.parametrize("planner", ["round_robin", "row_wise", "column_wise", "replicated", "torchrec"])
def test_losses_are_those_of_a_plain_loop(spmd, planner):
    expected = reference_losses()
    for losses in spmd(lambda world: two_epochs(world, planner=planner)):
        assert losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("sums", "rel"), [("fp32", 1e-5), ("bf16", 1e-2)])
def test_gradients_may_be_summed_by_hosts_in_fewer_bytes(sums, rel):
    def body(world):
        world.meter = Meter()
        losses = two_epochs(world, planner="replicated", sums=sums, hosts="abab")
        return losses, world.meter.totals("gradients").bytes_reduced

    losses, num_bytes = zip(*Loopback.run(4, body), strict=True)
    assert losses[0] == pytest.approx(reference_losses(), rel=rel)
    assert losses[1:] == losses[:3]
    elements = (sum(table.num_embeddings for table in TABLES) * DIM + numel_of_model()) * 2 * STEPS
    assert set(num_bytes) == {elements * (4 if sums == "fp32" else 2)}


@pytest.mark.parametrize("planner", ["round_robin", "row_wise", "column_wise"])
@pytest.mark.parametrize(("form", "rel"), [("int8", 0.01), ("int4", 0.1)])
def test_rows_and_sums_in_few_bits_learn_nearly_the_same_and_repeat_themselves(spmd, planner, form, rel):
    few = {"rows": form, "sums": "fp8", "planner": planner, "sequences": True}

    def body(world):
        world.meter = Meter()
        found = two_epochs(world, **few)
        sent = [total_sent(world, what) for what in ("vectors", "gradients")]
        world.meter = Meter()
        exact = two_epochs(world, planner=planner, sequences=True)
        whole = total_sent(world, "vectors")
        return found, two_epochs(world, **few), exact, sent, whole, world.size

    for losses, again, exact, sent, whole, size in spmd(body):
        assert losses == again
        assert losses == pytest.approx(exact, rel=rel)
        assert (losses == exact) == (size == 1)
        assert sent[0] == sent[1] <= whole / 2


@pytest.mark.parametrize("planner", ["row_wise", "replicated"])
def test_tables_follow_the_schedule_too(planner):
    # Fused tables take the rate of their lookup, replicated ones that of their step: both must be this step's.
    schedule = ScheduleOptions(kind="linear", warmup_steps=3)
    losses = two_epochs(Loopback.single(), planner=planner, schedule=schedule)
    assert losses == pytest.approx(reference_losses(schedule), rel=1e-5)


def test_losses_with_dropout_and_sequences_do_not_depend_on_the_world(spmd):
    expected = two_epochs(Loopback.single(), dropout=0.3, sequences=True)
    for losses in spmd(lambda world: two_epochs(world, dropout=0.3, sequences=True)):
        assert losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("tables", ["sgd", "rowwise_adagrad", "adam"])
@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "sgd"])
def test_every_optimiser_learns(tables, optimizer):
    first, second = two_epochs(Loopback.single(), tables=tables, optimizer=optimizer)
    assert second < first


@pytest.mark.parametrize("kind", ["constant", "linear"])
def test_going_on_within_an_epoch_is_exact(kind):
    world = Loopback.single()
    schedule = ScheduleOptions(kind=kind)
    whole = make_trainer(world, schedule=schedule)
    whole.train_epoch(0)
    expected = whole.train_epoch(1)

    begun, kept = make_trainer(world, schedule=schedule), {}
    begun.train_epoch(0)

    def keep(done):
        if done == 2:
            kept["state"] = copy.deepcopy(begun.state_dict())
            kept["tables"] = [
                [replace(part, tensor=part.tensor.clone()) for part in table.state()]
                for table in begun.task.local_tables()
            ]
            kept["loss"] = begun.loss_so_far()

    begun.train_epoch(1, after_step=keep)
    resumed = make_trainer(world, schedule=schedule)
    resumed.load_state_dict(kept["state"])
    for table, state in zip(resumed.task.local_tables(), kept["tables"], strict=True):
        table.load_state(state)
    assert resumed.train_epoch(1, first_step=2, loss_before=kept["loss"]) == expected
    for ours, theirs in zip(resumed.task.local_tables(), whole.task.local_tables(), strict=True):
        for mine, other in zip(ours.state(), theirs.state(), strict=True):
            assert torch.equal(mine.tensor, other.tensor)
    assert torch.equal(resumed.model.model.scale, whole.model.model.scale)
    assert resumed.learning_rate == whole.learning_rate


TURNS = {(0, 2): "replicated", (0, STEPS): "column_wise", (1, 1): "round_robin", (1, 4): "replicated"}


class MoveTables(Callback):
    """Moves tables after some steps, while later lookups are on their way; may stop after an epoch."""

    def __init__(self, turns=TURNS, *, last=2):
        self._turns = turns
        self._last = last

    def on_step(self, trainer, done):
        plan = self._turns.get((trainer.finished_epochs, done))
        if plan is not None:
            trainer.model.move_to(plan)

    def on_epoch(self, trainer, record):
        trainer.should_stop = record.epoch >= self._last


@pytest.mark.parametrize("sequences", [False, True])
def test_tables_that_move_between_steps_and_epochs_learn_the_same(spmd, sequences):
    alone = two_epochs(Loopback.single(), sequences=sequences)

    def body(world):
        with make_trainer(world, sequences=sequences) as trainer:
            turns, losses = MoveTables(), []
            for epoch in range(2):
                losses.append(trainer.train_epoch(epoch, after_step=partial(turns.on_step, trainer)))
                trainer.finished_epochs += 1
            # A rank alone has nothing to do for one of them.
            assert trainer.task.moves >= (len(TURNS) - 1) * (1 + sequences)
            return losses

    for losses in spmd(body):
        assert losses == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("rows", ["fp32", "int8"])
def test_a_run_whose_tables_have_moved_goes_on_where_they_are(tmp_path, rows):
    def run(world, folder, limits):
        for last in limits:
            with make_trainer(world, rows=rows, callbacks=[MoveTables(last=last)]) as trainer:
                trainer.fit(run_folder=folder, resume="auto")
        assert trainer.task.placement() == json.loads((folder / "placement.json").read_text())
        return trainer.model.bags.plan, [part.tensor for table in trainer.task.local_tables() for part in table.state()]

    start = partial(Loopback.run, 2)
    whole = start(partial(run, folder=tmp_path / "whole", limits=[2]))
    resumed = start(partial(run, folder=tmp_path / "resumed", limits=[1, 2]))
    for (plan, tensors), (same_plan, same_tensors) in zip(whole, resumed, strict=True):
        assert plan == same_plan
        assert plan.replicated
        assert all(torch.equal(one, other) for one, other in zip(tensors, same_tensors, strict=True))
    # On another number of ranks tables are where that run's plan has them.
    plan, _ = run(Loopback.single(), tmp_path / "resumed", [2])
    assert not plan.replicated


def test_tables_do_not_move_while_gradients_are_added_up():
    trainer = make_trainer(Loopback.single(), accumulate=2)
    with pytest.raises(RecipeError, match="tables cannot move after a prefetched lookup has read rows"):
        trainer.train_epoch(0, after_step=lambda _: trainer.model.move_to("replicated"))
    # What nobody will finish does not keep them.
    trainer.train_step(0, 0)
    trainer.model.move_to("replicated")
    with pytest.raises(RecipeError, match=r"tables moved, .* after step 1, but gradients of accumulate = 2 steps"):
        trainer.train_step(0, 1)
    trainer.close()


def test_rows_are_not_read_in_the_precision_of_the_model():
    """The second of two that are looked up at once is sent while the first is computed, under autocast."""
    train = partial(two_epochs, form={"form": "narrow", "compression": 2}, planner="replicated", accumulate=2)
    rounded, exact = (Loopback.run(2, partial(train, autocast=autocast)) for autocast in ("bf16", "none"))
    assert rounded[0] == pytest.approx(exact[0], rel=0.05)


def test_one_rate_for_steps_that_are_added_up():
    schedule = ScheduleOptions(kind="linear", warmup_steps=4)
    train = partial(two_epochs, accumulate=2, schedule=schedule)
    (cut, _), (copied, _) = (Loopback.run(2, partial(train, planner=name)) for name in ("row_wise", "replicated"))
    assert cut == pytest.approx(copied, rel=1e-5)


class OnTest:
    """An evaluator of one's own, of a split that chooses no epoch."""

    metric, higher_is_better, splits = "share", True, ("test",)

    def evaluate(self):
        return {"test": {"share": 0.5}}


def test_patience_wants_an_evaluator_of_validation_samples(tmp_path):
    world = Loopback.single()
    trainer = make_trainer(world)
    trainer.task = RecommendationTask(MadeUpLog(world), OnTest())
    with Trainer(world, trainer.model, trainer.task, batch_size=SAMPLES) as other:
        assert other.evaluate() == OnTest().evaluate()
        with pytest.raises(RecipeError, match="patience = 2 without a validation split"):
            other.fit(run_folder=tmp_path / "run", patience=2)
    with pytest.raises(RecipeError, match=f"batch_size = 7, but the source gives {SAMPLES} samples in its first"):
        Trainer(world, trainer.model, RecommendationTask(MadeUpLog(world)), batch_size=7)


def test_models_are_measured_without_dropout():
    class Evaluator(OnTest):
        def evaluate(self):
            return {"test": {"training": float(model.training)}}

    world = Loopback.single()
    with make_trainer(world) as first:
        model = first.model
    with Trainer(world, model, RecommendationTask(MadeUpLog(world), Evaluator()), batch_size=SAMPLES) as trainer:
        trainer.train_epoch(0)
        assert trainer.evaluate() == {"test": {"training": 0.0}}


def test_what_says_how_a_log_is_read_is_refused_without_one():
    world = Loopback.single()
    task = RecommendationTask(MadeUpLog(world))
    with pytest.raises(
        RecipeError, match=r"^training.shuffle and training.reader_shards: for prepared logs that a task"
    ):
        Trainer(world, make_trainer(world).model, task, TrainingOptions(shuffle="none", reader_shards=4))


def test_autocast_rounds_no_weights_of_samples():
    labels, weights = torch.zeros(1), torch.tensor([257.0])
    with torch.autocast("cpu", torch.bfloat16):
        assert float(label_loss(torch.ones(1), labels, weights, kind="real")) == 257
        assert float(summed_loss(lambda output, _: output.square(), torch.ones(1), labels, weights)) == 257


def test_what_reads_ahead_is_closed_when_a_step_fails():
    trainer = make_trainer(Loopback.single())

    def fail(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.train_epoch(0, after_step=fail)
    assert trainer.task._source.open == 0


def test_a_loss_that_is_lost_is_refused():
    trainer = make_trainer(Loopback.single())
    with torch.no_grad():
        trainer.model.model.scale.fill_(float("nan"))
    with pytest.raises(DataError, match=r"diverged; lower training.learning_rate \(0.05\)"):
        trainer.train_epoch(0)


def test_stages_are_measured():
    trainer = make_trainer(Loopback.single())
    trainer.train_epoch(0)
    assert set(trainer.stopwatch.seconds) == {
        "read", "ids", "lookup", "pooled", "forward", "backward", "wait", "update"
    }  # fmt: skip


class Recorder:
    """A lookup that writes down when its stages start."""

    def __init__(self, log, number):
        self._log = log
        self._number = number
        log.append(("counts", number))

    def start_ids(self):
        self._log.append(("ids", self._number))

    def start_lookup(self):
        self._log.append(("lookup", self._number))


@given(st.integers(0, 12))
def test_every_stage_comes_in_order_with_two_batches_on_their_way(num_batches):
    log = []
    for batch, lookup in enumerate(pipelined(range(num_batches), lambda number: Recorder(log, number))):
        assert lookup._number == batch
        log.append(("update", batch))
    assert len(log) == 4 * num_batches
    for number in range(num_batches):
        before_update = log[: log.index(("update", number))]
        for stage, ahead in (("counts", 3), ("ids", 2), ("lookup", 1), ("update", 0)):
            started = [of for name, of in before_update if name == stage]
            assert started == list(range(min(number + ahead, num_batches)))
    for earlier, later in pairwise(("counts", "ids", "lookup")):
        assert all(log.index((earlier, number)) < log.index((later, number)) for number in range(num_batches))
