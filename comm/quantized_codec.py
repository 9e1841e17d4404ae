"""A codec that rounds rows to few bits: one width for all, or for each row of each message its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeAlias

import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.comm.quantize import dequantize, packed_offsets, packed_row_bytes, quantize
from windrow.comm.random import stream_key
from windrow.comm.rows import move_rows
from windrow.comm.wire import ROWS_CHECKED_AT_ONCE, Codec, Shape

__all__ = ["Columns", "QuantizedCodec"]

Columns: TypeAlias = Callable[[int, bool], Sequence[Sequence[int]]]
"""For a message to a rank (True) or from it (False) and each of its blocks, the widths of the vectors that stand side
by side in a row."""

BLOCK_BITS = 32
"""Rows of a block are fewer than 2 to this."""


class QuantizedCodec(Codec):
    """Rows of float32 in 1, 2, 4 or 8 bits a number, with a scale and a zero point each; see `windrow.comm.quantize`.

    To nearest, the same row is always encoded the same, on any rank, and `encode` gives uint8 [n, bytes of a row].
    At random, rows are encoded as parts of messages alone, through a `windrow.comm.route.Route`.

    Args:
        bits: of all rows, until `assign` says otherwise; both ends of a message know its rows' widths beforehand.
        rank: this rank, where rows are rounded at random: messages of different ranks draw different numbers. None: to
            nearest.
        columns: vectors that a row consists of, each of which has a scale of its own. None: a row is one.
        traces: whether ranges of rows are kept.
    """

    def __init__(
        self, bits: int, *, rank: int | None = None, columns: Columns | None = None, traces: bool = False
    ) -> None:
        super().__init__()
        self.name = f"int{bits}"
        self.rank = rank
        self.columns = columns
        self.key = 0
        """Of the random numbers, from `windrow.comm.random.stream_key`: a new one for each exchange."""
        self.width = 0
        """Numbers of a row, of the last message."""
        self.traces = traces
        self._ranges: dict[int, Tensor] = {}
        self._bits = bits
        self._assigned: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None

    def assign(self, sent: Sequence[Tensor], received: Sequence[Tensor]) -> None:
        """From now on rows of messages to each rank, and from each, have these widths: uint8 [n].

        Messages have one block then, and rows are one vector.
        """
        self._assigned = sent, received

    def ranges_to(self, peer: int, num_rows: int) -> Tensor:
        """The largest number less the smallest of each row of the last message to a rank: float32 [n] on the CPU."""
        found = self._ranges.get(peer, torch.empty(0)).cpu()
        assert len(found) == num_rows, f"{num_rows} rows, but {len(found)} ranges"
        return found

    def trace(self, peer: int, rows: Tensor) -> Tensor | None:
        """Room for the ranges of a message to a rank, where they are kept."""
        self.width = rows.shape[1]
        if self.traces:
            self._ranges[peer] = rows.new_empty(len(rows))
        return self._ranges.get(peer)

    def of_message(self, peer: int, *, sent: bool) -> "_Message":
        """See `Codec.of_message`."""
        return _Message(self, peer, sent)

    def bits_of(self, peer: int, num_rows: int, *, sent: bool) -> Tensor:
        """Widths of the rows of a message, uint8 [n]."""
        if self._assigned is None:
            return torch.full((num_rows,), self._bits, dtype=torch.uint8)
        bits = self._assigned[0 if sent else 1][peer]
        assert len(bits) == num_rows, f"{num_rows} rows, but {len(bits)} widths"
        return bits

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Refuse all but float32: TypeError."""
        if dtype != torch.float32:
            raise TypeError(f"rows of {dtype} cannot be quantised, only of torch.float32")

    def check(self, rows: Tensor) -> None:
        """Refuse rows [n, ...] that are not finite. Call it once, where they are loaded: one pass.

        Raises:
            DataError: names the value, its row and the cure.
        """
        for start in range(0, len(rows), ROWS_CHECKED_AT_ONCE):
            some = rows[start : start + ROWS_CHECKED_AT_ONCE].flatten(1)
            bad = some.isfinite().logical_not_()
            if bool(bad.any()):
                row, column = bad.nonzero()[0].tolist()
                raise DataError(
                    f"row {start + row} holds {some[row, column].item():g} in column {column}: {self.name} is for "
                    "finite numbers. Fill the gap, or let rows travel as bf16 or fp32"
                )

    def encode(self, rows: Tensor) -> Tensor:
        """Turn rows [n, ...] into the wire: uint8 [n, bytes of a row].

        Raises:
            TypeError: rows that are no float32, or are rounded at random, which needs the message that they are of.
            DataError: see `windrow.comm.quantize.quantize`.
        """
        self.check_dtype(rows.dtype)
        if self.rank is not None:
            raise TypeError(f"{len(rows)} rows of no message: rows that are rounded at random go through a Route")
        flat = rows.flatten(1).contiguous()
        wire = rows.new_empty((len(rows), self.wire_row_bytes(rows.shape[1:], rows.dtype)), dtype=torch.uint8)
        quantize(flat, None, *self._even(wire, flat.shape[1]), wire.view(-1))
        return wire

    def decode(
        self, wire: Tensor, out: Tensor, *, positions: Tensor | None = None, places: Tensor | None = None
    ) -> Tensor:
        """See `Codec.decode`."""
        if positions is not None:
            picked = wire.new_empty((len(positions), *wire.shape[1:]))
            move_rows(wire, positions, picked, None)
            wire = picked
        flat = out.flatten(1)
        dequantize(wire.view(-1), *self._even(wire, flat.shape[1]), flat, places)
        return out

    def _even(self, wire: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Widths and offsets of rows that all have the same."""
        bits = torch.full((len(wire),), self._bits, dtype=torch.uint8, device=wire.device)
        return bits, packed_offsets(bits, width)

    def wire_row_bytes(self, row_shape: Sequence[int], dtype: torch.dtype) -> int:
        """See `Codec.wire_row_bytes`; of rows that nothing was assigned to."""
        del dtype
        return packed_row_bytes(torch.Size(row_shape).numel(), self._bits)

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Bytes."""
        del dtype
        return torch.uint8


@dataclass(frozen=True, slots=True)
class _Vectors:
    """Neighbouring vectors of one width in the rows of a block, which stand row after row."""

    columns: slice
    width: int
    bits: Tensor
    """uint8 [rows * vectors in a row]."""
    offsets: Tensor
    """int64 [1 + rows * vectors in a row]."""
    packed: slice
    """Bytes of the block."""


@dataclass(slots=True)
class _Message:
    """One message of a codec, for `Codec.of_message`."""

    codec: QuantizedCodec
    peer: int
    sent: bool
    _blocks: dict[int, list[_Vectors]] = field(default_factory=dict)

    def num_bytes(self, block: int, shape: Shape) -> int:
        num_rows, width = shape
        columns = self.codec.columns
        widths = [width] if columns is None else columns(self.peer, self.sent)[block]
        found: list[_Vectors] = []
        column = byte = 0
        for each, alike in groupby(widths):
            count = len(list(alike))
            bits = self.codec.bits_of(self.peer, num_rows * count, sent=self.sent)
            offsets = packed_offsets(bits, each)
            stop, last = column + each * count, byte + int(offsets[-1])
            found.append(_Vectors(slice(column, stop), each, bits, offsets, slice(byte, last)))
            column, byte = stop, last
        self._blocks[block] = found
        return byte

    def pack(self, block: int, rows: Tensor, out: Tensor) -> None:
        codec = self.codec
        ranges = codec.trace(self.peer, rows)
        first = block << BLOCK_BITS
        for part in self._blocks[block]:
            vectors = rows[:, part.columns].contiguous().view(-1, part.width)
            bits, offsets = part.bits.to(rows.device), part.offsets.to(rows.device)
            key = ids = None
            if codec.rank is not None:
                key = stream_key(codec.key, codec.rank, self.peer)
                ids = torch.arange(first, first + len(vectors), device=rows.device)
            quantize(vectors, None, bits, offsets, out[part.packed], key=key, row_ids=ids, ranges=ranges)
            first += len(vectors)

    def unpack(self, block: int, packed: Tensor, out: Tensor, places: Tensor | None = None) -> None:
        for part in self._blocks[block]:
            bits, offsets = part.bits.to(packed.device), part.offsets.to(packed.device)
            if part.width == out.shape[1]:
                dequantize(packed, bits, offsets, out, places)
                continue
            width = part.columns.stop - part.columns.start
            is_whole = places is None and width == out.shape[1]
            rows = out if is_whole else out.new_empty((len(bits) * part.width // width, width))
            dequantize(packed[part.packed], bits, offsets, rows.view(-1, part.width), None)
            if places is not None:
                out[places, part.columns] = rows
            elif not is_whole:
                out[:, part.columns] = rows
