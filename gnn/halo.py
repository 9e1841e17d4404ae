"""Message passing over whole parts: each rank has the in-edges of its vertices, and rows of others come by a route.

The sources of a part that other ranks own are its halo. A layer that adds rows up over each vertex's sources does that
in two parts, of which the larger needs nobody::

    rank 0        own rows x --+-- rows that others need ~~~~~>
                               |        sums over own sources          while messages travel
    rank 1        x -----------+~~~~~~> received rows
                                        sums over those are added

and likewise backward, along the same edges turned round: gradients of received rows travel while those of the sums over
own sources are computed. So results are those of one process, up to the order of additions, on directed graphs too.

Fewer rows with `cover`: between two parts an edge is served by its source's row, or by a sum that the source's owner
makes for its destination. The least number of either is a minimum vertex cover of the edges between them (SuperGCN,
ICS 2025), exact up to the order of additions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from windrow.comm.meter import Stopwatch
from windrow.comm.route import Block, Landing, Route, Rows, Transfer
from windrow.comm.rows import move_rows, spans
from windrow.comm.wire import Codec, Wire
from windrow.comm.world import World
from windrow.gnn import message_passing
from windrow.gnn.message_passing import add_sums
from windrow.partition.vertex_cover import least_vertex_cover

__all__ = [
    "KEPT",
    "WAYS",
    "Arrival",
    "Halo",
    "HaloExchange",
    "Order",
    "TwoWays",
    "Way",
    "fetching_again",
    "own_sums",
    "projects_first",
    "wanted_rows",
]

Way: TypeAlias = Literal["rows", "gradients"]
"""Forward, to the ranks that need rows; or backward, to those that own them. The last part of a traffic's name."""
Order: TypeAlias = Literal["auto", "aggregate", "project"]
"""What a layer does first: auto, whichever lets fewer numbers travel."""
WAYS: tuple[Way, ...] = ("rows", "gradients")
KEPT: Final = "rows once"
"""Instead of that, for rows that travel once in a run."""
SUMS = "sums"
Arrival: TypeAlias = Callable[[], Tensor]
"""Waits for what is under way, and gives it; called once."""


class Bags(NamedTuple):
    """Sums of rows: bag b has those at ``indices[indptr[b]:indptr[b + 1]]``, times their weights where they count."""

    indptr: Tensor
    """int64 [bags + 1]."""
    indices: Tensor
    """int32 or int64 [entries]."""
    weights: Tensor | None
    """float32 [entries]; None: ones."""
    places: Tensor
    """int64 [bags], the row of the result; no two equal."""

    @classmethod
    def of(cls, result: Tensor, source: Tensor, weights: Tensor | None) -> "Bags":
        """From row of the result, row of the source and weight of each entry; a bag keeps their order."""
        bag, order = torch.sort(result, stable=True)
        places, counts = torch.unique_consecutive(bag, return_counts=True)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return cls(indptr, source[order], None if weights is None else weights[order], places)

    def to(self, device: torch.device) -> "Bags":
        """The same on a device."""
        weights = None if self.weights is None else self.weights.to(device)
        return Bags(self.indptr.to(device), self.indices.to(device), weights, self.places.to(device))

    def add(self, rows: Tensor, out: Tensor, *, weighted: bool) -> Tensor:
        """Add each bag's sum to its row of `out`, which is returned."""
        add_sums(rows, self.indptr, self.indices, self.weights if weighted else None, out, self.places)
        return out


class TwoWays(NamedTuple):
    """Sums, and their transpose for gradients."""

    forward: Bags
    backward: Bags

    @classmethod
    def of(cls, result: Tensor, source: Tensor, weights: Tensor | None, device: torch.device) -> "TwoWays":
        """See `Bags.of`."""
        return cls(Bags.of(result, source, weights).to(device), Bags.of(source, result, weights).to(device))


class Halo:
    """Which rows a part sends and receives, and how they are summed; made once a run, by all ranks together.

    Args:
        world: a rank for each part.
        block: the in-edges of this part's vertices, which are its destinations; sources are these, then the halo.
        halo_ids: int64 [num_src - num_dst] ids of the halo, ascending.
        offsets: [size + 1] where each part's ids start; must agree.
        own: `own_sums` of the same block.
        cover: send sums where they are fewer than rows; must agree.
        device: where rows will be.

    Raises:
        DeadlineError: a rank did not come in time.

    Cost: sorts of the part's edges.
    """

    def __init__(
        self,
        world: World,
        block: message_passing.Block,
        halo_ids: Tensor,
        offsets: Sequence[int],
        *,
        own: TwoWays,
        cover: bool,
        device: torch.device,
    ) -> None:
        stage = "halo: rows wanted"
        self.num_own = block.num_dst
        self.own = own
        """Sums over sources that this rank owns."""
        wanted = wanted_rows(block, halo_ids, offsets, cover=cover)
        self.received = TwoWays.of(*wanted.received, device)
        """Sums over rows that arrive."""
        self.receive_counts = wanted.counts
        """Rows from each rank."""
        self.send_counts = world.all_to_all_counts(wanted.counts, stage=stage)
        """Rows to each rank."""
        sizes = world.all_to_all(wanted.sizes, wanted.counts, self.send_counts, stage=stage)
        asked = [int(part.sum()) for part in wanted.sizes.split(wanted.counts)]
        given = [int(part.sum()) for part in sizes.split(self.send_counts)]
        ids = world.all_to_all(wanted.ids, asked, given, stage=stage) - offsets[world.rank]
        of_entries = None if wanted.weights is None else world.all_to_all(wanted.weights, asked, given, stage=stage)
        rows = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        self.sent = TwoWays.of(rows, ids, of_entries, device)
        """What is sent, as sums of own rows."""
        self._positions = None if cover else ids.to(device)

    def counts(self, way: Way) -> tuple[list[int], list[int]]:
        """Rows to each rank, and from each."""
        counts = self.send_counts, self.receive_counts
        return counts if way == "rows" else counts[::-1]

    def error_coefficients(self, way: Way, own_weights: Tensor) -> Tensor:
        """How much the square of an error in each row that arrives counts: float64 [rows].

        From what one in a sum of this rank's vertices counts, or for "gradients" in their gradient, [own vertices].
        Edge weights are not known here, and count as 1. The result is where rows are.
        """
        bags = self.received.backward if way == "rows" else self.sent.forward
        own = own_weights.to(bags.indptr.device, torch.float64).unsqueeze(1)
        return bags.add(own, own.new_zeros(sum(self.counts(way)[1]), 1), weighted=False).squeeze(1)

    def pack(self, x: Tensor, *, weighted: bool) -> Tensor:
        """Rows and sums that go to others, rank after rank: [rows sent, features]."""
        packed = x.new_empty(sum(self.send_counts), x.shape[1])
        if self._positions is None:
            return self.sent.forward.add(x, packed.zero_(), weighted=weighted)
        move_rows(x.contiguous(), self._positions, packed, None)
        return packed

    def add_own(self, x: Tensor, *, weighted: bool, back: bool = False) -> Tensor:
        """Sums over own sources of [own vertices, features], or their transpose."""
        return self.own[back].add(x, torch.zeros_like(x), weighted=weighted)


def own_sums(block: message_passing.Block, device: torch.device) -> TwoWays:
    """Sums over sources that a rank owns, of the in-edges of its vertices."""
    return TwoWays.of(*_edges(block, block.indices < block.num_dst), device)


def _edges(block: message_passing.Block, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Destination, source and weight of some edges, bool [edges]."""
    weights = None if block.edge_weight is None else block.edge_weight[chosen]
    return block.edge_destinations[chosen], block.indices[chosen].long(), weights


class WantedRows(NamedTuple):
    """What a rank asks others for."""

    counts: list[int]
    """Rows from each rank: sources, then sums."""
    sizes: Tensor
    """int64 [rows], how many of the sender's rows each is a sum of."""
    ids: Tensor
    """int64 [sum of sizes], which."""
    weights: Tensor | None
    """float32 [sum of sizes]; a row that is sent as it is has 1."""
    received: tuple[Tensor, Tensor, Tensor | None]
    """Entries of the sums over arriving rows: destination, row, weight."""


def wanted_rows(block: message_passing.Block, halo_ids: Tensor, offsets: Sequence[int], *, cover: bool) -> WantedRows:
    """Choose what a part asks for; see `Halo`."""
    destination, source, weights = _edges(block, block.indices >= block.num_dst)
    place = source - block.num_dst
    if not cover:
        bounds = torch.searchsorted(halo_ids, torch.tensor(offsets))
        ones = None if weights is None else torch.ones(len(halo_ids))
        return WantedRows(
            bounds.diff().tolist(), torch.ones_like(halo_ids), halo_ids, ones, (destination, place, weights)
        )
    owner = torch.bucketize(halo_ids, torch.tensor(offsets[1:]), right=True)[place]
    counts, sizes, ids, of_entries = [], [], [], []
    arriving: list[tuple[Tensor, Tensor, Tensor | None]] = []
    first = 0
    for rank in range(len(offsets) - 1):
        chosen = owner == rank
        at, to = place[chosen], destination[chosen]
        own_weights = torch.ones(len(at)) if weights is None else weights[chosen]
        least = least_vertex_cover(at.numpy(), to.numpy())
        sent_rows, by_row = torch.from_numpy(least.sources), torch.from_numpy(least.by_source)
        sums = Bags.of(to[~by_row], at[~by_row], own_weights[~by_row])
        counts.append(len(sent_rows) + len(sums.places))
        sizes += [torch.ones_like(sent_rows), sums.indptr.diff()]
        ids += [halo_ids[sent_rows], halo_ids[sums.indices]]
        assert sums.weights is not None
        of_entries += [torch.ones(len(sent_rows)), sums.weights]
        arriving.append((to[by_row], first + torch.searchsorted(sent_rows, at[by_row]), own_weights[by_row]))
        sum_rows = first + len(sent_rows) + torch.arange(len(sums.places))
        arriving.append((sums.places, sum_rows, torch.ones(len(sums.places))))
        first += counts[-1]
    to_rows, from_rows, with_weights = (torch.cat(parts) for parts in zip(*arriving, strict=True))
    known = weights is not None
    return WantedRows(
        counts,
        torch.cat(sizes),
        torch.cat(ids),
        torch.cat(of_entries) if known else None,
        (to_rows, from_rows, with_weights if known else None),
    )


def _as_travels(x: Tensor) -> Tensor:
    """Under autocast a map before the exchange gives bf16; formats of messages, and weights of edges, are float32's."""
    return x.float() if x.dtype == torch.bfloat16 else x


class HaloExchange:
    """The rows of one layer that travel, forward and backward; `windrow.gnn.message_passing.Exchange`.

    Every rank calls the same methods in the same order, and runs a backward pass through what it got.

    Args:
        world: a rank for each part.
        whole_rows: who needs which rows, for layers that look at each source.
        partial_sums: likewise for sums; may be the same.
        name: of the traffic.
        device: where rows are.
        stopwatch: is told what packing and waiting take, "halo".
        overlap: whether sums over own sources, and what callers compute, are computed while messages travel, or after.
        kept: where `start_sums` keeps what it made of rows that are not learnt, since they are those of every epoch; an
            exchange for evaluation shares it. None: nothing is kept.
        order: whether rows travel before a layer's linear map or after it.
        codecs: how rows travel, and how their gradients do; must agree. None: as they are, as does what is kept.
    """

    def __init__(
        self,
        world: World,
        whole_rows: Halo,
        partial_sums: Halo,
        *,
        name: str,
        device: torch.device,
        stopwatch: Stopwatch,
        overlap: bool = True,
        kept: dict[str, Tensor] | None = None,
        order: Order = "auto",
        codecs: Mapping[Way, Codec | None] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self._world = world
        self._whole_rows, self._partial_sums = whole_rows, partial_sums
        self._overlap = overlap
        self._kept = kept
        self._order = order
        self._stopwatch = stopwatch
        self._wires = {
            way: Wire(world, stage=name, rows_stage=way, device=device, codec=codecs.get(way)) for way in WAYS
        }
        self._exact = Wire(world, stage=name, rows_stage=KEPT, device=device)
        self._is_mapped = False
        """Whether rows travel behind the layer's map."""
        self.used: dict[Way, Halo] = {}
        """What travelled last each way, but for what is kept."""
        self.fetched: _Fetched | None = None
        """What `rows` brought last, where it `can_fetch_again`."""
        self.can_fetch_again = False

    def begin(self, epoch: int) -> None:
        """An epoch begins: `windrow.gnn.halo_methods` has exchanges that differ from one epoch to the next."""

    def end(self) -> None:
        """The epoch is over. Collective: waits for what is still under way."""

    def projects_first(self, in_features: int, out_features: int, *, learnt: bool) -> bool:
        """Whether the narrower side travels behind the map: rows of `in_features`, and their gradients if `learnt`."""
        keeps = self._kept is not None
        self._is_mapped = projects_first(self._order, in_features, out_features, learnt=learnt, keeps=keeps)
        return self._is_mapped

    def start_sums(self, x: Tensor, *, weighted: bool) -> Arrival:
        """Begin to add up the rows of each vertex's sources; what is given completes that. Collective, both.

        Of x, [own vertices, features], and the sums likewise. What is computed between the two hides messages, and so
        do its gradients in the backward pass.
        """
        x = _as_travels(x)
        # Without gradients nothing tells rows that are learnt from those that are not; a map may be frozen for a while.
        kept = None if self._is_mapped or x.requires_grad else self._kept
        if kept is not None and (torch.is_grad_enabled() or SUMS in kept):
            if SUMS not in kept:
                kept[SUMS] = self.begin_sums(x, weighted=weighted, keeps=True)()
            return lambda: kept[SUMS]
        flight = _Flight(self, weighted=weighted)
        begun: Tensor = _Begin.apply(x, flight)  # type: ignore[no-untyped-call]

        def complete() -> Tensor:
            total: Tensor = _Complete.apply(begun, flight)  # type: ignore[no-untyped-call]
            return total

        return complete

    def rows(self, x: Tensor) -> Tensor:
        """Bring the rows of all sources, [own vertices, ...] -> [own vertices, then halo, ...]. Collective."""
        flat = _as_travels(x.flatten(1))
        found: Tensor = _Rows.apply(flat, self)  # type: ignore[no-untyped-call]
        if self.can_fetch_again:
            self.fetched = _Fetched(self, flat.detach(), found)
        return found.view(-1, *x.shape[1:])

    def begin_sums(self, x: Tensor, *, weighted: bool, keeps: bool = False) -> Arrival:
        """`start_sums` without a gradient."""
        halo = self._partial_sums
        arrival = self._send("rows", halo.pack(x, weighted=weighted), halo, keeps=keeps)
        total = halo.add_own(x, weighted=weighted)
        return lambda: halo.received.forward.add(arrival(), total, weighted=weighted)

    def begin_spread(self, upstream: Tensor, *, weighted: bool) -> Arrival:
        """Begin the gradient of x from that of the sums."""
        halo = self._partial_sums
        leaving = upstream.new_zeros(sum(halo.receive_counts), upstream.shape[1])
        halo.received.backward.add(upstream, leaving, weighted=weighted)
        arrival = self._send("gradients", leaving, halo)
        gradient = halo.add_own(upstream, weighted=weighted, back=True)
        return lambda: halo.sent.backward.add(arrival(), gradient, weighted=weighted)

    def fetch(self, x: Tensor) -> Tensor:
        """`rows` without a gradient, [own vertices, features]."""
        halo = self._whole_rows
        return torch.cat([x, self._send("rows", halo.pack(x, weighted=False), halo)()])

    def send_back(self, upstream: Tensor) -> Tensor:
        """The gradient of x from that of `fetch`."""
        halo = self._whole_rows
        own, leaving = upstream.split([halo.num_own, len(upstream) - halo.num_own])
        arrival = self._send("gradients", leaving, halo)
        gradient = own.clone()
        return halo.sent.backward.add(arrival(), gradient, weighted=False)

    def _send(self, way: Way, leaving: Tensor, halo: Halo, *, keeps: bool = False) -> Arrival:
        """Send rows, rank after rank, and wait for others at once where nothing is to be computed meanwhile."""
        arrival = (
            self._arrival(*self._start(way, leaving, halo, keeps=True)) if keeps else self._travel(way, leaving, halo)
        )
        if self._overlap:
            return arrival
        received = arrival()
        return lambda: received

    def _travel(self, way: Way, leaving: Tensor, halo: Halo) -> Arrival:
        """`_send` what is not kept, which methods do in their own ways."""
        return self._arrival(*self._start(way, leaving, halo))

    def _arrival(self, transfer: Transfer, arriving: Tensor) -> Arrival:
        def wait() -> Tensor:
            with self._stopwatch.measure("halo"):
                transfer.finish([arriving])
            return arriving

        return wait

    def _start(
        self,
        way: Way,
        leaving: Tensor,
        halo: Halo,
        *,
        keeps: bool = False,
        rows: tuple[Sequence[Rows | None], Sequence[Rows | None]] | None = None,
        into: Tensor | None = None,
    ) -> tuple[Transfer, Tensor]:
        """Send rows, rank after rank: the transfer to finish, and where rows arrive.

        `rows` are those that travel to each rank and from each, None: no message; all where nothing is said. They
        arrive in new memory, or in `into`.
        """
        if not keeps:
            self.used[way] = halo
        wire = self._exact if keeps else self._wires[way]
        send_counts, receive_counts = halo.counts(way)
        width = leaving.shape[1]
        arriving = leaving.new_empty(sum(receive_counts), width) if into is None else into
        sent, received = rows or (spans(send_counts), spans(receive_counts))
        targets = [[] if each is None else [Block(0, each)] for each in received]
        route = Route(
            wire,
            [[] if each is None else [Block(0, each)] for each in sent],
            [[Landing(0, block) for block in blocks] for blocks in targets],
            [[(block.num_rows, width) for block in blocks] for blocks in targets],
        )
        with self._stopwatch.measure("halo"):
            return route.start([leaving], into=[arriving]), arriving


def projects_first(order: Order, in_features: int, out_features: int, *, learnt: bool, keeps: bool) -> bool:
    """Whether a layer's rows travel behind its linear map; `keeps`: rows that are not learnt travel once in a run."""
    if order != "auto":
        return order == "project"
    before = (1 + learnt) * in_features if learnt or not keeps else 0
    return 2 * out_features < before


class _Fetched:
    """Rows that `HaloExchange.rows` brought, and how to get them again."""

    def __init__(self, exchange: HaloExchange, x: Tensor, found: Tensor) -> None:
        self._exchange, self._x = exchange, x
        # While it is referred to, no other storage has its address, though its memory may be gone.
        self._storage = StorageWeakRef(found.untyped_storage())
        self._found: Tensor | None = None
        self._saved = 0

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is made of these rows."""
        return bool(StorageWeakRef(tensor.untyped_storage()) == self._storage)

    def give_up(self, tensor: Tensor) -> Callable[[], Tensor]:
        """A way to get a tensor again that is made of these rows; collective, once for all of them."""
        size, stride, first = tensor.size(), tensor.stride(), tensor.storage_offset()
        self._saved += 1

        def again() -> Tensor:
            found = self._exchange.fetch(self._x) if self._found is None else self._found
            self._saved -= 1
            self._found = found if self._saved else None
            return found.as_strided(size, stride, first)

        return again


@contextmanager
def fetching_again(exchanges: Sequence[HaloExchange]) -> Iterator[None]:
    """A forward pass in here does not keep the rows of others for its backward pass, which fetches them again.

    Every rank does so, or none. Memory: one layer's rows of others at a time instead of all layers'. Cost: they travel
    once more. Rows that are summed on arrival are never kept.

    Source: Mostafa: Sequential Aggregation and Rematerialization, MLSys 2022.
    """

    def give_up(tensor: Tensor) -> Tensor | Callable[[], Tensor]:
        for exchange in exchanges:
            if exchange.fetched is not None and exchange.fetched.holds(tensor):
                return exchange.fetched.give_up(tensor)
        return tensor

    for exchange in exchanges:
        exchange.can_fetch_again = True
    try:
        with saved_tensors_hooks(give_up, lambda saved: saved if isinstance(saved, Tensor) else saved()):
            yield
    finally:
        for exchange in exchanges:
            exchange.can_fetch_again, exchange.fetched = False, None


class _Flight:
    """Sums that were begun, forward or backward, and are completed elsewhere."""

    def __init__(self, exchange: HaloExchange, *, weighted: bool) -> None:
        self._exchange, self._weighted = exchange, weighted
        self._arrival: Arrival | None = None

    def begin(self, x: Tensor) -> None:
        self._arrival = self._exchange.begin_sums(x, weighted=self._weighted)

    def begin_back(self, upstream: Tensor) -> None:
        self._arrival = self._exchange.begin_spread(upstream, weighted=self._weighted)

    def complete(self) -> Tensor:
        arrival, self._arrival = self._arrival, None
        assert arrival is not None
        return arrival()


class _Begin(torch.autograd.Function):
    """Its result, without numbers, ties it to `_Complete`: gradients are begun there and completed here.

    Autograd runs last what was made first, so what was computed between the two runs between them backward too.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, flight: _Flight) -> Tensor:
        ctx.flight = flight
        flight.begin(x)
        return x.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, begun: Tensor) -> tuple[Tensor, None]:
        del begun
        return ctx.flight.complete(), None


class _Complete(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, begun: Tensor, flight: _Flight) -> Tensor:
        del begun
        ctx.flight = flight
        return flight.complete()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        ctx.flight.begin_back(upstream.contiguous())
        return upstream.new_empty(0), None


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: HaloExchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.fetch(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange.send_back(upstream.contiguous()), None
