"""Compiled loops of TT-Rec: products along digits of rows, and the way back; see `windrow.recsys.tables.tensor_train`.

Rows are done some at a time. Level k has a product for each different beginning of k digits, in the order of the rows,
so that neighbours which share it have one *parent*::

    rows     7 = 0 1 1    8 = 0 2 0    9 = 0 2 1          two cores of 2, the first of 3 ...
    level 1  (0)            level 2  (0 1) (0 2)          level 3  (0 1 1) (0 2 0) (0 2 1)
                            parents    0     0            parents     0       1       1

Loops run over columns, or where these are few over what is longer.
"""

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["multiply", "multiply_back"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

FEW_COLUMNS = 16


@numba.njit(nogil=True, cache=True)
def _levels(shapes: Ints, ids: Ints, counts: Ints, digits: Ints, parents: Ints) -> None:
    """Of each level the products, [levels] how many; [levels, rows at once] which matrix each takes, and its parent."""
    cores = len(shapes)
    prefixes = ids.copy()
    counts[cores - 1] = len(ids)
    for level in range(cores - 1, -1, -1):
        rows, shorter = shapes[level, 0], 0
        for number in range(counts[level]):
            prefix = prefixes[number] // rows
            digits[level, number] = prefixes[number] - prefix * rows
            if number == 0 or prefix != prefixes[shorter - 1]:
                prefixes[shorter] = prefix
                shorter += 1
            parents[level, number] = shorter - 1 if level else 0
        if level:
            counts[level - 1] = shorter


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _add_product(total: Floats, left: Floats, right: Floats) -> None:
    """``total [m, n] += left [m, k] @ right [k, n]``, four rows of `right` for each time that `total` is read."""
    inner, columns = right.shape
    for i in range(len(total)):
        target = total[i]
        for k in range(0, inner - 3, 4):
            a, b, c, d = left[i, k], left[i, k + 1], left[i, k + 2], left[i, k + 3]
            one, two, three, four = right[k], right[k + 1], right[k + 2], right[k + 3]
            for j in range(columns):
                target[j] += (a * one[j] + b * two[j]) + (c * three[j] + d * four[j])
        for k in range(inner - inner % 4, inner):
            a, one = left[i, k], right[k]
            for j in range(columns):
                target[j] += a * one[j]


@numba.njit(nogil=True, cache=True)
def _turn(matrix: Floats, turned: Floats) -> None:
    """Write the transpose."""
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            turned[j, i] = matrix[i, j]


@numba.njit(nogil=True, cache=True)
def _forward(one: Floats, matrix: Floats, product: Floats, turned: Floats, sums: Floats) -> None:
    """``product [m, n] = one [m, r] @ matrix [r, n]``; `turned` [r, m] and `sums` [n, m] are for what is in between."""
    rows, columns = product.shape
    if columns >= FEW_COLUMNS or rows < columns:
        product[:] = 0
        _add_product(product, one, matrix)
        return
    _turn(one, turned)
    sums[:] = 0
    _add_product(sums, matrix.T, turned)
    _turn(sums, product)


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _backward(
    one: Floats, matrix: Floats, arriving: Floats, of_one: Floats, of_matrix: Floats, turned: Floats, sums: Floats
) -> None:
    """Add what `_forward` gives back: ``arriving @ matrix.T`` to `of_one`, ``one.T @ arriving`` to `of_matrix`.

    `turned` and `sums` are [n, r].
    """
    bond, columns = matrix.shape
    if columns < FEW_COLUMNS:
        _turn(matrix, turned)
        _add_product(of_one, arriving, turned)
        sums[:] = 0
        _add_product(sums, arriving.T, one)
        for k in range(bond):
            for j in range(columns):
                of_matrix[k, j] += sums[j, k]
        return
    _add_product(of_matrix, one.T, arriving)
    for i in range(len(one)):
        source, target = arriving[i], of_one[i]
        for k in range(bond):
            row, total = matrix[k], np.float32(0)
            for j in range(columns):
                total += source[j] * row[j]
            target[k] += total


@numba.njit(nogil=True, cache=True)
def _products(shapes: Ints, rows: int) -> list[Floats]:
    """Room for the products of so many rows: of each level [rows, columns so far, bond], the first one is 1."""
    size = 1
    found = [np.ones((1, 1, 1), np.float32)]
    for level in range(len(shapes)):
        size *= shapes[level, 1]
        found.append(np.empty((rows, size, shapes[level, 3]), np.float32))
    return found


@numba.njit(nogil=True, cache=True)
def _between(shapes: Ints, back: bool) -> tuple[list[Floats], list[Floats]]:  # noqa: FBT001
    """Of each level what `_forward` or `_backward` needs."""
    size, turned, sums = 1, [np.empty((0, 0), np.float32)], [np.empty((0, 0), np.float32)]
    for level in range(len(shapes)):
        _, columns, left, right = shapes[level]
        wide = columns * right
        turned.append(np.empty((wide, left) if back else (left, size), np.float32))
        sums.append(np.empty((wide, left) if back else (wide, size), np.float32))
        size *= columns
    return turned[1:], sums[1:]


@numba.njit(nogil=True, cache=True)
def _multiply(
    shapes: Ints,
    cores: tuple[Floats, ...],
    counts: Ints,
    digits: Ints,
    parents: Ints,
    products: list[Floats],
    between: tuple[list[Floats], list[Floats]],
    levels: int,
) -> None:
    """Fill the products of the first levels."""
    for level in range(levels):
        _, columns, _, right = shapes[level]
        before, core = products[level], cores[level]
        now = products[level + 1].reshape(-1, before.shape[1], columns * right)
        turned, sums = between[0][level], between[1][level]
        for number in range(counts[level]):
            parent = parents[level, number]
            _forward(before[parent], core[digits[level, number]], now[number], turned, sums)


@numba.njit(nogil=True, cache=True)
def multiply(
    shapes: Ints, at_once: int, ids: Ints, cores: tuple[Floats, ...], found: Floats, first: int, last: int
) -> None:
    """Write some rows of a table.

    Args:
        shapes: [cores, 4] rows, columns, and the ranks on both sides.
        at_once: rows whose products are in memory together.
        ids: [n] rows, best in ascending order.
        cores: of each [rows, left rank, columns * right rank].
        found: [n, dim], written from `first` to before `last`.
        first: which rows.
        last: the one after the last.
    """
    levels = len(shapes)
    counts = np.zeros(levels, np.int64)
    digits, parents = np.empty((levels, at_once), np.int64), np.empty((levels, at_once), np.int64)
    products = _products(shapes, at_once)
    between = _between(shapes, False)  # noqa: FBT003
    for start in range(first, last, at_once):
        stop = min(start + at_once, last)
        _levels(shapes, ids[start:stop], counts, digits, parents)
        products[levels] = found[start:stop].reshape(stop - start, found.shape[1], 1)
        _multiply(shapes, cores, counts, digits, parents, products, between, levels)


@numba.njit(nogil=True, cache=True)
def multiply_back(
    shapes: Ints, at_once: int, ids: Ints, cores: tuple[Floats, ...], arriving: Floats, gradients: tuple[Floats, ...]
) -> None:
    """Add the gradients of rows, [n, dim], to those of the cores; other arguments are those of `multiply`."""
    levels = len(shapes)
    counts = np.zeros(levels, np.int64)
    digits, parents = np.empty((levels, at_once), np.int64), np.empty((levels, at_once), np.int64)
    products, backward = _products(shapes, at_once), _products(shapes, at_once)
    between = _between(shapes, False)  # noqa: FBT003
    turned, sums = _between(shapes, True)  # noqa: FBT003
    for start in range(0, len(ids), at_once):
        stop = min(start + at_once, len(ids))
        _levels(shapes, ids[start:stop], counts, digits, parents)
        _multiply(shapes, cores, counts, digits, parents, products, between, levels - 1)
        backward[levels] = arriving[start:stop].reshape(stop - start, arriving.shape[1], 1)
        for level in range(levels - 1, -1, -1):
            _, columns, _, right = shapes[level]
            before, of_before, core, gradient = products[level], backward[level], cores[level], gradients[level]
            now = backward[level + 1].reshape(-1, before.shape[1], columns * right)
            of_before[: counts[level - 1] if level else 1] = 0
            for number in range(counts[level]):
                parent, digit = parents[level, number], digits[level, number]
                _backward(
                    before[parent],
                    core[digit],
                    now[number],
                    of_before[parent],
                    gradient[digit],
                    turned[level],
                    sums[level],
                )
