"""Rows of vertices that are learnt, beside features or instead of them, on every kind of world."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from windrow import gnn, recsys
from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.comm.loopback import Loopback
from windrow.comm.wire import WireOptions
from windrow.gnn.pipeline import PipelineOptions
from windrow.gnn.synthetic import community_graph
from windrow.partition.book import PartitionBook
from windrow.training.callbacks import Callback
from windrow.training.trainer import Trainer

COLUMNS, RATE, FANOUTS = 5, 0.5, (4, 3)
SHAPE = gnn.ModelOptions(kind="graphsage", hidden=8, num_layers=2, dropout=0.3)


def make_graph(*, features=6):
    graph = community_graph(120, 3, seed=1, average_degree=6, num_features=6)
    return replace(graph, features=graph.features[:, :features])


def part_of(graph, world, *, in_order=False):
    """Neighbouring vertices land on different ranks: nearly every row travels. Else their order stays."""
    ids = torch.arange(graph.num_vertices).numpy()
    assignment = ids * world.size // graph.num_vertices if in_order else ids % world.size
    book = PartitionBook.from_assignment(assignment, world.size)
    return gnn.PartitionedGraph.from_graph(graph, book, world.rank)


def first_rows(table):
    """Writes first values, by the user's ids."""
    table.copy_(torch.randn(table.shape, generator=torch.Generator().manual_seed(2)))


def make_embedding(part, world, *, init_fn=None, plan=None, **options):
    config = recsys.EmbeddingConfig(part.num_vertices, COLUMNS, "vertex", init_fn=init_fn)
    return recsys.EmbeddingCollection(
        [config],
        world=world,
        plan=plan or part.plan_of_rows("vertex", COLUMNS),
        optimizer=recsys.TableOptions(**{"optimizer": "sgd", "learning_rate": RATE, **options}),
        row_ids=part.original_ids,
    )


FORMS = {
    "adagrad": {"optimizer": "adagrad"},
    "adam": {"optimizer": "adam", "learning_rate": 0.05},
    "fp16": {"precision": "fp16"},
    "robe": {"form": "robe", "compression": 4, "robe_block": 5},
    "tensor_train": {"form": "tensor_train", "compression": 2},
    "hashed": {"form": "hashed", "compression": 4},
    "hot rows": {"form": "quotient_remainder", "compression": 2, "hot_share": 0.1},
    "int8": {"form": "int8"},
}


def make_trainer(world, part, embedding, *, task=gnn.NodeTask, training=None, **options):
    columns = part.num_features + COLUMNS * (embedding is not None)
    model = gnn.build_model(SHAPE, in_features=columns, out_features=part.num_outputs, seed=5)
    return Trainer(
        world,
        model,
        task(part, fanouts=FANOUTS, embedding=embedding, **options),
        seed=5,
        **{"optimizer": "sgd", "learning_rate": RATE, "batch_size": 20, "epochs": 3, **(training or {})},
    )


class DenseRows(nn.Module):
    """The slow, obvious reference: a parameter with a row for each vertex, whose number is the last feature."""

    def __init__(self, part):
        super().__init__()
        self.rows = nn.Parameter(torch.empty(part.num_vertices, COLUMNS))
        first_rows(self.rows.data)
        self.gnn = gnn.build_model(SHAPE, in_features=6 + COLUMNS, out_features=part.num_outputs, seed=5)

    def forward(self, blocks, x, dropout=None):
        return self.gnn(blocks, torch.cat([x[:, :-1], self.rows[x[:, -1].long()]], 1), dropout)


def learnt_by_one_process(task):
    """Losses and rows of one process that holds everything."""
    graph = make_graph()
    numbered = torch.cat([graph.features, torch.arange(graph.num_vertices).unsqueeze(1)], 1)
    world = Loopback.single()
    part = part_of(replace(graph, features=numbered), world)
    model = DenseRows(part)
    trainer = Trainer(world, model, task(part), seed=5, optimizer="sgd", learning_rate=RATE, batch_size=20, epochs=3)
    losses = [trainer.train_epoch(epoch) for epoch in range(3)]
    trainer.close()
    return losses, model.rows.detach()


@pytest.fixture(scope="module")
def expected():
    return learnt_by_one_process(lambda part: gnn.NodeTask(part, FANOUTS))


@pytest.mark.parametrize("depth", [4, 0])
@pytest.mark.parametrize("plan", [None, "row_wise", "replicated"])
def test_rows_learn_as_those_of_one_process(spmd, expected, depth, plan):
    def body(world):
        part = part_of(make_graph(), world)
        embedding = make_embedding(part, world, init_fn=first_rows, plan=plan)
        trainer = make_trainer(world, part, embedding, pipeline=PipelineOptions(depth=depth))
        losses = [trainer.train_epoch(epoch) for epoch in range(3)]
        trainer.close()
        return losses, embedding.whole_table("vertex")

    for losses, rows in spmd(body):
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected[0]), rtol=1e-5, atol=0)
        torch.testing.assert_close(rows, expected[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("plan", [None, "row_wise", "replicated"])
def test_rows_learn_from_the_whole_graph_as_those_of_one_process(spmd, plan):
    expected = learnt_by_one_process(lambda part: gnn.FullGraphTask(part, num_layers=2))

    def body(world):
        part = part_of(make_graph(), world)
        embedding = make_embedding(part, world, init_fn=first_rows, plan=plan)
        model = gnn.build_model(SHAPE, in_features=6 + COLUMNS, out_features=part.num_outputs, seed=5)
        task = gnn.FullGraphTask(part, embedding=embedding)
        trainer = Trainer(world, model, task, seed=5, optimizer="sgd", learning_rate=RATE, epochs=3)
        losses = [trainer.train_epoch(epoch) for epoch in range(3)]
        found = losses, embedding.whole_table("vertex"), trainer.evaluate()
        trainer.close()
        return found

    for losses, rows, measured in spmd(body):
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected[0]), rtol=1e-5, atol=0)
        torch.testing.assert_close(rows, expected[1], rtol=1e-5, atol=1e-5)
        assert measured["test"]["accuracy"] > 1 / 3


@pytest.mark.parametrize(
    # Copies of half precision are refused.
    ("form", "plan"),
    [(form, plan) for form in FORMS for plan in (None, "replicated") if (form, plan) != ("fp16", "replicated")],
)
def test_rows_of_every_form_learn_alike_on_any_number_of_ranks(spmd, form, plan):
    def losses_of(world):
        part = part_of(make_graph(), world)
        embedding = make_embedding(part, world, plan=plan, initial_scale=0.5, **FORMS[form])
        trainer = make_trainer(world, part, embedding)
        losses = [trainer.train_epoch(epoch) for epoch in range(3)]
        trainer.close()
        return losses

    alone = losses_of(Loopback.single())
    assert alone[-1] < alone[0]
    # Updates of few bits are rounded by chance, and of half precision to nearest.
    tolerance = 1e-3 if form in {"int8", "fp16"} else 1e-5
    for losses in spmd(losses_of):
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(alone), rtol=tolerance, atol=0)


def test_inference_from_all_neighbours_is_the_same_by_layers_and_by_minibatches(spmd):
    def body(world):
        part = part_of(make_graph(features=0), world)
        found = []
        for method in ("exact", "sampled"):
            evaluation = gnn.EvaluationOptions(method=method, fanouts=(-1, -1), batch_size=32)
            embedding = make_embedding(part, world, init_fn=first_rows, optimizer="rowwise_adagrad")
            trainer = make_trainer(world, part, embedding, evaluation=evaluation)
            trainer.train_epoch(0)
            found.append((trainer.predict(), trainer.evaluate()))
            trainer.close()
        return found

    for (exact, metrics), (sampled, same_metrics) in spmd(body):
        torch.testing.assert_close(exact, sampled, rtol=1e-4, atol=1e-5)
        for split, figures in metrics.items():
            assert figures == pytest.approx(same_metrics[split])


@pytest.mark.parametrize("method", ["exact", "sampled"])
def test_callbacks_may_measure_between_steps(spmd, method):
    """Lookups of minibatches that were under way are given up where evaluation reads the same store, and made again."""

    def body(world):
        def losses(*, measures):
            part = part_of(make_graph(), world)
            embedding = make_embedding(part, world, init_fn=first_rows)
            evaluation = gnn.EvaluationOptions(method=method)
            with make_trainer(world, part, embedding, evaluation=evaluation) as trainer:

                def after_step(done):
                    if measures and done % 2:
                        trainer.evaluate("validation")

                return [trainer.train_epoch(epoch, after_step=after_step) for epoch in range(2)]

        return losses(measures=False), losses(measures=True)

    for without, between in spmd(body):
        assert between == pytest.approx(without, rel=1e-6)


def test_ranks_without_seeds_take_part(spmd):
    def body(world):
        part = part_of(make_graph(), world)
        losses = []
        for _ in range(2):
            trainer = make_trainer(world, part, make_embedding(part, world), training={"batch_size": 2})
            losses.append(trainer.train_epoch(0))
            trainer.close()
        return losses

    for first, again in spmd(body):
        assert first == again


def test_ranks_without_seeds_send_gradients_in_the_order_of_others():
    def body(world):
        part = part_of(make_graph(), world)
        with make_trainer(world, part, make_embedding(part, world), training={"batch_size": 2}) as trainer:
            trainer.train_steps(0, range(2))
        # Also where a weight of the model has no gradient, so that its sum starts late.
        trainer.model.register_parameter("unused", nn.Parameter(torch.zeros(2)))
        task = gnn.NodeTask(part, fanouts=FANOUTS, embedding=make_embedding(part, world))
        with Trainer(world, trainer.model, task, batch_size=2) as trainer:
            trainer.train_steps(0, range(2))

    Loopback.run(3, body, debug=True)


def test_links_are_learnt_from_rows_alone(spmd):
    graph, links = gnn.split_links(make_graph(features=0), seed=3)

    def body(world):
        part = part_of(graph, world)
        embedding = make_embedding(part, world, optimizer="rowwise_adagrad", learning_rate=0.1, initial_scale=0.5)

        def task(*arguments, **options):
            return gnn.LinkTask(*arguments, links=links, num_negatives=3, **options)

        trainer = make_trainer(world, part, embedding, task=task, training={"learning_rate": 0.05})
        before = trainer.evaluate()["test"]["mrr"]
        losses = [trainer.train_epoch(epoch) for epoch in range(3)]
        after = trainer.evaluate()["test"]["mrr"]
        trainer.close()
        return losses, before, after

    for losses, before, after in spmd(body):
        assert losses[-1] < losses[0]
        assert before != after


@pytest.mark.parametrize("form", ["dense", "robe"])
def test_a_run_goes_on_bit_for_bit_and_in_any_partition(shared_tmp_path, form):
    class StopAfterOne(Callback):
        def on_epoch(self, trainer, record):
            trainer.should_stop = True

    def fit(world, name, *, in_order=False, callbacks=(), **options):
        part = part_of(make_graph(), world, in_order=in_order)
        more = FORMS["robe"] if form == "robe" else {}
        embedding = make_embedding(part, world, **{"optimizer": "rowwise_adagrad", **more})
        trainer = make_trainer(world, part, embedding, training={"callbacks": callbacks})
        trainer.fit(run_folder=shared_tmp_path / name, **options)
        return embedding.whole_table("vertex")

    def body(world):
        whole = fit(world, "whole")
        halves = [fit(world, name, callbacks=[StopAfterOne()]) for name in ("same", "other")]
        assert not torch.equal(halves[0], whole)
        assert torch.equal(fit(world, "same", resume=True), whole)
        return whole

    whole = Loopback.run(2, body)[0]
    for rows in Loopback.run(3, lambda world: fit(world, "other", resume=True, in_order=True)):
        torch.testing.assert_close(rows, whole, rtol=1e-4, atol=1e-5)

    def load(world):
        part = part_of(replace(make_graph(), labels=make_graph().labels.flip(0)), world)
        make_trainer(world, part, make_embedding(part, world)).load_weights(shared_tmp_path / "same")

    with pytest.raises(StoreError, match="on another graph, whose ids name other rows: name its own store"):
        Loopback.run(2, load)


def test_what_cannot_be_honoured_is_refused():
    world = Loopback.single()
    part = part_of(make_graph(), world)
    embedding = make_embedding(part, world)
    with pytest.raises(RecipeError, match="vertex 7; expected one of 120"):
        gnn.NodeTask(part, embedding=recsys.EmbeddingCollection([recsys.EmbeddingConfig(7, COLUMNS, "vertex")]))
    with pytest.raises(RecipeError, match=r"row_ids = graph\.original_ids"):
        gnn.NodeTask(part, embedding=recsys.EmbeddingCollection([recsys.EmbeddingConfig(120, COLUMNS, "vertex")]))
    with pytest.raises(RecipeError, match=r"row_ids are 119 numbers of .* 119 different ones, .* rows: 120"):
        recsys.EmbeddingCollection([recsys.EmbeddingConfig(120, COLUMNS, "vertex")], row_ids=torch.arange(119))
    model = gnn.build_model(SHAPE, in_features=6 + COLUMNS, out_features=part.num_outputs, seed=5)
    with pytest.raises(RecipeError, match="made for 'fp32' and 'fp32'"):
        Trainer(world, model, gnn.NodeTask(part, FANOUTS, embedding=embedding), wire=WireOptions(vectors="bf16"))
    holder = nn.Sequential(embedding)
    with pytest.raises(RecipeError, match="Sequential holds embedding tables: give"):
        Trainer(world, holder, gnn.NodeTask(part, FANOUTS))
    with pytest.raises(RecipeError, match=r"FullGraphTask\(..., embedding=collection\)"):
        Trainer(world, holder, gnn.FullGraphTask(part, num_layers=2))
    trainer = make_trainer(world, part, embedding)
    with pytest.raises(RecipeError, match="another one has none"):
        trainer.predict(graph=part)
    trainer.close()
    with pytest.raises(DataError, match="vertex"):
        embedding.start_rows(torch.tensor([120]))
    bags = recsys.EmbeddingBagCollection([recsys.EmbeddingBagConfig(5, COLUMNS, "bag")])
    with pytest.raises(RecipeError, match="do not come one by one"):
        bags.start_rows(torch.tensor([0]))
    two = recsys.EmbeddingCollection([recsys.EmbeddingConfig(5, COLUMNS, "t", feature_names=["a", "b"])])
    with pytest.raises(RecipeError, match="has 2, a, b"):
        two.start_rows(torch.tensor([0]))


def test_a_lookup_is_given_up(spmd):
    def body(world):
        part = part_of(make_graph(), world)
        embedding = make_embedding(part, world, init_fn=first_rows)
        given_up = embedding.start_rows(torch.arange(3))
        kept = embedding.start_rows(torch.arange(world.rank, 9))
        given_up.drop()
        with torch.no_grad():
            return kept.finish(), embedding.whole_table("vertex")[part.original_ids[world.rank : 9]]

    for found, rows in spmd(body):
        assert torch.equal(found, rows)
