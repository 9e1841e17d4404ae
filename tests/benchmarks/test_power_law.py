"""Generated graphs: sizes, degrees, communities, features."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.harness.power_law import power_law_communities, power_law_graph
from windrow.comm.errors import DataError, RecipeError
from windrow.gnn.build import edges_of
from windrow.gnn.synthetic import community_graph


def is_simple_and_undirected(graph):
    sources, destinations = (end.long() for end in edges_of(graph.indptr, graph.indices))
    forward = destinations * graph.num_vertices + sources
    backward = sources * graph.num_vertices + destinations
    # Each list ascends, so the keys do.
    ascending = bool((forward.diff() > 0).all())
    return ascending and bool((sources != destinations).all()) and torch.equal(forward, backward.sort().values)


@pytest.mark.parametrize("num_edges", [0, 2, 20_000])
def test_a_power_law_graph_has_exactly_the_edges_asked_for(num_edges):
    graph = power_law_graph(2_000, num_edges, seed=3)
    assert (graph.num_vertices, graph.num_edges) == (2_000, num_edges)
    assert is_simple_and_undirected(graph)


COMMUNITIES = functools.partial(power_law_communities, num_communities=9, mixing=0.2, num_features=4)


@pytest.mark.parametrize("make", [power_law_graph, COMMUNITIES])
def test_a_graph_depends_on_its_arguments_alone(make):
    first = make(500, 4_000, seed=3)
    assert make(500, 4_000, seed=3).fingerprint() == first.fingerprint()
    assert make(500, 4_000, seed=4).fingerprint() != first.fingerprint()


def test_too_many_edges_are_refused():
    with pytest.raises(DataError, match="2000 edges with so skewed degrees do not fit among 20 vertices"):
        power_law_graph(20, 2_000, seed=0)
    with pytest.raises(DataError, match=r"2000 edges .* do not fit among 30 vertices in 3 communities"):
        power_law_communities(30, 2_000, seed=0, num_communities=3, mixing=0.1, num_classes=2, train_share=0.1)
    with pytest.raises(RecipeError, match=r"num_edges 3: use at least 2, and an even number"):
        power_law_graph(20, 3, seed=0)


@pytest.mark.parametrize(
    "graph",
    [
        community_graph(2_000, 4, seed=1),
        power_law_communities(3_000, 30_000, seed=1, num_communities=8, mixing=0.2, num_features=16),
    ],
)
def test_neighbours_tell_more_than_the_vertex_alone(graph):
    """A nearest-centroid classifier is better on neighbour means than on raw features."""
    sources, destinations = edges_of(graph.indptr, graph.indices)
    means = torch.zeros_like(graph.features).index_add_(0, destinations, graph.features[sources.long()])
    means /= graph.indptr.diff().clamp(min=1).unsqueeze(1)

    def accuracy(rows):
        centroids = torch.stack([rows[graph.labels == label].mean(0) for label in range(graph.num_classes)])
        return float((torch.cdist(rows, centroids).argmin(1) == graph.labels).double().mean())

    assert accuracy(graph.features + means) > accuracy(graph.features) + 0.05


@pytest.mark.parametrize(
    "graph",
    [
        community_graph(20_000, 2, seed=2, average_degree=0, num_features=3, signal=0),
        power_law_communities(20_000, 20, seed=2, num_communities=2, mixing=0.1, num_features=3, num_classes=1),
    ],
)
def test_features_are_noise_of_variance_one(graph):
    assert graph.features.dtype == torch.float32
    assert torch.allclose(graph.features.std(0), torch.ones(3), atol=0.03)
    assert abs(float(torch.corrcoef(graph.features.T)[0, 1])) < 0.03


@settings(max_examples=30)
@given(st.integers(30, 400), st.integers(0, 3), st.integers(2, 5), st.floats(0, 1), st.integers(0, 2**32))
def test_a_graph_is_simple_undirected_and_of_the_size_asked_for(num_vertices, degree, num_communities, mixing, seed):
    num_edges = 2 * (num_vertices * degree // 2)
    options = {"num_communities": num_communities, "mixing": mixing, "num_classes": 2, "train_share": 0.1}
    graph = power_law_communities(num_vertices, num_edges, seed=seed, num_features=3, **options)
    graph.validate()
    assert (graph.num_vertices, graph.num_edges) == (num_vertices, num_edges)
    assert is_simple_and_undirected(graph)
    assert graph.features.shape == (num_vertices, 3)


@pytest.mark.parametrize("mixing", [0.0, 0.1, 0.5])
def test_edges_leave_their_community_as_often_as_asked_for(mixing):
    """With as many classes as communities, labels are communities."""
    graph = power_law_communities(
        6_000, 48_000, seed=2, num_communities=6, num_classes=6, mixing=mixing, train_share=0.1
    )
    sources, destinations = edges_of(graph.indptr, graph.indices)
    leave = (graph.labels[sources.long()] != graph.labels[destinations]).double().mean()
    assert abs(float(leave) - mixing) < 0.03
    sizes = graph.labels.bincount()
    assert torch.equal(sizes, sizes.sort(descending=True).values)
    assert sizes[0] > 2 * sizes[-1]


@pytest.mark.parametrize(
    ("graph", "first_rank", "hub"),
    [
        (power_law_graph(20_000, 200_000, seed=3), 20, 50),
        (power_law_communities(50_000, 500_000, seed=3, num_communities=3, num_classes=2, mixing=0.2), 200, 30),
    ],
)
def test_degrees_fall_as_a_power_law(graph, first_rank, hub):
    degrees = graph.indptr.diff().sort(descending=True).values.float()
    assert degrees[0] > hub * degrees.mean()
    ranks = first_rank * torch.tensor([1, 10, 100])
    slopes = degrees[ranks].log().diff() / ranks.float().log().diff()
    assert torch.allclose(slopes, torch.full_like(slopes, -1 / 1.5), atol=0.12)


def test_ids_tell_nothing():
    graph = power_law_communities(5_000, 50_000, seed=3, num_communities=20, mixing=0.1)
    ids = np.arange(5_000)
    for what in (graph.indptr.diff(), graph.labels, (graph.indptr.diff() > 30).long()):
        assert abs(np.corrcoef(ids, what.numpy())[0, 1]) < 0.05


def test_splits_have_the_share_asked_for():
    graph = power_law_communities(2_000, 10_000, seed=1, num_communities=9, mixing=0.2, train_share=0.05)
    assert [len(ids) for ids in (graph.train_ids, graph.validation_ids, graph.test_ids)] == [100, 100, 100]
    assert torch.equal(graph.train_ids, graph.train_ids.sort().values)
    assert graph.num_classes == 8
    assert graph.features is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_vertices": 1}, "num_vertices 1"),
        ({"num_edges": 3}, "num_edges 3: use an even number"),
        ({"num_communities": 0}, "num_communities 0"),
        ({"num_communities": 1, "num_classes": 1}, "one community has no others"),
        ({"mixing": 1.5}, r"mixing 1\.5"),
        ({"exponent": 2.0}, r"exponent 2\.0"),
        ({"num_features": -1}, "num_features -1"),
        ({"num_classes": 9}, "num_classes 9"),
        ({"train_share": 0.5}, r"train_share 0\.5"),
        ({"train_share": 0.0}, r"train_share 0\.0"),
    ],
)
def test_bad_arguments_of_communities_are_refused(changed, message):
    arguments = {"num_vertices": 100, "num_edges": 200, "seed": 0, "num_communities": 8, "mixing": 0.1}
    with pytest.raises(RecipeError, match=message):
        power_law_communities(**(arguments | changed))  # type: ignore[arg-type]


def test_with_a_decay_edges_that_leave_a_community_end_nearby():
    """Distances between communities on the ring, in shares of it, of the edges that leave one."""

    def far_share(decay):
        communities = 60
        options = {"num_communities": communities, "num_classes": communities, "mixing": 0.5, "decay": decay}
        graph = power_law_communities(6_000, 60_000, seed=2, **options)
        ends = graph.labels[graph.indices.long()]
        starts = graph.labels.repeat_interleave(graph.indptr.diff())
        leaving = ends != starts
        apart = (ends - starts).abs()[leaving]
        apart = torch.minimum(apart, communities - apart)
        return float((apart > communities // 6).double().mean())

    assert far_share(None) > 0.6
    # With density d ** -2, half of the edges end within twice the distance at which they begin to leave.
    assert far_share(2.0) < 0.25
