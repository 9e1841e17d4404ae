"""Tables that move to another plan: nothing is lost, and what they learn later is what they would have learnt there."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import PlanError, RecipeError
from windrow.comm.gradients import GradientReducer
from windrow.comm.loopback import Loopback
from windrow.comm.wire import WireOptions
from windrow.recsys.sharded import moving
from windrow.recsys.sharded.moving import plan_rounds
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.sequences import EmbeddingCollection
from windrow.recsys.tables.options import TableOptions, TableOverrides
from windrow.training.shard_files import LocalTable, ShardReader, StateTensor, join_parts, write_shard_file

CHAIN = [
    "row_wise",
    "copies, grid",
    "column_wise",
    "replicated",
    "rows on every rank",
    "copies, many pieces",
    "round_robin",
]
HOT = {"hot_share": 0.2, "hot_counted": True, "hot_every": 1}
FORMS = {
    "tag": TableOverrides(form="codes", compression=2, code_parts=1, code_every=2, **HOT),
    "item": TableOverrides(form="int8", optimizer="rowwise_adagrad", hot_share=0.2),
}
OPTIONS = {
    "sgd": TableOptions(optimizer="sgd"),
    "adagrad": TableOptions(optimizer="adagrad", per_table={"item": TableOverrides(learning_rate=0.3)}),
    "rowwise_adagrad": TableOptions(),
    "adam": TableOptions(optimizer="adam"),
    "several": TableOptions(per_table={"item": TableOverrides(optimizer="adam"), "tag": TableOverrides(eps=1e-3)}),
    "fp16": TableOptions(precision="fp16"),
    "compressed": TableOptions(optimizer="adagrad", per_table=FORMS),
}
MAKES_COPIES = {"replicated", "rows on every rank", "copies, grid", "copies, many pieces"}


def make(small, world, plan, options, *, pooled=True, **more):
    kind, tables = (EmbeddingBagCollection, small.tables) if pooled else (EmbeddingCollection, small.equal_dims)
    return kind(tables, world=world, plan=plan_of(small, world, plan, tables), optimizer=options, seed=3, **more)


def plan_of(small, world, plan, tables):
    return plan if "_" in plan or plan == "replicated" else small.make_plan(plan, world.size, tables)


def move(small, collection, plan):
    collection.move_to(plan_of(small, collection.world, plan, collection.configs))


def values_of(result) -> torch.Tensor:
    parts = [rows.values() for rows in result.values()] if isinstance(result, dict) else [result.values()]
    return torch.cat([part.flatten() for part in parts])


def train(small, collection, steps) -> list[torch.Tensor]:
    """What is looked up in some steps, each followed by learning."""
    world, found = collection.world, []
    reducer = GradientReducer(world, collection.replicated_parameters())
    for step in steps:
        reducer.start()
        collection.round_anew(step)
        values = values_of(collection(small.jagged(small.draw(10 * step + world.rank, 4 + (step + world.rank) % 3))))
        found.append(values.detach().clone())
        (values.tanh() * torch.linspace(-1, 1, values.numel())).sum().backward()
        reducer.finish()
        collection.step()
    reducer.close()
    return found


def state_of(collection) -> list[StateTensor]:
    parts = [part for batch in collection.local_tables() for part in batch.state()]
    return [replace(part, tensor=part.tensor.clone()) for part in parts]


def equal_parts(one: StateTensor, other: StateTensor) -> bool:
    same = replace(one, tensor=other.tensor) == other and one.tensor.dtype == other.tensor.dtype
    return same and one.tensor.numpy().tobytes() == other.tensor.numpy().tobytes()


def kept(world, collection) -> dict[tuple[str, str], StateTensor]:
    """Every tensor of tables that are whole on one rank."""
    everyone = world.all_gather_object(state_of(collection), stage="test")
    return {(part.piece.name, part.name): part for parts in everyone for part in parts}


@pytest.fixture(autouse=True)
def many_rounds(monkeypatch) -> None:
    monkeypatch.setattr(moving, "VALUES_AT_ONCE", 150)


@pytest.mark.parametrize(("options", "pooled"), [*((name, True) for name in OPTIONS), ("rowwise_adagrad", False)])
def test_a_round_trip_changes_no_bit(spmd, small, options, pooled):
    def body(world):
        collection = make(small, world, "round_robin", OPTIONS[options], pooled=pooled)
        train(small, collection, range(3))
        first, before = kept(world, collection), state_of(collection)
        for plan in CHAIN:
            if options == "fp16" and plan in MAKES_COPIES and (world.size > 1 or "copies" in plan):
                continue
            move(small, collection, plan)
            for part in state_of(collection):
                there = first[part.piece.name, part.name].tensor
                place = tuple(slice(*getattr(part.piece, axis)) for axis in part.axes)
                assert part.tensor.numpy().tobytes() == there[place].contiguous().numpy().tobytes()
        after = state_of(collection)
        assert all(equal_parts(one, other) for one, other in zip(before, after, strict=True))

    spmd(body)


@pytest.mark.parametrize("kind", ["grid", "column"])
def test_copies_get_back_what_they_gave(spmd, small, kind):
    """Bit for bit, also what is kept for each row of pieces that have unequal numbers of columns."""

    def body(world):
        plan = small.make_plan(f"copies, {kind}", world.size, small.own_features)
        collection = EmbeddingBagCollection(small.own_features, world=world, plan=plan, seed=3)
        train(small, collection, range(3))
        before = state_of(collection)
        collection.refresh_copies()
        assert all(equal_parts(one, other) for one, other in zip(before, state_of(collection), strict=True))
        if world.size > 1:
            with pytest.raises(
                RecipeError, match=r"'item' is not whole on this rank, .* or ranks have copies of its rows"
            ):
                collection.embedding_bags["item"]

    spmd(body)


@pytest.mark.parametrize("options", [name for name in OPTIONS if name != "fp16"])
def test_a_move_gives_what_a_checkpoint_gives(small, tmp_path, options):
    def body(world):
        collection = make(small, world, "round_robin", OPTIONS[options])
        for number, plan in enumerate(CHAIN):
            train(small, collection, range(2))
            folder = tmp_path / str(number)
            if world.rank == 0:
                folder.mkdir()
            world.barrier(stage="test")
            state = [part for part in state_of(collection) if world.rank == 0 or not part.replicated]
            write_shard_file(folder / str(world.rank), state)
            world.barrier(stage="test")
            move(small, collection, plan)
            with ShardReader(folder, [str(rank) for rank in range(world.size)]) as reader:
                for part in state_of(collection):
                    piece = part.piece
                    read = reader.read(piece.name, piece.rows, piece.columns, part.name)
                    assert equal_parts(part, replace(part, tensor=read))

    Loopback.run(3, body)


@pytest.mark.parametrize("options", ["rowwise_adagrad", "several", "compressed"])
def test_learning_goes_on_as_under_the_new_plan_from_the_start(spmd, small, options):
    wire = WireOptions(vectors="bf16", gradients="int8")

    def body(world):
        collection = make(small, world, "grid", OPTIONS[options], wire=wire)
        collection.set_learning_rate(0.07)
        train(small, collection, range(3))
        for plan in ("row_wise", "replicated", "column_wise", "mixed"):
            move(small, collection, plan)
            other = make(small, world, plan, OPTIONS[options], wire=wire)
            other.set_learning_rate(0.07)
            for mine, its in zip(collection.local_tables(), other.local_tables(), strict=True):
                its.load_state(mine.state())
            shapes = [(name, parameter.shape) for name, parameter in collection.named_parameters()]
            assert shapes == [(name, parameter.shape) for name, parameter in other.named_parameters()]
            found, expected = (train(small, each, range(3, 6)) for each in (collection, other))
            assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))
            assert all(equal_parts(*both) for both in zip(state_of(collection), state_of(other), strict=True))

    spmd(body)


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize(
    ("before", "after"), [("round_robin", "grid"), ("grid", "round_robin"), ("grid", "replicated")]
)
def test_prefetched_lookups_find_the_tables_where_they_are(spmd, small, before, after, pooled):
    def body(world):
        collection = make(small, world, before, OPTIONS["sgd"], pooled=pooled)
        batches = [small.jagged(small.draw(step + world.rank, 3)) for step in range(3)]
        expected = [values_of(collection(batch)) for batch in batches]
        collection.prefetch(batches[0]).start_ids()
        collection.prefetch(batches[1])
        move(small, collection, after)
        for batch, values in zip(batches, expected, strict=True):
            torch.testing.assert_close(values_of(collection(batch)), values)

    with torch.no_grad():
        spmd(body)


def test_a_process_alone_finds_prefetched_rows_in_cut_tables(small):
    tables = [replace(table, feature_names=table.feature_names[:1]) for table in small.tables]
    drawn = small.draw(0, 5)
    batch = small.jagged({table.feature_names[0]: drawn[table.feature_names[0]] for table in tables})
    collection = EmbeddingBagCollection(tables, optimizer=OPTIONS["sgd"])
    expected = values_of(collection(batch))
    assert collection.is_direct
    collection.prefetch(batch)
    move(small, collection, "grid")
    torch.testing.assert_close(values_of(collection(batch)), expected)


def test_what_is_refused_changes_nothing(small):
    def refused(collection, plan, message, error=RecipeError):
        before = state_of(collection)
        with pytest.raises(error, match=message):
            move(small, collection, plan)
        assert all(equal_parts(*both) for both in zip(before, state_of(collection), strict=True))
        assert collection.moves == 0

    def body(world):
        batch = small.jagged(small.draw(world.rank, 4))
        collection = make(small, world, "mixed", OPTIONS["compressed"])
        refused(collection, ["row_wise", "column_wise"][world.rank], "plans that differ")
        values_of(collection(batch)).sum().backward()
        refused(collection, "row_wise", r"call step\(\) before move_to\(\)")
        collection.step()
        collection.prefetch(batch).start_lookup()
        refused(collection, "row_wise", "a prefetched lookup has read rows")
        values_of(collection(batch)).sum().backward()
        collection.step()
        with pytest.raises(PlanError, match="there is no rank 2 among 2"):
            collection.move_to(small.make_plan("table", 4))
        halves = make(small, world, "table", OPTIONS["fp16"])
        refused(halves, "replicated", "need fp32")
        train(small, halves, range(1))
        lookup, late = collection.start_counts(batch), values_of(collection(batch)).sum()
        move(small, collection, "row_wise")
        move(small, collection, "row_wise")
        assert collection.moves == 1
        with pytest.raises(RecipeError, match="have moved to another plan since this lookup was started"):
            lookup.finish()
        with pytest.raises(RecipeError, match="have moved to another plan since these rows were looked up"):
            late.backward()

    Loopback.run(2, body)


WHOLE = LocalTable(name="t", rows=(0, 30), columns=(0, 12))


def tiling(data, rows, columns, ranks) -> list[tuple[int, LocalTable]]:
    """Pieces of a table and their ranks: cut by rows, each of these by columns."""

    def cut(length):
        return pairwise(sorted({0, length, *data.draw(st.sets(st.integers(1, length), max_size=3))}))

    return [
        (data.draw(st.integers(0, ranks - 1)), LocalTable(name="t", rows=band, columns=part))
        for band in cut(rows)
        for part in cut(columns)
    ]


@given(data=st.data())
def test_parcels_bring_each_value_once_in_small_rounds(data):
    rows, columns, ranks = (data.draw(st.integers(1, most)) for most in (30, 12, 4))
    most, rank = data.draw(st.integers(1, 100)), data.draw(st.integers(0, ranks - 1))
    numbers = {
        "weight": torch.arange(rows * columns, dtype=torch.float16).view(rows, columns),
        "sum_of_squares": torch.arange(rows, dtype=torch.float32),
    }
    codes = torch.arange(data.draw(st.integers(0, 50)))

    def state(piece, *, replicated):
        cut = {
            name: StateTensor(
                piece=piece,
                name=name,
                tensor=values[piece.inside(WHOLE)[: values.ndim]],
                axes=("rows", "columns")[: values.ndim],
                replicated=replicated,
            )
            for name, values in numbers.items()
        }
        return [*cut.values(), StateTensor(piece=piece, name="codes", tensor=codes, axes=(), replicated=replicated)]

    before = [[] for _ in range(ranks)]
    for holder, piece in tiling(data, rows, columns, ranks):
        everywhere = data.draw(st.booleans())
        for each in range(ranks) if everywhere else [holder]:
            before[each] += state(piece, replicated=everywhere)
    after = [part for _, piece in tiling(data, rows, columns, 1) for part in state(piece, replicated=False)]
    written = [torch.zeros_like(part.tensor if part.axes else part.tensor[:, None]) for part in after]
    times = [values.int() for values in written]
    for parcels in plan_rounds(before, after, rank, most):
        assert len({after[parcel.place].tensor.dtype for parcel in parcels}) == 1
        assert sum(parcel.wanted.num_cells for parcel in parcels) <= max(most, parcels[0].wanted.dim)
        for parcel in parcels:
            part = after[parcel.place]
            whole = part.piece if part.axes else LocalTable(name="t", rows=(0, len(codes)), columns=(0, 1))
            found = []
            for holder, place, common in parcel.parts:
                source = before[holder][place]
                assert (source.piece.name, source.name) == (part.piece.name, part.name)
                assert holder == rank or not source.replicated
                values, extent = (source.tensor, source.piece) if part.axes else (source.tensor[:, None], whole)
                found.append((common, values[common.inside(extent)[: values.ndim]]))
            assert sum(common.num_cells for common, _ in found) == parcel.wanted.num_cells
            inside = parcel.wanted.inside(whole)[: written[parcel.place].ndim]
            axes = written[parcel.place].ndim
            written[parcel.place][inside] = join_parts(parcel.wanted, found, axes, like=part.tensor)
            times[parcel.place][inside] += 1
    for part, values, number in zip(after, written, times, strict=True):
        assert torch.equal(values.view(part.tensor.shape), part.tensor)
        assert bool((number == 1).all())
