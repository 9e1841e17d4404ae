"""Some of the ranks of a world as a world of their own, on any backend: all that it needs is the parent's exchange."""

import contextlib
from collections.abc import Sequence

import torch

from windrow.comm.meter import Meter, Tracer
from windrow.comm.transfer import Request, Tensors
from windrow.comm.world import World

__all__ = ["Subgroup"]


class Subgroup(World):
    """Some ranks of a world, whose meter, tracer and deadline are its own; made by `windrow.comm.world.World.split`.

    Args:
        parent: does the work; nothing is communicated here.
        members: ranks of the parent, this one among them, in the order of their numbers here.
    """

    def __init__(self, parent: World, members: Sequence[int]) -> None:
        super().__init__(members.index(parent.rank), len(members), deadline_s=parent.deadline_s, debug=parent.debug)
        self._parent = parent
        self._members = members
        self.has_channels = parent.has_channels
        self.shares_memory = parent.shares_memory
        self.ranks = [parent.ranks[member] for member in members]
        self.name = f"rank {self.ranks[self.rank]} in the subgroup of ranks {', '.join(map(str, self.ranks))}"

    def post_exchange(
        self, sends: Tensors, receives: Tensors, *, gives_way: bool = False, channels: Sequence[int] | None = None
    ) -> Request:
        """An exchange of the parent in which the others have nothing to say."""
        size, nothing = self._parent.size, torch.empty(0)
        all_sends, all_receives, all_channels = [nothing] * size, [nothing] * size, [0] * size
        for peer, member in enumerate(self._members):
            all_sends[member], all_receives[member] = sends[peer], receives[peer]
            if channels is not None:
                all_channels[member] = channels[peer]
        return self._parent.post_exchange(
            all_sends, all_receives, gives_way=gives_way, channels=None if channels is None else all_channels
        )

    def new_channels(self, peers: Sequence[int] | None = None) -> list[int]:
        """The parent's: both ends count what they have in common, in whatever worlds."""
        return self._parent.new_channels(self._members if peers is None else [self._members[peer] for peer in peers])

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

    def _duplicate(self) -> "Subgroup":
        return Subgroup(self._parent.duplicate(), self._members)

    def abort(self, code: int = 1) -> None:
        """End every rank of the job."""
        self._parent.abort(code)
