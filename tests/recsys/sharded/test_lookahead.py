"""Vectors that travel before the minibatch before them is learnt from change no result, bit for bit."""

import numpy as np
import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.comm.wire import WireOptions
from windrow.recsys.sharded.in_flight import look_up_together
from windrow.recsys.sharded.lookahead import find_unchanged
from windrow.recsys.sharded.packing import unpack
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.tables.options import TableOptions

STEPS = 5
GROUPS = (("history", "flag"),)
POOLED = {
    "table": {"kind": "table"},
    "row": {"kind": "row"},
    "grid": {"kind": "grid"},
    "rows on every rank": {"kind": "rows on every rank"},
    "copies": {"kind": "copies, row"},
    "weighted": {"kind": "mixed", "is_weighted": True},
    "deduplicated": {"kind": "grid", "groups": GROUPS},
    "int8": {"kind": "grid", "wire": WireOptions(vectors="int8", gradients="int8")},
    "bf16": {"kind": "table", "wire": WireOptions(vectors="bf16")},
    "fp16 tables": {"kind": "row", "precision": "fp16", "optimizer": "sgd"},
    "adam": {"kind": "table", "optimizer": "adam"},
    "robe": {"kind": "table", "form": "robe", "compression": 2, "robe_block": 2, "optimizer": "adagrad"},
    "robe, cut": {"kind": "row", "form": "robe", "compression": 2, "robe_block": 2, "robe_sharded": True},
}
UNPOOLED = {
    "table": {"kind": "table"},
    "row": {"kind": "row"},
    "ids once": {"kind": "row", "index_dedup": True},
    "copies, ids once": {"kind": "copies, row", "index_dedup": True},
    "int8": {"kind": "column", "wire": WireOptions(vectors="int8")},
    "deduplicated": {"kind": "grid", "groups": GROUPS},
}
IN_COLLECTION = {"is_weighted", "groups", "wire", "index_dedup"}


def make(small, world, *, pooled, kind, **options):
    own = {name: options.pop(name) for name in IN_COLLECTION & options.keys()}
    tables = small.own_features if "copies" in kind and pooled else small.tables
    if own.get("is_weighted"):
        tables = small.sums
    chosen = TableOptions(**{"learning_rate": 0.3} | options)
    form = EmbeddingBagCollection if pooled else EmbeddingCollection
    tables = tables if pooled else small.equal_dims
    plan = "table_wise" if options.get("form") == "robe" and options.get("robe_sharded") else None
    plan = "row_wise" if plan else small.make_plan(kind, world.size, tables)
    return form(tables, world=world, plan=plan, optimizer=chosen, **own)


def batch_of(small, collection, step):
    """Few samples, so that rows of the next minibatch are often not in this one."""
    drawn = small.draw(10 * step + collection.world.rank, (step + collection.world.rank) % 3)
    if collection.groups:
        return small.deduplicated(drawn, collection.groups)
    return small.jagged(drawn, weighted=collection.has_weights), ()


def learn(collection, found):
    values = (
        [found.values()] if isinstance(collection, EmbeddingBagCollection) else [v.values() for v in found.values()]
    )
    sum(one.square().sum() for one in values).backward()
    for parameter in collection.replicated_parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        collection.world.all_reduce(parameter.grad, stage="replicated")
    collection.step()
    return [one.detach().clone() for one in values]


def train_ahead(small, collection, *, move_after=None):
    """As `windrow.recsys.recommender.pipelined` does."""
    batches = [batch_of(small, collection, step) for step in range(STEPS)]
    lookups = [collection.prefetch(*batch) for batch in batches]
    found = []
    for step, batch in enumerate(batches):
        for lookup in lookups[step : step + 2]:
            lookup.start_ids()
        for following in lookups[step + 1 : step + 2]:
            lookups[step].look_ahead(following)
        lookups[step].start_lookup()
        found.append(learn(collection, collection(*batch)))
        if step == move_after:
            move(small, collection)
    return found


def move(small, collection):
    collection.move_to(small.make_plan("one rank", collection.world.size, collection.configs))


def check_equal(small, world, *, pooled, options, move_after=None):
    expected_tables = make(small, world, pooled=pooled, **options)
    batches = [batch_of(small, expected_tables, step) for step in range(STEPS)]
    expected = []
    for step, batch in enumerate(batches):
        expected.append(learn(expected_tables, expected_tables(*batch)))
        if step == move_after:
            move(small, expected_tables)
    tables = make(small, world, pooled=pooled, **options)
    world.meter = meter = Meter()
    found = train_ahead(small, tables, move_after=move_after)
    world.meter = None
    for one, other in zip(found, expected, strict=True):
        assert all(map(torch.equal, one, other))
    assert all(torch.equal(a[1], b[1]) for a, b in zip(small.local(tables), small.local(expected_tables), strict=True))
    return tables.lookahead.is_possible, meter.totals(f"{tables.stage}: vectors early").bytes_sent


@pytest.mark.parametrize(
    ("pooled", "name"), [*((True, name) for name in POOLED), *((False, name) for name in UNPOOLED)]
)
def test_results_are_those_without(spmd, small, pooled, name):
    options = (POOLED if pooled else UNPOOLED)[name]
    found = spmd(lambda world: check_equal(small, world, pooled=pooled, options=options))
    can, sent = zip(*found, strict=True)
    assert all(can) == (len(found) > 1 and name not in {"adam", "robe"})
    assert any(sent) == all(can)


def test_tables_may_move_although_vectors_have_gone_ahead(spmd, small):
    spmd(lambda world: check_equal(small, world, pooled=True, options={"kind": "row"}, move_after=2)[0])


def test_what_is_unchanged(small):
    """By sets: a vector is early where it names no row of the same table that any rank looked up before."""

    def body(world):
        tables = make(small, world, pooled=True, kind="row")
        owner = tables.layout.owners[world.rank]
        wanted = []
        for step in range(2):
            lookup = tables.start_counts(*batch_of(small, tables, step))
            wanted.append(unpack(lookup.received(), owner, tables.form))
        before, after = wanted
        flags = tables.lookahead.flags
        assert None not in flags
        # Twice: marks are taken back.
        for _ in range(2):
            found = find_unchanged(flags, before, after, pooled=True)
        none = find_unchanged([None] * len(owner.batches), before, after, pooled=True)
        for (first, stop), old, new, early, empty in zip(owner.batches, before, after, found, none, strict=True):
            touched = set[tuple[int, int]]()
            for place, lookup in enumerate(owner.lookups[first:stop]):
                bags = len(old.offsets[1:]) // (stop - first)
                ids = old.values[old.offsets[place * bags] : old.offsets[(place + 1) * bags]].tolist()
                touched |= {(lookup.member, row) for row in ids}
            bags = len(new.offsets[1:]) // (stop - first)
            for place, lookup in enumerate(owner.lookups[first:stop]):
                for bag in range(bags):
                    start, end = new.offsets[place * bags + bag : place * bags + bag + 2].tolist()
                    ids = {(lookup.member, row) for row in new.values[start:end].tolist()}
                    assert bool(early[bag, place]) == (not ids & touched)
                    assert bool(empty[bag, place]) == (not ids)
        return np.concatenate([early.reshape(-1) for early in found]).tolist()

    flat = [flag for of_rank in Loopback.run(2, body) for flag in of_rank]
    assert {True, False} == set(flat)


@pytest.mark.parametrize("change", ["loaded", "reset"])
def test_rows_that_are_written_in_between_are_looked_up_anew(small, change):
    """Values that are loaded, or made anew, after vectors have gone ahead."""

    def body(world):
        tables = make(small, world, pooled=True, kind="row")
        values = {key: torch.full_like(value, 7.0) for key, value in tables.state_dict().items()}
        batches = [batch_of(small, tables, step) for step in (1, 3)]
        first, second = (tables.prefetch(*batch) for batch in batches)
        for lookup in (first, second):
            lookup.start_ids()
        first.look_ahead(second)
        learn(tables, tables(*batches[0]))
        if change == "loaded":
            tables.load_state_dict(values)
        else:
            tables.reset_parameters()
        with torch.no_grad():
            assert torch.equal(tables(*batches[1]).values(), tables(*batches[1]).values())

    Loopback.run(2, body)


def test_lookups_at_once_have_no_lookahead(small):
    def body(world):
        tables = make(small, world, pooled=True, kind="row")
        lookups = [tables.prefetch(*batch_of(small, tables, step)) for step in range(3)]
        look_up_together(lookups[:2])
        with pytest.raises(RecipeError, match="has no lookahead"):
            lookups[0].look_ahead(lookups[1])
        with pytest.raises(RecipeError, match="has no lookahead"):
            lookups[2].look_ahead(lookups[0])
        others = [tables.prefetch(*batch_of(small, tables, step)) for step in range(2)]
        others[0].look_ahead(others[1])
        with pytest.raises(RecipeError, match="cannot be looked up at once"):
            look_up_together(others)

    Loopback.run(2, body)
