"""Rows that are kept as they are beside a form: what is found, learnt, taken in, lost (nothing) and saved."""

from dataclasses import replace

import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.comm.gradients import GradientReducer
from windrow.comm.loopback import Loopback
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.tables.compressed import CompressedTables, LookupThroughForm, make_forms
from windrow.recsys.tables.forms import whole_table
from windrow.recsys.tables.hot import WithHotRows, hot_rows_of
from windrow.recsys.tables.options import EmbeddingBagConfig, TableOptions
from windrow.training.shard_files import LocalTable

TABLES = [
    EmbeddingBagConfig(name="a", num_embeddings=300, embedding_dim=8),
    EmbeddingBagConfig(name="b", num_embeddings=200, embedding_dim=8),
]
FORMS = ["tensor_train", "hashed", "robe"]


def options(form: str, **changes) -> TableOptions:
    given = {"compression": 4, "hot_share": 0.1, "robe_block": 4, "optimizer": "adagrad", "learning_rate": 0.1}
    return TableOptions(form=form, **(given | changes))


def make(form: str, world=None, **changes) -> EmbeddingBagCollection:
    return EmbeddingBagCollection(TABLES, optimizer=options(form, **changes), world=world, seed=1)


def bags(*ids: list[int]):
    from windrow.recsys.batches.jagged import keyed

    values = torch.tensor([i for of_feature in ids for i in of_feature])
    assert len({len(of_feature) for of_feature in ids}) == 1
    return keyed(["a", "b"], values, torch.ones(len(values), dtype=torch.int64), num_samples=len(ids[0]))


def whole(collection) -> dict[str, torch.Tensor]:
    return {table.name: collection.whole_table(table.name) for table in TABLES}


def learn(collection, batch) -> None:
    collection(batch).values().square().sum().backward()
    collection.step()


@pytest.mark.parametrize("form", FORMS)
def test_the_first_rows_start_as_the_form_has_them_and_learn_alone(form):
    plain, hot = (make(form, hot_share=share) for share in (0.0, 0.1))
    before = whole(hot)
    assert all(torch.equal(table, before[name]) for name, table in whole(plain).items())
    learn(hot, bags([3, 3, 250], [0, 199, 7]))
    after = whole(hot)
    # Rows 3, 0 and 7 are hot: nothing else of the first rows has changed, though they share what is stored.
    changed = [(before[name] != after[name]).any(1).nonzero()[:, 0].tolist() for name in ("a", "b")]
    assert [row for row in changed[0] if row < 30] == [3]
    assert [row for row in changed[1] if row < 20] == [0, 7]
    assert 250 in changed[0]
    assert 199 in changed[1]


@pytest.mark.parametrize("form", FORMS)
def test_taking_rows_in_changes_no_lookup_and_loses_nothing(form):
    collection = make(form, hot_counted=True, hot_every=2)
    (form_of_a, *_) = (compressed.form for compressed in collection._compressed)
    for step in range(8):
        collection(bags([200, 100 + step, 7], [150, step, 9])).values().square().sum().backward()
        taken_in = form_of_a.rows_of[0].tolist()
        for compressed in collection._compressed:
            compressed.batch.step()
        before = whole(collection)
        # What `step` does once the stored tables have learnt.
        for compressed in collection._compressed:
            compressed.form.step(tuple(compressed.batch.parameters()), None)
        assert all(torch.equal(table, before[name]) for name, table in whole(collection).items())
        kept = form_of_a.rows_of[0].tolist()
        assert all(old in {-1, new} for old, new in zip(taken_in, kept, strict=True))
        if step == 1:
            assert {200, 7} <= set(kept)
    # Of steps that were counted: every second one.
    assert sorted(row for row in form_of_a.rows_of[0].tolist() if row >= 0) == [7, 101, 103, 105, 107, 200]


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_rows_leave_once_others_are_wanted_more(optimizer):
    collection = make("hashed", hot_counted=True, hot_leave=True, hot_every=1, hot_share=0.01, optimizer=optimizer)
    (hot, _) = (compressed.form for compressed in collection._compressed)
    stored = collection._compressed[0].batch
    values = stored._stored(1)["weight"]
    learn(collection, bags([5, 5, 6, 7], [1, 1, 1, 1]))
    assert hot.rows_of[0].tolist() == [5, 6, 7]
    for _ in range(2):
        learn(collection, bags([5, 6, 7, 7], [1, 1, 1, 1]))
    stayed = values[[0, 2]].clone()
    learn(collection, bags([200, 200, 200, 200], [1, 1, 1, 1]))
    # Row 6 was wanted as much as 5, of which both have a place; the larger number leaves.
    assert hot.rows_of[0].tolist() == [5, 200, 7]
    # The row that came starts as the form has it, and goes on at the pace of what it was computed from.
    with torch.no_grad():
        cold = hot.cold.rows(0, torch.tensor([200]), tuple(stored.parameters())[:1])
    assert torch.equal(values[1], cold[0])
    assert optimizer == "adam" or torch.equal(values[[0, 2]], stayed)
    for name, of_cold in stored._stored(0).items():
        if name != "weight" and of_cold.ndim:
            mean = 0 if name == "first_moment" else of_cold.mean()
            kept = stored._stored(1)[name]
            torch.testing.assert_close(kept[1], torch.full_like(kept[1], mean))
            assert not torch.allclose(kept[0], kept[1])


def test_gradients_are_counted():
    collection = make("hashed", hot_counted=True, hot_by="gradients", hot_every=1, hot_bytes=32, hot_share=0)
    upstream = torch.ones(4, 16)
    upstream[1] = 30
    collection(bags([3, 9, 3, 3], [1, 2, 3, 4])).values().backward(upstream)
    collection.step()
    # Row 9 occurs once, but with a gradient ten times as long as the three of row 3 together.
    (hot, _) = (compressed.form for compressed in collection._compressed)
    assert hot.rows_of[0].tolist() == [9]
    ids, lengths = hot.counted[0].counts()
    assert ids.tolist() == [3, 9]
    assert lengths.tolist() == [round(256 * 3 / 16.5), round(256 * 30 / 16.5)]


def test_the_first_rows_cannot_leave():
    with pytest.raises(RecipeError, match="hot_counted = true"):
        options("hashed", hot_leave=True)
    with pytest.raises(RecipeError, match='hot_by = "gradients"'):
        options("hashed", hot_by="gradients")


def test_ranks_take_the_same_rows_in():
    def body(world):
        collection = make("tensor_train", world, hot_counted=True, hot_every=1, hot_bytes=64, hot_share=0)
        for _ in range(2):
            learn(collection, bags([7, 9] if world.rank else [8, 9], [1, 2]))
        return [compressed.form.rows_of[0].tolist() for compressed in collection._compressed]

    one, other = Loopback.run(2, body)
    # Row 9 and row 2 of both ranks, or the smaller row where counts are equal.
    assert one == other == [[9, 7], [1, 2]]


@pytest.mark.parametrize("leave", [False, True])
def test_ranks_choose_as_one_would(leave):
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 40, (2, 2, 6), generator=draw) for _ in range(24)]

    def body(world):
        collection = make("hashed", world, hot_counted=True, hot_leave=leave, hot_every=8)
        for ids in batches:
            mine = ids.unbind(0) if world.size == 1 else [ids[world.rank]]
            values = [collection(bags(*of_rank.tolist())).values() for of_rank in mine]
            sum(value.square().sum() for value in values).backward()
            collection.step()
        return [compressed.form.rows_of[0].tolist() for compressed in collection._compressed]

    assert Loopback.run(2, body) == 2 * Loopback.run(1, body)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_hot_rows_learn_from_all_ranks(optimizer):
    draw = torch.Generator().manual_seed(2)
    batches = [torch.randint(0, 60, (2, 2, 6), generator=draw) for _ in range(4)]

    def body(world):
        collection = make("hashed", world, optimizer=optimizer)
        reducer = GradientReducer(world, collection.replicated_parameters())
        for ids in batches:
            mine = ids.unbind(0) if world.size == 1 else [ids[world.rank]]
            reducer.start()
            sum(collection(bags(*of_rank.tolist())).values().square().sum() for of_rank in mine).backward()
            reducer.finish()
            collection.step()
        return whole(collection)

    (alone,) = Loopback.run(1, body)
    one, other = Loopback.run(2, body)
    for name, table in alone.items():
        assert torch.equal(one[name], other[name])
        torch.testing.assert_close(one[name], table, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"hot_by": "gradients", "hot_leave": True, "hot_share": 0.01}])
def test_a_run_goes_on_as_if_it_had_not_been_stopped(changes):
    def compressed() -> CompressedTables:
        chosen = options("tensor_train", hot_counted=True, hot_every=3, **changes)
        (form, _) = make_forms(TABLES, chosen)
        return CompressedTables(form, chosen, replicated=False, device=None, seed=1)

    def go_on(tables: CompressedTables, steps: range) -> None:
        batch = LookupThroughForm(tables.form.tables, (0,), tables, pooled=True)
        for step in steps:
            ids = torch.tensor([step, 7 * step % 300, 5, 290])
            batch(ids, torch.arange(5)).square().sum().backward()
            tables.step(Loopback.single(), stage="tables")

    one, other = compressed(), compressed()
    go_on(one, range(10))
    saved = [replace(part, tensor=part.tensor.clone()) for part in one.batch.state()]
    other.batch.load_state(saved)
    for tables in (one, other):
        go_on(tables, range(10, 20))
    for mine, theirs in zip(one.batch.state(), other.batch.state(), strict=True):
        assert torch.equal(mine.tensor, theirs.tensor), (mine.piece, mine.name)


def test_sizes():
    table = LocalTable(name="t", rows=(0, 1000), columns=(0, 8))
    assert hot_rows_of(TableOptions(hot_share=0.01), table) == 10
    assert hot_rows_of(TableOptions(hot_share=0.01, hot_bytes=3200), table) == 100
    assert hot_rows_of(TableOptions(hot_bytes=10**9), table) == 1000
    (form,) = make_forms(TABLES, options("robe"))
    assert isinstance(form, WithHotRows)
    assert form.stored[1:] == (whole_table("a.hot", 30, 8), whole_table("b.hot", 20, 8))
