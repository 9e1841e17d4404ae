"""How often rows of a table are looked up: shares of its lookups, by octaves of rows from the most frequent down.

    rows by frequency    0 | 1 2 | 3 4 5 6 | 7 ... 14 | ...        octave k has 2**k rows, the last one what is left
    shares               .3   .2     .1        ...                 of all lookups; within an octave all rows are alike

Some forty numbers say how many different rows a minibatch of any size looks up, how often it comes back to them, and
what part of the lookups a range of rows has. With s rows in an octave of share a, and n lookups, a row is expected
n a / s times; how often it is, follows Poisson's law.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.partition.tables.plan import Range, TableSpec

__all__ = [
    "MOST_HOT",
    "REUSE_BINS",
    "AccessCounts",
    "asked",
    "draw_rows",
    "expected_distinct",
    "expected_reuse",
    "filled_bags",
    "is_frequent_first",
    "most_frequent",
    "octave_bounds",
    "octave_shares",
    "steps_of",
    "zipf_shares",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

RANKED = 0.9
MOST_KEPT = 1 << 18
"""Ids of a table that a rank keeps to find the hot ones: 2 MB."""

MOST_HOT = (1 << 17) - 1
"""Rows of a table that are known to be hot."""

REUSE_BINS = 17
"""Bins of `expected_reuse`, as NeuroShard has them."""


def octave_bounds(rows: int) -> npt.NDArray[np.int64]:
    """Where octaves of so many rows begin, and where the last one ends: 0, 1, 3, 7, ..., rows."""
    octaves = (rows + 1).bit_length() - 1
    starts = (1 << np.arange(octaves + 1, dtype=np.int64)) - 1
    return starts if starts[-1] == rows else np.append(starts, rows)


def octave_shares(counts: npt.ArrayLike) -> tuple[float, ...]:
    """Shares of lookups by octave, from how often each row [rows] was looked up, in any order. No lookup: uniform."""
    ordered = np.sort(np.asarray(counts, np.float64))[::-1]
    if not ordered.any():
        return ()
    shares = np.add.reduceat(ordered, octave_bounds(len(ordered))[:-1]) / ordered.sum()
    return tuple(shares.tolist())


class AccessCounts:
    """What some minibatches look up of some tables; those of several ranks add up.

    Args:
        specs: of the tables.
    """

    def __init__(self, specs: Iterable[TableSpec]) -> None:
        self.batches = self.samples = 0
        """Minibatches of single ranks, and samples in them."""
        self.octaves = {spec.name: np.zeros(len(octave_bounds(spec.rows)) - 1, np.int64) for spec in specs}
        """Of each table the lookups of each octave of its rows."""
        self.lists = dict.fromkeys(self.octaves, 0)
        """Of each table, of all its features."""
        self.ids = {table: np.empty(0, np.int64) for table in self.octaves}
        """Of each table some of the ids."""

    def add(self, table: str, ids: npt.NDArray[np.integer], lists: int) -> None:
        """Count the ids [n] of so many lists, rows of a table.

        Cost: 5 ns an id.
        """
        self.octaves[table] += np.bincount(_octaves(ids), minlength=len(self.octaves[table]))
        self.lists[table] += lists
        room = MOST_KEPT - len(self.ids[table])
        if room:
            self.ids[table] = np.concatenate([self.ids[table], ids[:room]])

    def __add__(self, other: "AccessCounts") -> "AccessCounts":
        total = AccessCounts(())
        total.batches, total.samples = self.batches + other.batches, self.samples + other.samples
        total.octaves = {table: found + other.octaves[table] for table, found in self.octaves.items()}
        total.lists = {table: lists + other.lists[table] for table, lists in self.lists.items()}
        total.ids = {table: np.concatenate([ids, other.ids[table]]) for table, ids in self.ids.items()}
        return total

    def measured(self, specs: Iterable[TableSpec], hot: Mapping[str, Sequence[int]] | None = None) -> list[TableSpec]:
        """Specs with what was counted: ids and lists of a sample, and which rows are looked up how often.

        There must be samples. Rows whose frequent ones come first are in order. Others are in any order: which ones are
        hot is found in one half of the ids that were kept, and how often they are looked up in the other.

        Args:
            specs: of the tables.
            hot: of some tables rows that count as the hot ones, whichever are.
        """
        found, given = [], hot or {}
        for of_table in specs:
            octaves, lookups = self.octaves[of_table.name], float(self.octaves[of_table.name].sum())
            spec = replace(
                of_table,
                access=tuple((octaves / lookups).tolist()) if lookups else (),
                frequent_first=True,
                hot=(),
                lookups_per_sample=lookups / self.samples,
                lists_per_sample=self.lists[of_table.name] / (max(len(of_table.features), 1) * self.samples),
            )
            first, second = self.ids[spec.name][::2], self.ids[spec.name][1::2]
            if len(second):
                rows = given.get(spec.name) or _hot_ones(*np.unique(first, return_counts=True), spec.rows)
                shares = _shares_by_place(rows, second, spec.rows)
                if spec.name in given or not _have_most(np.cumsum(octaves) / lookups, np.cumsum(shares)):
                    spec = replace(spec, access=tuple(shares.tolist()), frequent_first=False, hot=tuple(rows))
            found.append(spec)
        return found


def is_frequent_first(counts: npt.ArrayLike) -> bool:
    """Whether rows are nearly in the order of how often they were looked up, [rows].

    The first 3, 7, 15, ... rows have at least nine tenths of what the most frequent 1, 3, 7, ... have: the first rows
    of a vocabulary are kept for what is missing or unknown.
    """
    found = np.asarray(counts, np.float64)
    ends = octave_bounds(len(found))[1:] - 1
    return _have_most(np.cumsum(found)[ends], np.cumsum(np.sort(found)[::-1])[ends])


def _have_most(have: Floats, most: Floats) -> bool:
    """Whether lookups of the first octaves are nearly those of as many of the most frequent rows, [octaves] each."""
    return bool((have[1:] >= RANKED * most[:-1]).all())


def most_frequent(counts: npt.ArrayLike) -> tuple[int, ...]:
    """The rows that were looked up most often, [rows], the most frequent first: whole octaves of them.

    Rows that were looked up once are no hot ones, nor are more than 131,071, or half of the table.
    """
    found = np.asarray(counts)
    rows = np.flatnonzero(found)
    return _hot_ones(rows, found[rows], len(found))


def _hot_ones(rows: Ints, counts: npt.NDArray[np.number[Any]], table_rows: int) -> tuple[int, ...]:
    """Of some rows of a table, which were looked up so often, the hot ones."""
    several = int((counts > 1).sum())
    bounds = octave_bounds(table_rows)
    number = int(bounds[bounds <= min(several, table_rows // 2, MOST_HOT)][-1])
    return tuple(rows[np.argsort(-counts, kind="stable")[:number]].tolist())


def _shares_by_place(hot: Sequence[int], ids: Ints, table_rows: int) -> Floats:
    """Shares of lookups by octave, hot rows first; what other rows have they have evenly."""
    rows, bounds = np.asarray(hot, np.int64), octave_bounds(table_rows)
    order = np.argsort(rows)
    place = np.searchsorted(rows[order], ids)
    is_hot = np.append(rows[order], -1)[place] == ids
    of_hot = np.bincount(_octaves(order[place[is_hot]]), minlength=len(bounds) - 1) / len(ids)
    others = np.diff(np.maximum(bounds, len(rows))) / max(table_rows - len(rows), 1)
    return np.asarray(of_hot + others * (1 - is_hot.mean()))


def _octaves(places: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """Of each place in a table the octave."""
    # The exponent of a float64 is exact up to 2**53.
    return np.frexp((places + 1).astype(np.float64))[1] - 1


def zipf_shares(rows: int, exponent: float, offset: float = 0.0) -> tuple[float, ...]:
    """Shares of lookups by octave where row k is looked up in proportion to ``(k + 1 + offset) ** -exponent``.

    By the integral over each octave (Zipf and Mandelbrot), so that a table of any size costs the same.
    """
    edges = octave_bounds(rows) + 0.5 + offset
    powers = np.log(edges) if exponent == 1 else edges ** (1 - exponent) / (1 - exponent)
    shares = np.diff(powers)
    return tuple((shares / shares.sum()).tolist())


def steps_of(
    spec: TableSpec, rows: Range | None = None, *, hot: int = 0, copied: bool = False
) -> tuple[Floats, Floats]:
    """Rows of a range that are looked up equally often: how many [k], and the share of the table's lookups [k].

    Args:
        spec: of the table.
        rows: the range; None for all. Where ``frequent_first`` is not set, it has its part of every octave.
        hot: so many rows, the most frequent, are hot: copies of them are looked up. The end of an octave.
        copied: whether these are the copies, so that `rows` are places by frequency.
    """
    start, stop = rows or (0, spec.rows)
    bounds = octave_bounds(spec.rows) if spec.access else np.array([0, spec.rows])
    shares = np.array(spec.access or (1.0,))
    sizes = np.diff(bounds).astype(np.float64)
    if spec.frequent_first or (hot and copied):
        held = np.minimum(bounds[1:], stop) - np.maximum(bounds[:-1], start)
        held = np.maximum(held, 0).astype(np.float64)
    else:
        held = sizes * ((stop - start) / spec.rows)
    if hot and not copied:
        held[bounds[:-1] < hot] = 0
    return held, shares * held / sizes


def expected_distinct(steps: tuple[Floats, Floats], lookups: float) -> float:
    """Different rows that so many lookups of the whole table find in some steps (`steps_of`)."""
    rows, expected = _expected(steps, lookups)
    return float((rows * -np.expm1(-expected)).sum())


def asked(
    spec: TableSpec, rows: Range, samples: float, *, replicated: bool = False, hot: int = 0
) -> tuple[float, float]:
    """Ids of a range of rows that a rank asks for in so many samples of its own, and vectors that it gets for them.

    Of a table that is cut by rows, or has hot ones, lists without ids of the range have no vector; of a replicated one
    all have. See `steps_of`, also for `hot`.
    """
    steps = steps_of(spec, rows, hot=hot, copied=replicated)
    lookups, features = samples * spec.lookups_per_sample, max(len(spec.features), 1)
    if spec.index_dedup:
        once = features * expected_distinct(steps, lookups / features)
        return once, once
    share, vectors = float(steps[1].sum()), samples * spec.vectors_per_sample
    if (hot or rows != (0, spec.rows)) and not replicated:
        vectors *= filled_bags(share, lookups / max(vectors, 1))
    return lookups * share, vectors


def filled_bags(share: float, length: float) -> float:
    """Part of bags of so many ids that have one at least of a range of rows with this share of all lookups."""
    return float(1 - (1 - min(share, 1.0)) ** length)


def expected_reuse(steps: tuple[Floats, Floats], lookups: float) -> Floats:
    """How often rows are looked up again by so many lookups of the whole table.

    [17] shares of the different rows that are looked up once, 2 times, 3 to 4, 5 to 8, ... up to 2**15, and more often;
    zeros where there are none.

    NeuroShard's features ``bin_0`` to ``bin_16`` (Zha et al., MLSys 2023), in expectation.
    """
    from scipy import special

    rows, expected = _expected(steps, lookups)
    most = 2.0 ** np.arange(REUSE_BINS - 1)
    below = special.pdtr(most[:, None], expected[None, :])
    none = np.exp(-expected)
    edges = np.vstack([none, below, np.ones_like(none)])
    found = (np.diff(edges, axis=0) * rows).sum(axis=1)
    total = found.sum()
    return np.asarray(found / total if total > 0 else found)


def _expected(steps: tuple[Floats, Floats], lookups: float) -> tuple[Floats, Floats]:
    """Rows of steps that have any, and the mean lookups of each row."""
    rows, shares = steps
    held = rows > 0
    return rows[held], lookups * shares[held] / rows[held]


def draw_rows(
    spec: TableSpec, lookups: int, chance: np.random.Generator, rows: Range | None = None
) -> npt.NDArray[np.int64]:
    """Row numbers of lookups that fall into a range of rows, less its first: [lookups], by the shares of the table."""
    held, shares = steps_of(spec, rows)
    steps = chance.choice(len(held), lookups, p=shares / shares.sum())
    starts = np.concatenate([[0.0], np.cumsum(held)[:-1]])
    most = (rows[1] - rows[0] if rows else spec.rows) - 1
    found = np.minimum(starts[steps] + chance.random(lookups) * held[steps], most).astype(np.int64)
    # Frequent rows of a table in another order are anywhere: a step that visits each row once.
    return found if spec.frequent_first else found * _step(most + 1) % (most + 1)


def _step(rows: int) -> int:
    """A number near the golden section of some rows, and prime to it."""
    step = max(int(rows * 0.6180339887498949), 1)
    while np.gcd(step, rows) > 1:
        step += 1
    return step
