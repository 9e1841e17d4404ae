"""Measure the links between the ranks of a job, through the same calls that training makes.

Three probes, one after another:

1. *Pairs.* For each ordered pair of ranks, while the others sleep in a barrier: messages of rising size one way, a
   tiny answer the other way. Gives latency, seconds per byte and what hides in the latency, for each pair.
2. *All to all.* All ranks exchange equal messages at once. Pairs alone do not tell what all of them share: the
   backpchannel of a switch, or the cores of a machine that plays a cluster.
3. *All reduce.* Its latency belongs to a chain of rounds, in which ranks wait for each other.

The second and third give the factors of `windrow.comm.links.CollectiveCost`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.comm.hosts import gather_hosts
from windrow.comm.link_estimate import estimate_links
from windrow.comm.links import Links, links_from_json, links_to_json
from windrow.comm.options import PositiveFloat, PositiveInt, checked_dataclass
from windrow.comm.world import World

__all__ = ["ProbeOptions", "measure_links"]

STAGE = "link probe"

SETTLE_S = 0.1
"""Before a pair begins: by then the others have ceased to poll (`windrow.comm.transfer.SPIN_S`) and left the cores."""

PAUSE_S = 1.5e-3
"""Before each ping-pong, as training computes between exchanges: what passes a link unshaped, or fills the buffer of a
switch, is then there again. An emulated link of 100 Mbit/s lets 17 KB pass at once, and 1.4 ms later again."""

ANSWER_BYTES = 1

FLOAT_BYTES = 4

ADDED_BYTES = 1 << 22
"""Length of the sum that is timed: longer than a core's own cache, as gradients are."""


@checked_dataclass
class ProbeOptions:
    """How much is measured."""

    sizes_bytes: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (
        64,
        1 << 10,
        1 << 12,
        1 << 14,
        1 << 15,
        1 << 16,
        1 << 17,
        1 << 18,
        1 << 20,
        1 << 22,
        1 << 24,
    )
    """Lengths of messages, rising; for the collectives: bytes of each rank in all."""
    max_repeats: PositiveInt = 15
    """Timed repeats of a size that is quick; two more go before them."""
    min_repeats: PositiveInt = 3
    """Repeats of a size that is slow; a size that cannot be repeated so often within its time is left out, and so are
    longer ones."""
    seconds_per_size: PositiveFloat = 0.2
    """Time for one size of one pair. At 1 Gbit/s 4 MB take 34 ms."""
    collective_seconds_per_size: PositiveFloat = 1.0
    """The same for a size of a collective."""

    def __post_init__(self) -> None:
        """Refuse what measures nothing."""
        if any(a >= b for a, b in pairwise(self.sizes_bytes)):
            raise RecipeError(f"sizes_bytes = {list(self.sizes_bytes)}: expected rising lengths")
        if self.min_repeats > self.max_repeats:
            raise RecipeError(f"min_repeats = {self.min_repeats} is above max_repeats = {self.max_repeats}")

    def repeats(self, expected_s: float, budget_s: float) -> int:
        """How often to time a size.

        Args:
            expected_s: seconds that one repeat should take.
            budget_s: seconds for all of them.

        Returns:
            A number between the bounds, or 0: leave this size and longer ones out.
        """
        affordable = int(budget_s / max(expected_s, 1e-9))
        return 0 if affordable < self.min_repeats else min(affordable, self.max_repeats)


def measure_links(world: World, options: ProbeOptions | None = None, *, device: torch.device | str = "cpu") -> Links:
    """Measure latency and seconds per byte of every ordered pair of ranks, and what all share. Collective.

    Takes about two seconds for each pair of ranks, pairs one at a time; nothing else should go on meanwhile.

    Args:
        world: the ranks; its meter and its tracer see nothing of this.
        options: how much is measured; must agree.
        device: where the tensors are that will travel; "cuda" needs a GPU on each rank.

    Returns:
        The links, the same on every rank.
    """
    options = options or ProbeOptions()
    meter, tracer = world.meter, world.tracer
    world.meter = world.tracer = None
    try:
        probe = _Probe(world, options, torch.device(device))
        # Connections are made at first use, and some libraries want all ranks in the first exchange.
        probe.all_to_all(options.sizes_bytes[0])
        pairs = probe.pairs()
        exchange, reduction = probe.collectives(probe.all_to_all, probe.all_reduce)
        hosts = gather_hosts(world)
        add = max(world.all_gather_object(probe.add_seconds_per_byte(), stage=STAGE))
        everyone = world.all_gather_object(pairs, stage=STAGE)
        links = estimate_links(hosts, everyone, exchange, reduction, add_seconds_per_byte=add)
        # Ranks of different processors may round differently, and they must agree.
        text = world.broadcast_object(links_to_json(links), root=0, stage=STAGE)
        return links_from_json(text, source="rank 0")
    finally:
        world.meter, world.tracer = meter, tracer


def _spread(counts: Sequence[int]) -> Iterator[int]:
    """An order in which each thing has its turns over the whole time, so that a slow spell falls on few turns of each.

    counts 4, 2, 0      0  0 1  0  0 1
    """
    rounds = max(counts)
    for turn in range(rounds):
        for which, count in enumerate(counts):
            if (turn + 1) * count // rounds > turn * count // rounds:
                yield which


class _Probe:
    """The timed operations, with their buffers."""

    def __init__(self, world: World, options: ProbeOptions, device: torch.device) -> None:
        self._world = world
        self._options = options
        self._device = device
        self._nothing = [torch.empty(0, dtype=torch.uint8, device=device)] * world.size
        self._buffers = [self._nothing[0]] * 2

    def pairs(self) -> dict[int, dict[float, list[float]]]:
        """Ping-pong of every ordered pair, one pair at a time. Collective.

        Returns:
            For each peer of this rank, seconds of each round trip under the bytes that this rank sent.
        """
        world = self._world
        mine: dict[int, dict[float, list[float]]] = {}
        for source in range(world.size):
            for target in range(world.size):
                if source == target:
                    continue
                world.barrier(stage=STAGE)
                if world.rank == source:
                    time.sleep(SETTLE_S if world.size > 2 else 0.0)
                    mine[target] = self._ask(target)
                elif world.rank == target:
                    self._answer(source)
        world.barrier(stage=STAGE)
        return mine

    def collectives(self, *operations: Callable[[int], None]) -> list[dict[float, list[float]]]:
        """Time operations of all ranks at once, in turn. Collective.

        Args:
            operations: what to do with a number of bytes for each rank.

        Returns:
            For each operation seconds until the slowest rank was done, under the bytes; the same on every rank.
        """
        sizes, options = self._options.sizes_bytes, self._options
        plans: list[tuple[int, int]] = []
        counts: list[int] = []
        for number, operation in enumerate(operations):
            expected = 0.0
            for num_bytes, following in zip(sizes, [*sizes[1:], 0], strict=True):
                self._together(operation, num_bytes)  # Connections and memory are made at first use.
                seconds = self._together(operation, num_bytes)
                repeats = max(1, options.repeats(max(seconds, expected), options.collective_seconds_per_size))
                plans.append((number, num_bytes))
                counts.append(repeats)
                expected = seconds * following / num_bytes
                if options.repeats(expected, options.collective_seconds_per_size) == 0:
                    break
        samples: list[dict[float, list[float]]] = [{} for _ in operations]
        for number, num_bytes in (plans[which] for which in _spread(counts)):
            samples[number].setdefault(num_bytes, []).append(self._together(operations[number], num_bytes))
        return samples

    def _together(self, operation: Callable[[int], None], num_bytes: int) -> float:
        """Seconds of one operation on the slowest rank. Collective."""
        self._world.barrier(stage=STAGE)
        started = time.perf_counter()
        operation(num_bytes)
        slowest = torch.tensor(time.perf_counter() - started, dtype=torch.float64, device=self._device)
        return float(self._world.all_reduce(slowest, stage=STAGE, op="max"))

    def all_to_all(self, num_bytes: int) -> None:
        """Exchange equal messages, `num_bytes` in all on each rank, its own part included. Collective."""
        size = self._world.size
        each = -(-num_bytes // size)
        send, received = self._buffer(0, each * size), self._buffer(1, each * size)
        self._world.all_to_all(send, [each] * size, [each] * size, stage=STAGE, out=received)

    def all_reduce(self, num_bytes: int) -> None:
        """Sum vectors of `num_bytes`. Collective."""
        numbers = self._buffer(0, num_bytes - num_bytes % FLOAT_BYTES or FLOAT_BYTES).view(torch.float32)
        self._world.all_reduce(numbers, stage=STAGE)

    def add_seconds_per_byte(self) -> float:
        """Time a sum of two vectors on this rank's device."""
        first, second = (self._buffer(which, ADDED_BYTES).view(torch.float32) for which in (0, 1))
        seconds = []
        for _ in range(self._options.max_repeats):
            started = time.perf_counter()
            first += second
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            seconds.append(time.perf_counter() - started)
        return float(np.median(seconds)) / ADDED_BYTES

    def _ask(self, target: int) -> dict[float, list[float]]:
        """Send messages of rising size, decide how often to repeat each, and time until each one's answer is back."""
        sizes, options = self._options.sizes_bytes, self._options
        counts = [0] * len(sizes)
        for which, (num_bytes, following) in enumerate(zip(sizes, [*sizes[1:], 0], strict=True)):
            self._round_trip(target, num_bytes)
            seconds = self._round_trip(target, num_bytes)
            counts[which] = max(1, options.repeats(seconds, options.seconds_per_size))
            expected = seconds * following / num_bytes
            goes_on = options.repeats(expected, options.seconds_per_size) > 0
            self._send(target, torch.tensor([int(goes_on)], device=self._device))
            if not goes_on:
                break
        self._send(target, torch.tensor(counts, device=self._device))
        samples: dict[float, list[float]] = {}
        for which in _spread(counts):
            samples.setdefault(sizes[which], []).append(self._round_trip(target, sizes[which]))
        return samples

    def _answer(self, source: int) -> None:
        """The other end of `_ask`."""
        sizes = self._options.sizes_bytes
        goes_on = torch.zeros(1, dtype=torch.int64, device=self._device)
        for num_bytes in sizes:
            self._answer_once(source, num_bytes)
            self._answer_once(source, num_bytes)
            self._receive(source, goes_on)
            if int(goes_on) == 0:
                break
        counts = torch.zeros(len(sizes), dtype=torch.int64, device=self._device)
        self._receive(source, counts)
        for which in _spread(counts.tolist()):
            self._answer_once(source, sizes[which])

    def _round_trip(self, target: int, num_bytes: int) -> float:
        message, answer = self._buffer(0, num_bytes), self._buffer(1, ANSWER_BYTES)
        ready = time.perf_counter() + PAUSE_S
        # Not asleep: waking up would count as latency.
        while (started := time.perf_counter()) < ready:
            pass
        self._send(target, message)
        self._receive(target, answer)
        return time.perf_counter() - started

    def _answer_once(self, source: int, num_bytes: int) -> None:
        self._receive(source, self._buffer(0, num_bytes))
        self._send(source, self._buffer(1, ANSWER_BYTES))

    def _send(self, peer: int, message: Tensor) -> None:
        sends = [*self._nothing]
        sends[peer] = message
        self._world.start_exchange(sends, self._nothing, stage=STAGE).wait()

    def _receive(self, peer: int, message: Tensor) -> None:
        receives = [*self._nothing]
        receives[peer] = message
        self._world.start_exchange(self._nothing, receives, stage=STAGE).wait()

    def _buffer(self, which: int, num_bytes: int) -> Tensor:
        """The beginning of one of two buffers that grow; zeros, so that sums stay finite."""
        if len(self._buffers[which]) < num_bytes:
            self._buffers[which] = torch.zeros(num_bytes, dtype=torch.uint8, device=self._device)
        return self._buffers[which][:num_bytes]
