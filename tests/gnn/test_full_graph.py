"""Full-graph training on parts against one process that has the whole graph."""

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.loopback import Loopback
from windrow.comm.quantize import packed_offsets
from windrow.comm.wire import WireOptions
from windrow.gnn.build import assemble_graph
from windrow.gnn.evaluation import EvaluationOptions
from windrow.gnn.full_graph import FullGraphOptions, FullGraphTask
from windrow.gnn.halo import Halo, HaloExchange, own_sums
from windrow.gnn.inference import block_of_range, gather_predictions, infer_exactly
from windrow.gnn.layers import GCNLayer
from windrow.gnn.message_passing import Block
from windrow.gnn.metrics import evaluate_predictions
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.partitioned import partition as gnn_partition
from windrow.gnn.synthetic import community_graph, typed_community_graph
from windrow.gnn.task import loss_sum
from windrow.gnn.vertex_data import VertexSplit
from windrow.partition.book import PartitionBook
from windrow.training.dense import make_linear
from windrow.training.dropout import DropoutContext
from windrow.training.trainer import Trainer

NUM_VERTICES = 90
UNDIRECTED = community_graph(NUM_VERTICES, 3, seed=3, num_features=6)
TYPED = typed_community_graph(52, 3, seed=3)


def directed_graph():
    chance = torch.Generator().manual_seed(4)
    source, destination = torch.randint(NUM_VERTICES, (2, 600), generator=chance)
    return assemble_graph(
        source,
        destination,
        NUM_VERTICES,
        features=UNDIRECTED.features,
        labels=UNDIRECTED.labels,
        split=VertexSplit(UNDIRECTED.train_ids, UNDIRECTED.validation_ids, UNDIRECTED.test_ids),
        symmetrise=False,
    )


DIRECTED = directed_graph()
WEIGHTED = dataclasses.replace(
    DIRECTED, edge_weight=torch.rand(DIRECTED.num_edges, generator=torch.Generator().manual_seed(1))
)


def make_part(world, graph, *, run=NUM_VERTICES):
    ids = torch.arange(NUM_VERTICES)
    assignment = (ids * 7 + ids // run) % world.size
    book = PartitionBook.from_assignment(assignment.numpy(), world.size)
    return PartitionedGraph.from_graph(graph, book, world.rank)


def make_model(kind, graph, **more):
    options = ModelOptions(kind=kind, hidden=8, num_layers=3, heads=2, **{"dropout": 0.3, **more})
    columns = graph.features.shape[1]
    return build_model(options, in_features=columns, out_features=graph.num_classes, seed=2, types=graph.types)


def one_process(model, graph, epochs):
    """Losses by epoch, and weights at the end, of plain PyTorch on the whole graph as one block."""
    degrees = graph.indptr.diff()
    whole = Block.whole(graph.indptr, graph.indices)
    if model.needs_edge_weights:
        whole = dataclasses.replace(whole, edge_weight=graph.edge_weight)
        degrees = torch.segment_reduce(graph.edge_weight, "sum", offsets=graph.indptr, initial=0)
    whole = dataclasses.replace(whole, source_degrees=degrees)
    if graph.types is not None:
        kinds = graph.types.of(torch.arange(NUM_VERTICES))
        whole = dataclasses.replace(whole, edge_type=graph.edge_type, source_types=kinds, types=graph.types)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for epoch in range(epochs):
        context = DropoutContext(seed=0, epoch=epoch, step=0, row_ids=torch.arange(NUM_VERTICES))
        output = model([whole] * 3, graph.features, context)[graph.train_ids]
        loss = loss_sum(graph.task, output, graph.labels[graph.train_ids]) / len(graph.train_ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        return losses, model([whole] * 3, graph.features)


OPTIONS = [
    FullGraphOptions(overlap=False, partial_sums=False, keep_first=False),
    FullGraphOptions(overlap=True, partial_sums=False),
    FullGraphOptions(),
]


@pytest.mark.parametrize("options", OPTIONS, ids=["vanilla", "overlap", "partial sums"])
@pytest.mark.parametrize(
    ("kind", "graph"),
    [
        *(pytest.param(kind, UNDIRECTED, id=f"undirected-{kind}") for kind in ("graphsage", "gcn", "gat", "gin")),
        *(pytest.param(kind, DIRECTED, id=f"directed-{kind}") for kind in ("graphsage", "gcn", "gat", "gin")),
        *(pytest.param(kind, TYPED, id=kind) for kind in ("rgcn", "rgat")),
    ],
)
def test_parts_learn_what_one_process_learns(spmd, graph, kind, options):
    expected, outputs = one_process(make_model(kind, graph), graph, 4)

    def body(world):
        task = FullGraphTask(make_part(world, graph), options)
        with Trainer(world, make_model(kind, graph), task, learning_rate=0.01, seed=0) as trainer:
            losses = [trainer.train_epoch(epoch) for epoch in range(4)]
            return losses, task.predict()

    # Attention to a single source has gradients of rounding alone, which Adam makes as large as any.
    tolerance = 1e-3 if kind == "rgat" else 1e-5
    for losses, predicted in spmd(body):
        assert losses == pytest.approx(expected, rel=tolerance)
        torch.testing.assert_close(predicted, outputs, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("options", OPTIONS, ids=["vanilla", "overlap", "partial sums"])
def test_edges_have_weights(spmd, options):
    expected, outputs = one_process(make_model("gcn", WEIGHTED, edge_weights=True), WEIGHTED, 3)

    def body(world):
        task = FullGraphTask(make_part(world, WEIGHTED), options)
        model = make_model("gcn", WEIGHTED, edge_weights=True)
        with Trainer(world, model, task, learning_rate=0.01, seed=0) as trainer:
            return [trainer.train_epoch(epoch) for epoch in range(3)], task.predict()

    for losses, predicted in spmd(body):
        assert losses == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(predicted, outputs, rtol=1e-4, atol=1e-4)


RESIDUAL = {"normalise": "layer", "residual": True}


@pytest.mark.parametrize(
    ("kind", "order", "more"),
    [
        ("graphsage", "auto", {}),
        ("graphsage", "project", RESIDUAL),
        ("graphsage", "aggregate", {"residual": True}),
        ("gcn", "auto", RESIDUAL),
        ("gcn", "project", {}),
    ],
)
def test_every_evaluation_sees_the_weights_of_its_epoch(spmd, kind, order, more):
    def body(world):
        part = make_part(world, UNDIRECTED)
        task = FullGraphTask(part, FullGraphOptions(order=order))
        model = make_model(kind, UNDIRECTED, **more)
        with Trainer(world, model, task, learning_rate=0.01, seed=0) as trainer:
            for epoch in range(2):
                # What it adds up has no gradient in the first epoch.
                (model.input_linear if model.options.residual else model.layers[0]).requires_grad_(epoch > 0)
                predicted = task.predict()
                exact = gather_predictions(world, part, infer_exactly(world, part, model.eval()))
                torch.testing.assert_close(predicted, exact, rtol=1e-4, atol=1e-4)
                trainer.train_epoch(epoch)
            return task.predict(), gather_predictions(world, part, infer_exactly(world, part, model.eval()))

    for predicted, exact in spmd(body):
        torch.testing.assert_close(predicted, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "graph", "messages"), [("graphsage", UNDIRECTED, "int8"), ("gcn", WEIGHTED, "wire")])
def test_maps_before_the_exchange_under_autocast(spmd, kind, graph, messages):
    options = FullGraphOptions(messages=messages, order="project")

    def body(world):
        found = []
        for autocast in ("none", "bf16"):
            model = make_model(kind, graph, dropout=0.0, gcn_normalisation="right", edge_weights=kind == "gcn")
            task = FullGraphTask(make_part(world, graph), options)
            with Trainer(world, model, task, learning_rate=0.01, autocast=autocast) as trainer:
                found.append([trainer.train_epoch(epoch) for epoch in range(3)])
        return found

    for exact, short in spmd(body):
        assert short == pytest.approx(exact, rel=0.02)


def trained(world, graph, options, *, kind="gcn", epochs=4, wire=None, **more):
    """Losses and bytes that this rank sent in the last epoch."""
    task = FullGraphTask(make_part(world, graph), options, **more)
    with Trainer(world, make_model(kind, graph), task, learning_rate=0.01, seed=0, wire=wire) as trainer:
        losses = []
        for epoch in range(epochs):
            world.meter.reset()
            losses.append(trainer.train_epoch(epoch))
        return losses, task.traffic()


@pytest.mark.parametrize(
    ("kind", "messages"),
    [
        *(("gcn", messages) for messages in ("int8", "int4", "adaptive", "random")),
        ("graphsage", "int4"),
        ("gat", "int8"),
    ],
)
def test_rounded_messages_learn_nearly_the_same(spmd, kind, messages):
    expected, _ = one_process(make_model(kind, UNDIRECTED), UNDIRECTED, 4)
    options = FullGraphOptions(messages=messages, assign_every_epochs=2, group_size=5)
    for losses, _ in spmd(lambda world: trained(world, UNDIRECTED, options, kind=kind)):
        assert losses == pytest.approx(expected, rel=0.002 if messages == "int8" else 0.1)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_an_error_share_of_0_takes_the_fewest_bits_and_1_the_most(spmd, share):
    def body(world):
        uniform = FullGraphOptions(messages="int2" if share == 0 else "int8")
        assigned = FullGraphOptions(messages="adaptive", error_share=share, assign_every_epochs=1, group_size=3)
        return [trained(world, UNDIRECTED, options)[1].bytes_sent for options in (uniform, assigned)]

    for uniform, assigned in spmd(body):
        # Rows of equal numbers have no error, so that nothing is gained by more bits.
        assert assigned == uniform if share == 0 else 0.9 * uniform <= assigned <= uniform


@pytest.mark.parametrize("messages", ["int2", "adaptive", "random"])
def test_bytes_are_those_of_the_assigned_widths(spmd, messages):
    def body(world):
        options = FullGraphOptions(messages=messages, assign_every_epochs=1, group_size=4)
        task = FullGraphTask(make_part(world, DIRECTED), options)
        with Trainer(world, make_model("gcn", DIRECTED), task, seed=0) as trainer:
            trainer.train_epoch(0)
            expected = 0
            for codecs, exchange in zip(task.bits.codecs, task.exchanges, strict=True):
                for way, halo in exchange.used.items():
                    for peer, count in enumerate(halo.counts(way)[0]):
                        bits = codecs[way].bits_of(peer, count, sent=True)
                        expected += int(packed_offsets(bits, codecs[way].width)[-1])
            world.meter.reset()
            trainer.train_epoch(1)
        return task.traffic().bytes_sent, expected

    for sent, expected in spmd(body):
        assert sent == expected


@pytest.mark.parametrize("cover", [False, True])
def test_what_an_error_counts_is_what_it_does_to_all_sums(spmd, cover):
    def body(world):
        part = make_part(world, DIRECTED)
        block, sources = block_of_range(part, None, None, *part.own_range)
        cpu = torch.device("cpu")
        own = own_sums(block, cpu)
        halo = Halo(world, block, sources[block.num_dst :], part.offsets, own=own, cover=cover, device=cpu)
        own_weights = torch.rand(block.num_dst, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        for way, bags in (("rows", halo.received.forward), ("gradients", halo.sent.backward)):
            count = sum(halo.counts(way)[1])
            # The sums that each row alone makes, where it is 1.
            alone = [
                bags.add(row.unsqueeze(1), torch.zeros(block.num_dst, 1).double(), weighted=False)
                for row in torch.eye(count).double()
            ]
            expected = [float((one.squeeze(1).square() * own_weights).sum()) for one in alone]
            assert halo.error_coefficients(way, own_weights).tolist() == pytest.approx(expected)

    spmd(body)


def test_rounding_repeats_itself(spmd):
    options = FullGraphOptions(messages="int2")
    for first, second in zip(
        *(spmd(lambda world: trained(world, DIRECTED, options)[0]) for _ in range(2)), strict=True
    ):
        assert first == second


def test_partial_sums_are_fewer_and_features_travel_once(spmd):
    def body(world):
        options = (FullGraphOptions(partial_sums=False, keep_first=False, order="aggregate"), FullGraphOptions())
        return [trained(world, DIRECTED, each)[1].rows_sent for each in options], world.size

    for (plain, fewest), size in spmd(body):
        assert fewest < plain or size == 1


@pytest.mark.parametrize(
    ("kind", "residual"), [("graphsage", False), ("graphsage", True), ("gcn", False), ("gat", False)]
)
def test_features_that_are_mostly_zero_are_multiplied_without_zeros(spmd, kind, residual):
    """And mean the same: an order of its own makes them dense."""
    words = torch.zeros(NUM_VERTICES, 200)
    words[torch.arange(NUM_VERTICES), torch.arange(NUM_VERTICES) * 7 % 200] = UNDIRECTED.features[:, 0]
    graph = dataclasses.replace(DIRECTED, features=words)

    def body(world):
        found = []
        for options in (FullGraphOptions(), FullGraphOptions(order="aggregate")):
            shape = ModelOptions(kind=kind, hidden=8, num_layers=2, heads=2, residual=residual)
            task = FullGraphTask(make_part(world, graph), options)
            with Trainer(world, build_model(shape, in_features=200, out_features=3, seed=1), task, seed=0) as trainer:
                layouts = []
                trainer.model.register_forward_pre_hook(lambda _, given, seen=layouts: seen.append(given[1].layout))
                losses = [trainer.train_epoch(epoch) for epoch in range(3)]
                found.append((losses, trainer.evaluate("test")["test"]["accuracy"], set(layouts)))
        return found

    for sparse, dense in spmd(body):
        assert (sparse[2], dense[2]) == ({torch.sparse_csr}, {torch.strided})
        assert sparse[0] == pytest.approx(dense[0], rel=1e-5)
        assert sparse[1] == dense[1]


def test_rows_travel_in_the_formats_of_the_wire(spmd):
    def body(world):
        return [
            trained(world, UNDIRECTED, FullGraphOptions(), wire=WireOptions(vectors=name, gradients=name))[1].bytes_sent
            for name in ("fp32", "bf16")
        ]

    for exact, short in spmd(body):
        assert exact == 2 * short


@pytest.mark.parametrize("messages", ["wire", "int4"])
@pytest.mark.parametrize("kind", ["gat", "graphsage"])
def test_rows_that_are_fetched_again_are_the_same(spmd, kind, messages):
    options = FullGraphOptions(messages=messages)

    def body(world):
        return [
            trained(world, DIRECTED, dataclasses.replace(options, recompute=recompute), kind=kind)
            for recompute in (False, True)
        ]

    for (kept, traffic), (again, more_traffic) in spmd(body):
        assert again == kept
        # Not only forward and gradients back, but forward twice; sums are not kept.
        rows, more_rows = (each.rows_sent + each.rows_received for each in (traffic, more_traffic))
        assert more_rows == rows * (1.5 if kind == "gat" else 1)


@pytest.mark.parametrize("recompute", [False, True])
def test_rows_of_others_are_not_kept_where_they_are_fetched_again(monkeypatch, recompute):
    fetch, fetched = HaloExchange.fetch, []

    def noted(exchange, x):
        found = fetch(exchange, x)
        fetched.append(StorageWeakRef(found.untyped_storage()))
        return found

    monkeypatch.setattr(HaloExchange, "fetch", noted)
    task = FullGraphTask(make_part(Loopback.single(), UNDIRECTED), FullGraphOptions(recompute=recompute))
    with Trainer(Loopback.single(), make_model("gat", UNDIRECTED), task, seed=0):
        loss = task.loss(None, 0, 0)
        assert [found.expired() for found in fetched] == [recompute] * 3
        assert loss.isfinite()


@pytest.mark.parametrize(("task", "metric"), [("multi-label", "micro_f1"), ("regression", "mae")])
def test_labels_of_other_kinds(spmd, task, metric):
    graph = community_graph(NUM_VERTICES, 4, seed=3, num_features=6, task=task)
    model = make_model("graphsage", graph)
    expected, outputs = one_process(copy.deepcopy(model), graph, 4)

    def body(world):
        task = FullGraphTask(make_part(world, graph), evaluation=EvaluationOptions(metric=metric))
        with Trainer(world, copy.deepcopy(model), task, learning_rate=0.01, seed=0) as trainer:
            return [trainer.train_epoch(epoch) for epoch in range(4)], trainer.evaluate(), task.higher_is_better

    measured = evaluate_predictions(metric, task, outputs[graph.test_ids], graph.labels[graph.test_ids])
    for losses, values, higher_is_better in spmd(body):
        assert losses == pytest.approx(expected, rel=1e-5)
        assert values["test"][metric] == pytest.approx(measured, rel=1e-5)
        assert higher_is_better == (metric != "mae")


def test_few_bits_of_the_wire_are_those_of_the_messages(spmd):
    def body(world):
        few = FullGraphOptions(messages="int8"), WireOptions()
        wire = FullGraphOptions(), WireOptions(vectors="int8", gradients="int8")
        first, second = (trained(world, UNDIRECTED, options, wire=form) for options, form in (few, wire))
        return first[0], second[0]

    for first, second in spmd(body):
        assert first == second


class OwnModel(nn.Module):
    """Adds up sources by hand, and counts each destination's."""

    def __init__(self):
        super().__init__()
        self.linear = make_linear(6, 3, generator=torch.Generator().manual_seed(3))

    def forward(self, blocks, x, dropout=None):
        for hop in blocks:
            block, rows = hop.with_sources(x)
            source, destination = block.edge_index
            x = x + torch.zeros_like(x).index_add(0, destination, rows[source] * block.edge_attr) / 10
        return self.linear(x)


def test_a_module_of_the_users_own(spmd):
    graph = dataclasses.replace(DIRECTED, edge_attr=WEIGHTED.edge_weight.unsqueeze(1))

    def body(world):
        task = FullGraphTask(
            make_part(world, graph),
            num_layers=2,
            loss=nn.functional.cross_entropy,
            metrics={"share": lambda output, labels: float((output.argmax(1) == labels).float().mean())},
        )
        with Trainer(world, OwnModel(), task, learning_rate=0.01) as trainer:
            return [trainer.train_epoch(epoch) for epoch in range(3)], trainer.evaluate()

    alone = body(Loopback.single())
    for losses, values in spmd(body):
        assert losses == pytest.approx(alone[0], rel=1e-5)
        assert values["test"]["share"] == pytest.approx(alone[1]["test"]["share"])


class OwnGCN(nn.Module):
    """A layer of ours, which scales what leaves a vertex by all of its edges, in a module of one's own."""

    def __init__(self):
        super().__init__()
        self.layer = GCNLayer(6, 3, generator=torch.Generator().manual_seed(3))

    def forward(self, blocks, x, dropout=None):
        return self.layer(blocks[0], x)


def test_layers_of_ours_in_a_module_of_ones_own(spmd):
    def body(world):
        with Trainer(world, OwnGCN(), FullGraphTask(make_part(world, UNDIRECTED), num_layers=1)) as trainer:
            return [trainer.train_epoch(epoch) for epoch in range(3)], trainer.predict()

    losses, outputs = body(Loopback.single())
    for found, predicted in spmd(body):
        assert found == pytest.approx(losses, rel=1e-5)
        torch.testing.assert_close(predicted, outputs, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_honoured_is_refused():
    typed = FullGraphTask(gnn_partition(TYPED, Loopback.single()), FullGraphOptions(recompute=True))
    with pytest.raises(RecipeError, match=r'full_graph.recompute = true with model.kind = "rgat", whose layers sort'):
        Trainer(Loopback.single(), make_model("rgat", TYPED), typed)
    part = make_part(Loopback.single(), DIRECTED)
    with pytest.raises(RecipeError, match="how many blocks does OwnModel take"):
        Trainer(Loopback.single(), OwnModel(), FullGraphTask(part))
    with pytest.raises(RecipeError, match=r"training\.accumulate = 2"):
        Trainer(Loopback.single(), make_model("gcn", DIRECTED), FullGraphTask(part), accumulate=2)
    task = FullGraphTask(part, FullGraphOptions(messages="int8"))
    with pytest.raises(RecipeError, match=r'wire\.vectors = "int8" with wire\.gradients = "fp32": full-graph'):
        Trainer(Loopback.single(), make_model("gcn", DIRECTED), FullGraphTask(part), wire=WireOptions(vectors="int8"))
    with pytest.raises(RecipeError, match=r'wire\.vectors = "fp16" with full_graph\.messages = "int8"'):
        Trainer(Loopback.single(), make_model("gcn", DIRECTED), task, wire=WireOptions(vectors="fp16"))


@pytest.mark.parametrize("messages", ["adaptive", "random", "int4"])
def test_a_resumed_run_ends_like_one_that_was_never_killed(spmd, messages):
    options = FullGraphOptions(messages=messages, assign_every_epochs=2, group_size=5)

    def body(world):
        def trainer():
            task = FullGraphTask(make_part(world, UNDIRECTED), options)
            return Trainer(world, make_model("gcn", UNDIRECTED), task, learning_rate=0.01, seed=0)

        with trainer() as whole, trainer() as killed, trainer() as resumed:
            expected = [whole.train_epoch(epoch) for epoch in range(6)]
            losses = [killed.train_epoch(epoch) for epoch in range(3)]
            resumed.load_state_dict(copy.deepcopy(killed.state_dict()))
            return expected, losses + [resumed.train_epoch(epoch) for epoch in range(3, 6)]

    for expected, losses in spmd(body):
        assert losses == expected


def test_a_resumed_run_has_as_many_blocks(tmp_path):
    class Own(torch.nn.Module):
        def __init__(self, num_layers):
            super().__init__()
            self.num_layers = num_layers
            self.linear = make_linear(6, 3, generator=torch.Generator().manual_seed(1))

        def forward(self, blocks, x):
            return self.linear(x)

    def fit(of_model, epochs, **options):
        world = Loopback.single()
        task = FullGraphTask(make_part(world, UNDIRECTED), **options)
        with Trainer(world, Own(of_model), task, epochs=epochs) as trainer:
            trainer.fit(run_folder=tmp_path / "run", resume="auto")

    fit(1, 1)
    with pytest.raises(StoreError, match=r"task\.num_layers was 1 and is 3"):
        fit(3, 2)
    fit(1, 2, num_layers=1)


@pytest.mark.parametrize("ranks", [2, 4])
def test_widths_of_another_partition_are_left_out(ranks):
    options = FullGraphOptions(messages="adaptive", assign_every_epochs=1)

    def body(world):
        task = FullGraphTask(make_part(world, UNDIRECTED), options)
        with Trainer(world, make_model("gcn", UNDIRECTED), task, learning_rate=0.01, seed=0) as trainer:
            trainer.train_epoch(0)
            return trainer.state_dict()

    state = Loopback.run(ranks, body)[0]

    def other(world):
        task = FullGraphTask(make_part(world, UNDIRECTED, run=4), options)
        with Trainer(world, make_model("gcn", UNDIRECTED), task, learning_rate=0.01, seed=0) as trainer:
            trainer.load_state_dict(copy.deepcopy(state))
            trainer.train_epoch(1)
            return trainer.train_epoch(2)

    assert len(set(Loopback.run(2, other))) == 1
