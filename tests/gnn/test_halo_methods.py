"""Other methods of full-graph training against what each of them says it does."""

import copy
import dataclasses
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from windrow.comm.errors import RecipeError
from windrow.comm.links import NetworkDescription, described_links
from windrow.comm.loopback import Loopback
from windrow.gnn.build import assemble_graph
from windrow.gnn.full_graph import FullGraphOptions, FullGraphTask
from windrow.gnn.halo_choice import faster_method
from windrow.gnn.message_passing import Block, aggregate
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.synthetic import community_graph, typed_community_graph
from windrow.gnn.task import loss_sum
from windrow.gnn.vertex_data import VertexSplit
from windrow.partition.book import PartitionBook
from windrow.training.callbacks import Callback
from windrow.training.dense import make_linear
from windrow.training.trainer import Trainer

NUM_VERTICES = 90
EPOCHS = 5
UNDIRECTED = community_graph(NUM_VERTICES, 3, seed=3, num_features=6)


def directed_graph():
    chance = torch.Generator().manual_seed(4)
    source, destination = torch.randint(NUM_VERTICES, (2, 600), generator=chance)
    graph = assemble_graph(
        source,
        destination,
        NUM_VERTICES,
        features=UNDIRECTED.features,
        labels=UNDIRECTED.labels,
        split=VertexSplit(UNDIRECTED.train_ids, UNDIRECTED.validation_ids, UNDIRECTED.test_ids),
        symmetrise=False,
    )
    return dataclasses.replace(graph, edge_weight=torch.rand(graph.num_edges, generator=chance))


DIRECTED = directed_graph()
OWNER = torch.arange(NUM_VERTICES) * 7


def make_part(world, graph):
    book = PartitionBook.from_assignment((OWNER % world.size).numpy(), world.size)
    return PartitionedGraph.from_graph(graph, book, world.rank)


def make_model(kind, **more):
    options = ModelOptions(kind=kind, hidden=7, num_layers=3, heads=1, **more)
    return build_model(options, in_features=6, out_features=UNDIRECTED.num_classes, seed=2)


def make_trainer(world, graph, options, kind="gcn", *, seed=0, **more):
    task = FullGraphTask(make_part(world, graph), options)
    return Trainer(world, make_model(kind, **more), task, learning_rate=0.01, seed=seed)


def trained(world, graph, options, kind="gcn", **more):
    """Losses, gradients of the last epoch, and rows that this rank sent in it."""
    with make_trainer(world, graph, options, kind, **more) as trainer:
        losses = []
        for epoch in range(EPOCHS):
            world.meter.reset()
            losses.append(trainer.train_epoch(epoch))
        gradients = [parameter.grad.clone() for parameter in trainer.model.parameters()]
        return losses, gradients, trainer.task.traffic().rows_sent


METHODS = ["boundary_sampling", "stale", "skip_broadcasts", "feature_slices"]
EXACT = [
    {"method": "boundary_sampling", "boundary_share": 1.0},
    {"method": "skip_broadcasts", "skip_threshold": 0.0},
    {"method": "skip_broadcasts", "skip_threshold": 1e9, "max_staleness": 1},
    {"method": "feature_slices"},
    {"method": "auto"},
]


LAYERS = {
    "weighted": ("gcn", DIRECTED, True, {"edge_weights": True}),
    "gcn": ("gcn", UNDIRECTED, True, {}),
    "graphsage": ("graphsage", DIRECTED, False, {"dropout": 0.3}),
    "gin": ("gin", DIRECTED, True, {}),
}


@pytest.mark.parametrize(
    ("layers", "settings"),
    # Each method with one kind of layers, and two with all.
    [*(("weighted", settings) for settings in EXACT), *product(["gcn", "graphsage", "gin"], (EXACT[0], EXACT[3]))],
    ids=lambda given: given if isinstance(given, str) else "-".join(map(str, given.values())),
)
def test_what_is_called_exact_is(spmd, layers, settings):
    kind, graph, partial_sums, more = LAYERS[layers]

    def body(world):
        options = FullGraphOptions(partial_sums=partial_sums, keep_first=partial_sums)
        return [
            trained(world, graph, each, kind, **more)[:2]
            for each in (options, dataclasses.replace(options, **settings))
        ]

    for (expected, expected_gradients), (losses, gradients) in spmd(body):
        assert losses == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(gradients, expected_gradients, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("messages", ["wire", "int1"])
@pytest.mark.parametrize("method", METHODS)
def test_losses_fall_and_repeat_themselves(spmd, method, messages):
    def body(world):
        options = FullGraphOptions(method=method, messages=messages, boundary_share=0.5)
        return [trained(world, UNDIRECTED, options)[0] for _ in range(2)]

    for first, second in spmd(body):
        assert first == second
        assert first[-1] < first[0]


class HeldSums:
    """Sums over a whole graph in one process, of which those over edges between parts are made of older rows.

    A dense reference: rows and gradients that cross are those of the epoch before (`stale`), or of the first epoch.
    """

    def __init__(self, graph, weighted, parts, *, stale):
        block = Block.whole(graph.indptr, graph.indices)
        source, destination = block.edge_index
        values = graph.edge_weight if weighted else torch.ones(graph.num_edges)
        crosses = (OWNER % parts)[source] != (OWNER % parts)[destination]
        self.matrices = []
        for chosen in (~crosses, crosses):
            matrix = torch.zeros(NUM_VERTICES, NUM_VERTICES)
            matrix.index_put_((destination[chosen], source[chosen]), values[chosen], accumulate=True)
            self.matrices.append(matrix)
        self.stale = stale
        self.held = {}

    def older(self, way, rows):
        before = self.held.get(way, rows)
        if self.stale or way not in self.held:
            self.held[way] = rows.clone()
        return before

    def projects_first(self, in_features, out_features, *, learnt):
        return False

    def start_sums(self, x, *, weighted):
        return lambda: OldSums.apply(x, self)


class OldSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, held):
        ctx.held = held
        own, others = held.matrices
        return own @ x + others @ held.older("rows", x)

    @staticmethod
    def backward(ctx, upstream):
        own, others = ctx.held.matrices
        return own.T @ upstream + others.T @ ctx.held.older("gradients", upstream), None


@pytest.mark.parametrize("partial_sums", [False, True])
@pytest.mark.parametrize("kind", ["gcn", "graphsage"])
@pytest.mark.parametrize("method", ["stale", "skip_broadcasts"])
def test_older_rows_are_those_of_a_simulation_in_one_process(spmd, method, kind, partial_sums):
    options = FullGraphOptions(
        method=method, order="aggregate", partial_sums=partial_sums, skip_threshold=1e9, max_staleness=100
    )

    def simulated(parts):
        model = make_model(kind)
        whole = Block.whole(DIRECTED.indptr, DIRECTED.indices)
        whole = dataclasses.replace(whole, source_degrees=whole.degrees)
        blocks = [
            dataclasses.replace(whole, exchange=HeldSums(DIRECTED, False, parts, stale=method == "stale"))
            for _ in range(3)
        ]
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(EPOCHS):
            output = model(blocks, DIRECTED.features)[DIRECTED.train_ids]
            loss = loss_sum(DIRECTED.task, output, DIRECTED.labels[DIRECTED.train_ids]) / len(DIRECTED.train_ids)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def body(world):
        return world.size, trained(world, DIRECTED, options, kind)

    for size, (losses, _, rows_sent) in spmd(body):
        assert losses == pytest.approx(simulated(size), rel=1e-5)
        assert size == 1 or (rows_sent == 0) == (method == "skip_broadcasts")


def test_older_rows_reach_layers_that_look_at_each_source(spmd):
    def body(world):
        exact, stale, skipping = (
            trained(world, UNDIRECTED, FullGraphOptions(method=method, skip_threshold=0.0), "gat")[0]
            for method in ("exact", "stale", "skip_broadcasts")
        )
        return world.size, exact, stale, skipping

    for size, exact, stale, skipping in spmd(body):
        assert skipping == pytest.approx(exact, rel=1e-5)
        assert stale[0] == pytest.approx(exact[0], rel=1e-5)
        assert size == 1 or stale[2] != exact[2]


def test_sampled_sums_are_right_in_expectation():
    """Of rows and of gradients, over epochs; so are all entries, each of which has other sources."""
    epochs = 120

    def body(world):
        options = FullGraphOptions(keep_first=False, partial_sums=False, method="boundary_sampling", boundary_share=0.4)
        with make_trainer(world, DIRECTED, options, edge_weights=True) as trainer:
            task = trainer.task
            x = torch.rand(len(task.graph.features), 3, generator=torch.Generator().manual_seed(world.rank))
            found = []
            for blocks, repeats in ((task._exact_blocks, 1), (task._blocks, epochs)):
                outputs = []
                for epoch in range(repeats):
                    task.exchanges[1].begin(epoch)
                    leaf = x.clone().requires_grad_()
                    total = aggregate(blocks[1], leaf, edge_weights=blocks[1].edge_weight)
                    total.backward(x)
                    outputs.append(torch.cat([total.detach(), leaf.grad], 1))
                found.append(torch.stack(outputs))
            return found

    for (exact,), sampled in ((found[0], found[1]) for found in Loopback.run(3, body)):
        error = sampled.std(0) / epochs**0.5
        away = (sampled.mean(0) - exact).abs()
        assert (away > 0).any()
        assert float((away <= 2 * error + 1e-5).float().mean()) > 0.9
        assert bool((away <= 5 * error + 1e-5).all())


def test_a_share_of_the_rows_travels(spmd):
    def body(world):
        plain = FullGraphOptions(partial_sums=False, keep_first=False)
        sampling = dataclasses.replace(plain, method="boundary_sampling", boundary_share=0.1)
        return [trained(world, UNDIRECTED, options)[2] for options in (plain, sampling)], world.size

    for (exact, sampled), size in spmd(body):
        assert size == 1 or 0.05 * exact < sampled < 0.15 * exact + 4 * 5


class KilledError(Exception):
    pass


class Kill(Callback):
    """Ends a run after its fourth epoch, whose checkpoint is not written."""

    def on_epoch(self, trainer, record):
        if record.epoch == 4:
            raise KilledError


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_ends_like_one_that_was_never_killed(spmd, shared_tmp_path, method):
    def body(world):
        options = FullGraphOptions(method=method, messages="int2", max_staleness=4, skip_threshold=0.1)

        def fit(name, *callbacks):
            more = {"learning_rate": 0.01, "seed": 0, "epochs": 6, "callbacks": callbacks}
            task = FullGraphTask(make_part(world, UNDIRECTED), options)
            with Trainer(world, make_model("gcn"), task, **more) as trainer:
                trainer.fit(run_folder=shared_tmp_path / name, resume="auto")
                return copy.deepcopy(trainer.model.state_dict())

        whole = fit("whole")
        with pytest.raises(KilledError):
            fit("killed", Kill())
        return whole, fit("killed")

    for whole, resumed in spmd(body):
        for name, weights in whole.items():
            assert torch.equal(weights, resumed[name])


@pytest.mark.parametrize("method", ["stale", "skip_broadcasts"])
def test_on_another_number_of_ranks_the_next_epoch_is_exact(tmp_path, method):
    options = FullGraphOptions(method=method, keep_first=False)

    def body(world):
        with make_trainer(world, UNDIRECTED, options) as trainer:
            for epoch in range(3):
                trainer.train_epoch(epoch)
            return trainer.state_dict()

    state = Loopback.run(4, body)[0]

    def other(world, options):
        with make_trainer(world, UNDIRECTED, options) as trainer:
            trainer.load_state_dict(copy.deepcopy(state))
            assert trainer.task.local_tables() is None or not trainer.task.local_tables()[0].state()
            return trainer.train_epoch(3)

    found = [Loopback.run(2, lambda world, each=each: other(world, each))[0] for each in (options, FullGraphOptions())]
    assert found[0] == pytest.approx(found[1], rel=1e-5)


class OwnModel(nn.Module):
    """Looks at each source."""

    def __init__(self):
        super().__init__()
        self.linear = make_linear(6, 3, generator=torch.Generator().manual_seed(3))

    def forward(self, blocks, x, dropout=None):
        block, rows = blocks[0].with_sources(x)
        source, destination = block.edge_index
        return self.linear(torch.zeros_like(x).index_add(0, destination, rows[source]))


@pytest.mark.parametrize("method", ["boundary_sampling", "feature_slices"])
def test_layers_that_look_at_each_source_are_refused(method):
    part, options = make_part(Loopback.single(), UNDIRECTED), FullGraphOptions(method=method)
    with pytest.raises(RecipeError, match=f'full_graph.method = "{method}" with model.kind = "gat"'):
        Trainer(Loopback.single(), make_model("gat"), FullGraphTask(part, options))

    def body(world):
        task = FullGraphTask(make_part(world, UNDIRECTED), options, num_layers=1)
        with Trainer(world, OwnModel(), task) as trainer, pytest.raises(RecipeError, match="looks at each source"):
            trainer.train_epoch(0)

    Loopback.run(2, body)


@pytest.mark.parametrize("messages", ["adaptive", "random"])
@pytest.mark.parametrize("method", ["boundary_sampling", "skip_broadcasts", "feature_slices", "auto"])
def test_widths_of_rows_that_do_not_travel_in_every_epoch_are_refused(method, messages):
    with pytest.raises(RecipeError, match=f'full_graph.messages = "{messages}" with full_graph.method = "{method}"'):
        FullGraphOptions(method=method, messages=messages)


@pytest.mark.parametrize("method", ["stale", "skip_broadcasts"])
def test_held_rows_cannot_be_fetched_again(method):
    with pytest.raises(RecipeError, match=f'recompute = true with full_graph.method = "{method}"'):
        FullGraphOptions(method=method, recompute=True)


def test_widths_may_be_assigned_to_held_rows(spmd):
    options = FullGraphOptions(method="stale", messages="adaptive", assign_every_epochs=2, group_size=5)
    for losses, _, _ in spmd(lambda world: trained(world, UNDIRECTED, options)):
        assert np.isfinite(losses).all()
        assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("edges", "kind", "line"),
    [
        (torch.arange(NUM_VERTICES).repeat(2, 1), "gcn", "method: exact, since rows of 7 columns"),
        (torch.ones(NUM_VERTICES, NUM_VERTICES).nonzero().T, "gcn", "method: feature_slices, since rows of 7 columns"),
        (torch.ones(NUM_VERTICES, NUM_VERTICES).nonzero().T, "gat", "method: exact, since layers of gat look"),
    ],
    ids=["no cut", "all cut", "gat"],
)
def test_the_faster_method_is_chosen_and_why_is_said(edges, kind, line):
    split = VertexSplit(UNDIRECTED.train_ids, UNDIRECTED.validation_ids, UNDIRECTED.test_ids)
    graph = assemble_graph(*edges, NUM_VERTICES, features=UNDIRECTED.features, labels=UNDIRECTED.labels, split=split)
    links = described_links(NetworkDescription(nodes=4, rate="1mbit"))

    def body(world):
        options = FullGraphOptions(method="auto", partial_sums=False)
        task = FullGraphTask(make_part(world, graph), options, links=links)
        with Trainer(world, make_model(kind), task) as trainer:
            return trainer.task.opening_lines()[1]

    for found in Loopback.run(4, body):
        assert found.startswith(line)


def test_slices_are_never_chosen_for_types():
    graph = typed_community_graph(24, 3, seed=1)
    shape = ModelOptions(kind="rgcn", hidden=8, num_layers=1)
    model = build_model(shape, in_features=graph.features.shape[1], out_features=3, seed=1, types=graph.types)
    links = described_links(NetworkDescription(nodes=2, rate="1mbit"))
    found = faster_method(links, [[0, 9**9], [9**9, 0]], [0, 1, 2], model)
    assert found == ("exact", "layers of rgcn look at each source")


@pytest.mark.parametrize("method", METHODS)
def test_what_travels_in_training_is_said(method):
    def body(world):
        with make_trainer(world, UNDIRECTED, FullGraphOptions(method=method)) as trainer:
            return trainer.task.opening_lines()

    halo, line = Loopback.run(2, body)[0]
    rows = int(halo.split()[1])
    rows = {"boundary_sampling": rows // 10, "feature_slices": NUM_VERTICES}.get(method, rows)
    assert line.startswith(f"method: {method}; in training ")
    assert abs(int(line.split()[-6]) - rows) <= (method == "boundary_sampling")
