"""Vectors and gradients against moving column after column."""

import numpy as np
import torch

from windrow.comm.meter import Meter
from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.pooled_exchange import PooledExchange

SAMPLES = [4, 0, 6, 1]


def owned(rank: int, width: int, size: int) -> torch.Tensor:
    """What an owner found: any numbers."""
    total = sum(SAMPLES[:size])
    return torch.sin(torch.arange(total * width).view(total, width) + 100.0 * rank)


def test_values_and_gradients(spmd, small):
    def body(world):
        layout = make_layout(small.tables, small.make_plan("mixed", world.size), world.size)
        rank, counts = world.rank, SAMPLES[: world.size]
        world.meter = Meter()
        exchange = PooledExchange(world, layout, device=torch.device("cpu"), stage="test")
        width = layout.owners[rank].width
        pooled = [owned(rank, width, world.size).requires_grad_()] if width else []
        copies = torch.ones(counts[rank], layout.replicated.width, requires_grad=True)
        factors = torch.linspace(1, 2, counts[rank]).unsqueeze(1)
        scales = [(0, (8, 20), factors)]
        transfer = exchange.start(pooled, np.array(counts)[:, None])
        (output,) = transfer.finish([copies] if layout.replicated.width else [], scales)
        # A row for each sample and owner, seen from both ends.
        moved = world.meter.totals("test: vectors")
        others = [owner for number, owner in enumerate(layout.owners) if number != rank and owner.width]
        assert moved.rows_received == counts[rank] * len(others)
        assert moved.rows_sent == (sum(counts) - counts[rank]) * bool(width)

        start = sum(counts[:rank])
        expected = torch.zeros(counts[rank], layout.width)
        for owner, held in enumerate((*layout.owners, layout.replicated)):
            mine = copies.detach() if owner == world.size else owned(owner, held.width, world.size)[start:]
            for lookup in held.lookups:
                block = mine[: counts[rank], slice(*lookup.columns)]
                expected[:, slice(*lookup.output)] += block
        expected[:, 8:20] *= factors
        torch.testing.assert_close(output.detach(), expected)

        (output * torch.arange(layout.width)).sum().backward()
        for sender, number in enumerate(counts):
            mine = pooled[0].grad[sum(counts[:sender]) :][:number]
            for lookup in layout.owners[rank].lookups:
                columns = torch.arange(*lookup.output).float()
                scale = torch.where(
                    (columns >= 8) & (columns < 20), torch.linspace(1, 2, number)[:, None], 1.0
                )
                torch.testing.assert_close(mine[:, slice(*lookup.columns)], columns * scale)
        for lookup in layout.replicated.lookups:
            columns = torch.arange(*lookup.output).float().expand(counts[rank], -1)
            assert torch.equal(copies.grad[:, slice(*lookup.columns)], columns)

    spmd(body)


def test_without_gradients_nothing_is_kept(spmd, small):
    def body(world):
        layout = make_layout(small.tables, small.make_plan("row", world.size), world.size)
        pooled = owned(world.rank, layout.owners[world.rank].width, world.size)
        with torch.no_grad():
            (output,) = (
                PooledExchange(world, layout, device=torch.device("cpu"), stage="test")
                .start([pooled], np.array(SAMPLES[: world.size])[:, None])
                .finish([], [])
            )
        assert not output.requires_grad

    spmd(body)
