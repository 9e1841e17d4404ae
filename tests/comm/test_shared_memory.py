"""Rows of other ranks of a host, read in memory, against indexing the whole matrix."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from windrow.comm.loopback import Loopback
from windrow.comm.rows import group_by_owner
from windrow.comm.shared_memory import SharedRows
from windrow.comm.wire import Codec

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


def test_memory_is_gone_with_its_last_user():
    def mapped() -> int:
        gc.collect()
        return Path("/proc/self/maps").read_text().count("memfd:windrow")

    before = mapped(), len(list(Path("/proc/self/fd").iterdir()))
    kept = Loopback.run(2, share)
    assert mapped() > before[0]
    del kept
    assert (mapped(), len(list(Path("/proc/self/fd").iterdir()))) == before


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
