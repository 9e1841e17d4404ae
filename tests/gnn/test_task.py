"""Training on every kind of world: the answer does not depend on the number of ranks."""

import io
from dataclasses import replace
from itertools import islice

import pytest
import torch

from windrow.caching.selection import CacheOptions
from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.comm.wire import WireOptions
from windrow.gnn.evaluation import EvaluationOptions
from windrow.gnn.message_passing import Block
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph, partition
from windrow.gnn.pipeline import PipelineOptions
from windrow.gnn.synthetic import community_graph, typed_community_graph
from windrow.gnn.task import NodeTask, loss_sum
from windrow.partition import PartitionOptions
from windrow.partition.book import PartitionBook
from windrow.training.trainer import Trainer

STEPS = 5


def make_graph():
    return community_graph(240, 3, seed=1, average_degree=8, num_features=6)


def make_trainer(
    world,
    graph,
    *,
    kind="graphsage",
    residual=True,
    order="global",
    fanouts=(4, 3),
    wire="fp32",
    shared_memory=True,
    window=0,
    topology="replicated",
    evaluation=None,
    **training,
):
    # Neighbouring vertices land on different ranks: nearly everything must be fetched.
    book = PartitionBook.from_assignment(torch.arange(graph.num_vertices).numpy() % world.size, world.size)
    part = PartitionedGraph.from_graph(graph, book, world.rank)
    shape = {"kind": kind, "hidden": 8, "num_layers": 2, "heads": 2, "residual": residual and graph.types is None}
    options = ModelOptions(dropout=0.3, normalise="layer", **shape)
    columns = graph.features.shape[1]
    return Trainer(
        world,
        build_model(options, in_features=columns, out_features=part.num_outputs, seed=5, types=graph.types),
        NodeTask(
            part,
            fanouts,
            order=order,
            pipeline=PipelineOptions(topology=topology),
            cache=CacheOptions(alpha=0.2, shared_memory=shared_memory, window=window),
            evaluation=evaluation,
        ),
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


def test_regression_beats_the_mean_of_the_labels(spmd):
    def body(world):
        graph = community_graph(240, 4, seed=3, num_features=6, signal=2.0, task="regression")
        with make_trainer(world, graph, evaluation=EvaluationOptions(metric="r2")) as trainer:
            for epoch in range(16):
                trainer.train_epoch(epoch)
            return trainer.evaluate()

    for values in spmd(body):
        assert values["test"]["r2"] > 0.3


@pytest.mark.parametrize("kind", ["graphsage", "gcn", "gat", "gin", "rgcn", "rgat"])
def test_losses_do_not_depend_on_the_world(spmd, kind):
    graph = typed_community_graph(240, 3, seed=1) if kind in ("rgcn", "rgat") else make_graph()
    expected = losses_of(Loopback.single(), graph, kind=kind)
    for losses in spmd(lambda world: losses_of(world, graph, kind=kind)):
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-5, atol=0)


@pytest.mark.parametrize("wire", ["fp32", "int8"])
def test_a_window_of_the_cache_changes_no_bit_and_spares_rows(spmd, wire):
    """Also where steps are left in the middle of an epoch, and sampled evaluation goes through the same cache."""

    def body(world):
        found = []
        for window in (0, 3):
            evaluation = EvaluationOptions(method="sampled")
            options = {"shared_memory": False, "window": window, "evaluation": evaluation, "wire": wire}
            with make_trainer(world, make_graph(), **options) as trainer:
                world.meter = Meter()
                for epoch in range(4):
                    trainer.train_epoch(epoch)
                asked = world.meter.found("features: rows").remote
                trainer.train_steps(4, range(3))
                metrics = trainer.evaluate()
                trainer.train_epoch(4, first_step=3)
                found.append((trainer.loss_so_far(), metrics, asked))
        return found, world.size > 1

    for ((loss, metrics, asked), (same_loss, same_metrics, fewer)), several in spmd(body):
        assert (loss, metrics) == (same_loss, same_metrics)
        assert fewer < 0.95 * asked if several else fewer == asked == 0


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_partitioned_topology_changes_no_bit(spmd, wire):
    """Also where steps are left in the middle of an epoch, and sampled evaluation samples between them.

    Under bf16 evaluation fetches through a store of its own, while minibatches of training are under way.
    """

    def body(world):
        found = []
        for topology in ("replicated", "partitioned"):
            options = {"shared_memory": False, "topology": topology, "wire": wire, "epochs": 2}
            options["evaluation"] = EvaluationOptions(method="sampled")
            with make_trainer(world, make_graph(), kind="gcn", **options) as trainer:
                trainer.train_epoch(0)
                trainer.train_steps(1, range(2))
                metrics = trainer.evaluate()
                trainer.train_epoch(1, first_step=2)
                found.append((trainer.loss_so_far(), metrics))
        assert found[0] == found[1]

    spmd(body)


def test_minibatches_go_on_from_epoch_to_epoch():
    """What comes next stays under way while others use the network; who begins elsewhere gets what is there."""

    def body(world):
        with make_trainer(world, make_graph(), shared_memory=False, epochs=4) as trainer:
            pipeline, begun = trainer.task._pipeline, []
            run = pipeline.run

            def counted(tasks):
                begun.append(None)
                return run(tasks)

            pipeline.run = counted
            whole, first, rest = range(trainer.steps_per_epoch), range(1), range(1, trainer.steps_per_epoch)
            for epoch, steps in ((0, whole), (1, whole), (2, first), (2, rest), (3, whole), (1, first), (1, rest)):
                with trainer.task.minibatches(epoch, steps) as minibatches:
                    seen = [(loaded.task.epoch, loaded.task.step) for loaded in minibatches]
                assert seen == [(epoch, step) for step in steps]
                trainer.evaluate()
                world.barrier(stage="between")
            # Once at first, and once where epoch 1 came after epoch 3.
            assert len(begun) == 2
            # Who leaves early, or goes on beyond the last epoch, gets what is asked for, too.
            for epoch, steps, taken in ((2, whole, 1), (2, rest, 2), (3, whole, 99), (4, whole, 99), (5, whole, 99)):
                with trainer.task.minibatches(epoch, steps) as minibatches:
                    seen = [(loaded.task.epoch, loaded.task.step) for loaded in islice(minibatches, taken)]
                assert seen == [(epoch, step) for step in steps][:taken]
            trainer.task.settle()
            assert trainer.task.store.under_way == []
            with trainer.task.minibatches(5, first) as minibatches:
                assert next(minibatches).task.epoch == 5

    Loopback.run(2, body)


def test_minibatches_go_on_until_evaluation_samples_through_the_same_store():
    def body(world):
        sampled = EvaluationOptions(method="sampled", every_epochs=2)
        with make_trainer(world, make_graph(), shared_memory=False, epochs=4, evaluation=sampled) as trainer:
            losses, values, under_way = [], [], []
            for epoch in range(4):
                losses.append(trainer.train_epoch(epoch))
                under_way.append(len(trainer.task.store.under_way) > 0)
                if epoch != 1:  # Also when it is not due.
                    values.append(trainer.evaluate())
            assert under_way == [True, False, True, False]
        with make_trainer(world, make_graph(), shared_memory=False, epochs=4, evaluation=sampled) as trainer:
            assert losses == [trainer.train_epoch(epoch) for epoch in range(4)]
            assert trainer.evaluate() == values[-1]

    Loopback.run(2, body)


@pytest.mark.parametrize("wire", ["fp32", "bf16", "int8"])
def test_shared_memory_changes_no_bit_and_spares_all_traffic(spmd, wire):
    def body(world):
        found = []
        for shared_memory in (False, True):
            world.meter = Meter()
            losses = losses_of(world, make_graph(), wire=wire, shared_memory=shared_memory)
            found.append((losses, world.meter.totals("features: rows").rows_sent, world.meter.found().shared))
        return found, world.size > 1

    for ((losses, sent, shared), (same_losses, none_sent, read)), several in spmd(body):
        assert losses == same_losses
        assert (sent > 0, shared, none_sent, read > 0) == (several, 0, 0, several)


def test_training_learns(spmd):
    def body(world):
        trainer = make_trainer(world, make_graph())
        losses = [trainer.train_epoch(epoch) for epoch in range(6)]
        trainer.close()
        return losses

    for losses in spmd(body):
        assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    "options", [{"order": "local"}, {"wire": "bf16"}, {"wire": "int4"}, {"fanouts": (-1, -1)}], ids=str
)
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
    graph.features[3, 2] = float("nan")
    with pytest.raises(DataError, match=r"row 3 holds nan in column 2: int8 is for finite numbers"):
        make_trainer(Loopback.single(), graph, wire="int8")


@pytest.mark.parametrize("kind", ["graphsage", "gcn", "gat", "gin"])
def test_layers_run_under_autocast(kind):
    trainers = (make_trainer(Loopback.single(), make_graph(), kind=kind, autocast=name) for name in ("none", "bf16"))
    exact, rounded = (trainer.train_epoch(0) for trainer in trainers)
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("residual", [True, False])
def test_vertices_that_came_later_and_hidden_vectors(spmd, residual):
    graph = make_graph()
    nothing = torch.empty(0, dtype=torch.int64)
    grown = community_graph(300, 3, seed=2, average_degree=8, num_features=6)
    grown = replace(grown, labels=None, num_classes=0, train_ids=nothing, validation_ids=nothing, test_ids=nothing)

    def body(world):
        with make_trainer(world, graph, residual=residual) as trainer:
            trainer.train_epoch(0)
            later = partition(grown, world, PartitionOptions(method="random"))
            found = [trainer.predict(), trainer.predict(hidden=True)]
            found += [trainer.predict(graph=later), trainer.predict(graph=later, hidden=True)]
            with pytest.raises(DataError, match="the graph has 5 features for each vertex"):
                trainer.predict(graph=replace(later, features=later.features[:, 1:]))
            return found, trainer.model

    for found, model in spmd(body):
        for of, (outputs, hidden) in ((graph, found[:2]), (grown, found[2:])):
            block = Block.whole(of.indptr, of.indices)
            with torch.no_grad():
                torch.testing.assert_close(outputs, model([block, block], of.features), rtol=1e-4, atol=1e-4)
                made = model.readout(hidden) if residual else model.layer_forward(1, block, hidden)
            torch.testing.assert_close(outputs, made, rtol=1e-4, atol=1e-4)
            assert hidden.shape == (of.num_vertices, 8)


def test_features_stay_as_they_were_stored(tmp_path):
    world = Loopback.single()
    whole = partition(make_graph(), world)
    short, model = (
        whole.stored_as("bf16"),
        build_model(ModelOptions(num_layers=1), in_features=6, out_features=3, seed=0),
    )
    with pytest.raises(RecipeError, match=r'wire\.vectors = "int8" with sampler\.storage = "bf16": rows travel'):
        Trainer(world, model, NodeTask(short, (2,)), wire="int8")
    graph = make_graph()
    wide = partition(replace(graph, features=graph.features.double()), world)
    with pytest.raises(RecipeError, match=r'wire\.vectors = "int8" with features of torch\.float64, whose rows travel'):
        Trainer(world, model, NodeTask(wide, (2,)), wire="int8")
    with Trainer(world, model, NodeTask(short, (2,)), wire="bf16", epochs=1) as trainer:
        trainer.fit(run_folder=tmp_path / "run")
    trainer = Trainer(world, model, NodeTask(whole, (2,)), wire="bf16", epochs=2)
    with trainer, pytest.raises(StoreError, match=r"task\.features was 'bfloat16' and is 'float32'"):
        trainer.fit(run_folder=tmp_path / "run", resume=True)


def test_labels_are_not_rounded_to_what_autocast_gives():
    years = torch.tensor([[2013.0], [1999.0]])
    assert float(loss_sum("regression", torch.tensor([[2016.0], [2000.0]], dtype=torch.bfloat16), years)) == 10


@pytest.mark.parametrize("task", ["binary", "multi-label", "regression"])
def test_outputs_of_another_width_are_refused_in_the_first_step(task):
    graph = community_graph(240, 2 if task == "binary" else 4, seed=3, num_features=6, task=task)
    part = partition(graph, Loopback.single())
    model = build_model(ModelOptions(num_layers=1), in_features=6, out_features=part.num_outputs + 1, seed=0)
    with Trainer(Loopback.single(), model, NodeTask(part, (2,))) as trainer:
        message = r"gives outputs of shape \[\d+, \d\] for labels of .* of a " + task
        with pytest.raises(RecipeError, match=message):
            trainer.train_step(0, 0)
        with pytest.raises(RecipeError, match=message):
            trainer.evaluate()


def test_hidden_vectors_that_are_not_there_are_refused():
    single = Loopback.single()
    part = partition(make_graph(), single)
    for num_layers, method, message in ((1, "exact", "has no hidden vectors"), (2, "sampled", "evaluated exactly")):
        model = build_model(ModelOptions(num_layers=num_layers), in_features=6, out_features=3, seed=0)
        task = NodeTask(part, (2, 2)[:num_layers], evaluation=EvaluationOptions(method=method))
        with Trainer(single, model, task) as trainer, pytest.raises(RecipeError, match=message):
            trainer.predict(hidden=True)
