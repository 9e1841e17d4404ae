"""Codes: a vector is put together from parts, each chosen from a codebook of its own by a code of the row.

    D = 4, 2 parts, 3 entries each         codes of row 7: (2, 0)    vector: codebooks[0][2], codebooks[1][0]

Codes are hashes at first, so rows share entries by chance, but seldom in all parts (compositional embeddings; Shi et
al., KDD 2020). Three ways lead to better ones:

* They are given (``code_file``): clusters of a graph, say, so that vertices that are near each other share an entry.
* `nearest` chooses them for a dense table: k-means in each part (product quantisation; Jegou et al., PAMI 2011).
* Every ``code_every`` steps rows whose vectors have become alike get one code: k-means again, of the vectors that rows
  have by then (CCE; Tsang and Ahle, Clustering the Sketch, NeurIPS 2023).

Where codes are given, or chosen every so often, a row's part is the sum of an entry that its code names and of a helper
that a hash does, by which rows of one code can still part: what a cluster has in common and what is a vertex's own
(Kalantzi and Karypis, Position-based Hash Embeddings for Scaling Graph Neural Networks, 2021, with one level). Half of
all entries are helpers, or those that given codes leave. They are zero at first, and anew after each clustering, when
other hashes name them, so that rows that shared every entry can part too, and what the optimiser keeps of all entries
is renewed: they stand for other rows.

Entries that a hash chooses begin where one ends, or at any place of all codebooks as one circular array, with signs
(`code_sketch`, "CCE over ROBE" in the library of CCE's authors)::

    rows   part 0: | e0 | e1 | e2 |  part 1: | e3 | e4 | e5 |       hashes of part 1 are e3, e4 or e5
    robe           a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11            +a4 -a5, or -a11 +a0, ...

Entries that codes name are those of the first line either way; in that library they begin at any place too.
"""

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.comm.random import GOLDEN, Stream, hash_ids, mixed, signed, stream_key
from windrow.recsys.tables.forms import Form, refuse_unless_smaller, scale_of, select_rows, whole_table
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.robe import Robe
from windrow.recsys.tables.table import table_key
from windrow.training.shard_files import LocalTable, StateTensor

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = ["Codes", "k_means"]

ROWS_OF_AN_ENTRY = 256
"""Rows that k-means looks at, for each entry, at most."""
ROUNDS = 10
DISTANCES, DISTANCES_GPU = 1 << 16, 1 << 24
"""From vectors to centres, at a time: those of a CPU stay in a cache, which makes ten times as fast as in memory."""
ROWS_AT_ONCE = 1 << 14


class Codes(Form):
    """One table in codebooks, as many entries of each as rows of the table over ``compression``.

    Args:
        table: all of it.
        options: ``code_parts``, ``code_every``, ``code_sketch``, ``code_file``.

    Raises:
        RecipeError: the parts do not divide the columns, or it would be no smaller; codes that are given are not one
            for each row and part, or leave no room for helpers.
    """

    def __init__(self, table: LocalTable, options: TableOptions) -> None:
        self.parts, self._every = options.code_parts, options.code_every
        if table.dim % self.parts:
            raise RecipeError(
                f"table {table.name!r}: code_parts = {self.parts} does not divide its {table.dim} columns: take a "
                "divisor"
            )
        self.width = table.dim // self.parts
        self._given = None if options.code_file is None else read_codes(options.code_file, table, self.parts)
        books = 1 if self._given is None and not self._every else 2
        entries = [max(math.ceil(table.num_rows / options.compression / books), 1)] * books
        if self._given is not None:
            named = int(self._given.max()) + 1
            helpers = math.ceil(table.num_rows / options.compression) - named
            if helpers < 1:
                raise RecipeError(
                    f"table {table.name!r}: the codes in {options.code_file} name {named} entries of each part, and "
                    f"compression = {options.compression:g} allows for {named + helpers}, helpers included: give it a "
                    "smaller one, or fewer clusters"
                )
            entries = [named, helpers]
        self.entries = entries[0]
        """Of each codebook."""
        names = ("codebooks", "helpers")[:books]
        stored = [
            whole_table(f"{table.name}.{name}", self.parts * number, self.width)
            for name, number in zip(names, entries, strict=True)
        ]
        refuse_unless_smaller(table, stored, "codes")
        # Helpers are zero at first, so that what is clustered is as a row without them would be.
        super().__init__([table], stored, [scale_of(options, table), 0.0][:books])
        self.codes: Tensor
        """[rows, parts] entries, or [rows, 1] of all parts, once they are no hashes; else [0, parts]."""
        self._sketch = options.code_sketch
        self._of_robe = replace(options, robe_block=self.width, robe_published_code=False)
        self._begin()

    def rows(self, table: int, ids: Tensor, stored: Sequence[Tensor]) -> Tensor:
        """See `Form.rows`."""
        del table
        if len(self.codes):
            chosen = self.codes[ids.cpu()].to(ids.device).long()
            vectors = self._entries(stored[0], chosen.expand(-1, self.parts))
        else:
            vectors = self._hashed[0](ids, stored[0])
        return vectors + self._hashed[1](ids, stored[1]) if len(stored) > 1 else vectors

    def nearest(self, tables: Sequence[Tensor]) -> list[Tensor]:
        """See `Form.nearest`: k-means in each part. Changes the codes."""
        return self._clustered(lambda ids: tables[0][ids])

    def start(self, stored: Sequence[Tensor]) -> None:
        """See `Form.start`: codes are hashes again, or those that are given."""
        del stored
        self._begin()

    def _begin(self) -> None:
        self._steps = 0
        self.codes = torch.empty(0, self.parts, dtype=torch.int32) if self._given is None else self._given.clone()
        self._hash_helpers(0)

    def _hash_helpers(self, clusterings: int) -> None:
        """Take the hashes that name helpers after so many clusterings."""
        self._clusterings = clusterings
        self._hashed = [
            self._hash(number, book) for number, book in zip((0, 1 + clusterings), self.stored, strict=False)
        ]

    def step(self, stored: Sequence[Tensor], world: "World | None") -> Sequence[tuple[int, Tensor]]:
        """See `Form.step`. Now and then rank 0 clusters, and all ranks take what it finds.

        Cost: rows x entries x columns, and a message of 4 bytes for each row and part.
        """
        self._steps += 1
        if not self._every or self._steps % self._every:
            return ()
        if world is None or world.rank == 0:
            with torch.no_grad():
                before, now = copy(self), [values.detach().cpu().clone() for values in stored]
                for values, found in zip(stored, self._clustered(lambda ids: before.rows(0, ids, now)), strict=True):
                    values.copy_(found)
        if world is not None:
            # Processors of other kinds may differ in the last bit, and so in the closest entry. The caller gives all
            # ranks the rows that are returned, as rank 0 has them.
            self.codes = world.broadcast_object(self.codes, root=0, stage="codes")
        self._hash_helpers(self._clusterings + 1)
        every = torch.arange(self.stored[0].num_rows, device=stored[0].device)
        return (0, every), (1, every)

    def index_bytes(self) -> int:
        """See `Form.index_bytes`: of codes that are no hashes."""
        to_come = self.tables[0].num_rows * self.parts * self.codes.itemsize if self._every else 0
        return self.codes.nbytes or to_come

    def state(self, *, replicated: bool) -> list[StateTensor]:
        """See `Form.state`: the codes, where they are no hashes, and the steps."""
        contents = {
            "codes": self.codes,
            "clusterings": torch.tensor(self._clusterings),
            "steps": torch.tensor(self._steps),
        }
        return [
            StateTensor(piece=self.stored[0], name=name, tensor=tensor, axes=(), replicated=replicated)
            for name, tensor in contents.items()
        ]

    def load(self, part: StateTensor) -> bool:
        """See `Form.load`."""
        if part.piece != self.stored[0] or part.name not in {"codes", "clusterings", "steps"}:
            return False
        if part.name == "steps":
            self._steps = int(part.tensor)
        elif part.name == "clusterings":
            self._hash_helpers(int(part.tensor))
        else:
            # As the file of codes has them, chosen since, or hashes.
            given = None if self._given is None else self._given.shape
            if part.tensor.shape not in {given, (self.tables[0].num_rows, self.parts), (0, self.parts)}:
                raise RecipeError(
                    f"codes of table {self.tables[0].name!r} are {list(part.tensor.shape)}: expected "
                    f"{[self.tables[0].num_rows, self.parts]}, as they were chosen for this table"
                )
            self.codes = part.tensor.to(self.codes, copy=True)
        return True

    def _hash(self, number: int, book: LocalTable) -> Callable[[Tensor, Tensor], Tensor]:
        """A function of ids [n] and values of a stored table: the entries [n, dim] that hashes name."""
        table = self.tables[0]
        if self._sketch == "robe":
            named = whole_table(f"{table.name}.{number}", table.num_rows, table.dim)
            robe = Robe([named], self._of_robe, blocks=book.num_rows)
            return lambda ids, values: robe.rows(0, ids, [values])
        parts = range(number * self.parts, (number + 1) * self.parts)
        key = table_key(table.name, 0)
        return partial(self._from_rows, [signed(stream_key(key, Stream.HASH_VALUES, part)) for part in parts])

    def _from_rows(self, keys: Sequence[int], ids: Tensor, book: Tensor) -> Tensor:
        words, entries = mixed(ids + signed(GOLDEN)), len(book) // self.parts
        return self._entries(book, torch.stack([(mixed(key ^ words) & ((1 << 63) - 1)) % entries for key in keys], 1))

    def _entries(self, book: Tensor, chosen: Tensor) -> Tensor:
        """[n, dim] entries of all parts, side by side."""
        first = torch.arange(self.parts, device=chosen.device) * (len(book) // self.parts)
        return select_rows(book, (chosen + first).flatten()).view(len(chosen), self.parts * self.width)

    def _clustered(self, vectors: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Choose the codes of all rows, whose vectors are those of a function of ids: values of the stored tables."""

        def of_part(part: int, ids: Tensor) -> Tensor:
            return vectors(ids)[:, part * self.width : (part + 1) * self.width]

        self.codes = torch.empty(self.tables[0].num_rows, self.parts, dtype=torch.int32)
        books = [self._cluster(part, partial(of_part, part)) for part in range(self.parts)]
        return [torch.cat(books), *(torch.zeros(found.num_rows, found.dim) for found in self.stored[1:])]

    def _cluster(self, part: int, vectors: Callable[[Tensor], Tensor]) -> Tensor:
        """Choose the codes of a part for all rows: the entries [entries, width] that they name."""
        rows = self.tables[0].num_rows
        most = min(rows, ROWS_OF_AN_ENTRY * self.entries)
        order = np.argsort(hash_ids(stream_key(part, Stream.SAMPLE), np.arange(rows)), kind="stable")[:most]
        centres = k_means(vectors(torch.from_numpy(np.sort(order))), self.entries)
        for ids in torch.arange(rows).split(ROWS_AT_ONCE):
            self.codes[ids, part] = _closest(vectors(ids), centres).to(torch.int32)
        return centres


def read_codes(path: Path, table: LocalTable, parts: int) -> Tensor:
    """Codes of a .npy file: int32 [rows, parts], or [rows, 1] of all parts.

    Raises:
        RecipeError: it cannot be read, or does not hold one code for each row and part, or for each row, from 0 on.
    """
    try:
        found = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise RecipeError(f"table {table.name!r}: code_file = {path}: {error}") from error
    if (
        found.shape not in {(table.num_rows, parts), (table.num_rows, 1), (table.num_rows,)}
        or found.dtype.kind not in "iu"
        or (found.size and found.min() < 0)
    ):
        raise RecipeError(
            f"table {table.name!r}: code_file = {path} holds {found.dtype} {list(found.shape)}: it should hold numbers "
            f"from 0 on, {table.num_rows} rows of {parts} (code_parts) or of one"
        )
    if found.size and found.max() >= table.num_rows:
        raise RecipeError(
            f"table {table.name!r}: code_file = {path} has a code {found.max()}, and more entries than the table's "
            f"{table.num_rows} rows save nothing: number clusters from 0 on"
        )
    return torch.from_numpy(found.reshape(table.num_rows, -1).astype(np.int32))


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
    halves, columns = centres.square().sum(1) / 2, centres.T.contiguous()
    rows_at_once = max((DISTANCES if vectors.device.type == "cpu" else DISTANCES_GPU) // len(centres), 1)
    return torch.cat([torch.addmm(halves, some, columns, alpha=-1).argmin(1) for some in vectors.split(rows_at_once)])
