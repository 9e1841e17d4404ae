"""Neighbours of vertices whose lists are on other ranks: these draw them there, and send what they drew.

    rank 0, whose frontier is 0 5 2 7        rank 1, which has the lists of 5 6 7 8
    before a hop      -- 5 7 -->             notes the lists of what is new in the frontier of rank 0
    in each hop                              draws for all that it has noted
                      <-- 3 9 | 1 --         so many for each as the degrees and the fanout say, which rank 0 knows
    neighbours of     0 5 2 7                from both ranks, in the order of the frontier

What a vertex samples depends on its id and its list alone, so that minibatches are those of a rank that has all lists.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.fetch import IdRequest
from windrow.comm.rows import group_by_owner, move_rows
from windrow.comm.wire import Wire
from windrow.comm.world import World
from windrow.gnn.message_passing import weighted_degrees
from windrow.gnn.sampler import draw_lists
from windrow.gnn.sampler_kernels import edges_of_lists, list_bounds, look_up_vertices

__all__ = ["RemoteLists"]


@dataclass(eq=False, slots=True)
class _Noted:
    """The lists of this rank that another one draws from in this minibatch, in the order in which it asked."""

    starts: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    degrees: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    inner_hashes: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))


class RemoteLists:
    """What a sampler draws from where each rank reads the neighbour lists of its own vertices alone. Collective.

    Args:
        world: each of its ranks makes one, and calls `draw` as often as the others.
        offsets: [size + 1], rank r has the lists of vertices offsets[r] .. offsets[r + 1] - 1; must agree.
        indptr: int64 [N + 1], where every list starts.
        indices: [E]; those of this rank's lists are read.
        original_ids: int64 [N], the user's id of each vertex; None where ids are the user's.
        edge_data: rows [E, ...] of what goes along with neighbours; likewise.
        stage: name of the traffic; must agree.
    """

    def __init__(
        self,
        world: World,
        offsets: Sequence[int],
        indptr: npt.NDArray[np.int64],
        indices: npt.NDArray[Any],
        original_ids: npt.NDArray[np.int64] | None,
        edge_data: Mapping[str, Tensor],
        *,
        stage: str,
    ) -> None:
        # Minibatches are sampled in a thread of their own.
        self._wire = Wire(world.duplicate(), stage=stage)
        self._offsets = offsets
        self._indptr, self._indices, self._original_ids = indptr, indices, original_ids
        self._edge_data = edge_data
        self.begin()

    def weighted_degrees(self, edge_weight: Tensor) -> Tensor:
        """Sums of the weights [E] of the edges that enter each vertex, float32 [N]. Collective; reads own ones."""
        rank, world = self._wire.world.rank, self._wire.world
        own = self._indptr[self._offsets[rank] : self._offsets[rank + 1] + 1]
        sums = weighted_degrees(torch.from_numpy(own - own[0]), edge_weight[own[0] : own[-1]])
        return torch.cat(world.all_gather(sums, stage=f"{self._wire.stage}: degrees"))

    def begin(self) -> None:
        """Forget the last minibatch."""
        ranks = range(self._wire.world.size)
        self._known = 0
        self._asked = [torch.empty(0, dtype=torch.int64) for _ in ranks]
        """Of each rank, which of the frontier it has the lists of."""
        self._noted = [_Noted() for _ in ranks]

    def draw(
        self,
        key: int,
        fanout: int,
        frontier: npt.NDArray[np.int64],
        block_indptr: npt.NDArray[np.int64],
        taken: npt.NDArray[np.uint64],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Draw neighbours of all vertices found so far. Collective.

        Args:
            key: of the draw; must agree.
            fanout: neighbours of each; -1: all; must agree.
            frontier: [lists] the vertices; those of the last hop stand before the new ones.
            block_indptr: [lists + 1] where the neighbours of each begin.
            taken: see `draw_neighbors`.

        Returns:
            int32 [edges] neighbours, ids of vertices, and the rows of each of `edge_data` for them.

        Cost: 8 bytes on the wire for each new vertex of another rank, and 4 and what its edge data takes for each
        neighbour of one.
        """
        world, rank = self._wire.world, self._wire.world.rank
        new = torch.from_numpy(frontier[self._known :])
        order, counts = group_by_owner(new, self._offsets)
        request = IdRequest(self._wire, new.clone() if order is None else new[order], counts, 0)
        request.send_ids()
        places = torch.arange(self._known, len(frontier))
        for peer, some in enumerate((places if order is None else places[order]).split(counts)):
            self._asked[peer] = torch.cat([self._asked[peer], some])
        self._known = len(frontier)
        for noted, ids in zip(self._noted, request.wait(), strict=True):
            self._note(noted, ids.numpy())
        edges = [edges_of_lists(lists.numpy(), block_indptr) for lists in self._asked]
        drawn = []
        for noted in self._noted:
            lists, bounds = (noted.starts, noted.degrees, noted.inner_hashes), list_bounds(noted.degrees, fanout)
            neighbours, rows = draw_lists(self._indices, self._edge_data, key, lists, bounds, taken)
            drawn.append([neighbours, *rows.values()])
        found: list[Tensor] = []
        for number, own in enumerate(drawn[rank]):
            sends = [of_peer[number] for of_peer in drawn]
            received = [own.new_empty((len(of_peer), *own.shape[1:])) for of_peer in edges]
            received[rank] = own
            world.start_exchange(sends, received, stage=self._wire.stage).wait()
            found.append(own.new_empty((int(block_indptr[-1]), *own.shape[1:])))
            for arrived, of_peer in zip(received, edges, strict=True):
                move_rows(arrived, None, found[-1], torch.from_numpy(of_peer))
        return found[0], dict(zip(self._edge_data, found[1:], strict=True))

    def _note(self, noted: _Noted, ids: npt.NDArray[np.int64]) -> None:
        starts, degrees, hashes = np.empty_like(ids), np.empty_like(ids), np.empty(len(ids), np.uint64)
        look_up_vertices(self._indptr, self._original_ids, ids, 0, len(ids), starts, degrees, hashes)
        noted.starts = np.concatenate([noted.starts, starts])
        noted.degrees = np.concatenate([noted.degrees, degrees])
        noted.inner_hashes = np.concatenate([noted.inner_hashes, hashes])
