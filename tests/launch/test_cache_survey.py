"""windrow.launch.explain_caches: all parts together, against each part's own ranking."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.synthetic import community_graph
from windrow.launch.cache_choice import rank_part
from windrow.launch.explain_caches import survey_caches
from windrow.launch.recipe import Recipe, make_recipe
from windrow.partition.book import PartitionBook

PARTS = 3
ROW_BYTES = 4 * 6


@pytest.fixture(scope="module")
def graph() -> PartitionedGraph:
    made = community_graph(900, 3, seed=5, num_features=6)
    return PartitionedGraph.from_graph(made, PartitionBook.from_assignment(np.arange(900) % 7 // 3, PARTS), 0)


def recipe(memory_rows: float = 1e6, epochs: int = 5, **changes: Any) -> Recipe:
    sections = {
        "graph": {"path": "g.npz"},
        "model": {"num_layers": 2},
        "sampler": {"fanouts": [2, 1]},
        "training": {"batch_size": 30, "epochs": epochs},
        "cache": {"memory_gib": memory_rows * ROW_BYTES / 2**30},
    }
    return make_recipe({"name": "r", "store": "s", **sections, **changes}, source="r.toml", base=Path.cwd())


def test_parts_are_those_of_their_own_ranking(graph: PartitionedGraph) -> None:
    survey = survey_caches(graph, recipe(), [0.5, 0.0, 9.0])
    rankings = [rank_part(graph, part, recipe()) for part in range(PARTS)]
    assert [size.alpha for size in survey.sizes] == [0.5, 0.0, 9.0]
    for size, capacity in zip(survey.sizes, (150, 0, 900), strict=True):
        for part, ranking in enumerate(rankings):
            assert size.asked[part] == pytest.approx(ranking.expected_rows([capacity])[0])
            assert size.kept[part] == len(ranking.kept(capacity))
    assert [size.everything for size in survey.sizes] == [False, False, True]
    assert survey.steps == rankings[0].steps
    assert survey.input_rows == pytest.approx(sum(ranking.input_rows for ranking in rankings))
    assert survey.worthwhile == max(ranking.worthwhile(5) for ranking in rankings)


def test_everything_is_every_row_of_the_others(graph: PartitionedGraph) -> None:
    everything = survey_caches(graph, recipe(), []).everything
    sizes = [graph.book.part_size(part) for part in range(PARTS)]
    assert len(set(sizes)) > 1
    assert everything.kept.tolist() == [900 - size for size in sizes]
    assert everything.everything
    assert everything.alpha == pytest.approx(PARTS * (900 - min(sizes)) / 900)
    assert (everything.asked == 0).all()


def test_the_automatic_size(graph: PartitionedGraph) -> None:
    plenty = survey_caches(graph, recipe(epochs=500), []).automatic
    assert plenty.everything
    short = survey_caches(graph, recipe(memory_rows=100), []).automatic
    assert short.kept.tolist() == [100] * PARTS
    assert short.alpha == pytest.approx(100 * PARTS / 900)
    rankings = [rank_part(graph, part, recipe()) for part in range(PARTS)]
    assert short.asked == pytest.approx(np.stack([one.expected_rows([100])[0] for one in rankings]))
    halved = recipe(memory_rows=100, sampler={"fanouts": [2, 1]}, wire={"vectors": "fp16"})
    assert survey_caches(graph, halved, []).automatic.kept.tolist() == [200] * PARTS
    brief = recipe(epochs=1)
    worth_it = survey_caches(graph, brief, []).automatic
    assert worth_it.kept.tolist() == [one.worthwhile(1) for one in rankings]
    assert not worth_it.everything
    assert (
        survey_caches(graph, dataclasses.replace(brief, cache=recipe(0).cache), []).automatic.kept == 0
    ).all()
