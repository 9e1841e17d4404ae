"""The pieces of one rank, looked up together."""

import numpy as np
import torch

from windrow.recsys.sharded.collection import RankTables
from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.packing import LookupInput
from windrow.recsys.tables.options import TableOptions


def make(small, kind, rank, *, pooled):
    layout = make_layout(small.tables, small.make_plan(kind, 2), 2)
    rows = {table.name: table.num_embeddings for table in small.tables}
    owner = layout.owners[rank]
    options = TableOptions(optimizer="sgd")
    return owner, RankTables(
        owner, options, rows=rows, pooled=pooled, device=torch.device("cpu"), replicated=False, seed=1
    )


def test_a_rank_without_tables(small):
    owner, tables = make(small, "one rank", 0, pooled=True)
    nothing = LookupInput(torch.empty(0), torch.zeros(1), None, (1, 1), np.zeros((2, 0), np.int64))
    assert owner.width == 0
    assert tables.pooled([]) == []
    assert tables.batches == []
    assert tables.rows(nothing) == []


def test_rows_of_different_lengths_come_in_the_order_of_the_lookups(small):
    owner, tables = make(small, "grid", 0, pooled=False)
    assert len({lookup.dim for lookup in owner.lookups}) > 1
    counts = np.array([[(3 * n) % 4 for n in range(len(owner.lookups))], [1] * len(owner.lookups)])
    heights = [owner.members[lookup.member].num_rows for lookup in owner.lookups]
    ids = [torch.arange(n) % height for n, height in zip(counts.sum(0), heights, strict=True)]
    offsets = torch.tensor([0, *counts.T.reshape(-1).cumsum()])
    wanted = LookupInput(torch.cat(ids), offsets, None, (5, 5), counts)
    held = {part.piece: part.tensor for batch in tables.batches for part in batch.state()}
    for lookup, chosen, rows in zip(owner.lookups, ids, tables.rows(wanted), strict=True):
        assert torch.equal(rows, held[owner.members[lookup.member]][chosen])


def test_nobody_asks(small):
    owner, tables = make(small, "table", 0, pooled=False)
    counts = np.zeros((2, len(owner.lookups)), np.int64)
    empty = torch.empty(0, dtype=torch.int64)
    wanted = LookupInput(empty, torch.zeros(counts.size + 1, dtype=torch.int64), None, (0, 3), counts)
    assert [rows.shape[0] for rows in tables.rows(wanted)] == [0] * len(owner.lookups)
