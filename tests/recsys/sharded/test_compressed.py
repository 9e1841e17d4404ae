"""Compressed tables under any plan, deduplicated or not, against one process; what is stored and saved of them."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.comm.gradients import GradientReducer
from windrow.comm.loopback import Loopback
from windrow.partition.tables.plan import Replica, rank_bytes
from windrow.partition.tables.planners import plan_with_planner
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.sharded.tables_of_ranks import table_specs
from windrow.recsys.tables.compressed import CompressedTables, make_forms
from windrow.recsys.tables.options import EmbeddingBagConfig, TableOptions, TableOverrides
from windrow.training.shard_files import ShardReader, write_shard_file

KINDS = ["table", "one rank", "row", "column", "grid", "replicated", "mixed", "rows on every rank"]
GROUPS = [["tag", "item"], ["user"]]
ROBE = TableOverrides(form="robe", compression=2, robe_block=4)
MIXED = {"user": ROBE, "tag": ROBE, "item": TableOverrides(form="tensor_train", compression=2)}
FORMS = {
    "robe and tensor_train": MIXED,
    "hashed and narrow": {
        "item": TableOverrides(form="hashed", compression=3),
        "tag": TableOverrides(form="narrow", compression=2),
        "user": TableOverrides(form="quotient_remainder", compression=1.1),
    },
    "codes": {
        "item": TableOverrides(form="codes", compression=2, code_parts=2, code_every=2),
        "tag": TableOverrides(form="codes", compression=2, code_parts=2, code_sketch="robe", hot_share=0.2),
        "user": TableOverrides(form="codes", compression=2, code_parts=2, code_every=2, code_sketch="robe"),
    },
}
STEPS = 3


def draw_for(small, step, rank, *, repeats):
    draw = small.repeating if repeats else small.draw
    return draw(10 * step + rank, [5, 0, 3, 7][(rank + step) % 4], empty=step == STEPS - 1 and rank > 0)


def values_of(result) -> torch.Tensor:
    parts = [rows.values().flatten() for rows in result.values()] if isinstance(result, dict) else [result.values()]
    return torch.cat([part.flatten() for part in parts])


def loss_of(values, rank):
    return (values.tanh() * torch.linspace(-1, 1, values.numel())).sum() * (rank + 1)


def make(small, world, plan, per_table, *, pooled=True, optimizer="sgd", groups=()):
    options = TableOptions(optimizer=optimizer, learning_rate=0.1, per_table=per_table)
    tables = small.tables if pooled else small.equal_dims
    kind = EmbeddingBagCollection if pooled else EmbeddingCollection
    plan = small.make_plan(plan, world.size, tables) if isinstance(plan, str) else plan
    return kind(tables, world=world, plan=plan, groups=groups, optimizer=options, seed=3)


def train(world, small, collection, *, groups=()):
    reducer, found = GradientReducer(world, collection.replicated_parameters()), []
    for step in range(STEPS):
        reducer.start()
        drawn = draw_for(small, step, world.rank, repeats=True)
        values = values_of(collection(*small.deduplicated(drawn, groups)))
        found.append(values.detach().clone())
        loss_of(values, world.rank).backward()
        reducer.finish()
        collection.step()
    return found


def train_alone(small, collection, size):
    """All ranks' samples in one process, without deduplication."""
    found = []
    for step in range(STEPS):
        each = [values_of(collection(small.jagged(draw_for(small, step, rank, repeats=True)))) for rank in range(size)]
        found.append([values.detach().clone() for values in each])
        sum(loss_of(values, rank) for rank, values in enumerate(each)).backward()
        collection.step()
    return found


def check_against_one_process(small, results, forms, *, pooled=True):
    alone = make(small, Loopback.single(), None, forms, pooled=pooled)
    expected = train_alone(small, alone, len(results))
    for rank, (found, tables) in enumerate(results):
        for step in range(STEPS):
            torch.testing.assert_close(found[step], expected[step][rank], rtol=1e-5, atol=1e-5)
        for name, table in tables.items():
            torch.testing.assert_close(table, alone.whole_table(name), rtol=1e-5, atol=1e-5)


def whole(collection, small):
    return {table.name: collection.whole_table(table.name) for table in small.tables}


@pytest.mark.parametrize("forms", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_updates_equal_those_of_one_process(spmd, small, kind, forms):
    def body(world):
        collection = make(small, world, kind, FORMS[forms], groups=GROUPS)
        return train(world, small, collection, groups=GROUPS), whole(collection, small)

    check_against_one_process(small, spmd(body), FORMS[forms])


@pytest.mark.parametrize("kind", ["table", "mixed", "replicated"])
def test_rows_one_by_one(spmd, small, kind):
    def body(world):
        collection = make(small, world, kind, MIXED, pooled=False)
        return train(world, small, collection), whole(collection, small)

    check_against_one_process(small, spmd(body), MIXED, pooled=False)


def test_one_rank_that_looks_all_up_sums_no_gradients(small):
    def body(world):
        collection = make(small, world, "one rank", MIXED)
        return [part.piece.name for batch in collection.local_tables() for part in batch.state()], [
            *collection.replicated_parameters()
        ]

    (without, none), (held, nothing) = Loopback.run(2, body)
    assert without == none == nothing == []
    assert held == ["tiny", "user.array", "item.core_0", "item.core_1", "item.core_2"]


def test_planners_replicate_compressed_tables(small):
    options = TableOptions(per_table=MIXED)
    specs = table_specs(small.tables, options)
    plan = plan_with_planner("row_wise", specs, 2)
    assert plan.replicated == tuple(
        Replica(table.name, (0, table.num_embeddings)) for table in small.tables if table.name in MIXED
    )
    numbers = [stored for form in make_forms(small.tables, options) for stored in form.stored]
    stored = sum(4 * table.num_rows * (table.dim + 1) for table in numbers)
    # Shares of what tables have in common are rounded up.
    assert 0 <= rank_bytes(plan, specs, 2)[0] - stored - 1 * (4 * 4 + 4) <= 2


def test_pieces_of_a_compressed_table_share_their_memory(small):
    specs = table_specs(small.tables, TableOptions(per_table={"item": MIXED["item"]}))
    (item,) = (spec for spec in specs if spec.name == "item")
    plan = small.make_plan("many pieces", 1)
    dense = sum(spec.num_bytes for spec in specs if spec.name != "item")
    assert rank_bytes(plan, specs, 1)[0] == dense + item.num_bytes == dense + item.compressed_bytes


def save(folder, world, collection):
    folder.mkdir(exist_ok=True)
    state = [part for batch in collection.local_tables() for part in batch.state()]
    write_shard_file(folder / str(world.rank), [part for part in state if world.rank == 0 or not part.replicated])


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_checkpoints_go_on_under_other_plans_and_ranks(small, tmp_path, optimizer):
    def write(world):
        collection = make(small, world, "row", MIXED, optimizer=optimizer)
        train(world, small, collection)
        save(tmp_path, world, collection)
        return whole(collection, small)

    def read(world, kind):
        collection = make(small, world, kind, MIXED, optimizer=optimizer)
        with ShardReader(tmp_path, [file.name for file in tmp_path.iterdir()]) as reader:
            for batch in collection.local_tables():
                batch.load_state(
                    replace(part, tensor=reader.read(part.piece.name, part.piece.rows, part.piece.columns, part.name))
                    for part in batch.state()
                )
        before = whole(collection, small)
        return before, train(world, small, collection)

    expected = Loopback.run(4, write)[0]
    after = []
    for kind in ("one rank", "mixed", "replicated"):
        results = Loopback.run(2, partial(read, kind=kind))
        for before, _ in results:
            assert all(torch.equal(before[name], table) for name, table in expected.items())
        after.append([values for _, found in results for values in found])
    for other in after[1:]:
        for one, two in zip(after[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=2e-6)


def test_state_dict_has_what_vectors_are_computed_from(spmd, small):
    def body(world):
        collection = make(small, world, "mixed", MIXED)
        train(world, small, collection)
        state = collection.state_dict()
        other = make(small, world, "replicated", MIXED)
        other.load_state_dict(state)
        return sorted(state), [
            torch.equal(other.whole_table(t.name), collection.whole_table(t.name)) for t in small.tables
        ]

    for keys, same in spmd(body):
        assert all(same)
        assert keys == [
            f"embedding_bags.{name}.weight"
            for name in ("item.core_0", "item.core_1", "item.core_2", "tiny", "user.array")
        ]


def test_state_dict_says_which_rows_are_hot_and_the_codes(small):
    forms = {
        "item": TableOverrides(form="codes", compression=2, code_parts=2, code_every=2),
        "tag": TableOverrides(form="hashed", compression=2, hot_share=0.2, hot_counted=True, hot_every=2),
    }

    def body(world):
        collection = make(small, world, "one rank", forms)
        train(world, small, collection)
        state = collection.state_dict()
        other = make(small, world, "replicated", forms)
        assert str(other.load_state_dict(state)) == "<All keys matched successfully>"
        one, two = whole(collection, small), whole(other, small)
        return [torch.equal(one[name], two[name]) for name in one]

    assert all(same for found in Loopback.run(2, body) for same in found)


def test_reset_parameters_and_learning_rates(small):
    collection = make(small, Loopback.single(), None, MIXED, optimizer="adagrad")
    before = whole(collection, small)
    collection.set_learning_rate(0.0)
    train_alone(small, collection, 1)
    assert all(torch.equal(collection.whole_table(name), table) for name, table in before.items())
    collection.set_learning_rate(0.1)
    train_alone(small, collection, 1)
    assert not torch.equal(collection.whole_table("item"), before["item"])
    collection.reset_parameters()
    assert all(torch.equal(collection.whole_table(name), table) for name, table in before.items())


def test_robe_tables_of_equal_options_share_an_array(small):
    other = TableOverrides(form="robe", compression=2, robe_block=4, learning_rate=0.1)
    options = TableOptions(per_table={"user": ROBE, "tag": ROBE, "item": other})
    forms = make_forms(small.tables, options)
    assert [[table.name for table in form.tables] for form in forms] == [["user", "tag"], ["item"]]
    assert [form.stored[0].name for form in forms] == ["user.array", "item.array"]
    assert forms[0].stored[0].num_rows == math.ceil((11 * 8 + 23 * 8) / 2 / 4)
    assert CompressedTables(forms[1], options, replicated=False, device=None, seed=0).options.learning_rate == 0.1


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        (
            [EmbeddingBagConfig(name="t", num_embeddings=9, embedding_dim=4, init_fn=torch.nn.init.ones_)],
            TableOptions(form="hashed", compression=2),
            "table 't': form = \"hashed\" cannot start from the values of init_fn",
        ),
        (
            [EmbeddingBagConfig(name=name, num_embeddings=9, embedding_dim=4) for name in ("t", "u")],
            TableOptions(form="robe", compression=2, pretrained={"t": "t.npy"}),
            "tables.pretrained has rows of 't', but not of all tables that share its array, t, u",
        ),
        (
            [EmbeddingBagConfig(name="t", num_embeddings=3, embedding_dim=4)],
            TableOptions(form="quotient_remainder"),
            "would store 16 numbers in place of 12",
        ),
        (
            [EmbeddingBagConfig(name=name, num_embeddings=9, embedding_dim=4) for name in ("t", "t.hashed")],
            TableOptions(form="hashed", compression=2, per_table={"t.hashed": TableOverrides(form="dense")}),
            "two tables would be stored as 't.hashed'",
        ),
    ],
)
def test_what_cannot_be_compressed_is_refused(tables, options, message):
    with pytest.raises(RecipeError, match=message):
        EmbeddingBagCollection(tables, optimizer=options)


def test_half_precision_is_refused():
    with pytest.raises(RecipeError, match='"robe" does not go with precision = "fp16"'):
        TableOptions(form="robe", precision="fp16")
