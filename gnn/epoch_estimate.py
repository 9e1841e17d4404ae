"""How long an epoch of minibatch training on a graph takes, from the rows that travel, the network, and a step's work.

A step needs the processor (sampling, gathering rows), the device that computes (where that is a CPU: the same cores),
and the network. One after another, as with ``pipeline.depth = 0``, their seconds add up. A pipeline does for later
steps whatever it can while one is computed. The sums of gradients stay: the next step needs them, and nobody has them
before the backward pass::

    no pipeline    | sample, gather |  counts, ids, rows  | compute | sums |          seconds: the sum
    pipeline       | sample, gather, compute |
                   | counts, ids, rows         | sums |                               seconds: the longer row, and sums

A step's work is measured without its network: a few minibatches of the real graph, with made-up rows.
"""

import time
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.link_model import predict_all_reduce, predict_all_to_all
from windrow.comm.links import Links
from windrow.comm.wire import make_codec
from windrow.gnn.cache_choice import Sampling, seed_order
from windrow.gnn.models import GNN, ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.task import loss_sum
from windrow.training.dropout import DropoutContext

__all__ = ["ID_BYTES", "EpochTime", "StepWork", "estimate_epoch", "measure_step_work"]

ID_BYTES = 8
"""Of one id on the wire."""

COUNT_BYTES = 8
"""Of the number of ids, which each rank tells each before they travel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWork:
    """What a rank does in one step, without the network."""

    processor_s: float
    """Seconds of sampling and gathering rows; where a CPU computes the model, of that as well."""
    device_s: float
    """Seconds of forward, backward and update on a GPU; 0 where a CPU does them."""
    gradient_bytes: int
    """Of the gradients that are summed over the ranks, as they travel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochTime:
    """Where an epoch's seconds go, without evaluation."""

    processor_s: float
    """Sampling and gathering; on a CPU the model as well."""
    device_s: float
    """The model on a GPU."""
    exchange_s: float
    """Counts, ids and rows on the network."""
    reduction_s: float
    """Sums of gradients on the network."""

    def seconds(self, *, pipelined: bool) -> float:
        """Of the epoch; pipelined: the network works while minibatches are sampled and computed."""
        parts = (self.processor_s, self.device_s, self.exchange_s)
        return self.reduction_s + (max(parts) if pipelined else sum(parts))


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
    if asked is not None:
        counts = np.full((links.size, links.size), float(COUNT_BYTES))
        exchange = (
            predict_all_to_all(links, counts)
            + predict_all_to_all(links, ID_BYTES * asked)
            + predict_all_to_all(links, row_bytes * asked.T)
        )
    return EpochTime(
        processor_s=steps * work.processor_s,
        device_s=steps * work.device_s,
        exchange_s=steps * exchange,
        reduction_s=steps * predict_all_reduce(links, work.gradient_bytes),
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
) -> StepWork:
    """Run a few minibatches: sample, gather, forward, backward, update. Nothing is learnt or kept.

    Args:
        graph: its topology, training vertices and labels; of its features only shape and dtype count.
        model: what is computed.
        sampling: how minibatches are made, and how gradients travel.
        device: where the model computes.
        threads: of a rank for computing.
        slower: how much longer the processor takes where ranks compete for it.

    Returns:
        The median over the minibatches, after one that does not count.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        bench = _Bench(graph, model, sampling, device)
        parts = graph.book.num_parts
        orders = [seed_order(graph, part, sampling) for part in range(parts)]
        begun = time.perf_counter()
        for index in range(MINIBATCHES + 1):
            order = orders[index % parts]
            step = index * max(1, order.steps_per_epoch // MINIBATCHES) % order.steps_per_epoch
            share = 1 / order.global_batch_size(0, step)
            bench.run(order.seeds(0, step), step, share=share, counts=index > 0)
            if index > 1 and time.perf_counter() - begun > ENOUGH_S:
                break
        return bench.result(slower)
    finally:
        torch.set_num_threads(before)


@dataclass(eq=False)
class _Bench:
    """Where minibatches are run, and how long they took."""

    graph: PartitionedGraph
    options: ModelOptions
    sampling: Sampling
    device: torch.device
    processor_s: list[float] = field(default_factory=list)
    device_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        width = self.graph.features.shape[1]
        self._model: GNN = build_model(
            self.options, in_features=width, out_features=self.graph.num_outputs, seed=self.sampling.seed
        ).to(self.device)
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._sampler = self.graph.sampler(self.sampling.sampler.fanouts, self._model, seed=self.sampling.seed)
        generator = torch.Generator().manual_seed(0)
        made_up = torch.randn(min(MADE_UP_ROWS, self.graph.num_vertices), width, generator=generator)
        self._rows = make_codec(self.sampling.sampler.storage).encode(made_up)

    def run(self, seeds: Tensor, step: int, *, share: float, counts: bool) -> None:
        """Do a step as training does it; `share` of the loss is what its gradients are of."""
        begun = self._now()
        minibatch = self._sampler.sample(seeds, epoch=0, step=step)
        rows = self._rows[minibatch.input_ids % len(self._rows)].to(self.device, torch.float32)
        blocks = minibatch.to(self.device).blocks
        gathered = self._now()
        if len(seeds) > 0:
            row_ids = self.graph.original_ids[minibatch.input_ids].to(self.device)
            dropout = DropoutContext(seed=self.sampling.seed, epoch=0, step=step, row_ids=row_ids)
            logits = self._model(blocks, rows, dropout)
            loss = loss_sum(self.graph.task, logits, self.graph.labels_of(seeds).to(self.device))
            self._optimizer.zero_grad()
            (loss * share).backward()
            self._optimizer.step()
        if counts:
            self.processor_s.append(self._between(begun, gathered))
            self.device_s.append(self._between(gathered, self._now()))

    def result(self, slower: float) -> StepWork:
        """Medians of what counted."""
        processor = slower * median(self.processor_s)
        device = median(self.device_s)
        codec = make_codec(self.sampling.wire.sums)
        gradient_bytes = sum(
            codec.wire_row_bytes(weight.shape, weight.dtype)
            for weight in self._model.parameters()
            if weight.requires_grad
        )
        if self.device.type == "cpu":
            processor, device = processor + slower * device, 0.0
        return StepWork(processor_s=processor, device_s=device, gradient_bytes=gradient_bytes)

    def _now(self) -> tuple[float, float]:
        """Seconds on the clock, and seconds that all threads of this process have computed."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter(), time.process_time()

    def _between(self, begun: tuple[float, float], ended: tuple[float, float]) -> float:
        """Seconds that the step took; without those in which other programs of this machine had the cores."""
        passed, computed = (end - begin for begin, end in zip(begun, ended, strict=True))
        return passed if self.device.type == "cuda" else min(passed, computed)
