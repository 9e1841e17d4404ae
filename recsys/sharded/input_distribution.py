"""Ids on their way to the ranks that hold the rows: one exchange of headers, one of messages."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.world import World
from windrow.recsys.sharded.layout import Layout
from windrow.recsys.sharded.message import Message, MessageFormat
from windrow.recsys.sharded.packing import pack
from windrow.recsys.sharded.samples import Samples
from windrow.recsys.sharded.unpacking import LookupInput, unpack

if TYPE_CHECKING:
    from windrow.comm.pending import Pending

__all__ = ["InputDistribution"]


class InputDistribution:
    """One minibatch's ids in flight. Creating it is collective, and so is `start_ids`.

    Headers leave when it is created, and while they travel the messages are packed.

    Args:
        world: all its ranks distribute a minibatch, if with no samples.
        layout: the same on every rank.
        samples: each group of this rank.
        form: of the messages; must agree.
        stage: name of the traffic in errors and in the meter; must agree.
    """

    def __init__(
        self, world: World, layout: Layout, samples: Sequence[Samples], form: MessageFormat, *, stage: str
    ) -> None:
        self._world = world
        self._owner = layout.owners[world.rank]
        self._form = form
        self._stage = stage
        self.messages = pack(samples, layout.owners, form)
        """What this rank asks each owner for."""
        length = layout.num_groups + len(self._owner.requests)
        self._headers = [torch.empty(length, dtype=torch.int64) for _ in range(world.size)]
        self._counting = world.start_exchange(
            [torch.from_numpy(message.header) for message in self.messages],
            self._headers,
            stage=f"{stage}: counts",
        )
        self._moving: Pending[None] | None = None
        self._received: Sequence[Message] = ()

    def start_ids(self) -> None:
        """Wait for the headers, and send the messages. Collective.

        Raises:
            DeadlineError: a rank did not come in time.
        """
        self._counting.wait()
        headers: list[np.ndarray] = [header.numpy() for header in self._headers]
        rank = self._world.rank
        self._received = [
            self.messages[rank] if peer == rank else Message(self._form, header, self._owner.request_groups)
            for peer, header in enumerate(headers)
        ]
        self._moving = self._world.start_exchange(
            [message.buffer for message in self.messages],
            [message.buffer for message in self._received],
            stage=f"{self._stage}: ids",
        )

    def wait(self) -> list[LookupInput]:
        """Wait for the messages of all ranks.

        Returns:
            The input of this rank's tables, see `unpack`.

        Raises:
            DeadlineError: a rank did not come in time.
        """
        assert self._moving is not None, "start_ids() comes first"
        self._moving.wait()
        return unpack(self._received, self._owner, self._form)

    @property
    def num_rows(self) -> npt.NDArray[np.int64]:
        """[ranks, groups] rows of each rank; after `start_ids`."""
        return np.stack([message.num_rows for message in self._received])
