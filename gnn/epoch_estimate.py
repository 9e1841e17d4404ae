"""How long an epoch of minibatch training on a graph takes, from the rows that travel, the network, and a step's work.

A step needs the processor (sampling, gathering rows), the device that computes (where that is a CPU: the same cores),
and the network. One after another, as with ``pipeline.depth = 0``, their seconds add up. A pipeline does for later
steps whatever it can while one is computed: three quarters of the shorter row, since minibatches differ, so that now
the one is waited for and now the other. The sums of gradients stay: the next step needs them, and nobody has them
before the backward pass::

    no pipeline    | sample, gather |  counts, ids, rows  | compute | sums |    seconds: the sum
    pipeline       | sample, gather, compute |
                   | counts, ids, rows         | sums |                         seconds: the longer row, a quarter of
                                                                                the shorter, and sums

A step's work is measured without its network: a few minibatches of the real graph, with made-up rows. Where ranks
sample together (`windrow.gnn.remote_lists`), what they would ask for these minibatches is counted.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.link_model import predict_all_to_all
from windrow.comm.links import Links
from windrow.comm.wire import SumsName, make_codec
from windrow.comm.wire_savings import predict_sum
from windrow.gnn.cache_choice import Sampling, seed_order
from windrow.gnn.message_passing import Minibatch
from windrow.gnn.models import GNN, ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.task import loss_sum
from windrow.training.dropout import DropoutContext

__all__ = ["ID_BYTES", "EpochTime", "StepWork", "estimate_epoch", "measure_step_work"]

ID_BYTES = 8
"""Of one id on the wire."""

UNHIDDEN = 0.25
"""Of what a pipeline does beside what takes longest, the share that is waited for all the same. Epochs on 1 to 8
emulated hosts at 50 Mbit/s, with and without a cache, had 0.11 to 0.40 (`benchmarks/simulator.py`, commit 87d5b94)."""

NEIGHBOUR_BYTES, WEIGHT_BYTES = 4, 4
"""Of one that another rank has drawn, and of the weight of its edge."""

COUNT_BYTES = 8
"""Of the number of ids, which each rank tells each before they travel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWork:
    """What a rank does in one step, without the network."""

    processor_s: float
    """Seconds of sampling and gathering rows; where a CPU computes the model, of that as well."""
    device_s: float
    """Seconds of forward, backward and update on a GPU; 0 where a CPU does them."""
    gradient_numbers: int
    """Gradients that are summed over the ranks."""
    sums: SumsName = "fp32"
    """How they travel."""
    neighbour_bytes: int = NEIGHBOUR_BYTES
    """Of a neighbour that another rank has drawn, and of what the model needs of its edge."""
    asked_lists: Sequence[tuple[float, float]] = ()
    """Where ranks sample together, the vertices that a rank asks others about at each hop, and the neighbours that
    these send."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochTime:
    """Where an epoch's seconds go, without evaluation; the first two as in `StepWork`."""

    processor_s: float
    device_s: float
    exchange_s: float
    """Counts, ids and rows on the network, and what ranks that sample together ask."""
    reduction_s: float
    """Sums of gradients on the network."""

    def seconds(self, *, pipelined: bool) -> float:
        """Of the epoch; pipelined: the network works while minibatches are sampled and computed."""
        parts = (self.processor_s, self.device_s, self.exchange_s)
        longest = max(parts)
        return self.reduction_s + longest + (sum(parts) - longest) * (UNHIDDEN if pipelined else 1.0)


def estimate_epoch(
    work: StepWork, links: Links, asked: npt.NDArray[np.float64] | None, row_bytes: int, *, steps: int
) -> EpochTime:
    """Predict an epoch of so many steps from its mean step.

    Args:
        work: of a step.
        links: of the network.
        asked: float64 [n, n], rows that each rank asks each for in a step; None where every rank has every row, so
            that there is no exchange. Where merely nobody asks, counts still travel, since ranks cannot know.
        row_bytes: of one row on the wire.
        steps: in an epoch.
    """
    exchange = 0.0
    counts = np.full((links.size, links.size), float(COUNT_BYTES))
    for per_rank in work.asked_lists:
        ids, neighbours = (np.full_like(counts, of_rank / max(1, links.size - 1)) for of_rank in per_rank)
        exchange += predict_all_to_all(links, counts) + predict_all_to_all(links, ID_BYTES * ids)
        exchange += predict_all_to_all(links, work.neighbour_bytes * neighbours)
    if asked is not None:
        exchange += (
            predict_all_to_all(links, counts)
            + predict_all_to_all(links, ID_BYTES * asked)
            + predict_all_to_all(links, row_bytes * asked.T)
        )
    return EpochTime(
        processor_s=steps * work.processor_s,
        device_s=steps * work.device_s,
        exchange_s=steps * exchange,
        reduction_s=steps * predict_sum(links, work.gradient_numbers, work.sums),
    )


MINIBATCHES = 8
"""That are measured, spread over parts and steps."""

ENOUGH_S = 10.0
"""Seconds of measuring after which no further minibatch is begun."""

MADE_UP_ROWS = 1 << 16
"""Rows that are gathered from: as many as hardly fit into a processor's cache, few enough to make in no time."""


def measure_step_work(
    graph: PartitionedGraph,
    model: ModelOptions,
    sampling: Sampling,
    device: torch.device,
    *,
    threads: int,
    slower: float = 1.0,
    together: bool = False,
) -> StepWork:
    """Run a few minibatches: sample, gather, forward, backward, update. Nothing is learnt or kept.

    Args:
        graph: its topology, training vertices and labels; of its features only shape and dtype count.
        model: what is computed.
        sampling: how minibatches are made, and how gradients travel.
        device: where the model computes.
        threads: of a rank for computing.
        slower: how much longer the processor takes where ranks compete for it.
        together: whether ranks sample together, each from the lists of its own part.

    Returns:
        The median over the minibatches, after one that does not count; of what they ask for the mean.
    """
    columns, outputs = graph.num_features, graph.num_outputs
    built = build_model(model, in_features=columns, out_features=outputs, seed=sampling.seed, types=graph.types)
    gradient_numbers = sum(weight.numel() for weight in built.parameters() if weight.requires_grad)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        seconds, asked = zip(*list(_run_minibatches(graph, built.to(device), sampling, device))[1:], strict=True)
    finally:
        torch.set_num_threads(before)
    processor, on_device = (median(column) for column in zip(*seconds, strict=True))
    if device.type == "cpu":
        processor, on_device = processor + on_device, 0.0
    return StepWork(
        processor_s=slower * processor,
        device_s=on_device,
        gradient_numbers=gradient_numbers,
        sums=sampling.wire.sums,
        neighbour_bytes=NEIGHBOUR_BYTES + WEIGHT_BYTES * built.needs_edge_weights,
        asked_lists=np.mean(asked, 0).tolist() if together else (),
    )


def _run_minibatches(
    graph: PartitionedGraph, model: GNN, sampling: Sampling, device: torch.device
) -> Iterator[tuple[tuple[float, float], list[tuple[int, int]]]]:
    """Do steps as training does them: seconds of sampling and gathering, and of computing; and see `_asked_lists`."""
    optimizer = torch.optim.AdamW(model.parameters())
    sampler = graph.sampler(sampling.sampler.fanouts, model, seed=sampling.seed)
    generator = torch.Generator().manual_seed(0)
    made_up = torch.randn(min(MADE_UP_ROWS, graph.num_vertices), graph.num_features, generator=generator)
    made_up = make_codec(sampling.sampler.storage).encode(made_up)
    orders = [seed_order(graph, part, sampling) for part in range(graph.book.num_parts)]
    first = time.perf_counter()
    for index in range(MINIBATCHES + 1):
        order = orders[index % len(orders)]
        step = index * max(1, order.steps_per_epoch // MINIBATCHES) % order.steps_per_epoch
        seeds = order.seeds(0, step)
        begun = _clocks(device)
        minibatch = sampler.sample(seeds, epoch=0, step=step)
        rows = made_up[minibatch.input_ids % len(made_up)].to(device, torch.float32)
        blocks = minibatch.to(device).blocks
        gathered = _clocks(device)
        if len(seeds) > 0:
            row_ids = graph.original_ids[minibatch.input_ids].to(device)
            dropout = DropoutContext(seed=sampling.seed, epoch=0, step=step, row_ids=row_ids)
            loss = loss_sum(graph.task, model(blocks, rows, dropout), graph.labels_of(seeds).to(device))
            optimizer.zero_grad()
            (loss / order.global_batch_size(0, step)).backward()
            optimizer.step()
        # On a CPU the lesser of the two leaves out when other programs of this machine had the cores.
        seconds = float((gathered - begun).min()), float((_clocks(device) - gathered).min())
        yield seconds, _asked_lists(minibatch, *graph.book.part_range(index % len(orders)))
        if index > 1 and time.perf_counter() - first > ENOUGH_S:
            break


def _asked_lists(minibatch: Minibatch, start: int, stop: int) -> list[tuple[int, int]]:
    """At each hop, the new vertices outside of a part, and the neighbours that are drawn for all such so far."""
    is_remote = (minibatch.input_ids < start) | (minibatch.input_ids >= stop)
    found, known = [], 0
    for block in reversed(minibatch.blocks):
        drawn = block.indptr.diff()[is_remote[: block.num_dst]].sum()
        found.append((int(is_remote[known : block.num_dst].sum()), int(drawn)))
        known = block.num_dst
    return found


def _clocks(device: torch.device) -> npt.NDArray[np.float64]:
    """Seconds that went by, and on a CPU those that all threads of this process have computed."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return np.array([time.perf_counter()])
    return np.array([time.perf_counter(), time.process_time()])
