"""Sums that go within hosts first, so that ranks of a host send to another host together.

    host a: ranks 0 1, host b: ranks 2 3

    within hosts    0 and 1, 2 and 3 share the sums of their two tensors: half of the elements each
    between hosts   0 and 2, 1 and 3 sum these halves
    within hosts    0 and 1, 2 and 3 exchange halves

So a host sends each byte of a sum to another one once, not once for each of its ranks.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.comm.hosts import gather_hosts, host_groups
from windrow.comm.link_model import predict_all_reduce, predict_all_reduce_by_exchange
from windrow.comm.links import Links
from windrow.comm.reduction import ReduceOp, gather_pieces, reduce_in_steps, reduce_pieces
from windrow.comm.subgroup import Subgroup
from windrow.comm.transfer import Request
from windrow.comm.wire import Codec
from windrow.comm.world import World

__all__ = ["hierarchical"]

WORTHWHILE = 0.9
"""Of the direct way's predicted seconds, at most: predictions are no better than that."""


def hierarchical(world: World, hosts: Sequence[str] | None = None, *, links: Links | None = None) -> World:
    """A world of the same ranks whose sums go within hosts first, where that is faster. Collective.

    Args:
        world: any.
        hosts: the host of each rank; must agree. None: they are found.
        links: of the network between these ranks, as rank 0 knows them: each sum goes in the way that is predicted to
            be faster for its bytes. None: all go within hosts first.

    Returns:
        `world` itself where it has one host, or as many as ranks; else one on which every collective gives what it
        gives on `world`, sums up to rounding.

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
    return _HierarchicalWorld(world, groups, world.broadcast_object(links, root=0, stage="links"))


class _HierarchicalWorld(Subgroup):
    """Made by `hierarchical`, with links that are equal on all ranks."""

    def __init__(self, parent: World, groups: Sequence[Sequence[int]], links: Links | None) -> None:
        super().__init__(parent, range(parent.size))
        self.name = parent.name
        self._groups = groups
        self._links = links
        self._within = parent.split(groups)
        self._columns = min(map(len, groups))
        places = range(max(map(len, groups)))
        self._across = parent.split([[group[n] for group in groups if n < len(group)] for n in places])
        self._sums_directly: dict[tuple[float, bool], bool] = {}

    def post_all_reduce(self, tensor: Tensor, op: ReduceOp, codec: Codec | None = None) -> Request:
        """Within hosts, between hosts, within hosts, where sums of a host are encoded again; or as the parent does."""
        num_bytes = tensor.nbytes if codec is None else codec.wire_row_bytes(tensor.shape, tensor.dtype)
        if self._is_direct(num_bytes, encoded=codec is not None):
            return self._parent.post_all_reduce(tensor, op, codec)
        return self.in_steps(self._reduce(tensor.view(-1), op, codec or Codec()))

    def _is_direct(self, num_bytes: int, *, encoded: bool) -> bool:
        """Whether a sum goes as the parent does it; the same on all ranks, which know the same links."""
        links, key = self._links, (num_bytes, encoded)
        if links is None:
            return False
        if key not in self._sums_directly:
            direct = predict_all_reduce(links, num_bytes, encoded=encoded)
            in_steps = predict_all_reduce_by_exchange(links, num_bytes, self._groups)
            self._sums_directly[key] = in_steps > WORTHWHILE * direct
        return self._sums_directly[key]

    def _reduce(self, flat: Tensor, op: ReduceOp, codec: Codec) -> Iterator[Request]:
        within, channels = self._within, self._within.new_channels()
        # Hosts with more ranks than others have some without a piece.
        pieces = [*flat.tensor_split(self._columns), *[flat[:0]] * (within.size - self._columns)]
        between = reduce_in_steps(self._across, pieces[within.rank], op, codec)
        yield from reduce_pieces(within, pieces, op, codec, channels)
        yield from between
        yield from gather_pieces(within, pieces, codec, channels)
