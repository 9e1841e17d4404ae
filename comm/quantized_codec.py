"""A codec that rounds rows at random to few bits: one width for all, or for each row of each message its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from windrow.comm.quantize import dequantize, packed_offsets, packed_row_bytes, quantize
from windrow.comm.random import stream_key
from windrow.comm.wire import Codec, Shape

__all__ = ["QuantizedCodec"]


class QuantizedCodec(Codec):
    """Rows of float32 in 1, 2, 4 or 8 bits a number; see `windrow.comm.quantize`.

    Both ends of a message know its rows' widths beforehand. Messages of one block only.

    Args:
        bits: of all rows, until `assign` says otherwise.
        rank: this rank: messages of different ranks draw different numbers.
        traces: whether ranges of rows are kept.
    """

    def __init__(self, bits: int, *, rank: int, traces: bool = False) -> None:
        super().__init__()
        self.rank = rank
        self.key = 0
        """Of the random numbers, from `windrow.comm.random.stream_key`: a new one for each exchange."""
        self.width = 0
        """Numbers of a row, of the last message."""
        self.traces = traces
        self._ranges: dict[int, Tensor] = {}
        self._bits = bits
        self._assigned: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None

    def assign(self, sent: Sequence[Tensor], received: Sequence[Tensor]) -> None:
        """From now on rows of messages to each rank, and from each, have these widths: uint8 [n]."""
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

    def encode(self, rows: Tensor) -> Tensor:
        """Refuse to, by a TypeError: widths belong to the rows of a message."""
        raise TypeError(f"{len(rows)} rows of no message: quantised rows go through a Route")

    def wire_row_bytes(self, row_shape: Sequence[int], dtype: torch.dtype) -> int:
        """See `Codec.wire_row_bytes`; of rows that nothing was assigned to."""
        del dtype
        return packed_row_bytes(torch.Size(row_shape).numel(), self._bits)

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Bytes."""
        del dtype
        return torch.uint8


@dataclass(slots=True)
class _Message:
    """One message of a codec, for `Codec.of_message`."""

    codec: QuantizedCodec
    peer: int
    sent: bool
    _layouts: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def num_bytes(self, shape: Shape) -> int:
        return int(self._layout(shape)[1][-1])

    def pack(self, rows: Tensor, out: Tensor) -> None:
        codec = self.codec
        bits, offsets = (part.to(rows.device) for part in self._layout(rows.shape))
        ranges = codec.trace(self.peer, rows)
        key = stream_key(codec.key, codec.rank, self.peer)
        ids = torch.arange(len(rows), device=rows.device)
        quantize(rows, None, bits, offsets, out, key=key, row_ids=ids, ranges=ranges)

    def unpack(self, packed: Tensor, out: Tensor) -> None:
        bits, offsets = (part.to(packed.device) for part in self._layout(out.shape))
        dequantize(packed, bits, offsets, out, None)

    def _layout(self, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Widths of the rows, and where each starts: asked for its size, then when it is packed or unpacked."""
        if (known := self._layouts.get(tuple(shape))) is not None:
            return known
        bits = self.codec.bits_of(self.peer, shape[0], sent=self.sent)
        return self._layouts.setdefault(tuple(shape), (bits, packed_offsets(bits, shape[1])))
