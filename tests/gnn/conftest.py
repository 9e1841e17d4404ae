"""Random hops and the comparison of a layer with a reference layer."""

import warnings

import pytest
import torch

from windrow.gnn.message_passing import Block


def random_block(num_src, num_dst, num_edges, dtype):
    """A hop whose last two destinations have no edges."""
    generator = torch.Generator().manual_seed(num_src)
    destinations = torch.randint(0, num_dst - 2, (num_edges,), generator=generator)
    indptr = torch.zeros(num_dst + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(destinations, minlength=num_dst).cumsum(0)
    indices = torch.randint(0, num_src, (num_edges,), generator=generator, dtype=dtype)
    return Block(num_src=num_src, num_dst=num_dst, indptr=indptr, indices=indices)


@pytest.fixture(params=["sampled", "whole"])
def block(request):
    """A sampled hop and a whole graph, both with destinations that have no edges."""
    if request.param == "sampled":
        return random_block(60, 23, 170, torch.int32)
    return random_block(41, 41, 260, torch.int64)


@pytest.fixture
def generator():
    """Where a test's random numbers come from."""
    return torch.Generator().manual_seed(11)


@pytest.fixture(scope="session")
def dgl():
    """DGL, where it is installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("dgl")
        pytest.importorskip("dgl.nn")
    return module


def in_shape_of(wanted, values):
    """DGL keeps the transpose of some weights, and further axes of length 1."""
    transposed = values.dim() == 2 and values.shape != wanted.shape and values.shape == wanted.shape[::-1]
    return values.T if transposed else values.view_as(wanted)


@pytest.fixture
def assert_equals_dgl(dgl, block, generator):
    """A function that compares outputs, and gradients of input and parameters, of a layer and one of `dgl.nn`."""
    # DGL 1.1 fails in the backward pass where it has to make up the edge ids itself.
    edges = ("csc", (block.indptr, block.indices.long(), torch.arange(block.num_edges)))
    if block.num_src == block.num_dst:
        graph = dgl.graph(edges, num_nodes=block.num_src)
    else:
        graph = dgl.create_block(edges, num_src_nodes=block.num_src, num_dst_nodes=block.num_dst)

    def compare(layer, reference, in_features, parameters, shape_rows=lambda rows: rows):
        """Compare.

        Args:
            layer: ours.
            reference: name, arguments and options of DGL's.
            in_features: columns of the input.
            parameters: names (ours, theirs); the values of ours are copied over first.
            shape_rows: brings DGL's outputs into our shape.
        """
        name, arguments, options = reference
        with torch.random.fork_rng(devices=[]):  # DGL draws from torch's global generator
            theirs = getattr(dgl.nn, name)(*arguments, **options)
        pairs = [(layer.get_parameter(own), theirs.get_parameter(other)) for own, other in parameters]
        with torch.no_grad():
            for own, other in pairs:
                other.copy_(in_shape_of(other, own))
        x = torch.randn(block.num_src, in_features, generator=generator)
        x_ours, x_theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        result, expected = layer(block, x_ours), shape_rows(theirs(graph, x_theirs))
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=2e-6)
        upstream = torch.linspace(-1, 1, result.numel()).view_as(result)
        result.backward(upstream)
        expected.backward(upstream)
        for own, other in [(x_ours, x_theirs), *pairs]:
            torch.testing.assert_close(own.grad, in_shape_of(own, other.grad), rtol=1e-5, atol=1e-5)

    return compare
