"""How often rows of a table are looked up: shares of its lookups, by octaves of rows from the most frequent down.

    rows by frequency    0 | 1 2 | 3 4 5 6 | 7 ... 14 | ...        octave k has 2**k rows, the last one what is left
    shares               .3   .2     .1        ...                 of all lookups; within an octave all rows are alike

Some forty numbers say how many different rows a minibatch of any size looks up, how often it comes back to them, and
what part of the lookups a range of rows has. With s rows in an octave of share a, and n lookups, a row is expected
n a / s times; how often it is, follows Poisson's law.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.partition.tables.plan import Range, TableSpec

__all__ = [
    "REUSE_BINS",
    "AccessCounts",
    "HotRows",
    "asked",
    "copied_octaves",
    "draw_rows",
    "expected_distinct",
    "expected_reuse",
    "filled_bags",
    "find_hot",
    "first_octaves",
    "is_frequent_first",
    "most_hot",
    "octave_bounds",
    "octave_shares",
    "steps_of",
    "zipf_shares",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
HotRows: TypeAlias = tuple[tuple[float, ...], tuple[int, ...]]
"""See `find_hot`."""

RANKED = 0.9

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
        kept: ids of a list of each minibatch that are kept, to find hot rows: 8 bytes each.
    """

    def __init__(self, specs: Iterable[TableSpec], *, kept: int = 0) -> None:
        self._rows = {spec.name: spec.rows for spec in specs}
        self.batches = self.samples = 0
        """Minibatches of single ranks, and samples in them."""
        self.octaves = {table: np.zeros(len(octave_bounds(rows)) - 1, np.int64) for table, rows in self._rows.items()}
        """Of each table the lookups of each octave of its rows."""
        self.lists = dict.fromkeys(self.octaves, 0)
        """Of each table, of all its features."""
        self.ids: dict[str, list[npt.NDArray[np.integer]]] = {table: [] for table in self.octaves}
        """Of each table the ids that were kept."""
        self._kept = kept

    def add(self, table: str, ids: npt.NDArray[np.integer], lists: int) -> None:
        """Count the ids [n] of so many lists, rows of a table.

        Cost: 5 ns an id.
        """
        self.octaves[table] += np.bincount(_octaves(ids), minlength=len(self.octaves[table]))
        self.lists[table] += lists
        if self._kept and len(ids):
            self.ids[table].append(ids[:: -(-len(ids) // self._kept)].copy())

    def __add__(self, other: "AccessCounts") -> "AccessCounts":
        total = AccessCounts(())
        total._rows = self._rows  # of the same class
        total.batches, total.samples = self.batches + other.batches, self.samples + other.samples
        total.octaves = {table: found + other.octaves[table] for table, found in self.octaves.items()}
        total.lists = {table: lists + other.lists[table] for table, lists in self.lists.items()}
        total.ids = {table: ids + other.ids[table] for table, ids in self.ids.items()}
        return total

    def hot_rows(self) -> dict[str, HotRows]:
        """What `find_hot` finds in the ids that were kept of each table."""
        return {
            table: find_hot(*np.unique(np.concatenate([[], *ids]), return_counts=True), self._rows[table])
            for table, ids in self.ids.items()
        }

    def out_of_order(self, hot: Mapping[str, HotRows]) -> set[str]:
        """The tables whose frequent rows are not the first ones, as far as ids were kept; of all `hot_rows`."""
        return {
            table
            for table, (shares, _) in hot.items()
            if shares and not _have_most(np.cumsum(self.octaves[table]) / self.octaves[table].sum(), np.cumsum(shares))
        }

    def measured(self, specs: Iterable[TableSpec], hot: Mapping[str, HotRows] | None = None) -> list[TableSpec]:
        """Specs with the ids and lists of a sample, and which rows are looked up how often, that were counted.

        There must be samples. Within an octave rows are taken to be alike, in whatever order they stand: where the
        frequent ones are scattered, more different rows are expected than there are.

        Args:
            specs: of the tables.
            hot: `hot_rows` of tables whose rows are taken to be in any order.
        """
        found, in_any_order = [], hot or {}
        for spec in specs:
            octaves, lookups = self.octaves[spec.name], float(self.octaves[spec.name].sum())
            standing = tuple((octaves / lookups).tolist()) if lookups else ()
            access, rows = in_any_order.get(spec.name, (standing, ()))
            found.append(
                replace(
                    spec,
                    access=access,
                    frequent_first=spec.name not in in_any_order,
                    hot=rows,
                    lookups_per_sample=lookups / self.samples,
                    lists_per_sample=self.lists[spec.name] / (max(len(spec.features), 1) * self.samples),
                )
            )
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


def find_hot(rows: npt.NDArray[np.number[Any]], counts: npt.NDArray[np.integer], table_rows: int) -> HotRows:
    """Rows of a table in any order that are looked up more often than others, and how often they are.

    One half of the lookups, drawn by chance, says which rows are hot, and the other their shares: in one and the same
    half, rows that nothing distinguishes would look hot.

    Args:
        rows: some rows of the table; others were not looked up.
        counts: how often each was.
        table_rows: how many rows there are.

    Returns:
        Shares of all lookups by octave, hot rows first, then the others, which are taken to be alike; nothing where too
        few lookups were counted. And the hot rows, the most frequent first: whole octaves of them, each looked up twice
        in one half, 131,071 at most, and no more than half of the table.
    """
    first = np.random.default_rng(0).binomial(counts, 0.5)
    second = counts - first
    if not second.any():
        return (), ()
    bounds = octave_bounds(table_rows)
    number = most_hot(table_rows, int((first > 1).sum()))
    ranked = np.argsort(-first, kind="stable")[:number]
    of_hot = np.bincount(_octaves(np.arange(number)), second[ranked], minlength=len(bounds) - 1) / second.sum()
    others = np.diff(np.maximum(bounds, number)) / (table_rows - number)
    shares = of_hot + others * (1 - of_hot.sum())
    return tuple(shares.tolist()), tuple(rows[ranked].astype(np.int64).tolist())


def most_hot(table_rows: int, known: int) -> int:
    """How many rows of a table count as hot where so many are known: whole octaves, half of the table at most."""
    bounds = octave_bounds(table_rows)
    return int(bounds[bounds <= min(known, table_rows // 2, MOST_HOT)][-1])


def first_octaves(spec: TableSpec, rows: int) -> tuple[int, ...]:
    """So many rows of a table, the most frequent, by octave; see `copied_octaves`."""
    bounds = _bounds(spec)
    return tuple(np.clip(rows - bounds[:-1], 0, np.diff(bounds)).tolist())


def copied_octaves(spec: TableSpec, ids: Sequence[int]) -> tuple[int, ...]:
    """How many of some rows are in each octave by frequency; of rows in any order those not known are in the last."""
    places, bounds = np.asarray(ids, np.int64), _bounds(spec)
    if not spec.access:
        return (len(places),)
    if not spec.frequent_first:
        hot = np.asarray(spec.hot, np.int64)
        order = np.argsort(hot)
        found = np.searchsorted(hot[order], places)
        is_known = np.append(hot[order], -1)[found] == places
        places = np.where(is_known, np.append(order, 0)[found], spec.rows - 1)
    counts = np.bincount(_octaves(places), minlength=len(bounds) - 1)
    return tuple(np.minimum(counts, np.diff(bounds)).tolist())


def _bounds(spec: TableSpec) -> Ints:
    return octave_bounds(spec.rows) if spec.access else np.array([0, spec.rows])


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
    spec: TableSpec, rows: Range | None = None, *, copied: Sequence[int] = (), are_copies: bool = False
) -> tuple[Floats, Floats]:
    """Rows of a range that are looked up equally often: how many [k], and the share of the table's lookups [k].

    Args:
        spec: of the table.
        rows: the range; None for all. Where ``frequent_first`` is not set, it has its part of every octave.
        copied: by octave, of how many rows every rank has a copy, which is looked up instead.
        are_copies: whether these are the copies.
    """
    bounds, shares = _bounds(spec), np.array(spec.access or (1.0,))
    sizes = np.diff(bounds).astype(np.float64)
    start, stop = rows or (0, spec.rows)
    if copied and are_copies:
        held = np.array(copied, np.float64)
    elif spec.frequent_first:
        held = np.maximum(np.minimum(bounds[1:], stop) - np.maximum(bounds[:-1], start), 0).astype(np.float64)
    else:
        held = sizes * ((stop - start) / spec.rows)
    if copied and not are_copies:
        held *= 1 - np.array(copied) / sizes
    return held, shares * held / sizes


def expected_distinct(steps: tuple[Floats, Floats], lookups: float) -> float:
    """Different rows that so many lookups of the whole table find in some steps (`steps_of`)."""
    rows, expected = _expected(steps, lookups)
    return float((rows * -np.expm1(-expected)).sum())


def asked(
    spec: TableSpec, rows: Range, samples: float, *, replicated: bool = False, copied: Sequence[int] = ()
) -> tuple[float, float]:
    """Ids of a range of rows that a rank asks for in so many samples of its own, and vectors that it gets for them.

    Of a table that is cut by rows, or has copies of some, lists without ids of the range have no vector; of a
    replicated one all have. See `steps_of`, also for `copied`.
    """
    steps = steps_of(spec, rows, copied=copied, are_copies=replicated)
    lookups, features = samples * spec.lookups_per_sample, max(len(spec.features), 1)
    if spec.index_dedup:
        once = features * expected_distinct(steps, lookups / features)
        return once, once
    share, vectors = float(steps[1].sum()), samples * spec.vectors_per_sample
    if (copied or rows != (0, spec.rows)) and not replicated:
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
