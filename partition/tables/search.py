"""A search for the plan whose slowest rank is fastest, by predicted costs (NeuroShard; Zha et al., MLSys 2023).

An outer beam search cuts pieces of tables in two, a round at a time; an inner one places the pieces of each state::

    state   pieces                                          placed, for each cap on what a rank exchanges:
    a       item 0-63 | user 0-63 | ad 0-15                 the costliest piece first, to the rank that computes least
    a -> b  item 0-31 | item 32-63 | user 0-63 | ad 0-15    so far; the best of all caps is the cost of the state
    a -> c  item 0-63 | user 0-31 | user 32-63 | ad 0-15

As published: candidates for a cut are the N largest and the N costliest pieces, columns are halved, caps are 1 to 1.5
times the mean in M steps. Different:

* The beam is nested: place w of it goes to the best new state that follows from places 1 to w, so that a wider beam
  finds everything that a narrower one does. States that differ in the order of cuts are one.
* Caps are on bytes that a rank exchanges, ids too, not on its columns; at the end there is none.
* Rows are halved where columns cannot be, and of pieces that take half of a rank's memory.
* The search starts from several states: no table replicated, or the 1, 2, 4, ... that exchange most for their bytes.
* Pieces of the slowest rank are moved and swapped at the end, and neighbours on one rank become one piece.
* Where no state fits into memory, pieces are cut by rows to fill one rank after another: what fits at all is placed.

With `by_rows` placement goes below the table, by how often rows are looked up (OPER; Wang et al., USENIX ATC 2024, of
which only what it claims was at hand: this is our construction). Rows are in octaves, 1, 2, 4, 8, ... of them from the
most frequent down (`windrow.partition.tables.access`), each of which may be replicated, so that tables of any number of
rows are searched in the same time:

    state       replicated              placed
    start       item 0-6, user 0-62     item 7- | user 63- | ad 0-         those octaves of all tables that exchange
                                                                           most for the bytes of their gradients
    -> cut      item 0-14, user 0-62    item 15- | user 63- | ad 0-        one octave more
    -> cut      item 0-6, user 0-62     item 7-90 | item 91- | ...         rows halved by lookups

Replicated rows are looked up at home, and of the others bags travel that have any. In return their gradients are summed
over ranks: that pays where a rank looks a row up about once in a step, or where nothing learns.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import PlanError
from windrow.comm.options import NonNegativeFloat, NonNegativeInt, PositiveInt, checked_dataclass
from windrow.partition.tables.access import first_octaves, steps_of
from windrow.partition.tables.cost_model import Floats, Piece
from windrow.partition.tables.costs import PlanCost, TableCosts, Traffic, hot_bounds
from windrow.partition.tables.plan import (
    COLUMN_MULTIPLE,
    COPY_BYTES,
    Copies,
    Plan,
    Range,
    Replica,
    Shard,
    TableSpec,
    shard_bytes,
)

if TYPE_CHECKING:
    from windrow.partition.tables.cost_kernels import Pieces, Ranks

__all__ = ["SearchOptions", "search_plan"]

Ints = npt.NDArray[np.int64]


@checked_dataclass
class SearchOptions:
    """How long and how wide plans are searched for (planner = "neuroshard" and "oper")."""

    seconds: NonNegativeFloat = 0.0
    """The best plan so far is taken after so long; 0 for no limit. With a limit plans depend on the machine."""
    beam: PositiveInt = 3
    """States that are kept after each round (K)."""
    rounds: NonNegativeInt = 10
    """Cuts one after another, at most (L)."""
    candidates: PositiveInt = 10
    """Pieces that are tried to be cut: so many of the largest, and so many of the costliest (N)."""
    caps: PositiveInt = 11
    """Caps that are tried on the bytes that a rank exchanges, 1, 1.05, 1.1, ... times the mean (M), before none."""


TARGETS, TRIED = 8, 32
"""Ranks that pieces of the slowest one may move to, and changes of a plan that are priced at a time."""
HOT_STEP = 1.25
"""Times as many octaves replicated from one first state to the next."""
LEAST_GAIN = 1e-4
"""Of a change, as a share of the cost."""


@dataclass(frozen=True, eq=False)
class _State:
    """Pieces, and what has to be known of each to place them."""

    pieces: tuple[Piece, ...]
    replicated: tuple[Piece, ...]
    """Rows that every rank holds, in all columns."""
    key: int
    """Equal for states whose pieces cost the same: a sum over pieces, whatever their order."""
    arrays: "Pieces"

    def replaced(self, place: int, halves: "_State") -> "_State":
        """With two pieces in the place of one: the first there, the second at the end."""
        first, second = halves.pieces
        order = np.arange(len(self.pieces) + 1)
        order[place], order[-1] = len(self.pieces), len(self.pieces) + 1
        return _State(
            (*self.pieces[:place], first, *self.pieces[place + 1 :], second),
            self.replicated,
            self.key - _key(self.pieces[place]) + halves.key,
            self.arrays.joined(halves.arrays).taken(order),
        )


def _state(pieces: tuple[Piece, ...], replicated: tuple[Piece, ...], arrays: "Pieces") -> _State:
    return _State(pieces, replicated, sum(map(_key, pieces)) + 3 * sum(map(_key, replicated)), arrays)


def _key(piece: Piece) -> int:
    """Equal for pieces that cost the same."""
    return hash((piece.table, piece.rows, piece.num_columns, piece.copied))


@dataclass(frozen=True, eq=False)
class _Placed:
    """A state, and where its pieces are."""

    state: _State
    ranks: Ints
    cost: float
    """Infinite where they do not fit: then `ranks` says nothing."""

    @property
    def order(self) -> tuple[float, int]:
        """What makes one better than another: its cost, and while nothing fits, small pieces."""
        return self.cost, int(self.state.arrays.num_bytes.max(initial=0)) if self.cost == float("inf") else 0


class _Copies(NamedTuple):
    """Of the replicated tables of a state."""

    vector: Floats
    """[width] of what each rank looks up in them."""
    num_bytes: int
    seconds: float
    """Of summing their gradients, and of their vectors at home."""


def search_plan(
    costs: TableCosts,
    memory: float,
    options: SearchOptions | None = None,
    progress: Callable[[int, float], None] | None = None,
    *,
    by_rows: bool = False,
) -> tuple[Plan, PlanCost]:
    """Search for a plan of all tables that `costs` knows.

    Args:
        costs: of what a step does with these tables on so many ranks.
        memory: bytes of each rank for weights and optimiser state, ``inf`` for no limit; never exceeded.
        options: how long, how wide.
        progress: called after each round with the number of cuts and the cost so far in seconds.
        by_rows: whether some rows of a table may be replicated, and tables be cut by how often rows are looked up.

    Returns:
        The best plan that was found, and what it is predicted to cost. The same for the same arguments, unless
        ``seconds`` cut the search short. Takes about ``beam * 2 candidates * rounds * caps`` placements, each in
        proportion to pieces times ranks; by rows up to four times as many.

    Raises:
        PlanError: the tables do not fit; names a table and a rank, with the shortfall.
    """
    options = options or SearchOptions()
    search = _Search(costs, memory, options, by_rows=by_rows)
    whole = search.first_state()
    firsts = (whole, *search.replicated(whole), *search.hot(whole))
    states = list({state.key: state for state in firsts}.values())
    beam = sorted((search.placed(state) for state in states), key=lambda placed: placed.order)[: options.beam]
    seen = {state.key for state in states}
    # The best that each narrower beam has found after each round: what a smaller search would refine is among these.
    best = list(accumulate(beam, _better))
    finalists = {placed.state.key: placed for placed in best}
    for number in range(options.rounds):
        successors = []
        for parent in beam:
            found = []
            for state in search.cuts(parent.state, seen):
                if search.is_over():
                    break
                found.append(search.placed(state))
            successors.append(sorted(found, key=lambda placed: placed.order))
        beam = _nested_beam(successors, options.beam)
        if not beam:
            break
        here = list(accumulate(beam, _better))
        best = [_better(best[min(w, len(best) - 1)], here[min(w, len(here) - 1)]) for w in range(options.beam)]
        finalists |= {placed.state.key: placed for placed in best}
        if progress is not None:
            progress(number + 1, best[-1].cost)
        if search.is_over():
            break
    fitting = [placed for placed in finalists.values() if placed.cost < float("inf")] or [search.filled()]
    # Neighbours that are joined may cost less than the pieces did.
    plans = [search.plan_of(search.refined(placed)) for placed in fitting]
    return min(((plan, costs.of_plan(plan)) for plan in plans), key=lambda found: found[1].total)


def _better(one: _Placed, other: _Placed) -> _Placed:
    return min(one, other, key=lambda placed: placed.order)


def _nested_beam(successors: Sequence[list[_Placed]], width: int) -> list[_Placed]:
    """Of states that follow from each state of a beam, the best first: the next beam."""
    chosen: list[_Placed] = []
    for place in range(width):
        reachable = [found for of_parent in successors[: place + 1] for found in of_parent if found not in chosen]
        if reachable:
            chosen.append(min(reachable, key=lambda placed: placed.order))
    return chosen


class _Search:
    """States of one search, and their costs.

    Args:
        costs, memory, options, by_rows: see `search_plan`.
    """

    def __init__(self, costs: TableCosts, memory: float, options: SearchOptions, *, by_rows: bool) -> None:
        self._costs, self._memory, self._options = costs, memory, options
        self._size, self._by_rows = costs.world_size, by_rows
        self._of_replicated: dict[tuple[Piece, ...], _Copies] = {}
        self._deadline = time.monotonic() + options.seconds if options.seconds else float("inf")
        # Compiled loops are loaded with the first search.
        from windrow.partition.tables import cost_kernels

        self._kernels, self._head = cost_kernels, cost_kernels.head_of(costs.model)

    def is_over(self) -> bool:
        """Whether the time that was given is used up."""
        return time.monotonic() > self._deadline

    # ------------------------------------------------------------------------------------------------------- states

    def first_state(self) -> _State:
        """Whole tables, but for those that fit on no rank: these are cut until they do.

        Raises:
            PlanError: all tables together do not fit, or the smallest piece of one.
        """
        # Columns first, as long as the state that each piece keeps of its rows leaves room for that.
        for halves in (_row_halves,) if self._by_rows else (_column_halves, _row_halves):
            pieces = self._fitting_pieces(halves)
            needed = sum(self._bytes(piece) for piece in pieces)
            if needed <= self._memory * self._size:
                return self._state(pieces)
        largest = max(self._costs.specs.values(), key=lambda spec: spec.num_bytes)
        shortfall = needed - int(self._memory) * self._size
        raise PlanError(
            f"the tables need {needed} bytes, the largest, {largest.name!r}, {largest.num_bytes}, and {self._size} "
            f"rank(s) (rank 0 and on) have {int(self._memory)} each: {shortfall} bytes are missing. Use more ranks, "
            "raise plan.rank_memory_bytes, or store large tables in a smaller form",
            shortfall_bytes=shortfall,
        )

    def _fitting_pieces(self, halves: Callable[[Piece], list[Piece]]) -> list[Piece]:
        """Whole tables, and pieces of those that fit on no rank, cut in one way where that is possible."""
        pieces: list[Piece] = []
        for spec in self._costs.specs.values():
            waiting = [Piece(spec.name, (0, spec.rows), (0, spec.dim))]
            while waiting:
                piece = waiting.pop()
                if self._bytes(piece) <= self._memory:
                    pieces.append(piece)
                    continue
                two = halves(piece) or _row_halves(piece) or _column_halves(piece)
                if not two or spec.compressed_bytes is not None:
                    raise _does_not_fit(spec, 0, self._bytes(piece), int(self._memory))
                waiting += reversed(two)
        return pieces

    def cuts(self, state: _State, seen: set[int]) -> Iterator[_State]:
        """States that follow from one by one cut, but for those whose keys were seen."""
        most = self._options.candidates
        largest, costliest = (
            np.argsort(-array, kind="stable") for array in (state.arrays.num_bytes, state.arrays.seconds)
        )
        for place in dict.fromkeys([*largest[:most].tolist(), *costliest[:most].tolist()]):
            piece = state.pieces[place]
            spec = self._costs.specs[piece.table]
            if spec.compressed_bytes is not None or self._size == 1:
                continue
            columns, rows = _column_halves(piece), _row_halves(piece)
            if columns and 2 * state.arrays.num_bytes[place] <= self._memory:
                rows = []
            by_lookups = _lookup_halves(spec, piece) if self._by_rows else []
            for halves in filter(None, (columns, rows, by_lookups)):
                key = state.key - _key(piece) + sum(map(_key, halves))
                if key not in seen:
                    seen.add(key)
                    yield state.replaced(place, self._state(halves))
            warmer = self._warmer(state, place) if self._by_rows else None
            if warmer is not None and warmer.key not in seen:
                seen.add(warmer.key)
                yield warmer

    def _warmer(self, state: _State, place: int) -> _State | None:
        """With the next octave of a table replicated, whose other rows begin with a piece."""
        piece = state.pieces[place]
        hot = max((copy.rows[1] for copy in state.replicated if copy.table == piece.table), default=0)
        more = [bound for bound in hot_bounds(self._costs.specs[piece.table]) if bound > hot]
        is_first = piece.rows[0] == (0 if piece.copied else hot)
        if not more or not is_first or not self._may_have_hot_rows(piece):
            return None
        return self._with_copies(state, {piece.table: more[0]})

    def hot(self, state: _State) -> Iterator[_State]:
        """States with the octaves replicated that exchange most for each byte of theirs, more and more of them."""
        if not self._by_rows or self._size == 1:
            return
        rates, ends, tables = [], [], []
        for table in dict.fromkeys(piece.table for piece in state.pieces if self._may_have_hot_rows(piece)):
            spec = self._costs.specs[table]
            bounds = hot_bounds(spec)
            rows = np.diff(bounds)
            shares = np.array(spec.access or (1.0,))[: len(rows)]
            exchanged = self._costs.traffic(Piece(table, (0, spec.rows), (0, spec.dim)))
            rates.append(shares / rows * (exchanged.ids + exchanged.vectors + exchanged.gradients) / spec.dim)
            ends += bounds[1:]
            tables += [table] * len(rows)
        order = np.argsort(-np.concatenate([np.zeros(0), *rates]), kind="stable").tolist()
        number = 1
        while number <= len(order):
            stops: dict[str, int] = {}
            for place in order[:number]:
                stops[tables[place]] = max(ends[place], stops.get(tables[place], 0))
            found = self._with_copies(state, stops)
            if found is None:
                break
            yield found
            number = max(number + 1, int(number * HOT_STEP))

    def _may_have_hot_rows(self, piece: Piece) -> bool:
        """Whether the most frequent rows of its table may be replicated, or all where all are alike."""
        spec = self._costs.specs[piece.table]
        return (
            piece.num_columns == spec.dim
            and len(hot_bounds(spec)) > 1
            and spec.compressed_bytes is None
            and spec.bytes_per_value == COPY_BYTES
        )

    def _with_copies(self, state: _State, stops: Mapping[str, int]) -> _State | None:
        """With rows of some tables replicated up to one, and no others of these; None where there is no memory."""
        copies = [copy for copy in state.replicated if copy.table not in stops]
        for table, stop in stops.items():
            spec = self._costs.specs[table]
            is_range = stop == spec.rows or not spec.hot
            copies.append(Piece(table, (0, stop), (0, spec.dim), () if is_range else first_octaves(spec, stop)))
        listed = {copy.table: copy.copied for copy in copies if copy.copied}
        if sum(map(self._bytes, copies)) > self._memory:
            return None
        kept, rest = [], []
        for place, piece in enumerate(state.pieces):
            stop = stops.get(piece.table, 0)
            if stop and piece.table in listed:
                rest.append(piece._replace(copied=listed[piece.table]))
            elif piece.rows[0] >= stop:
                kept.append(place)
            elif stop < piece.rows[1]:
                rest.append(piece._replace(rows=(stop, piece.rows[1])))
        pieces = *(state.pieces[place] for place in kept), *rest
        return _state(pieces, tuple(sorted(copies)), state.arrays.taken(kept).joined(self._state(rest).arrays))

    def replicated(self, state: _State) -> Iterator[_State]:
        """States with the first 1, 2, 4, ... whole tables replicated that exchange most for each byte of theirs."""
        whole = [
            place
            for place, piece in enumerate(state.pieces)
            if piece.rows == (0, (spec := self._costs.specs[piece.table]).rows)
            and piece.num_columns == spec.dim
            and spec.bytes_per_value == COPY_BYTES
        ]
        exchanged = state.arrays.traffic.sum(axis=1) / state.arrays.num_bytes
        whole.sort(key=lambda place: -exchanged[place])
        for number in sorted({1 << power for power in range(len(whole).bit_length())} | {len(whole)}):
            found = self._with_copies(
                state, {state.pieces[place].table: state.pieces[place].rows[1] for place in whole[:number]}
            )
            if self._size == 1 or found is None:
                break
            yield found

    def _state(self, pieces: Sequence[Piece]) -> _State:
        vectors = self._costs.vectors(pieces)
        arrays = self._kernels.Pieces(
            vectors,
            self._costs.model.seconds(vectors),
            np.array([self._bytes(piece) for piece in pieces], np.int64),
            Traffic.rows(map(self._costs.traffic, pieces)),
            np.array([self._costs.landing(piece) for piece in pieces]),
        )
        return _state(tuple(pieces), (), arrays)

    def _bytes(self, piece: Piece) -> int:
        return shard_bytes(self._costs.specs[piece.table], piece.num_rows, piece.num_columns)

    # ---------------------------------------------------------------------------------------------------- placement

    def placed(self, state: _State) -> _Placed:
        """The best of all caps."""
        arrays, owners = state.arrays, np.zeros(len(state.pieces), np.int64)
        order = np.lexsort((-arrays.num_bytes, -arrays.seconds))
        ranks = self._ranks(state)
        cost = self._kernels.best_placement(order, arrays, ranks, self._options.caps, owners)
        return _Placed(state, owners, cost + self._copies(state).seconds)

    def _priced(self, state: _State, owners: Ints) -> _Placed:
        cost = self._kernels.total(state.arrays, self._ranks(state), owners)
        return _Placed(state, owners, cost + self._copies(state).seconds)

    def _ranks(self, state: _State) -> "Ranks":
        copies = self._copies(state)
        memory = float(self._memory - copies.num_bytes)
        per_core = self._costs.workload.ranks_per_core
        return self._kernels.Ranks(self._costs.network, self._head, copies.vector, memory, per_core)

    def _copies(self, state: _State) -> _Copies:
        """What every rank has: the same for all states that replicate the same tables."""
        found = self._of_replicated.get(state.replicated)
        if found is None:
            pieces = state.replicated
            found = self._of_replicated[pieces] = _Copies(
                self._costs.vectors(pieces, replicated=True).sum(axis=0),
                sum(map(self._bytes, pieces)),
                self._costs.sums((piece.table, piece.num_rows) for piece in pieces)
                + self._costs.landing_of_replicated(piece.table for piece in pieces),
            )
        return found

    def filled(self) -> _Placed:
        """Ranks filled up, the emptiest first, with whole tables; rows are cut at the end of each.

        Raises:
            PlanError: it does not fit even so.
        """
        room = [int(min(self._memory, 1 << 62))] * self._size
        pieces, ranks = [], []
        for spec in sorted(self._costs.specs.values(), key=lambda spec: -spec.num_bytes):
            start = 0
            while start < spec.rows:
                piece = Piece(spec.name, (start, spec.rows), (0, spec.dim))
                rank = int(np.argmax(room))
                rows = _rows_within(spec, piece, room[rank])
                if rows == 0 or (rows < spec.rows and spec.compressed_bytes is not None):
                    raise _does_not_fit(spec, rank, self._bytes(piece), room[rank])
                taken = Piece(spec.name, (start, start + rows), piece.columns)
                pieces.append(taken)
                ranks.append(rank)
                room[rank] -= self._bytes(taken)
                start += rows
        return self._priced(self._state(pieces), np.array(ranks, np.int64))

    # --------------------------------------------------------------------------------------------------- refinement

    def refined(self, placed: _Placed) -> _Placed:
        """Pieces of the slowest rank moved, or swapped with others, as long as that makes the plan better."""
        while not self.is_over():
            near = [self._priced(placed.state, ranks) for ranks in self._neighbours(placed)]
            better = min([placed, *near], key=lambda found: found.cost)
            if better.cost >= placed.cost * (1 - LEAST_GAIN):
                break
            placed = better
        return placed

    def _neighbours(self, placed: _Placed) -> list[Ints]:
        """Plans with a piece of the slowest rank elsewhere, or swapped with another: those that look best.

        They look as good as the slower of the two ranks would be if seconds of pieces added up.
        """
        state, arrays, ranks = placed.state, placed.state.arrays, placed.ranks
        memory = self._memory - self._copies(state).num_bytes
        taken = np.bincount(ranks, weights=arrays.num_bytes, minlength=self._size)
        links = self._costs.workload.links
        per_byte = 0.0 if links is None else float(links.seconds_per_byte.mean()) * self._size
        effort = arrays.seconds + arrays.traffic.sum(axis=1) * per_byte
        of_rank = np.bincount(ranks, weights=effort, minlength=self._size)
        source = int(of_rank.argmax())
        mine = np.flatnonzero(ranks == source)
        found: list[tuple[float, dict[int, int]]] = []
        for target in np.argsort(of_rank, kind="stable")[: TARGETS + 1].tolist():
            if target == source:
                continue
            theirs = np.flatnonzero(ranks == target)
            # The last column: nothing comes back.
            moved = effort[mine][:, None] - np.append(effort[theirs], 0.0)
            grown = arrays.num_bytes[mine][:, None] - np.append(arrays.num_bytes[theirs], 0)
            slower = np.maximum(of_rank[source] - moved, of_rank[target] + moved)
            slower[(taken[target] + grown > memory) | (taken[source] - grown > memory)] = np.inf
            for place in np.argsort(slower, axis=None)[:TRIED]:
                here, there = divmod(int(place), len(theirs) + 1)
                if slower[here, there] < of_rank[source]:
                    changes = {int(mine[here]): target}
                    if there < len(theirs):
                        changes[int(theirs[there])] = source
                    found.append((float(slower[here, there]), changes))
        best = sorted(found, key=lambda each: each[0])[:TRIED]
        return [_changed(ranks, changes) for _, changes in best]

    def plan_of(self, placed: _Placed) -> Plan:
        """The plan, with neighbours on one rank joined, in the order of the tables."""
        state = placed.state
        order = {table: number for number, table in enumerate(self._costs.specs)}
        pieces = [
            Shard(piece.table, rank, piece.rows, piece.columns)
            for piece, rank in zip(state.pieces, placed.ranks.tolist(), strict=True)
        ]

        def place(shard: Shard) -> tuple[int, int]:
            return order[shard.table], shard.rank

        shards: list[Shard] = []
        for _, own in groupby(sorted(pieces, key=place), key=place):
            shards += joined_shards(list(own))
        shards.sort(key=lambda shard: (order[shard.table], shard.rows, shard.columns))
        replicated = sorted(state.replicated, key=lambda piece: order[piece.table])
        specs = self._costs.specs
        return Plan(
            tuple(shards),
            tuple(Replica(piece.table, piece.rows) for piece in replicated if not piece.copied),
            copies=tuple(
                Copies(piece.table, specs[piece.table].hot[: piece.num_rows]) for piece in replicated if piece.copied
            ),
        )


def joined_shards(shards: Sequence[Shard]) -> list[Shard]:
    """Shards of one table on one rank, with those that together are one block of rows and columns made one."""
    of_rows = _joined_along((shard.rows, shard.columns) for shard in shards)
    blocks = _joined_along((columns, rows) for rows, columns in of_rows)
    return [replace(shards[0], rows=rows, columns=columns) for columns, rows in blocks]


def _joined_along(blocks: Iterable[tuple[Range, Range]]) -> list[tuple[Range, Range]]:
    """Blocks of two ranges, in order, with those made one whose first is the same and whose second goes on."""
    joined: list[tuple[Range, Range]] = []
    for across, (start, stop) in sorted(blocks):
        if joined and joined[-1][0] == across and joined[-1][1][1] == start:
            joined[-1] = across, (joined[-1][1][0], stop)
        else:
            joined.append((across, (start, stop)))
    return joined


def _changed(ranks: Ints, changes: dict[int, int]) -> Ints:
    changed = ranks.copy()
    changed[list(changes)] = list(changes.values())
    return changed


def _column_halves(piece: Piece) -> list[Piece]:
    """Two pieces of equal width; none where a half would be no multiple of 4 columns."""
    start, stop = piece.columns
    middle = (start + stop) // 2
    if (stop - start) % (2 * COLUMN_MULTIPLE):
        return []
    return [piece._replace(columns=(start, middle)), piece._replace(columns=(middle, stop))]


def _row_halves(piece: Piece) -> list[Piece]:
    start, stop = piece.rows
    middle = (start + stop) // 2
    if middle == start:
        return []
    return [piece._replace(rows=(start, middle)), piece._replace(rows=(middle, stop))]


def _lookup_halves(spec: TableSpec, piece: Piece) -> list[Piece]:
    """Two pieces with as many lookups each, as far as octaves tell."""
    start, stop = piece.rows
    if not spec.access or not spec.frequent_first or stop - start < 2:  # one row cannot be halved
        return []
    held, shares = steps_of(spec, piece.rows)
    ends = np.cumsum(shares)
    octave = int(np.searchsorted(ends, ends[-1] / 2))
    before = float(ends[octave] - shares[octave])
    rows = held[:octave].sum() + (ends[-1] / 2 - before) / shares[octave] * held[octave] if shares[octave] else 0
    middle = min(max(start + round(float(rows)), start + 1), stop - 1)
    return [piece._replace(rows=(start, middle)), piece._replace(rows=(middle, stop))]


def _rows_within(spec: TableSpec, piece: Piece, num_bytes: int) -> int:
    """The most rows of a piece that so many bytes hold."""
    rows = range(1, piece.num_rows + 1)
    return bisect_right(rows, num_bytes, key=lambda some: shard_bytes(spec, some, piece.num_columns))


def _does_not_fit(spec: TableSpec, rank: int, needed: int, room: int) -> PlanError:
    shortfall = needed - room
    return PlanError(
        f"table {spec.name!r} needs {needed} bytes on rank {rank}, which has {room} left: {shortfall} bytes are "
        "missing. Use more ranks, raise plan.rank_memory_bytes, or store the table in a smaller form",
        shortfall_bytes=shortfall,
    )
