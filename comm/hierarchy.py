"""Exchanges and sums that go within hosts first, so that ranks of a host send to another host together.

    host a: ranks 0 1, host b: ranks 2 3

    all-reduce    within hosts    0 and 1, 2 and 3 share the sums of their two tensors: half of the elements each
                  between hosts   0 and 2, 1 and 3 sum these halves
                  within hosts    0 and 1, 2 and 3 exchange halves
    exchange      within hosts    0 gives 1 what it has for 3, 1 gives 0 what it has for 2: the rank with the same place
                  between hosts   0 sends 2 what both have for it, 1 sends 3 what both have for that

An exchange sends as many bytes between hosts, in fewer messages: from a host with k ranks to another one k, not k * k.
It needs no third step, since what leaves a host goes to the rank that wants it.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.comm.hosts import gather_hosts, host_groups, relays
from windrow.comm.link_model import (
    predict_all_reduce,
    predict_all_reduce_by_exchange,
    predict_all_to_all,
    predict_hierarchical_all_to_all,
)
from windrow.comm.links import Links
from windrow.comm.reduction import ReduceOp, gather_pieces, reduce_in_steps, reduce_pieces
from windrow.comm.subgroup import DerivedWorld
from windrow.comm.transfer import Request, Steps, Tensors, as_bytes
from windrow.comm.wire import Codec, Fp32Codec
from windrow.comm.world import World

__all__ = ["hierarchical"]

USUAL_EXCHANGE_BYTES = 1 << 20

WORTHWHILE = 0.9
"""Of the direct way's predicted seconds, at most: predictions are no better than that."""


def hierarchical(
    world: World,
    hosts: Sequence[str] | None = None,
    *,
    links: Links | None = None,
    exchange_bytes: float = USUAL_EXCHANGE_BYTES,
) -> World:
    """A world of the same ranks whose exchanges and sums go within hosts first, where that is faster. Collective.

    Args:
        world: any.
        hosts: the host of each rank; must agree. None: they are found.
        links: of the network between these ranks, as rank 0 knows them: each sum goes in the way that is predicted to
            be faster for its bytes, and exchanges in the one that is for `exchange_bytes`. None: all go within hosts
            first.
        exchange_bytes: what a rank sends in a usual exchange, in equal parts to all.

    Returns:
        `world` itself where it has one host, or as many as ranks; else one on which every collective gives what it
        gives on `world`, sums up to rounding. There `World.start_exchange` is a collective too.

    Raises:
        RecipeError: `hosts` or `links` are of another number of ranks.
        CollectiveMismatchError: ranks disagree on the hosts.
    """
    hosts = gather_hosts(world) if hosts is None else list(hosts)
    for name, count in (("hosts", len(hosts)), ("links", world.size if links is None else links.size)):
        if count != world.size:
            raise RecipeError(
                f"{name} of {count} ranks for a world of {world.size}: give those of each rank, in rank order"
            )
    groups = host_groups(hosts)
    if len(groups) in (1, world.size):
        return world
    links = world.broadcast_object(links, root=0, stage="links")
    return _HierarchicalWorld(world, groups, links, exchange_bytes)


class _HierarchicalWorld(DerivedWorld):
    """Made by `hierarchical`, with links that are equal on all ranks."""

    def __init__(
        self, parent: World, groups: Sequence[Sequence[int]], links: Links | None, exchange_bytes: float
    ) -> None:
        super().__init__(parent, parent.rank, parent.size)
        self.ranks, self.name = parent.ranks, parent.name
        self._groups = groups
        self._links = links
        self._within = parent.split(groups)
        self._columns = min(map(len, groups))
        places = range(max(map(len, groups)))
        self._across = parent.split([[group[n] for group in groups if n < len(group)] for n in places])
        self._relay = relays(groups)
        equal = np.full((self.size, self.size), exchange_bytes / self.size)
        self._exchanges_directly = links is not None and (
            predict_hierarchical_all_to_all(links, equal, groups) > WORTHWHILE * predict_all_to_all(links, equal)
        )
        self._sums_directly: dict[tuple[float, bool], bool] = {}

    def post_exchange(
        self, sends: Tensors, receives: Tensors, *, gives_way: bool = False, lanes: Sequence[int] | None = None
    ) -> Request:
        """Through ranks of the own host, or directly. Collective."""
        if self._exchanges_directly:
            return self._parent.post_exchange(sends, receives, gives_way=gives_way, lanes=lanes)
        return Steps(self._exchange(sends, receives), only_waiting=not self.has_lanes)

    def post_all_reduce(self, tensor: Tensor, op: ReduceOp) -> Request:
        """Within hosts, between hosts, within hosts; or as the parent does it."""
        if self._is_direct(tensor.nbytes, encoded=False):
            return self._parent.post_all_reduce(tensor, op)
        return Steps(self._reduce(tensor.view(-1), op, Fp32Codec()), only_waiting=not self.has_lanes)

    def post_sum(self, tensor: Tensor, codec: Codec) -> Request:
        """The same; sums of a host are encoded again on their way to others."""
        if self._is_direct(codec.wire_row_bytes(tensor.shape, tensor.dtype), encoded=True):
            return self._parent.post_sum(tensor, codec)
        return Steps(self._reduce(tensor.view(-1), "sum", codec), only_waiting=not self.has_lanes)

    def new_lanes(self, peers: Sequence[int] | None = None) -> list[int]:
        """The parent's."""
        return self._parent.new_lanes(peers)

    def split(self, groups: Sequence[Sequence[int]]) -> World:
        """The parent's: not all ranks of a host may be in a group."""
        return self._parent.split(groups)

    def _is_direct(self, num_bytes: int, *, encoded: bool) -> bool:
        """Whether a sum goes as the parent does it; the same on all ranks, which know the same links."""
        links, key = self._links, (num_bytes, encoded)
        if links is None:
            return False
        if key not in self._sums_directly:
            alone = [[rank] for rank in range(self.size)]
            direct = (
                predict_all_reduce_by_exchange(links, num_bytes, alone)
                if encoded
                else predict_all_reduce(links, num_bytes)
            )
            in_steps = predict_all_reduce_by_exchange(links, num_bytes, self._groups)
            self._sums_directly[key] = in_steps > WORTHWHILE * direct
        return self._sums_directly[key]

    def _reduce(self, flat: Tensor, op: ReduceOp, codec: Codec) -> Iterator[Request]:
        within, lanes = self._within, self._within.new_lanes()
        # Hosts with more ranks than others have some without a piece.
        pieces = [*flat.tensor_split(self._columns), *[flat[:0]] * (within.size - self._columns)]
        between = reduce_in_steps(self._across, pieces[within.rank], op, codec)
        yield from reduce_pieces(within, pieces, op, codec, lanes)
        yield from between
        yield from gather_pieces(within, pieces, codec, lanes)

    def _exchange(self, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> Iterator[Request]:
        rank, size, parent = self.rank, self.size, self._parent
        lanes = parent.new_lanes()
        host = next(group for group in self._groups if rank in group)
        device = next((t.device for t in (*sends, *receives) if t.numel()), torch.device("cpu"))
        device = parent.transport_device(device)
        nothing = torch.empty(0, dtype=torch.uint8, device=device)
        outgoing = [nothing if p == rank or t.numel() == 0 else as_bytes(t) for p, t in enumerate(sends)]
        # What each rank of this host passes on, and to whom.
        targets = {via: [t for t in range(size) if t not in host and self._relay[rank, t] == via] for via in host}
        mine = targets[rank]

        def numbers(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        counts, told = [nothing] * size, [nothing] * size
        for peer in host:
            counts[peer] = numbers([len(outgoing[t]) for t in targets[peer]])
            told[peer] = numbers([0] * len(mine))
        yield parent.post_exchange(counts, told, lanes=lanes)
        told[rank] = counts[rank]

        through, passed = [nothing] * size, [nothing] * size
        lengths = {}
        for peer in host:
            own = 0 if peer == rank else receives[peer].nbytes
            lengths[peer] = [own, *map(int, told[peer].tolist())]
            through[peer] = torch.cat([outgoing[peer], *(outgoing[t] for t in targets[peer])])
            passed[peer] = nothing.new_empty(sum(lengths[peer]))
        passed[rank] = through[rank]
        yield parent.post_exchange(through, passed, lanes=lanes)
        parts = {peer: passed[peer].split(lengths[peer]) for peer in host}
        for peer in host:
            _fill(receives[peer], parts[peer][0])

        leaving, arriving = [nothing] * size, [nothing] * size
        for number, target in enumerate(mine):
            leaving[target] = torch.cat([parts[peer][1 + number] for peer in host])
        others = [group for group in self._groups if rank not in group]
        for group in others:
            arriving[self._relay[group[0], rank]] = nothing.new_empty(sum(receives[p].nbytes for p in group))
        yield parent.post_exchange(leaving, arriving, lanes=lanes)
        for group in others:
            arrived = arriving[self._relay[group[0], rank]]
            for peer, part in zip(group, arrived.split([receives[p].nbytes for p in group]), strict=True):
                _fill(receives[peer], part)


def _fill(wanted: Tensor, arrived: Tensor) -> None:
    if len(arrived):
        as_bytes(wanted).copy_(arrived)
