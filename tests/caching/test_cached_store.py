"""Gathering against indexing the whole matrix, whatever is cached, in flight, stored or on the wire."""

import threading

import numpy as np
import pytest
import torch

from windrow.caching.cached_store import CachedStore, LocalRows
from windrow.comm.errors import DataError
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter, RowsFound
from windrow.comm.shared_memory import SharedRows
from windrow.comm.wire import make_codec

ROWS, COLUMNS = 230, 6
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def whole_matrix(storage: str = "fp32") -> torch.Tensor:
    values = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)) * 1000
    return torch.from_numpy(values.astype(np.float32)).to(DTYPES[storage])


def offsets_for(size: int) -> list[int]:
    """Unequal parts; with four ranks the second owns nothing."""
    return {1: [0, ROWS], 2: [0, 150, ROWS], 4: [0, 70, 70, 75, ROWS]}[size]


def is_own(ids, world) -> torch.Tensor:
    offsets = offsets_for(world.size)
    return (ids >= offsets[world.rank]) & (ids < offsets[world.rank + 1])


def cached_on(world, share: float) -> torch.Tensor:
    """A share of the ids of other ranks, in no order."""
    remote = torch.arange(ROWS)[~is_own(torch.arange(ROWS), world)]
    shuffled = remote[torch.from_numpy(np.random.default_rng(world.rank).permutation(len(remote)))]
    return shuffled[: int(share * len(remote))]


def make_store(world, share=0.4, codec="fp32", storage="fp32", shared=False, **more) -> CachedStore:
    offsets, form = offsets_for(world.size), make_codec(codec)
    rows = whole_matrix(storage)[offsets[world.rank] : offsets[world.rank + 1]]
    if shared:
        more["shared"] = SharedRows(world, form.encode(rows), stage="rows")
    return CachedStore(world, offsets, rows, cached_ids=cached_on(world, share), codec=form, **more)


@pytest.mark.parametrize("codec", ["fp32", "int8", "int4"])
def test_rows_without_numbers_do_not_travel(spmd, codec):
    def body(world):
        offsets = offsets_for(world.size)
        rows = torch.empty(offsets[world.rank + 1] - offsets[world.rank], 0)
        world.meter = Meter()
        store = CachedStore(world, offsets, rows, cached_ids=cached_on(world, 0.4), codec=make_codec(codec))
        sent = world.meter.totals()
        found = store.start(store.plan(torch.arange(ROWS))).finish()
        assert store.window(2) is None
        assert world.meter.totals() == sent
        return found.shape

    assert set(spmd(body)) == {(ROWS, 0)}


def requests_of(world, number: int, seed: int = 0) -> list[torch.Tensor]:
    """Lists of ids with repeats; some are empty, on rank 1 all are."""
    generator = np.random.default_rng([seed, world.rank])
    sizes = [0 if world.rank == 1 or index % 4 == 2 else 90 + index for index in range(number)]
    return [torch.from_numpy(generator.integers(0, ROWS, size)) for size in sizes]


def expected(ids, world, codec, storage, wanted) -> torch.Tensor:
    """Own rows as they are stored, all others as the wire brings them, whether they are cached or not."""
    stored = whole_matrix(storage)[ids]
    wire = stored if codec == "fp32" else stored.to(DTYPES[codec])
    return torch.where(is_own(ids, world)[:, None], stored.to(wanted), wire.to(wanted))


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_gather_equals_indexing_the_whole_matrix(spmd, share):
    def body(world):
        store = make_store(world, share)
        assert store.needs_messages == (share < 1.0 and world.size > 1)
        for ids in requests_of(world, 4):
            assert torch.equal(store.start(store.plan(ids)).finish(), whole_matrix()[ids])
            out = torch.full((len(ids), COLUMNS), np.nan)
            assert store.start(store.plan(ids)).finish(out) is out
            assert torch.equal(out, whole_matrix()[ids])

    spmd(body, debug=True)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("storage", list(DTYPES))
@pytest.mark.parametrize("codec", list(DTYPES))
@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_is_cached_or_shared_changes_no_bit(size, codec, storage, shared):
    def body(world):
        for share in (0.0, 0.5, 1.0):
            store = make_store(world, share, codec, storage, shared)
            for ids in requests_of(world, 3):
                assert torch.equal(
                    store.start(store.plan(ids)).finish(), expected(ids, world, codec, storage, DTYPES[storage])
                )
                out = torch.empty(len(ids), COLUMNS)
                store.start(store.plan(ids)).finish(out)
                assert torch.equal(out, expected(ids, world, codec, storage, torch.float32))

    Loopback.run(size, body)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_rows_in_few_bits_are_the_same_wherever_they_come_from(spmd, codec, shared):
    form, whole = make_codec(codec), whole_matrix()
    rounded = form.decode(form.encode(whole), torch.empty_like(whole))

    def body(world):
        for share in (0.0, 0.5, 1.0):
            store = make_store(world, share, codec, "fp32", shared)
            assert store.cached.nbytes == len(store.cached) * form.wire_row_bytes((COLUMNS,), torch.float32)
            for ids in requests_of(world, 3):
                found = store.start(store.plan(ids)).finish()
                assert torch.equal(found, torch.where(is_own(ids, world)[:, None], whole[ids], rounded[ids]))

    spmd(body)


def test_copies_take_as_much_memory_as_they_take_on_the_wire():
    def body(world):
        store = make_store(world, 1.0, "fp16", "fp32")
        return store.cached.nbytes, len(store.cached)

    num_bytes, count = Loopback.run(2, body)[0]
    assert (num_bytes, count) == (80 * COLUMNS * 2, 80)


def in_turn(store, requests):
    """Three requests under way, each a stage further at every step, the oldest first, as in a pipeline."""
    counted, asked, answered = None, None, None
    for ids in [*requests, None, None, None]:
        if answered is not None:
            yield answered.finish()
        if asked is not None:
            asked.send_rows()
        if counted is not None:
            counted.send_ids()
        started = None if ids is None else store.start(store.plan(ids))
        counted, asked, answered = started, counted, asked


def all_at_once(store, requests):
    """As many requests under way as there are."""
    gathers = [store.start(store.plan(ids)) for ids in requests]
    for gather in gathers:
        gather.send_ids()
    for gather in gathers:
        gather.send_rows()
    return [gather.finish() for gather in gathers]


@pytest.mark.parametrize("how", [in_turn, all_at_once])
def test_several_gathers_are_under_way_at_a_time(spmd, how):
    def body(world):
        for share in (0.3, 1.0):
            store = make_store(world, share, "fp16")
            # Twice, so that memory is used again.
            for seed in (0, 1):
                requests = requests_of(world, 9, seed)
                found = list(how(store, requests))
                wanted = [expected(ids, world, "fp16", "fp32", torch.float32) for ids in requests]
                assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))

    spmd(body)


def test_requests_are_planned_while_others_are_gathered(spmd):
    def body(world):
        store = make_store(world, 0.3)
        requests = requests_of(world, 200)
        plans = []
        planner = threading.Thread(target=lambda: plans.extend(store.plan(ids) for ids in requests))
        planner.start()
        for ids in requests[:30]:
            assert torch.equal(store.start(store.plan(ids)).finish(), whole_matrix()[ids])
        planner.join()
        for request, ids in zip(plans[:30], requests[:30], strict=True):
            assert torch.equal(store.start(request).finish(), whole_matrix()[ids])

    spmd(body)


def test_rows_may_have_any_shape(spmd):
    def body(world):
        offsets = offsets_for(world.size)
        for shape in ((ROWS,), (ROWS, 2, 3), (ROWS, 0)):
            whole = torch.arange(int(np.prod(shape)), dtype=torch.float32).view(shape)
            rows = whole[offsets[world.rank] : offsets[world.rank + 1]]
            store = CachedStore(world, offsets, rows, cached_ids=cached_on(world, 0.5))
            for ids in requests_of(world, 2):
                assert torch.equal(store.start(store.plan(ids)).finish(), whole[ids])

    spmd(body)


def test_meter_counts_where_rows_were_and_what_travelled(spmd):
    def body(world):
        world.meter = Meter()
        store = make_store(world, 0.5, "fp16", stage="features")
        copied = len(cached_on(world, 0.5))
        assert world.meter.totals("features: cache: rows").rows_received == copied
        assert world.meter.totals("features: cache: rows").bytes_received == 2 * COLUMNS * copied
        world.meter.reset()
        asked = RowsFound()
        for ids in requests_of(world, 5):
            store.start(store.plan(ids)).finish()
            own, kept = is_own(ids, world), torch.isin(ids, cached_on(world, 0.5))
            asked += RowsFound(local=int(own.sum()), cached=int(kept.sum()), remote=int((~own & ~kept).sum()))
        assert world.meter.found("features: rows") == world.meter.found() == asked
        rows, ids = world.meter.totals("features: rows"), world.meter.totals("features: ids")
        assert (rows.rows_received, rows.bytes_received) == (asked.remote, 2 * COLUMNS * asked.remote)
        # Five counts to each other rank, and every id once.
        counts = 5 * (world.size - 1)
        assert ids.bytes_sent == 8 * (asked.remote + counts)

    spmd(body)


def test_where_all_ranks_hold_all_rows_nothing_travels(spmd):
    def body(world):
        store = make_store(world, 1.0)
        world.meter = Meter()
        # Not even in step: one rank may gather more often than the others.
        for ids in requests_of(world, 1 + world.rank):
            assert torch.equal(store.start(store.plan(ids)).finish(), whole_matrix()[ids])
        assert world.meter.table() == {}

    spmd(body)


def test_rows_of_this_host_do_not_travel(spmd):
    def body(world):
        store = make_store(world, 0.3, shared=True)
        world.meter = Meter()
        asked = RowsFound()
        for ids in requests_of(world, 1 + world.rank):
            assert torch.equal(store.start(store.plan(ids)).finish(), whole_matrix()[ids])
            own, kept = is_own(ids, world), torch.isin(ids, cached_on(world, 0.3))
            asked += RowsFound(local=int(own.sum()), cached=int(kept.sum()), shared=int((~own & ~kept).sum()))
        assert world.meter.table() == {}
        assert world.meter.found("rows: rows") == asked

    spmd(body)


def test_rows_of_other_hosts_travel_beside_those_of_this_one(monkeypatch):
    # Ranks are threads here: two to a host.
    host_of: dict[int, str] = {}
    monkeypatch.setattr("socket.gethostname", lambda: host_of[threading.get_ident()])

    def body(world):
        host_of[threading.get_ident()] = str(world.rank // 2)
        world.barrier(stage="hosts")
        store = make_store(world, 0.2, "bf16", shared=True)
        world.meter = Meter()
        for ids in requests_of(world, 4):
            found = store.start(store.plan(ids)).finish()
            assert torch.equal(found, expected(ids, world, "bf16", "fp32", torch.float32))
        travelled = {peer for (stage, peer) in world.meter.table() if stage == "rows: rows"}
        return store.shared.near, travelled, world.meter.found("rows: rows")

    for rank, (near, travelled, found) in enumerate(Loopback.run(4, body)):
        assert near == {rank ^ 1}
        assert not travelled & {rank, rank ^ 1}
        # Rank 1 owns nothing and asks for nothing.
        assert (found.shared > 0, found.remote > 0) == (rank > 1, rank != 1)


def test_one_rank_that_lacks_a_row_keeps_all_in_step(spmd):
    def body(world):
        store = make_store(world, 1.0 if world.rank else 0.9)
        assert store.needs_messages == (world.size > 1)
        for ids in requests_of(world, 3):
            assert torch.equal(store.start(store.plan(ids)).finish(), whole_matrix()[ids])

    spmd(body)


def test_ids_out_of_range_are_refused():
    store = make_store(Loopback.single())
    for outside in (-1, ROWS):
        with pytest.raises(DataError, match=f"id {outside} at position 1 of 2 .* numbering of this"):
            store.plan(torch.tensor([3, outside]))


def test_copies_of_own_rows_are_refused():
    ids = torch.tensor([2, 4])
    with pytest.raises(DataError, match=r"cached id \d is one of rank \d's own"):
        Loopback.run(2, lambda world: CachedStore(world, [0, 3, 6], torch.ones(3, 1), cached_ids=ids))


def test_parts_that_do_not_fit_the_world_are_refused():
    with pytest.raises(ValueError, match="2 id ranges for 1 ranks"):
        CachedStore(Loopback.single(), [0, 1, 2], torch.ones(1, 1))


def test_a_rounding_codec_refuses_integers_at_once():
    with pytest.raises(TypeError, match="int64"):
        CachedStore(Loopback.single(), [0, 2], torch.ones(2, 1, dtype=torch.int64), codec=make_codec("fp16"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("storage", list(DTYPES))
def test_rows_on_a_gpu_and_in_memory_of_the_host(spmd, storage, share):
    def body(world):
        device = torch.device("cuda")
        store = make_store(world, 0.4, "fp16", storage, device=device, device_share=share)
        for ids in requests_of(world, 4):
            found = store.start(store.plan(ids)).finish(torch.empty(len(ids), COLUMNS, device=device))
            assert torch.equal(found.cpu(), expected(ids, world, "fp16", storage, torch.float32))
            found = store.start(store.plan(ids)).finish()
            assert found.device.type == "cuda"
            assert torch.equal(found.cpu(), expected(ids, world, "fp16", storage, DTYPES[storage]))

    spmd(body)


WHOLE = whole_matrix()


@pytest.mark.parametrize("wanted", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("cut", [0, 1, 100, ROWS])
def test_two_pieces_are_read_as_one(cut, wanted):
    """On the CPU too, where `LocalRows.split` would make only one."""
    rows = LocalRows(WHOLE[:cut], WHOLE[cut:])
    assert (len(rows), rows.row_shape) == (ROWS, (COLUMNS,))
    generator = np.random.default_rng(cut)
    for count in (0, 1, 40):
        positions = torch.from_numpy(generator.integers(0, ROWS, count))
        places = torch.from_numpy(generator.permutation(60)[:count])
        out = torch.zeros(60, COLUMNS, dtype=wanted)
        expected = out.clone()
        expected[places] = WHOLE[positions].to(wanted)
        rows.move(positions, out, places)
        assert torch.equal(out, expected)
        gathered = torch.zeros(count, COLUMNS, dtype=wanted)
        rows.gather(positions, out=gathered)
        assert torch.equal(gathered, WHOLE[positions].to(wanted))


def test_on_a_cpu_nothing_is_split_or_copied():
    rows = LocalRows.split(WHOLE, torch.device("cpu"), 0.3)
    assert rows._first is WHOLE
    assert len(rows._rest) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_on_a_gpu_rows_are_split(share):
    rows = LocalRows.split(WHOLE, torch.device("cuda"), share)
    assert len(rows._first) == int(share * ROWS)
    assert rows._rest.is_pinned() or share == 1
    positions = torch.from_numpy(np.random.default_rng(1).integers(0, ROWS, 40))
    for device in ("cuda", "cpu"):
        out = torch.zeros(40, COLUMNS, device=device)
        rows.gather(positions, out=out)
        assert torch.equal(out.cpu(), WHOLE[positions])
        rows.move(positions.flip(0), out, torch.arange(40))
        assert torch.equal(out.cpu(), WHOLE[positions.flip(0)])
