"""Some of the ranks of a world as a world of their own, on any backend: all that it needs is the parent's exchange."""

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.comm.meter import Meter, Tracer
from windrow.comm.reduction import ReduceOp, reduce_in_steps
from windrow.comm.transfer import Request, Steps, Tensors
from windrow.comm.world import World

__all__ = ["DerivedWorld", "Subgroup", "check_groups"]


class DerivedWorld(World):
    """A world that travels through another one, whose meter, tracer and deadline are its own.

    Args:
        parent: does the work.
        rank: this process's number here.
        size: the number of ranks here.
    """

    def __init__(self, parent: World, rank: int, size: int) -> None:
        super().__init__(rank, size, deadline_s=parent.deadline_s, debug=parent.debug)
        self._parent = parent
        self.has_lanes = parent.has_lanes

    @property
    def meter(self) -> Meter | None:
        """The parent's."""
        return self._parent.meter

    @meter.setter
    def meter(self, meter: Meter | None) -> None:
        self._parent.meter = meter

    @property
    def tracer(self) -> Tracer | None:
        """The parent's."""
        return self._parent.tracer

    @tracer.setter
    def tracer(self, tracer: Tracer | None) -> None:
        self._parent.tracer = tracer

    def transport_device(self, device: torch.device) -> torch.device:
        """The parent's."""
        return self._parent.transport_device(device)

    def background_progress(self) -> contextlib.AbstractContextManager[None]:
        """The parent's."""
        return self._parent.background_progress()

    def abort(self, code: int = 1) -> None:
        """End every rank of the job."""
        self._parent.abort(code)


class Subgroup(DerivedWorld):
    """Some ranks of a world; made by `windrow.comm.world.World.split`.

    Args:
        parent: the world; nothing is communicated here.
        members: ranks of the parent, this one among them, in the order of their numbers here.
    """

    def __init__(self, parent: World, members: Sequence[int]) -> None:
        super().__init__(parent, members.index(parent.rank), len(members))
        self._members = list(members)
        self.ranks = [parent.ranks[member] for member in members]
        among = ", ".join(map(str, self.ranks))
        self.name = f"rank {self.ranks[self.rank]} in the subgroup of ranks {among}"

    def post_exchange(
        self, sends: Tensors, receives: Tensors, *, gives_way: bool = False, lanes: Sequence[int] | None = None
    ) -> Request:
        """An exchange of the parent in which the others have nothing to say."""
        nothing = torch.empty(0)
        all_sends, all_receives = [nothing] * self._parent.size, [nothing] * self._parent.size
        all_lanes = None if lanes is None else [0] * self._parent.size
        for peer, member in enumerate(self._members):
            all_sends[member], all_receives[member] = sends[peer], receives[peer]
            if all_lanes is not None and lanes is not None:
                all_lanes[member] = lanes[peer]
        return self._parent.post_exchange(all_sends, all_receives, gives_way=gives_way, lanes=all_lanes)

    def post_all_reduce(self, tensor: Tensor, op: ReduceOp) -> Request:
        """By exchanges, in the order of the ranks."""
        return Steps(reduce_in_steps(self, tensor.view(-1), op), only_waiting=not self.has_lanes)

    def new_lanes(self, peers: Sequence[int] | None = None) -> list[int]:
        """The parent's: both ends count what they have in common, in whatever worlds."""
        chosen = self._members if peers is None else [self._members[peer] for peer in peers]
        return self._parent.new_lanes(chosen)


def check_groups(groups: Sequence[Sequence[int]], size: int) -> None:
    """Refuse what is no split of 0, 1, ..., size - 1."""
    named = [rank for group in groups for rank in group]
    problems = {
        "out of range": sorted({rank for rank in named if not 0 <= rank < size}),
        "named more than once": sorted({rank for rank in named if named.count(rank) > 1}),
        "missing": sorted(set(range(size)) - set(named)),
    }
    found = [f"rank(s) {', '.join(map(str, ranks))} {what}" for what, ranks in problems.items() if ranks]
    if found:
        raise RecipeError(
            f"groups {[list(group) for group in groups]} of {size} ranks: {'; '.join(found)}. Name each rank from 0 to "
            f"{size - 1} in one group"
        )
