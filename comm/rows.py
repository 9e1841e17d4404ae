"""Rows and their ids: fast copies from and to random places, owners of ids, splits of a length.

PyTorch's `index_copy_` reaches a quarter of the bandwidth that the loops for copies do; they ask for each row some
steps before it is copied, so that many travel at once, and run on all of PyTorch's threads.

Offsets say which ids each rank owns. A rank may own none::

    offsets   0        3  3     5        rank 0 owns 0 1 2, rank 1 nothing, rank 2 owns 3 4
    ids       4  0  3  1                 owners 2 0 2 0
    order     1  3  0  2                 ids[order] is 0 1 | | 4 3, counts 2 0 2
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.comm.rows_kernels import CACHE_LINE_BYTES, find_owners, move, move_past_caches, sort_by_owner
from windrow.comm.rows_kernels import move_columns as move_columns_kernel
from windrow.comm.rows_kernels import move_vectors as move_vectors_kernel
from windrow.comm.threads import in_parallel
from windrow.comm.transfer import as_bytes

__all__ = [
    "Runs",
    "group_by_owner",
    "join_runs",
    "move_columns",
    "move_rows",
    "move_vectors",
    "near_equal_split",
    "numbers_in_ranges",
    "offsets_from_counts",
    "spans",
]

CONVERTED_BYTES = 256 << 10
"""Rows that are converted twice are so many bytes at a time, and stay in the cache meanwhile."""

LARGE_BYTES = 16 << 20
"""A matrix of so many bytes is written past the caches, which would not hold it until it is read."""

BYTES_AT_ONCE = 1 << 20
"""Less is not worth a call in another thread."""

SHORT = (torch.float16, torch.bfloat16)
CONVERTED_DTYPES = [pair for short in SHORT for pair in ((short, torch.float32), (torch.float32, short))]

Runs: TypeAlias = npt.NDArray[np.int64]
"""[n, 3] columns that stay next to one another: the first of the source, the first of the target, and how many."""


def join_runs(runs: Iterable[tuple[int, int, int]]) -> Runs:
    """Runs of columns in their order, where neighbours that stay neighbours are one."""
    joined: list[list[int]] = []
    for source, target, width in runs:
        first, start, before = joined[-1] if joined else (0, 0, 0)
        if joined and (first + before, start + before) == (source, target):
            joined[-1][2] += width
        else:
            joined.append([source, target, width])
    return np.array(joined, dtype=np.int64).reshape(-1, 3)


def move_rows(rows: Tensor, positions: Tensor | None, out: Tensor, places: Tensor | None) -> None:
    """Copy row ``positions[i]`` of `rows` to ``out[places[i]]``, in one pass, converting where dtypes differ.

    Args:
        rows: [n, ...], any dtype and device.
        positions: [m] int64 on the device of `rows`, 0 <= position < n, not checked; None: all rows, as they stand.
        out: [k, ...] contiguous, on the device of `rows`, of any dtype that rows convert to.
        places: [m] int64 there, 0 <= place < k, no two equal, not checked. None: all places, as they stand.
    """
    count = len(rows) if positions is None else len(positions)
    if count == 0 or out.numel() == 0:
        return
    is_bfloat16 = torch.bfloat16 in (rows.dtype, out.dtype)
    is_known = rows.dtype == out.dtype or (rows.dtype, out.dtype) in CONVERTED_DTYPES
    if positions is None and places is None:
        out.copy_(rows)
    elif rows.device.type != "cpu" or not rows.is_contiguous() or not is_known:
        picked = rows if positions is None else rows.index_select(0, positions)
        if places is None:
            out.copy_(picked)
        else:
            out.index_copy_(0, places, picked.to(out.dtype))
    else:
        is_same = rows.dtype == out.dtype
        words, put = _words(rows, out) if is_same else (_bits(rows), _bits(out))
        whole_lines = put.itemsize == 8 and put[:1].nbytes % CACHE_LINE_BYTES == put.ctypes.data % CACHE_LINE_BYTES == 0
        past_caches = is_same and whole_lines and out.nbytes >= LARGE_BYTES
        order, put_order = _order(positions), _order(places)

        def move_some(first: int, last: int) -> None:
            # Of a matrix whose rows come as they stand, those of the range.
            source = words if positions is not None else words[first:last]
            target = put if places is not None else put[first:last]
            if past_caches:
                move_past_caches(source, order[first:last], target, put_order[first:last])
            else:
                move(source, order[first:last], target, put_order[first:last], is_bfloat16)

        in_parallel(move_some, count, at_once=BYTES_AT_ONCE // out[:1].nbytes + 1)


def move_columns(
    rows: Tensor, out: Tensor, runs: Runs, *, index: Tensor | None = None, back: bool = False, add: bool = False
) -> None:
    """Copy or add runs of columns, in one pass, converting where dtypes differ; on CPUs row by row, in order.

    Args:
        rows: [n, width] floating, any device.
        out: [m, other width] floating; its columns are neighbours in memory.
        runs: from `rows` to `out`.
        index: [m] int64 on the CPU, as `rows` and `out` are then, of one dtype: which of the rows each row of `out` is;
            not checked. None: n = m, row by row.
        back: the transpose: the same runs and index from `out`'s place to that of `rows`.
        add: to what is there; with an index alone.
    """
    count = len(rows if back else out)
    if not count or not len(runs):
        return
    on_cpu = rows.device.type == out.device.type == "cpu"
    if on_cpu and rows.dtype == out.dtype and rows.dtype not in SHORT:
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        strides = rows.stride(0), out.stride(0)
        move_columns_kernel(_memory(rows), strides[0], _memory(out), strides[1], count, _order(index), runs, back, add)
    elif on_cpu and torch.float32 in (rows.dtype, out.dtype):
        assert index is None, "rows of an index are of one dtype"
        assert not add, "what is added has an index"
        _convert_columns(rows, out, runs, back=back)
    else:
        assert index is None, "rows of an index are on the CPU"
        assert not add, "what is added has an index"
        for here, there, width in runs.tolist():
            source, target = (there, here) if back else (here, there)
            values, place = rows[:, source : source + width], out[:, target : target + width]
            place.copy_(values)


def move_vectors(
    vectors: Tensor, positions: Tensor | None, matrix: Tensor, places: Tensor, *, back: bool = False
) -> None:
    """Add vectors to a matrix, each to neighbouring numbers of one row; or copy them from there.

    Args:
        vectors: [n, width], of the dtype and device of the matrix.
        positions: [m] int64 on the CPU, 0 <= position < n, not checked: which of them; None: all, as they stand.
        matrix: [k, columns] floating; its columns are neighbours in memory.
        places: [m] int64 on the CPU: row x columns + first column of each, not checked; no two may overlap.
        back: copy them from the matrix, instead of adding them to it.
    """
    width = vectors.shape[1]
    if not len(places) or not width:
        return
    if vectors.device.type == "cpu" and vectors.dtype == torch.float32 and vectors.stride(1) == 1:
        if matrix.stride(0) != matrix.shape[1]:
            rows = places.div(matrix.shape[1], rounding_mode="floor")
            places = places + rows * (matrix.stride(0) - matrix.shape[1])
        flat, memory, order, put = _memory(vectors), _memory(matrix), _order(positions), _order(places)

        def move_some(first: int, last: int) -> None:
            some = order[first:last] if positions is not None else order
            source = flat if positions is not None else flat[first * vectors.stride(0) :]
            move_vectors_kernel(source, vectors.stride(0), some, width, memory, put[first:last], back)

        in_parallel(move_some, len(places), at_once=BYTES_AT_ONCE // (width * vectors.itemsize) + 1)
        return
    index = (places.to(matrix.device).unsqueeze(1) + torch.arange(width, device=matrix.device)).flatten()
    which = slice(None) if positions is None else positions.to(vectors.device)
    rows, columns = index // matrix.shape[1], index % matrix.shape[1]
    if back:
        vectors[which] = matrix[rows, columns].view(-1, width)
    else:
        # Operators that add wherever indices are equal sort them first.
        matrix[rows, columns] = matrix[rows, columns] + vectors[which].flatten()


def _convert_columns(rows: Tensor, out: Tensor, runs: Runs, *, back: bool) -> None:
    """A few rows at a time, so that the copy in between stays in the cache."""
    some = max(1, CONVERTED_BYTES // (4 * max(rows.shape[1], out.shape[1])))
    for start in range(0, len(rows), some):
        taken, place = rows[start : start + some].float(), out[start : start + some]
        put = place.float()
        move_columns(taken, put, runs, back=back)
        if put is not place:
            place.copy_(put)


def _memory(rows: Tensor) -> npt.NDArray[Any]:
    """Rows as a vector from their first element to their last."""
    length = (len(rows) - 1) * rows.stride(0) + rows.shape[1]
    memory: npt.NDArray[Any] = rows.detach().as_strided((length,), (1,)).numpy()
    return memory


def _order(positions: Tensor | None) -> npt.NDArray[np.int64]:
    if positions is None:
        return np.empty(0, np.int64)
    order: npt.NDArray[np.int64] = positions.contiguous().numpy()
    return order


def _words(*matrices: Tensor) -> list[npt.NDArray[Any]]:
    """The memory of matrices of equal rows as the widest integers that divide a row and where they begin."""
    flat = [as_bytes(rows) for rows in matrices]
    begin = matrices[0].nbytes // len(matrices[0])
    for part in flat:
        begin |= int(part.storage_offset())
    word = next(dtype for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8) if begin % dtype.itemsize == 0)
    return [part.view(word).view(len(rows), -1).numpy() for part, rows in zip(flat, matrices, strict=True)]


def _bits(rows: Tensor) -> npt.NDArray[Any]:
    """The memory of rows of float32 as a matrix, of 16-bit numbers as a matrix of integers."""
    flat = rows.view(len(rows), -1)
    bits: npt.NDArray[Any] = flat.numpy() if rows.dtype == torch.float32 else flat.view(torch.uint16).numpy()
    return bits


def offsets_from_counts(counts: Sequence[int]) -> list[int]:
    """The boundaries of consecutive ranges of these lengths: range k is offsets[k] .. offsets[k + 1] - 1."""
    return list(accumulate(counts, initial=0))


def spans(counts: Sequence[int]) -> list[slice]:
    """The consecutive ranges of these lengths."""
    return [slice(*bounds) for bounds in pairwise(offsets_from_counts(counts))]


def numbers_in_ranges(
    starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """All numbers in some ranges, one range after another: which range each is in, and the number, [sum of lengths]."""
    counts = stops - starts
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(counts.cumsum() - counts - starts, counts)


def near_equal_split(length: int, parts: int) -> list[int]:
    """Cut a range into parts whose lengths differ by at most one, the longer ones spread evenly; some may be empty.

    Returns [parts + 1] offsets: part k is ``length * k // parts .. length * (k + 1) // parts - 1``.

    Raises:
        ValueError: no parts, or a negative length.
    """
    if parts < 1 or length < 0:
        raise ValueError(f"cannot cut {length} elements into {parts} parts")
    return [length * part // parts for part in range(parts + 1)]


def group_by_owner(ids: Tensor, offsets: Sequence[int]) -> tuple[Tensor | None, list[int]]:
    """Order ids by the rank that owns them, keeping the order among the ids of one rank.

    Args:
        ids: [n] int64 on the CPU, any order; may repeat.
        offsets: [ranks + 1] never falling; rank r owns offsets[r] .. offsets[r + 1] - 1.

    Returns:
        ``(order, counts)``: ``ids[order]`` holds counts[0] ids of rank 0, then counts[1] of rank 1, and so on.
        ``order`` is [n] int64, or None where the ids are grouped already (sorted ids are).

    Raises:
        DataError: nobody owns an id; names the first such id and its position.

    Cost:
        About log2(ranks) + 2 passes over the ids, and one more where they are not grouped.
    """
    if ids.dtype != torch.int64 or ids.dim() != 1:
        raise TypeError(f"ids must be a vector of int64, not {ids.dim()}-dimensional {ids.dtype}")
    array = ids.contiguous().numpy()
    owner = np.empty(len(array), np.int32)
    counts = np.zeros(len(offsets) - 1, np.int64)
    grouped, bad_position = find_owners(array, np.asarray(offsets, np.int64), owner, counts)
    if bad_position >= 0:
        raise _outside(ids, bad_position, offsets)
    if grouped:
        return None, counts.tolist()
    order = np.empty(len(array), np.int64)
    sort_by_owner(owner, counts, order)
    return torch.from_numpy(order), counts.tolist()


def _outside(ids: Tensor, position: int, offsets: Sequence[int]) -> DataError:
    held = [(start, stop) for start, stop in pairwise(offsets) if start < stop]
    known = f"ids are {held[0][0]} to {held[-1][1] - 1}" if held else "no rank owns any id"
    return DataError(
        f"id {int(ids[position])} at position {position} of {len(ids)} belongs to no rank: {known}. "
        "Check that the ids are in the numbering of this partition"
    )
