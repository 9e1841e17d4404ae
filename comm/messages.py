"""What ranks send each other in one transfer of rows, in memory that is used again."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from windrow.comm.codec import Codec, Fp32Codec
from windrow.comm.random import mix64
from windrow.comm.world import World

__all__ = ["Messages", "Shape", "Wire"]

GROWTH = 8
"""Memory that must grow gets this fraction (1 / 8) on top, so that it grows a few times only."""

Shape: TypeAlias = tuple[int, ...]


class Wire:
    """What routes of one kind have in common: ranks, name of the traffic, codecs, and memory that is used again.

    Large new memory takes the system as long to hand out as to fill, so messages are packed and received in memory that
    later transfers use again.

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

    Raises:
        TypeError: a codec cannot take the dtype.
    """

    def __init__(
        self,
        world: World,
        *,
        stage: str,
        codec: Codec | None = None,
        gradient_codec: Codec | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        packed_on: torch.device | None = None,
        gives_way: bool = False,
        rows_stage: str = "rows",
    ) -> None:
        self.world = world
        self.stage = stage
        self.codec = codec or Fp32Codec()
        self.gradient_codec = gradient_codec or Fp32Codec()
        self.dtype = dtype
        self.device = device or torch.device("cpu")
        self.packed_on = packed_on or self.device
        self.gives_way = gives_way
        self.rows_stage = rows_stage
        for each in (self.codec, self.gradient_codec):
            each.encode(torch.zeros((1, 1), dtype=dtype))
        self._free: list[tuple[Tensor, torch.cuda.Event | None]] = []
        self._resting: list[Tensor] = []

    def take(self, num_bytes: int) -> Tensor:
        """Borrow memory: uint8 [at least num_bytes], its values undefined."""
        fitting = [entry for entry in self._free if len(entry[0]) >= num_bytes]
        if fitting:
            chosen = min(fitting, key=lambda entry: len(entry[0]))
            self._free = [entry for entry in self._free if entry is not chosen]
            if chosen[1] is not None:
                chosen[1].synchronize()
            return chosen[0]
        # It takes the place of one that is too small, so that buffers do not pile up.
        self._free = sorted(self._free, key=lambda entry: len(entry[0]))[1:]
        pinned = self.packed_on.type == "cpu" and self.device.type == "cuda"
        # What is made in inference mode could not be written to outside of it, by the next training step.
        with torch.inference_mode(mode=False):
            return torch.empty(
                num_bytes + num_bytes // GROWTH, dtype=torch.uint8, device=self.packed_on, pin_memory=pinned
            )

    def give(self, buffer: Tensor, read_by: torch.device | None = None) -> None:
        """Give borrowed memory back; `read_by` names a GPU that may still be reading it."""
        reading = read_by is not None and read_by.type == "cuda"
        event = torch.cuda.current_stream(read_by).record_event() if reading else None
        self._free.append((buffer, event))

    def give_after_backward(self, buffer: Tensor) -> None:
        """Give memory back whose values the backward pass that runs now still needs."""
        self._resting.append(buffer)

    def wake(self) -> None:
        """A new transfer begins, so the backward pass before it is over."""
        self._free += [(buffer, None) for buffer in self._resting]
        self._resting = []


class Messages:
    """What goes to, or comes from, every other rank: one message each, and the blocks in it.

    Args:
        wire: lends the memory.
        codec: how blocks travel. Where it converts numbers and does nothing else, blocks are views of the messages.
        shapes: of the blocks, for each rank.
        ready: for each rank the memory of a message of one block that needs no packing, or None.
    """

    def __init__(
        self,
        wire: Wire,
        codec: Codec,
        shapes: Sequence[Sequence[Shape]],
        ready: Sequence[Tensor | None] | None = None,
    ) -> None:
        self._wire, self._codec = wire, codec
        size, rank = wire.world.size, wire.world.rank
        self._ready = list(ready) if ready is not None else [None] * size
        wire_dtype = codec.wire_dtype(wire.dtype)
        self._coded = wire_dtype is None
        self._shapes = [
            [] if peer == rank or self._ready[peer] is not None else list(shapes[peer])
            for peer in range(size)
        ]
        self.wholes: list[Tensor] = []
        """What travels, for each rank."""
        self.blocks: list[list[Tensor]] = []
        """Rows to pack or to land, for each rank block by block."""
        self._buffers: list[Tensor] = []
        sizes = [[torch.Size(shape).numel() for shape in of_rank] for of_rank in self._shapes]
        flat = self._borrow(sum(map(sum, sizes)), wire_dtype or wire.dtype)
        for peer, whole in enumerate(flat.split([sum(of_rank) for of_rank in sizes])):
            view = self._ready[peer]
            if view is not None and peer != rank:
                self.wholes.append(view)
                self.blocks.append([view])
            else:
                parts = zip(whole.split(sizes[peer]), self._shapes[peer], strict=True) if sizes[peer] else ()
                self.wholes.append(whole)
                self.blocks.append([part.view(shape) for part, shape in parts])
        if self._coded:
            self._code_bytes = [
                [shape[0] * codec.wire_row_bytes(shape[1:], wire.dtype) for shape in of_rank]
                for of_rank in self._shapes
            ]
            totals = [sum(of_rank) for of_rank in self._code_bytes]
            self.wholes = list(self._borrow(sum(totals), torch.uint8).split(totals))

    def to_fill(self) -> Iterator[tuple[int, int, Tensor]]:
        """Rank, place in its message, and memory of each block that has to be packed."""
        for peer, shapes in enumerate(self._shapes):
            for number in range(len(shapes)):
                yield peer, number, self.blocks[peer][number]

    def in_place(self, peer: int) -> bool:
        """Whether the message is where its rows belong."""
        return self._ready[peer] is not None

    def encode(self, key: int) -> None:
        """Turn blocks into what travels."""
        for code, block, number in self._codes():
            # Errors of several ranks are added up at an owner, so no two draws may be alike.
            own = mix64(number * self._wire.world.size + self._wire.world.rank)
            code.copy_(self._codec.encode(block, key=mix64(key ^ own)).reshape(-1))

    def decode(self) -> None:
        """Turn what travelled into blocks."""
        for code, block, _ in self._codes():
            self._codec.decode(code.view(len(block), -1), out=block)

    def num_rows(self) -> list[int]:
        """Rows of all blocks of each rank."""
        return [sum(len(block) for block in of_rank) for of_rank in self.blocks]

    def release(self, read_by: torch.device | None) -> None:
        """Give the memory back."""
        for buffer in self._buffers:
            self._wire.give(buffer, read_by)
        self._buffers = []

    def _codes(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        if not self._coded:
            return
        number = 0
        for whole, num_bytes, blocks in zip(self.wholes, self._code_bytes, self.blocks, strict=True):
            for code, block in zip(whole.split(num_bytes) if num_bytes else (), blocks, strict=True):
                number += 1
                if len(block):
                    yield code, block, number

    def _borrow(self, num_elements: int, dtype: torch.dtype) -> Tensor:
        if not num_elements:
            return torch.empty(0, dtype=dtype, device=self._wire.packed_on)
        num_bytes = num_elements * dtype.itemsize
        self._buffers.append(self._wire.take(num_bytes))
        flat: Tensor = self._buffers[-1][:num_bytes].view(dtype)
        return flat
