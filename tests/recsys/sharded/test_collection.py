"""What both collections share: plans, options, and what a checkpoint sees."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from windrow.comm.errors import PlanError, RecipeError
from windrow.comm.gradients import GradientReducer
from windrow.comm.loopback import Loopback
from windrow.partition.tables.plan import Plan
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.sharded.tables_of_ranks import table_specs
from windrow.recsys.tables.options import TableOptions, TableOverrides
from windrow.training.shard_files import ShardReader, write_shard_file


def test_without_a_plan_tables_go_round(small):
    def body(world):
        collection = EmbeddingBagCollection(small.tables, world=world)
        return [piece.name for piece, _ in small.local(collection)]

    assert Loopback.run(2, body) == [["user", "tag"], ["item", "tiny"]]


def test_first_values_do_not_depend_on_the_plan(small):
    def body(world, kind):
        plan = small.make_plan(kind, world.size)
        return small.local(EmbeddingBagCollection(small.tables, world=world, plan=plan, seed=5))

    expected = small.assembled([body(Loopback.single(), "table")])
    for kind in ("row", "grid", "replicated", "mixed"):
        found = small.assembled(Loopback.run(3, lambda world, kind=kind: body(world, kind)))
        assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_replicas_begin_as_rank_0_has_them(small, tmp_path):
    """Whatever a rank's own processor, or a function of the user, makes of them."""

    def body(world):
        def write(weight):
            weight.fill_(world.rank)

        table = replace(small.tables[0], init_fn=write, name="written")
        values = torch.randn(table.num_embeddings, 4, generator=torch.Generator().manual_seed(world.rank))
        path = tmp_path / f"{world.rank}.npy"
        np.save(path, values)
        trained = replace(small.tables[1], num_embeddings=table.num_embeddings, embedding_dim=4, name="trained")
        per_table = {"trained": TableOverrides(form="narrow", compression=2)}
        options = TableOptions(per_table=per_table, pretrained={"trained": path})
        configs = [replace(table, feature_names=["a"]), replace(trained, feature_names=["b"])]
        plan = small.make_plan("replicated", world.size, configs)
        collection = EmbeddingBagCollection(configs, world=world, plan=plan, optimizer=options)
        return {name: collection.whole_table(name) for name in ("written", "trained")}

    one, other = Loopback.run(2, body)
    assert not one["written"].any()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_replicated_tables_are_parameters_and_sharded_ones_are_not(small):
    def body(world):
        plan = small.make_plan("mixed", world.size)
        collection = EmbeddingBagCollection(small.tables, world=world, plan=plan)
        held = [(table.members[0].name, table.replicated) for table in collection.local_tables()]
        assert held[-1] == ("tiny", True)
        assert not any(replicated for _, replicated in held[:-1])
        return [tuple(parameter.shape) for parameter in collection.replicated_parameters()]

    assert Loopback.run(2, body) == [[(2, 4)], [(2, 4)]]


def test_a_plan_must_fit(small):
    with pytest.raises(PlanError, match="misses table 'user'"):
        EmbeddingBagCollection(small.tables, plan=Plan((), small.make_plan("replicated", 1).replicated[1:]))
    with pytest.raises(PlanError, match="no rank 1 among 1"):
        EmbeddingBagCollection(small.tables, plan=small.make_plan("table", 2))


@pytest.mark.parametrize(
    ("groups", "message"),
    [([["tag"], ["user", "tag"]], "groups name 'tag' twice"), (["tag"], "each is a sequence of names")],
)
def test_a_feature_is_in_one_group(small, groups, message):
    with pytest.raises(RecipeError, match=message):
        EmbeddingBagCollection(small.tables, groups=groups)


def test_short_floats_do_not_go_with_copies(small):
    options = TableOptions(precision="fp16")
    with pytest.raises(RecipeError, match='"fp16": tables user, item, tag, tiny have gradients that ranks sum'):
        Loopback.run(
            2,
            lambda world: EmbeddingBagCollection(
                small.tables, world=world, plan=small.make_plan("replicated", 2), optimizer=options
            ),
        )


def test_specs_for_planners(small):
    specs = table_specs(small.tables, TableOptions(optimizer="adagrad", precision="fp16"))
    assert [(s.name, s.rows, s.dim, s.features) for s in specs] == [
        (t.name, t.num_embeddings, t.embedding_dim, tuple(t.feature_names)) for t in small.tables
    ]
    assert specs[1].num_bytes == 37 * 12 * (2 + 4)
    assert specs[1].lookups_per_sample == 2


def test_learning_rate(small):
    collection = EmbeddingBagCollection(small.tables, optimizer=TableOptions(optimizer="sgd"))
    before = [weight for _, weight in small.local(collection)]
    collection.set_learning_rate(0.0)
    collection(small.jagged(small.draw(0, 5))).values().sum().backward()
    collection.step()
    assert all(torch.equal(a, b) for a, (_, b) in zip(before, small.local(collection), strict=True))


def test_reset_parameters_goes_back_to_the_beginning(small):
    options = TableOptions(optimizer="adagrad", per_table={"tag": TableOverrides(optimizer="adam")})

    def state(collection):
        return [part.tensor.clone() for batch in collection.local_tables() for part in batch.state()]

    def body(world):
        plan = small.make_plan("mixed", world.size)
        collection = EmbeddingBagCollection(small.tables, world=world, plan=plan, optimizer=options, seed=5)
        before = state(collection)
        collection(small.jagged(small.draw(0, 5))).values().sum().backward()
        collection.step()
        learnt = state(collection)
        assert not all(torch.equal(one, other) for one, other in zip(before, learnt, strict=True))
        collection.reset_parameters()
        assert all(torch.equal(one, other) for one, other in zip(before, state(collection), strict=True))

    Loopback.run(2, body)


OVERRIDES = {
    "item": TableOverrides(optimizer="adagrad", learning_rate=0.4),
    "tag": TableOverrides(optimizer="adam", initial_scale=0.5),
    "tiny": TableOverrides(eps=1e-3),
}


@pytest.mark.parametrize("pooled", [True, False])
def test_each_table_learns_by_its_own_options(spmd, small, pooled):
    """As it does in a collection of its own, bit for bit, also where a schedule halves all rates."""
    options = TableOptions(optimizer="sgd", learning_rate=0.1, per_table=OVERRIDES)
    tables = small.tables if pooled else small.equal_dims

    def learnt(world, chosen, options):
        kind = EmbeddingBagCollection if pooled else EmbeddingCollection
        plan = small.make_plan("mixed", world.size, tables)
        names = {table.name for table in chosen}
        plan = Plan(
            tuple(shard for shard in plan.shards if shard.table in names),
            tuple(replica for replica in plan.replicated if replica.table in names),
        )
        collection = kind(chosen, world=world, plan=plan, optimizer=options, seed=2)
        reducer = GradientReducer(world, collection.replicated_parameters())
        for rate in (0.1, 0.05):
            collection.set_learning_rate(rate * options.learning_rate / 0.1)
            reducer.start()
            found = collection(small.jagged(small.draw(world.rank, 6)))
            parts = [found.values()] if pooled else [rows.values() for rows in found.values()]
            sum(part.sum() for part in parts).backward()
            reducer.finish()
            collection.step()
        return dict(small.local(collection))

    def body(world):
        together = learnt(world, tables, options)
        alone = {}
        for table in tables:
            alone |= learnt(world, [table], options.of(table.name))
        return together, alone

    for together, alone in spmd(body):
        assert together.keys() == alone.keys()
        for piece, weight in alone.items():
            assert torch.equal(together[piece], weight), piece


def test_tables_of_equal_options_share_a_call(small):
    def calls(**per_table):
        collection = EmbeddingBagCollection(small.tables, optimizer=TableOptions(per_table=per_table))
        return [[piece.name for piece in batch.members] for batch in collection.local_tables()]

    assert calls() == [["user", "item", "tag", "tiny"]]
    assert calls(item=TableOverrides(learning_rate=0.02), tag=TableOverrides(initial_scale=1.0)) == calls()
    assert calls(user=TableOverrides(precision="fp16"), tag=TableOverrides(precision="fp16")) == [
        ["user", "tag"],
        ["item", "tiny"],
    ]


def test_options_of_no_table_are_refused(small):
    options = TableOptions(per_table={"itme": TableOverrides(dim=8)})
    with pytest.raises(RecipeError, match=r"tables.itme: there is no such table. Did you mean 'item'\?"):
        EmbeddingBagCollection(small.tables, optimizer=options)


def save(folder, collection, world):
    folder.mkdir(exist_ok=True)
    state = [part for batch in collection.local_tables() for part in batch.state()]
    write_shard_file(folder / str(world.rank), [part for part in state if world.rank == 0 or not part.replicated])


def saved(folder):
    with ShardReader(folder, [file.name for file in folder.iterdir()]) as reader:
        places = [(table, *((0, length) for length in reader.shape(table))) for table in reader.tables]
        return {(place[0], what): reader.read(*place, what) for place in places for what in reader.contents(place[0])}


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_tables_of_four_ranks_go_on_with_two(small, tmp_path, optimizer):
    options = TableOptions(optimizer=optimizer, learning_rate=0.1)

    def make(world, kind):
        plan = small.make_plan(kind, world.size)
        return EmbeddingBagCollection(small.tables, world=world, plan=plan, optimizer=options, seed=5)

    def train(world, collection, step):
        mine = {feature: bags[world.rank :: world.size] for feature, bags in small.draw(step, 8).items()}
        reducer = GradientReducer(world, collection.replicated_parameters())
        reducer.start()
        values = collection(small.jagged(mine)).values()
        (values * torch.linspace(-1, 1, values.shape[1])).tanh().sum().backward()
        reducer.finish()
        collection.step()

    def begin(world):
        collection = make(world, "mixed")
        train(world, collection, 0)
        save(tmp_path / "four", collection, world)
        train(world, collection, 1)
        save(tmp_path / "expected", collection, world)

    def go_on(world):
        collection = make(world, "rows on every rank")
        with ShardReader(tmp_path / "four", map(str, range(4))) as reader:
            for batch in collection.local_tables():
                places = [(part, part.piece) for part in batch.state()]
                batch.load_state(
                    replace(part, tensor=reader.read(piece.name, piece.rows, piece.columns, part.name))
                    for part, piece in places
                )
        save(tmp_path / "two", collection, world)
        train(world, collection, 1)
        save(tmp_path / "after", collection, world)

    Loopback.run(4, begin)
    Loopback.run(2, go_on)
    # Where columns are cut in another way, row-wise Adagrad goes on with averages.
    averaged = "item" if optimizer == "rowwise_adagrad" else "none"
    before, found = saved(tmp_path / "four"), saved(tmp_path / "two")
    assert found.keys() == before.keys()
    for (table, what), tensor in before.items():
        if (table, what) == (averaged, "sum_of_squares"):
            torch.testing.assert_close(found[table, what], tensor)
        else:
            assert torch.equal(found[table, what], tensor), (table, what)
    expected, after = saved(tmp_path / "expected"), saved(tmp_path / "after")
    assert not torch.equal(expected["user", "weight"], before["user", "weight"])
    for (table, what), tensor in expected.items():
        if table != averaged:
            torch.testing.assert_close(after[table, what], tensor)
