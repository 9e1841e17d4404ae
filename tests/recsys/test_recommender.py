from dataclasses import replace

import pytest
import torch
from torch import nn

from windrow.comm.errors import DataError, PlanError, RecipeError
from windrow.comm.gradients import GradientReducer
from windrow.comm.loopback import Loopback
from windrow.partition.tables.planners import plan_with_planner
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor
from windrow.recsys.batches.jagged import Jagged, pack_windows
from windrow.recsys.models.build import build_model
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.recommender import Recommender
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.sharded.tables_of_ranks import table_specs
from windrow.recsys.tables.options import EmbeddingBagConfig, EmbeddingConfig, TableOptions

DIM = 8
OPTIONS = TableOptions(dim=DIM, optimizer="sgd", learning_rate=0.5)
BAGS = [
    EmbeddingBagConfig(num_embeddings=9, embedding_dim=DIM, name="item", feature_names=["item"]),
    EmbeddingBagConfig(num_embeddings=5, embedding_dim=DIM, name="city", feature_names=["city"]),
]
SEQUENCES = [EmbeddingConfig(num_embeddings=9, embedding_dim=DIM, name="seen", feature_names=["history"])]


def make_recommender(world, groups=(), **options):
    plan = plan_with_planner("row_wise", table_specs(BAGS, OPTIONS), world.size, replicate_below_bytes=170)
    bags = EmbeddingBagCollection(BAGS, world=world, plan=plan, groups=groups, optimizer=OPTIONS, seed=2)
    sequences = EmbeddingCollection(SEQUENCES, world=world, groups=groups, optimizer=OPTIONS, seed=2)
    given = options or {"sequence_query": "item"}
    model = build_model(
        ModelOptions(kind="dlrm", bottom=(8,), top=(8,), sequences=("history",), **given),
        num_dense=2,
        pooled_dims={"item": DIM, "city": DIM},
        sequence_dims={"history": DIM},
        seed=2,
    )
    return Recommender(bags, sequences, model)


def batch_of(jagged, labels, **others):
    rows = torch.arange(len(labels))
    dense = torch.linspace(0, 1, 2 * len(labels)).view(len(labels), 2)
    return Batch(dense, jagged, labels, rows, **others)


@pytest.fixture
def one_batch(jagged_of):
    """Six samples, all of them on the last rank."""

    def make(world):
        lists = {
            "item": [[0], [1], [2], [3], [8], [8]],
            "city": [[4], [3], [2], [1], [0], [0]],
            "history": [[], [5], [6, 7], [], [], []],
        }
        count = 6 if world.rank == world.size - 1 else 0
        features = {name: rows[:count] for name, rows in lists.items()}
        return batch_of(jagged_of(features), torch.tensor([1.0, 0, 1, 0, 0, 1])[:count])

    return make


def reduced_parameters(recommender):
    replicated = [part for collection in recommender.collections() for part in collection.replicated_parameters()]
    return [*replicated, *recommender.model.parameters()]


def step(world, one_batch, groups=(), **options):
    """Logits before and after one update of everything."""
    recommender = make_recommender(world, groups, **options)
    reducer = GradientReducer(world, reduced_parameters(recommender))
    optimizer = torch.optim.SGD(recommender.model.parameters(), lr=0.5)
    batch = one_batch(world)
    reducer.start()
    before = recommender(batch)
    recommender.model.loss_sum(before, batch).backward()
    reducer.finish()
    optimizer.step()
    for collection in recommender.collections():
        collection.step()
    with torch.no_grad():
        after = recommender(batch)
    return before.detach(), after


def test_samples_on_one_rank_only_give_the_same_answer(spmd, one_batch):
    expected = step(Loopback.single(), one_batch)
    assert not torch.allclose(*expected)
    *_, last = spmd(lambda world: step(world, one_batch))
    for ours, theirs in zip(last, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_pooled_and_unpooled_features_have_the_same_groups():
    world = Loopback.single()
    bags = EmbeddingBagCollection(BAGS, world=world, groups=[["item"]], optimizer=OPTIONS)
    sequences = EmbeddingCollection(SEQUENCES, world=world, groups=[["history"]], optimizer=OPTIONS)
    model = make_recommender(world).model
    with pytest.raises(RecipeError, match=r"item.*, unpooled ones for.*history.*give both the same"):
        Recommender(bags, sequences, model)


def test_windows_are_for_unpooled_features_alone(one_batch):
    recommender = make_recommender(Loopback.single())
    batch = one_batch(Loopback.single())
    windows = pack_windows(Jagged(torch.zeros(0, dtype=torch.int64), torch.tensor([0, 0])))
    with pytest.raises(DataError, match=r"'item' is packed into windows.*of these there are history"):
        recommender(replace(batch, windows={"item": windows}))


def test_an_inverse_without_its_rows_is_refused_before_lists_are_given_to_samples(one_batch, jagged_of):
    recommender = make_recommender(Loopback.single())
    batch = one_batch(Loopback.single())
    group = InverseKeyedJaggedTensor(jagged_of({"history": [[3]]}), torch.tensor([0, 0, 0, 1, 0, 0]))
    with pytest.raises(DataError, match="history: inverse holds 1, but there are rows 0 to 0"):
        recommender(replace(batch, deduplicated=(group,)))


def test_tables_that_every_rank_holds_are_summed_with_the_dense_model():
    def count(world):
        recommender = make_recommender(world)
        tables = [table.members[0].name for table in recommender.local_tables() if table.replicated]
        extra = len(reduced_parameters(recommender)) - len(list(recommender.model.parameters()))
        return tables, extra

    assert Loopback.run(2, count) == [(["city"], 1)] * 2


GROUPS = (("city", "history"),)


@pytest.fixture
def repeating_batch(jagged_of):
    """Seven samples a rank, some of which share city and history; the second rank has none."""

    def make(world):
        choice = torch.tensor([0, 0, 1, 0, 2, 2, 2])[: 0 if world.rank == 1 else 7]
        lists = {"city": [[3], [4], [3]], "history": [[1, 8, 8], [], [1]]}
        rows = jagged_of({name: given if len(choice) else [] for name, given in lists.items()})
        items = torch.arange(len(choice)) + world.rank % 3
        sparse = jagged_of({"item": items[:, None].tolist()})
        return batch_of(sparse, (items % 2).float(), deduplicated=(InverseKeyedJaggedTensor(rows, choice),))

    return make


@pytest.mark.parametrize(
    "options",
    [
        {"sequence_query": "item"},
        {"sequence_pooling": "self", "sequence_heads": 2},
        {"sequence_query": "item", "feature_mlp": (4,)},
    ],
    ids=["target", "self", "feature MLPs"],
)
def test_what_samples_share_gives_the_same_answer_once(spmd, options, repeating_batch):
    """Logits and everything that was learnt: with tables made for the group, and with lists given to each sample."""

    def both(world):
        return (step(world, repeating_batch, GROUPS, **options), step(world, repeating_batch, (), **options))

    for shared, plain in spmd(both):
        for ours, theirs in zip(shared, plain, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


class TakesTheRows(nn.Module):
    """What was looked up for the histories, list after list."""

    def begin(self, dense):
        return dense

    def finish(self, begun, embeddings, context=None):
        assert not embeddings.groups
        return embeddings.sequences["history"]


@pytest.fixture
def packed_batches(jagged_of):
    """Two sessions of prefixes: [3] [3 1] [3 1 1], then [4] [4 0]; each as its list, and as windows."""
    plain = jagged_of({"history": [[3], [3, 1], [3, 1, 1], [4], [4, 0]]})
    windows = pack_windows(Jagged(plain.values(), plain.offsets()))
    packed = jagged_of({"history": windows.values[:, None].tolist()})
    return batch_of(plain, torch.ones(5)), batch_of(packed, torch.ones(5), windows={"history": windows})


def test_windows_get_the_rows_that_lists_get(spmd, packed_batches):
    def learnt(world):
        found = []
        for batch in packed_batches:
            tables = EmbeddingCollection(SEQUENCES, world=world, optimizer=OPTIONS, seed=2)
            recommender = Recommender(None, tables, TakesTheRows())
            rows = recommender(batch)
            (rows.jagged.values * torch.arange(9.0).unsqueeze(1)).sum().backward()
            with torch.no_grad():
                after = recommender(batch)
            found.append((rows.jagged.values.detach(), rows.jagged.lengths, after.jagged.values))
        return found

    for plain, packed in spmd(learnt):
        assert plain[1].tolist() == packed[1].tolist() == [1, 2, 3, 1, 2]
        assert torch.equal(plain[0], packed[0])
        torch.testing.assert_close(plain[2], packed[2])
        assert not torch.equal(plain[0], plain[2])


def test_a_recommender_without_tables_is_refused():
    with pytest.raises(RecipeError, match="without tables"):
        Recommender(None, None, TakesTheRows())


def test_all_tables_move_by_one_plan(spmd, one_batch):
    def body(world):
        recommender, batch = make_recommender(world), one_batch(world)
        expected = recommender(batch)
        specs = [spec for collection in recommender.collections() for spec in collection.specs]
        plan = plan_with_planner("column_wise", specs, world.size)
        recommender.move_to(plan)
        assert [*recommender.bags.plan.shards, *recommender.sequences.plan.shards] == [*plan.shards]
        torch.testing.assert_close(recommender(batch), expected)
        with pytest.raises(PlanError, match="misses table 'seen'"):
            recommender.move_to(plan.only(["item", "city"]))

    with torch.no_grad():
        spmd(body)
