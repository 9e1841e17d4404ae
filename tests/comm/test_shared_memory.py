"""Rows of other ranks of a host, read in memory, against indexing the whole matrix; and messages left there."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from windrow.comm.loopback import Loopback
from windrow.comm.route import Route
from windrow.comm.rows import group_by_owner
from windrow.comm.shared_memory import Mailbox, SharedRows
from windrow.comm.wire import Codec, Wire

ROWS, COLUMNS = 41, 3


def offsets_for(size: int) -> list[int]:
    """Unequal parts; with four ranks the second owns nothing."""
    return {1: [0, ROWS], 2: [0, 30, ROWS], 4: [0, 11, 11, 12, ROWS]}[size]


def whole_matrix(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(ROWS, COLUMNS))).to(dtype)


def share(world, dtype: torch.dtype = torch.float32) -> SharedRows:
    start, stop = offsets_for(world.size)[world.rank : world.rank + 2]
    return SharedRows(world, whole_matrix(dtype)[start:stop], stage="rows")


def read(world, rows: SharedRows, ids: torch.Tensor) -> tuple[int, torch.Tensor]:
    """How many rows were copied, and what stands at the places of all; NaN where nothing was copied."""
    order, counts = group_by_owner(ids, offsets_for(world.size))
    order = torch.arange(len(ids)) if order is None else order
    out = torch.full((len(ids), COLUMNS), float("nan"))
    return rows.read(ids[order], counts, order, offsets_for(world.size), Codec(), out), out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_rank_of_the_host_is_read(spmd, dtype):
    def body(world):
        rows = share(world, dtype)
        assert rows.near == set(range(world.size)) - {world.rank}
        start, stop = offsets_for(world.size)[world.rank : world.rank + 2]
        assert torch.equal(rows.local, whole_matrix(dtype)[start:stop])
        ids = torch.from_numpy(np.random.default_rng(world.rank).integers(0, ROWS, 0 if world.rank == 1 else 50))
        copied, out = read(world, rows, ids)
        is_own = (ids >= start) & (ids < stop)
        assert copied == int((~is_own).sum())
        assert torch.equal(out[~is_own], whole_matrix(dtype)[ids[~is_own]].float())
        assert bool(out[is_own].isnan().all())

    spmd(body, debug=True)


def mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:windrow")


def test_memory_is_gone_with_its_last_user():
    gc.collect()
    before = mapped(), len(list(Path("/proc/self/fd").iterdir()))
    kept = Loopback.run(2, share)
    assert mapped() > before[0]
    del kept
    gc.collect()
    assert (mapped(), len(list(Path("/proc/self/fd").iterdir()))) == before


def test_addresses_of_a_mailbox_are_given_back_when_the_ranks_end():
    """Not at the next garbage collection: a few worlds use up all that a process has."""

    def body(world):
        assert len(world.mailbox.near) == 1
        return world

    gc.collect()
    gc.disable()
    try:
        before = mapped()
        kept = Loopback.run(2, body)
        assert mapped() == before
        del kept
    finally:
        gc.enable()


def test_ranks_of_other_hosts_are_not_near(monkeypatch):
    # Ranks are threads here: each calls its host by another name.
    monkeypatch.setattr("socket.gethostname", lambda: str(threading.get_ident()))

    def body(world):
        rows = share(world)
        copied, out = read(world, rows, torch.arange(ROWS))
        return rows.near, copied, bool(out.isnan().all())

    assert Loopback.run(2, body) == [(frozenset(), 0, True)] * 2


def test_another_process_of_the_same_number_is_not_read(monkeypatch):
    # In a container of one's own, /proc shows another file under the descriptor.
    identities = iter(range(100))
    monkeypatch.setattr("windrow.comm.shared_memory._identity", lambda _: (0, next(identities)))
    assert Loopback.run(2, lambda world: share(world).near) == [frozenset()] * 2


def test_a_system_without_such_memory_shares_nothing(monkeypatch):
    monkeypatch.delattr("os.memfd_create")
    assert Loopback.run(2, lambda world: share(world).near) == [frozenset()] * 2


def leave(world, mailbox: Mailbox, step: int, length: int) -> tuple[set[int], dict[int, torch.Tensor]]:
    """Exchange messages that name their sender and step: where those of this rank are, and the notes that came."""
    sends, receives = ([torch.empty(0)] * world.size for _ in range(2))
    left = set()
    for peer in mailbox.near:
        message = mailbox.lend(length) if length else torch.empty(0, dtype=torch.uint8)
        left.add(message.fill_(10 * step + world.rank).data_ptr())
        sends[peer], receives[peer] = mailbox.note(peer, message), mailbox.empty_note()
    world.start_exchange(sends, receives, stage="notes").wait()
    return left, {peer: receives[peer] for peer in mailbox.near}


def test_messages_are_read_where_they_were_packed_and_their_memory_is_used_again(spmd):
    def body(world):
        mailbox = world.mailbox
        assert mailbox is world.mailbox
        assert mailbox.near == set(range(world.size)) - {world.rank}
        addresses = set()
        for step in range(12):
            length = 7 * step % 30
            left, notes = leave(world, mailbox, step, length)
            for peer, note in notes.items():
                assert mailbox.open(peer, note, length).tolist() == [10 * step + peer] * length
                mailbox.landed(peer, note)
            addresses |= left if length else set()
        # What is landed is told with the next note, so that two messages to a rank take turns.
        assert len(addresses) <= 2 * (world.size - 1)

    spmd(body)


def test_what_is_not_landed_stays_as_it_is(spmd):
    def body(world):
        mailbox = Mailbox(world)
        left, notes = zip(*[leave(world, mailbox, step, 50) for step in range(20)], strict=True)
        found = [{peer: mailbox.open(peer, note, 50) for peer, note in of_step.items()} for of_step in notes]
        for step, of_step in reversed(list(enumerate(found))):
            for peer, message in of_step.items():
                assert bool((message == 10 * step + peer).all())
                mailbox.landed(peer, notes[step][peer])
        # More than one note can tell; with three all have come back.
        for step in range(3):
            for peer, note in leave(world, mailbox, step, 0)[1].items():
                mailbox.open(peer, note, 0)
        again = [address for step in range(20) for address in leave(world, mailbox, step, 50)[0]]
        assert set(again) == {address for of_step in left for address in of_step}

    spmd(body)


@pytest.mark.parametrize("wanted", [True, False])
def test_ranks_of_other_hosts_and_of_worlds_that_share_nothing_are_sent_messages(monkeypatch, wanted):
    if wanted:
        monkeypatch.setattr("socket.gethostname", lambda: str(threading.get_ident()))

    def body(world):
        world.shares_memory = wanted
        wire = Wire(world, stage="test", shared_memory=True)
        route = Route.of_rows(wire, [torch.arange(2)] * 2, [slice(0, 2), slice(2, 4)], (COLUMNS,))
        (target,) = route.start([torch.full((2, COLUMNS), float(world.rank))]).finish([torch.empty(4, COLUMNS)])
        assert target[:, 0].tolist() == [0, 0, 1, 1]
        assert wire.mailbox is None or not wire.mailbox.near
        assert (wire.mailbox is None) != wanted

    Loopback.run(2, body)


def test_a_mailbox_of_which_nothing_comes_back_says_so(monkeypatch):
    monkeypatch.setattr("windrow.comm.shared_memory.MAILBOX_BYTES", 1 << 16)

    def body(world):
        mailbox = Mailbox(world)
        mailbox.lend(1 << 15)
        with pytest.raises(MemoryError, match=r"set run\.shared_memory = false"):
            mailbox.lend(1 << 15)

    Loopback.run(2, body)
