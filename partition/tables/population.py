"""Tables as industry has them: a generator calibrated to published statistics, and the tasks of NeuroShard's protocol.

Meta's traces (facebookresearch/dlrm_datasets, 856 tables, 65,536 samples) have 15.8 ids in a bag on average, which look
each different row up 6.9 times; published beside them is how many rows are looked up how often, over all tables. Tables
drawn here have these statistics together: sizes are log-normal around 200,000 rows, pooling factors log-normal, and row
k of a table is looked up in proportion to ``(k + 9.8) ** -s`` with s of each table from a normal distribution. These
numbers were fitted to the two published histograms (2021): of rows by how often they are looked up, and of lookups;
the sums of absolute differences are 0.12 and 0.10.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from windrow.partition.tables.access import zipf_shares
from windrow.partition.tables.plan import TableSpec

__all__ = ["DIMS", "draw_tables", "draw_tasks", "with_dim"]

DIMS = (4, 8, 16, 32, 64, 128)
"""Columns that tables are given."""
MEAN_POOLING = 15.81
LOG10_ROWS, LOG_POOLING, EXPONENT = (5.30, 0.66), (2.30, 1.27), (0.81, 0.35)
"""Mean and deviation."""
OFFSET = 8.8
FEWEST_ROWS, MOST_ROWS = 100, 40_000_000
EXPONENTS = (0.2, 2.5)
ACCUMULATOR_BYTES = 4.0


def draw_tables(number: int, seed: int, *, most_rows: int = MOST_ROWS) -> list[TableSpec]:
    """Draw a population of tables, all of 16 columns; 856 of them are the published protocol's.

    Args:
        number: tables.
        seed: the same gives the same tables.
        most_rows: larger ones are cut to so many rows.
    """
    chance = np.random.default_rng(seed)
    rows = 10 ** chance.normal(*LOG10_ROWS, number)
    pooling = np.exp(chance.normal(*LOG_POOLING, number))
    pooling *= MEAN_POOLING / pooling.mean()
    exponents = chance.normal(*EXPONENT, number).clip(*EXPONENTS)
    specs = []
    for place in range(number):
        rows_here = int(np.clip(rows[place], FEWEST_ROWS, most_rows))
        specs.append(
            TableSpec(
                name=f"table_{place}",
                rows=rows_here,
                dim=16,
                features=(f"table_{place}",),
                optimizer_bytes_per_row=ACCUMULATOR_BYTES,
                lookups_per_sample=float(pooling[place]),
                access=zipf_shares(rows_here, float(exponents[place]), OFFSET),
            )
        )
    return specs


def with_dim(spec: TableSpec, dim: int, name: str) -> TableSpec:
    """A table of another width under another name."""
    return replace(spec, name=name, dim=dim, features=(name,))


def draw_tasks(
    tables: Sequence[TableSpec], *, sizes: tuple[int, int], max_dim: int, most_bytes: float, seed: int
) -> Iterator[list[TableSpec]]:
    """Draw sets of tables without end: NeuroShard's tasks (10 to 59 tables), and its sets to measure (1 to 15).

    Args:
        tables: the population; drawn with replacement.
        sizes: least and most tables of a set.
        max_dim: each table gets one of `DIMS` up to this one.
        most_bytes: larger sets are drawn again.
        seed: the same gives the same sets.
    """
    chance = np.random.default_rng(seed)
    dims = [dim for dim in DIMS if dim <= max_dim]
    while True:
        chosen = chance.integers(0, len(tables), chance.integers(sizes[0], sizes[1] + 1))
        widths = chance.choice(dims, len(chosen))
        drawn = [
            with_dim(tables[place], int(dim), f"{tables[place].name}_{number}")
            for number, (place, dim) in enumerate(zip(chosen.tolist(), widths, strict=True))
        ]
        if sum(spec.num_bytes for spec in drawn) <= most_bytes:
            yield drawn
