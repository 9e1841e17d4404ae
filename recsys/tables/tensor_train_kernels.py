"""Compiled loops of TT-Rec: products along digits of rows, and the way back; see `windrow.recsys.tables.tensor_train`.

Rows are done some at a time. Level k has a product for each different beginning of k digits, in the order of the rows,
so that neighbours which share it have one *parent*::

    rows     7 = 0 1 1    8 = 0 2 0    9 = 0 2 1          two cores of 2, the first of 3 ...
    level 1  (0)            level 2  (0 1) (0 2)          level 3  (0 1 1) (0 2 0) (0 2 1)
                            parents    0     0            parents     0       1       1

Products of a few columns run over the bond, which is longer, others over the columns.
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
            parents[level, number] = shorter - 1
        if level:
            counts[level - 1] = shorter


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _forward(one: Floats, matrix: Floats, product: Floats, turned: Floats) -> None:
    """``product [m, n] = one [m, r] @ matrix [r, n]``; `turned` [n, r] is for what is in between."""
    bond, columns = matrix.shape
    if columns < FEW_COLUMNS:
        for k in range(bond):
            for j in range(columns):
                turned[j, k] = matrix[k, j]
        for i in range(len(one)):
            left = one[i]
            for j in range(columns):
                right, total = turned[j], np.float32(0)
                for k in range(bond):
                    total += left[k] * right[k]
                product[i, j] = total
        return
    for i in range(len(one)):
        target = product[i]
        target[:] = 0
        for k in range(bond):
            factor, row = one[i, k], matrix[k]
            for j in range(columns):
                target[j] += factor * row[j]


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _backward(
    one: Floats, matrix: Floats, arriving: Floats, of_one: Floats, of_matrix: Floats, turned: Floats, sums: Floats
) -> None:
    """Add what `_forward` gives back: ``arriving @ matrix.T`` to `of_one`, ``one.T @ arriving`` to `of_matrix`."""
    bond, columns = matrix.shape
    if columns < FEW_COLUMNS:
        for j in range(columns):
            for k in range(bond):
                turned[j, k] = matrix[k, j]
                sums[j, k] = 0
        for i in range(len(one)):
            left, target = one[i], of_one[i]
            for j in range(columns):
                factor, right, total = arriving[i, j], turned[j], sums[j]
                for k in range(bond):
                    target[k] += factor * right[k]
                for k in range(bond):
                    total[k] += factor * left[k]
        for k in range(bond):
            for j in range(columns):
                of_matrix[k, j] += sums[j, k]
        return
    for k in range(bond):
        row, of_row = matrix[k], of_matrix[k]
        for i in range(len(one)):
            source, factor, total = arriving[i], one[i, k], np.float32(0)
            for j in range(columns):
                total += source[j] * row[j]
            of_one[i, k] += total
            for j in range(columns):
                of_row[j] += factor * source[j]


@numba.njit(nogil=True, cache=True)
def _sizes(shapes: Ints) -> Ints:
    """[levels + 1] rows of the products at each level, the first those of the empty one."""
    sizes = np.ones(len(shapes) + 1, np.int64)
    for level in range(len(shapes)):
        sizes[level + 1] = sizes[level] * shapes[level, 1]
    return sizes


@numba.njit(nogil=True, cache=True)
def _multiply(
    shapes: Ints,
    cores: tuple[Floats, ...],
    counts: Ints,
    digits: Ints,
    parents: Ints,
    products: list[Floats],
    turned: Floats,
    levels: int,
) -> None:
    """Fill the products of the first levels, flat; ``products[0]`` is the empty one."""
    sizes = _sizes(shapes)
    for level in range(levels):
        _, columns, left, right = shapes[level]
        size, before, now = sizes[level], products[level], products[level + 1]
        core = cores[level]
        for number in range(counts[level]):
            parent = parents[level, number] if level else 0
            _forward(
                before[parent * size * left : (parent + 1) * size * left].reshape(size, left),
                core[digits[level, number]].reshape(left, columns * right),
                now[number * size * columns * right : (number + 1) * size * columns * right].reshape(
                    size, columns * right
                ),
                turned,
            )


@numba.njit(nogil=True, cache=True)
def _buffers(shapes: Ints, rows: int) -> list[Floats]:
    """Room for the products of so many rows at each level."""
    sizes = _sizes(shapes)
    found = [np.ones(1, np.float32)]
    for level in range(len(shapes)):
        found.append(np.empty(rows * sizes[level + 1] * shapes[level, 3], np.float32))
    return found


@numba.njit(nogil=True, cache=True)
def _longest_bond(shapes: Ints) -> int:
    longest = 1
    for level in range(len(shapes)):
        longest = max(longest, shapes[level, 2])
    return longest


@numba.njit(nogil=True, cache=True)
def multiply(
    shapes: Ints, at_once: int, ids: Ints, cores: tuple[Floats, ...], found: Floats, first: int, last: int
) -> None:
    """Write some rows of a table.

    Args:
        shapes: [cores, 4] rows, columns, and the ranks on both sides.
        at_once: rows whose products are in memory together.
        ids: [n] rows, best in ascending order.
        cores: of each [rows, left * columns * right].
        found: [n, dim], written from `first` to before `last`.
        first: which rows.
        last: the one after the last.
    """
    levels = len(shapes)
    counts = np.zeros(levels, np.int64)
    digits, parents = np.empty((levels, at_once), np.int64), np.empty((levels, at_once), np.int64)
    products = _buffers(shapes, at_once)
    turned = np.empty((FEW_COLUMNS, _longest_bond(shapes)), np.float32)
    flat, dim = found.reshape(-1), found.shape[1]
    for start in range(first, last, at_once):
        stop = min(start + at_once, last)
        _levels(shapes, ids[start:stop], counts, digits, parents)
        products[levels] = flat[start * dim : stop * dim]
        _multiply(shapes, cores, counts, digits, parents, products, turned, levels)


@numba.njit(nogil=True, cache=True)
def multiply_back(
    shapes: Ints, at_once: int, ids: Ints, cores: tuple[Floats, ...], arriving: Floats, gradients: tuple[Floats, ...]
) -> None:
    """Add the gradients of rows, [n, dim], to those of the cores; other arguments are those of `multiply`."""
    levels = len(shapes)
    sizes = _sizes(shapes)
    counts = np.zeros(levels, np.int64)
    digits, parents = np.empty((levels, at_once), np.int64), np.empty((levels, at_once), np.int64)
    products, backward = _buffers(shapes, at_once), _buffers(shapes, at_once)
    bond = _longest_bond(shapes)
    turned, sums = np.empty((FEW_COLUMNS, bond), np.float32), np.empty((FEW_COLUMNS, bond), np.float32)
    flat, dim = arriving.reshape(-1), arriving.shape[1]
    for start in range(0, len(ids), at_once):
        stop = min(start + at_once, len(ids))
        _levels(shapes, ids[start:stop], counts, digits, parents)
        _multiply(shapes, cores, counts, digits, parents, products, turned, levels - 1)
        backward[levels] = flat[start * dim : stop * dim]
        for level in range(levels - 1, -1, -1):
            _, columns, left, right = shapes[level]
            size, before, now = sizes[level], products[level], backward[level + 1]
            of_before, core, gradient = backward[level], cores[level], gradients[level]
            of_before[: (counts[level - 1] if level else 1) * size * left] = 0
            for number in range(counts[level]):
                parent = parents[level, number] if level else 0
                here = slice(parent * size * left, (parent + 1) * size * left)
                _backward(
                    before[here].reshape(size, left),
                    core[digits[level, number]].reshape(left, columns * right),
                    now[number * size * columns * right : (number + 1) * size * columns * right].reshape(
                        size, columns * right
                    ),
                    of_before[here].reshape(size, left),
                    gradient[digits[level, number]].reshape(left, columns * right),
                    turned,
                    sums,
                )
