"""windrow.recsys.replan: tables follow what is looked up, and what is learnt stays the same."""

import contextlib
import re

import numpy as np
import pytest
import torch

from windrow import Trainer, recsys
from windrow.comm.errors import RecipeError
from windrow.comm.links import NetworkDescription, described_links
from windrow.comm.loopback import Loopback
from windrow.partition.tables import PlanOptions, TableSpec
from windrow.partition.tables.access import AccessCounts
from windrow.recsys.batches.jagged import keyed

ROWS, DIM, SAMPLES, STEPS = 2000, 8, 120, 6


class DriftingLog:
    """Of each epoch other rows are hot: the first few, then many, then the last few."""

    steps_per_epoch, samples_per_epoch = STEPS, STEPS * SAMPLES

    def __init__(self, world):
        self._world = world

    def global_batch_size(self, epoch, step):
        return SAMPLES

    @contextlib.contextmanager
    def batches(self, epoch, first_step=0):
        yield (self._batch(epoch, step) for step in range(first_step, STEPS))

    def _batch(self, epoch, step):
        chance = np.random.default_rng((epoch, step))
        ids = (chance.random(SAMPLES) ** (0.2 if epoch == 1 else 8) * ROWS).astype(np.int64)
        ids = ROWS - 1 - ids if epoch == 2 else ids
        own = slice(*(np.array([self._world.rank, self._world.rank + 1]) * SAMPLES // self._world.size).tolist())
        numbers = torch.arange(own.start, own.stop)
        sparse = keyed(
            ["item"], torch.from_numpy(ids[own]), torch.ones(len(numbers), dtype=torch.int64), num_samples=len(numbers)
        )
        labels = torch.from_numpy(ids[own] % 2).float()
        return recsys.Batch(torch.zeros(len(numbers), 0), sparse, labels, numbers + step * SAMPLES)


class Model(torch.nn.Module):
    """A module of one's own."""

    def __init__(self, world, tables=None, *, sequences=False):
        super().__init__()
        config = {"name": "item", "num_embeddings": ROWS, "embedding_dim": DIM, "feature_names": ["item"]}
        made = {"world": world, "plan": "round_robin", "optimizer": tables}
        self.bags = recsys.EmbeddingBagCollection([recsys.EmbeddingBagConfig(**config)], **made)
        self.rows = None
        if sequences:
            self.rows = recsys.EmbeddingCollection([recsys.EmbeddingConfig(**config | {"name": "seen"})], **made)

    def forward(self, batch, dropout=None):
        found = self.bags(batch.sparse).values().sum(1)
        return found if self.rows is None else found + self.rows(batch.sparse)["item"].values().sum(1)


def train(world, *, epochs=2, accumulate=1, tables=None, sequences=False, **options):
    """Losses, lines, and the plan after each epoch."""
    links = described_links(NetworkDescription(nodes=world.size, rate="10mbit", latency_us=10.0))
    lines, plans, losses, callbacks, model = [], [], [], [], Model(world, tables, sequences=sequences)
    if options:
        callbacks = [recsys.Replan(PlanOptions(planner="oper", **options), links=links, say=lines.append)]
    settings = {"epochs": epochs, "batch_size": SAMPLES, "learning_rate": 0.1, "accumulate": accumulate}
    task = recsys.RecommendationTask(DriftingLog(world))
    with Trainer(world, model, task, recsys.TrainingOptions(**settings), callbacks=callbacks) as trainer:
        trainer.call("on_start")
        for epoch in range(epochs):
            losses.append(trainer.train_epoch(epoch, after_step=lambda done: trainer.call("on_step", done)))
            plans.append(model.bags.plan)
            trainer.finished_epochs += 1
        trainer.call("on_end", None)
    assert model.bags.access is None
    return losses, lines, plans


def test_tables_move_with_what_is_looked_up_and_learn_the_same(spmd):
    alone, _, _ = train(Loopback.single())

    def body(world):
        losses, lines, plans = train(world, replan_every_steps=3)
        assert losses == pytest.approx(alone, rel=1e-5)
        said = r"windrow: tables have moved to a plan that is predicted to take \S+ ms .* as long as \d+\.\d steps"
        assert all(re.fullmatch(said, line) for line in lines)
        assert bool(lines) == (world.rank == 0 and world.size > 1)
        return plans

    for plans in spmd(body):
        if len(plans[0].shards) > 1 or plans[0].replicated:
            first, second = (sum(copy.rows[1] for copy in plan.replicated) for plan in plans)
            assert first > second


def test_rows_that_become_hot_get_copies_wherever_they_are(spmd):
    alone, _, _ = train(Loopback.single(), epochs=3)

    def body(world):
        losses, _, plans = train(world, epochs=3, replan_every_steps=3)
        assert losses == pytest.approx(alone, rel=1e-5)
        return plans

    for first, *_, last in spmd(body):
        assert not first.copies
        if len(first.shards) > 1 or first.replicated:
            assert min(last.copied("item")) > ROWS // 2
            assert last.copied("item")[0] == ROWS - 1


def test_all_collections_move_and_arrays_are_counted_by_block():
    alone, _, _ = train(Loopback.single(), sequences=True)
    for losses, _, plans in Loopback.run(2, lambda world: train(world, sequences=True, replan_every_steps=3)):
        assert losses == pytest.approx(alone, rel=1e-5)
        assert plans[0].replicated
    shared = recsys.TableOptions(
        per_table={"item": recsys.TableOverrides(form="robe", compression=4, robe_block=4, robe_sharded=True)}
    )
    alone, _, _ = train(Loopback.single(), tables=shared)
    for losses, _, _ in Loopback.run(2, lambda world: train(world, tables=shared, replan_every_steps=3)):
        assert losses == pytest.approx(alone, rel=1e-5)


def test_what_cannot_be_planned_stays():
    """Tables that do not fit into the memory that is left say so once, on rank 0."""
    found = Loopback.run(2, lambda world: train(world, replan_every_steps=3, rank_memory_bytes=100))
    assert all("tables stay where they are: the tables need" in line for line in found[0][1])
    assert found[0][1]
    assert not found[1][1]


def test_tables_stay_where_a_move_would_save_too_little():
    for _, lines, plans in Loopback.run(2, lambda world: train(world, replan_every_steps=3, replan_margin=1e6)):
        assert not lines
        assert plans[0] == plans[1]


def test_tables_do_not_move_between_gradients_that_are_added_up():
    """Of steps that do not divide it waits for the update: a move in between would be refused."""
    for _, _, plans in Loopback.run(2, lambda world: train(world, accumulate=3, replan_every_steps=2)):
        assert plans[0] != plans[1]


def test_counts_say_how_a_table_is_looked_up():
    specs = [TableSpec(name=name, rows=6, dim=4, features=(name, name + "2")) for name in ("a", "b")]
    one, other = AccessCounts(specs), AccessCounts(specs)
    one.batches, one.samples, other.batches, other.samples = 1, 4, 2, 6
    one.add("a", np.array([0, 0, 2, 5], np.int32), 4)
    other.add("a", np.array([1]), 3)
    both = one + other
    assert (both.batches, both.samples) == (3, 10)
    a, b = both.measured(specs)
    assert a.access == (0.4, 0.4, 0.2)
    assert (a.lookups_per_sample, a.lists_per_sample) == (0.5, 0.35)
    assert (b.access, b.lookups_per_sample, b.lists_per_sample) == ((), 0.0, 0.0)


def test_what_cannot_be_planned_anew_is_refused():
    with pytest.raises(RecipeError, match="replan_every_steps = 10 goes with a planner that asks what steps cost"):
        PlanOptions(planner="greedy", replan_every_steps=10)
    with pytest.raises(RecipeError, match=r"plan.ranks_per_core = 0.5: expected at least 1"):
        PlanOptions(ranks_per_core=0.5)
    with pytest.raises(RecipeError, match="replan_every_steps = 0: say after how many steps"):
        recsys.Replan(PlanOptions(planner="oper"))
