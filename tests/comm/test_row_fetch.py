"""Staged requests for rows of other ranks, with codecs that convert and one that does more."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from windrow.comm.codec import Codec, Fp16Codec, Fp32Codec
from windrow.comm.row_fetch import CODED_BYTES, RowFetcher
from windrow.comm.rows import gather_rows

ROWS, COLUMNS = 120, 5


@dataclass
class Source:
    """A matrix in memory."""

    rows: torch.Tensor

    @property
    def row_shape(self):
        return self.rows.shape[1:]

    @property
    def dtype(self):
        return self.rows.dtype

    @property
    def device(self):
        return self.rows.device

    def gather(self, positions, *, out):
        gather_rows(self.rows, positions, out=out)


class PaddedBytes(Codec):
    """Rows as bytes in reverse order and one byte more: no conversion of numbers."""

    def encode(self, rows):
        flat = rows.contiguous().view(torch.uint8)
        return torch.cat([flat.flip(1), torch.full((len(rows), 1), 77, dtype=torch.uint8)], dim=1)

    def decode(self, wire, out=None):
        assert (wire[:, -1] == 77).all()
        rows = torch.from_numpy(wire.numpy()[:, -2::-1].copy().view(np.float32))
        return rows if out is None else out.copy_(rows)

    def wire_buffer(self, rows):
        return torch.empty((len(rows), self.wire_row_bytes(rows.shape[1:], rows.dtype)), dtype=torch.uint8)

    def wire_row_bytes(self, row_shape, dtype):
        return torch.Size(row_shape).numel() * dtype.itemsize + 1

    def check(self, rows):
        pass


def whole_matrix() -> torch.Tensor:
    values = np.random.default_rng(0).integers(0, 2000, (ROWS, COLUMNS))
    return torch.from_numpy(values.astype(np.float32))


def bounds(world) -> list[int]:
    return [ROWS * rank // world.size for rank in range(world.size + 1)]


def make_fetcher(world, codec) -> RowFetcher:
    first, stop = bounds(world)[world.rank : world.rank + 2]
    return RowFetcher(world, Source(whole_matrix()[first:stop]), first=first, codec=codec, stage="rows")


def wishes_of(world, count, seed=0):
    """(ids grouped by owner, none of this rank's; counts; where each belongs)."""
    generator = np.random.default_rng([seed, world.rank])
    ids = np.sort(generator.integers(0, ROWS, count if world.rank != 1 else 0))
    owner = np.searchsorted(bounds(world), ids, side="right") - 1
    ids, owner = ids[owner != world.rank], owner[owner != world.rank]
    places = torch.from_numpy(generator.permutation(len(ids) + 10)[: len(ids)])
    return torch.from_numpy(ids), np.bincount(owner, minlength=world.size).tolist(), places


@pytest.mark.parametrize("codec", [Fp32Codec(), Fp16Codec(), PaddedBytes()], ids=lambda c: type(c).__name__)
def test_rows_come_to_their_places(spmd, codec):
    def body(world):
        fetcher = make_fetcher(world, codec)
        for seed, sizes in enumerate([(50, 80, 0), (10, 0, 100), (0, 0, 0)]):
            wishes = [wishes_of(world, size, seed) for size in sizes]
            fetches = [fetcher.start(ids, counts) for ids, counts, _ in wishes]
            for fetch in fetches:
                fetch.send_ids()
            for fetch in fetches:
                fetch.send_rows()
            for fetch, (ids, _, places) in zip(fetches, wishes, strict=True):
                out = torch.zeros(len(ids) + 10, COLUMNS, dtype=torch.float64)
                expected = out.clone()
                expected[places] = whole_matrix()[ids].double()
                fetch.finish(out, places)
                assert torch.equal(out, expected)

    spmd(body, debug=True)


def test_long_requests_are_coded_in_pieces(spmd):
    def body(world):
        fetcher = make_fetcher(world, PaddedBytes())
        ids, counts, places = wishes_of(world, 3 * CODED_BYTES // (4 * COLUMNS))
        fetch = fetcher.start(ids, counts)
        fetch.send_ids()
        fetch.send_rows()
        out = torch.zeros(len(ids) + 10, COLUMNS)
        fetch.finish(out, places)
        assert torch.equal(out[places], whole_matrix()[ids])

    spmd(body)


def test_memory_is_used_again_but_never_by_two_requests_at_a_time(spmd):
    def body(world):
        fetcher = make_fetcher(world, Fp32Codec())

        def run(number):
            wishes = [wishes_of(world, 40)] * number
            fetches = [fetcher.start(ids, counts) for ids, counts, _ in wishes]
            for fetch in fetches:
                fetch.send_ids()
            for fetch in fetches:
                fetch.send_rows()
            memories = [fetch._memory.incoming.data_ptr() for fetch in fetches]
            for fetch, (ids, _, places) in zip(fetches, wishes, strict=True):
                out = torch.zeros(len(ids) + 10, COLUMNS)
                fetch.finish(out, places)
                assert torch.equal(out[places], whole_matrix()[ids])
            return memories

        first = run(3)
        if world.size > 1 and world.rank != 1:
            assert len(set(first)) == 3
            assert set(run(3)) == set(first)
            assert set(run(1)) < set(first)
        else:
            run(3)
            run(1)

    spmd(body)


def test_stages_come_in_order(spmd):
    def body(world):
        fetcher = make_fetcher(world, Fp32Codec())
        ids, counts, places = wishes_of(world, 20)
        out = torch.zeros(len(ids) + 10, COLUMNS)
        fetch = fetcher.start(ids, counts)
        with pytest.raises(AssertionError, match="send_rows follows send_ids"):
            fetch.send_rows()
        fetch.send_ids()
        with pytest.raises(AssertionError, match="send_ids follows start"):
            fetch.send_ids()
        with pytest.raises(AssertionError, match="finish follows send_rows"):
            fetch.finish(out, places)
        fetch.send_rows()
        fetch.finish(out, places)
        assert torch.equal(out[places], whole_matrix()[ids])

    spmd(body)
