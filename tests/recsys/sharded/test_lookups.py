"""Both collections under any plan against bag after bag, and row after row, in one process."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError
from windrow.comm.gradients import GradientReducer
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.partition.tables.plan import Plan, Replica, Shard
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.tables.options import EmbeddingConfig, TableOptions

KINDS = ["table", "one rank", "row", "column", "grid", "replicated", "mixed", "rows on every rank", "copies, row"]
STEPS = 3
SAMPLES = [5, 0, 3, 7]
SEVERAL = [["tag", "item"], ["user", "unknown"]]
GROUPS = [
    *(pytest.param(kind, SEVERAL, id=f"{kind}-several") for kind in KINDS),
    pytest.param("mixed", [["history"]], id="mixed-a table shared with another group"),
    pytest.param("mixed", [["history", "flag", "user", "item", "tag"]], id="mixed-everything"),
]


def draw_for(small, step, rank, groups=()):
    """Uneven numbers of samples; in the last step only the first rank has ids."""
    draw = small.repeating if groups else small.draw
    return draw(10 * step + rank, SAMPLES[(rank + step) % 4], empty=step == STEPS - 1 and rank > 0)


def loss_of(values: list[torch.Tensor], rank: int) -> torch.Tensor:
    factors = [torch.linspace(-1, 1, one.numel()).view_as(one) * (rank + 1) for one in values]
    return sum((one.tanh() * factor).sum() for one, factor in zip(values, factors, strict=True))


def values_of(collection, result) -> list[torch.Tensor]:
    """All pooled values as one, or the rows of each embedding."""
    if isinstance(collection, EmbeddingBagCollection):
        assert result.keys() == collection.embedding_names
        return [result.values()]
    return [rows.values() for rows in result.values()]


def train(world, small, kind, *, tables, weighted=False, groups=(), index_dedup=False):
    """STEPS steps; returns tables before, values of each step, and tables after. Rows, where tables do not pool."""
    options = TableOptions(optimizer="sgd", learning_rate=0.5)
    plan = kind if isinstance(kind, Plan) else small.make_plan(kind, world.size, tables)
    make = partial(EmbeddingBagCollection, is_weighted=weighted)
    if tables is small.equal_dims:
        make = partial(EmbeddingCollection, index_dedup=index_dedup)
    collection = make(tables, world=world, plan=plan, groups=groups, optimizer=options, seed=3)
    before = small.local(collection)
    reducer = GradientReducer(world, collection.replicated_parameters())
    found = []
    for step in range(STEPS):
        drawn = draw_for(small, step, world.rank, groups)
        known = [[feature for feature in group if feature in drawn] for group in groups]
        reducer.start()
        result = collection(*small.deduplicated(drawn, known, weighted=weighted))
        values = values_of(collection, result)
        if tables is small.equal_dims:
            assert result["history"].lengths().tolist() == [len(bag) for bag in drawn["history"]]
        found.append([one.detach().clone() for one in values])
        loss_of(values, world.rank).backward()
        reducer.finish()
        collection.step()
    return before, found, small.local(collection)


def expected_values(small, weights, drawn, tables, weighted) -> list[torch.Tensor]:
    if tables is not small.equal_dims:
        return [small.reference_pooled(tables, weights, drawn, weighted=weighted)]
    return [weights[t.name][[i for bag in drawn[name] for i in bag]] for t in tables for name in t.feature_names]


def check_against_reference(small, results, *, tables, weighted=False, groups=()):
    weights = {n: t.clone().requires_grad_() for n, t in small.assembled(r[0] for r in results).items()}
    for step in range(STEPS):
        loss = sum(weight.sum() for weight in weights.values()) * 0
        for rank, (_, found, _) in enumerate(results):
            expected = expected_values(small, weights, draw_for(small, step, rank, groups), tables, weighted)
            for mine, wanted in zip(found[step], expected, strict=True):
                torch.testing.assert_close(mine, wanted.detach(), rtol=1e-5, atol=1e-6)
            loss = loss + loss_of(expected, rank)
        loss.backward()
        with torch.no_grad():
            for weight in weights.values():
                weight.sub_(0.5 * weight.grad)
                weight.grad = None
    after = small.assembled(r[2] for r in results)
    for name, weight in weights.items():
        torch.testing.assert_close(after[name], weight.detach(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_updates_equal_those_of_one_process(spmd, small, kind):
    results = spmd(lambda world: train(world, small, kind, tables=small.tables))
    check_against_reference(small, results, tables=small.tables)


@pytest.mark.parametrize(("kind", "groups"), GROUPS)
def test_deduplicated_lists_give_the_same(spmd, small, kind, groups):
    results = spmd(lambda world: train(world, small, kind, tables=small.tables, groups=groups))
    check_against_reference(small, results, tables=small.tables, groups=groups)


@pytest.mark.parametrize("groups", [(), [["history", "tag"]]], ids=["plain", "deduplicated"])
@pytest.mark.parametrize("kind", ["table", "column", "grid", "rows on every rank"])
def test_copies_of_rows_give_the_same(spmd, small, kind, groups):
    options = {"tables": small.own_features, "groups": groups}
    results = spmd(lambda world: train(world, small, f"copies, {kind}", **options))
    check_against_reference(small, results, **options)


@pytest.mark.parametrize("groups", [(), [["history", "tag"]]], ids=["plain", "deduplicated"])
@pytest.mark.parametrize("kind", ["table", "mixed", "copies, mixed"])
def test_weights_of_ids(spmd, small, kind, groups):
    options = {"tables": small.sums, "weighted": True, "groups": groups}
    check_against_reference(small, spmd(lambda world: train(world, small, kind, **options)), **options)


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        *((kind, ()) for kind in KINDS if kind != "one rank"),
        *((kind, [["history"], ["tag", "item"]]) for kind in ("row", "grid", "mixed")),
    ],
)
def test_rows_and_updates_equal_those_of_one_process(spmd, small, kind, groups):
    options = {"tables": small.equal_dims, "groups": groups}
    check_against_reference(small, spmd(lambda world: train(world, small, kind, **options)), **options)


@pytest.mark.parametrize("groups", [(), [["history"], ["tag", "item"]]], ids=["plain", "deduplicated"])
@pytest.mark.parametrize("kind", ["table", "grid", "mixed", "rows on every rank", "copies, row"])
def test_ids_that_are_looked_up_once_give_the_same(spmd, small, kind, groups):
    options = {"tables": small.equal_dims, "groups": groups}
    results = spmd(lambda world: train(world, small, kind, index_dedup=True, **options))
    check_against_reference(small, results, **options)


@pytest.mark.parametrize("kind", ["row", "mixed", "rows on every rank"])
def test_ids_of_a_feature_travel_and_are_looked_up_once(spmd, small, kind):
    """Bytes and rows are those of a batch that has each id once."""

    def traffic(world, drawn, **options):
        world.meter = Meter()
        plan = small.make_plan(kind, world.size, small.equal_dims)
        collection = EmbeddingCollection(small.equal_dims, world=world, plan=plan, **options)
        result = collection(small.jagged(drawn))
        assert [len(rows.values()) for rows in result.values()] == [
            sum(map(len, drawn[feature])) for table in small.equal_dims for feature in table.feature_names
        ]
        loss_of(values_of(collection, result), 0).backward()
        sent = [world.meter.totals(f"embedding rows: {stage}").bytes_sent for stage in ("ids", "vectors", "gradients")]
        return sent, world.meter.found()

    def body(world):
        drawn = {feature: [[1, 0], [], [1] * 20, [0, 1] * 30] for feature in small.features}
        expected = traffic(world, {feature: [[1, 0]] for feature in drawn})
        found = traffic(world, drawn, index_dedup=True)
        # One rank has nothing to save.
        assert found == expected if world.size > 1 else found[0] == expected[0]
        return expected[0]

    sent = spmd(body)
    assert len(sent) == 1 or all(sum(of_rank[stage] for of_rank in sent) > 0 for stage in range(3))


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adagrad", "adam"])
def test_optimizers_learn_the_same_under_every_plan(small, optimizer):
    def run(size, kind):
        # The same minibatch of 4 ranks' samples, cut for `size` ranks.
        def body(world):
            options = TableOptions(optimizer=optimizer, learning_rate=0.1)
            plan = small.make_plan(kind, world.size)
            collection = EmbeddingBagCollection(small.tables, world=world, plan=plan, optimizer=options)
            reducer = GradientReducer(world, collection.replicated_parameters())
            for step in range(STEPS):
                drawn = small.draw(step, 8)
                share = 8 // world.size
                mine = {f: bags[share * world.rank :][:share] for f, bags in drawn.items()}
                reducer.start()
                collection(small.jagged(mine)).values().square().sum().backward()
                reducer.finish()
                collection.step()
            return small.local(collection)

        return small.assembled(Loopback.run(size, body))

    expected = run(1, "table")
    # One accumulator of row-wise Adagrad for each piece of a row: columns learn by themselves.
    for kind in ["table", "row", "replicated", "copies, row"] + ["mixed", "copies, grid"] * (
        optimizer != "rowwise_adagrad"
    ):
        for name, weight in run(2, kind).items():
            torch.testing.assert_close(weight, expected[name], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["table", "mixed"])
def test_the_same_as_torchrec(spmd, small, kind, weighted):
    from torchrec.modules import embedding_configs as configs
    from torchrec.modules.embedding_modules import EmbeddingBagCollection as Theirs

    tables = [
        configs.EmbeddingBagConfig(
            name=t.name,
            num_embeddings=t.num_embeddings,
            embedding_dim=t.embedding_dim,
            feature_names=list(t.feature_names),
            pooling=configs.PoolingType.SUM if weighted else configs.PoolingType[t.pooling.name],
        )
        for t in small.tables
    ]

    def body(world):
        ours = EmbeddingBagCollection(tables, weighted, world=world, plan=small.make_plan(kind, world.size), seed=2)
        return small.local(ours), [ours(small.jagged(small.draw(world.rank, n), weighted=weighted)) for n in (6, 1)]

    # KeyedTensor does not travel between processes as it is: only its parts do.
    def parts(world):
        held, results = body(world)
        return held, [(r.keys(), r.length_per_key(), r.values().detach()) for r in results]

    found = spmd(parts)
    with torch.random.fork_rng(devices=[]):
        theirs = Theirs(tables, weighted)
    with torch.no_grad():
        for name, weight in small.assembled(held for held, _ in found).items():
            theirs.embedding_bags[name].weight.copy_(weight)
    for rank, (_, results) in enumerate(found):
        for number, (keys, lengths, values) in zip((6, 1), results, strict=True):
            expected = theirs(small.jagged(small.draw(rank, number), weighted=weighted))
            assert keys == expected.keys()
            assert lengths == expected.length_per_key()
            torch.testing.assert_close(values, expected.values().detach(), rtol=1e-5, atol=1e-6)


def test_a_batch_in_the_order_of_the_tables_goes_straight_into_the_kernel(small):
    tables = [table for table in small.tables if table.name != "tag"]
    collection = EmbeddingBagCollection(tables)
    assert collection.layout.is_direct
    drawn = small.draw(0, 6)
    ordered = {feature: drawn[feature] for feature in ["user", "item", "history", "flag"]}
    assert torch.equal(collection(small.jagged(ordered)).values(), collection(small.jagged(drawn)).values())


def test_groups_of_other_collections_alone_change_nothing(small):
    """On one process the batch goes straight into the kernel; weights of that group alone are none of ours."""
    tables = [table for table in small.sums if table.name == "tag"]
    drawn = small.draw(0, 6)
    other, own = drawn.pop("history"), {feature: drawn[feature] for feature in ("tag", "item")}
    collection = EmbeddingBagCollection(tables, is_weighted=True, groups=[["history"]])
    assert collection.layout.is_direct
    _, groups = small.deduplicated({"history": other}, [["history"]], weighted=True)
    for sparse in (small.jagged(own), small.jagged(drawn)):
        expected = EmbeddingBagCollection(tables)(sparse).values()
        assert torch.equal(collection(sparse, groups).values(), expected)


def test_what_is_the_same_travels_and_is_looked_up_once(spmd, small):
    """Bytes of ids and vectors, and rows, are those of a batch of the distinct rows alone."""
    repeats, distinct = 12, small.draw(5, 2)
    groups = [small.features]

    def traffic(world, drawn, groups):
        world.meter = Meter()
        collection = EmbeddingBagCollection(
            small.tables, world=world, plan=small.make_plan("mixed", world.size), groups=groups
        )
        collection(*small.deduplicated(drawn, groups)).values().sum().backward()
        sent = {
            stage: world.meter.totals(f"embedding bags: {stage}").bytes_sent
            for stage in ("ids", "vectors", "gradients")
        }
        return sent, world.meter.found()

    def body(world):
        few = traffic(world, distinct, ())
        many = {feature: bags * repeats for feature, bags in distinct.items()}
        assert traffic(world, many, groups) == few
        return few

    found = spmd(body)
    if len(found) > 1:
        assert all(sum(sent[stage] for sent, _ in found) > 0 for stage in ("ids", "vectors", "gradients"))


def test_no_gradients_in_evaluation(spmd, small):
    def body(world):
        collection = EmbeddingBagCollection(small.tables, world=world, plan=small.make_plan("mixed", world.size))
        with torch.no_grad():
            values = collection(small.jagged(small.draw(0, 4))).values()
        assert not values.requires_grad

    spmd(body)


def test_weights_do_not_go_with_mean_pooling(small):
    with pytest.raises(RecipeError, match="table 'tag'"):
        EmbeddingBagCollection(small.tables, is_weighted=True)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), size=st.integers(2, 4))
def test_random_plans(small, seed, size):
    generator = np.random.default_rng(seed)

    def pieces(table):
        rows = sorted({0, table.num_embeddings, *generator.integers(1, table.num_embeddings, 2).tolist()})
        columns = sorted({0, table.embedding_dim, *(4 * generator.integers(0, table.embedding_dim // 4, 1)).tolist()})
        for top, bottom in pairwise(rows):
            for left, right in pairwise(columns):
                yield Shard(table.name, int(generator.integers(size)), (top, bottom), (left, right))

    shards, replicas = [], []
    for table in small.tables:
        for shard in pieces(table):
            # Now and then a stripe of all columns is on every rank.
            if shard.columns == (0, table.embedding_dim) and generator.random() < 0.3:
                replicas.append(Replica(table.name, shard.rows))
            else:
                shards.append(shard)
    plan = Plan(tuple(shards), tuple(replicas))
    features = generator.permutation(small.features).tolist()
    groups = [group for group in (features[:2], features[2:3]) if generator.random() < 0.7]
    results = Loopback.run(size, lambda world: train(world, small, plan, tables=small.tables, groups=groups))
    check_against_reference(small, results, tables=small.tables, groups=groups)


def test_rows_are_those_of_torchrec(small):
    from torchrec.modules.embedding_configs import EmbeddingConfig as TheirConfig
    from torchrec.modules.embedding_modules import EmbeddingCollection as Theirs

    with torch.random.fork_rng(devices=[]):
        theirs = Theirs([
            TheirConfig(
                name=t.name,
                num_embeddings=t.num_embeddings,
                embedding_dim=t.embedding_dim,
                feature_names=list(t.feature_names),
            )
            for t in small.equal_dims
        ])  # fmt: skip
    ours = EmbeddingCollection(theirs.embedding_configs())
    with torch.no_grad():
        for piece, weight in small.local(ours):
            theirs.embeddings[piece.name].weight.copy_(weight)
    batch = small.jagged(small.draw(4, 9))
    expected, found = theirs(batch), ours(batch)
    assert list(found) == list(expected)
    for name, rows in expected.items():
        assert torch.equal(found[name].values(), rows.values())
        assert torch.equal(found[name].lengths(), rows.lengths())
        assert torch.equal(found[name].offsets(), rows.offsets())


def test_rows_have_one_dim():
    with pytest.raises(RecipeError, match=r"got \[4, 8\]"):
        EmbeddingCollection([
            EmbeddingConfig(name="a", num_embeddings=3, embedding_dim=4),
            EmbeddingConfig(name="b", num_embeddings=3, embedding_dim=8),
        ])  # fmt: skip
