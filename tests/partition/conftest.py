"""Small random graphs for the tests of the partitioners."""

import numpy as np
import pytest

from windrow.partition.refine import symmetric_adjacency


@pytest.fixture(scope="session")
def random_csc():
    """Function (seed, vertices, edges) -> CSC arrays of a directed graph with repeats and self-loops."""

    def make(seed, num_vertices, num_edges):
        generator = np.random.default_rng(seed)
        destinations = np.sort(generator.integers(0, num_vertices, num_edges))
        indptr = np.searchsorted(destinations, np.arange(num_vertices + 1)).astype(np.int64)
        return indptr, generator.integers(0, num_vertices, num_edges).astype(np.int32)

    return make


@pytest.fixture(scope="session")
def random_graph(random_csc):
    """Function (seed, vertices, edges) -> undirected graph."""
    return lambda *sizes: symmetric_adjacency(*random_csc(*sizes))


@pytest.fixture(scope="session")
def ring_of_cliques():
    """Function (cliques, size) -> cliques in a ring, neighbours joined by one edge: the best cuts are known."""

    def make(num_cliques, size):
        sources, destinations = [], []
        for clique in range(num_cliques):
            members = range(clique * size, (clique + 1) * size)
            for one in members:
                for other in members:
                    sources.append(one)
                    destinations.append(other)
            sources.append(clique * size)
            destinations.append((clique + 1) % num_cliques * size + 1)
        order = np.argsort(destinations, kind="stable")
        num_vertices = num_cliques * size
        indptr = np.searchsorted(np.asarray(destinations)[order], np.arange(num_vertices + 1))
        return symmetric_adjacency(indptr, np.asarray(sources, np.int32)[order])

    return make
