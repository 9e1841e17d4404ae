"""Measure the links between the ranks of a job, through the same calls that training makes.

Three probes, one after another:

1. *Pairs.* For each ordered pair of ranks, while the others sleep in a barrier: messages of rising size one way, a
   tiny answer the other way. Gives latency, seconds per byte and what hides in the latency, for each pair.
2. *All to all.* All ranks exchange equal messages at once. Pairs alone do not tell what all of them share: the
   backplane of a switch, or the cores of a machine that plays a cluster.
3. *All reduce.* A chain of rounds, in which ranks wait for each other.
"""

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from windrow.comm.hosts import gather_hosts
from windrow.comm.link_estimate import estimate_links
from windrow.comm.links import Links, links_from_json, links_to_json
from windrow.comm.options import PositiveFloat, PositiveInt, checked_dataclass
from windrow.comm.world import World, exchange_with

__all__ = ["ProbeOptions", "measure_links"]

STAGE = "link probe"

SETTLE_S = 0.1
"""Before a pair begins: by then the others have ceased to poll (`windrow.comm.transfer.SPIN_S`) and left the cores."""

PAUSE_S = 1.5e-3
"""Before each ping-pong, as training computes between exchanges: what passes a link unshaped, or fills the buffer of a
switch, is then there again. An emulated link of 100 Mbit/s lets 17 KB pass at once, and 1.4 ms later again."""

MAX_REPEATS = 15
"""Timed repeats of a size that is quick; two more go before them."""

MIN_REPEATS = 3
"""Of a size that is slow; one that cannot be repeated so often within its time is left out, and so are longer ones."""

COLLECTIVE_TIME = 5
"""Times as long as a pair's is what a size of a collective may take."""

FLOAT_BYTES = 4


@checked_dataclass
class ProbeOptions:
    """How much is measured."""

    sizes_bytes: tuple[PositiveInt, ...] = (64, *(1 << power for power in (10, 12, 14, 15, 16, 17, 18, 20, 22, 24)))
    """Lengths of messages, rising; for the collectives: bytes of each rank in all."""
    seconds_per_size: PositiveFloat = 0.2
    """Time for one size of one pair. At 1 Gbit/s 4 MB take 34 ms."""


def measure_links(world: World, options: ProbeOptions | None = None) -> Links:
    """Measure latency and seconds per byte of every ordered pair of ranks, and what all share. Collective.

    Takes about two seconds for each pair of ranks, pairs one at a time; nothing else should go on meanwhile.

    Args:
        world: the ranks; its meter and its tracer see nothing of this.
        options: how much is measured; must agree.

    Returns:
        The links, the same on every rank.
    """
    meter, tracer = world.meter, world.tracer
    world.meter = world.tracer = None
    try:
        probe = _Probe(world, options or ProbeOptions())
        # Connections are made at first use, and some libraries want all ranks in the first exchange.
        probe.all_to_all(1)
        pairs = world.all_gather_object(probe.pairs(), stage=STAGE)
        exchange, reduction = probe.together(probe.all_to_all), probe.together(probe.all_reduce)
        links = estimate_links(gather_hosts(world), pairs, exchange, reduction)
        # Ranks of different processors may round differently, and they must agree.
        text = world.broadcast_object(links_to_json(links), root=0, stage=STAGE)
        return links_from_json(text, source="rank 0")
    finally:
        world.meter, world.tracer = meter, tracer


def _repeats(expected_s: float, budget_s: float) -> int:
    """How often to time a size; 0: leave this size and longer ones out."""
    affordable = int(budget_s / max(expected_s, 1e-9))
    return 0 if affordable < MIN_REPEATS else min(affordable, MAX_REPEATS)


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

    def __init__(self, world: World, options: ProbeOptions) -> None:
        self._world = world
        self._options = options
        self._buffers = [torch.empty(0, dtype=torch.uint8)] * 2

    def pairs(self) -> dict[int, dict[int, list[float]]]:
        """Ping-pong of every ordered pair, one pair at a time. Collective.

        Returns:
            For each peer of this rank, seconds of each round trip under the bytes that this rank sent.
        """
        world = self._world
        mine: dict[int, dict[int, list[float]]] = {}
        for source in range(world.size):
            for target in range(world.size):
                if source == target:
                    continue
                world.barrier(stage=STAGE)
                if world.rank == source:
                    time.sleep(SETTLE_S if world.size > 2 else 0.0)
                    mine[target] = self.ask(target)
                elif world.rank == target:
                    self._answer(source)
        world.barrier(stage=STAGE)
        return mine

    def together(self, operation: Callable[[int], None]) -> dict[int, list[float]]:
        """Seconds until the slowest rank was done, under the bytes of each; the same on every rank. Collective."""

        def seconds(num_bytes: int) -> float:
            self._world.barrier(stage=STAGE)
            started = time.perf_counter()
            operation(num_bytes)
            slowest = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
            return float(self._world.all_reduce(slowest, stage=STAGE, op="max"))

        return self._timed(seconds, COLLECTIVE_TIME * self._options.seconds_per_size)

    def ask(self, target: int) -> dict[int, list[float]]:
        """Send messages of rising size, and time until each one's answer is back."""

        def seconds(num_bytes: int) -> float:
            exchange_with(self._world, target, send=torch.tensor([num_bytes]), stage=STAGE)
            message, answer = self._buffer(0, num_bytes), self._buffer(1, 1)
            ready = time.perf_counter() + PAUSE_S
            # Not asleep: waking up would count as latency.
            while (started := time.perf_counter()) < ready:
                pass
            exchange_with(self._world, target, send=message, stage=STAGE)
            exchange_with(self._world, target, receive=answer, stage=STAGE)
            return time.perf_counter() - started

        samples = self._timed(seconds, self._options.seconds_per_size)
        exchange_with(self._world, target, send=torch.tensor([0]), stage=STAGE)
        return samples

    def _answer(self, source: int) -> None:
        """The other end of `ask`, which says before each message how long it is; 0: no more."""
        length = torch.zeros(1, dtype=torch.int64)
        while True:
            exchange_with(self._world, source, receive=length, stage=STAGE)
            if not int(length):
                return
            exchange_with(self._world, source, receive=self._buffer(0, int(length)), stage=STAGE)
            exchange_with(self._world, source, send=self._buffer(1, 1), stage=STAGE)

    def _timed(self, seconds: Callable[[int], float], budget_s: float) -> dict[int, list[float]]:
        """Time each size as often as it fits into its time, sizes in turn."""
        sizes = self._options.sizes_bytes
        counts: list[int] = []
        for num_bytes, following in zip(sizes, [*sizes[1:], 0], strict=True):
            seconds(num_bytes)  # Connections and memory are made at first use.
            took_s = seconds(num_bytes)
            counts.append(max(1, _repeats(took_s, budget_s)))
            if _repeats(took_s * following / num_bytes, budget_s) == 0:
                break
        samples: dict[int, list[float]] = {}
        for which in _spread(counts):
            samples.setdefault(sizes[which], []).append(seconds(sizes[which]))
        return samples

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

    def _buffer(self, which: int, num_bytes: int) -> Tensor:
        """The beginning of one of two buffers that grow; zeros, so that sums stay finite."""
        if len(self._buffers[which]) < num_bytes:
            self._buffers[which] = torch.zeros(num_bytes, dtype=torch.uint8)
        return self._buffers[which][:num_bytes]
