import contextlib
import itertools
from dataclasses import replace

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
from windrow.recsys.embeddings import Embeddings
from windrow.recsys.models.click_models import ClickModel
from windrow.recsys.recommender import Recommender
from windrow.recsys.sharded.collection import table_specs
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.tables.options import EmbeddingBagConfig, EmbeddingConfig, TableOptions
from windrow.recsys.trainer import RecommendationTrainer, RecommendationTrainingOptions, pipelined
from windrow.training.schedule import ScheduleOptions, learning_rate_factor

DIM = 8
SAMPLES = 50
STEPS = 5
TABLES = [
    EmbeddingBagConfig(num_embeddings=40, embedding_dim=DIM, name="user", feature_names=["user"]),
    EmbeddingBagConfig(num_embeddings=30, embedding_dim=DIM, name="item", feature_names=["item", "history"]),
]
SEQUENCE_TABLES = [
    EmbeddingConfig(num_embeddings=30, embedding_dim=DIM, name="seen", feature_names=["history"])
]


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
        from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

        def numbers(purpose, count):
            return (hash_ids(stream_key(7, epoch, step, purpose), np.arange(count)) >> np.uint64(33)).astype(
                np.int64
            )

        bounds = near_equal_split(SAMPLES, self._world.size)
        own = slice(bounds[self._world.rank], bounds[self._world.rank + 1])
        lengths = [np.ones(SAMPLES, np.int64), np.ones(SAMPLES, np.int64), numbers(0, SAMPLES) % 4]
        rows = [40, 30, 30]
        values = [
            numbers(place + 1, SAMPLES * 3).reshape(SAMPLES, 3) % most for place, most in enumerate(rows)
        ]
        taken = [
            value[sample, : length[sample]]
            for value, length in zip(values, lengths, strict=True)
            for sample in range(own.start, own.stop)
        ]
        dense = torch.from_numpy(numbers(9, SAMPLES * 2).reshape(SAMPLES, 2) % 100).float() / 100
        labels = torch.from_numpy((values[1][:, 0] % 2).astype(np.float32))
        sparse = KeyedJaggedTensor(
            keys=["user", "item", "history"],
            values=torch.from_numpy(np.concatenate(taken)) if taken else torch.zeros(0, dtype=torch.int64),
            lengths=torch.from_numpy(np.concatenate([length[own] for length in lengths])),
        )
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
    hosts=None,
    **more,
):
    options = TableOptions(dim=DIM, optimizer=tables, learning_rate=0.1)
    plan = plan_with_planner(planner, table_specs(TABLES, options), world.size, replicate_below_bytes=0)
    bags = EmbeddingBagCollection(TABLES, world=world, plan=plan, optimizer=options, seed=1)
    collection = (
        EmbeddingCollection(SEQUENCE_TABLES, world=world, optimizer=options, seed=1) if sequences else None
    )
    return RecommendationTrainer(
        world,
        Recommender(bags, collection, SumModel(dropout)),
        MadeUpLog(world),
        options=RecommendationTrainingOptions(epochs=2, optimizer=optimizer, learning_rate=0.05, **more),
        table_learning_rate=0.1,
        seed=3,
        wire=WireOptions(sums=sums),
        sums_world=None if hosts is None else hierarchical(world, hosts),
    )


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
    trainer = make_trainer(world)
    parts = [part for table in trainer.local_tables() for part in table.state()]
    weights = {part.piece.name: part.tensor.clone() for part in parts if part.name == "weight"}
    bags = {
        name: torch.nn.EmbeddingBag.from_pretrained(weight, mode="sum", freeze=False)
        for name, weight in weights.items()
    }
    model = SumModel()
    optimizers = [
        torch.optim.Adagrad([bag.weight for bag in bags.values()], lr=0.1, eps=1e-8),
        torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.0),
    ]
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    losses = []
    position = 0
    for epoch in range(2):
        total = 0.0
        with MadeUpLog(world).batches(epoch) as batches:
            for batch in batches:
                pooled = [
                    bags[table.name](
                        batch.sparse[feature].values(), batch.sparse[feature].offsets()[:-1].long()
                    )
                    for table in TABLES
                    for feature in table.feature_names
                ]
                names = [feature for table in TABLES for feature in table.feature_names]
                embeddings = Embeddings.of(torch.cat(pooled, 1), dict.fromkeys(names, DIM))
                loss = model.loss_sum(model(batch.dense, embeddings), batch)
                factor = learning_rate_factor(schedule or ScheduleOptions(), position, 2 * STEPS)
                position += 1
                for optimizer, peak in zip(optimizers, peaks, strict=True):
                    optimizer.zero_grad()
                    optimizer.param_groups[0]["lr"] = peak * factor
                (loss / SAMPLES).backward()
                for optimizer in optimizers:
                    optimizer.step()
                total += loss.item()
        losses.append(total / (STEPS * SAMPLES))
    return losses


@pytest.mark.parametrize("planner", ["round_robin", "row_wise", "column_wise", "replicated"])
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

    begun = make_trainer(world, schedule=schedule)
    begun.train_epoch(0)
    kept = {}

    def keep(done):
        if done == 2:
            kept["state"] = {
                name: {key: value.clone() for key, value in part.items()} if name == "model" else part
                for name, part in begun.state_dict().items()
            }
            kept["optimizer"] = torch.save(
                begun.state_dict()["optimizer"], kept.setdefault("file", _buffer())
            )
            kept["tables"] = [
                [replace(part, tensor=part.tensor.clone()) for part in table.state()]
                for table in begun.local_tables()
            ]
            kept["loss"] = begun.loss_so_far()

    begun.train_epoch(1, after_step=keep)
    resumed = make_trainer(world, schedule=schedule)
    kept["file"].seek(0)
    resumed.load_state_dict(
        {"model": kept["state"]["model"], "optimizer": torch.load(kept["file"], weights_only=True)}
    )
    for table, state in zip(resumed.local_tables(), kept["tables"], strict=True):
        table.load_state(state)
    assert resumed.train_epoch(1, first_step=2, loss_before=kept["loss"]) == expected
    for ours, theirs in zip(resumed.local_tables(), whole.local_tables(), strict=True):
        for mine, other in zip(ours.state(), theirs.state(), strict=True):
            assert torch.equal(mine.tensor, other.tensor)
    assert torch.equal(resumed.recommender.model.scale, whole.recommender.model.scale)


def _buffer():
    import io

    return io.BytesIO()


def test_learning_rates_follow_the_schedule():
    trainer = make_trainer(Loopback.single(), schedule=ScheduleOptions(kind="linear", final_fraction=0.0))
    rates = []
    trainer.train_epoch(0, after_step=lambda done: rates.append(trainer.learning_rate))
    assert rates == pytest.approx([0.05 * (1 - step / 10) for step in range(5)])


def test_what_reads_ahead_is_closed_when_a_step_fails():
    trainer = make_trainer(Loopback.single())

    def fail(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.train_epoch(0, after_step=fail)
    assert trainer._source.open == 0


def test_a_loss_that_is_lost_is_refused():
    trainer = make_trainer(Loopback.single())
    with torch.no_grad():
        trainer.recommender.model.scale.fill_(float("nan"))
    with pytest.raises(DataError, match=r"diverged; lower training.learning_rate \(0.05\)"):
        trainer.train_epoch(0)


def test_stages_are_measured():
    trainer = make_trainer(Loopback.single())
    trainer.train_epoch(0)
    assert set(trainer.stopwatch.seconds) == {
        "read", "ids", "lookup", "pooled", "forward", "backward", "wait", "update"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 0}, "training.epochs = 0"),
        ({"lanes": 0}, "training.lanes = 0"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0"),
        ({"weight_decay": -1.0}, "weight_decay = -1.0"),
    ],
)
def test_options_out_of_range_are_refused(settings, words):
    with pytest.raises(RecipeError, match=words):
        RecommendationTrainingOptions(**settings)


def test_all_samples_of_an_epoch_are_different_from_those_of_the_next():
    log = MadeUpLog(Loopback.single())
    with log.batches(0) as first, log.batches(1) as second:
        pairs = list(itertools.zip_longest(first, second))
    assert not any(torch.equal(a.dense, b.dense) for a, b in pairs)


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


def run(num_batches):
    log = []
    for batch, lookup in pipelined(range(num_batches), lambda number: Recorder(log, number)):
        assert lookup._number == batch
        log.append(("update", batch))
    return log


def test_order_of_four_batches():
    assert run(4) == [
        ("counts", 0),
        ("ids", 0),
        ("counts", 1),
        ("lookup", 0),
        ("ids", 1),
        ("counts", 2),
        ("update", 0),
        ("lookup", 1),
        ("ids", 2),
        ("counts", 3),
        ("update", 1),
        ("lookup", 2),
        ("ids", 3),
        ("update", 2),
        ("lookup", 3),
        ("update", 3),
    ]


@given(st.integers(0, 12))
def test_every_batch_goes_through_every_stage_and_sees_all_updates_before(num_batches):
    log = run(num_batches)
    for number in range(num_batches):
        places = [log.index((stage, number)) for stage in ("counts", "ids", "lookup", "update")]
        assert places == sorted(places)
        if number:
            assert log.index(("update", number - 1)) < log.index(("lookup", number))
    assert len(log) == 4 * num_batches


@given(st.integers(3, 12))
def test_two_more_batches_are_on_their_way(num_batches):
    log = run(num_batches)
    for number in range(num_batches - 2):
        before_update = log[: log.index(("update", number))]
        assert ("ids", number + 1) in before_update
        assert ("counts", number + 2) in before_update


def test_batches_are_taken_one_by_one():
    taken = []

    def source():
        for number in range(10):
            taken.append(number)
            yield number

    steps = pipelined(source(), lambda number: Recorder([], number))
    next(steps)
    assert taken == [0, 1, 2]
