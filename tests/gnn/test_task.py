"""Training on every kind of world: the answer does not depend on the number of ranks."""

import io

import pytest
import torch

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.loopback import Loopback
from windrow.comm.wire import WireOptions
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.synthetic import community_graph
from windrow.gnn.task import NodeTask
from windrow.partition.book import PartitionBook
from windrow.training.trainer import Trainer

STEPS = 5


def make_graph():
    return community_graph(240, 3, seed=1, average_degree=8, num_features=6)


def make_trainer(world, graph, *, kind="graphsage", order="global", fanouts=(4, 3), wire="fp32", **training):
    # Neighbouring vertices land on different ranks: nearly everything must be fetched.
    book = PartitionBook.from_assignment(torch.arange(graph.num_vertices).numpy() % world.size, world.size)
    part = PartitionedGraph.from_graph(graph, book, world.rank)
    options = ModelOptions(kind=kind, hidden=8, num_layers=2, dropout=0.3, normalise="layer", residual=True, heads=2)
    return Trainer(
        world,
        build_model(options, in_features=6, out_features=part.num_outputs, seed=5),
        NodeTask(part, fanouts, order=order),
        wire=WireOptions(vectors=wire),
        seed=5,
        **{"batch_size": 20, "learning_rate": 0.01, "weight_decay": 0.01, **training},
    )


def losses_of(world, graph, **options):
    trainer = make_trainer(world, graph, **options)
    trainer.model.train()
    losses = []
    for step in range(STEPS):
        total = torch.tensor(trainer.train_step(0, step), dtype=torch.float64)
        losses.append(float(world.all_reduce(total, stage="loss")) / trainer.task.global_batch_size(0, step))
    trainer.close()
    return losses


@pytest.mark.parametrize("kind", ["graphsage", "gcn", "gat", "gin"])
def test_losses_do_not_depend_on_the_world(spmd, kind):
    graph = make_graph()
    expected = losses_of(Loopback.single(), graph, kind=kind)
    for losses in spmd(lambda world: losses_of(world, graph, kind=kind)):
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-5, atol=0)


def test_training_learns(spmd):
    def body(world):
        trainer = make_trainer(world, make_graph())
        losses = [trainer.train_epoch(epoch) for epoch in range(6)]
        trainer.close()
        return losses

    for losses in spmd(body):
        assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("options", [{"order": "local"}, {"wire": "bf16"}, {"fanouts": (-1, -1)}], ids=str)
def test_other_settings_train_too(options):
    results = Loopback.run(2, lambda world: make_trainer(world, make_graph(), **options).train_epoch(0))
    assert results[0] == results[1]
    assert 0 < results[0] < 2


def test_a_restored_trainer_goes_on_bit_for_bit():
    def body(world):
        whole = make_trainer(world, make_graph())
        whole.train_epoch(0)
        saved = io.BytesIO()
        torch.save(whole.state_dict(), saved)
        saved.seek(0)
        whole.train_epoch(1)
        restored = make_trainer(world, make_graph())
        restored.load_state_dict(torch.load(saved, weights_only=True))
        restored.train_epoch(1)
        for mine, expected in zip(restored.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(mine, expected)

    Loopback.run(2, body)


def test_time_of_every_stage_is_measured():
    trainer = make_trainer(Loopback.single(), make_graph())
    trainer.train_epoch(0)
    assert {"sample", "fetch", "forward", "backward", "wait", "update"} <= set(trainer.stopwatch.seconds)


def test_fanouts_must_fit_the_model():
    with pytest.raises(RecipeError, match="fanouts has 3 hops but the model has 2 layers"):
        make_trainer(Loopback.single(), make_graph(), fanouts=(4, 3, 2))


def test_features_that_the_wire_cannot_carry_are_refused():
    graph = make_graph()
    graph.features[3, 2] = 1e6
    with pytest.raises(DataError, match=r"row 3 holds 1e\+06, which torch.float16 cannot"):
        make_trainer(Loopback.single(), graph, wire="fp16")


@pytest.mark.parametrize("kind", ["graphsage", "gcn", "gat", "gin"])
def test_layers_run_under_autocast(kind):
    trainers = (make_trainer(Loopback.single(), make_graph(), kind=kind, autocast=name) for name in ("none", "bf16"))
    exact, rounded = (trainer.train_epoch(0) for trainer in trainers)
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.02)
