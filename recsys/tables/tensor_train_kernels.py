"""Compiled loops of TT-Rec: products along digits of rows, and the way back; see `windrow.recsys.tables.tensor_train`.

Rows are done some at a time. Level k has a product for each different beginning of k digits; neighbours which share it
have one *parent*. Products of a level stand in the order of their last digits, which name their matrices::

    rows     7 = 0 1 1    8 = 0 2 0    9 = 0 2 1          two cores of 2, the first of 3 ...
    level 1  (0)            level 2  (0 1) (0 2)          level 3  (0 2 0) (0 1 1) (0 2 1)
                            parents    0     0            parents     1       0       1

So all products by one matrix are one: of their parents, put below each other. It is made of tiles, each of which stays
in registers.
"""

from collections.abc import Callable
from typing import cast

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import TURNED, tile, turn

__all__ = ["multiply", "multiply_back"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Strip = Callable[[Floats, int, int, Floats, int, int, int, Floats, int, int, int, bool], None]
LARGE = 8
"""Rows of a product that fill tiles by themselves."""


def _strip(columns: int, most: int) -> Strip:
    """`_add_product` for so many of the columns, where the first of them stand; at most so many rows at a time."""
    many, four, two, one = tile(most, columns), tile(4, columns), tile(2, columns), tile(1, columns)

    @numba.njit(nogil=True)
    def add(
        c: Floats, c_at: int, c_row: int, a: Floats, a_at: int, a_row: int, a_inner: int, b: Floats, b_at: int,
        rows: int, inner: int, adds: bool,  # noqa: FBT001
    ) -> None:  # fmt: skip
        for _ in range(rows // most):
            many(c, c_at, c_row, a, a_at, a_row, a_inner, b, b_at, c_row, inner, adds)
            c_at, a_at = c_at + most * c_row, a_at + most * a_row
        if most > 4 and rows & 4:
            four(c, c_at, c_row, a, a_at, a_row, a_inner, b, b_at, c_row, inner, adds)
            c_at, a_at = c_at + 4 * c_row, a_at + 4 * a_row
        if rows & 2:
            two(c, c_at, c_row, a, a_at, a_row, a_inner, b, b_at, c_row, inner, adds)
            c_at, a_at = c_at + 2 * c_row, a_at + 2 * a_row
        if rows & 1:
            one(c, c_at, c_row, a, a_at, a_row, a_inner, b, b_at, c_row, inner, adds)

    return cast("Strip", add)


# As many products at a time as hide that each takes some cycles, in as many registers as there are.
_16, _8, _4, _1 = _strip(16, 4), _strip(8, 8), _strip(4, 8), _strip(1, 8)


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
    j = 0
    for _ in range(columns // 16):
        _16(c, c_at + j, columns, a, a_at, a_row, a_inner, b, b_at + j, rows, inner, adds)
        j += 16
    if columns & 8:
        _8(c, c_at + j, columns, a, a_at, a_row, a_inner, b, b_at + j, rows, inner, adds)
        j += 8
    if columns & 4:
        _4(c, c_at + j, columns, a, a_at, a_row, a_inner, b, b_at + j, rows, inner, adds)
        j += 4
    for _ in range(columns & 3):
        _1(c, c_at + j, columns, a, a_at, a_row, a_inner, b, b_at + j, rows, inner, adds)
        j += 1


@numba.njit(nogil=True, cache=True)
def _turn(matrix: Floats, at: int, rows: int, columns: int, turned: Floats) -> None:
    """Write the transpose, [columns, rows], of a matrix that stands in a vector from some entry on."""
    many, most = rows - rows % TURNED, columns - columns % TURNED
    for row in range(0, many, TURNED):
        for column in range(0, most, TURNED):
            turn(turned, column * rows + row, rows, matrix, at + row * columns + column, columns)
    for row in range(rows):
        for column in range(most if row < many else 0, columns):
            turned[column * rows + row] = matrix[at + row * columns + column]


@numba.njit(nogil=True, cache=True)
def _levels(shapes: Ints, ids: Ints, counts: Ints, matrices: Ints, parents: Ints, row_of: Ints) -> None:
    """Lay out the products of some rows.

    Args:
        shapes: see `multiply`.
        ids: [n] the rows.
        counts: [cores], written: products of each level.
        matrices: [cores, n], written: the matrix of each product.
        parents: [cores, n], written: where its parent stands in the level before.
        row_of: [n], written: the row of each product of the last level.
    """
    cores = len(shapes)
    prefixes, (digits, parent) = ids.copy(), np.empty((2, len(ids)), np.int64)
    places = np.empty((cores, len(ids)), np.int64)
    counts[cores - 1] = len(ids)
    for level in range(cores - 1, -1, -1):
        rows, shorter = shapes[level, 0], 0
        begins = np.zeros(rows + 1, np.int64)
        for number in range(counts[level]):
            prefix = prefixes[number] // rows
            digits[number] = prefixes[number] - prefix * rows
            begins[digits[number] + 1] += 1
            if number == 0 or prefix != prefixes[shorter - 1]:
                prefixes[shorter] = prefix
                shorter += 1
            parent[number] = shorter - 1
        for digit in range(rows):
            begins[digit + 1] += begins[digit]
        for number in range(counts[level]):
            place = begins[digits[number]]
            begins[digits[number]] += 1
            places[level, number] = place
            matrices[level, place], parents[level, place] = digits[number], parent[number]
        if level:
            counts[level - 1] = shorter
    for level in range(1, cores):
        for place in range(counts[level]):
            parents[level, place] = places[level - 1, parents[level, place]]
    for number in range(len(ids)):
        row_of[places[cores - 1, number]] = number


@numba.njit(nogil=True, cache=True)
def _room(shapes: Ints, rows: int) -> list[Floats]:
    """Room for the products of so many rows: of each level [rows, columns so far, bond]; the one before them is 1."""
    size = 1
    found = [np.ones(1, np.float32)]
    for level in range(len(shapes)):
        size *= shapes[level, 1]
        found.append(np.empty(rows * size * shapes[level, 3], np.float32))
    return found


@numba.njit(nogil=True, cache=True)
def _room_for_parents(shapes: Ints, rows: int) -> Floats:
    """Room for what goes into any level."""
    size, most = 1, 1
    for level in range(len(shapes)):
        most = max(most, size * shapes[level, 2])
        size *= shapes[level, 1]
    return np.empty(rows * most, np.float32)


# Views of arrays, made for each group, would take longer than its product: so all are passed whole.


@numba.njit(nogil=True, cache=True)
def _end_of_group(matrices: Ints, level: int, first: int, count: int, size: int) -> int:
    """The product behind those by one matrix that are made at once; large ones are made alone."""
    last = first + 1
    while size < LARGE and last < count and matrices[level, last] == matrices[level, first]:
        last += 1
    return last


@numba.njit(nogil=True, cache=True)
def _gather(before: Floats, parents: Ints, level: int, first: int, last: int, size: int, gathered: Floats) -> None:
    """Put the parents of some products, each of so many numbers, below each other."""
    into = 0
    for place in range(first, last):
        one = parents[level, place] * size
        for number in range(size):
            gathered[into + number] = before[one + number]
        into += size


@numba.njit(nogil=True, cache=True)
def _scatter(gathered: Floats, parents: Ints, level: int, first: int, last: int, size: int, before: Floats) -> None:
    """Add what `_gather` would read to where it would read it."""
    here = 0
    for place in range(first, last):
        one = parents[level, place] * size
        for number in range(size):
            before[one + number] += gathered[here + number]
        here += size


@numba.njit(nogil=True, cache=True)
def _multiply(
    shapes: Ints,
    cores: tuple[Floats, ...],
    counts: Ints,
    matrices: Ints,
    parents: Ints,
    products: list[Floats],
    gathered: Floats,
    levels: int,
) -> None:
    """Fill the products of the first levels."""
    size = 1
    for level in range(levels):
        _, columns, left, right = shapes[level]
        wide, first = columns * right, 0
        before, now, core = products[level], products[level + 1], cores[level]
        while first < counts[level]:
            last = _end_of_group(matrices, level, first, counts[level], size)
            into, matrix, rows = first * size * wide, matrices[level, first] * left * wide, (last - first) * size
            if last - first == 1:
                one = parents[level, first] * size * left
                _add_product(now, into, before, one, left, 1, core, matrix, rows, wide, left, False)  # noqa: FBT003
            else:
                _gather(before, parents, level, first, last, size * left, gathered)
                _add_product(now, into, gathered, 0, left, 1, core, matrix, rows, wide, left, False)  # noqa: FBT003
            first = last
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
    counts, row_of = np.zeros(levels, np.int64), np.empty(at_once, np.int64)
    matrices, parents = np.empty((2, levels, at_once), np.int64)
    products, gathered = _room(shapes, at_once), _room_for_parents(shapes, at_once)
    for start in range(first, last, at_once):
        stop = min(start + at_once, last)
        _levels(shapes, ids[start:stop], counts, matrices, parents, row_of)
        _multiply(shapes, cores, counts, matrices, parents, products, gathered, levels)
        rows = products[levels]
        for place in range(stop - start):
            found[start + row_of[place]] = rows[place * dim : (place + 1) * dim]


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _learn(
    core: Floats, at: int, squares: Floats, row: int, kept: int, gradient: Floats, size: int, numbers: Floats
) -> None:
    """Change a matrix, which is a row of its stored table; see `multiply_back`."""
    rate, eps = numbers
    if kept > 1:
        for n in range(size):
            squares[at + n] += gradient[n] * gradient[n]
            core[at + n] -= rate * gradient[n] / (np.sqrt(squares[at + n]) + eps)
        return
    if kept == 1:
        square = np.float32(0)
        for n in range(size):
            square += gradient[n] * gradient[n]
        squares[row] += square / np.float32(size)
        rate /= np.sqrt(squares[row]) + eps
    for n in range(size):
        core[at + n] -= rate * gradient[n]


@numba.njit(nogil=True, cache=True)
def multiply_back(
    shapes: Ints,
    at_once: int,
    ids: Ints,
    cores: tuple[Floats, ...],
    arriving: Floats,
    gradients: tuple[Floats, ...],
    squares: tuple[Floats, ...] | None,
    numbers: Floats,
) -> None:
    """Give the cores the gradients of rows, or have them learn from these, matrix by matrix.

    Args:
        shapes: those of `multiply`.
        at_once: likewise; to learn, all rows are done at once.
        ids: likewise.
        cores: likewise.
        arriving: [n, dim] gradients.
        gradients: of each core, added to. To learn, the cores.
        squares: to learn, what the optimiser keeps of each core: nothing, a number for each row of the stored table,
            or as many as this has; formulas in `windrow.recsys.tables.fbgemm`.
        numbers: learning rate and eps.
    """
    levels, dim = len(shapes), arriving.shape[1]
    at_once = max(len(ids) if squares is not None else min(at_once, len(ids)), 1)
    counts, row_of = np.zeros(levels, np.int64), np.empty(at_once, np.int64)
    matrices, parents = np.empty((2, levels, at_once), np.int64)
    products, backward = _room(shapes, at_once), _room(shapes, at_once)
    gathered, largest = _room_for_parents(shapes, at_once), 1
    for level in range(levels):
        largest = max(largest, shapes[level, 1] * shapes[level, 2] * shapes[level, 3])
    turned, total = np.empty((2, largest), np.float32)
    for start in range(0, len(ids), at_once):
        stop = min(start + at_once, len(ids))
        _levels(shapes, ids[start:stop], counts, matrices, parents, row_of)
        _multiply(shapes, cores, counts, matrices, parents, products, gathered, levels - 1)
        last_level, size = backward[levels], dim
        for place in range(stop - start):
            last_level[place * dim : (place + 1) * dim] = arriving[start + row_of[place]]
        for level in range(levels - 1, -1, -1):
            _, columns, left, right = shapes[level]
            wide, size = columns * right, size // columns
            before, of_before, now = products[level], backward[level], backward[level + 1]
            core, gradient, each, first = cores[level], gradients[level], size * left, 0
            of_before[: counts[level - 1] * each if level else 1] = 0
            while first < counts[level]:
                last, row = _end_of_group(matrices, level, first, counts[level], size), matrices[level, first]
                is_first = first == 0 or matrices[level, first - 1] != row
                came, matrix, rows = first * size * wide, row * left * wide, (last - first) * size
                if level and is_first:
                    _turn(core, matrix, left, wide, turned)
                # parents.T @ arriving, and arriving @ matrix.T; the first level has nothing before it.
                if last - first == 1:
                    one = parents[level, first] * each
                    _add_product(total, 0, before, one, 1, left, now, came, left, wide, rows, not is_first)
                    if level:
                        _add_product(of_before, one, now, came, wide, 1, turned, 0, rows, left, wide, True)  # noqa: FBT003
                else:
                    _gather(before, parents, level, first, last, each, gathered)
                    _add_product(total, 0, gathered, 0, 1, left, now, came, left, wide, rows, not is_first)
                    _add_product(gathered, 0, now, came, wide, 1, turned, 0, rows, left, wide, False)  # noqa: FBT003
                    _scatter(gathered, parents, level, first, last, each, of_before)
                first = last
                if first < counts[level] and matrices[level, first] == row:
                    continue
                if squares is None:
                    for n in range(left * wide):
                        gradient[matrix + n] += total[n]
                else:
                    kept = len(squares[level]) // shapes[level, 0]
                    _learn(core, matrix, squares[level], row, kept, total, left * wide, numbers)
