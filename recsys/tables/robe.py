"""ROBE: one array of numbers for many tables; every vector is read from it, block by block, at hashed places.

    D = 4, Z = 2           row 7 of table item                   row 9 of table user
                           block 0        block 1                block 0        block 1
                           h = 5          h = 1                  h = 7          h = 2
    array   a0 a1 a2 a3 a4 a5 a6 a7   ->  +a5 -a6  -a1 -a2       -a7 +a0  +a2 -a3

Desai, Chou, Shrivastava: Random Offset Block Embedding (ROBE) for compressed embedding tables in deep learning
recommendation systems, MLSys 2022, arXiv 2108.02191. With e for the table, x for the row, Z for the size of a block,
c = i // Z for the block of column i, and m for the size of the array::

    h(e, x, c)   = ((A_e + B x + C c) mod P) mod m                     P = 2**61 - 1
    vector[i]    = g(e, x, i) * array[(h(e, x, c) + i mod Z) mod m]    g in {-1, 1}

The paper multiplies the number of the table as well, A e; a random number A_e for each table's name has the same
distribution, and holds when tables are added. Signs are bits of a mixed 64-bit word of (e, x, i // 64), in place of one
linear hash for each number.

The code that its authors published differs in three ways, and `published_code` does as it does: no signs, P =
2,038,074,743, with the coefficients of NumPy's generator seeded 1024, and blocks that end within the array,
h mod (m - Z + 1), in place of a circular one. That P cannot reach arrays of more numbers.

Where blocks do not overlap by themselves, inner products of two vectors x, y are unbiased, with the variance (the
paper's theorem, with V of some numbers (|x|^2 |y|^2 + <x, y>^2 - 2 sum x_i^2 y_i^2) / m)::

    V(x, y) - sum over blocks of V(block of x, block of y)

`RobeTable` is a third way, for arrays too large to be on every rank: blocks begin at multiples of Z, and each has one
sign, which stands for all of its numbers. So the array is a table of m / Z rows of Z numbers, of which a vector is some
rows with signs, side by side, and ranks can hold its rows apart. With x_c, y_c for the blocks of two vectors, inner
products are unbiased, with the variance::

    sum over blocks c != d of (<x_c, y_d>^2 + <x_c, y_d> <x_d, y_c>) Z / m

which for Z = 1 is V. Blocks meet seldom, but whole: blocks that are alike (<x_c, y_d> large) cost more than there.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from windrow.comm.errors import RecipeError
from windrow.comm.random import GOLDEN, Stream, mixed, signed, stream_key
from windrow.comm.threads import in_parallel
from windrow.recsys.tables.forms import Form, Segment, scale_of, whole_table
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import table_key
from windrow.training.shard_files import LocalTable

if TYPE_CHECKING:
    from windrow.recsys.tables.robe_kernels import Hashes

__all__ = ["Robe", "RobeTable"]

MERSENNE = (1 << 61) - 1
PUBLISHED_PRIME, PUBLISHED_SEED = 2_038_074_743, 1024
SIGNS_IN_A_WORD = 64
IDS_AT_ONCE = 1 << 10
"""That a thread looks for the blocks of, at least."""
ROWS_AT_ONCE = 1 << 14
"""Of a table that are compressed at a time."""
_HALF = 31
"""Bits of the lower half of a factor."""


class Robe(Form):
    """Some tables in one array, whose size is that of all of them over ``compression``, in whole blocks.

    Args:
        tables: in an order that is the same on all ranks.
        options: compression, ``robe_block``, ``robe_published_code``; first values are uniform, as those of the largest
            dense table would be.
        blocks: of the array, in place of those that compression gives.

    Raises:
        RecipeError: the array is longer than the prime of the published code can reach.
    """

    def __init__(self, tables: Sequence[LocalTable], options: TableOptions, *, blocks: int | None = None) -> None:
        self.block = options.robe_block
        numbers = sum(table.num_rows * table.dim for table in tables) / options.compression
        blocks = blocks or max(math.ceil(numbers / self.block), 1)
        self.size = blocks * self.block
        """m: numbers in the array."""
        stored = whole_table(f"{tables[0].name}.array", blocks, self.block)
        largest = max(tables, key=lambda table: table.num_rows)
        super().__init__(tables, [stored], [scale_of(options, largest)])
        self.has_signs, self.spacing = not options.robe_published_code, 1
        if options.robe_published_code:
            if self.size > PUBLISHED_PRIME:
                raise RecipeError(
                    f"robe_published_code reaches arrays of up to {PUBLISHED_PRIME} numbers, and that of table "
                    f"{tables[0].name!r} has {self.size}: leave it out, or take a larger compression"
                )
            drawn = np.random.RandomState(PUBLISHED_SEED).randint(0, PUBLISHED_PRIME, 4)
            self.prime, self.span = PUBLISHED_PRIME, self.size - self.block + 1
            # Its first number is the prime itself, so that R[1] is the first that is drawn.
            constant, self.per_block, self.per_row = (int(number) for number in drawn[:3])
            first_rows = np.cumsum([0, *(table.num_rows for table in tables[:-1])]).tolist()
            self.constants = [(constant + first * self.per_row) % self.prime for first in first_rows]
        else:
            self.prime, self.span = MERSENNE, self.size
            key = table_key(stored.name, 0)
            self.per_row, self.per_block = (
                1 + stream_key(key, Stream.HASH_VALUES, number) % (MERSENNE - 1) for number in range(2)
            )
            self.constants = [table_key(table.name, 0) % MERSENNE for table in tables]
        self.sign_keys = [stream_key(table_key(table.name, 0), Stream.HASH_VALUES) for table in tables]

    def rows(self, table: int, ids: Tensor, stored: Sequence[Tensor]) -> Tensor:
        """See `Form.rows`: each is a bag of its own."""
        segment = Segment(table, 0, (0, self.tables[table].dim))
        return self.pool([segment], ids.contiguous(), torch.arange(len(ids) + 1, device=ids.device), None, stored)

    def reference_rows(self, table: int, ids: Tensor, stored: Sequence[Tensor]) -> Tensor:
        """The same by the formulas in plain PyTorch, a place for each number: an eighth as fast."""
        dim = self.tables[table].dim
        columns = torch.arange(dim, device=ids.device)
        places = self.starts(table, ids)[:, columns // self.block] + columns % self.block
        found: Tensor = stored[0].reshape(-1)[places % self.size]
        return found * self.signs(table, ids) if self.has_signs else found

    def nearest(self, tables: Sequence[Tensor]) -> list[Tensor]:
        """See `Form.nearest`: of each number the mean, with its signs, of all that it stands for."""
        total, times = torch.zeros(self.size), torch.zeros(self.size)
        for number, values in enumerate(tables):
            columns = torch.arange(values.shape[1])
            for ids in torch.arange(len(values)).split(ROWS_AT_ONCE):
                places = self.starts(number, ids)[:, columns // self.block] + columns % self.block
                signed_values = values[ids] * self.signs(number, ids) if self.has_signs else values[ids]
                total.index_add_(0, (places % self.size).flatten(), signed_values.flatten())
                times.index_add_(0, (places % self.size).flatten(), torch.ones(places.numel()))
        return [(total / times.clamp(min=1)).view(-1, self.block)]

    def starts(self, table: int, ids: Tensor) -> Tensor:
        """Where blocks of rows begin in the array: [n, blocks of a row] int64, of ids [n] int64 below 2**61."""
        blocks = torch.arange(-(-self.tables[table].dim // self.block), device=ids.device)
        of_row = (product(ids, self.per_row, self.prime) + self.constants[table]) % self.prime
        words = (of_row[:, None] + product(blocks, self.per_block, self.prime)) % self.prime
        starts: Tensor = words % self.span * self.spacing
        return starts

    def signs(self, table: int, ids: Tensor) -> Tensor:
        """-1 or 1 for each number of rows: [n, dim] float32."""
        columns = torch.arange(self.tables[table].dim, device=ids.device)
        of_row = mixed(signed(self.sign_keys[table]) ^ mixed(ids + signed(GOLDEN)))
        words = mixed(of_row[:, None] + (columns // SIGNS_IN_A_WORD) * signed(GOLDEN))
        return 1.0 - 2.0 * ((words >> (columns % SIGNS_IN_A_WORD)) & 1).float()

    def pool(
        self,
        segments: Sequence[Segment],
        values: Tensor,
        offsets: Tensor,
        weights: Tensor | None,
        stored: Sequence[Tensor],
    ) -> Tensor:
        """See `Form.pool`. One loop hashes, reads and adds up; nothing is kept for the backward pass."""
        kind = _Pool if values.device.type == "cpu" else _PoolOnGPU
        pooled: Tensor = kind.apply(self, segments, values, offsets.long(), weights, stored[0])  # type: ignore[no-untyped-call]
        return pooled

    def described(self, segments: Sequence[Segment]) -> npt.NDArray[np.uint64]:
        """What the compiled loops have to know of lookups: see `windrow.recsys.tables.robe_kernels`."""
        rows = [
            (self.constants[segment.table], self.sign_keys[segment.table], segment.first_row, *segment.columns)
            for segment in segments
        ]
        return np.array(rows, np.uint64)

    @property
    def hashes(self) -> "Hashes":
        """What they have to know of the hash functions."""
        numbers = (self.prime, self.per_row, self.per_block, self.span, ((1 << 64) - 1) // self.span, self.block)
        p, b, c, span, inverse, z = (np.uint64(number) for number in numbers)
        return p, b, c, span, inverse, z, self.has_signs


class RobeTable(Robe):
    """Some tables in one array that is a table itself: rows of ``robe_block`` numbers, which ranks can hold apart.

    Raises:
        RecipeError: blocks do not divide the columns of a table.
    """

    def __init__(self, tables: Sequence[LocalTable], options: TableOptions) -> None:
        for table in tables:
            if table.dim % options.robe_block:
                raise RecipeError(
                    f"table {table.name!r}: robe_sharded = true, but robe_block = {options.robe_block} does not divide "
                    f"its {table.dim} columns: take a divisor"
                )
        super().__init__(tables, options)
        self.span, self.spacing = self.size // self.block, self.block

    # Of whole arrays, as in serving, for which no loop is worth while; ranks look blocks up instead.
    rows, pool = Robe.reference_rows, Form.pool

    def blocks(self, table: int, ids: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Rows of the array that vectors of a table consist of, [blocks of a vector, n], and their signs.

        Args:
            table: place in `tables`.
            ids: [n], not checked.
        """
        from windrow.recsys.tables.robe_kernels import find_rows

        shape = self.tables[table].dim // self.block, len(ids)
        places, signs = np.empty(shape, np.int64), np.empty(shape, np.float32)
        key, constant = np.uint64(self.sign_keys[table]), np.uint64(self.constants[table])
        arguments = ids, key, constant, self.hashes, places, signs
        in_parallel(lambda first, last: find_rows(*arguments, first, last), len(ids), at_once=IDS_AT_ONCE)
        return places, signs

    def signs(self, table: int, ids: Tensor) -> Tensor:
        """See `Robe.signs`: one for each block."""
        return super().signs(table, ids)[:, :: self.block].repeat_interleave(self.block, 1)


def product(ids: Tensor, factor: int, prime: int) -> Tensor:
    """``ids * factor mod prime`` of numbers below 2**61, for a prime below 2**31, or 2**61 - 1."""
    if prime != MERSENNE:
        return (ids % prime) * factor % prime
    low, high = ids & ((1 << _HALF) - 1), ids >> _HALF
    factor_low, factor_high = factor & ((1 << _HALF) - 1), factor >> _HALF
    middle = low * factor_high + high * factor_low
    # 2**61 is 1, so 2**62 is 2, and what is above bit 30 of the middle, times 2**31, comes back at the bottom.
    folded = ((middle & ((1 << 30) - 1)) << _HALF) + (middle >> 30)
    return ((high * factor_high * 2) % prime + folded % prime + (low * factor_low) % prime) % prime


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917  # autograd takes arguments by position
        context: Any,
        form: Robe,
        segments: Sequence[Segment],
        values: Tensor,
        offsets: Tensor,
        weights: Tensor | None,
        array: Tensor,
    ) -> Tensor:
        from windrow.recsys.tables.robe_kernels import pool

        context.form, context.segments, context.shape = form, form.described(segments), array.shape
        context.save_for_backward(values, offsets, weights)
        samples = (len(offsets) - 1) // len(segments)
        pooled = torch.empty(samples, _width(segments))
        arguments = (
            array.detach().numpy().reshape(-1),
            context.segments,
            form.hashes,
            values.numpy(),
            offsets.numpy(),
            _array(weights),
            pooled.numpy(),
        )
        in_parallel(lambda first, last: pool(*arguments, first, last), samples, at_once=16)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(context: Any, arriving: Tensor) -> tuple[Tensor | None, ...]:
        from windrow.recsys.tables.robe_kernels import add_to_array

        values, offsets, weights = context.saved_tensors
        gradient = torch.zeros(context.shape)
        arguments = (
            gradient.numpy().reshape(-1),
            context.segments,
            context.form.hashes,
            values.numpy(),
            offsets.numpy(),
            _array(weights),
            arriving.contiguous().numpy(),
        )
        parts = torch.get_num_threads()

        def add_parts(first: int, last: int) -> None:
            for part in range(first, last):
                add_to_array(*arguments, part, parts)

        in_parallel(add_parts, parts, chunks_per_thread=1)
        return None, None, None, None, None, gradient


class _PoolOnGPU(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        context: Any,
        form: Robe,
        segments: Sequence[Segment],
        values: Tensor,
        offsets: Tensor,
        weights: Tensor | None,
        array: Tensor,
    ) -> Tensor:
        from windrow.recsys.tables.robe_triton import pool

        starts = np.cumsum([0, *(segment.columns[1] - segment.columns[0] for segment in segments[:-1])])
        described = np.column_stack([form.described(segments).view(np.int64), starts])
        context.form, context.segments, context.shape = form, torch.from_numpy(described), array.shape
        context.save_for_backward(values, offsets, weights)
        return pool(
            array.detach().reshape(-1), context.segments, form.hashes, values, offsets, weights, _width(segments)
        )

    @staticmethod
    @once_differentiable
    def backward(context: Any, arriving: Tensor) -> tuple[Tensor | None, ...]:
        from windrow.recsys.tables.robe_triton import add_to_array

        gradient = torch.zeros(context.shape, device=arriving.device)
        values, offsets, weights = context.saved_tensors
        flat, hashes = gradient.view(-1), context.form.hashes
        add_to_array(flat, context.segments, hashes, values, offsets, weights, arriving.contiguous())
        return None, None, None, None, None, gradient


def _width(segments: Sequence[Segment]) -> int:
    return sum(segment.columns[1] - segment.columns[0] for segment in segments)


def _array(weights: Tensor | None) -> Any:
    return np.empty(0, np.float32) if weights is None else weights.detach().contiguous().numpy()
