"""Codes: a vector is put together from parts, each chosen from a codebook of its own by a code of the row.

    D = 4, 2 parts, 3 entries each         codes of row 7: (2, 0)    vector: codebooks[0][2], codebooks[1][0]

Codes are hashes at first, so rows share entries by chance, but seldom in all parts (compositional embeddings; Shi et
al., KDD 2020). Two ways lead to better ones:

* `nearest` chooses them for a dense table: k-means in each part (product quantisation; Jegou et al., PAMI 2011).
* Every ``code_every`` steps rows whose vectors have become alike get one code: k-means again, of the vectors that rows
  have by then (CCE; Tsang and Ahle, Clustering the Sketch, NeurIPS 2023). Half of the entries are helpers then: a row's
  part is the sum of an entry that its code names and of one that a hash does, by which rows of one code can still part.
  Helpers start at zero anew after each clustering.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.comm.random import GOLDEN, Stream, hash_ids, stream_key
from windrow.recsys.tables.forms import Form, mixed, refuse_unless_smaller, scale_of, select_rows, signed, whole_table
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import table_key
from windrow.training.shard_files import LocalTable, StateTensor

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = ["Codes", "k_means"]

ROWS_OF_AN_ENTRY = 256
"""Rows that k-means looks at, for each entry, at most."""
ROUNDS = 10
ROWS_AT_ONCE = 1 << 14


class Codes(Form):
    """One table in codebooks, as many entries of each as rows of the table over ``compression``.

    Args:
        table: all of it.
        options: ``code_parts``, ``code_every``.

    Raises:
        RecipeError: the parts do not divide the columns, or it would be no smaller.
    """

    def __init__(self, table: LocalTable, options: TableOptions) -> None:
        self.parts, self._every = options.code_parts, options.code_every
        if table.dim % self.parts:
            raise RecipeError(
                f"table {table.name!r}: code_parts = {self.parts} does not divide its {table.dim} columns: take a "
                "divisor"
            )
        self.width = table.dim // self.parts
        books = 2 if self._every else 1
        self.entries = max(math.ceil(table.num_rows / options.compression / books), 1)
        names = ("codebooks", "helpers")[:books]
        stored = [whole_table(f"{table.name}.{name}", self.parts * self.entries, self.width) for name in names]
        refuse_unless_smaller(table, stored, "codes")
        # Helpers are zero at first, so that what is clustered is as a row without them would be.
        super().__init__([table], stored, [scale_of(options, table), 0.0][:books])
        self.codes = torch.empty(table.num_rows, self.parts, dtype=torch.int32)
        """[rows, parts] entries, once they are no hashes; memory that is not written takes no room before."""
        self._is_learnt, self._steps = False, 0
        keys = [stream_key(table_key(table.name, 0), Stream.HASH_VALUES, part) for part in range(2 * self.parts)]
        self._keys = [signed(key) for key in keys[: self.parts]]
        self._helper_keys = [signed(key) for key in keys[self.parts :]]

    def rows(self, table: int, ids: Tensor, stored: Sequence[Tensor]) -> Tensor:
        """See `Form.rows`."""
        del table
        chosen = self.codes[ids.cpu()].to(ids.device).long() if self._is_learnt else self._hashed(ids, self._keys)
        vectors = self._entries(stored[0], chosen)
        if len(stored) > 1:
            vectors = vectors + self._entries(stored[1], self._hashed(ids, self._helper_keys))
        return vectors

    def nearest(self, tables: Sequence[Tensor]) -> list[Tensor]:
        """See `Form.nearest`: k-means in each part. Changes the codes."""

        def vectors(part: int, ids: Tensor) -> Tensor:
            return tables[0][ids, part * self.width : (part + 1) * self.width]

        books = [self._cluster(part, partial(vectors, part)) for part in range(self.parts)]
        self._is_learnt = True
        return [torch.cat(books), *(torch.zeros(found.num_rows, found.dim) for found in self.stored[1:])]

    def start(self, stored: Sequence[Tensor]) -> None:
        """See `Form.start`: codes are hashes again."""
        del stored
        self._is_learnt, self._steps = False, 0

    def step(self, stored: Sequence[Tensor], world: "World | None") -> Sequence[tuple[int, Tensor]]:
        """See `Form.step`. All ranks cluster alike, without messages. Cost: rows x entries x columns, now and then."""
        del world
        self._steps += 1
        if not self._every or self._steps % self._every:
            return ()
        with torch.no_grad():
            now = [values.detach().cpu().clone() for values in stored]
            before = self.codes.clone() if self._is_learnt else None

            def vectors(part: int, ids: Tensor) -> Tensor:
                codes = self._hashed(ids, self._keys) if before is None else before[ids].long()
                whole = self._entries(now[0], codes) + self._entries(now[1], self._hashed(ids, self._helper_keys))
                return whole[:, part * self.width : (part + 1) * self.width]

            books = [self._cluster(part, partial(vectors, part)) for part in range(self.parts)]
            self._is_learnt = True
            stored[0].copy_(torch.cat(books))
            stored[1].zero_()
        return ()

    def index_bytes(self) -> int:
        """See `Form.index_bytes`: of codes that are no hashes."""
        return self.codes.nbytes if self._every or self._is_learnt else 0

    def state(self, *, replicated: bool) -> list[StateTensor]:
        """See `Form.state`: the codes, where they are no hashes, and the steps."""
        contents = {"codes": self.codes if self._is_learnt else self.codes[:0], "steps": torch.tensor(self._steps)}
        return [
            StateTensor(piece=self.stored[0], name=name, tensor=tensor, axes=(), replicated=replicated)
            for name, tensor in contents.items()
        ]

    def load(self, part: StateTensor) -> bool:
        """See `Form.load`."""
        if part.piece != self.stored[0] or part.name not in {"codes", "steps"}:
            return False
        if part.name == "steps":
            self._steps = int(part.tensor)
        else:
            self._is_learnt = len(part.tensor) > 0
            if self._is_learnt:
                self.codes.copy_(part.tensor)
        return True

    def _hashed(self, ids: Tensor, keys: Sequence[int]) -> Tensor:
        """[n, parts] entries."""
        words = mixed(ids + signed(GOLDEN))
        return torch.stack([(mixed(key ^ words) & ((1 << 63) - 1)) % self.entries for key in keys], 1)

    def _entries(self, book: Tensor, chosen: Tensor) -> Tensor:
        """[n, dim] entries of all parts, side by side."""
        first = torch.arange(self.parts, device=chosen.device) * self.entries
        return select_rows(book, (chosen + first).flatten()).view(len(chosen), self.parts * self.width)

    def _cluster(self, part: int, vectors: Callable[[Tensor], Tensor]) -> Tensor:
        """Choose the codes of a part for all rows: the entries [entries, width] that they name."""
        rows = self.tables[0].num_rows
        most = min(rows, ROWS_OF_AN_ENTRY * self.entries)
        order = np.argsort(hash_ids(stream_key(part, Stream.SAMPLE), np.arange(rows)), kind="stable")[:most]
        centres = k_means(vectors(torch.from_numpy(np.sort(order))), self.entries)
        for ids in torch.arange(rows).split(ROWS_AT_ONCE):
            self.codes[ids, part] = _closest(vectors(ids), centres).to(torch.int32)
        return centres


def k_means(vectors: Tensor, clusters: int) -> Tensor:
    """Centres [clusters, width] of vectors [n, width], by Lloyd's rounds from vectors at even distances.

    A centre that no vector is closest to stays where it is. The same vectors give the same centres.
    """
    centres = vectors[torch.linspace(0, len(vectors) - 1, clusters).long()].clone()
    for _ in range(ROUNDS):
        total, times = torch.zeros_like(centres), torch.zeros(clusters)
        for some in vectors.split(ROWS_AT_ONCE):
            closest = _closest(some, centres)
            total.index_add_(0, closest, some)
            times.index_add_(0, closest, torch.ones(len(some)))
        centres = torch.where(times[:, None] > 0, total / times.clamp(min=1)[:, None], centres)
    return centres


def _closest(vectors: Tensor, centres: Tensor) -> Tensor:
    """[n] the centre closest to each vector."""
    return (centres.square().sum(1) - 2 * vectors @ centres.T).argmin(1)
