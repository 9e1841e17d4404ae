"""windrow.gnn.epoch_estimate: the longer of two rows; the work of a step is measured."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn

from windrow.caching.selection import CacheOptions
from windrow.comm.link_model import predict_all_reduce
from windrow.comm.links import NetworkDescription, described_links
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.comm.wire import WireOptions
from windrow.comm.world import World
from windrow.gnn.cache_choice import Sampling, seed_order
from windrow.gnn.epoch_estimate import EpochTime, StepWork, estimate_epoch, measure_step_work
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.sampler import SamplerOptions
from windrow.gnn.synthetic import community_graph
from windrow.partition.book import PartitionBook

LINKS = described_links(NetworkDescription(nodes=2, rate="8mbit", latency_us=10.0))
"""A byte takes a microsecond."""

WORK = StepWork(processor_s=0.5, device_s=0.25, gradient_numbers=1000)


def test_a_pipeline_hides_most_of_all_but_the_longest_and_the_sums() -> None:
    time = EpochTime(processor_s=3.0, device_s=4.0, exchange_s=2.0, reduction_s=1.5)
    assert time.seconds(pipelined=False) == 10.5
    assert time.seconds(pipelined=True) == 4.0 + 5.0 / 4 + 1.5
    network_bound = EpochTime(processor_s=3.0, device_s=0.0, exchange_s=7.0, reduction_s=1.5)
    assert network_bound.seconds(pipelined=True) == 7.0 + 3.0 / 4 + 1.5


def test_counts_then_ids_to_the_owner_then_rows_back() -> None:
    asked = np.array([[0.0, 1000.0], [400.0, 0.0]])
    time = estimate_epoch(WORK, LINKS, asked, row_bytes=100, steps=3)
    # Each direction of a card is busy with its own bytes; the longer one counts.
    a_step = (10 + 8) + (10 + 8 * 1000) + (10 + 100 * 1000)
    assert time.exchange_s == pytest.approx(3 * a_step * 1e-6)
    assert time.reduction_s == pytest.approx(3 * predict_all_reduce(LINKS, 4000))
    assert (time.processor_s, time.device_s) == (1.5, 0.75)


def test_rounded_sums_are_exchanged_and_not_added_up_by_the_library() -> None:
    rounded = estimate_epoch(replace(WORK, sums="bf16"), LINKS, None, row_bytes=100, steps=3)
    assert rounded.reduction_s == pytest.approx(3 * predict_all_reduce(LINKS, 2000, encoded=True))
    assert rounded.reduction_s != pytest.approx(3 * predict_all_reduce(LINKS, 2000))


def test_rows_travel_against_the_ids() -> None:
    slow_sender = described_links(NetworkDescription(nodes=3, rate="80mbit", node_rates={"2": "8mbit"}))
    asks_the_slow, asks_a_fast = np.zeros((3, 3)), np.zeros((3, 3))
    asks_the_slow[0, 2] = asks_a_fast[0, 1] = 500.0
    slow, fast = (
        estimate_epoch(WORK, slow_sender, asked, row_bytes=100, steps=1).exchange_s
        for asked in (asks_the_slow, asks_a_fast)
    )
    assert slow - fast == pytest.approx(500 * (100 + 8) * 0.9e-6)


def test_without_an_exchange_not_even_counts_travel() -> None:
    nobody_asks = estimate_epoch(WORK, LINKS, np.zeros((2, 2)), row_bytes=100, steps=4)
    assert nobody_asks.exchange_s == pytest.approx(4 * 18e-6)
    assert estimate_epoch(WORK, LINKS, None, row_bytes=100, steps=4).exchange_s == 0.0


def test_ranks_that_sample_together_ask_for_lists_hop_by_hop() -> None:
    work = replace(WORK, asked_lists=[(0.0, 0.0), (50.0, 600.0)])
    alone = estimate_epoch(WORK, LINKS, None, row_bytes=100, steps=3)
    together = estimate_epoch(work, LINKS, None, row_bytes=100, steps=3)
    # Counts in both hops, ids and neighbours in the second.
    a_step = 2 * (10 + 8) + (10 + 8 * 50) + (10 + 4 * 600)
    assert together.exchange_s - alone.exchange_s == pytest.approx(3 * a_step * 1e-6)


CPU = torch.device("cpu")


def graph() -> PartitionedGraph:
    made = community_graph(300, 3, seed=1, num_features=6)
    assignment = torch.arange(300).numpy() % 3
    return PartitionedGraph.from_graph(made, PartitionBook.from_assignment(assignment, 3), 0)


def sampling(batch_size: int, storage: Literal["fp32", "bf16"] = "fp32") -> Sampling:
    sampler = SamplerOptions(fanouts=(3, 2), storage=storage)
    return Sampling(sampler=sampler, cache=CacheOptions(), wire=WireOptions(), batch_size=batch_size, epochs=1, seed=0)


def test_a_step_takes_time_and_has_gradients() -> None:
    one, options = graph(), ModelOptions(num_layers=2, hidden=8)
    threads = torch.get_num_threads()
    work = measure_step_work(one, options, sampling(30), CPU, threads=1)
    assert torch.get_num_threads() == threads
    assert work.processor_s > 0
    assert work.device_s == 0
    model = build_model(options, in_features=6, out_features=3, seed=0)
    assert work.gradient_numbers == sum(weight.numel() for weight in model.parameters())

    # More parts than seeds in a step: some ranks have none.
    assert measure_step_work(one, options, sampling(2, "bf16"), CPU, threads=1).processor_s > 0


def test_what_ranks_would_ask_is_counted() -> None:
    """By what a sampler of each rank asks for, in every step of an epoch."""
    one, options = graph(), ModelOptions(num_layers=2, hidden=8)
    work = measure_step_work(one, options, sampling(30), CPU, threads=1, together=True)
    assert measure_step_work(one, options, sampling(30), CPU, threads=1).asked_lists == ()
    made = community_graph(300, 3, seed=1, num_features=6)

    def body(world: World) -> float:
        world.meter = Meter()
        view = PartitionedGraph.from_graph(made, one.book, world.rank)
        sampler = view.sampler((3, 2), nn.Module(), seed=0, world=world)
        order = seed_order(view, world.rank, sampling(30))
        for step in range(order.steps_per_epoch):
            sampler.sample(order.seeds(0, step), epoch=0, step=step)
        received = world.meter.totals("neighbours")
        asked = world.meter.totals("neighbours: ids").rows_sent - 2 * 2 * order.steps_per_epoch  # Without counts.
        (_, in_first), (ids, in_second) = work.asked_lists
        assert in_first == 0.0
        assert asked / order.steps_per_epoch == pytest.approx(ids, rel=0.3)
        assert received.rows_received / order.steps_per_epoch == pytest.approx(in_second, rel=0.3)

    Loopback.run(3, body)


def test_ranks_that_share_a_core_take_longer() -> None:
    options = ModelOptions(num_layers=2, hidden=64)
    alone = measure_step_work(graph(), options, sampling(100), CPU, threads=1)
    crowded = measure_step_work(graph(), options, sampling(100), CPU, threads=1, slower=1000.0)
    assert crowded.processor_s > 10 * alone.processor_s
