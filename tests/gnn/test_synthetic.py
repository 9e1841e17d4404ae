"""Generated communities: sizes, labels, homophily."""

import pytest

from windrow.comm.errors import RecipeError
from windrow.gnn.build import edges_of
from windrow.gnn.synthetic import community_graph


@pytest.mark.parametrize(
    ("task", "communities", "num_classes"),
    [("single-label", 4, 4), ("binary", 2, 2), ("multi-label", 4, 4), ("regression", 4, 1)],
)
def test_a_community_graph_is_ready_for_training(task, communities, num_classes):
    with pytest.raises(RecipeError, match=r"num_classes 1, .* use at least as many vertices as classes"):
        community_graph(10, 1, seed=0)
    graph = community_graph(401, communities, seed=1, task=task)
    graph.validate()
    assert (graph.task, graph.num_classes) == (task, num_classes)
    sources, destinations = edges_of(graph.indptr, graph.indices)
    assert bool((sources != destinations).all())
    assert 8 < graph.num_edges / 401 < 10
    assert len(graph.train_ids) + len(graph.validation_ids) + len(graph.test_ids) == 401


def test_homophily_is_as_asked_for():
    graph = community_graph(2_000, 4, seed=1, homophily=0.6)
    sources, destinations = edges_of(graph.indptr, graph.indices)
    same = (graph.labels[sources.long()] == graph.labels[destinations]).double().mean()
    assert abs(float(same) - (0.6 + 0.4 / 4)) < 0.02
