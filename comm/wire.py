"""In which form and in which memory rows travel: codecs, the recipe section [wire], and the messages of a transfer.

A codec encodes rows for the wire and decodes them on arrival::

    rows float32 [3, 4]  --encode-->  wire float16 [3, 4]  ~~~~~>  wire  --decode-->  rows float32 [3, 4]
    16 bytes a row                    8 bytes a row

Both ends know the size of a message before it travels: a row of given shape and dtype always takes
`Codec.wire_row_bytes` bytes.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

import torch
from torch import Tensor

from windrow.comm.errors import DataError, RecipeError, nearest_name
from windrow.comm.options import checked_dataclass
from windrow.comm.rows import move_rows

if TYPE_CHECKING:
    from windrow.comm.quantized_codec import Columns
    from windrow.comm.shared_memory import Mailbox
    from windrow.comm.world import World

__all__ = [
    "FEW_BITS",
    "SHORTER",
    "Buffers",
    "Codec",
    "CodecName",
    "Messages",
    "Shape",
    "StorageName",
    "SumsName",
    "Topology",
    "Wire",
    "WireOptions",
    "make_codec",
]

StorageName = Literal["fp32", "fp16", "bf16"]
"""A number format, by the name that recipes use."""

CodecName = Literal["fp32", "fp16", "bf16", "int8", "int4"]
"""A codec, by the name that recipes use."""

SumsName = Literal["fp32", "fp16", "bf16", "fp8"]
"""How sums of gradients travel, by the name that recipes use."""

FEW_BITS = {"int8": 8, "int4": 4}
"""Codecs that are `windrow.comm.quantized_codec.QuantizedCodec`, and the bits of a number."""

SHORTER: dict[str, torch.dtype | None] = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}
"""What rows are rounded to; None: they are not."""

ROWS_CHECKED_AT_ONCE = 1 << 16
"""`Codec.check` copies this many rows at a time, so that it never needs a second copy of the matrix."""


class Codec:
    """How rows become bytes and rows again; the same on every rank.

        name   on the wire                                error, at most                          infinite from
        fp32   as they are, any dtype; copies nothing     0
        fp16   float16 (IEEE binary16)                    2**-11 of the value; 2**-25 below 2**-14    65520
        bf16   bfloat16, upper half of a float32          2**-8 of the value; 2**-134 below 2**-126   3.396e38

    What is rounded goes to the nearest, ties to even. Values that are too large become infinite, as IEEE 754 has it and
    as a loss of NaN will show; they are never clipped to a wrong finite number. `check` refuses them where rows are
    known beforehand.

    Raises:
        RecipeError: no codec has this name; tells the nearest one.
    """

    def __init__(self, name: CodecName = "fp32") -> None:
        if name not in SHORTER:
            raise RecipeError(f"no codec is called {name!r}. {nearest_name(name, [*SHORTER, *FEW_BITS])}")
        self.name: str = name
        self._shorter = SHORTER[name]

    def encode(self, rows: Tensor) -> Tensor:
        """Turn rows [n, ...] into the wire: contiguous, of their shape and `wire_dtype`, on the same device.

        It may share the memory of `rows`, so neither may be written to before the message has gone.

        Raises:
            TypeError: rows that rounding would spoil, since they are no floating-point numbers.
        """
        self.check_dtype(rows.dtype)
        return rows.to(self.wire_dtype(rows.dtype)).contiguous()

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Refuse rows of a dtype that rounding would spoil, since they are no floating-point numbers: TypeError."""
        if self._shorter is not None and not dtype.is_floating_point:
            raise TypeError(f"{self.name} rounds floating-point rows and would spoil {dtype}")

    def encode_piece(self, pieces: Sequence[Tensor], number: int) -> Tensor:
        """Turn one of the pieces of a vector that is summed into the wire."""
        return self.encode(pieces[number])

    def new_wire(self, rows: Tensor) -> Tensor:
        """Memory to receive in what such rows are encoded as."""
        return torch.empty_like(rows, dtype=self.wire_dtype(rows.dtype))

    def for_vector(self) -> Self:
        """The codec of one vector that is summed again and again."""
        return self

    def decode(
        self, wire: Tensor, out: Tensor, *, positions: Tensor | None = None, places: Tensor | None = None
    ) -> Tensor:
        """Write rows that arrived into `out`; nothing to do where they are there.

        Args:
            wire: as encoded, on the device of `out`.
            out: [n, ...] of a dtype that rows convert to, contiguous where positions or places are given; returned.
            positions: int64, which rows of `wire`, not checked. None: all.
            places: int64, where in `out` each of them belongs, no two equal, not checked. None: as they stand.
        """
        if positions is not None or places is not None:
            move_rows(wire, positions, out, places)
            return out
        if out.data_ptr() == wire.data_ptr() and out.device == wire.device:
            return out
        return out.copy_(wire)

    def wire_row_bytes(self, row_shape: Sequence[int], dtype: torch.dtype) -> int:
        """Bytes that one row of this shape, and dtype before encoding, takes on the wire."""
        return torch.Size(row_shape).numel() * self.wire_dtype(dtype).itemsize

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """What numbers of a dtype become on the wire: a copy of rows may convert them on its way."""
        return self._shorter or dtype

    def of_message(self, peer: int, *, sent: bool) -> "_PackedRows | None":
        """How the rows of a message to, or from, a rank are packed; None: each number by itself, as `wire_dtype`."""
        del peer, sent
        return None

    def check(self, rows: Tensor) -> None:
        """Refuse rows [n, ...] that would not survive the wire. Call it once, where they are loaded: one pass.

        Raises:
            DataError: a finite value would arrive infinite; names the value, its row and the cure.
        """
        if self._shorter is None:
            return
        for start in range(0, len(rows), ROWS_CHECKED_AT_ONCE):
            some = rows[start : start + ROWS_CHECKED_AT_ONCE]
            some = some.reshape(len(some), some.shape[1:].numel())
            lost = self.encode(some).isinf() & some.isfinite()
            if bool(lost.any()):
                row, column = lost.nonzero()[0].tolist()
                others = "bf16 or fp32" if self.name == "fp16" else "fp32"
                raise DataError(
                    f"row {start + row} holds {some[row, column].item():g}, which {self._shorter} cannot: it ends at "
                    f"{torch.finfo(self._shorter).max:g}. Scale the values down (standardise the columns), or let "
                    f"them travel as {others}"
                )


class _PackedRows(Protocol):
    """How rows of one message become bytes that no single number can be read from, and rows again."""

    def num_bytes(self, block: int, shape: "Shape") -> int:
        """Bytes of a block of this shape, [n, width]; asked for of every block, before the other two."""

    def pack(self, block: int, rows: Tensor, out: Tensor) -> None:
        """Write rows, float32 [n, width], into `out`, uint8 [bytes], on the same device."""

    def unpack(self, block: int, packed: Tensor, out: Tensor, places: Tensor | None = None) -> None:
        """Write what arrived into `out`, float32 [m, width] and contiguous: at `places`, int64 [n], or as it stands."""


def make_codec(name: CodecName, *, rank: int | None = None, columns: "Columns | None" = None) -> Codec:
    """A codec by name; see `Codec`.

    Args:
        name: of recipes.
        rank: this rank, where few bits are to be rounded at random, so that expectations stay. None: to nearest.
        columns: vectors that a row consists of, each of which few bits give a scale of its own. None: a row is one.
    """
    if name not in FEW_BITS:
        return Codec(name)
    from windrow.comm.quantized_codec import QuantizedCodec  # Numba.

    return QuantizedCodec(FEW_BITS[name], rank=rank, columns=columns)


Topology: TypeAlias = Literal["flat", "hierarchical", "auto"]


@checked_dataclass
class WireOptions:
    """Number formats between ranks; what stays on a rank is never rounded."""

    vectors: CodecName = "fp32"
    """Of rows that a rank asks others for: features of vertices, rows of embedding tables, pooled vectors. int8 and
    int4 have a scale for each row, and for each table of a pooled one, and round to nearest."""

    gradients: CodecName = "fp32"
    """Of the gradients of those, on their way back to the rank that owns the rows. int8 and int4 round them at random,
    so that their expectation stays."""

    sums: SumsName = "fp32"
    """Of the gradients that are summed over all ranks, those of the dense part and of replicated tables: each rank adds
    up a piece in float32, and the sum travels once more. Sums of a host are rounded too where `topology` makes some.
    fp8 (e4m3), for flat sums only, has a scale for 256 numbers, and what rounding leaves out of a step each rank adds
    to the next one."""

    topology: Topology = "flat"
    """Way of those sums: flat, as the communication library sums over all ranks; hierarchical, within each host first,
    then between hosts; auto, whichever is predicted to be faster on the links that `windrow network` measured here, and
    flat where it did not. It changes sums by rounding only."""

    def __post_init__(self) -> None:
        """Check what concerns two settings.

        Raises:
            RecipeError: names both, their values and the cure.
        """
        if self.sums == "fp8" and self.topology != "flat":
            raise RecipeError(
                f'wire.sums = "fp8" with wire.topology = "{self.topology}": fp8 keeps what it leaves out for the next '
                'step, which sums within hosts have no place for. Set wire.topology = "flat", or wire.sums = "bf16"'
            )

    @classmethod
    def of_name(cls, name: str, *, tables: bool) -> "WireOptions":
        """One format for all; sums are in fp8 where that is int8 or int4.

        Args:
            name: a codec.
            tables: whether rows are learnt, so that their gradients travel back.
        """
        found: Any = name
        return cls(vectors=found, sums="fp8" if name in FEW_BITS else found, gradients=found if tables else "fp32")

    def check_vertices(self, dtype: torch.dtype | None, *, learnt: bool) -> None:
        """Refuse what features of vertices could not honour: RecipeError.

        Args:
            dtype: that they are kept in; None: float32.
            learnt: whether there are rows of vertices that are learnt, too.
        """
        storage = next((name for name, shorter in SHORTER.items() if shorter == dtype), "fp32")
        if dtype == torch.float64 and self.vectors != "fp32" and not learnt:
            raise RecipeError(
                f'wire.vectors = "{self.vectors}" with features of {dtype}, whose rows travel as they are: leave it '
                "out, or make the features float32"
            )
        if storage != "fp32" and self.vectors not in ("fp32", storage):
            raise RecipeError(
                f'wire.vectors = "{self.vectors}" with sampler.storage = "{storage}": rows travel as they are stored, '
                'so leave out wire.vectors, or store them as "fp32"'
            )
        if self.gradients != "fp32" and not learnt:
            raise RecipeError(
                f'wire.gradients = "{self.gradients}": features of vertices are not learnt, so no gradients of them '
                "travel; leave it out, and set wire.sums for the gradients of the model"
            )

    def vectors_codec(self, dtype: torch.dtype) -> Codec:
        """How rows travel that are kept in this dtype: what is shorter than fp32 travels as it is."""
        return make_codec(self.vectors if dtype == torch.float32 else "fp32")

    def sums_codec(self) -> Codec | None:
        """How gradients travel that are summed; None: as they are, by the library's own all-reduce."""
        if self.sums == "fp32":
            return None
        if self.sums != "fp8":
            return make_codec(self.sums)
        from windrow.comm.error_feedback import ErrorFeedback  # Imports this module.

        return ErrorFeedback()


GROWTH = 8
"""Memory that must grow gets this fraction (1 / 8) on top, so that it grows a few times only."""

Shape: TypeAlias = tuple[int, ...]


class Buffers:
    """Memory that is used again: large new memory takes the system as long to hand out as to fill.

    Args:
        new: makes uint8 [at least so many bytes].
        drop: is told of memory that is too small and goes.
    """

    def __init__(self, new: Callable[[int], Tensor], drop: Callable[[Tensor], None] | None = None) -> None:
        self._new, self._drop = new, drop
        self._free: list[tuple[Tensor, torch.cuda.Event | None]] = []

    def take(self, num_bytes: int) -> Tensor:
        """Borrow memory: uint8 [at least num_bytes], its values undefined."""
        self._free.sort(key=lambda entry: len(entry[0]))
        for place, (buffer, event) in enumerate(self._free):
            if len(buffer) >= num_bytes:
                del self._free[place]
                if event is not None:
                    event.synchronize()
                return buffer
        # It takes the place of one that is too small, so that buffers do not pile up.
        if self._free:
            small, _ = self._free.pop(0)
            if self._drop is not None:
                self._drop(small)
        return self._new(num_bytes + num_bytes // GROWTH)

    def give(self, buffer: Tensor, read_by: torch.device | None = None) -> None:
        """Give borrowed memory back; `read_by` names a GPU that may still be reading it."""
        reading = read_by is not None and read_by.type == "cuda"
        self._free.append((buffer, torch.cuda.current_stream(read_by).record_event() if reading else None))


class Wire:
    """What routes of one kind have in common: ranks, name of the traffic, codecs, and memory that is used again.

    Messages are packed and received in memory that later transfers use again.

    Args:
        world: all its ranks make the same transfers in the same order.
        stage: name of the traffic in errors and in the meter; must agree.
        codec: how rows travel; must agree. None: as they are.
        gradient_codec: how their gradients travel back; must agree. None: as they are.
        dtype: of the rows before encoding; must agree.
        device: where rows are; messages are packed there unless `packed_on` says otherwise.
        packed_on: where messages are packed and received; page-locked where it is the CPU and rows are not.
        gives_way: whether messages that are posted later may overtake rows.
        rows_stage: name of what travels forward, after that of the stage.
        shared_memory: whether ranks of one host leave messages in memory that all of them map, where the world lets
            them and rows are on CPUs; must agree.

    Raises:
        TypeError: a codec cannot take the dtype.
    """

    def __init__(
        self,
        world: "World",
        *,
        stage: str,
        codec: Codec | None = None,
        gradient_codec: Codec | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        packed_on: torch.device | None = None,
        gives_way: bool = False,
        rows_stage: str = "rows",
        shared_memory: bool = False,
    ) -> None:
        self.world = world
        self.stage = stage
        self.codec = codec or Codec()
        self.gradient_codec = gradient_codec or Codec()
        self.dtype = dtype
        self.device = device or torch.device("cpu")
        self.packed_on = packed_on or self.device
        self.gives_way = gives_way
        self.rows_stage = rows_stage
        for each in (self.codec, self.gradient_codec):
            each.check_dtype(dtype)
        on_cpu = self.device.type == self.packed_on.type == "cpu"
        self._uses_shared_memory = shared_memory and world.shares_memory and on_cpu and world.size > 1
        self.buffers = Buffers(self._new_buffer)
        """Where messages, and gradients on their way back, find memory."""
        self._resting: list[Tensor] = []

    @property
    def mailbox(self) -> "Mailbox | None":
        """Where messages for ranks of this host are left; None where they are sent. Collective at its first use."""
        return self.world.mailbox if self._uses_shared_memory else None

    def give_after_backward(self, buffer: Tensor) -> None:
        """Give memory back whose values the backward pass that runs now still needs."""
        self._resting.append(buffer)

    def wake(self) -> None:
        """A new transfer begins, so the backward pass before it is over."""
        for buffer in self._resting:
            self.buffers.give(buffer)
        self._resting = []

    def _new_buffer(self, num_bytes: int) -> Tensor:
        pinned = self.packed_on.type == "cpu" and self.device.type == "cuda"
        # What is made in inference mode could not be written to outside of it, by the next training step.
        with torch.inference_mode(mode=False):
            return torch.empty(num_bytes, dtype=torch.uint8, device=self.packed_on, pin_memory=pinned)


class Messages:
    """What goes to, or comes from, every other rank: one message each, and the blocks in it.

    Args:
        wire: lends the memory.
        codec: how blocks travel.
        shapes: of the blocks, for each rank.
        ready: for each rank the memory of a message of one block that needs no packing, or None; counts for ranks that
            have no mailbox.
        sent: whether they go out.
    """

    def __init__(
        self,
        wire: Wire,
        codec: Codec,
        shapes: Sequence[Sequence[Shape]],
        ready: Sequence[Tensor | None] | None = None,
        *,
        sent: bool,
    ) -> None:
        self._wire = wire
        self._dtype = codec.wire_dtype(wire.dtype)
        self._sent = sent
        self._buffer: Tensor | None = None
        size, rank, mailbox = wire.world.size, wire.world.rank, wire.mailbox
        self._near = frozenset[int]() if mailbox is None else mailbox.near
        copied = {rank, *self._near}
        ready = [None if peer in copied else memory for peer, memory in enumerate(ready or [None] * size)]
        self._shapes = [
            list[Shape]() if peer == rank or ready[peer] is not None else list(shapes[peer]) for peer in range(size)
        ]
        self.packings = [codec.of_message(peer, sent=sent) for peer in range(size)]
        """For each rank how blocks are packed; None: they have their shapes."""
        self._lengths = [
            [math.prod(shape) if packing is None else packing.num_bytes(n, shape) for n, shape in enumerate(of_rank)]
            for packing, of_rank in zip(self.packings, self._shapes, strict=True)
        ]
        self.num_bytes = [
            sum(lengths) * self._dtype.itemsize if memory is None else memory.nbytes
            for lengths, memory in zip(self._lengths, ready, strict=True)
        ]
        """Of what travels, for each rank."""
        in_buffer = [
            0 if peer in self._near or memory is not None else num_bytes
            for peer, (num_bytes, memory) in enumerate(zip(self.num_bytes, ready, strict=True))
        ]
        flat = torch.empty(0, dtype=torch.uint8, device=wire.packed_on)
        if sum(in_buffer):
            self._buffer = wire.buffers.take(sum(in_buffer))
            flat = self._buffer[: sum(in_buffer)]
        packed = list(flat.split(in_buffer))
        self.wholes = [
            whole.view(self._dtype) if memory is None else memory for whole, memory in zip(packed, ready, strict=True)
        ]
        """What travels, for each rank: its message, or a note of where that is."""
        for peer in self._near:
            assert mailbox is not None
            if sent and self.num_bytes[peer]:
                packed[peer] = mailbox.lend(self.num_bytes[peer])
            self.wholes[peer] = mailbox.note(peer, packed[peer]) if sent else mailbox.empty_note()
        self.blocks = [self._cut(peer, whole) for peer, whole in enumerate(packed)]
        """Rows to pack or to land, for each rank block by block: views of what travels, or, packed, their bytes. None
        where it is ready, or has not been opened."""
        self.num_rows = [
            sum(shape[0] for shape in its) or (0 if memory is None else len(memory))
            for its, memory in zip(self._shapes, ready, strict=True)
        ]
        """Rows of all blocks of each rank."""

    def open(self) -> None:
        """What travels has come: find the blocks that ranks of this host have left."""
        mailbox = self._wire.mailbox
        for peer in self._near:
            assert mailbox is not None
            self.blocks[peer] = self._cut(peer, mailbox.open(peer, self.wholes[peer], self.num_bytes[peer]))

    def release(self, read_by: torch.device | None) -> None:
        """Give the memory back; what was left here by ranks of this host is not needed any more."""
        for peer in self._near if not self._sent else ():
            assert self._wire.mailbox is not None
            self._wire.mailbox.landed(peer, self.wholes[peer])
        if self._buffer is not None:
            self._wire.buffers.give(self._buffer, read_by)
        self._buffer = None

    def _cut(self, peer: int, memory: Tensor) -> list[Tensor]:
        """The blocks of a rank's message."""
        if len(memory) < self.num_bytes[peer]:
            return []
        parts = memory.view(self._dtype).split(self._lengths[peer])
        if self.packings[peer] is not None:
            return list(parts)
        return [part.view(shape) for part, shape in zip(parts, self._shapes[peer], strict=True)]
