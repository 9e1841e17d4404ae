import numpy as np

from windrow.recsys.models.attention_kernels import (
    add_parts,
    add_parts_backward,
    multiply_items,
    multiply_items_backward,
    sum_weighted_items,
    sum_weighted_items_backward,
)

OFFSETS = np.array([0, 2, 2, 3])
INVERSE = np.array([0, 2, 1, 0])
PAIRS = [(0, 0), (1, 0), (2, 1), (0, 3), (1, 3)]
"""(item, sample)"""


def whole_numbers(*shape, seed=0):
    return np.random.Generator(np.random.PCG64(seed)).integers(-9, 9, shape).astype(np.float32)


def test_products():
    items, queries, upstream = whole_numbers(3, 4), whole_numbers(4, 4, seed=1), whole_numbers(5, 4, seed=2)
    out = np.full((5, 4), np.nan, dtype=np.float32)
    multiply_items(items, OFFSETS, INVERSE, queries, out)
    of_items, of_queries = np.zeros_like(items), np.zeros_like(queries)
    multiply_items_backward(items, OFFSETS, INVERSE, queries, upstream, of_items, of_queries)
    for pair, (item, sample) in enumerate(PAIRS):
        np.testing.assert_array_equal(out[pair], items[item] * queries[sample])
        of_items[item] -= upstream[pair] * queries[sample]
        of_queries[sample] -= upstream[pair] * items[item]
    assert not of_items.any()
    assert not of_queries.any()


def test_parts():
    items, samples, upstream = whole_numbers(3, 2), whole_numbers(4, 2, seed=1), whole_numbers(5, 2, seed=2)
    out = upstream.copy()
    add_parts(items, OFFSETS, INVERSE, samples, out)
    of_items, of_samples = np.zeros_like(items), np.zeros_like(samples)
    add_parts_backward(OFFSETS, INVERSE, upstream, of_items, of_samples)
    for pair, (item, sample) in enumerate(PAIRS):
        np.testing.assert_array_equal(out[pair], items[item] + samples[sample] + upstream[pair])
        of_items[item] -= upstream[pair]
        of_samples[sample] -= upstream[pair]
    assert not of_items.any()
    assert not of_samples.any()


def test_sums():
    items, weights, upstream = whole_numbers(3, 4), whole_numbers(5, seed=1), whole_numbers(4, 4, seed=2)
    out = np.full((4, 4), np.nan, dtype=np.float32)
    sum_weighted_items(items, OFFSETS, INVERSE, weights, out)
    of_items, of_weights = np.zeros_like(items), np.full(5, np.nan, dtype=np.float32)
    sum_weighted_items_backward(items, OFFSETS, INVERSE, weights, upstream, of_items, of_weights)
    for pair, (item, sample) in enumerate(PAIRS):
        out[sample] -= weights[pair] * items[item]
        of_items[item] -= weights[pair] * upstream[sample]
        assert of_weights[pair] == (items[item] * upstream[sample]).sum()
    assert not out.any()
    assert not of_items.any()
