"""What a step costs under a plan, rank by rank: the simulator that a search for plans asks.

A step of embedding tables, on every rank::

    ids to the owners | lookups, forward | vectors home | ... | gradients back | rows learn

Lookups and learning are computed (`windrow.partition.tables.cost_model`). Ranks are done with that at different times,
and vectors of the last one are waited for: with c the seconds of computing, b of gradients, and s = c + b as the time
at which a rank starts to send its vectors (NeuroShard's simulator; Zha et al., MLSys 2023)::

    cost = ids + max over ranks (c + b + forward(s - min s)) + landing + sums of replicated tables

Landing is what vectors of all owners take to be put together at home, and their gradients to be taken apart: a table
that is cut by rows has a vector from each owner.

Exchanges are those of ``comm.links``: what leaves and enters a rank takes its turn on its port.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch

from windrow.comm.errors import PlanError
from windrow.comm.wire import WireOptions, make_codec
from windrow.comm.wire_savings import predict_sum
from windrow.partition.tables.access import (
    asked,
    copied_octaves,
    expected_distinct,
    first_octaves,
    octave_bounds,
    steps_of,
)
from windrow.partition.tables.cost_model import ComputeModel, Floats, Piece, piece_features
from windrow.partition.tables.plan import Plan, TableSpec, rank_bytes, sharing_features, specs_by_name

if TYPE_CHECKING:
    from windrow.comm.links import Links

__all__ = ["PlanCost", "TableCosts", "Traffic", "Workload", "exchange_seconds", "hot_bounds"]

FLOAT32_BYTES = 4
ROW_NUMBER_BYTES = 8
DENSE_SECONDS_PER_BYTE = 6e-10
"""Of a replicated table: its gradient has a number for each of the table's, which is zeroed, read, and learnt from,
however few rows were looked up (two ranks of a server's processor, less what summing takes there)."""
LANDING_SECONDS_PER_BYTE, LANDING_SECONDS_PER_ROW = 6e-10, 1.7e-7
"""Of a vector of float32 at home, and as much for its gradient: packed where it comes from, and copied or added (two
ranks of the same processor). Rows count where a table is cut by rows: each vector goes to a place of its own then."""
EVERY_ROW_SECONDS_PER_NUMBER = 1e-9
"""Of a table of which a step moves every row: its gradient is as large as itself (one rank of that processor: 0.77 to
0.92 for Adam, 1.04 to 1.70 for row-wise Adagrad with weight decay)."""
STATE_SECONDS_PER_NUMBER = 3e-9
"""Of a row that was looked up and has a state for each number, as of Adagrad (there: 2.0 to 4.8). Row-wise Adagrad is
what cost models are trained on; SGD takes 0.85 to 1.08 of it, and half precision 0.64 to 1.30."""
FORWARD_SHARE = 0.4
"""Of the seconds of forward and backward pass (there, with 1 to 16 ids in a list)."""
LONG_BYTES = 1 << 30
"""Of an all-reduce whose latency counts for nothing."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a step does with tables, beside what their specs say."""

    batch_size: int = 1024
    """Samples of each rank."""
    links: "Links | None" = None
    """Between the ranks; None: next to nothing travels for free."""
    wire: WireOptions = field(default_factory=WireOptions)
    """Number formats of vectors, their gradients, and sums of those of replicated tables."""
    id_bytes: float = 4.0
    """Of an id on the wire; a length takes as many."""
    learns: bool = True
    """Whether there is a backward pass, so that gradients travel and are summed."""
    ranks_per_core: float = 1.0
    """Ranks that share a core of a processor, if more than 1: then what they compute together counts."""

    @staticmethod
    def of_step(
        batch_size: int, world_size: int, wire: WireOptions, links: "Links | None", *, ranks_per_core: float = 1.0
    ) -> "Workload":
        """Of training with so many samples in a step of all ranks, and these number formats."""
        return Workload(batch_size=-(-batch_size // world_size), links=links, wire=wire, ranks_per_core=ranks_per_core)

    def of_group(self, size: int) -> "Workload":
        """That of the first so many ranks among themselves."""
        return replace(self, links=self.links and self.links.of_first(size))


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a piece has each rank send to its owner, or get from it, in a step."""

    ids: float
    vectors: float
    gradients: float

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.ids + other.ids, self.vectors + other.vectors, self.gradients + other.gradients)

    @staticmethod
    def rows(traffic: "Iterable[Traffic]") -> Floats:
        """[n, 3] ids, vectors and gradients of each."""
        return np.array([(each.ids, each.vectors, each.gradients) for each in traffic], np.float64).reshape(-1, 3)


@dataclass(frozen=True, kw_only=True)
class PlanCost:
    """Seconds of a step of embedding tables, and bytes that are stored: [ranks] each, but for landing and sums."""

    ids: Floats
    """Until a rank has the ids of all."""
    compute: Floats
    """Forward and backward pass of what it holds, replicated tables too."""
    backward: Floats
    """Until it has the gradients of all."""
    forward: Floats
    """Until it has its vectors, with the wait for the slowest."""
    landing: float
    """Of vectors at home, and of their gradients: the same on all ranks."""
    sums: float
    """Of replicated tables' gradients over ranks, with what they take on each rank (`DENSE_SECONDS_PER_BYTE`), and of
    rows' gradients over groups of ranks that hold all tables."""
    memory: Floats
    """Bytes of weights and optimiser state."""

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        waits = self.compute + self.backward + self.forward
        return float(self.ids.max() + waits.max()) + self.landing + self.sums


def exchange_seconds(links: "Links", sent: Floats, starts: Floats) -> Floats:
    """Seconds until each rank has everything of a ragged all-to-all, from its own start on: [n].

    A rank sends its messages one after another from its start on, so the last of them leaves when its port is done;
    what arrives at a port takes its turn in the order of the senders' starts::

        end[q] = latency + max over k of (starts[k] + theta * bytes to q of all that start no earlier than k)

    and no earlier than any sender to it, or its own port, is done. Ranks of one host share its port, as far as
    the bytes that cross hosts go; what all ranks share holds up the last one. O(n^2 log n).

    Args:
        links: between the ranks.
        sent: [n, n] bytes from each rank to each; the diagonal does not travel.
        starts: [n] seconds at which each begins to send.
    """
    from windrow.partition.tables.cost_kernels import exchange, network_of

    return exchange(network_of(links, links.size), np.asarray(sent, np.float64), np.asarray(starts, np.float64))


class TableCosts:
    """Prices pieces of some tables and whole plans of them. What was priced once is kept.

    Args:
        specs: of all tables.
        world_size: ranks.
        workload: of a step.
        model: of the time on a rank.
        replica_groups: of ranks, each of which holds all tables; see `Plan.replica_groups`.

    Raises:
        PlanError: the model is of the published design, and tables learn by other rules than row-wise Adagrad or SGD.
    """

    def __init__(
        self,
        specs: Sequence[TableSpec],
        world_size: int,
        workload: Workload,
        model: ComputeModel,
        *,
        replica_groups: int = 1,
    ) -> None:
        shared = sharing_features(specs)
        # Of rows that two tables have of one id no copies are made.
        self.specs = specs_by_name([replace(spec, hot=()) if spec.name in shared else spec for spec in specs])
        self.world_size = world_size // replica_groups
        """Ranks of a group."""
        self.workload = workload.of_group(self.world_size)
        """Of a group."""
        self.model = model if workload.learns else model.times(FORWARD_SHARE)
        priced = [spec for spec in specs if spec.moves_every_row or spec.optimizer_bytes_per_row > FLOAT32_BYTES]
        if model.design == "published" and priced:
            raise PlanError(
                f"table {priced[0].name!r} learns by other rules than row-wise Adagrad, and a cost model of the "
                "published design knows that alone: leave plan.cost_model out, or train one of the design corrected"
            )
        self._links, self._groups = workload.links, replica_groups
        self._codecs = make_codec(workload.wire.vectors), make_codec(workload.wire.gradients)
        # Compiled loops are loaded with the first costs.
        from windrow.partition.tables.cost_kernels import exchanges, in_turn, network_of

        self._exchanges, self._in_turn = exchanges, in_turn
        self.network = network_of(self.workload.links, self.world_size)
        """Between the ranks of a group, for compiled loops."""
        self._vectors: dict[tuple[Piece, bool], Floats] = {}
        self._traffic: dict[Piece, Traffic] = {}

    def vectors(self, pieces: Sequence[Piece], *, replicated: bool = False) -> Floats:
        """What adds up over the pieces of a rank, [n, width]; see `ComputeModel.vectors`.

        Of a replicated piece a rank looks up its own samples alone, else those of all. Missing ones are asked at once.
        """
        samples, ranks = self.workload.batch_size, 1 if replicated else self.world_size
        # Equal blocks of columns cost the same, whichever they are.
        keys = [(piece._replace(columns=(0, piece.num_columns)), replicated) for piece in pieces]
        missing = [key for key in dict.fromkeys(keys) if key not in self._vectors]
        if missing:
            features = np.stack(
                [
                    piece_features(
                        self.specs[p.table],
                        p.rows,
                        p.num_columns,
                        samples,
                        ranks=ranks,
                        replicated=replicated,
                        copied=p.copied,
                    )
                    for p, _ in missing
                ]
            )
            more = np.array([self._learning(piece, of[2]) for (piece, _), of in zip(missing, features, strict=True)])
            self._vectors |= dict(zip(missing, self.model.vectors(features, more), strict=True))
        found = [self._vectors[key] for key in keys]
        return np.stack(found) if found else np.zeros((0, self.model.width))

    def _learning(self, piece: Piece, distinct: float) -> float:
        """Seconds that learning takes more than by row-wise Adagrad, with so many different rows looked up."""
        spec = self.specs[piece.table]
        if not self.workload.learns or spec.compressed_bytes is not None:
            return 0.0
        if spec.moves_every_row:
            return EVERY_ROW_SECONDS_PER_NUMBER * piece.num_rows * piece.num_columns
        has_states = spec.optimizer_bytes_per_row > FLOAT32_BYTES
        return STATE_SECONDS_PER_NUMBER * distinct * piece.num_columns * has_states

    def traffic(self, piece: Piece) -> Traffic:
        """What each rank exchanges with the owner of a piece."""
        key = piece._replace(columns=(0, piece.num_columns))
        if key not in self._traffic:
            spec, workload = self.specs[piece.table], self.workload
            ids, vectors = asked(spec, piece.rows, workload.batch_size, copied=piece.copied)
            of_vector, of_gradient = (
                codec.wire_row_bytes((piece.num_columns,), torch.float32) for codec in self._codecs
            )
            # A list of exactly one id has no length on the wire.
            lengths = 0.0 if spec.index_dedup or spec.lookups_per_sample == spec.vectors_per_sample else vectors
            self._traffic[key] = Traffic(
                workload.id_bytes * (ids + lengths), vectors * of_vector, vectors * of_gradient * workload.learns
            )
        return self._traffic[key]

    def numbers(self, piece: Piece) -> float:
        """Of the vectors that each rank gets from the owner of a piece."""
        of_vector = self._codecs[0].wire_row_bytes((piece.num_columns,), torch.float32)
        return self.traffic(piece).vectors / of_vector * piece.num_columns

    def traffic_of_rank(self, pieces: Iterable[Piece]) -> Traffic:
        """Of all pieces of a rank: ids of neighbouring columns travel once."""
        pieces = list(pieces)
        total = sum((self.traffic(piece) for piece in pieces), Traffic(0.0, 0.0, 0.0))
        seen = {(piece.table, piece.rows): self.traffic(piece).ids for piece in pieces}
        return Traffic(sum(seen.values()), total.vectors, total.gradients)

    def sums(self, replicated: Iterable[tuple[str, int]]) -> float:
        """Seconds of summing the gradients of so many rows of some tables over ranks, and of what else is done to all.

        Of compressed ones those of all that they are computed from.
        """
        summed, compressed = 0.0, dict[str, float]()
        for table, rows in replicated:
            spec = self.specs[table]
            if spec.compressed_bytes is None:
                summed += FLOAT32_BYTES * rows * spec.dim
            else:
                compressed[table] = spec.compressed_bytes
        summed += sum(compressed.values())
        return self._summing(summed) if self.workload.learns else 0.0

    def landing(self, piece: Piece) -> float:
        """Seconds of a piece's vectors at home, on each rank."""
        if self.world_size == 1:
            return 0.0
        numbers = self.numbers(piece)
        seconds = LANDING_SECONDS_PER_BYTE * FLOAT32_BYTES * numbers
        if piece.copied or piece.rows != (0, self.specs[piece.table].rows):
            seconds += LANDING_SECONDS_PER_ROW * numbers / piece.num_columns
        return seconds * (1 + self.workload.learns) * self.workload.ranks_per_core

    def landing_of_replicated(self, tables: Iterable[str]) -> float:
        """Seconds of the vectors of tables of which some rows are replicated: all lists have one, in order."""
        specs = [self.specs[table] for table in dict.fromkeys(tables)]
        return sum(self.landing(Piece(spec.name, (0, spec.rows), (0, spec.dim))) for spec in specs)

    def _summing(self, num_bytes: float) -> float:
        """Seconds of dense gradients of so many bytes in memory."""
        numbers, wire = int(num_bytes) // FLOAT32_BYTES, 0.0
        if self._links is not None:
            wire = predict_sum(self._links, numbers, self.workload.wire.sums)
        return wire + DENSE_SECONDS_PER_BYTE * num_bytes * self.workload.ranks_per_core

    def between_groups(self, pieces: Sequence[Iterable[Piece]]) -> float:
        """Seconds until groups have each other's gradients of the rows that were looked up, [ranks of a group]."""
        if self._links is None or self._groups == 1 or not self.workload.learns:
            return 0.0
        samples = self.workload.batch_size * self.world_size

        def row_bytes(piece: Piece) -> float:
            spec = self.specs[piece.table]
            rows = expected_distinct(steps_of(spec, piece.rows, copied=piece.copied), samples * spec.lookups_per_sample)
            return rows * (ROW_NUMBER_BYTES + FLOAT32_BYTES * piece.num_columns)

        sent = np.array([sum(map(row_bytes, of_rank)) for of_rank in pieces])
        between: Floats = np.tile(np.diag(sent), (self._groups, self._groups))
        return float(exchange_seconds(self._links, between, np.zeros(len(between))).max())

    def owned(self, plan: Plan) -> list[list[Piece]]:
        """What each rank of a group owns under a plan, copies of rows left out."""
        pieces: list[list[Piece]] = [[] for _ in range(self.world_size)]
        copied = self._copied(plan)
        for shard in plan.shards:
            pieces[shard.rank].append(Piece(shard.table, shard.rows, shard.columns, copied.get(shard.table, ())))
        return pieces

    def _copied(self, plan: Plan) -> dict[str, tuple[int, ...]]:
        return {rows.table: copied_octaves(self.specs[rows.table], rows.ids) for rows in plan.copies}

    def of_plan(self, plan: Plan) -> PlanCost:
        """The cost of any plan of these tables."""
        size, pieces, copied = self.world_size, self.owned(plan), self._copied(plan)
        copies = [Piece(copy.table, copy.rows, (0, self.specs[copy.table].dim)) for copy in plan.replicated]
        copies += [
            Piece(rows.table, (0, len(rows.ids)), (0, self.specs[rows.table].dim), copied[rows.table])
            for rows in plan.copies
        ]
        everywhere = self.vectors(copies, replicated=True).sum(axis=0)
        self.vectors(list(chain.from_iterable(pieces)))
        sums = np.stack([self.vectors(of_rank).sum(axis=0) + everywhere for of_rank in pieces])
        compute = self._in_turn(self.model.seconds(sums), self.workload.ranks_per_core)
        traffic = Traffic.rows(map(self.traffic_of_rank, pieces))
        ids, backward, forward = self._exchanges(self.network, compute, traffic)
        memory = rank_bytes(plan, list(self.specs.values()), size * plan.replica_groups)[:size]
        return PlanCost(
            ids=ids,
            compute=compute,
            backward=backward,
            forward=forward,
            landing=sum(self.landing(piece) for of_rank in pieces for piece in of_rank)
            + self.landing_of_replicated(copy.table for copy in copies),
            sums=self.sums((copy.table, copy.num_rows) for copy in copies) + self.between_groups(pieces),
            memory=np.array(memory, np.float64),
        )

    def least_possible(self) -> float:
        """Seconds below which no plan of these tables can go, whatever its cuts and replicated rows.

        All computing is shared out evenly, by ranks or by samples, and so is what has to travel: of each table the
        octaves are replicated with which the least does, its sums of gradients counted, and the rest is in one piece.
        """
        whole = [Piece(spec.name, (0, spec.rows), (0, spec.dim)) for spec in self.specs.values()]
        sums = np.stack([self.vectors(whole, replicated=copied).sum(axis=0) for copied in (False, True)])
        alone, own = self.model.seconds(sums).tolist()
        on_the_wire: float = sum(map(self._least_on_the_wire, self.specs.values()))
        compute = self.workload.ranks_per_core * min(float(alone) / self.world_size, float(own))
        landing = sum(_filled_at_most(spec) * self.landing_of_replicated([spec.name]) for spec in self.specs.values())
        return on_the_wire + landing + compute

    def _least_on_the_wire(self, spec: TableSpec) -> float:
        links, size = self.workload.links, self.world_size
        if links is None or size == 1:
            return 0.0
        theta = self.network.seconds_per_byte[~np.eye(size, dtype=bool)].min()
        per_sum = self._summing(LONG_BYTES) / LONG_BYTES * self.workload.learns
        if spec.compressed_bytes is not None:
            stops, sums = [0, spec.rows], [0.0, per_sum * spec.compressed_bytes]
        else:
            stops = hot_bounds(spec)
            stops += [spec.rows] * (stops[-1] < spec.rows)
            sums = [per_sum * FLOAT32_BYTES * spec.dim * stop for stop in stops]

        def seconds(stop: int) -> float:
            whole = Piece(spec.name, (0, spec.rows), (0, spec.dim))
            some = {"copied": first_octaves(spec, stop)} if spec.hot and stop else {"rows": (stop, spec.rows)}
            traffic = self.traffic(whole._replace(**some))
            vectors = (traffic.vectors + traffic.gradients) * _filled_at_most(spec)
            return float(theta * (traffic.ids + vectors) * (size - 1) / size)

        return min(per + (seconds(stop) if stop < spec.rows else 0.0) for stop, per in zip(stops, sums, strict=True))


def hot_bounds(spec: TableSpec) -> list[int]:
    """Rows that may be replicated, the most frequent first, end at one of these: 0, and ends of octaves.

    Of rows in any order those that are known; where all are looked up alike all or none.
    """
    if not spec.access:
        return [0, spec.rows]
    return [bound for bound in octave_bounds(spec.rows).tolist() if spec.frequent_first or bound <= len(spec.hot)]


def _filled_at_most(spec: TableSpec) -> float:
    """Part of a table's lists that have ids, if each is in a list of its own: no cut by rows has fewer vectors."""
    return min(1.0, spec.lookups_per_sample / max(spec.vectors_per_sample, 1e-30))
