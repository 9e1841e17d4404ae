"""Groups of ranks that hold all tables each: they learn what one group would have learnt, and copies stay equal."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from windrow.comm.errors import PlanError, RecipeError
from windrow.comm.gradients import GradientReducer
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.partition.tables.planners import PlanOptions, make_plan
from windrow.recsys.sharded.collection import table_specs
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.tables.options import TableOptions, TableOverrides
from windrow.training.shard_files import ShardReader, write_shard_file

OPTIONS = {
    "sgd": TableOptions(optimizer="sgd"),
    "adagrad": TableOptions(optimizer="adagrad", per_table={"item": TableOverrides(learning_rate=0.3)}),
    "rowwise_adagrad": TableOptions(),
    "compressed": TableOptions(per_table={"tag": TableOverrides(form="robe", compression=2, hot_share=0.2)}),
    "array": TableOptions(per_table={"user": TableOverrides(form="robe", compression=2, robe_block=4)}),
}
OPTIONS["array"] = replace(
    OPTIONS["array"], per_table={"user": replace(OPTIONS["array"].per_table["user"], robe_sharded=True)}
)
KINDS = ("grid", "rows on every rank", "column", "replicated", "copies, row")
GROUPS = [["tag", "item"], ["user"]]


def groups_of(world) -> list[int]:
    return [groups for groups in (2, 4) if world.size % groups == 0] or [1]


def make(small, world, count, options, *, kind="grid", pooled=True, **more):
    cls, tables = (EmbeddingBagCollection, small.tables) if pooled else (EmbeddingCollection, small.equal_dims)
    if options in ("compressed", "array"):
        # Planners know what is stored.
        planned = PlanOptions(planner="row_wise", replica_groups=count, replicate_below_bytes=0)
        plan = make_plan(planned, table_specs(tables, OPTIONS[options]), world.size)
    else:
        plan = replace(small.make_plan(kind, world.size // count, tables), replica_groups=count)
    return cls(tables, world=world, plan=plan, optimizer=OPTIONS[options], seed=3, **more)


def train(small, collection, steps, *, groups=()):
    """What is looked up in some steps, each followed by learning."""
    world, found = collection.world, []
    reducer = GradientReducer(world, collection.replicated_parameters())
    for step in steps:
        reducer.start()
        drawn = small.repeating(10 * step + world.rank, (0, 5, 4, 7)[(world.rank + step) % 4])
        rows = collection(*small.deduplicated(drawn, groups))
        values = (
            torch.cat([part.values().flatten() for part in rows.values()]) if isinstance(rows, dict) else rows.values()
        )
        found.append(values.detach().clone())
        (values.tanh() * torch.linspace(-1, 1, values.numel()).view_as(values)).sum().backward()
        reducer.finish()
        collection.step()
    reducer.close()
    return found


def whole_tables(collection):
    return [collection.whole_table(table.name) for table in collection.configs]


@pytest.mark.parametrize(
    ("options", "kind", "pooled", "deduplicated"),
    [
        *(
            (options, "grid", pooled, ())
            for options in ("sgd", "adagrad", "rowwise_adagrad")
            for pooled in (True, False)
        ),
        *(("rowwise_adagrad", kind, True, GROUPS) for kind in KINDS),
        ("compressed", "", True, ()),
        ("array", "", True, GROUPS),
    ],
)
def test_groups_learn_what_one_group_would(spmd, small, options, kind, pooled, deduplicated):
    def body(world):
        given = {"kind": kind, "pooled": pooled, "groups": deduplicated}
        alone = make(small, world, 1, options, **given)
        expected = train(small, alone, range(4), groups=deduplicated)
        for groups in groups_of(world):
            collection = make(small, world, groups, options, **given)
            assert collection.group.size == world.size // groups
            found = train(small, collection, range(4), groups=deduplicated)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(whole_tables(collection), whole_tables(alone), rtol=1e-5, atol=1e-5)
            mine = [part for batch in collection.local_tables() for part in batch.state()]
            values = [(part.piece, part.name, part.tensor.numpy().tobytes()) for part in mine]
            everyone = world.all_gather_object(values, stage="test")
            assert everyone[world.rank % collection.group.size] == values

    spmd(body)


def test_only_rows_that_were_looked_up_travel_between_groups(small):
    def body(world):
        world.meter = Meter()
        train(small, make(small, world, 2, "sgd"), [1])
        return world.meter.totals("embedding bags: rows between groups").bytes_sent

    table_bytes = sum(table.num_embeddings * (8 + 4 * table.embedding_dim) for table in small.tables)
    assert all(0 < sent < table_bytes for sent in Loopback.run(2, body))


@pytest.mark.parametrize("options", ["rowwise_adagrad", "compressed"])
def test_checkpoints_have_each_piece_once_and_go_on_without_groups(small, tmp_path, options):
    def write(world):
        collection = make(small, world, 2, options)
        train(small, collection, range(2))
        parts = [part for batch in collection.local_tables() for part in batch.state()]
        own = [part for part in parts if not part.is_copy and (world.rank == 0 or not part.replicated)]
        if own:
            write_shard_file(tmp_path / str(world.rank), own)
        return [part.key for part in own], whole_tables(collection), train(small, collection, range(2, 4))

    def read(world, groups):
        collection = make(small, world, groups, options)
        with ShardReader(tmp_path, [file.name for file in tmp_path.iterdir()]) as reader:
            for batch in collection.local_tables():
                batch.load_state(
                    replace(part, tensor=reader.read(part.piece.name, part.piece.rows, part.piece.columns, part.name))
                    for part in batch.state()
                )
        return whole_tables(collection), train(small, collection, range(2, 4))

    written = Loopback.run(4, write)
    keys = [key for of_rank, _, _ in written for key in of_rank]
    assert len(set(keys)) == len(keys)
    for groups in (1, 4):
        for (_, tables, later), (same, found) in zip(
            written, Loopback.run(4, partial(read, groups=groups)), strict=True
        ):
            torch.testing.assert_close(same, tables, rtol=0, atol=0)
            torch.testing.assert_close(found, later, rtol=1e-5, atol=1e-5)


def test_tables_move_within_groups(spmd, small):
    def body(world):
        groups = groups_of(world)[0]
        collection, stays = (make(small, world, groups, "adagrad") for _ in range(2))
        for plan in ("row_wise", "round_robin"):
            collection.move_to(plan)
            assert collection.plan.replica_groups == groups
            found, expected = (train(small, each, range(2)) for each in (collection, stays))
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        if groups > 1:
            with pytest.raises(RecipeError, match=rf"that {groups} group\(s\) of ranks hold cannot move to a plan of"):
                collection.move_to(replace(small.make_plan("one rank", 1), replica_groups=1))

    spmd(body)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adam"}, 'optimizer = "adam" with weight_decay = 0 moves every row'),
        ({"weight_decay": 0.1}, "weight_decay = 0.1 moves every row"),
        ({"precision": "fp16"}, "gradients that ranks sum"),
    ],
)
def test_what_does_not_go_with_groups_is_refused(small, options, message):
    def body(world):
        plan = replace(small.make_plan("row", 1), replica_groups=2)
        with pytest.raises(RecipeError, match=message):
            EmbeddingBagCollection(small.tables, world=world, plan=plan, optimizer=TableOptions(**options))

    Loopback.run(2, body)


def test_a_compressed_table_of_one_rank_is_refused(small):
    def body(world):
        plan = replace(small.make_plan("one rank", 2), replica_groups=2)
        with pytest.raises(RecipeError, match="table 'tag' is compressed, and the plan has it on rank 1 alone in each"):
            EmbeddingBagCollection(small.tables, world=world, plan=plan, optimizer=OPTIONS["compressed"])

    Loopback.run(4, body)


def test_groups_have_one_size(small):
    def body(world):
        with pytest.raises(PlanError, match="replica_groups = 2 of 3 ranks: groups have the same number of ranks"):
            make(small, world, 2, "sgd")

    Loopback.run(3, body)
