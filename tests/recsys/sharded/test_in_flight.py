"""Minibatches in flight, and those that are looked up at once, give what one after the other, or one of all, gives."""

import gc
import weakref

import pytest
import torch

from windrow.comm.errors import PeerFailedError, RecipeError
from windrow.comm.loopback import Loopback
from windrow.recsys.sharded.in_flight import look_up_together
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.tables.options import TableOptions

STEPS = 5


def batch_of(small, world, step):
    return small.jagged(small.draw(10 * step + world.rank, (step + world.rank) % 5))


def make(small, world, kind):
    plan = small.make_plan(kind, world.size)
    return EmbeddingBagCollection(
        small.tables, world=world, plan=plan, optimizer=TableOptions(optimizer="sgd", learning_rate=0.3)
    )


def learn(values) -> torch.Tensor:
    values.square().sum().backward()
    return values.detach().clone()


@pytest.mark.parametrize("kind", ["table", "grid"])
def test_pipeline(spmd, small, kind):
    def body(world):
        collection = make(small, world, kind)
        expected = [learn(collection(batch_of(small, world, step)).values()) for step in range(STEPS)]
        collection = make(small, world, kind)
        first = collection.start_counts(batch_of(small, world, 0))
        first.start_ids()
        flying = [first, collection.start_counts(batch_of(small, world, 1))]
        for step in range(STEPS):
            now = flying.pop(0)
            if flying:
                flying[0].start_ids()
            if step + 2 < STEPS:
                flying.append(collection.start_counts(batch_of(small, world, step + 2)))
            now.start_lookup()
            (rows,) = now.finish()
            assert torch.equal(learn(rows.rows), expected[step])

    spmd(body)


def update(collection):
    for parameter in collection.replicated_parameters():
        collection.world.all_reduce(parameter.grad, stage="replicated")
    collection.step()


OPTIONS = {
    "rows": {"optimizer": "rowwise_adagrad"},
    "adam": {"optimizer": "adam"},
    "robe": {"form": "robe", "compression": 2, "robe_block": 2, "optimizer": "adagrad"},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["table", "grid", "row", "rows on every rank"])
@pytest.mark.parametrize("pooled", [True, False], ids=["pooled", "unpooled"])
def test_several_looked_up_at_once_are_learnt_from_as_one(spmd, small, pooled, kind, options):
    """Rows that several name, and optimisers that are not linear, tell one update from several."""
    if options == "robe" and kind != "table":
        pytest.skip("ROBE's array is on every rank")
    sizes = [3, 0, 4]

    def make_collection(world):
        tables = small.tables if pooled else small.equal_dims
        form = EmbeddingBagCollection if pooled else EmbeddingCollection
        plan = small.make_plan(kind, world.size, tables)
        chosen = TableOptions(**{"learning_rate": 0.3} | OPTIONS[options])
        return form(tables, world=world, plan=plan, optimizer=chosen, **{} if pooled else {"index_dedup": True})

    def finish(collection, batch):
        found = collection(batch)
        return [found.values()] if pooled else [rows.values() for rows in found.values()]

    def body(world):
        drawn = [small.draw(10 * n + world.rank, size + world.rank % 2) for n, size in enumerate(sizes)]
        together = {feature: [bag for one in drawn for bag in one[feature]] for feature in drawn[0]}
        expected, collection = make_collection(world), make_collection(world)
        batches = [small.jagged(one) for one in drawn]
        lookups = [collection.prefetch(batch) for batch in batches]
        look_up_together(lookups)
        parts = []
        for batch in batches:
            values = finish(collection, batch)
            sum(one.square().sum() for one in values).backward()
            parts.append([one.detach().clone() for one in values])
        whole = finish(expected, small.jagged(together))
        sum(one.square().sum() for one in whole).backward()
        for each in (expected, collection):
            update(each)
        if pooled:
            torch.testing.assert_close(torch.cat([one for (one,) in parts]), whole[0].detach())
        for one, other in zip(small.local(collection), small.local(expected), strict=True):
            torch.testing.assert_close(one[1], other[1], rtol=1e-5, atol=1e-6)
        first = [one for _, one in small.local(make_collection(world))]
        return not all(torch.equal(one, other) for one, (_, other) in zip(first, small.local(collection), strict=True))

    assert any(spmd(body))


def test_backward_passes_out_of_order_are_refused(small):
    def body(world):
        collection = make(small, world, "table")
        batches = [batch_of(small, world, step) for step in range(2)]
        look_up_together([collection.prefetch(batch) for batch in batches])
        _, second = (collection(batch).values() for batch in batches)
        with pytest.raises(RecipeError, match="ran out of order, or one was left out"):
            learn(second)

    Loopback.run(2, body)


def test_a_lookup_is_let_go_of_at_once(small):
    """Not when Python looks for cycles: vectors of all ranks hang on it."""
    collection = make(small, Loopback.single(), "row")
    gc.disable()
    try:
        lookup = collection.start_counts(batch_of(small, collection.world, 1))
        (rows,) = lookup.finish()
        learn(rows.rows)
        gone = weakref.ref(lookup)
        del lookup
        assert gone() is None
    finally:
        gc.enable()


def test_a_rank_that_leaves_out_its_backward_pass_is_named(small):
    def body(world):
        result = make(small, world, "table")(batch_of(small, world, 1)).values()
        if world.rank == 0:
            learn(result)

    with pytest.raises(PeerFailedError, match="rank 1 has finished"):
        Loopback.run(2, body)
