"""In what form is a table stored? Vectors of large tables, computed from far fewer numbers.

A form turns ids into vectors by way of small dense tables, its stored tables, which learn as any others. Of a table of
n rows and D columns, compressed c times::

    form                stored tables                      vector of row i
    hashed              rows [n / c, D]                    rows[hash(i)]
    quotient_remainder  quotients [q, D], remainders       quotients[i // r] * remainders[i % r]
                        [r, D]; q r >= n, q + r = n / c
    narrow              rows [n, d], projection [d, D]     rows[i] @ projection
    robe                one array for all tables           `windrow.recsys.tables.robe`
    tensor_train        2 to 4 cores                       `windrow.recsys.tables.tensor_train`
    codes               a codebook for each part of rows   `windrow.recsys.tables.codes`
    int8, int4          rows of scale, low and codes       `windrow.recsys.tables.quantised`

Hashing: Weinberger et al., Feature Hashing for Large Scale Multitask Learning, ICML 2009. Quotients and remainders:
Shi et al., Compositional Embeddings Using Complementary Partitions, KDD 2020. Narrow rows: Ginart et al., Mixed
Dimension Embeddings, ISIT 2021, with one width.

Functions that hash depend on the tables' names alone: a checkpoint is read whatever the seed of the run is.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from windrow.comm.errors import RecipeError
from windrow.comm.random import GOLDEN, mixed, shifted, signed
from windrow.partition.tables.plan import Range
from windrow.recsys.tables.dense_gradient import pool_rows, segment_bounds
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import table_key
from windrow.training.shard_files import LocalTable, StateTensor

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = [
    "Form",
    "Hashed",
    "Narrow",
    "QuotientRemainder",
    "Segment",
    "distinct",
    "scale_of",
    "select_rows",
    "whole_table",
]


_ROWS_AT_ONCE = 1 << 16
_ALTERNATIONS = 10


class Segment(NamedTuple):
    """What one lookup of a batch wants of a form: see `Form.pool`."""

    table: int
    """Place in `Form.tables`."""
    first_row: int
    """Added to its ids."""
    columns: Range
    """Of the table's vectors."""


class Form(ABC):
    """How the vectors of some tables are computed from stored ones.

    Args:
        tables: whole tables, in an order that is the same on all ranks.
        stored: whole tables with names of their own, which nothing else stores.
        scales: of each stored table, half the width of its first values' interval around 0.
    """

    can_learn_alone = False
    """Whether `learn` is there: on CPUs of a rank that alone has the stored tables."""
    needs_to_learn_alone = False
    """Whether there is nothing else: everywhere then, with `gather`."""
    learns_alone = False
    """Whether stored tables get no gradients: the form keeps those of the vectors for `learn`."""
    by_row: Sequence[int] = ()
    """Stored tables that learn by row, since a step looks few of theirs up: their gradients are sparse."""

    def __init__(
        self, tables: Sequence[LocalTable], stored: Sequence[LocalTable], scales: Sequence[float] = ()
    ) -> None:
        self.tables = tuple(tables)
        self.stored = tuple(stored)
        self.scales = tuple(scales)
        self.waiting: list[tuple[Tensor, Tensor]] = []
        """Rows [n] of lookups and their gradients [n, dim], from which `learn` has not learnt yet."""

    @abstractmethod
    def rows(self, table: int, ids: Tensor, stored: Sequence[Tensor]) -> Tensor:
        """Vectors of some rows: [n, dim] float32, differentiable towards `stored`.

        Args:
            table: place in `tables`.
            ids: [n] int64, not checked.
            stored: values of the stored tables.
        """

    def look_up(self, table: int, ids: Tensor, stored: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Each of the rows among some ids once.

        Args:
            table: place in `tables`.
            ids: [n] int64, not checked.
            stored: values of the stored tables.

        Returns:
            Vectors [different rows, dim] float32, differentiable; and [n] which of them each id has.
        """
        found, inverse, _ = distinct(ids, self.tables[table].num_rows)
        return self.rows(table, found, stored), inverse

    def pool(
        self,
        segments: Sequence[Segment],
        values: Tensor,
        offsets: Tensor,
        weights: Tensor | None,
        stored: Sequence[Tensor],
    ) -> Tensor:
        """Sum vectors of bags: each vector is computed once, and learns from the sum of its gradients.

        Args:
            segments: what each lookup wants.
            values: [n] rows, less the first row of their segment.
            offsets: [segments * samples + 1] where bags begin.
            weights: [n] float32 that each vector is multiplied by, or None for ones.
            stored: values of the stored tables.

        Returns:
            [samples, columns of all segments] float32, differentiable towards `stored`.
        """
        num_samples, bounds = (len(offsets) - 1) // len(segments), segment_bounds(offsets, len(segments))
        columns, first = [], 0
        for segment, same in groupby(segments):
            last = first + len(list(same))
            start, stop = bounds[first], bounds[last]
            ids = values[start:stop].long()
            vectors, inverse = self.look_up(
                segment.table, ids + segment.first_row if segment.first_row else ids, stored
            )
            bags = offsets[first * num_samples : last * num_samples + 1].long() - start
            own_weights = None if weights is None else weights[start:stop]
            if segment.columns != (0, vectors.shape[1]):
                vectors = vectors[:, slice(*segment.columns)].contiguous()
            columns.append(pool_rows([vectors], (0,) * (last - first), inverse, bags, own_weights))
            first = last
        return torch.cat(columns, 1) if len(columns) > 1 else columns[0]

    def start(self, stored: Sequence[Tensor]) -> None:  # noqa: B027  # most forms have nothing but stored tables
        """Be told that the stored tables have their first values, which may be changed."""

    def take_waiting(self) -> tuple[Tensor, Tensor]:
        """All rows and gradients that wait, of which there are some; none do any more."""
        rows, gradients = (torch.cat(parts) for parts in zip(*self.waiting, strict=True))
        self.waiting.clear()
        return rows, gradients

    def gather(self, world: "World", *, stage: str) -> None:
        """Have the gradients that `learn` waits for from all ranks, in their order. Collective."""
        raise NotImplementedError

    def learn(self, stored: Sequence[Tensor], kept: Sequence[Tensor], learning_rate: float, eps: float) -> None:
        """Change the stored tables by the gradients of all lookups since the last call.

        Args:
            stored: values of the stored tables.
            kept: what the optimiser keeps of each: [rows] for row-wise Adagrad, [rows, columns] for Adagrad; empty for
                SGD. Formulas in `windrow.recsys.tables.fbgemm`.
            learning_rate: of this step.
            eps: keeps the divisor from zero.
        """
        raise NotImplementedError

    def step(self, stored: Sequence[Tensor], world: "World | None") -> Sequence[tuple[int, Tensor]]:
        """Be told that the stored tables have learnt, and change them, or what they mean.

        Collective over the ranks of a world, those that hold the stored tables; None: this one alone does.

        Returns:
            Stored tables, and rows of them that stand for something else from now on.
        """
        del stored, world
        return ()

    def index_bytes(self) -> int:
        """Memory for what is needed beside the stored tables."""
        return 0

    def state(self, *, replicated: bool) -> list[StateTensor]:
        """What is to be saved beside the stored tables, as parts of them; the same on all ranks that hold these."""
        del replicated
        return []

    def load(self, part: StateTensor) -> bool:
        """Overwrite one tensor of `state`; False where it is none."""
        del part
        return False

    def whole_table(self, name: str, stored: Sequence[Tensor]) -> Tensor:
        """All vectors of a table, [rows, dim] float32, from the values of all stored tables."""
        number = [table.name for table in self.tables].index(name)
        table = self.tables[number]
        found = stored[0].new_empty(table.num_rows, table.dim)
        with torch.no_grad():
            for ids in torch.arange(table.num_rows, device=found.device).split(_ROWS_AT_ONCE):
                found[int(ids[0]) : int(ids[-1]) + 1] = self.rows(number, ids, stored)
        return found

    @abstractmethod
    def nearest(self, tables: Sequence[Tensor]) -> list[Tensor]:
        """Values of the stored tables whose vectors are near those of dense tables, in the sense of least squares.

        Args:
            tables: of each of `tables` [rows, dim] float32, on the CPU.

        Returns:
            [rows, columns] float32 of each stored table.
        """

    def first_values(self, seed: int) -> list[Tensor] | None:
        """First values of the stored tables, [rows, columns] float32 on the CPU; None: uniform, by `scales`."""
        del seed
        return None


def whole_table(name: str, rows: int, dim: int) -> LocalTable:
    """All of a table."""
    return LocalTable(name=name, rows=(0, rows), columns=(0, dim))


def scale_of(options: TableOptions, table: LocalTable) -> float:
    """Half the width of the interval around 0 in which first values of the dense table would be."""
    return options.initial_scale or float(max(table.num_rows, 1) ** -0.5)


def refuse_unless_smaller(table: LocalTable, stored: Sequence[LocalTable], form: str) -> None:
    """Refuse a form that would be no smaller than the table."""
    size = sum(part.num_rows * part.dim for part in stored)
    if size >= table.num_rows * table.dim:
        raise RecipeError(
            f'table {table.name!r}: form = "{form}" would store {size} numbers in place of '
            f'{table.num_rows * table.dim}: give it form = "dense", or a larger compression'
        )


class Hashed(Form):
    """One table whose ids share rows, by a hash of 64 bits."""

    def __init__(self, table: LocalTable, options: TableOptions) -> None:
        rows = max(math.ceil(table.num_rows / options.compression), 1)
        stored = whole_table(f"{table.name}.hashed", rows, table.dim)
        refuse_unless_smaller(table, [stored], "hashed")
        super().__init__([table], [stored], [scale_of(options, table)])
        self._key = signed(table_key(stored.name, 0))

    def rows(self, table: int, ids: Tensor, stored: Sequence[Tensor]) -> Tensor:
        """See `Form.rows`."""
        del table
        return select_rows(stored[0], self._place(ids))

    def pool(
        self,
        segments: Sequence[Segment],
        values: Tensor,
        offsets: Tensor,
        weights: Tensor | None,
        stored: Sequence[Tensor],
    ) -> Tensor:
        """See `Form.pool`; rows are added up where they are stored."""
        if any(segment != (0, 0, (0, self.tables[0].dim)) for segment in segments):
            return super().pool(segments, values, offsets, weights, stored)
        return pool_rows(stored, (0,) * len(segments), self._place(values.long()), offsets.long(), weights)

    def nearest(self, tables: Sequence[Tensor]) -> list[Tensor]:
        """See `Form.nearest`: the mean of the rows that share one."""
        total, times = torch.zeros(self.stored[0].num_rows, self.tables[0].dim), torch.zeros(self.stored[0].num_rows)
        for ids in torch.arange(len(tables[0])).split(_ROWS_AT_ONCE):
            places = self._place(ids)
            total.index_add_(0, places, tables[0][ids])
            times.index_add_(0, places, torch.ones(len(ids)))
        return [total / times.clamp(min=1)[:, None]]

    def _place(self, ids: Tensor) -> Tensor:
        words = mixed(self._key ^ mixed(ids + signed(GOLDEN)))
        return shifted(words, 1) % self.stored[0].num_rows


class QuotientRemainder(Form):
    """One table whose row i is the product, number by number, of rows i // r and i % r of two small ones."""

    def __init__(self, table: LocalTable, options: TableOptions) -> None:
        budget = table.num_rows / options.compression
        # The most quotients: an id shares its quotient's row with r - 1 others. At least 2 sqrt(n) rows in all.
        spread = max(budget * budget - 4 * table.num_rows, 0.0)
        remainders = max(math.ceil((budget - math.sqrt(spread)) / 2 if spread else math.sqrt(table.num_rows)), 1)
        stored = [
            whole_table(f"{table.name}.quotients", -(-table.num_rows // remainders), table.dim),
            whole_table(f"{table.name}.remainders", remainders, table.dim),
        ]
        refuse_unless_smaller(table, stored, "quotient_remainder")
        # Products of numbers uniform in [-a, a) have the variance a**4 / 9; those of the dense table have s**2 / 3.
        scale = (3 * scale_of(options, table) ** 2) ** 0.25
        super().__init__([table], stored, [scale, scale])

    def rows(self, table: int, ids: Tensor, stored: Sequence[Tensor]) -> Tensor:
        """See `Form.rows`."""
        del table
        divisor = self.stored[1].num_rows
        return select_rows(stored[0], ids // divisor) * select_rows(stored[1], ids % divisor)

    def nearest(self, tables: Sequence[Tensor]) -> list[Tensor]:
        """See `Form.nearest`: of each column the nearest matrix of rank 1, by alternating least squares."""
        (quotients, remainders), dim = (table.num_rows for table in self.stored), self.tables[0].dim
        padded = torch.zeros(quotients * remainders, dim)
        padded[: len(tables[0])] = tables[0]
        values, tiny = padded.view(quotients, remainders, dim), torch.finfo(torch.float32).tiny
        right = torch.ones(remainders, dim)
        for _ in range(_ALTERNATIONS):
            left = (values * right).sum(1) / right.square().sum(0).clamp(min=tiny)
            right = (values * left[:, None]).sum(0) / left.square().sum(0).clamp(min=tiny)
        # As large on average: both learn at one rate.
        balance = (left.square().mean() / right.square().mean().clamp(min=tiny)).clamp(min=tiny) ** 0.25
        return [left / balance, right * balance]


class Narrow(Form):
    """One table with fewer columns, and a matrix that makes all of them of these."""

    def __init__(self, table: LocalTable, options: TableOptions) -> None:
        numbers = table.num_rows * table.dim / options.compression
        width = max(int(numbers / (table.num_rows + table.dim)), 1)
        stored = [
            whole_table(f"{table.name}.narrow", table.num_rows, width),
            whole_table(f"{table.name}.projection", width, table.dim),
        ]
        refuse_unless_smaller(table, stored, "narrow")
        super().__init__([table], stored, [scale_of(options, table), math.sqrt(3 / width)])

    def rows(self, table: int, ids: Tensor, stored: Sequence[Tensor]) -> Tensor:
        """See `Form.rows`."""
        del table
        return select_rows(stored[0], ids) @ stored[1]

    def nearest(self, tables: Sequence[Tensor]) -> list[Tensor]:
        """See `Form.nearest`: the first singular vectors."""
        products = sum(part.T.double() @ part.double() for part in tables[0].split(_ROWS_AT_ONCE))
        assert isinstance(products, Tensor)
        directions = torch.linalg.eigh(products).eigenvectors.flip(1)[:, : self.stored[0].dim].float()
        return [tables[0] @ directions, directions.T.contiguous()]


def distinct(ids: Tensor, largest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Each id once, ascending; [n] which one each has; and how often each occurs.

    Args:
        ids: [n] int64, from 0 to `largest`.
        largest: none is larger.
    """
    if ids.device.type != "cpu":
        found, inverse, times = torch.unique(ids, return_inverse=True, return_counts=True)
        return found, inverse, times
    from windrow.recsys.tables import table_kernels

    found, inverse, times = map(torch.from_numpy, table_kernels.distinct(ids.numpy(), largest))
    return found, inverse, times


def select_rows(table: Tensor, rows: Tensor) -> Tensor:
    """Rows of a stored table, with a dense gradient."""
    if table.device.type != "cpu":
        return embedding(rows, table)
    return pool_rows([table], (0,), rows, torch.arange(len(rows) + 1), None)
