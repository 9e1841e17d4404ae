"""The form in which rows travel: a codec encodes them for the wire and decodes them on arrival.

    rows float32 [3, 4]  --encode-->  wire float16 [3, 4]  ~~~~~>  wire  --decode-->  rows float32 [3, 4]
    16 bytes a row                    8 bytes a row

Both ends know the size of a message before it travels: a row of given shape and dtype always takes
`Codec.wire_row_bytes` bytes. A codec may hold state, and may be random: then draws are a function of a key and of a
value's place in the message, never of a generator's past.
"""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from windrow.comm.errors import DataError, RecipeError

__all__ = ["Bf16Codec", "Codec", "CodecName", "Fp16Codec", "Fp32Codec", "make_codec"]

CodecName = Literal["fp32", "fp16", "bf16"]
"""A codec, by the name that recipes use."""

ROWS_CHECKED_AT_ONCE = 1 << 16
"""`Codec.check` copies this many rows at a time, so that it never needs a second copy of the matrix."""


class Codec(ABC):
    """How rows become bytes and rows again; the same on every rank."""

    @abstractmethod
    def encode(self, rows: Tensor, *, key: int = 0) -> Tensor:
        """Turn rows into what travels.

        Args:
            rows: [n, ...] of a dtype that the codec takes, any device.
            key: what its randomness is keyed by, if it has any; as every codec's state, it is the same on all ranks.

        Returns:
            The wire: contiguous, n rows of ``wire_row_bytes`` bytes, on the same device. May share the memory
            of `rows`, so neither may be written to before the message has gone.

        Raises:
            TypeError: a dtype that the codec cannot encode.
        """

    @abstractmethod
    def decode(self, wire: Tensor, out: Tensor | None = None) -> Tensor:
        """Turn what arrived into rows.

        Args:
            wire: what `encode` gave.
            out: [n, ...] to write the rows into, of any dtype they convert to; None: a new tensor of float32.

        Returns:
            `out`, or the new rows.
        """

    @abstractmethod
    def wire_row_bytes(self, row_shape: Sequence[int], dtype: torch.dtype) -> int:
        """Bytes that one row takes on the wire.

        Args:
            row_shape: shape of one row, without the leading dimension.
            dtype: of the rows before encoding.

        Returns:
            A number that depends on nothing else.
        """

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype | None:
        """What numbers become on the wire, where the codec converts each of them and does nothing else.

        Args:
            dtype: of the rows before encoding.

        Returns:
            The dtype of the wire, whose shape is that of the rows: a copy of rows may then convert them on its way.
            None: the codec does more.
        """
        del dtype
        return None

    @abstractmethod
    def check(self, rows: Tensor) -> None:
        """Refuse rows that would not survive the wire.

        Call it once, where the rows are loaded: `encode` never does.

        Args:
            rows: [n, ...].

        Raises:
            DataError: a finite value would arrive infinite; names the value, its row and the cure.

        Cost:
            One pass over the rows.
        """


class Fp32Codec(Codec):
    """Rows travel as they are: float32 as float32, and any other dtype untouched. Copies nothing."""

    def encode(self, rows: Tensor, *, key: int = 0) -> Tensor:
        """The rows themselves (a copy only where they are not contiguous)."""
        del key
        return rows.contiguous()

    def decode(self, wire: Tensor, out: Tensor | None = None) -> Tensor:
        """The wire itself; copied into `out` only where that is other memory."""
        if out is None:
            return wire
        if out.data_ptr() == wire.data_ptr() and out.device == wire.device:
            return out
        return out.copy_(wire)

    def wire_row_bytes(self, row_shape: Sequence[int], dtype: torch.dtype) -> int:
        """As many as in memory."""
        return _elements(row_shape) * dtype.itemsize

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype | None:
        """The same."""
        return dtype

    def check(self, rows: Tensor) -> None:
        """Nothing is lost, so nothing is refused."""


class _RoundingCodec(Codec):
    """Rows travel in a shorter floating-point type, rounded to nearest, ties to even."""

    _wire_dtype: ClassVar[torch.dtype]
    _cure: ClassVar[str]

    def encode(self, rows: Tensor, *, key: int = 0) -> Tensor:
        """Round each value."""
        del key
        if not rows.is_floating_point():
            raise TypeError(f"{type(self).__name__} rounds floating-point rows and would spoil {rows.dtype}")
        return rows.to(self._wire_dtype).contiguous()

    def decode(self, wire: Tensor, out: Tensor | None = None) -> Tensor:
        """Widen each value, exactly."""
        return wire.to(torch.float32) if out is None else out.copy_(wire)

    def wire_row_bytes(self, row_shape: Sequence[int], dtype: torch.dtype) -> int:
        """Two per element, whatever the dtype of the rows."""
        del dtype
        return _elements(row_shape) * self._wire_dtype.itemsize

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype | None:
        """The shorter type."""
        del dtype
        return self._wire_dtype

    def check(self, rows: Tensor) -> None:
        """Refuse a finite value that rounds to infinity."""
        for start in range(0, len(rows), ROWS_CHECKED_AT_ONCE):
            some = rows[start : start + ROWS_CHECKED_AT_ONCE]
            some = some.reshape(len(some), _elements(some.shape[1:]))
            lost = self.encode(some).isinf() & some.isfinite()
            if bool(lost.any()):
                row, column = lost.nonzero()[0].tolist()
                value, largest = some[row, column].item(), torch.finfo(self._wire_dtype).max
                raise DataError(
                    f"row {start + row} holds {value:g}, which {self._wire_dtype} cannot: "
                    f"it ends at {largest:g}. {self._cure}"
                )


class Fp16Codec(_RoundingCodec):
    """Rows travel as IEEE binary16: half the bytes of float32.

    The error is at most 2**-11 of the value where 2**-14 <= abs(value) <= 65504, and 2**-25 below. Values
    from 65520 on become infinite, as IEEE 754 has it and as a loss of NaN will show; they are never clipped
    to a wrong finite number. `check` refuses them where rows are known beforehand.
    """

    _wire_dtype = torch.float16
    _cure = "Scale the values down (standardise the columns), or let them travel as bf16 or fp32"


class Bf16Codec(_RoundingCodec):
    """Rows travel as bfloat16, the upper half of float32: half the bytes, the same range.

    The error is at most 2**-8 of the value where abs(value) >= 2**-126, and 2**-134 below. Only values within
    2**-9 of the largest float32 become infinite.
    """

    _wire_dtype = torch.bfloat16
    _cure = "Scale the values down (standardise the columns), or let them travel as fp32"


def make_codec(name: CodecName) -> Codec:
    """Make a codec by name.

    Args:
        name: "fp32" (nothing is lost), "fp16" or "bf16".

    Returns:
        A new codec.

    Raises:
        RecipeError: no codec has this name; tells the nearest one.
    """
    codecs: dict[str, type[Codec]] = {"fp32": Fp32Codec, "fp16": Fp16Codec, "bf16": Bf16Codec}
    if name not in codecs:
        nearest = difflib.get_close_matches(name, codecs, n=1, cutoff=0.0)[0]
        raise RecipeError(
            f"no codec is called {name!r}; did you mean {nearest!r}? There are {', '.join(codecs)}"
        )
    return codecs[name]()


def _elements(row_shape: Sequence[int]) -> int:
    return torch.Size(row_shape).numel()
