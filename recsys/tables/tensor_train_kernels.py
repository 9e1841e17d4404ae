"""Compiled loops of TT-Rec: products along digits of rows, and the way back; see `windrow.recsys.tables.tensor_train`.

Rows are done some at a time. Level k has a product for each different beginning of k digits, in the order of the rows,
so that neighbours which share it have one *parent*::

    rows     7 = 0 1 1    8 = 0 2 0    9 = 0 2 1          two cores of 2, the first of 3 ...
    level 1  (0)            level 2  (0 1) (0 2)          level 3  (0 1 1) (0 2 0) (0 2 1)
                            parents    0     0            parents     0       1       1

Products of a level are made in the order of their matrices, so that each of these is read once for all products that
take it. A product is made of tiles, each of which stays in registers.
"""

from collections.abc import Callable
from typing import cast

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import tile

__all__ = ["multiply", "multiply_back"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Strip = Callable[[Floats, int, int, Floats, int, int, int, Floats, int, int, int, bool], None]
WIDE, NARROW = 16, 4
"""Columns of a tile."""


def _strip(columns: int) -> Strip:
    """`_add_product` for so many of the columns, where the first of them stand; rows four, two and one at a time."""
    four, two, one = tile(4, columns), tile(2, columns), tile(1, columns)

    @numba.njit(nogil=True)
    def add(
        c: Floats, c_at: int, c_row: int, a: Floats, a_at: int, a_row: int, a_inner: int, b: Floats, b_at: int,
        rows: int, inner: int, adds: bool,  # noqa: FBT001
    ) -> None:  # fmt: skip
        for _ in range(rows // 4):
            four(c, c_at, c_row, a, a_at, a_row, a_inner, b, b_at, c_row, inner, adds)
            c_at, a_at = c_at + 4 * c_row, a_at + 4 * a_row
        if rows & 2:
            two(c, c_at, c_row, a, a_at, a_row, a_inner, b, b_at, c_row, inner, adds)
            c_at, a_at = c_at + 2 * c_row, a_at + 2 * a_row
        if rows & 1:
            one(c, c_at, c_row, a, a_at, a_row, a_inner, b, b_at, c_row, inner, adds)

    return cast("Strip", add)


_wide, _narrow, _single = _strip(WIDE), _strip(NARROW), _strip(1)


@numba.njit(nogil=True, cache=True)
def _add_product(
    c: Floats,
    c_at: int,
    a: Floats,
    a_at: int,
    a_row: int,
    a_inner: int,
    b: Floats,
    b_at: int,
    rows: int,
    columns: int,
    inner: int,
    adds: bool,  # noqa: FBT001  # compiled code takes arguments by position
) -> None:
    """``c [rows, columns] (+)= a [rows, inner] @ b [inner, columns]``, each from some entry of a vector on.

    Rows of c and b follow each other; a has its own steps, so that it can be a transpose.
    """
    many = columns - columns % WIDE
    most = columns - columns % NARROW
    for j in range(0, many, WIDE):
        _wide(c, c_at + j, columns, a, a_at, a_row, a_inner, b, b_at + j, rows, inner, adds)
    for j in range(many, most, NARROW):
        _narrow(c, c_at + j, columns, a, a_at, a_row, a_inner, b, b_at + j, rows, inner, adds)
    for j in range(most, columns):
        _single(c, c_at + j, columns, a, a_at, a_row, a_inner, b, b_at + j, rows, inner, adds)


@numba.njit(nogil=True, cache=True)
def _levels(shapes: Ints, ids: Ints, counts: Ints, digits: Ints, parents: Ints, order: Ints) -> None:
    """Of each level the products: [levels] how many; [levels, rows at once] matrices, parents, and order by matrix."""
    cores = len(shapes)
    prefixes = ids.copy()
    counts[cores - 1] = len(ids)
    for level in range(cores - 1, -1, -1):
        rows, shorter = shapes[level, 0], 0
        begins = np.zeros(rows + 1, np.int64)
        for number in range(counts[level]):
            prefix = prefixes[number] // rows
            digits[level, number] = prefixes[number] - prefix * rows
            begins[digits[level, number] + 1] += 1
            if number == 0 or prefix != prefixes[shorter - 1]:
                prefixes[shorter] = prefix
                shorter += 1
            parents[level, number] = shorter - 1 if level else 0
        for digit in range(rows):
            begins[digit + 1] += begins[digit]
        for number in range(counts[level]):
            digit = digits[level, number]
            order[level, begins[digit]] = number
            begins[digit] += 1
        if level:
            counts[level - 1] = shorter


@numba.njit(nogil=True, cache=True)
def _products(shapes: Ints, rows: int) -> list[Floats]:
    """Room for the products of so many rows: of each level [rows, columns so far, bond]; the one before them is 1."""
    size = 1
    found = [np.ones(1, np.float32)]
    for level in range(len(shapes)):
        size *= shapes[level, 1]
        found.append(np.empty(rows * size * shapes[level, 3], np.float32))
    return found


@numba.njit(nogil=True, cache=True)
def _multiply(
    shapes: Ints,
    cores: tuple[Floats, ...],
    counts: Ints,
    digits: Ints,
    parents: Ints,
    order: Ints,
    products: list[Floats],
    levels: int,
) -> None:
    """Fill the products of the first levels."""
    size = 1
    for level in range(levels):
        _, columns, left, right = shapes[level]
        wide = columns * right
        before, now, core = products[level], products[level + 1], cores[level]
        for number in order[level, : counts[level]]:
            one, matrix = parents[level, number] * size * left, digits[level, number] * left * wide
            into = number * size * wide
            _add_product(now, into, before, one, left, 1, core, matrix, size, wide, left, False)  # noqa: FBT003
        size *= columns


@numba.njit(nogil=True, cache=True)
def multiply(
    shapes: Ints, at_once: int, ids: Ints, cores: tuple[Floats, ...], found: Floats, first: int, last: int
) -> None:
    """Write some rows of a table.

    Args:
        shapes: [cores, 4] rows, columns, and the ranks on both sides.
        at_once: rows whose products are in memory together.
        ids: [n] rows, best in ascending order.
        cores: of each [rows * left rank * columns * right rank].
        found: [n, dim], written from `first` to before `last`.
        first: which rows.
        last: the one after the last.
    """
    levels, dim = len(shapes), found.shape[1]
    at_once = max(min(at_once, last - first), 1)
    counts = np.zeros(levels, np.int64)
    digits, parents, order = np.empty((3, levels, at_once), np.int64)
    products, flat = _products(shapes, at_once), found.reshape(-1)
    for start in range(first, last, at_once):
        stop = min(start + at_once, last)
        _levels(shapes, ids[start:stop], counts, digits, parents, order)
        products[levels] = flat[start * dim : stop * dim]
        _multiply(shapes, cores, counts, digits, parents, order, products, levels)


@numba.njit(nogil=True, cache=True)
def multiply_back(
    shapes: Ints, at_once: int, ids: Ints, cores: tuple[Floats, ...], arriving: Floats, gradients: tuple[Floats, ...]
) -> None:
    """Add the gradients of rows, [n, dim], to those of the cores; other arguments are those of `multiply`."""
    levels, dim = len(shapes), arriving.shape[1]
    at_once = max(min(at_once, len(ids)), 1)
    counts = np.zeros(levels, np.int64)
    digits, parents, order = np.empty((3, levels, at_once), np.int64)
    products, backward = _products(shapes, at_once), _products(shapes, at_once)
    largest = 1
    for level in range(levels):
        largest = max(largest, shapes[level, 1] * shapes[level, 2] * shapes[level, 3])
    turned, flat = np.empty(largest, np.float32), arriving.reshape(-1)
    for start in range(0, len(ids), at_once):
        stop = min(start + at_once, len(ids))
        _levels(shapes, ids[start:stop], counts, digits, parents, order)
        _multiply(shapes, cores, counts, digits, parents, order, products, levels - 1)
        backward[levels] = flat[start * dim : stop * dim]
        size = dim
        for level in range(levels - 1, -1, -1):
            _, columns, left, right = shapes[level]
            wide, size = columns * right, size // columns
            before, of_before, now = products[level], backward[level], backward[level + 1]
            core, gradient = cores[level], gradients[level]
            of_before[: (counts[level - 1] if level else 1) * size * left] = 0
            last = -1
            for number in order[level, : counts[level]]:
                one, digit = parents[level, number] * size * left, digits[level, number]
                matrix, came = digit * left * wide, number * size * wide
                # one.T @ arriving, and arriving @ matrix.T; the first level has nothing before it.
                _add_product(gradient, matrix, before, one, 1, left, now, came, left, wide, size, True)  # noqa: FBT003
                if not level:
                    continue
                if digit != last:
                    for row in range(left):
                        for column in range(wide):
                            turned[column * left + row] = core[matrix + row * wide + column]
                    last = digit
                _add_product(of_before, one, now, came, wide, 1, turned, 0, size, left, wide, True)  # noqa: FBT003
