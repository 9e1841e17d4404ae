"""Rows of float32 in 1, 2, 4 or 8 bits an entry, rounded to nearest, or at random so that expectations stay (AdaQP).

Every row of a message has a width in bits of its own; rows stand one after another, without gaps::

    bytes    0  1     2  3         4 ...
             step     zero point   entries: (8 / bits) in a byte, the first in its lowest bits; ceil(width * bits / 8)
             bfloat16, lower byte first

    entry    level q = floor((h - zero point) / step + u), u uniform in [0, 1), 0 <= q < 2 ** bits; decoded as
             zero point + q * step. Rounding up with the probability of the fraction makes the expectation h.

The zero point is the least entry rounded down to a bfloat16, and the step the least bfloat16 with which the highest
level reaches the greatest entry, so nothing is cut off. Entries are quantised with what will arrive, not with what was
rounded to it: a zero point that is off by 2 ** -8 of itself would be a bias of whole steps at 8 bits. Multiples of the
step above the zero point, such as zeros and ones at 1 bit, come back exactly. The step is at least 2 ** -126, the least
normal number.

A row of equal entries comes back bit for bit. No step is negative, so a first half with its highest bit set means such
a row; the 32 bits of the float32 find place behind that bit and in one bit of the entries, in a row of any width::

    bytes    0  1                                 2  3                  4
             1, then bits 15 to 1 of the value    bits 31 to 16 of it    bit 0 of it

Two float32 parameters would be exact too, but cost all rows 4 bytes more: a ninth of 256 entries of 1 bit.

u is 16 bits of a counter-based hash, 2 entries to one: ``mix32(low32(k ^ mix64(column // 2 + GOLDEN)), high32(k))``
with ``k = hash_ids(key, id)``, from bit 16 (column mod 2) up. So it depends on key, row id and column alone. A decision
is a multiple of 2 ** -16, which rounds expectations down by less than that part of a step. To nearest means u = 1 / 2:
half a step of error at most, and half the mean square, but the same each time.

Source: Wan, Zhao, Wu: Adaptive Message Quantization and Parallelization for Distributed Full-graph GNN Training, MLSys
2023. There the parameters are rounded after quantising, the greatest level may run over into the next entry, and rows
of one width share bytes.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.comm.quantize_kernels import dequantize_rows, quantize_rows
from windrow.comm.threads import ROWS_AT_ONCE, in_parallel

__all__ = ["dequantize", "expected_squared_error", "packed_offsets", "packed_row_bytes", "quantize"]

HEADER_BYTES = 4


def packed_row_bytes(width: int, bits: int) -> int:
    """Bytes of a row of `width` entries, at least one, in `bits` of 1, 2, 4 or 8."""
    return HEADER_BYTES + -(-width * bits // 8)


def packed_offsets(bits: Tensor, width: int) -> Tensor:
    """Where each row of a message starts, and where the last one ends.

    Args:
        bits: uint8 [n], 1, 2, 4 or 8 for each row; not checked.
        width: entries of a row, at least 1.

    Returns:
        Bytes, int64 [n + 1], on the device of `bits`.
    """
    offsets = torch.zeros(len(bits) + 1, dtype=torch.int64, device=bits.device)
    torch.cumsum((bits.long() * width + 7) // 8 + HEADER_BYTES, 0, out=offsets[1:])
    return offsets


def expected_squared_error(ranges: Tensor, width: int, bits: Tensor) -> Tensor:
    """Squared error of each row, summed over its entries, that quantising is expected to make.

    An entry whose fraction of a step is f has the variance f (1 - f) step ** 2, which is step ** 2 / 6 on average over
    fractions that are spread evenly, and never above step ** 2 / 4. With step = range / (2 ** bits - 1)::

        width * range ** 2 / (6 * (2 ** bits - 1) ** 2)

    Rounding to bfloat16 makes the step up to 2 ** -7 larger; and, where entries are far from zero for their range, up
    to 2 ** -7 of the least entry's magnitude over 2 ** bits - 1, which is not counted here.

    Args:
        ranges: floating [n], greatest less least entry of each row.
        width: entries of a row.
        bits: uint8 [n].

    Returns:
        [n], of the dtype of `ranges`.
    """
    return width / 6 * (ranges / (2 ** bits.to(ranges.dtype) - 1)) ** 2


def quantize(
    rows: Tensor,
    positions: Tensor | None,
    bits: Tensor,
    offsets: Tensor,
    out: Tensor,
    *,
    key: int | None = None,
    row_ids: Tensor | None = None,
    ranges: Tensor | None = None,
) -> None:
    """Pick rows, quantise them and pack them into a message, in one pass, on all of PyTorch's threads.

    All tensors are contiguous and on one device. CPUs and GPUs write the same bytes.

    Args:
        rows: float32 [m, width], width at least 1.
        positions: int64 [n], 0 <= position < m, not checked; None: all rows, as they stand.
        bits: uint8 [n], 1, 2, 4 or 8 for each row of the message; not checked.
        offsets: int64 [n + 1], from `packed_offsets`.
        out: uint8 [offsets[-1]]; written.
        key: of the random numbers, from `windrow.comm.random.stream_key`. None: round to the nearest level.
        row_ids: int64 [n], what each row is called on every rank and in every message, where a key is given.
        ranges: float32 [n]; written: greatest less least entry of each row. None: nobody asks.

    Cost: two passes over each row, the second in the cache, and one 32-bit hash for 2 entries: less than picking rows
    at random from memory takes. On GPUs this waits for the result, for the sake of the error.

    Raises:
        DataError: a row has an entry that is not finite, or goes so far that its highest level would not be; names row
            and column, and the cure. `out` is unfinished.
    """
    if not len(bits):
        return
    if rows.device.type == "cuda":
        from windrow.comm.quantize_triton import quantize_rows as quantize_rows_on_gpu

        bad = quantize_rows_on_gpu(rows, positions, bits, offsets, out, key=key, row_ids=row_ids, ranges=ranges)
    else:
        found: list[int] = []
        quantize_range = partial(
            quantize_rows,
            rows.detach().numpy(),
            np.empty(0, np.int64) if positions is None else positions.numpy(),
            bits.numpy(),
            offsets.numpy(),
            np.empty(0, np.int64) if row_ids is None else row_ids.numpy(),
            np.uint64(key or 0),
            key is None,
            out.numpy(),
            np.empty(0, np.float32) if ranges is None else ranges.numpy(),
        )
        in_parallel(lambda first, last: found.append(quantize_range(first, last)), len(bits), at_once=ROWS_AT_ONCE)
        bad = min((row for row in found if row >= 0), default=-1)
    if bad >= 0:
        position = bad if positions is None else int(positions[bad])
        raise _refusal(rows[position], position, None if row_ids is None else int(row_ids[bad]), int(bits[bad]))


def dequantize(
    packed: Tensor, bits: Tensor, offsets: Tensor, out: Tensor, places: Tensor | None, *, add: bool = False
) -> None:
    """Unpack a message of `quantize` and put its rows where they belong, in one pass, on all of PyTorch's threads.

    All tensors are contiguous and on one device. CPUs and GPUs decode to the same bits.

    Args:
        packed: uint8 [offsets[-1]].
        bits: uint8 [n], as they were quantised with.
        offsets: int64 [n + 1], from `packed_offsets`.
        out: float32 [k, width]; written at `places`.
        places: int64 [n], 0 <= place < k, no two equal, not checked; None: n = k, all as they stand.
        add: add to what is there.
    """
    if not len(bits):
        return
    if out.device.type == "cuda":
        from windrow.comm.quantize_triton import dequantize_rows as dequantize_rows_on_gpu

        dequantize_rows_on_gpu(packed, bits, offsets, out, places, add=add)
    else:
        dequantize_range = partial(
            dequantize_rows,
            packed.numpy(),
            bits.numpy(),
            offsets.numpy(),
            out.detach().numpy(),
            np.empty(0, np.int64) if places is None else places.numpy(),
            add,
        )
        in_parallel(dequantize_range, len(bits), at_once=ROWS_AT_ONCE)


def _refusal(row: Tensor, position: int, row_id: int | None, bits: int) -> DataError:
    """Why a row could not be quantised."""
    which = f"row {position}" if row_id is None else f"row {position} (id {row_id})"
    bad = row.isfinite().logical_not().nonzero()
    if len(bad):
        column = int(bad[0])
        return DataError(
            f"{which} holds {float(row[column])} in column {column}: only finite numbers can be quantised. Find out "
            "where it comes from; as fp32 it would travel"
        )
    low, high = row.min(0), row.max(0)
    return DataError(
        f"{which} goes from {float(low.values):g} in column {int(low.indices)} to {float(high.values):g} in column "
        f"{int(high.indices)}: in {bits} bits its highest level would be infinite. Scale the values down, or let them "
        "travel as fp32"
    )
