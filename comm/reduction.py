"""Reductions made of exchanges: each rank reduces a piece of the tensor, in rank order, and sends the result to all.

    4 ranks            rank 0           rank 1           rank 2           rank 3
    reduce-scatter     sums piece 0     sums piece 1     sums piece 2     sums piece 3
    all-gather         every piece travels, encoded once, from its rank to all others

So the result is the same on every rank bit for bit, and each sends 2 (size - 1) / size of the tensor's bytes.
A reduction is a generator that yields each exchange when it has posted it; `windrow.comm.transfer.Steps` drives it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from windrow.comm.wire import Codec

if TYPE_CHECKING:
    from windrow.comm.transfer import Request
    from windrow.comm.world import World

__all__ = ["ReduceOp", "gather_pieces", "reduce_in_order", "reduce_in_steps", "reduce_pieces"]

ReduceOp = Literal["sum", "max", "min"]


def reduce_in_order(tensors: Sequence[Tensor], op: ReduceOp) -> Tensor:
    """Reduce tensors one after another; a new tensor."""
    combine: dict[ReduceOp, Callable[..., Any]] = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        combine[op](total, tensor, out=total)
    return total


def reduce_in_steps(world: "World", flat: Tensor, op: ReduceOp, codec: Codec | None = None) -> "Iterator[Request]":
    """Reduce a vector in place over all ranks; only what travels is encoded (None: as it is)."""
    # Here, not when the generator begins: the order in which channels are given must not depend on what has come.
    return _reduce(world, flat, op, codec or Codec(), world.new_channels())


def _reduce(world: "World", flat: Tensor, op: ReduceOp, codec: Codec, channels: Sequence[int]) -> "Iterator[Request]":
    pieces = flat.tensor_split(world.size)
    yield from reduce_pieces(world, pieces, op, codec, channels)
    yield from gather_pieces(world, pieces, codec, channels)


def reduce_pieces(
    world: "World", pieces: Sequence[Tensor], op: ReduceOp, codec: Codec, channels: Sequence[int]
) -> "Iterator[Request]":
    """Give each rank the reduction of its piece, in place; ``pieces[p]`` is that of rank p, other pieces stay."""
    own = pieces[world.rank]
    sends = [own if p == world.rank else codec.encode_piece(pieces, p) for p in range(len(pieces))]
    # The memory of the result cannot be received into: it holds what is to be added.
    wires = [codec.new_wire(own) for _ in pieces]
    yield world.post_exchange(sends, wires, channels=channels)
    parts = [own if p == world.rank else codec.decode(wire, torch.empty_like(own)) for p, wire in enumerate(wires)]
    own.copy_(reduce_in_order(parts, op))


def gather_pieces(
    world: "World", pieces: Sequence[Tensor], codec: Codec, channels: Sequence[int]
) -> "Iterator[Request]":
    """Give all ranks the piece of each, in place, as its rank encodes it once: that rank has what the others decode."""
    wire = codec.encode_piece(pieces, world.rank)
    # Where nothing is converted pieces are received in place.
    wires = [
        wire if p == world.rank else piece if wire.dtype == piece.dtype else codec.new_wire(piece)
        for p, piece in enumerate(pieces)
    ]
    yield world.post_exchange([wire] * world.size, wires, channels=channels)
    for arrived, piece in zip(wires, pieces, strict=True):
        codec.decode(arrived, out=piece)
