"""windrow.partition.vertex_cover: the least cover, against all of them."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.partition.vertex_cover import least_vertex_cover

EDGES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20)


def covers(edges):
    """All covers, as (number of vertices, number of destinations, sources, destinations)."""
    for taken in itertools.chain(*(itertools.combinations(range(6), n) for n in range(7))):
        sources = {source for source, _ in edges} & set(taken)
        destinations = {destination for source, destination in edges if source not in sources}
        yield len(sources) + len(destinations), len(destinations), sorted(sources), sorted(destinations)


@given(EDGES, st.randoms(use_true_random=False))
def test_of_all_least_covers_the_one_with_the_most_sources(edges, random):
    sources, destinations = np.array(edges, np.int64).reshape(-1, 2).T
    cover = least_vertex_cover(100 * sources, 7 - destinations)
    least = min(covers(edges))
    assert (cover.sources // 100).tolist() == least[2]
    assert sorted(7 - cover.destinations) == least[3]
    assert cover.by_source.tolist() == [source in least[2] for source, _ in edges]
    assert all(destination in least[3] for source, destination in edges if source not in least[2])

    random.shuffle(edges)
    shuffled = np.array(edges + edges[:3], np.int64).reshape(-1, 2).T
    again = least_vertex_cover(100 * shuffled[0], 7 - shuffled[1])
    assert again.sources.tolist() == cover.sources.tolist()
    assert again.destinations.tolist() == cover.destinations.tolist()


@pytest.mark.parametrize("size", [1, 1000])
def test_long_paths(size):
    """Alternating paths as long as the graph: every second vertex of a path, of one with an odd number of them."""
    inner = np.repeat(np.arange(size), 2)
    outer = inner + np.arange(2 * size) % 2
    cover = least_vertex_cover(inner, outer)
    assert cover.sources.tolist() == list(range(size))
    assert len(cover.destinations) == 0
    cover = least_vertex_cover(outer, inner)
    assert cover.destinations.tolist() == list(range(size))
    assert not cover.by_source.any()


def test_as_many_as_a_matching_on_a_large_graph():
    """No cover can be smaller than a matching; this one grows by one augmenting path for each source."""
    rng = np.random.default_rng(1)
    sources, destinations = rng.integers(0, 3000, 4000), rng.integers(0, 2000, 4000)
    cover = least_vertex_cover(sources, destinations)
    mates = {}

    def augment(source, seen):
        for destination in destinations[sources == source].tolist():
            if destination not in seen:
                seen.add(destination)
                if destination not in mates or augment(mates[destination], seen):
                    mates[destination] = source
                    return True
        return False

    matched = sum(augment(source, set()) for source in np.unique(sources).tolist())
    assert len(cover.sources) + len(cover.destinations) == matched
    assert np.isin(sources[cover.by_source], cover.sources).all()
    assert np.isin(destinations[~cover.by_source], cover.destinations).all()
