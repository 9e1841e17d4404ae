"""Rows in 8 and 4 bits: what is stored, that rounding is right on average, and how rows learn, alone and on ranks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow import recsys
from windrow.comm.errors import RecipeError
from windrow.comm.gradients import GradientReducer
from windrow.comm.loopback import Loopback
from windrow.recsys.batches.jagged import keyed
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.tables.compressed import CompressedTables, LookupThroughForm, make_forms
from windrow.recsys.tables.options import EmbeddingBagConfig, TableOptions
from windrow.recsys.tables.quantised import pack, unpack

TABLES = [EmbeddingBagConfig(name="a", num_embeddings=200, embedding_dim=24)]
BITS = {"int8": 8, "int4": 4}
every_form = pytest.mark.parametrize("form", BITS)


def options(form: str, **changes) -> TableOptions:
    return TableOptions(**({"form": form, "optimizer": "sgd", "learning_rate": 0.05, "initial_scale": 1.0} | changes))


def compressed(form: str, **changes) -> CompressedTables:
    chosen = options(form, **changes)
    (found,) = make_forms(TABLES, chosen)
    return CompressedTables(found, chosen, replicated=False, device=None, seed=1)


def whole(tables: CompressedTables) -> torch.Tensor:
    return tables.form.whole_table("a", tuple(tables.batch.parameters()))


@given(st.integers(0, 5), st.integers(1, 40), st.sampled_from([4, 8]), st.integers(0, 99))
def test_a_number_comes_back_to_half_a_step(rows, dim, bits, seed):
    values = torch.rand(rows, dim, generator=torch.Generator().manual_seed(seed)) * 10 - 3
    words = pack(values, bits)
    assert words.shape == (rows, 2 + -(-dim * bits // 32))
    found = unpack(words, dim, bits)
    step_of_row = (values.amax(1) - values.amin(1)) / (2**bits - 1) if rows else torch.empty(0)
    assert bool(((found - values).abs() <= 0.501 * step_of_row[:, None] + 1e-6).all())
    # What comes out goes in again as it is.
    torch.testing.assert_close(unpack(pack(found, bits), dim, bits), found, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("bits", BITS.values())
def test_codes_by_hand(bits):
    top = 2**bits - 1
    words = pack(torch.tensor([[0.0, float(top), 1.0, 2.6], [5.0, 5.0, 5.0, 5.0]]), bits)
    assert words[:, :2].tolist() == [[1.0, 0.0], [0.0, 5.0]]
    codes = sum(code << (bits * place) for place, code in enumerate([0, top, 1, 3]))
    assert int(words[0, 2].view(torch.int32)) & (2**32 - 1) == codes
    assert unpack(words, 4, bits).tolist() == [[0.0, float(top), 1.0, 3.0], [5.0] * 4]


@pytest.mark.parametrize("bits", BITS.values())
def test_rounding_by_chance_is_right_on_average(bits):
    values = torch.tensor([[0.0, 1.0, 0.2371, 0.81]]).expand(20_000, 4)
    chance = torch.rand(values.shape, generator=torch.Generator().manual_seed(1))
    found = unpack(pack(values, bits, chance), 4, bits)
    width = 1 / (2**bits - 1)
    torch.testing.assert_close(found.mean(0), values[0], rtol=0, atol=4 * width / 20_000**0.5)
    assert all(len(column.unique()) > 1 for column in found[:, 2:].unbind(1))


@every_form
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
@pytest.mark.parametrize("hot", [0.0, 0.1])
def test_rows_learn_as_dense_ones_do_but_for_rounding(form, optimizer, hot):
    tables = compressed(form, optimizer=optimizer, hot_share=hot)
    batch = LookupThroughForm(tables.form.tables, (0, 0), tables, pooled=True)
    before, sums = whole(tables), torch.zeros(200)
    expected = before.clone()
    for turn in range(3):
        ids = torch.randint(0, 200, (120,), generator=torch.Generator().manual_seed(turn))
        upstream = torch.randn(60, 48, generator=torch.Generator().manual_seed(turn))
        (batch(ids, torch.arange(121)) * upstream).sum().backward()
        gradient = torch.zeros(200, 24).index_add_(0, ids, torch.cat([upstream[:, :24], upstream[:, 24:]]))
        sums += gradient.square().mean(1)
        divisor = sums.sqrt().clamp_min(1e-30)[:, None] if optimizer == "rowwise_adagrad" else 1
        expected -= 0.05 * gradient / divisor
        tables.step(Loopback.single(), stage="tables")
    after, widest = whole(tables), (expected.amax(1) - expected.amin(1)).max() / (2 ** BITS[form] - 1)
    # Three roundings of a step of the row at most; hot rows have none.
    assert float((after - expected).abs().max()) <= 3.5 * widest
    assert float((after - expected).mean().abs()) <= widest / 10
    assert torch.allclose(after[: int(200 * hot)], expected[: int(200 * hot)], atol=1e-5)
    untouched = (after == before).all(1)
    assert bool(((gradient_free := sums == 0) <= untouched).all())
    assert bool(gradient_free.any())


@every_form
@pytest.mark.parametrize("dim", [7, 8, 33])
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_compiled_loops_equal_operators_bit_for_bit(form, dim, optimizer):
    draw = torch.Generator().manual_seed(dim)
    table = EmbeddingBagConfig(name="b", num_embeddings=5000, embedding_dim=dim)
    (rows,) = make_forms([table], options(form, optimizer=optimizer))
    (stored,) = rows.first_values(3)
    rows.start([stored])
    ids, gradients = torch.randperm(5000, generator=draw)[:3000], torch.randn(3000, dim, generator=draw)
    found = rows.rows(0, ids, [stored.requires_grad_()])
    assert torch.equal(found, unpack(stored[ids], dim, BITS[form]))
    found.backward(gradients)
    before, rates = stored.detach().clone(), torch.full((3000,), 0.05)
    kept = [torch.zeros(5000)] if optimizer == "rowwise_adagrad" else []
    stored.requires_grad_(False)  # PyTorch's own
    rows.learn([stored], kept, 0.05, 1e-8)
    if kept:
        rates /= gradients.square().mean(1).sqrt() + 1e-8
    learnt = unpack(before[ids], dim, BITS[form]) - rates[:, None] * gradients
    expected = before.clone()
    expected[ids] = pack(learnt, BITS[form], rows.chance(ids))
    assert torch.equal(stored.view(torch.int32), expected.view(torch.int32))


@every_form
def test_small_changes_are_not_lost(form):
    """A thousand changes of a hundredth of a step: to nearest, none would be there."""
    tables = compressed(form, learning_rate=1e-2)
    batch = LookupThroughForm(tables.form.tables, (0,), tables, pooled=True)
    before, width = whole(tables)[:100], 2 / (2 ** BITS[form] - 1)
    upstream = torch.zeros(100, 24)
    upstream[:, 3] = width
    for _ in range(300):
        batch(torch.arange(100), torch.arange(101)).backward(upstream)
        tables.step(Loopback.single(), stage="tables")
    moved = (before - whole(tables)[:100])[:, 3]
    assert float(moved.mean()) == pytest.approx(3 * width, rel=0.3)


@every_form
def test_ranks_learn_alike_and_as_one_does(form):
    draw = torch.Generator().manual_seed(2)
    batches = [torch.randint(0, 200, (2, 30), generator=draw) for _ in range(4)]

    def body(world):
        collection = EmbeddingBagCollection(TABLES, world=world, plan="replicated", optimizer=options(form), seed=1)
        reducer = GradientReducer(world, collection.replicated_parameters())
        for ids in batches:
            mine = ids.unbind(0) if world.size == 1 else [ids[world.rank]]
            reducer.start()
            each = torch.ones(30, dtype=torch.int64)
            bags = [keyed(["a"], of_rank, each, num_samples=30) for of_rank in mine]
            sum(collection(of_rank).values().square().sum() for of_rank in bags).backward()
            reducer.finish()
            collection.step()
        return collection.whole_table("a")

    (alone,), (one, other) = Loopback.run(1, body), Loopback.run(2, body)
    assert torch.equal(one, other)
    # A sum in another order may make another code of a number that is at the edge.
    assert float(((one - alone).abs() > 1e-5).float().mean()) < 0.01
    torch.testing.assert_close(one, alone, rtol=0, atol=0.3 if form == "int4" else 0.03)


@every_form
def test_a_run_goes_on_as_if_it_had_not_been_stopped(form):
    def go_on(tables: CompressedTables, steps: range) -> None:
        batch = LookupThroughForm(tables.form.tables, (0,), tables, pooled=True)
        for turn in steps:
            batch(torch.tensor([turn, 5, 199]), torch.arange(4)).square().sum().backward()
            tables.step(Loopback.single(), stage="tables")

    one, other = (compressed(form, optimizer="rowwise_adagrad") for _ in range(2))
    go_on(one, range(5))
    other.batch.load_state([replace(part, tensor=part.tensor.clone()) for part in one.batch.state()])
    for tables in (one, other):
        go_on(tables, range(5, 10))
    for mine, theirs in zip(one.batch.state(), other.batch.state(), strict=True):
        assert torch.equal(mine.tensor.flatten().view(torch.int32), theirs.tensor.flatten().view(torch.int32))


@every_form
def test_it_starts_from_the_values_of_a_dense_table(form, tmp_path):
    first = EmbeddingBagCollection(TABLES, optimizer=options("dense"), seed=1).whole_table("a")
    width = 2.0 / (2 ** BITS[form] - 1)
    assert float((whole(compressed(form)) - first).abs().max()) <= width / 2 + 1e-6
    np.save(tmp_path / "a.npy", 3 * first.numpy())
    given = whole(compressed(form, pretrained={"a": tmp_path / "a.npy"}))
    assert float((given - 3 * first).abs().max()) <= 3 * width / 2 + 1e-6


@pytest.mark.parametrize("changes", [{"optimizer": "adam"}, {"optimizer": "adagrad"}, {"weight_decay": 0.1}])
def test_optimisers_that_move_every_row_are_refused(changes):
    with pytest.raises(RecipeError, match="rowwise_adagrad or sgd"):
        make_forms(TABLES, options("int8", **changes))


def test_sizes():
    (form,) = make_forms(TABLES, options("int4"))
    assert [(table.num_rows, table.dim) for table in form.stored] == [(200, 2 + 3)]
    with pytest.raises(RecipeError, match="would store"):
        make_forms([EmbeddingBagConfig(name="b", num_embeddings=9, embedding_dim=2)], options("int8"))
    assert recsys.TableOptions(form="int8").form == "int8"
