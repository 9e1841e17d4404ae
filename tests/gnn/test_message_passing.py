"""Blocks, and message passing against dense matrices and finite differences."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from windrow.gnn import message_passing
from windrow.gnn.message_passing import (
    Block,
    Minibatch,
    _transpose_anywhere,
    add_ends,
    aggregate,
    edge_softmax,
    join_means,
    spread_means,
)


@st.composite
def blocks(draw):
    num_src = draw(st.integers(1, 12))
    num_dst = draw(st.integers(0, num_src))
    degrees = draw(st.lists(st.integers(0, 5), min_size=num_dst, max_size=num_dst))
    sources = st.integers(0, num_src - 1)
    indices = draw(st.lists(sources, min_size=sum(degrees), max_size=sum(degrees)))
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    indptr = torch.zeros(num_dst + 1, dtype=torch.int64)
    indptr[1:] = torch.tensor(degrees, dtype=torch.int64).cumsum(0)
    indices = torch.tensor(indices, dtype=dtype)
    return Block(num_src=num_src, num_dst=num_dst, indptr=indptr, indices=indices)


@given(blocks())
def test_transpose_equals_a_stable_sort(block):
    edges = zip(block.indices.tolist(), block.edge_destinations.tolist(), range(block.num_edges), strict=True)
    expected = sorted(edges)
    for transpose in (block.transpose, _transpose_anywhere(block)):
        sources = torch.arange(block.num_src).repeat_interleave(transpose.indptr.diff())
        found = zip(sources.tolist(), transpose.indices.tolist(), transpose.edge_ids.tolist(), strict=True)
        assert list(found) == expected
        assert transpose.indptr.dtype == torch.int64
        assert transpose.indices.dtype == transpose.edge_ids.dtype == block.indices.dtype


@given(blocks())
def test_degrees_count_edges(block):
    assert int(block.degrees.sum()) == int(block.out_degrees.sum()) == block.num_edges
    assert torch.equal(torch.bincount(block.edge_destinations, minlength=block.num_dst), block.degrees)
    assert torch.equal(block.transpose.indptr.diff(), block.out_degrees)


def test_a_whole_graph_has_as_many_sources_as_destinations_and_moves_nowhere_without_need():
    block = Block.whole(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 0]))
    assert (block.num_src, block.num_dst, block.num_edges) == (2, 2, 3)
    assert block.transpose is block.transpose
    assert block.to("cpu") is block


@pytest.mark.parametrize("source_degrees", [None, torch.tensor([5, 6])])
def test_moving_takes_every_array_along(source_degrees):
    topology = {"indptr": torch.tensor([0, 1]), "indices": torch.tensor([1])}
    block = Block(num_src=2, num_dst=1, **topology, source_degrees=source_degrees)
    seeds = torch.tensor([7])
    moved = Minibatch(seeds=seeds, input_ids=torch.tensor([7, 8]), blocks=[block]).to("meta")
    (there,) = moved.blocks
    assert {moved.seeds.device.type, moved.input_ids.device.type, there.device.type} == {"meta"}
    assert there.indptr.device.type == "meta"
    assert (there.source_degrees is None) == (source_degrees is None)
    assert (there.num_src, there.num_dst) == (2, 1)


def make_block(num_src, num_dst, num_edges, seed, dtype):
    """A random hop whose last destination has no edges."""
    generator = torch.Generator().manual_seed(seed)
    destinations = torch.randint(0, max(1, num_dst - 1), (num_edges,), generator=generator)
    indptr = torch.zeros(num_dst + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(destinations, minlength=num_dst).cumsum(0)
    indices = torch.randint(0, num_src, (num_edges,), generator=generator, dtype=dtype)
    return Block(num_src=num_src, num_dst=num_dst, indptr=indptr, indices=indices)


def dense(block, weights):
    """Adjacency matrix [destinations, sources] with the sum of weights in each place."""
    matrix = torch.zeros(block.num_dst, block.num_src, dtype=weights.dtype)
    return matrix.index_put((block.edge_destinations, block.indices.long()), weights, accumulate=True)


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@given(
    num_dst=st.integers(1, 10),
    more_sources=st.integers(0, 10),
    num_edges=st.integers(0, 60),
    features=st.integers(1, 20),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    weighted=st.booleans(),
)
@settings(max_examples=60)
def test_aggregate_equals_a_dense_product(num_dst, more_sources, num_edges, features, seed, dtype, weighted):
    block = make_block(num_dst + more_sources, num_dst, num_edges, seed, dtype)
    x = random(block.num_src, features, seed=seed, dtype=torch.float32).requires_grad_()
    weights = random(num_edges, seed=seed + 1, dtype=torch.float32).requires_grad_(weighted)
    matrix = dense(block, weights if weighted else torch.ones(num_edges))
    expected = matrix @ x
    result = aggregate(block, x, edge_weights=weights if weighted else None)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    inputs = [x, weights] if weighted else [x]
    upstream = random(num_dst, features, seed=seed + 2, dtype=torch.float32)
    found = torch.autograd.grad(result, inputs, upstream)
    wanted = torch.autograd.grad(expected, inputs, upstream)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("indices", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_stand_beside_own_rows(monkeypatch, threads, number, indices, dtype):
    block = make_block(70, 40, 200, 1, indices)
    x, upstream = random(70, 5, dtype=dtype), random(40, 10, seed=1, dtype=dtype)
    monkeypatch.setattr(message_passing, "ROWS_AT_ONCE", 3)
    threads(number)
    joined, gradient = join_means(block, x), spread_means(block, upstream)
    counts = block.degrees.clamp(min=1).unsqueeze(1)
    matrix = torch.cat([torch.eye(40, 70, dtype=dtype), dense(block, torch.ones(200, dtype=dtype)) / counts])
    torch.testing.assert_close(joined, (matrix @ x).view(2, 40, 5).transpose(0, 1).reshape(40, 10))
    torch.testing.assert_close(gradient, matrix.T @ torch.cat(upstream.chunk(2, 1)))
    threads(1)
    assert torch.equal(joined, join_means(block, x))
    assert torch.equal(gradient, spread_means(block, upstream))
    monkeypatch.setattr(message_passing, "_has_kernel", lambda tensor: False)
    torch.testing.assert_close(joined, join_means(block, x))
    torch.testing.assert_close(gradient, spread_means(block, upstream))


def test_heads_are_aggregated_one_by_one():
    block = make_block(9, 6, 30, 1, torch.int32)
    x, weights = random(9, 3, 4), random(30, 3)
    result = aggregate(block, x, edge_weights=weights)
    for head in range(3):
        torch.testing.assert_close(result[:, head], dense(block, weights[:, head]) @ x[:, head])
    torch.testing.assert_close(aggregate(block, x), aggregate(block, x.flatten(1)).view(6, 3, 4), rtol=0, atol=0)


GRADIENT_CASES: dict[str, Callable[[Block, Tensor, Tensor], Tensor]] = {
    "sum": lambda block, x, w: aggregate(block, x),
    "weighted": lambda block, x, w: aggregate(block, x, edge_weights=w),
    "softmax": lambda block, x, w: edge_softmax(block, w),
    "ends": lambda block, x, w: add_ends(block, x.sum(-1), x[: block.num_dst].sum(-1) * 2) * w,
}


@pytest.mark.parametrize("case", GRADIENT_CASES)
@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "any device"])
def test_gradients_equal_finite_differences(case, kernels, monkeypatch):
    if not kernels:
        monkeypatch.setattr(message_passing, "_has_kernel", lambda tensor: False)
    block = make_block(7, 5, 18, 3, torch.int64)
    x, weights = random(7, 2, 3).requires_grad_(), random(18, 2, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: GRADIENT_CASES[case](block, x, w), (x, weights))


def test_edge_softmax_equals_softmax_of_each_destination(monkeypatch):
    block = make_block(20, 8, 50, 2, torch.int32)
    scores = random(50, 3, dtype=torch.float32) * 50
    expected = torch.cat([part.softmax(0) for part in scores.split(block.degrees.tolist())])
    torch.testing.assert_close(edge_softmax(block, scores), expected)
    monkeypatch.setattr(message_passing, "_has_kernel", lambda tensor: False)
    torch.testing.assert_close(edge_softmax(block, scores), expected)


def test_add_ends_adds_the_values_at_both_ends():
    block = make_block(9, 6, 30, 1, torch.int32)
    at_source, at_destination = random(9, 2), random(6, 2)
    expected = at_source[block.indices.long()] + at_destination[block.edge_destinations]
    torch.testing.assert_close(add_ends(block, at_source, at_destination), expected, rtol=0, atol=0)


def test_no_transpose_where_the_input_needs_no_gradient():
    block = make_block(9, 6, 30, 1, torch.int32)
    weights = random(30).requires_grad_()
    aggregate(block, random(9, 4), edge_weights=weights).sum().backward()
    assert weights.grad is not None
    assert "transpose" not in vars(block)


def test_result_does_not_depend_on_the_number_of_threads():
    block = make_block(3000, 2000, 20000, 1, torch.int32)
    x = random(3000, 16, dtype=torch.float32)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        single = aggregate(block, x)
        torch.set_num_threads(2)
        assert torch.equal(aggregate(block, x), single)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rows(dtype):
    block = make_block(9, 6, 30, 1, torch.int32)
    x, scores = random(9, 2, 4, dtype=torch.float32), random(30, 2, dtype=torch.float32)
    result = aggregate(block, x.to(dtype), edge_weights=edge_softmax(block, scores.to(dtype)))
    assert result.dtype == dtype
    expected = aggregate(block, x, edge_weights=edge_softmax(block, scores))
    torch.testing.assert_close(result.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("case", GRADIENT_CASES)
def test_cuda_equals_cpu(case):
    block = make_block(40, 25, 200, 3, torch.int32)
    results = []
    for device in ("cpu", "cuda"):
        x = random(40, 2, 3).to(device).requires_grad_()
        weights = random(200, 2, seed=4).to(device).requires_grad_()
        result = GRADIENT_CASES[case](block.to(device), x, weights)
        gradients = torch.autograd.grad(result.square().sum(), (x, weights), allow_unused=True)
        results.append([part.cpu() for part in (result, *gradients) if part is not None])
    torch.testing.assert_close(results[0], results[1])
