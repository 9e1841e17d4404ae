"""Rows counted where they are, against a walk over ids and shards."""

import pytest

from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter, RowsFound
from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.packing import read_samples
from windrow.recsys.sharded.pooled import EmbeddingBagCollection, rows_of_whole_tables
from windrow.recsys.sharded.sequences import EmbeddingCollection

KINDS = ["table", "one rank", "row", "column", "grid", "replicated", "mixed", "rows on every rank"]
SAMPLES = [5, 0, 3, 7]


def ids_asked_for(tables, drawn) -> int:
    return sum(len(bag) for table in tables for feature in table.feature_names for bag in drawn[feature])


def walked(tables, plan, drawn, rank: int) -> RowsFound:
    """Id after id: who has the row, or a piece of it?"""
    local = remote = 0
    for table in tables:
        for row in (i for feature in table.feature_names for bag in drawn[feature] for i in bag):
            local += sum(
                start <= row < stop for replica in plan.replicas_of(table.name) for start, stop in [replica.rows]
            )
            for shard in plan.shards_of(table.name):
                if shard.rows[0] <= row < shard.rows[1]:
                    local += shard.rank == rank
                    remote += shard.rank != rank
    return RowsFound(local=local, remote=remote)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooled", [True, False])
def test_every_row_is_counted_where_it_is(spmd, small, kind, pooled):
    tables = small.tables if pooled else small.equal_dims
    stage = "embedding bags: rows" if pooled else "embedding rows: rows"

    def body(world):
        world.meter = Meter()
        plan = small.make_plan(kind, world.size, tables)
        collection = (EmbeddingBagCollection if pooled else EmbeddingCollection)(tables, world=world, plan=plan)
        expected = RowsFound()
        for step in range(2):
            drawn = small.draw(10 * step + world.rank, SAMPLES[(world.rank + step) % 4])
            collection(small.jagged(drawn))
            expected += walked(tables, plan, drawn, world.rank)
            if kind in {"table", "one rank", "row", "replicated"} and step == 0:
                found = world.meter.found()
                assert found.local + found.remote == ids_asked_for(tables, drawn)
        assert world.meter.found(stage) == world.meter.found() == expected
        return expected

    results = spmd(body)
    assert sum(found.local + found.remote for found in results) > 0
    if kind == "replicated" or len(results) == 1:
        assert not any(found.remote for found in results)


@pytest.mark.parametrize("pooled", [True, False])
def test_a_batch_that_is_only_on_its_way_is_not_counted(spmd, small, pooled):
    """A run that is interrupted sends such batches again, and would count them twice."""
    tables = small.tables if pooled else small.equal_dims

    def body(world):
        world.meter = Meter()
        collection = (EmbeddingBagCollection if pooled else EmbeddingCollection)(
            tables, world=world, plan=small.make_plan("row", world.size, tables)
        )
        lookup = collection.start_counts(small.jagged(small.draw(world.rank, 4)))
        lookup.start_ids()
        ahead = world.meter.found()
        lookup.start_lookup()
        looked_up = world.meter.found()
        lookup.finish()
        return ahead, looked_up, world.meter.found()

    for ahead, looked_up, finished in spmd(body):
        assert ahead == RowsFound()
        assert looked_up == finished != RowsFound()


def test_one_rank_that_needs_no_exchange(small):
    layout = make_layout(small.tables, small.make_plan("table", 1), 1)
    assert layout.is_direct
    drawn = small.draw(1, 6)
    samples = read_samples(small.jagged(drawn), (), layout, is_weighted=False)
    assert rows_of_whole_tables(layout.owners[0], samples) == ids_asked_for(small.tables, drawn)


def test_nothing_is_counted_without_a_meter(small):
    def body(world):
        collection = EmbeddingBagCollection(small.tables, world=world, plan=small.make_plan("mixed", world.size))
        collection(small.jagged(small.draw(world.rank, 4)))
        return world.meter

    assert Loopback.run(2, body) == [None, None]
