"""Other ways than `windrow.gnn.halo.HaloExchange` to let rows travel in training: fewer of them, or older ones.

    method               what travels in an epoch                        what a layer adds up
    boundary sampling    a share p of the rows of each pair of parts     those, divided by p; right in expectation
    stale                all rows, waited for at the epoch's end         rows of the epoch before
    skip broadcasts      rows to a part, where they moved enough         what came last

and likewise gradients in the backward pass. Each acts on whatever a `HaloExchange` would send, sums included.

Sources: Wan et al.: BNS-GCN, Efficient Full-graph Training of Graph Convolutional Networks with Partition-parallelism
and Random Boundary Node Sampling, MLSys 2022; Wan et al.: PipeGCN, Efficient Full-graph Training of Graph Convolutional
Networks with Pipelined Feature Communication, ICLR 2022 (without its smoothing); Peng et al.: SANCUS, Staleness-aware
Communication-avoiding Full-graph Decentralized Training in Large-scale Graph Neural Networks, VLDB 2022.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.comm.random import Stream, permuted, stream_key
from windrow.comm.rows import spans
from windrow.gnn.halo import Arrival, Halo, HaloExchange, Way
from windrow.training.shard_files import LocalTable, StateTensor

__all__ = ["BoundarySampling", "HeldRows", "HoldingExchange", "SkippingExchange", "StaleExchange", "sampled_rows"]


Pair: TypeAlias = tuple[int, int, int]
"""Owner of rows, who needs them, and how many they are."""


def sampled_rows(count: int, share: float) -> int:
    """How many of so many rows between two parts travel, where a share of them shall: one at least."""
    return min(count, max(1, round(share * count)))


class BoundarySampling(HaloExchange):
    """Lets a share of the rows travel, drawn anew in each epoch, the same for all layers, both ways.

    Of n rows between two parts k travel (`sampled_rows`), each set of k as likely as any other, and count n / k times:
    sums of rows and of gradients are right in expectation. Both ends draw from the seed, so nothing is told. What is
    kept of the first layer travels whole.

    Args:
        args: of `HaloExchange`, as `more`.
        share: p of BNS-GCN, above 0.
        seed: the run's; must agree.
        drawn: where layers share what they drew of an epoch; empty.
    """

    def __init__(self, *args: Any, share: float, seed: int, drawn: dict[Pair, Tensor], **more: Any) -> None:
        super().__init__(*args, **more)
        self._drawn = drawn
        self._share, self._seed = share, seed
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """See `HaloExchange.begin`."""
        self._epoch = epoch
        self._drawn.clear()

    def rows(self, x: Tensor) -> Tensor:
        """Refuse to: RecipeError, as layers that look at each source need all."""
        raise RecipeError(
            f"{len(x)} rows of a layer that looks at each source (gat, Block.with_sources) with full_graph.method = "
            '"boundary_sampling", which leaves sources out: choose another method'
        )

    def _travel(self, way: Way, leaving: Tensor, halo: Halo) -> Arrival:
        sent, received = (
            [
                self._draw(way, peer, span.stop - span.start, receives=bool(receives)) + span.start
                for peer, span in enumerate(spans(counts))
            ]
            for receives, counts in enumerate(halo.counts(way))
        )
        arriving = leaving.new_zeros(sum(halo.counts(way)[1]), leaving.shape[1])
        arrival = self._arrival(*self._start(way, leaving, halo, rows=(sent, received), into=arriving))

        def wait() -> Tensor:
            arrival()
            for span, drawn in zip(spans(halo.counts(way)[1]), received, strict=True):
                if len(drawn):
                    arriving[span] *= (span.stop - span.start) / len(drawn)
            return arriving

        return wait

    def _draw(self, way: Way, peer: int, count: int, *, receives: bool) -> Tensor:
        """Which of the rows between this rank and another travel, ascending: int64 on the CPU."""
        # Gradients go back the way that their rows came.
        ends = (peer, self._world.rank) if receives == (way == "rows") else (self._world.rank, peer)
        if (*ends, count) not in self._drawn:
            places = np.arange(sampled_rows(count, self._share))
            key = stream_key(self._seed, Stream.BOUNDARY, self._epoch, *ends)
            self._drawn[*ends, count] = torch.from_numpy(np.sort(permuted(key, places, count)))
        return self._drawn[*ends, count]


class _Held(NamedTuple):
    """Rows of one call of an epoch."""

    halo: Halo
    received: Tensor
    """What came, [rows received, features]."""
    sent: Tensor | None
    """What this rank sent, [rows sent, features]; None where it need not be known."""


class HoldingExchange(HaloExchange):
    """Keeps rows from one epoch to the next. Arguments are those of `HaloExchange`."""

    knows_sent: ClassVar[bool]
    """Whether it keeps what was sent too."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.held: dict[tuple[Way, int], _Held] = {}
        """By the way, and the number of calls that way that there were before in the epoch."""
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """See `HaloExchange.begin`."""
        self._epoch = epoch
        self._calls: Counter[Way] = Counter()

    @property
    def halos(self) -> tuple[Halo, Halo]:
        """What may travel."""
        return self._whole_rows, self._partial_sums

    def hold(self, place: tuple[Way, int], halo: Halo, like: Tensor) -> _Held:
        """Make room for rows of one call, of dtype, device and width of some others."""
        sent, received = (like.new_empty(sum(counts), like.shape[1]) for counts in halo.counts(place[0]))
        self.held[place] = _Held(halo, received, sent if self.knows_sent else None)
        return self.held[place]

    def _next_place(self, way: Way) -> tuple[Way, int]:
        self._calls[way] += 1
        return way, self._calls[way] - 1


class StaleExchange(HoldingExchange):
    """Gives a layer the rows, and the gradients, of the epoch before; nothing waits for messages but the epoch's end.

    The first epoch is exact. Memory: rows received twice, of each layer and way.
    """

    knows_sent = False

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._under_way: list[Arrival] = []

    def end(self) -> None:
        """See `HaloExchange.end`."""
        for arrival in self._under_way:
            arrival()
        self._under_way = []

    def _travel(self, way: Way, leaving: Tensor, halo: Halo) -> Arrival:
        place = self._next_place(way)
        transfer, arriving = self._start(way, leaving, halo)
        arrival, before = self._arrival(transfer, arriving), self.held.get(place)
        self.held[place] = _Held(halo, arriving, None)
        if before is None:
            return arrival
        self._under_way.append(arrival)
        return lambda: before.received


class SkippingExchange(HoldingExchange):
    """Sends rows to a part only where they have moved; else the part uses what it got last.

    With x the rows that a part needs of this one and y what it got last, they travel where

        || x - y || > threshold || y ||        (Frobenius norms)

    and in every epoch that `max_staleness` divides. A number to each part says whether rows follow.

    Args:
        args: of `HaloExchange`, as `more`.
        threshold: 0 gives what `HaloExchange` does.
        max_staleness: rows are used in so many epochs at most.

    Memory: rows sent and rows received, of each layer and way.
    """

    knows_sent = True

    def __init__(self, *args: Any, threshold: float, max_staleness: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self._threshold, self._max_staleness = threshold, max_staleness

    def _travel(self, way: Way, leaving: Tensor, halo: Halo) -> Arrival:
        place = self._next_place(way)
        sent, received = map(spans, halo.counts(way))
        held = self.held.get(place)
        if held is None or self._epoch % self._max_staleness == 0:
            sends = [True] * len(sent)
        else:
            assert held.sent is not None
            sends = [self._has_moved(leaving[span], held.sent[span]) for span in sent]
        held = held or self.hold(place, halo, leaving)
        held_sent = held.sent
        assert held_sent is not None
        follows = self._world.all_to_all_counts(list(map(int, sends)), stage=f"{self.name}: what follows")
        rows = (
            [span if moved else None for span, moved in zip(sent, sends, strict=True)],
            [span if moved else None for span, moved in zip(received, follows, strict=True)],
        )
        arrival = self._arrival(*self._start(way, leaving, halo, rows=rows, into=held.received))
        for span, moved in zip(sent, sends, strict=True):
            if moved:
                held_sent[span] = leaving[span]
        return arrival

    def _has_moved(self, rows: Tensor, before: Tensor) -> bool:
        # What is no number must not be held back.
        return not bool((rows - before).norm() <= self._threshold * before.norm())


class HeldRows:
    """What a rank's exchanges hold, as a checkpoint stores it: each rank writes its own, as it does embedding tables.

    Args:
        exchanges: of all layers, between epochs.
        rank: this one.
        partition: digest of who owns which vertex: rows of another partition mean others.
        device: where rows are.
    """

    def __init__(
        self, exchanges: Sequence[HoldingExchange], *, rank: int, partition: int, device: torch.device
    ) -> None:
        self._exchanges = exchanges
        self._rank = rank
        self._partition = partition
        self._device = device

    def shapes(self) -> dict[str, Tensor]:
        """What is held, the same on all ranks; with it `make_room` prepares for `load_state`."""
        found = {"partition": torch.tensor(self._partition)}
        for layer, exchange in enumerate(self._exchanges):
            for (way, call), held in exchange.held.items():
                found[f"{layer} {way} {call} {exchange.halos.index(held.halo)}"] = held.received[:0].cpu()
        return found

    def make_room(self, shapes: Mapping[str, Tensor]) -> None:
        """Hold what has these `shapes`; of another partition nothing, so that the next epoch is exact."""
        for exchange in self._exchanges:
            exchange.held = {}
        if int(shapes.get("partition", torch.tensor(-1))) != self._partition:
            return
        for name, like in shapes.items():
            if name != "partition":
                layer, way, call, halo = name.split()
                exchange = self._exchanges[int(layer)]
                exchange.hold((cast("Way", way), int(call)), exchange.halos[int(halo)], like.to(self._device))

    def state(self) -> Sequence[StateTensor]:
        """Rows that this rank sent and received."""
        return [
            StateTensor(
                piece=LocalTable(
                    name=f"{name}, rank {self._rank}, layer {layer}, {way} {call}",
                    rows=(0, len(rows)),
                    columns=(0, rows.shape[1]),
                ),
                name="rows",
                tensor=rows,
                axes=("rows", "columns"),
                replicated=False,
            )
            for layer, exchange in enumerate(self._exchanges)
            for (way, call), held in exchange.held.items()
            for name, rows in (("received", held.received), ("sent", held.sent))
            if rows is not None and rows.numel()
        ]

    def load_state(self, tensors: Iterable[StateTensor]) -> None:
        """Restore what `state` gave."""
        room = {found.piece: found.tensor for found in self.state()}
        for found in tensors:
            room[found.piece].copy_(found.tensor)
