"""windrow.launch.explain_caches: curves fall, marks are where they belong, times follow the network."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windrow.comm.links import Links, NetworkDescription, described_links
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.synthetic import community_graph
from windrow.launch.cache_choice import rank_part
from windrow.launch.epoch_estimate import StepWork, estimate_epoch
from windrow.launch.explain_caches import Explanation, explain
from windrow.launch.recipe import Recipe, make_recipe
from windrow.partition.book import PartitionBook

PARTS = 4
ROW_BYTES = 4 * 6
WORK = StepWork(processor_s=0.02, device_s=0.0, gradient_bytes=40)


@pytest.fixture(scope="module")
def graph() -> PartitionedGraph:
    made = community_graph(800, 4, seed=5, num_features=6, homophily=0.6)
    return PartitionedGraph.from_graph(made, PartitionBook.from_assignment(np.arange(800) % PARTS, PARTS), 0)


def recipe(memory_rows: float = 100, **changes: Any) -> Recipe:
    sections = {
        "graph": {"path": "g.npz"},
        "model": {"num_layers": 2},
        "sampler": {"fanouts": [3, 2]},
        "training": {"batch_size": 80, "epochs": 5},
        "cache": {"memory_gib": memory_rows * ROW_BYTES / 2**30},
    }
    return make_recipe({"name": "r", "store": "s", **sections, **changes}, source="r.toml", base=Path.cwd())


def network(rate: str) -> Links:
    return described_links(NetworkDescription(nodes=PARTS, rate=rate, latency_us=1.0))


def check(found: Explanation) -> None:
    alphas = [one.alpha for one in found.sizes]
    assert alphas == sorted(set(alphas))
    for sizes in (found.sizes, found.curve):
        assert (np.diff([one.remote_rows for one in sizes]) <= 0).all()
        assert (np.diff([one.kept_rows for one in sizes]) >= 0).all()
    assert {found.knee, found.automatic, found.everything, found.chosen} <= set(found.sizes)


def test_rows_bytes_and_memory_without_a_network(graph: PartitionedGraph) -> None:
    found = explain(graph, recipe(), alphas=(0.0, 0.25, 50.0))
    check(found)
    assert 50.0 not in [one.alpha for one in found.sizes]
    quarter = next(one for one in found.sizes if one.alpha == 0.25)
    expected = sum(rank_part(graph, part, recipe()).expected_rows([50]).sum() for part in range(PARTS))
    assert quarter.remote_rows == pytest.approx(expected)
    assert quarter.remote_bytes == pytest.approx(expected * (8 + ROW_BYTES))
    assert (quarter.kept_rows, quarter.memory_bytes) == (50, 50 * ROW_BYTES)
    assert all(one.time is None for one in found.sizes)
    assert (found.everything.alpha, found.everything.remote_rows) == (PARTS - 1, 0)
    assert found.automatic.kept_rows == 100
    assert found.chosen is found.automatic
    assert 0 < found.knee.alpha < found.everything.alpha


def test_short_wires_make_short_copies(graph: PartitionedGraph) -> None:
    found = explain(graph, recipe(sampler={"fanouts": [3, 2]}, wire={"vectors": "fp16"}), alphas=(0.0,))
    assert (found.row_bytes, found.wire_row_bytes) == (ROW_BYTES, ROW_BYTES // 2)
    assert (found.automatic.kept_rows, found.automatic.memory_bytes) == (200, 100 * ROW_BYTES)
    assert found.sizes[0].remote_bytes == pytest.approx(found.sizes[0].remote_rows * (8 + ROW_BYTES // 2))


def test_the_recipe_may_have_chosen(graph: PartitionedGraph) -> None:
    found = explain(graph, recipe(cache={"alpha": 0.77, "policy": "degree"}), alphas=(0.0,))
    check(found)
    assert (found.chosen.alpha, found.chosen.kept_rows) == (0.77, 154)
    assert found.automatic.alpha > 0.77


def test_the_knee_is_where_the_network_is_hidden(graph: PartitionedGraph) -> None:
    asked = recipe()
    knees = []
    for rate in ("250kbit", "1mbit", "10gbit"):
        found = explain(graph, asked, alphas=(0.0,), links=network(rate), work=WORK)
        check(found)
        seconds = [one.time.seconds(pipelined=True) for one in found.curve if one.time is not None]
        assert found.knee.time is not None
        at_knee = found.knee.time.seconds(pipelined=True)
        assert at_knee <= 1.01 * min(seconds)
        assert all(other > 1.01 * min(seconds) for other in seconds[: seconds.index(at_knee)])
        knees.append(found.knee.alpha)
    assert knees[0] > knees[1] > knees[2] == 0


def test_time_is_that_of_the_rows_of_a_step(graph: PartitionedGraph) -> None:
    links = network("10mbit")
    found = explain(graph, recipe(), alphas=(0.0,), links=links, work=WORK)
    asked = np.stack([rank_part(graph, part, recipe()).expected_rows([0])[0] for part in range(PARTS)])
    expected = estimate_epoch(WORK, links, asked / found.steps, ROW_BYTES, steps=found.steps)
    time = found.sizes[0].time
    assert time is not None
    assert time.exchange_s == pytest.approx(expected.exchange_s)
    assert found.everything.time is not None
    assert found.everything.time.exchange_s == 0


def test_without_a_pipeline_every_row_counts(graph: PartitionedGraph) -> None:
    links = network("4mbit")
    with_one = explain(graph, recipe(), links=links, work=WORK)
    without = explain(graph, recipe(pipeline={"depth": 0}), links=links, work=WORK)
    assert without.knee.alpha > with_one.knee.alpha


def test_numbers_go_into_json(graph: PartitionedGraph) -> None:
    found = explain(graph, recipe(), links=network("4mbit"), work=WORK)
    back = json.loads(json.dumps(found.to_dict()))
    assert back["sizes"][0]["remote_rows"] == found.sizes[0].remote_rows
    assert found.knee.time is not None
    assert back["knee"]["time"]["exchange_s"] == found.knee.time.exchange_s
