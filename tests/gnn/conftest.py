"""Random hops and the comparison of a layer with a reference layer."""

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from windrow.gnn.message_passing import Block


def random_block(num_sources: int, num_destinations: int, num_edges: int, dtype: torch.dtype) -> Block:
    """A hop whose last two destinations have no edges."""
    generator = torch.Generator().manual_seed(num_sources)
    destinations = torch.randint(0, num_destinations - 2, (num_edges,), generator=generator)
    indptr = torch.zeros(num_destinations + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(destinations, minlength=num_destinations).cumsum(0)
    indices = torch.randint(0, num_sources, (num_edges,), generator=generator, dtype=dtype)
    return Block(num_sources=num_sources, num_destinations=num_destinations, indptr=indptr, indices=indices)


@pytest.fixture(params=["sampled", "whole"])
def block(request: pytest.FixtureRequest) -> Block:
    """A sampled hop and a whole graph, both with destinations that have no edges."""
    if request.param == "sampled":
        return random_block(60, 23, 170, torch.int32)
    return random_block(41, 41, 260, torch.int64)


@pytest.fixture
def generator() -> torch.Generator:
    """Where a test's random numbers come from."""
    return torch.Generator().manual_seed(11)


@pytest.fixture(scope="session")
def dgl() -> ModuleType:
    """DGL, where it is installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: ModuleType = pytest.importorskip("dgl")
        pytest.importorskip("dgl.nn")
    return module


@pytest.fixture
def dgl_graph(dgl: ModuleType, block: Block) -> Any:
    """The block as DGL holds it: a block of its own, or a graph where the block is whole."""
    # DGL 1.1 fails in the backward pass where it has to make up the edge ids itself.
    edges = ("csc", (block.indptr, block.indices.long(), torch.arange(block.num_edges)))
    if block.num_sources == block.num_destinations:
        return dgl.graph(edges, num_nodes=block.num_sources)
    return dgl.create_block(edges, num_src_nodes=block.num_sources, num_dst_nodes=block.num_destinations)


@pytest.fixture
def dgl_layer(dgl: ModuleType) -> Callable[..., Any]:
    """Makes layers of `dgl.nn`; torch's global generator, which it draws from, is put back."""

    def make(name: str, *arguments: object, **options: object) -> Any:
        with torch.random.fork_rng(devices=[]):
            return getattr(dgl.nn, name)(*arguments, **options)

    return make


@pytest.fixture
def assert_same_layer() -> Callable[..., None]:
    """A function that compares outputs, and gradients of input and parameters, of two layers."""

    def compare(
        ours: Callable[[Tensor], Tensor],
        theirs: Callable[[Tensor], Tensor],
        x: Tensor,
        parameters: list[tuple[Tensor, Tensor]],
    ) -> None:
        """Compare.

        Args:
            ours: the layer, a function of x.
            theirs: the reference.
            x: input.
            parameters: pairs (ours, theirs); the values of ours are copied over first.
        """
        with torch.no_grad():
            for own, other in parameters:
                other.copy_(own.view_as(other))
        x_ours, x_theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        result, expected = ours(x_ours), theirs(x_theirs)
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=2e-6)
        upstream = torch.linspace(-1, 1, result.numel()).view_as(result)
        result.backward(upstream)
        expected.backward(upstream)
        for own, other in [(x_ours, x_theirs), *parameters]:
            assert own.grad is not None
            assert other.grad is not None
            torch.testing.assert_close(own.grad, other.grad.view_as(own), rtol=1e-5, atol=1e-5)

    return compare
