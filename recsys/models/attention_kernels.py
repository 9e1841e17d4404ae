"""Loops over the items of each sample's list, where several samples may have one list.

Sample b has the items ``offsets[inverse[b]]`` up to ``offsets[inverse[b] + 1]``, not checked. Its *pairs*, of an item
and the sample, stand one after another, those of the first sample first; m is the number of all pairs. Gradients are
added up in the order of samples.
"""

from typing import Any

import numba
import numpy as np

__all__ = [
    "add_parts",
    "add_parts_backward",
    "multiply_items",
    "multiply_items_backward",
    "sum_weighted_items",
    "sum_weighted_items_backward",
]

Array = np.ndarray[Any, np.dtype[Any]]


@numba.njit(nogil=True, cache=True)
def multiply_items(items: Array, offsets: Array, inverse: Array, queries: Array, out: Array) -> None:
    """Write the product, entry by entry, of item [n, d] and query [B, d] of each pair to `out` [m, d]."""
    pair = 0
    for sample in range(len(inverse)):
        query = queries[sample]
        for place in range(offsets[inverse[sample]], offsets[inverse[sample] + 1]):
            item = items[place]
            product = out[pair]
            for column in range(len(query)):
                product[column] = item[column] * query[column]
            pair += 1


@numba.njit(nogil=True, cache=True)
def multiply_items_backward(
    items: Array, offsets: Array, inverse: Array, queries: Array, upstream: Array, of_items: Array, of_queries: Array
) -> None:
    """Add the gradients of `multiply_items` to zeros `of_items` and `of_queries`; `upstream` is that of `out`."""
    pair = 0
    for sample in range(len(inverse)):
        query = queries[sample]
        total = of_queries[sample]
        for place in range(offsets[inverse[sample]], offsets[inverse[sample] + 1]):
            item = items[place]
            of_item = of_items[place]
            arriving = upstream[pair]
            for column in range(len(query)):
                of_item[column] += arriving[column] * query[column]
            for column in range(len(query)):
                total[column] += arriving[column] * item[column]
            pair += 1


@numba.njit(nogil=True, cache=True)
def add_parts(of_items: Array, offsets: Array, inverse: Array, of_samples: Array, of_pairs: Array) -> None:
    """Add to each pair's row [m, h] that of its item [n, h] and that of its sample [B, h]."""
    pair = 0
    for sample in range(len(inverse)):
        own = of_samples[sample]
        for place in range(offsets[inverse[sample]], offsets[inverse[sample] + 1]):
            item = of_items[place]
            total = of_pairs[pair]
            for column in range(len(own)):
                total[column] += item[column] + own[column]
            pair += 1


@numba.njit(nogil=True, cache=True)
def add_parts_backward(offsets: Array, inverse: Array, upstream: Array, of_items: Array, of_samples: Array) -> None:
    """Add the gradients of `add_parts` to zeros `of_items` and `of_samples`; that of the pairs is `upstream` itself."""
    pair = 0
    for sample in range(len(inverse)):
        own = of_samples[sample]
        for place in range(offsets[inverse[sample]], offsets[inverse[sample] + 1]):
            item = of_items[place]
            arriving = upstream[pair]
            for column in range(len(own)):
                item[column] += arriving[column]
            for column in range(len(own)):
                own[column] += arriving[column]
            pair += 1


@numba.njit(nogil=True, cache=True)
def sum_weighted_items(items: Array, offsets: Array, inverse: Array, weights: Array, out: Array) -> None:
    """Write the sum of each sample's items, each times the weight [m] of its pair, to `out` [B, d]."""
    pair = 0
    for sample in range(len(inverse)):
        total = out[sample]
        total[:] = 0
        for place in range(offsets[inverse[sample]], offsets[inverse[sample] + 1]):
            item = items[place]
            weight = weights[pair]
            for column in range(len(total)):
                total[column] += weight * item[column]
            pair += 1


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def sum_weighted_items_backward(
    items: Array, offsets: Array, inverse: Array, weights: Array, upstream: Array, of_items: Array, of_weights: Array
) -> None:
    """Add the gradients of `sum_weighted_items` to zeros `of_items`, and write those of the weights."""
    pair = 0
    for sample in range(len(inverse)):
        arriving = upstream[sample]
        for place in range(offsets[inverse[sample]], offsets[inverse[sample] + 1]):
            item = items[place]
            of_item = of_items[place]
            weight = weights[pair]
            for column in range(len(arriving)):
                of_item[column] += weight * arriving[column]
            # The type of a zero that is multiplied stays that of the items.
            total = item[0] * 0
            for column in range(len(arriving)):
                total += item[column] * arriving[column]
            of_weights[pair] = total
            pair += 1
