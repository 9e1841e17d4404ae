"""windrow.gnn.simulation: for few ranks it is what `explain` works out, and pieces add up for many."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from windrow.caching.selection import CacheOptions, automatic_capacities, cache_capacity
from windrow.comm.errors import DataError, RecipeError
from windrow.comm.links import Links, NetworkDescription, described_links
from windrow.comm.wire import WireOptions
from windrow.gnn.cache_choice import Sampling, rank_part
from windrow.gnn.epoch_estimate import StepWork, estimate_epoch
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.sampler import SamplerOptions
from windrow.gnn.simulation import RANKS_LOOKED_AT, describe_scales, simulate
from windrow.gnn.synthetic import community_graph
from windrow.partition import PartitionOptions

WORK = StepWork(processor_s=0.02, device_s=0.03, gradient_numbers=1000)
GRAPH = community_graph(800, 4, seed=5, num_features=6, homophily=0.6)
SAMPLING = Sampling(
    sampler=SamplerOptions(fanouts=(3, 2)),
    cache=CacheOptions(alpha=0.1),
    wire=WireOptions(),
    batch_size=80,
    epochs=5,
    seed=0,
)
RANDOM = PartitionOptions(method="random")


def network(ranks: int) -> Links:
    return described_links(NetworkDescription(nodes=ranks, rate="100mbit", latency_us=10.0))


def simulated(ranks: int, *, links: Links | None = None, **options: Any) -> Any:
    views = list[PartitionedGraph]()

    def measure(view: PartitionedGraph) -> StepWork:
        views.append(view)
        return WORK

    sampling = options.pop("sampling", SAMPLING)
    found = simulate(GRAPH, sampling, ranks, links or network(ranks), measure, partition=RANDOM, **options)
    (view,) = views
    assert view.book.num_parts == ranks
    return found, view


def test_ranks_of_one_host_ask_each_other_for_nothing() -> None:
    one, two = (
        described_links(NetworkDescription(nodes=nodes, ranks_per_node=4 // nodes, rate="100mbit", latency_us=10.0))
        for nodes in (1, 2)
    )
    sampling = replace(SAMPLING, cache=CacheOptions(alpha=0.1, shared_memory=False))
    apart, shared = (simulated(4, links=two, sampling=chosen)[0] for chosen in (sampling, SAMPLING))
    assert 0 < shared.remote_rows < apart.remote_rows
    nothing, _ = simulated(4, links=one)
    assert (nothing.remote_rows, nothing.time.exchange_s) == (0, 0)


@pytest.mark.parametrize("alpha", [0.0, 0.1, "auto"])
def test_few_ranks_are_all_looked_at(alpha: Any) -> None:
    sampling = replace(SAMPLING, cache=CacheOptions(alpha=alpha))
    found, view = simulated(4, sampling=sampling)
    rankings = [rank_part(view, part, sampling) for part in range(4)]
    sizes = (
        [cache_capacity(alpha, 800, 4)] * 4
        if alpha != "auto"
        else automatic_capacities(
            [one.worthwhile(sampling.epochs) for one in rankings],
            [one.num_remote for one in rankings],
            24,
            sampling.cache.memory_gib,
        )
    )
    asked = np.stack([one.expected_rows([size])[0] for one, size in zip(rankings, sizes, strict=True)])
    steps = rankings[0].steps
    assert found.steps == steps
    assert found.remote_rows == pytest.approx(asked.sum() / 4 / steps)
    assert found.input_rows == pytest.approx(np.mean([one.input_rows for one in rankings]) / steps)
    assert found.memory_bytes == 24 * (
        200 + max(len(one.kept(size)) for one, size in zip(rankings, sizes, strict=True))
    )
    time = estimate_epoch(WORK, network(4), asked / steps, 24, steps=steps)
    assert found.seconds == pytest.approx(time.seconds(pipelined=True))
    slower, _ = simulated(4, sampling=sampling, pipelined=False)
    assert slower.seconds == pytest.approx(time.seconds(pipelined=False))


def test_of_many_ranks_some_stand_for_all() -> None:
    ranks = 4 * RANKS_LOOKED_AT
    found, view = simulated(ranks)
    everyone = [
        rank_part(view, part, SAMPLING).expected_rows([cache_capacity(0.1, 800, ranks)]).sum() for part in range(ranks)
    ]
    assert found.remote_rows == pytest.approx(np.mean(everyone) / found.steps, rel=0.15)
    assert found.received_bytes == 24 * found.remote_rows


def test_one_rank_asks_nobody() -> None:
    found, _ = simulated(1)
    assert (found.remote_rows, found.time.exchange_s, found.time.reduction_s) == (0, 0, 0)
    # A pipeline hides three quarters of what the processor does behind the device.
    assert found.seconds == pytest.approx(found.steps * (0.03 + 0.02 / 4))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(RecipeError, match="3 ranks on a network of 2"):
        simulate(GRAPH, SAMPLING, 3, network(2), lambda _: WORK, partition=RANDOM)
    with pytest.raises(RecipeError, match=r"90 ranks, but .* a batch_size of 80"):
        simulate(GRAPH, SAMPLING, 90, network(90), lambda _: WORK, partition=RANDOM)
    with pytest.raises(DataError, match="the graph has no features"):
        simulate(replace(GRAPH, features=None), SAMPLING, 2, network(2), lambda _: WORK, partition=RANDOM)


def test_the_table() -> None:
    lines = describe_scales([simulated(ranks)[0] for ranks in (2, 4)]).splitlines()
    assert lines[0].split()[:3] == ["ranks", "steps", "rows"]
    assert [line.split()[0] for line in lines[2:]] == ["2", "4"]
