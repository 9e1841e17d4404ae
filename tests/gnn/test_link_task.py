"""windrow.gnn.link_task: links are split without a leak, and learnt the same on any world."""

from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import windrow as wr
from windrow import gnn
from windrow.caching.selection import CacheOptions
from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.comm.loopback import Loopback
from windrow.comm.wire import WireOptions
from windrow.comm.world import World
from windrow.gnn.links import LinkObjective, LinkSeeds, _Pool
from windrow.gnn.message_passing import Block, Minibatch
from windrow.gnn.synthetic import community_graph, typed_community_graph
from windrow.partition import PartitionOptions
from windrow.recsys import EmbeddingCollection, EmbeddingConfig, TableOptions

VERTICES, FEATURES = 150, 8


def make_graph() -> gnn.Graph:
    return community_graph(VERTICES, 5, seed=1, average_degree=10, num_features=FEATURES, homophily=0.95)


def edges_of(graph: gnn.Graph) -> set[tuple[int, int]]:
    targets = np.repeat(np.arange(graph.num_vertices), np.diff(graph.indptr.numpy()))
    return set(zip(graph.indices.tolist(), targets.tolist(), strict=True))


def pairs_of(links: Tensor) -> set[tuple[int, int]]:
    first, second = links.tolist()
    return set(zip(first, second, strict=True))


@pytest.mark.parametrize("directed", [False, True])
def test_links_are_split_and_those_to_measure_on_leave_the_graph(directed: bool) -> None:
    graph = make_graph()
    everything = edges_of(graph)
    rest, links = gnn.split_links(graph, validation_fraction=0.1, test_fraction=0.2, directed=directed, seed=3)
    rest.validate()
    splits = [pairs_of(part) for part in (links.train, links.validation, links.test)]
    expected = {pair for pair in everything if pair[0] != pair[1]}
    if not directed:
        expected = {(min(pair), max(pair)) for pair in expected}
    assert set().union(*splits) == expected
    assert sum(map(len, splits)) == len(expected)
    assert [len(split) / len(expected) for split in splits] == pytest.approx([0.7, 0.1, 0.2], abs=0.05)
    hidden = splits[1] | splits[2]
    for source, target in edges_of(rest):
        assert (source, target) not in hidden
        assert directed or (target, source) not in hidden
    assert all(pair in edges_of(rest) or pair[::-1] in edges_of(rest) for pair in splits[0])


def train(world: World, kind: str = "graphsage", **options: Any) -> tuple[list[float], dict[str, dict[str, float]]]:
    nothing = torch.empty(0, dtype=torch.int64)
    unlabelled = replace(make_graph(), labels=None, train_ids=nothing, validation_ids=nothing, test_ids=nothing)
    graph, links = gnn.split_links(unlabelled, validation_fraction=0.1, test_fraction=0.1)
    part = gnn.partition(graph, world, PartitionOptions(method="random"))
    task = gnn.LinkTask(part, links, (-1, -1), evaluation_negatives=50, **options)
    shape = gnn.ModelOptions(kind=kind, hidden=16, num_layers=2)  # type: ignore[arg-type]
    model = gnn.build_model(shape, in_features=FEATURES, out_features=8, seed=1)
    with wr.Trainer(world, model, task, epochs=4, batch_size=128, learning_rate=0.01, seed=2) as trainer:
        return [trainer.train_epoch(epoch) for epoch in range(4)], trainer.evaluate()


def test_links_are_learnt_the_same_on_any_world(spmd: Any) -> None:
    losses, figures = train(Loopback.single())
    assert losses[-1] < 0.95 * losses[0]
    assert figures["test"]["mrr"] > 0.12, "by chance it is 0.09"
    assert figures["test"]["hits@10"] > 0.4
    for topology in ("replicated", "partitioned"):
        pipeline = gnn.PipelineOptions(topology=topology)  # type: ignore[arg-type]
        for found, measured in spmd(lambda world, pipeline=pipeline: train(world, pipeline=pipeline)):
            assert found == pytest.approx(losses, rel=1e-4)
            assert measured["test"]["mrr"] == pytest.approx(figures["test"]["mrr"], rel=0.02)


def unlabelled_links() -> tuple[gnn.Graph, gnn.Links]:
    nothing = torch.empty(0, dtype=torch.int64)
    graph = replace(
        make_graph(), features=None, labels=None, train_ids=nothing, validation_ids=nothing, test_ids=nothing
    )
    return gnn.split_links(graph, validation_fraction=0.1, test_fraction=0.1)


def train_lightgcn(world: World) -> tuple[list[float], dict[str, dict[str, float]], Tensor]:
    graph, links = unlabelled_links()
    part = gnn.partition(graph, world, PartitionOptions(method="random"))
    rows = EmbeddingCollection(
        [EmbeddingConfig(VERTICES, 8, "vertex")],
        world=world,
        optimizer=TableOptions(optimizer="sgd", learning_rate=LIGHTGCN_RATE),
        row_ids=part.original_ids,
        plan=part.plan_of_rows("vertex", 8),
        seed=3,
    )
    first = rows.whole_table("vertex").clone()
    task = gnn.FullGraphLinkTask(part, links, embedding=rows, evaluation_negatives=50)
    with wr.Trainer(world, gnn.LightGCN(2), task, epochs=2, batch_size=200, seed=2) as trainer:
        losses = [trainer.train_epoch(epoch) for epoch in range(2)]
        vectors = trainer.predict()
        return losses, trainer.evaluate(), torch.stack([first, rows.whole_table("vertex"), vectors])


LIGHTGCN_RATE = 3.0


def test_links_are_learnt_from_the_whole_graph_as_a_plain_loop_does(spmd: Any) -> None:
    """LightGCN with a dense matrix, from the same pairs and negatives."""
    graph, links = unlabelled_links()
    adjacency = torch.zeros(VERTICES, VERTICES)
    for source, target in edges_of(graph):
        adjacency[target, source] += 1
    degrees = adjacency.sum(1).clamp(min=1)
    smoothing = adjacency / (degrees[:, None] * degrees).sqrt()
    single = Loopback.single()
    found_losses, figures, (first, last, vectors) = train_lightgcn(single)
    table = first.clone().requires_grad_()
    objective = objective_of(gnn.partition(graph, single), links)
    steps, losses = objective.start(batch_size=200, seed=2), list[float]()

    def smoothed() -> Tensor:
        return (table + smoothing @ table + smoothing @ smoothing @ table) / 3

    for epoch in range(2):
        total = 0.0
        for step in range(steps):
            seeds = objective.seeds(epoch, step)
            original = objective.graph.original_ids[seeds.seeds]
            rows = smoothed()[original]
            scores = (rows[seeds.sources].unsqueeze(1) * rows[seeds.candidates]).sum(2)
            loss = nn.functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64), reduction="sum")
            (gradient,) = torch.autograd.grad(loss / len(scores), table)
            table.data -= LIGHTGCN_RATE * gradient
            total += loss.item()
        losses.append(total / links.train.shape[1])
    assert losses[1] < losses[0]
    torch.testing.assert_close(torch.tensor(found_losses), torch.tensor(losses), rtol=1e-5, atol=0)
    torch.testing.assert_close(last, table.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(vectors, smoothed().detach(), rtol=1e-4, atol=1e-5)
    for other_losses, other_figures, (_, other_table, _) in spmd(train_lightgcn):
        torch.testing.assert_close(torch.tensor(other_losses), torch.tensor(losses), rtol=1e-5, atol=0)
        torch.testing.assert_close(other_table, last, rtol=1e-4, atol=1e-5)
        assert other_figures["test"]["mrr"] == pytest.approx(figures["test"]["mrr"], rel=0.02)


def test_full_graph_links_of_a_gnn_with_negatives_of_the_minibatch() -> None:
    graph, links = gnn.split_links(make_graph(), validation_fraction=0.1, test_fraction=0.1)

    def body(world: World) -> tuple[list[float], dict[str, dict[str, float]]]:
        part = gnn.partition(graph, world, PartitionOptions(method="random"))
        task = gnn.FullGraphLinkTask(part, links, negatives="in-batch")
        model = gnn.build_model(gnn.ModelOptions(hidden=16, num_layers=2), in_features=FEATURES, out_features=8, seed=1)
        # As many edges in a step as ranks have, and fewer.
        with wr.Trainer(world, model, task, epochs=4, batch_size=30, learning_rate=0.01, seed=2) as trainer:
            return [trainer.train_epoch(epoch) for epoch in range(4)], trainer.evaluate()

    for losses, figures in Loopback.run(3, body):
        assert losses[-1] < losses[0]
        assert figures["test"]["mrr"] > 0.05


@pytest.mark.parametrize("keep_joined", [False, True])
@pytest.mark.parametrize(("negatives", "number"), [("in-batch", 1), ("shared", 40), ("shared", VERTICES)])
def test_shared_negatives_are_not_joined_and_are_corrected_for_how_often_they_are_drawn(
    negatives: str, number: int, keep_joined: bool
) -> None:
    graph, links = gnn.split_links(make_graph(), validation_fraction=0.1, test_fraction=0.1)
    both = pairs_of(links.train) | {pair[::-1] for pair in pairs_of(links.train)}
    both |= {(vertex, vertex) for vertex in range(VERTICES)}

    def body(world: World) -> int:
        part = gnn.partition(graph, world, PartitionOptions(method="random"))
        own = part.original_ids[slice(*part.own_range)]
        of_rank = links.train[1, torch.isin(links.train[0], own)]
        shares = torch.bincount(of_rank, minlength=VERTICES) / len(of_rank)
        objective = objective_of(part, links, negatives=negatives, num_negatives=number, keep_joined=keep_joined)
        steps, left_out = objective.start(batch_size=150, seed=2), 0
        for step in range(steps):
            seeds = objective.seeds(0, step)
            original = part.original_ids[seeds.seeds]
            assert seeds.shared is not None
            u, v = original[seeds.sources], original[seeds.candidates[:, 0]]
            others = original[seeds.shared.places]
            if negatives == "in-batch":
                torch.testing.assert_close(others, v)
            else:
                assert len(others) == number
            wanted = {
                (i, j)
                for i, ends in enumerate(zip(u.tolist(), v.tolist(), strict=True))
                for j, other in enumerate(others.tolist())
                if (other in ends if keep_joined else (ends[0], other) in both)
            }
            assert pairs_of(seeds.shared.left_out) == wanted
            left_out += len(wanted) - len(u) * (not keep_joined)
            vectors = torch.randn(len(original), 4, generator=torch.Generator().manual_seed(step))
            own = (vectors[seeds.sources] * vectors[seeds.candidates[:, 0]]).sum(1, keepdim=True)
            scores = vectors[seeds.sources] @ vectors[seeds.shared.places].T
            if negatives == "in-batch":
                own, scores = own - shares[v].log()[:, None], scores - shares[others].log()
            else:
                # Each stands for as many as there are for one that is drawn: a plain softmax where all are.
                scores = scores + np.log(VERTICES / number)
            for i, j in wanted:
                scores[i, j] = -torch.inf
            expected = nn.functional.cross_entropy(
                torch.cat([own, scores], 1), torch.zeros(len(u), dtype=torch.int64), reduction="sum"
            )
            torch.testing.assert_close(objective.loss(nn.Identity(), vectors, seeds), expected)
        return left_out

    assert min(Loopback.run(2, body)) > 0


def objective_of(part: Any, links: gnn.Links, **options: Any) -> LinkObjective:
    given: dict[str, Any] = {"negatives": "uniform", "num_negatives": 4, "hardest_negatives": None, "loss": None}
    return LinkObjective(part, links, **given | {"k": 1, "evaluation_negatives": 1} | options)


@pytest.mark.parametrize("negatives", ["uniform", "degree", "shared", "in-batch"])
def test_negatives_are_there_before_their_link(negatives: str) -> None:
    """Vertices that come later than a link, or are of no training link at all, are none of its negatives."""
    graph, links = gnn.split_links(make_graph(), test_fraction=0.3)
    train = links.train
    times = torch.randint(0, 40, (train.shape[1],), generator=torch.Generator().manual_seed(1)) * 10 + 1_000_000
    links = replace(links, times=times)
    first = {}
    for u, v, time in zip(*train.tolist(), times.tolist(), strict=True):
        for vertex in (u, v):
            first[vertex] = min(first.get(vertex, time), time)
    when = {(u, v): time for u, v, time in zip(*train.tolist(), times.tolist(), strict=True)}

    def body(world: World) -> dict[tuple[int, int], list[int]]:
        part = gnn.partition(graph, world, PartitionOptions(method="random"))
        scores = list[Tensor]()

        def keep(found: Tensor, labels: Tensor) -> Tensor:
            scores.append(found)
            return nn.functional.cross_entropy(found, labels, reduction="none")

        objective = objective_of(part, links, negatives=negatives, num_negatives=6, loss=keep)
        drawn, later = dict[tuple[int, int], list[int]](), 0
        for epoch in range(3):
            for step in range(objective.start(batch_size=100, seed=3)):
                seeds = objective.seeds(epoch, step)
                original = part.original_ids[seeds.seeds]
                u = original[seeds.sources].tolist()
                if seeds.shared is not None:
                    ends, of_all = original[seeds.candidates[:, 0]].tolist(), original[seeds.shared.places].tolist()
                    since = [first.get(vertex, np.inf) for vertex in of_all]
                    pairs = {
                        (i, j)
                        for i, edge in enumerate(zip(u, ends, strict=True))
                        for j in range(len(since))
                        if since[j] > when[edge]
                    }
                    objective.loss(nn.Identity(), torch.ones(len(original), 2), seeds)
                    left_out = (scores[-1][:, 1:] == -torch.inf).nonzero().T
                    assert pairs_of(left_out) == pairs | pairs_of(seeds.shared.left_out)
                    later += len(pairs)
                    if negatives == "shared":
                        drawn[epoch, step] = of_all
                    continue
                v, *others = original[seeds.candidates].T.tolist()
                for source, target, *of_pair in zip(u, v, *others, strict=True):
                    assert all(first[other] <= when[source, target] for other in of_pair)
                    drawn[epoch, source * VERTICES + target] = of_pair
        assert later > 0 or negatives not in ("shared", "in-batch")
        return drawn

    one, two = Loopback.run(1, body), Loopback.run(2, body)
    assert {key: of_pair for part in two for key, of_pair in part.items()} == one[0]
    part = gnn.partition(graph, Loopback.single())
    assert objective_of(part, links).fingerprint != objective_of(part, replace(links, times=None)).fingerprint
    with pytest.raises(DataError, match=r"times are \[3\], and there are .*: give one finite number for each"):
        objective_of(part, replace(links, times=times[:3]))
    with pytest.raises(DataError, match=r"times are .*: give one finite number"):
        objective_of(part, replace(links, times=times.double().log().where(times > times.min(), torch.nan)))


def test_pools_say_how_often_they_are_drawn_from() -> None:
    draw = np.random.default_rng(1)
    ids, since, times = torch.from_numpy(draw.integers(0, 5, 40)), draw.integers(0, 9, 40), draw.integers(8, 12, 5000)
    since[:5] = 0
    for pool in (_Pool(ids, since), _Pool(ids, None)):
        drawn = pool.draw(np.arange(5000), times, 20, key=3)
        counted = torch.bincount(drawn.flatten(), minlength=5).numpy()
        np.testing.assert_allclose(counted, pool.expected(times, 20, 5), rtol=0.05)
    times = draw.integers(0, 9, 5000)
    pool = _Pool(ids, since)
    counted = torch.bincount(pool.draw(np.arange(5000), times, 20, key=3).flatten(), minlength=5).numpy()
    np.testing.assert_allclose(counted, pool.expected(times, 20, 5), rtol=0.05)


@pytest.mark.parametrize("negatives", ["uniform", "shared", "in-batch"])
def test_the_hardest_negatives_count(negatives: str) -> None:
    graph, links = unlabelled_links()
    part = gnn.partition(graph, Loopback.single())
    options = {"negatives": negatives, "num_negatives": 9}
    seen = list[Tensor]()

    def keep(scores: Tensor, labels: Tensor) -> Tensor:
        seen.append(scores)
        return nn.functional.cross_entropy(scores, labels, reduction="none")

    everything, hardest = (
        objective_of(part, links, hardest_negatives=number, loss=keep, **options) for number in (None, 3)
    )
    for objective in (everything, hardest):
        objective.start(batch_size=50, seed=2)
        seeds = objective.seeds(0, 0)
        vectors = torch.randn(len(seeds.seeds), 4, generator=torch.Generator().manual_seed(1))
        objective.loss(nn.Identity(), vectors, seeds)
    scores, kept = seen
    torch.testing.assert_close(kept[:, :1], scores[:, :1])
    torch.testing.assert_close(kept[:, 1:], scores[:, 1:].sort(descending=True)[0][:, :3])


def test_losses_of_links_have_weights() -> None:
    graph, links = unlabelled_links()
    part = gnn.partition(graph, Loopback.single())
    weights = torch.rand(links.train.shape[1], generator=torch.Generator().manual_seed(1))
    weighted = replace(links, weights=weights.double())
    single = nn.CrossEntropyLoss(reduction="none")
    seen = list[Tensor]()

    def keep(scores: Tensor, labels: Tensor) -> Tensor:
        seen.append(single(scores, labels))
        return seen[-1]

    objective = objective_of(part, weighted, negatives="in-batch", loss=keep)
    objective.start(batch_size=50, seed=2)
    seeds = objective.seeds(0, 0)
    vectors = torch.randn(len(seeds.seeds), 4, generator=torch.Generator().manual_seed(1))
    found = objective.loss(nn.Identity(), vectors, seeds)
    of_pair = dict(zip(map(tuple, links.train.T.tolist()), weights.tolist(), strict=True))
    original = part.original_ids[seeds.seeds]
    pairs = zip(original[seeds.sources].tolist(), original[seeds.candidates[:, 0]].tolist(), strict=True)
    (losses,) = seen
    torch.testing.assert_close(found, (losses * torch.tensor([of_pair[pair] for pair in pairs])).sum())
    assert objective_of(part, links).fingerprint != objective.fingerprint
    with pytest.raises(DataError, match=r"weights are \[2\], and there are"):
        objective_of(part, replace(links, weights=weights[:2]))
    # A loss that gives one number for all cannot be weighted.
    of_mean = objective_of(part, weighted, negatives="in-batch", loss=nn.functional.cross_entropy)
    with pytest.raises(RecipeError, match="return one value for each row"):
        of_mean.loss(nn.Identity(), vectors, seeds)


def test_scores_that_are_lost_and_negatives_of_other_ranks_are_refused() -> None:
    graph, links = gnn.split_links(make_graph())
    single = Loopback.single()
    part = gnn.partition(graph, single)
    objective = objective_of(part, links)
    objective.start(batch_size=50, seed=2)
    lost = torch.full((graph.num_vertices, 4), torch.nan)

    def started(**options: Any) -> gnn.LinkTask:
        task = gnn.LinkTask(part, links, (2, 2), **options)
        wr.Trainer(single, gnn.LightGCN(2), task).close()
        return task

    with pytest.raises(DataError, match="scores of test links are NaN or infinite: the training diverged"):
        objective.measure(single, nn.Identity(), lost, ["test"])
    with pytest.raises(StoreError, match='written by 2 ranks, and with negatives = "in-batch"'):
        started(negatives="in-batch").check_world_size(2)
    started().check_world_size(2)


def test_lightgcn_learns_from_sampled_neighbours_too() -> None:
    graph, links = unlabelled_links()
    single = Loopback.single()
    part = gnn.partition(graph, single)
    rows = EmbeddingCollection(
        [EmbeddingConfig(VERTICES, 8, "vertex")],
        world=single,
        optimizer=TableOptions(optimizer="sgd", learning_rate=LIGHTGCN_RATE),
        row_ids=part.original_ids,
        seed=3,
    )
    task = gnn.LinkTask(part, links, (-1, -1), embedding=rows)
    with wr.Trainer(single, gnn.LightGCN(2), task, epochs=3, batch_size=200, seed=2) as trainer:
        losses = [trainer.train_epoch(epoch) for epoch in range(3)]
        assert losses[2] < losses[0]
        assert 0 < trainer.evaluate()["test"]["mrr"] < 1
        # With all neighbours the vectors are those of the whole graph.
        whole = gnn.LightGCN(2)([Block.whole(graph.indptr, graph.indices)] * 2, rows.whole_table("vertex"))
        torch.testing.assert_close(trainer.predict(), whole, rtol=1e-4, atol=1e-5)


def test_rows_of_full_graph_links_travel_in_at_least_16_bits() -> None:
    graph, links = gnn.split_links(make_graph())

    def body(world: World) -> None:
        part = gnn.partition(graph, world, PartitionOptions(method="random"))
        model = gnn.build_model(gnn.ModelOptions(hidden=8, num_layers=2), in_features=FEATURES, out_features=4, seed=1)
        for form in ("bf16", "int8"):
            wire = WireOptions(vectors=form, gradients=form)  # type: ignore[arg-type]
            task = gnn.FullGraphLinkTask(part, links)
            if form == "int8":
                with pytest.raises(
                    RecipeError, match=r'wire\.vectors = "int8" with links that are learnt from the whole'
                ):
                    wr.Trainer(world, model, task, wire=wire)
                return
            with wr.Trainer(world, model, task, wire=wire, batch_size=100, epochs=1) as trainer:
                trainer.train_epoch(0)
                assert world.meter is not None
                moved = world.meter.totals("links: rows")
                assert moved.bytes_received == 2 * 4 * moved.rows_received > 0
                assert task.traffic().rows_received > moved.rows_received

    Loopback.run(2, body)


@pytest.mark.parametrize("options", [{"method": "stale"}, {"messages": "int8"}], ids=str)
def test_full_graph_links_are_exact(options: dict[str, Any]) -> None:
    graph, links = gnn.split_links(make_graph())
    part = gnn.partition(graph, Loopback.single())
    (name,) = options
    with pytest.raises(RecipeError, match=rf"full_graph\.{name} = .* links are learnt in several steps an epoch"):
        gnn.FullGraphLinkTask(part, links, gnn.FullGraphOptions(**options))


TYPED = typed_community_graph(200, 4, seed=1, signal=1.0)
WRITES = ("author", "writes", "paper")


@pytest.mark.parametrize("edge_type", [WRITES, ("paper", "rev_writes", "author"), ("paper", "cites", "paper")])
@pytest.mark.parametrize("directed", [False, True])
def test_links_of_a_type(edge_type: tuple[str, str, str], directed: bool) -> None:
    types = TYPED.types
    assert types is not None
    rest, links = gnn.split_links(
        TYPED, validation_fraction=0.1, test_fraction=0.2, directed=directed, edge_type=edge_type
    )
    rest.validate()
    of_type = TYPED.edge_type == types.edges.index(edge_type)
    targets = torch.arange(TYPED.num_vertices).repeat_interleave(TYPED.indptr.diff())
    expected = pairs_of(torch.stack([TYPED.indices[of_type], targets[of_type]]))
    if edge_type[0] == edge_type[2] and not directed:
        expected = {(min(pair), max(pair)) for pair in expected}
    splits = [pairs_of(part) for part in (links.train, links.validation, links.test)]
    assert set().union(*splits) == expected
    assert [len(split) / len(expected) for split in splits] == pytest.approx([0.7, 0.1, 0.2], abs=0.05)
    hidden = splits[1] | splits[2]
    if not directed:
        hidden |= {pair[::-1] for pair in hidden}
    assert edges_of(rest) == edges_of(TYPED) - hidden


def train_typed(world: World, negatives: str = "uniform") -> tuple[list[float], dict[str, dict[str, float]]]:
    graph, links = gnn.split_links(TYPED, validation_fraction=0.1, test_fraction=0.1, edge_type=WRITES)
    part = gnn.partition(graph, world, PartitionOptions(method="random"))
    task = gnn.LinkTask(part, links, (-1, -1), evaluation_negatives=50, negatives=negatives)  # type: ignore[arg-type]
    shape = gnn.ModelOptions(kind="rgcn", hidden=16, num_layers=2)
    model = gnn.build_model(shape, in_features=16, out_features=8, seed=1, types=TYPED.types)
    with wr.Trainer(world, model, task, epochs=8, batch_size=64, learning_rate=0.02, seed=2) as trainer:
        seeds = cast("LinkSeeds", task.seeds(0, 0))
        negative = part.original_ids[seeds.seeds[seeds.candidates if seeds.shared is None else seeds.shared.places]]
        assert 100 <= int(negative.min()) <= int(negative.max()) < 300, "papers"
        return [trainer.train_epoch(epoch) for epoch in range(8)], trainer.evaluate()


@pytest.fixture(scope="module")
def typed_alone() -> tuple[list[float], dict[str, dict[str, float]]]:
    return train_typed(Loopback.single())


def test_links_of_a_type_are_learnt_the_same_on_any_world(spmd: Any, typed_alone: Any) -> None:
    losses, figures = typed_alone
    assert losses[-1] < 0.9 * losses[0]
    assert figures["test"]["mrr"] > 0.12, "by chance it is 0.09"
    for found, measured in spmd(train_typed):
        assert found == pytest.approx(losses, rel=1e-4)
        assert measured["test"]["mrr"] == pytest.approx(figures["test"]["mrr"], rel=0.02)


@pytest.mark.parametrize("negatives", ["degree", "shared"])
def test_other_negatives_of_a_type_train_too(negatives: str) -> None:
    losses, _ = Loopback.run(2, partial(train_typed, negatives=negatives))[0]
    assert losses[-1] < losses[0]


def test_links_have_a_type() -> None:
    with pytest.raises(RecipeError, match=r"edge_type = None: choose the type of links among .*'author', 'writes'"):
        gnn.split_links(TYPED)
    with pytest.raises(RecipeError, match=r"edge_type = .*: choose the type of links among those of the graph: none"):
        gnn.split_links(make_graph(), edge_type=WRITES)
    part = gnn.partition(TYPED, Loopback.single())
    pairs = torch.tensor([[0, 1], [0, 100]])
    with pytest.raises(DataError, match="links end in vertices of the types author, paper: give those of one type"):
        gnn.LinkTask(part, gnn.Links(train=pairs, validation=pairs, test=pairs))


@pytest.mark.parametrize("negatives", ["degree", "shared", "in-batch"])
def test_other_negatives_train_too(negatives: str) -> None:
    for losses, figures in Loopback.run(2, lambda world: train(world, negatives=negatives)):
        assert losses[-1] < losses[0]
        assert 0 < figures["validation"]["mrr"] <= figures["validation"]["hits@10"] <= 1


@pytest.mark.parametrize("negatives", ["uniform", "degree", "shared", "in-batch"])
def test_the_cache_is_chosen_by_what_minibatches_of_links_need(negatives: Any) -> None:
    graph, links = gnn.split_links(community_graph(1500, 5, seed=1, average_degree=6, num_features=FEATURES))
    shape = gnn.ModelOptions(hidden=4, num_layers=1)

    def body(world: World) -> tuple[int, float, str]:
        part = gnn.partition(graph, world, PartitionOptions(method="random"))
        cache = CacheOptions(alpha=0.3, shared_memory=False)
        task = gnn.LinkTask(part, links, (3,), negatives=negatives, num_negatives=2, cache=cache)
        model = gnn.build_model(shape, in_features=FEATURES, out_features=4, seed=1)
        with wr.Trainer(world, model, task, batch_size=60) as trainer:
            trainer.train_epoch(0)
            (line,) = task.opening_lines()
            assert task.placement()["ranks"][0]["cached_rows"] == 225
            return task.traffic().rows_received, sum(task._expected_rows), line

    found = Loopback.run(2, body)
    received, expected = sum(rows for rows, _, _ in found), found[0][1]
    # An end of a link is often found as a neighbour of the other one too, which the analysis does not know.
    assert received == pytest.approx(expected, rel=0.08)
    assert f"will ask for about {expected:,.0f} more" in found[0][2]


def test_no_message_goes_along_an_edge_that_is_predicted() -> None:
    seen: list[tuple[set[tuple[int, int]], Any]] = []

    class Spy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(FEATURES))

        def forward(self, blocks: list[Block], x: Tensor, dropout: Any = None) -> Tensor:
            return x[: blocks[-1].num_dst] * self.weight

    graph, links = gnn.split_links(make_graph())
    single = Loopback.single()
    task = gnn.LinkTask(gnn.partition(graph, single), links, (-1, -1))
    with wr.Trainer(single, Spy(), task, batch_size=100) as trainer, task.minibatches(0, range(2)) as minibatches:
        assert trainer.steps_per_epoch > 2
        for loaded in minibatches:
            assert loaded.task.exclude is not None
            wanted = pairs_of(loaded.task.exclude)
            seen += [(wanted, pairs_of(loaded.input_ids[block.edge_index])) for block in loaded.minibatch.blocks]
    original = task.graph.original_ids
    assert all(not wanted & messages for wanted, messages in seen)
    assert any((v, u) in wanted for wanted, _ in seen for u, v in wanted)
    assert pairs_of(original[loaded.task.exclude]) <= {
        pair for link in pairs_of(links.train) for pair in (link, link[::-1])
    }


def test_blocks_without_edges_keep_the_others_in_order() -> None:
    block = Block(num_src=4, num_dst=2, indptr=torch.tensor([0, 3, 5]), indices=torch.tensor([1, 2, 3, 0, 3]))
    ids = torch.tensor([10, 11, 12, 13])
    minibatch = Minibatch(seeds=ids[:2], input_ids=ids, blocks=[block])
    (less,) = minibatch.without(torch.tensor([[12, 13, 99], [10, 11, 10]])).blocks
    assert (less.indptr.tolist(), less.indices.tolist()) == ([0, 2, 3], [1, 3, 0])
    assert minibatch.without(torch.empty(2, 0, dtype=torch.int64)) is minibatch


def test_a_score_of_ones_own_is_used() -> None:
    class Distance(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(FEATURES))

        def forward(self, blocks: list[Block], x: Tensor, dropout: Any = None) -> Tensor:
            return x[: blocks[-1].num_dst] * self.weight

        def score(self, source: Tensor, other: Tensor) -> Tensor:
            return -((source - other) ** 2).sum(-1)

    graph, links = gnn.split_links(make_graph())
    single = Loopback.single()
    part = gnn.partition(graph, single)
    for negatives in ("uniform", "shared", "in-batch"):
        task = gnn.LinkTask(part, links, (3,), negatives=negatives)  # type: ignore[arg-type]
        with wr.Trainer(single, Distance(), task, batch_size=64, learning_rate=0.1) as trainer:
            first, second = (trainer.train_epoch(epoch) for epoch in range(2))
            assert second < first


def test_a_link_is_not_ranked_against_itself() -> None:
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, blocks: list[Block], x: Tensor) -> Tensor:
            return x[: blocks[-1].num_dst] * self.weight

    places = torch.arange(40)
    known = {"paper": gnn.VertexRows(40, torch.eye(2)[places % 2]), "venue": gnn.VertexRows(2, torch.eye(2))}
    graph = gnn.assemble_typed_graph(known, {("paper", "in", "venue"): (places, places % 2)})
    rest, links = gnn.split_links(graph, test_fraction=0.5, edge_type=("paper", "in", "venue"))
    single = Loopback.single()
    task = gnn.LinkTask(gnn.partition(rest, single), links, (3,), k=1, evaluation_negatives=9)
    with wr.Trainer(single, Features(), task) as trainer:
        assert trainer.evaluate()["test"] == {"mrr": 1.0, "hits@1": 1.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"negatives": "all"}, "negatives = 'all'"),
        ({"num_negatives": 0}, "num_negatives = 0"),
        ({"k": 0}, "k = 0"),
        ({"evaluation": gnn.EvaluationOptions(metric="accuracy")}, "evaluation.metric = 'accuracy' is of labels"),
        ({"hardest_negatives": 5}, "hardest_negatives = 5: must be at least 1, and at most num_negatives = 4"),
        ({"hardest_negatives": 0, "negatives": "in-batch"}, "hardest_negatives = 0"),
        ({"keep_joined": True}, 'keep_joined with negatives = "uniform": these are drawn whatever u is joined to'),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        train(Loopback.single(), **options)


def test_links_of_another_graph_and_fractions_that_leave_nothing_are_refused() -> None:
    graph, links = gnn.split_links(make_graph())
    part = gnn.partition(graph, Loopback.single())
    far = gnn.Links(train=links.train + VERTICES, validation=links.validation, test=links.test)
    with pytest.raises(DataError, match=r"train links name vertices .*, but there are 0 to 149"):
        gnn.LinkTask(part, far)
    for wrong in (links.train.T, links.train.float()):
        with pytest.raises(DataError, match=r"train links are torch.* \[.*\]: give whole numbers \[2, n\]"):
            gnn.LinkTask(part, replace(links, train=wrong))
    none = gnn.Links(train=links.train[:, :0], validation=links.validation, test=links.test)
    with pytest.raises(DataError, match="no links to train on"):
        gnn.LinkTask(part, none)
    with pytest.raises(RecipeError, match="leave a share to train on"):
        gnn.split_links(graph, validation_fraction=0.5, test_fraction=0.5)
