"""Gathering rows that change, against a copy of the whole matrix that changes with them."""

import numpy as np
import pytest
import torch

from windrow.caching.dynamic_store import DynamicStore
from windrow.comm.codec import make_codec
from windrow.comm.errors import DataError
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter, RowsFound

ROWS, COLUMNS = 90, 3


def whole_matrix() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 500, (ROWS, COLUMNS)).astype(np.float32))


def offsets_for(size: int) -> list[int]:
    """Unequal parts; with four ranks the second owns nothing."""
    return {1: [0, ROWS], 2: [0, 60, ROWS], 4: [0, 30, 30, 31, ROWS]}[size]


def ids_of(rank: int, step: int) -> torch.Tensor:
    """Few ids often, some of them twice; every third time a rank asks for nothing."""
    generator = np.random.default_rng([rank, step])
    count = 0 if (rank + step) % 3 == 2 else 40
    return torch.from_numpy(np.minimum(generator.zipf(1.5, count), ROWS) * 7 % ROWS)


@pytest.mark.parametrize("capacity", [0, 5, ROWS])
def test_gather_equals_indexing_while_rows_change(spmd, capacity):
    def body(world):
        whole, offsets = whole_matrix(), offsets_for(world.size)
        first, stop = offsets[world.rank : world.rank + 2]
        rows = whole[first:stop].clone()
        store = DynamicStore(world, offsets, rows, capacity=capacity + world.rank, codec=make_codec("fp16"))
        for step in range(12):
            ids = ids_of(world.rank, step)
            assert torch.equal(store.gather(ids), whole[ids])
            out = torch.empty(len(ids), COLUMNS, dtype=torch.float64)
            assert store.gather(ids, out) is out
            assert torch.equal(out, whole[ids].double())
            changed = torch.from_numpy(np.random.default_rng(step).integers(0, ROWS, 8))
            whole[changed] += 1
            rows.copy_(whole[first:stop])
            # Nobody may fetch an old row of an owner that is late.
            world.barrier(stage="changed")
            store.invalidate(changed)

    spmd(body)


def test_copies_stay_until_they_are_invalidated():
    def body(world):
        world.meter = Meter()
        offsets = offsets_for(2)
        rows = whole_matrix()[offsets[world.rank] : offsets[world.rank + 1]]
        store = DynamicStore(world, offsets, rows, capacity=20, stage="states")
        ids = torch.tensor([0, 61, 62, 62, 1])
        counted = []
        for _ in range(2):
            store.gather(ids)
            counted.append(world.meter.found("states: rows"))
        store.invalidate(torch.tensor([62]))
        store.gather(ids)
        counted.append(world.meter.found())
        return counted, world.meter.totals("states: rows").rows_received

    (fetched, again, changed), received = Loopback.run(2, body)[0]
    assert fetched == RowsFound(local=2, remote=2)
    assert again == RowsFound(local=4, cached=2, remote=2)
    assert changed == RowsFound(local=6, cached=3, remote=3)
    assert received == 3


def test_what_does_not_fit_is_refused():
    world = Loopback.single()
    with pytest.raises(ValueError, match="2 id ranges for 1 ranks"):
        DynamicStore(world, [0, 1, 2], torch.ones(1, 1), capacity=0)
    with pytest.raises(ValueError, match="rank 0 owns 2 ids but was given 1 rows"):
        DynamicStore(world, [0, 2], torch.ones(1, 1), capacity=0)
    with pytest.raises(ValueError, match="-1 slots"):
        DynamicStore(world, [0, 1], torch.ones(1, 1), capacity=-1)
    store = DynamicStore(world, [0, 1], torch.ones(1, 1), capacity=3)
    with pytest.raises(DataError, match="id 4 at position 0"):
        store.gather(torch.tensor([4]))
    with pytest.raises(DataError, match="id 1 at position 0"):
        store.invalidate(torch.tensor([1]))
