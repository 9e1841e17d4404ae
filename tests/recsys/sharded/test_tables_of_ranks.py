"""ROBE arrays that are spread over ranks, against the tables that they stand for, written out."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.comm.gradients import GradientReducer
from windrow.comm.loopback import Loopback
from windrow.partition.tables.plan import Plan, Range, Shard
from windrow.partition.tables.planners import plan_with_planner
from windrow.recsys.sharded.packing import read_samples
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.sharded.tables_of_ranks import TablesOfRanks, table_specs
from windrow.recsys.tables.options import EmbeddingBagConfig, EmbeddingConfig, TableOptions, TableOverrides
from windrow.training.shard_files import ShardReader, write_shard_file

SHARED = TableOverrides(form="robe", compression=2, robe_block=4, robe_sharded=True)
FORMS = {"user": SHARED, "tag": SHARED, "item": TableOverrides(form="robe", compression=3, robe_block=5)}
FORMS["item"] = replace(FORMS["item"], robe_sharded=True)
ARRAYS = {"user.array": (34, 4), "item.array": (25, 5)}
GROUPS = [["tag", "item"], ["user"]]
STEPS = 3
RATE = 0.1


def options_of(**given) -> TableOptions:
    return TableOptions(**{"optimizer": "sgd", "learning_rate": RATE, "per_table": FORMS, **given})


def piece(name: str, rank: int, rows: Range, columns: Range) -> Shard:
    return Shard(name, rank, rows, columns)


def grid(world_size: int) -> Plan:
    """One array in columns and rows, one on a single rank."""
    last = world_size - 1
    return Plan(
        (
            piece("user.array", last, (0, 30), (0, 4)),
            piece("user.array", 0, (30, 34), (0, 4)),
            piece("item.array", 0, (0, 25), (0, 4)),
            piece("item.array", last, (0, 25), (4, 5)),
            piece("tiny", last // 2, (0, 2), (0, 4)),
        )
    )


def make(small, world, plan=None, *, weighted=False, groups=(), **given) -> EmbeddingBagCollection:
    tables = small.sums if weighted else small.tables
    plan = grid(world.size) if plan == "grid" else plan
    return EmbeddingBagCollection(
        tables, is_weighted=weighted, world=world, plan=plan, groups=groups, optimizer=options_of(**given), seed=3
    )


def draw_for(small, step, rank):
    return small.repeating(10 * step + rank, [5, 0, 3, 7][(rank + step) % 4], empty=step == STEPS - 1 and rank > 0)


def loss_of(values, rank):
    return (values.tanh() * torch.linspace(-1, 1, values.numel()).view_as(values)).sum() * (rank + 1)


def train(world, small, collection, *, weighted=False, groups=()):
    reducer, found = GradientReducer(world, collection.replicated_parameters()), []
    for step in range(STEPS):
        reducer.start()
        values = collection(*small.deduplicated(draw_for(small, step, world.rank), groups, weighted=weighted)).values()
        found.append(values.detach().clone())
        loss_of(values, world.rank).backward()
        reducer.finish()
        collection.step()
    return found


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("groups", [(), GROUPS])
@pytest.mark.parametrize("plan", [None, "grid", "replicated"])
def test_values_and_updates_equal_those_of_tables_written_out(spmd, small, plan, groups, weighted):
    def body(world):
        collection = make(small, world, plan, weighted=weighted, groups=groups)
        first = {name: collection.stored_table(name) for name in (*ARRAYS, "tiny")}
        found = train(world, small, collection, weighted=weighted, groups=groups)
        last = {name: collection.stored_table(name) for name in first}
        return first, found, last, {table.name: collection.whole_table(table.name) for table in small.tables}

    results = spmd(body)
    first, _, last, whole = results[0]
    assert {name: tuple(first[name].shape) for name in ARRAYS} == ARRAYS
    stored = {name: values.requires_grad_() for name, values in first.items()}
    optimizer = torch.optim.SGD(stored.values(), lr=RATE)
    forms = [*TablesOfRanks(small.tables, options_of()).arrays.values()]

    def tables_of(values):
        return {"tiny": values["tiny"]} | {
            table.name: form.rows(number, torch.arange(table.num_rows), [values[form.stored[0].name]])
            for form in forms
            for number, table in enumerate(form.tables)
        }

    tables = small.sums if weighted else small.tables
    for step in range(STEPS):
        dense = tables_of(stored)
        loss = torch.zeros(())
        for rank, (_, found, _, _) in enumerate(results):
            expected = small.reference_pooled(tables, dense, draw_for(small, step, rank), weighted=weighted)
            torch.testing.assert_close(found[step], expected.detach(), rtol=1e-5, atol=1e-5)
            loss = loss + loss_of(expected, rank)
        optimizer.zero_grad()
        if loss.requires_grad:
            loss.backward()
        optimizer.step()
    for name, values in stored.items():
        torch.testing.assert_close(last[name], values.detach(), rtol=1e-5, atol=1e-5)
    for name, values in tables_of(last).items():
        torch.testing.assert_close(whole[name], values.detach())


@pytest.mark.parametrize("forms", [FORMS, {"tag": SHARED}, {"item": FORMS["item"]}], ids=["all", "tag", "item"])
def test_columns_come_in_the_order_of_the_tables(small, forms):
    """Also where a feature is looked up in an array and in a dense table."""
    collection = make(small, Loopback.single(), per_table=forms)
    drawn = small.draw(1, 4)
    found = collection(small.jagged(drawn))
    assert found.keys() == ["user", "item@item", "history", "tag", "item@tag", "flag"]
    assert found.length_per_key() == [8, 10, 10, 8, 8, 4]
    whole = {table.name: collection.whole_table(table.name) for table in small.tables}
    torch.testing.assert_close(found.values(), small.reference_pooled(small.tables, whole, drawn))


@pytest.mark.parametrize("groups", [(), GROUPS])
def test_arrays_move_in_a_run(spmd, small, groups):
    """Also under a lookup that was prefetched before."""

    def body(world):
        moved, stays = (make(small, world, groups=groups, optimizer="adam") for _ in range(2))
        for plan in ("replicated", grid(world.size), "row_wise"):
            batch = small.deduplicated(draw_for(small, 0, world.rank), groups)
            moved.prefetch(*batch)
            moved.move_to(plan)
            torch.testing.assert_close(moved(*batch).values(), stays(*batch).values())
            before, after = (train(world, small, collection, groups=groups) for collection in (stays, moved))
            for one, other in zip(before, after, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        for table in small.tables:
            torch.testing.assert_close(moved.whole_table(table.name), stays.whole_table(table.name))

    spmd(body)


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam"])
def test_checkpoints_go_on_under_other_plans_and_ranks(small, tmp_path, optimizer):
    def write(world):
        collection = make(small, world, optimizer=optimizer)
        train(world, small, collection)
        state = [part for batch in collection.local_tables() for part in batch.state()]
        assert {part.piece.name for part in state if part.fixed} <= set(ARRAYS)
        write_shard_file(tmp_path / str(world.rank), state)
        return {name: collection.stored_table(name) for name in ARRAYS}

    def read(world, plan):
        collection = make(small, world, plan, optimizer=optimizer)
        with ShardReader(tmp_path, [file.name for file in tmp_path.iterdir()]) as reader:
            for batch in collection.local_tables():
                batch.load_state(
                    replace(part, tensor=reader.read(part.piece.name, part.piece.rows, part.piece.columns, part.name))
                    for part in batch.state()
                )
        assert all(torch.equal(collection.stored_table(name), values) for name, values in expected.items())
        return train(world, small, collection)

    expected = Loopback.run(4, write)[0]
    by_rows, replicated = (Loopback.run(2, partial(read, plan=plan)) for plan in (None, "replicated"))
    for of_rank, others in zip(by_rows, replicated, strict=True):
        for one, other in zip(of_rank, others, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_state_dict(spmd, small):
    def body(world):
        collection = make(small, world)
        train(world, small, collection)
        state, other = collection.state_dict(), make(small, world, "grid", initial_scale=1.0)
        other.load_state_dict(state)
        same = [torch.equal(other.whole_table(t.name), collection.whole_table(t.name)) for t in small.tables]
        other.reset_parameters()
        again = make(small, world, initial_scale=1.0)
        return sorted(state), same, [torch.equal(other.stored_table(n), again.stored_table(n)) for n in ARRAYS]

    for keys, same, reset in spmd(body):
        assert keys == [f"embedding_bags.{name}.weight" for name in ("item.array", "tiny", "user.array")]
        assert all(same)
        assert all(reset)


def test_planners_place_the_array(small):
    specs = table_specs(small.tables, options_of())
    assert [(spec.name, spec.rows, spec.dim) for spec in specs if spec.by_rows] == [
        (name, *shape) for name, shape in ARRAYS.items()
    ]
    assert specs[0].features == ("user",) * 2 + ("tag",) * 2 + ("item",) * 2
    assert specs[0].lookups_per_sample == 6
    for planner in ("greedy", "round_robin", "row_wise"):
        shards = plan_with_planner(planner, specs, 3).shards_of("user.array")
        assert sorted(shard.rank for shard in shards) == [0, 1, 2]
    assert plan_with_planner("replicated", specs, 3).replicas_of("user.array")


def test_only_ids_of_arrays_become_several(small):
    held = TablesOfRanks(small.tables, options_of(per_table={"user": SHARED}))
    collection = make(small, Loopback.single(), per_table={"user": SHARED})
    given, layout = collection.layout_of_batches, collection.layout
    batch = read_samples(small.jagged(small.draw(2, 5)), (), given, is_weighted=False)
    (samples,) = held.samples(batch, given, layout)
    counts = {layout.features[f]: int(samples.lengths[row].sum()) for f, row in samples.keys.items()}
    assert len(counts) == 6
    assert len(samples.ids) == len(samples.weights) == sum(counts.values())
    assert sum(count for name, count in counts.items() if name in held.blocks) == 2 * 5
    assert set(samples.weights.tolist()) == {-1.0, 1.0}


TABLE = EmbeddingBagConfig(name="t", num_embeddings=90, embedding_dim=8)
GIVEN = {"form": "robe", "compression": 2, "robe_block": 4, "robe_sharded": True}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"robe_block": 3}, "table 't': robe_sharded = true, but robe_block = 3 does not divide its 8 columns"),
        ({"hot_share": 0.1}, "robe_sharded = true goes neither with robe_published_code"),
        ({"robe_published_code": True}, "robe_sharded = true goes neither with robe_published_code"),
        ({"pretrained": {"t": "t.npy"}}, "tables.pretrained has rows of 't', whose array is cut over ranks"),
    ],
)
def test_what_does_not_go_with_it_is_refused(options, message):
    with pytest.raises(RecipeError, match=message):
        EmbeddingBagCollection([TABLE], optimizer=TableOptions(**{**GIVEN, **options}))


def test_rows_one_by_one_are_refused():
    config = EmbeddingConfig(name="t", num_embeddings=90, embedding_dim=8)
    with pytest.raises(RecipeError, match="table 't': robe_sharded = true goes with pooled features"):
        EmbeddingCollection([config], optimizer=TableOptions(**GIVEN))
