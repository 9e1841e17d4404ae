"""Sums in 8 bits a number, of which each rank adds to the next sum what rounding left out of this one.

A vector travels as float8 (e4m3: 4 bits of exponent, 3 of mantissa; Micikevicius et al.: FP8 Formats for Deep Learning,
2022) in blocks of 256 numbers with a scale each, rounded to nearest::

    reduce-scatter    rank r sends Q(e_p + g_p) of every other rank's piece p, and keeps e_p += g_p - Q(e_p + g_p)
    all-gather        the owner of piece p adds up what came and its own, s, sends Q(e_p + s), and keeps the rest

So what is left out of a step comes in a later one, and the mean over steps is exact; without it, numbers far below the
largest of their block would never be learnt. `e` is as long as the vector: a rank is owner of one piece, and sends
all others. A number is wrong by 1/16 of itself at most, down to 2**-14 / 448 of the largest of its block. Levels at
equal distances, as of integers, would leave most numbers of a block out until enough of them has come: such bursts cost
quality, since Adam and Adagrad divide by their size (docs/benchmarks.md).

Source: Seide et al.: 1-Bit Stochastic Gradient Descent, Interspeech 2014; Karimireddy et al.: Error Feedback Fixes
SignSGD and other Gradient Compression Schemes, ICML 2019; of both ways: Tang et al.: DoubleSqueeze, ICML 2019.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from windrow.comm.wire import Codec

__all__ = ["ErrorFeedback"]

BLOCK = 256
"""Numbers that share a scale, whose 4 bytes are 1.6 % of what travels."""
SCALE_BYTES = torch.float32.itemsize
FLOAT8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FLOAT8).max
LEAST_SCALE = torch.finfo(torch.float32).tiny
"""Of a block of zeros, which must not be divided by zero."""


class ErrorFeedback(Codec):
    """How a vector of float32 travels that is summed again and again, and what is still to be added to its next sum.

    A number that is not finite makes its whole block so, on all ranks, as a loss of NaN will show.

    Attributes:
        residual: float32 [numbers of the vector], this rank's; None before the first sum. Part of a checkpoint, as a
            run that goes on without it learns from other sums.
    """

    def __init__(self) -> None:
        super().__init__()
        self.name = "fp8"
        self.residual: Tensor | None = None

    def for_vector(self) -> "ErrorFeedback":
        """One that has nothing to add yet."""
        return ErrorFeedback()

    def encode_piece(self, pieces: Sequence[Tensor], number: int) -> Tensor:
        """Turn one piece of the vector and what is left of it into bytes, and keep what they leave out."""
        device = pieces[number].device
        # One that comes from a checkpoint is on the CPU.
        self.residual = torch.zeros(sum(map(len, pieces))) if self.residual is None else self.residual
        self.residual = self.residual.to(device)
        left = self.residual.split(list(map(len, pieces)))[number]
        left += pieces[number]
        wire = self.new_wire(left)
        for numbers, scales, rounded in _blocks(left, wire):
            torch.div(numbers.abs().amax(1, keepdim=True), LARGEST, out=scales).clamp_(min=LEAST_SCALE)
            rounded.copy_(numbers / scales)
            numbers.addcmul_(_widened(rounded), scales, value=-1)
        return wire

    def new_wire(self, vector: Tensor) -> Tensor:
        """Memory to receive a piece in."""
        return vector.new_empty(self.wire_row_bytes(vector.shape, vector.dtype), dtype=torch.uint8)

    def decode(
        self, wire: Tensor, out: Tensor, *, positions: Tensor | None = None, places: Tensor | None = None
    ) -> Tensor:
        """Write the numbers of a piece that arrived; all of them."""
        assert positions is places is None, "a piece of a vector has no rows"
        for numbers, scales, rounded in _blocks(out, wire):
            torch.mul(_widened(rounded), scales, out=numbers)
        return out

    def wire_row_bytes(self, row_shape: Sequence[int], dtype: torch.dtype) -> int:
        """Bytes of a piece of so many numbers."""
        del dtype
        count = torch.Size(row_shape).numel()
        return count + SCALE_BYTES * -(-count // BLOCK)


def _widened(rounded: Tensor) -> Tensor:
    """float8 as float32, by its bits, since torch's own conversion takes four times as long on CPUs.

    float16 has the same fields but for one more bit of exponent and seven of mantissa, so it is 2**-8 of the value.
    What is no number would become one, but then the scale of its block is none.
    """
    bits = rounded.view(torch.int8).to(torch.int16).bitwise_left_shift_(7)
    # The sign was copied into the exponent's highest bit.
    return bits.bitwise_and_(~(1 << 14)).view(torch.float16).to(torch.float32).mul_(2**8)


def _blocks(vector: Tensor, wire: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Whole blocks, and the rest as one of its own: numbers [n, width], scales [n, 1], and what travels [n, width].

    Scales come first, so that they are aligned.
    """
    cut = len(vector) - len(vector) % BLOCK
    scales, rounded = wire.split([len(wire) - len(vector), len(vector)])
    scales, rounded = scales.view(torch.float32).unsqueeze(1), rounded.view(FLOAT8)
    if cut:
        count = cut // BLOCK
        yield vector[:cut].view(count, BLOCK), scales[:count], rounded[:cut].view(count, BLOCK)
    if cut < len(vector):
        yield vector[cut:].unsqueeze(0), scales[-1:], rounded[cut:].unsqueeze(0)
