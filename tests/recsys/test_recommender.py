from dataclasses import replace

import pytest
import torch
from torch import nn

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.gradients import GradientReducer
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Stopwatch
from windrow.partition.tables.planners import plan_with_planner
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor
from windrow.recsys.batches.jagged import Jagged, pack_windows
from windrow.recsys.models.build import build_model
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.recommender import Recommender
from windrow.recsys.sharded.collection import table_specs
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.tables.options import EmbeddingBagConfig, EmbeddingConfig, TableOptions
from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

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


def one_batch(world):
    """Six samples, all of them on the last rank."""
    if world.rank < world.size - 1:
        sparse = KeyedJaggedTensor(
            keys=["item", "city", "history"],
            values=torch.zeros(0, dtype=torch.int64),
            lengths=torch.zeros(0, dtype=torch.int64),
        )
        return Batch(torch.zeros(0, 2), sparse, torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    sparse = KeyedJaggedTensor(
        keys=["item", "city", "history"],
        values=torch.tensor([0, 1, 2, 3, 8, 8, 4, 3, 2, 1, 0, 0, 5, 6, 7]),
        lengths=torch.tensor([1] * 12 + [0, 1, 2, 0, 0, 0]),
    )
    dense = torch.arange(12.0).reshape(6, 2) / 12
    return Batch(dense, sparse, torch.tensor([1.0, 0, 1, 0, 0, 1]), torch.arange(6))


def step(world, one_batch=one_batch, groups=(), **options):
    """Logits before and after one update of everything."""
    recommender = make_recommender(world, groups, **options)
    reducer = GradientReducer(world, recommender.reduced_parameters())
    optimizer = torch.optim.SGD(recommender.model.parameters(), lr=0.5)
    batch = one_batch(world)
    reducer.start()
    before = recommender(batch)
    recommender.model.loss_sum(before, batch).backward()
    reducer.finish()
    optimizer.step()
    recommender.step_tables()
    with torch.no_grad():
        after = recommender(batch)
    return before.detach(), after


def test_samples_on_one_rank_only_give_the_same_answer(spmd):
    expected = step(Loopback.single())
    assert not torch.allclose(*expected)
    *_, last = spmd(step)
    for ours, theirs in zip(last, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_stages_one_by_one_give_what_forward_gives():
    world = Loopback.single()
    recommender = make_recommender(world)
    batch = one_batch(world)
    with torch.no_grad():
        whole = recommender(batch)
        stopwatch = Stopwatch()
        lookup = recommender.start(batch, stopwatch)
        lookup.start_ids()
        lookup.start_lookup()
        assert torch.equal(recommender.finish(batch, lookup), whole)
    assert set(stopwatch.seconds) == {"ids", "lookup", "pooled"}


def test_pooled_and_unpooled_features_have_the_same_groups():
    world = Loopback.single()
    bags = EmbeddingBagCollection(BAGS, world=world, groups=[["item"]], optimizer=OPTIONS)
    sequences = EmbeddingCollection(SEQUENCES, world=world, groups=[["history"]], optimizer=OPTIONS)
    model = make_recommender(world).model
    with pytest.raises(RecipeError, match=r"item.*, unpooled ones for.*history.*give both the same"):
        Recommender(bags, sequences, model)


def test_windows_are_for_unpooled_features_alone():
    recommender = make_recommender(Loopback.single())
    batch = one_batch(Loopback.single())
    windows = pack_windows(Jagged(torch.zeros(0, dtype=torch.int64), torch.tensor([0, 0])))
    with pytest.raises(DataError, match=r"'item' is packed into windows.*of these there are history"):
        recommender.start(replace(batch, windows={"item": windows}))


def test_an_inverse_without_its_rows_is_refused_before_lists_are_given_to_samples():
    recommender = make_recommender(Loopback.single())
    batch = one_batch(Loopback.single())
    unique = KeyedJaggedTensor(
        keys=["history"], values=torch.tensor([3]), lengths=torch.tensor([1]), stride=1
    )
    group = InverseKeyedJaggedTensor(unique, torch.tensor([0, 0, 0, 1, 0, 0]))
    with pytest.raises(DataError, match="history: inverse holds 1, but there are rows 0 to 0"):
        recommender.start(replace(batch, deduplicated=(group,)))


def test_tables_that_every_rank_holds_are_summed_with_the_dense_model():
    def count(world):
        recommender = make_recommender(world)
        tables = [table.members[0].name for table in recommender.local_tables() if table.replicated]
        extra = len(list(recommender.reduced_parameters())) - len(list(recommender.model.parameters()))
        return tables, extra

    assert Loopback.run(2, count) == [(["city"], 1)] * 2


def test_a_learning_rate_of_zero_is_the_end_of_learning():
    world = Loopback.single()
    recommender = make_recommender(world)
    recommender.set_table_learning_rate(0.0)
    before = [part.tensor.clone() for table in recommender.local_tables() for part in table.state()]
    batch = one_batch(world)
    recommender.model.loss_sum(recommender(batch), batch).backward()
    recommender.step_tables()
    after = [part for table in recommender.local_tables() for part in table.state()]
    for part, tensor in zip(after, before, strict=True):
        assert part.name != "weight" or torch.equal(part.tensor, tensor)


GROUPS = (("city", "history"),)


def repeating_batch(world):
    """Seven samples a rank, some of which share city and history; the second rank has none."""
    choice = torch.tensor([0, 0, 1, 0, 2, 2, 2])[: 0 if world.rank == 1 else 7]
    lists = {"city": [[3], [4], [3]], "history": [[1, 8, 8], [], [1]]}
    rows = KeyedJaggedTensor(
        keys=list(lists),
        values=torch.tensor([number for kind in lists.values() for row in kind for number in row]),
        lengths=torch.tensor([len(row) for kind in lists.values() for row in kind]),
    )
    if not len(choice):
        nothing = torch.zeros(0, dtype=torch.int64)
        rows = KeyedJaggedTensor(keys=list(lists), values=nothing, lengths=nothing, stride=0)
    items = torch.arange(len(choice)) + world.rank % 3
    sparse = KeyedJaggedTensor(
        keys=["item"], values=items, lengths=torch.ones_like(items), stride=len(choice)
    )
    labels = (items % 2).float()
    dense = torch.linspace(0, 1, 2 * len(choice)).view(len(choice), 2)
    return Batch(dense, sparse, labels, items, (InverseKeyedJaggedTensor(rows, choice),))


@pytest.mark.parametrize(
    "options",
    [
        {"sequence_query": "item"},
        {"sequence_pooling": "self", "sequence_heads": 2},
        {"sequence_query": "item", "feature_mlp": (4,)},
    ],
    ids=["target", "self", "feature MLPs"],
)
def test_what_samples_share_gives_the_same_answer_once(spmd, options):
    """Logits and everything that was learnt: with tables made for the group, and with lists given to each sample."""

    def both(world):
        return (
            step(world, repeating_batch, GROUPS, **options),
            step(world, repeating_batch, (), **options),
        )

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


def packed_batch():
    """Two sessions of prefixes: [3] [3 1] [3 1 1], then [4] [4 0]."""
    lists = [[3], [3, 1], [3, 1, 1], [4], [4, 0]]
    offsets = torch.tensor([0, *map(len, lists)]).cumsum(0)
    ids = torch.tensor([item for one in lists for item in one])
    windows = pack_windows(Jagged(ids, offsets))
    plain = KeyedJaggedTensor(keys=["history"], values=ids, lengths=offsets.diff())
    packed = KeyedJaggedTensor(keys=["history"], values=windows.values, lengths=torch.tensor([1, 1, 1, 1, 1]))
    rest = (torch.ones(5), torch.arange(5))
    return (
        Batch(torch.empty(5, 0), plain, *rest),
        Batch(torch.empty(5, 0), packed, *rest, windows={"history": windows}),
    )


def test_windows_get_the_rows_that_lists_get(spmd):
    def learnt(world):
        found = []
        for batch in packed_batch():
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
