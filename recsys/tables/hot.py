"""Hot rows of compressed tables, kept as they are: quick to look up, and they learn alone.

    ids       7  2  9  2           hot    slot 0: row 2, slot 1: row 9          cold    row 7
    vectors   cold, slot 0, slot 1, slot 0                                      through the form

TT-Rec keeps the rows that are wanted most in a cache (Yin et al., MLSys 2021, section 4.3), whose published code
computes all of them again from the cores when it fills the cache anew: what they had learnt is lost. Here a row that
is taken in starts with the vector that the form gives it, and stays: no lookup changes, and nothing is lost. Places are
given away over the run, half of those that are left each time, so that rows that become hot later find some.

Or rows may leave, once others are wanted more (`hot_leave`); counts fade by a sixteenth each time. With hashed rows and
gradients counted in place of lookups this is CAFE (Zhang et al., SIGMOD 2024), but for its sketch: counts here are of
the rows that are wanted most, of all ranks.

Ids of a prepared log are in the order of how often they occur, so that hot rows are the first ones: nothing is counted
then, and they are there from the start.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from windrow.caching.hot_rows import HotRows, Longs, most_wanted
from windrow.recsys.tables.forms import Form, distinct, whole_table
from windrow.recsys.tables.options import TableOptions
from windrow.training.shard_files import LocalTable, StateTensor

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = ["WithHotRows", "hot_rows_of"]

COUNTED = 8
"""One step of so many is counted, more where rows are taken in sooner."""
UNITS = 256
"""What a lookup counts, or a gradient of the mean length: enough to fade."""
ROOM = 4
"""Rows that are counted for each place that is left."""


def hot_rows_of(options: TableOptions, table: LocalTable) -> int:
    """Rows of a table that are kept as they are: a share of them, or as many as fit into some bytes."""
    by_share = int(options.hot_share * table.num_rows)
    return min(max(by_share, options.hot_bytes // (table.dim * torch.float32.itemsize)), table.num_rows)


class WithHotRows(Form):
    """A form, and beside it some rows of each table.

    Args:
        cold: the form of all other rows.
        options: of each table ``hot_share`` or ``hot_bytes``; ``hot_counted`` with ``hot_by``,
            ``hot_leave`` and ``hot_every``.
    """

    def __init__(self, cold: Form, options: Sequence[TableOptions]) -> None:
        self.cold = cold
        places = [hot_rows_of(own, table) for own, table in zip(options, cold.tables, strict=True)]
        self.hot = [
            whole_table(f"{table.name}.hot", max(number, 1), table.dim)
            for table, number in zip(cold.tables, places, strict=True)
        ]
        """The stored tables of hot rows, one for each table."""
        super().__init__(cold.tables, (*cold.stored, *self.hot), (*cold.scales, *(0.0 for _ in self.hot)))
        hot = () if options[0].moves_every_row else range(len(cold.stored), len(self.stored))
        self.by_row = (*cold.by_row, *hot)
        self._every = [own.hot_every for own in options]
        self._leave = [own.hot_leave for own in options]
        self._by_gradient = [own.hot_by == "gradients" for own in options]
        self._steps = 0
        self._has_places = [number > 0 for number in places]
        self.rows_of = [torch.full((table.num_rows,), -1, dtype=torch.int64) for table in self.hot]
        """Of each table the row in each place, -1 for none."""
        self.counted = [
            HotRows(ROOM * table.num_rows) if own.hot_counted and number else None
            for own, table, number in zip(options, self.hot, places, strict=True)
        ]
        """Of each table whose hot rows are found by counting."""
        self._index_of: list[tuple[Tensor, Tensor] | None] = []
        """Of each table the hot rows in ascending order, and their places; None where these are the first rows."""
        self._index()
        self._seen: list[tuple[int, Longs, Longs]] = []

    @property
    def can_learn_alone(self) -> bool:  # type: ignore[override]  # of the form that it is about
        """See `Form.can_learn_alone`; hot rows learn by row."""
        return self.cold.can_learn_alone

    @property
    def needs_to_learn_alone(self) -> bool:  # type: ignore[override]
        """See `Form.needs_to_learn_alone`."""
        return self.cold.needs_to_learn_alone

    @property
    def learns_alone(self) -> bool:
        """See `Form.learns_alone`."""
        return self.cold.learns_alone

    @learns_alone.setter
    def learns_alone(self, learns: bool) -> None:
        self.cold.learns_alone = learns

    def gather(self, world: "World", *, stage: str) -> None:
        """See `Form.gather`."""
        self.cold.gather(world, stage=stage)

    def learn(self, stored: Sequence[Tensor], kept: Sequence[Tensor], learning_rate: float, eps: float) -> None:
        """See `Form.learn`."""
        number = len(self.cold.stored)
        self.cold.learn(stored[:number], kept[:number], learning_rate, eps)

    def first_values(self, seed: int) -> list[Tensor] | None:
        """See `Form.first_values`."""
        given = self.cold.first_values(seed)
        return None if given is None else [*given, *(torch.zeros(table.num_rows, table.dim) for table in self.hot)]

    def nearest(self, tables: Sequence[Tensor]) -> list[Tensor]:
        """See `Form.nearest`: hot rows are the table's own, where they are known."""
        hot = [torch.zeros(table.num_rows, table.dim) for table in self.hot]
        for values, rows, own in zip(hot, self.rows_of, tables, strict=True):
            taken = rows >= 0
            values[taken] = own[rows[taken]]
        return [*self.cold.nearest(tables), *hot]

    def start(self, stored: Sequence[Tensor]) -> None:
        """Take the first rows of each table in, unless rows are counted. No lookup changes."""
        self.cold.start(stored[: len(self.cold.stored)])
        self._steps = 0
        for number, rows in enumerate(self.rows_of):
            rows.fill_(-1)
            counted = self.counted[number]
            if counted is not None:
                counted.state.fill_(-1)
            elif self._has_places[number]:
                self._take_in(number, np.arange(len(rows)), stored)
        self._index()

    def rows(self, table: int, ids: Tensor, stored: Sequence[Tensor]) -> Tensor:
        """See `Form.rows`."""
        vectors, inverse = self.look_up(table, ids, stored)
        return vectors[inverse]

    def look_up(self, table: int, ids: Tensor, stored: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """See `Form.look_up`. Rows are counted where they are about to be learnt from."""
        places = self.hot[table].num_rows
        found, inverse, times = distinct(self._hot_first(table, ids), places + self.tables[table].num_rows)
        hot = int(torch.searchsorted(found, places))
        cold_ids = found[hot:] if self._index_of[table] is None else found[hot:] - places
        hot_vectors = embedding(
            found[:hot], stored[len(self.cold.stored) + table], sparse=len(self.cold.stored) + table in self.by_row
        )
        cold_vectors = self.cold.rows(table, cold_ids, stored[: len(self.cold.stored)])
        vectors = torch.cat([hot_vectors, cold_vectors])
        if torch.is_grad_enabled() and self.counted[table] is not None and self._counts(table):
            distinct_ids = torch.cat([self.rows_of[table][found[:hot].cpu()], cold_ids.cpu()]).numpy()
            if self._by_gradient[table]:
                vectors.register_hook(partial(self._see_gradients, table, distinct_ids))
            else:
                self._seen.append((table, distinct_ids, UNITS * times.cpu().numpy()))
        return vectors, inverse

    def _see_gradients(self, table: int, ids: Longs, gradient: Tensor) -> None:
        lengths = gradient.norm(dim=1)
        units = (UNITS * lengths / lengths.mean().clamp_min(torch.finfo(torch.float32).tiny)).round().long()
        self._seen.append((table, ids, units.cpu().numpy()))

    def step(self, stored: Sequence[Tensor], world: "World | None") -> Sequence[tuple[int, Tensor]]:
        """Count a step, and every ``hot_every`` of them take rows in. Collective over the ranks of a world.

        Args:
            stored: values of the stored tables.
            world: the ranks that hold them, whose counts are added up; None: this one alone.

        Returns:
            See `Form.step`: places that have another row.
        """
        renewed = [*self.cold.step(stored[: len(self.cold.stored)], world)]
        tables = [(number, counted) for number, counted in enumerate(self.counted) if counted is not None]
        if any(self._counts(number) for number, _ in tables):
            # All ranks count what all of them looked up, so that they choose alike, and as one rank would.
            of_ranks = [self._seen] if world is None else world.all_gather_object(self._seen, stage="hot rows")
            self._seen = []
            for number, counted in tables:
                seen = [(ids, times) for of_rank in of_ranks for table, ids, times in of_rank if table == number]
                if seen:
                    ids, times = (np.concatenate(part) for part in zip(*seen, strict=True))
                    counted.count(torch.from_numpy(ids), torch.from_numpy(times))
        self._steps += 1
        due = [(number, counted) for number, counted in tables if self._steps % self._every[number] == 0]
        for number, counted in due:
            rows = self.rows_of[number]
            ids, totals = counted.counts()
            if self._leave[number]:
                ids = self._exchange(number, ids, totals)
                counted.fade()
            else:
                free, is_new = int((rows < 0).sum()), ~np.isin(ids, rows.numpy())
                ids = ids[is_new][most_wanted(ids[is_new], totals[is_new], -(-free // 2))]
            renewed.append((len(self.cold.stored) + number, self._take_in(number, ids, stored)))
        if due:
            self._index()
        return renewed

    def _exchange(self, number: int, ids: Longs, totals: Longs) -> Longs:
        """Free the places of rows that are wanted less than others: the rows that come.

        Args:
            number: of the table.
            ids: [n] rows that are counted, ascending.
            totals: [n] how often.
        """
        rows = self.rows_of[number]
        hot = np.sort(rows[rows >= 0].numpy())
        uncounted = np.setdiff1d(hot, ids)
        candidates = np.concatenate([ids, uncounted])
        wanted = np.concatenate([totals, np.zeros_like(uncounted)])
        # A row that is wanted as much as a hot one does not replace it.
        best = candidates[most_wanted(candidates, 2 * wanted + np.isin(candidates, hot), len(rows))]
        leaves = (rows >= 0) & torch.from_numpy(~np.isin(rows.numpy(), best))
        rows[leaves] = -1
        return np.setdiff1d(best, hot)

    def index_bytes(self) -> int:
        """See `Form.index_bytes`: which rows are hot, and counts."""
        counted = sum(found.state.nbytes for found in self.counted if found is not None)
        return self.cold.index_bytes() + counted + sum(rows.nbytes for rows in self.rows_of)

    def state(self, *, replicated: bool) -> list[StateTensor]:
        """See `Form.state`: which rows are hot, the steps, and the counts."""
        found = self.cold.state(replicated=replicated)
        for number, table in enumerate(self.hot):
            contents = {"kept_rows": self.rows_of[number], "steps": torch.tensor(self._steps)}
            counted = self.counted[number]
            if counted is not None:
                contents["counts"] = counted.state
            found += [
                StateTensor(piece=table, name=name, tensor=tensor, axes=(), replicated=replicated)
                for name, tensor in contents.items()
            ]
        return found

    def load(self, part: StateTensor) -> bool:
        """See `Form.load`."""
        if part.piece not in self.hot or part.name not in {"kept_rows", "steps", "counts"}:
            return self.cold.load(part)
        number = self.hot.index(part.piece)
        counted = self.counted[number]
        if part.name == "steps":
            self._steps = int(part.tensor)
        elif part.name == "kept_rows":
            self.rows_of[number].copy_(part.tensor)
            self._index()
        elif counted is not None:
            counted.state.copy_(part.tensor)
        return True

    def _counts(self, table: int) -> bool:
        """Whether the lookups of this step are counted: some of them are enough."""
        return (self._steps + 1) % min(COUNTED, self._every[table]) == 0

    def _hot_first(self, table: int, ids: Tensor) -> Tensor:
        """[n] numbers that stand for rows: of hot ones their places, of others the ids behind all places."""
        index = self._index_of[table]
        if index is None:
            return ids
        rows, places = (part.to(ids.device) for part in index)
        behind = ids + self.hot[table].num_rows
        if not len(rows):
            return behind
        there = torch.searchsorted(rows, ids).clamp_max(len(rows) - 1)
        return torch.where(rows[there] == ids, places[there], behind)

    def _take_in(self, number: int, ids: Longs, stored: Sequence[Tensor]) -> Tensor:
        """Give rows that are not hot free places, and the vectors that they have: the places."""
        rows, hot = self.rows_of[number], stored[len(self.cold.stored) + number]
        free = (rows < 0).nonzero()[: len(ids), 0]
        given = torch.from_numpy(np.sort(ids))
        rows[free] = given
        with torch.no_grad():
            place = given.to(hot.device)
            hot[free.to(hot.device)] = self.cold.rows(number, place, stored[: len(self.cold.stored)])
        return free

    def _index(self) -> None:
        self._index_of = []
        for rows in self.rows_of:
            taken = (rows >= 0).nonzero()[:, 0]
            order = torch.argsort(rows[taken])
            are_first = torch.equal(rows, torch.arange(len(rows)))
            self._index_of.append(None if are_first else (rows[taken][order], taken[order]))
