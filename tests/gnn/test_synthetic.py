"""Generated graphs."""

import pytest
import torch

from windrow.comm.errors import DataError, RecipeError
from windrow.gnn.build import edges_of
from windrow.gnn.graph import Graph
from windrow.gnn.synthetic import community_graph, power_law_graph, random_features
from windrow.gnn.vertex_data import SplitOptions


def is_simple_and_undirected(graph: Graph) -> bool:
    sources, destinations = (end.long() for end in edges_of(graph.indptr, graph.indices))
    forward = destinations * graph.num_vertices + sources
    backward = sources * graph.num_vertices + destinations
    no_loops = bool((sources != destinations).all())
    return (
        no_loops
        and torch.equal(forward.unique(), backward.unique())
        and len(forward.unique()) == len(forward)
    )


@pytest.mark.parametrize("num_edges", [0, 2, 20_000])
def test_a_power_law_graph_has_exactly_the_edges_asked_for(num_edges: int) -> None:
    graph = power_law_graph(2_000, num_edges, seed=3)
    assert (graph.num_vertices, graph.num_edges) == (2_000, num_edges)
    assert is_simple_and_undirected(graph)


def test_degrees_fall_as_a_power_law() -> None:
    graph = power_law_graph(20_000, 200_000, seed=3)
    degrees = graph.in_degrees.sort(descending=True).values.float()
    assert degrees[0] > 50 * degrees.mean()
    ranks = torch.tensor([20, 200, 2_000])
    slopes = degrees[ranks].log().diff() / ranks.float().log().diff()
    assert torch.allclose(slopes, torch.full_like(slopes, -1 / 1.5), atol=0.1)


def test_a_power_law_graph_depends_on_its_arguments_alone() -> None:
    first = power_law_graph(500, 4_000, seed=3, num_features=4)
    assert power_law_graph(500, 4_000, seed=3, num_features=4).fingerprint() == first.fingerprint()
    assert power_law_graph(500, 4_000, seed=4, num_features=4).fingerprint() != first.fingerprint()
    assert first.features.shape == (500, 4)


def test_too_many_edges_are_refused() -> None:
    with pytest.raises(DataError, match="2000 edges with so skewed degrees do not fit among 20 vertices"):
        power_law_graph(20, 2_000, seed=0)
    with pytest.raises(RecipeError, match=r"num_edges 3, .*: use at least 2, an even number"):
        power_law_graph(20, 3, seed=0)


@pytest.mark.parametrize(("task", "num_classes"), [("single-label", 4), ("binary", 2), ("multi-label", 4)])
def test_a_community_graph_is_ready_for_training(task: str, num_classes: int) -> None:
    graph = community_graph(401, num_classes, seed=1, task=task)
    graph.validate()
    assert (graph.task, graph.num_classes) == (task, num_classes)
    assert is_simple_and_undirected(graph)
    assert 8 < graph.num_edges / 401 < 10
    assert len(graph.train_ids) + len(graph.validation_ids) + len(graph.test_ids) == 401


def test_homophily_is_as_asked_for() -> None:
    graph = community_graph(2_000, 4, seed=1, homophily=0.6)
    sources, destinations = edges_of(graph.indptr, graph.indices)
    same = (graph.labels[sources.long()] == graph.labels[destinations]).double().mean()
    assert abs(float(same) - (0.6 + 0.4 / 4)) < 0.02


def test_neighbours_tell_more_than_the_vertex_alone() -> None:
    """A nearest-centroid classifier is better on neighbour means than on raw features."""
    graph = community_graph(2_000, 4, seed=1)
    sources, destinations = edges_of(graph.indptr, graph.indices)
    means = torch.zeros_like(graph.features).index_add_(0, destinations, graph.features[sources.long()])
    means /= graph.in_degrees.clamp(min=1).unsqueeze(1)

    def accuracy(rows: torch.Tensor) -> float:
        train, test = graph.train_ids, graph.test_ids
        centroids = torch.stack([rows[train][graph.labels[train] == label].mean(0) for label in range(4)])
        return float((torch.cdist(rows[test], centroids).argmin(1) == graph.labels[test]).double().mean())

    assert accuracy(graph.features + means) > accuracy(graph.features) + 0.05
    assert accuracy(graph.features + means) > 0.85


def test_splits_follow_the_options() -> None:
    split = SplitOptions(train_per_class=5, validation_per_class=7)
    graph = community_graph(100, 4, seed=1, split=split)
    assert (len(graph.train_ids), len(graph.validation_ids)) == (20, 28)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"num_classes 1, .* use at least as many vertices as classes"):
        community_graph(10, 1, seed=0)


def test_random_features_are_standard_normal() -> None:
    features = random_features(20_000, 3, seed=2)
    assert features.dtype == torch.float32
    assert torch.allclose(features.mean(0), torch.zeros(3), atol=0.03)
    assert torch.allclose(features.std(0), torch.ones(3), atol=0.03)
    assert abs(float(torch.corrcoef(features.T)[0, 1])) < 0.03
