"""Multi-hop neighbour sampling: seeds in, a minibatch of blocks out.

    fanouts = [2, 1]          frontier after each hop (local ids, first seen first)

    seeds                     [ 0 1 ]
    hop 0: 2 neighbours each  [ 0 1 | 2 3 4 ]        blocks[1]: 2 destinations, 5 sources
    hop 1: 1 neighbour each   [ 0 1   2 3 4 | 5 6 ]  blocks[0]: 5 destinations, 7 sources

The frontier is cumulative, as in PyG, DGL and SALIENT (Kaler et al., MLSys 2022): every hop expands all
vertices found so far, because each layer needs the previous layer's row of a vertex itself as well.

Local ids are kept in an array of all vertices, as base + local id. Smaller entries are left from earlier samples:
raising the base past all entries forgets them at no cost, until the numbers run out.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.options import PositiveInt, checked_dataclass
from windrow.comm.random import Stream, stream_key
from windrow.comm.wire import StorageName
from windrow.gnn.message_passing import Block, Minibatch, weighted_degrees
from windrow.gnn.sampler_kernels import (
    draw_neighbors,
    find_lists,
    list_bounds,
    look_up_lists,
    look_up_vertices,
    number_vertices,
    place_seeds,
)
from windrow.gnn.types import GraphTypes

if TYPE_CHECKING:
    from windrow.gnn.remote_lists import RemoteLists

__all__ = ["Fanout", "NeighborSampler", "SamplerOptions", "draw_lists"]

Fanout: TypeAlias = PositiveInt | Literal[-1]
"""Neighbours sampled per vertex at one hop; -1 takes all."""


@checked_dataclass
class SamplerOptions:
    """How minibatches are made."""

    fanouts: Annotated[tuple[Fanout, ...], Field(min_length=1)] = (15, 10, 5)
    """Neighbours sampled per vertex at each hop, from the seeds outwards; -1 takes all. Where edges have types, so many
    of each type."""

    order: Literal["global", "local"] = "global"
    """"global": every epoch shuffles all training vertices, and a rank works on those of the minibatch that it owns,
    so the answer does not depend on the number of ranks. "local": every rank shuffles its own (SALIENT++)."""

    storage: StorageName = "fp32"
    """Number format in which features are kept in memory; the model computes in fp32 all the same."""


LARGEST_INT32 = 2**31 - 1

DEGREES_AT_ONCE = 1 << 20
"""Which are looked at: all of them would take as much memory as `indptr`."""


class NeighborSampler:
    """Samples neighbours uniformly without replacement, hop by hop.

    `fanouts` counts hops from the seeds outwards, as PyG does (`NeighborLoader(num_neighbors=fanouts)`); DGL counts
    layers of the model, `NeighborSampler(fanouts[::-1])`. A vertex with at most that many neighbours, and every vertex
    where the fanout is -1, sends all of its neighbour list in its order. Entries of the list are what is sampled: where
    a neighbour stands in it twice it may come out twice. Where edges have types, each type's part of a list is a list,
    as in `HeteroData` of PyG and in DGL.

    What a vertex samples, and in which order, depends only on (seed, epoch, step, hop, original id) and its
    neighbour list: not on the rank, the other seeds or the thread.

    `sample` may be called from several threads at once and holds the interpreter lock only between its
    loops, so it runs beside training. Each thread keeps its own working memory: 42 bytes per sampled vertex, where
    edges have types 26 for each type of edges that enters it besides, and 4 bytes per vertex of the graph.
    """

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        fanouts: Sequence[int],
        *,
        seed: int,
        original_ids: Tensor | None = None,
        source_degrees: bool = False,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        edge_type: Tensor | None = None,
        types: GraphTypes | None = None,
        splits_by_type: bool = False,
        remote: "RemoteLists | None" = None,
    ) -> None:
        """Keep the graph by reference; it must not change afterwards.

        Args:
            indptr: int64 [N + 1], where each vertex's list of in-neighbours starts, on the CPU.
            indices: int32 or int64 [E], the lists one after another; `Graph.validate` checks them, not this class.
            fanouts: neighbours per vertex for each hop from the seeds outwards; at least 1, or -1 for all.
            seed: the run's seed.
            original_ids: int64 [N], the user's id of each vertex; None where ids are the user's.
            source_degrees: fill in `Block.source_degrees`, for layers that divide by the degree of a source.
            edge_weight: float32 [E], in the order of `indices`, for `Block.edge_weight`; None for none.
            edge_attr: float32 [E, D], likewise, for `Block.edge_attr`.
            edge_type: int16 [E], likewise, never falling inside a list, for `Block.edge_type`.
            types: what these are, and the types of vertices.
            splits_by_type: whether pipelines make `Block.typed` as well, for layers that ask for it.
            remote: draws from the lists of all ranks, where each reads its own alone, of edges without types; `sample`
                is collective then, and called from one thread at a time. None: all lists are read here.

        Raises:
            RecipeError: `fanouts` is empty or holds a number that is neither positive nor -1.
            DataError: an array has the wrong type, shape or device, or N is 2**31 - 1 or more.
        """
        if not fanouts:
            raise RecipeError("fanouts = []: give one for each hop, from the seeds outwards")
        if any(fanout < 1 and fanout != -1 for fanout in fanouts):
            raise RecipeError(f"fanouts = {list(fanouts)}: each must be at least 1, or -1 for all neighbours")
        _check_array("indptr", indptr, (torch.int64,))
        _check_array("indices", indices, (torch.int32, torch.int64))
        self.num_vertices = indptr.shape[0] - 1
        if not 0 <= self.num_vertices < LARGEST_INT32:
            raise DataError(f"indptr has {indptr.shape[0]} entries; the sampler takes 1 to {LARGEST_INT32}")
        if original_ids is not None:
            _check_array("original_ids", original_ids, (torch.int64,))
            if len(original_ids) != self.num_vertices:
                raise DataError(
                    f"original_ids has {len(original_ids)} entries for {self.num_vertices} vertices: give one for each"
                )
        self.fanouts = tuple(fanouts)
        self.seed = seed
        self._indptr = indptr.contiguous().numpy()
        self._indices = indices.contiguous().numpy()
        self._original_ids = None if original_ids is None else original_ids.contiguous().numpy()
        if edge_type is not None:
            _check_array("edge_type", edge_type, (torch.int16,))
        if (edge_type is None) != (types is None) or (edge_type is not None and len(edge_type) != len(indices)):
            given = "none" if edge_type is None else len(edge_type)
            raise DataError(f"edge_type has {given} entries for {len(indices)} edges, types {types}: give both in full")
        self._edge_type = None if edge_type is None else edge_type.contiguous().numpy()
        self._types = types
        self.splits_by_type = splits_by_type and types is not None
        self._source_degrees = source_degrees
        self._edge_data = {
            name: rows for name, rows in (("edge_weight", edge_weight), ("edge_attr", edge_attr)) if rows is not None
        }
        self.remote = remote
        self._weighted_degrees = None
        if source_degrees and edge_weight is not None:
            sums = weighted_degrees(indptr, edge_weight) if remote is None else remote.weighted_degrees(edge_weight)
            self._weighted_degrees = sums
        starts = range(0, self.num_vertices, DEGREES_AT_ONCE)
        largest_degree = max((int(np.diff(self._indptr[i : i + DEGREES_AT_ONCE + 1]).max()) for i in starts), default=0)
        if largest_degree > LARGEST_INT32:
            raise DataError(f"a vertex has {largest_degree} neighbours, the sampler takes {LARGEST_INT32}: remove some")
        self._workspace = _Workspace(self.num_vertices, largest_degree)

    def sample(self, seeds: Tensor, *, epoch: int, step: int) -> Minibatch:
        """Sample the neighbourhood of `seeds`.

        Args:
            seeds: int64 [B], unique vertex ids, else DataError; B may be 0.
            epoch: counter of the randomness.
            step: counter of the randomness: global step of the epoch, the same on all ranks.

        Returns:
            One block per hop in the order of layers, so `blocks[-1]` is hop 0; the indices of blocks are
            int32. Local ids are in first-seen order, so the seeds are the first rows of every block.

        Cost: O(vertices + edges sampled), independent of the size of the graph after a thread's first call.
        """
        _check_array("seeds", seeds, (torch.int64,))
        workspace = self._workspace
        workspace.begin(seeds.contiguous().numpy())
        if self.remote is not None:
            self.remote.begin()
        blocks = [
            self._sample_hop(workspace, stream_key(self.seed, Stream.SAMPLE, epoch, step, hop), fanout)
            for hop, fanout in enumerate(self.fanouts)
        ]
        inputs = workspace.frontier[: workspace.found].copy()
        if self._types is not None:
            users = inputs if self._original_ids is None else self._original_ids[inputs]
            source_types = self._types.of(torch.from_numpy(users))
            blocks = [replace(block, source_types=source_types[: block.num_src]) for block in blocks]
        if self._source_degrees:
            # The sources of every block are the first of the inputs.
            if self._weighted_degrees is None:
                degrees = torch.from_numpy(self._indptr[inputs + 1] - self._indptr[inputs])
            else:
                degrees = self._weighted_degrees[torch.from_numpy(inputs)]
            blocks = [replace(block, source_degrees=degrees[: block.num_src]) for block in blocks]
        input_ids = torch.from_numpy(inputs)
        return Minibatch(seeds=seeds, input_ids=input_ids, blocks=blocks[::-1])

    def _sample_hop(self, workspace: "_Workspace", key: int, fanout: int) -> Block:
        """Expand every vertex found so far."""
        num_dst = workspace.found
        num_lists = self._look_up(workspace)
        list_indptr = list_bounds(workspace.degrees[:num_lists], fanout)
        if self.remote is not None:
            frontier = workspace.frontier[:num_dst]
            drawn, rows = self.remote.draw(key, fanout, frontier, list_indptr, workspace.taken)
        else:
            lists = workspace.starts, workspace.degrees, workspace.inner_hashes
            drawn, rows = draw_lists(self._indices, self._edge_data, key, lists, list_indptr, workspace.taken)
        block_indices, of_edges = drawn.numpy(), dict[str, Any](rows)
        workspace.reserve(num_dst + len(block_indices))
        workspace.found = number_vertices(
            block_indices, workspace.first_seen, workspace.base, workspace.frontier, num_dst
        )
        indptr = list_indptr
        if self._types is not None:
            indptr = list_indptr[workspace.list_ends[: num_dst + 1]]
            edge_type = np.repeat(workspace.list_types[:num_lists], np.diff(list_indptr))
            of_edges |= {"edge_type": torch.from_numpy(edge_type), "types": self._types}
        return Block(
            num_src=workspace.found,
            num_dst=num_dst,
            indptr=torch.from_numpy(indptr),
            indices=torch.from_numpy(block_indices),
            **of_edges,
        )

    def _look_up(self, workspace: "_Workspace") -> int:
        """Note the lists of the vertices that the last hop found, and give how many there are of all found so far."""
        first, found = workspace.looked_up, workspace.found
        workspace.looked_up = found
        # Ranks that sample together hash the ids of the vertices whose lists they have: see `RemoteLists`.
        where = (self._original_ids if self.remote is None else None, workspace.frontier, first, found)
        if self._edge_type is None:
            workspace.reserve_lists(len(workspace.frontier))
            look_up_vertices(self._indptr, *where, workspace.starts, workspace.degrees, workspace.inner_hashes)
            return found
        find_lists(self._indptr, self._edge_type, *where[1:], workspace.list_ends)
        num_lists = int(workspace.list_ends[found])
        workspace.reserve_lists(num_lists)
        look_up_lists(
            self._indptr,
            self._edge_type,
            *where,
            workspace.list_ends,
            workspace.starts,
            workspace.degrees,
            workspace.inner_hashes,
            workspace.list_types,
        )
        return num_lists


def draw_lists(
    indices: npt.NDArray[Any],
    edge_data: Mapping[str, Tensor],
    key: int,
    lists: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint64]],
    block_indptr: npt.NDArray[np.int64],
    taken: npt.NDArray[np.uint64],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Draw neighbours from lists: int32 [edges], and the rows of each of `edge_data` [E, ...].

    `lists` are starts, degrees and inner hashes; see `draw_neighbors`.
    """
    neighbours = np.empty(int(block_indptr[-1]), np.int32)
    places = np.empty(len(neighbours), np.int64) if edge_data else None
    draw_neighbors(np.uint64(key), indices, *lists, block_indptr, taken, neighbours, places)
    of_edges = {name: rows[torch.from_numpy(places)] for name, rows in edge_data.items() if places is not None}
    return torch.from_numpy(neighbours), of_edges


class _Workspace(threading.local):
    """What a thread reuses from sample to sample; each has its own."""

    def __init__(self, num_vertices: int, largest_degree: int) -> None:
        self.num_vertices = num_vertices
        self.base = 1
        self.first_seen: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        self.taken: npt.NDArray[np.uint64] = np.zeros(largest_degree // 64 + 1, np.uint64)
        self.found = 0
        """Vertices in the frontier."""
        self.frontier: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.looked_up = 0
        """How many of them have their lists noted in the arrays below."""
        self.list_ends: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        """Where edges have types, where each vertex's lists start in the other arrays."""
        self.list_types: npt.NDArray[np.int16] = np.empty(0, np.int16)
        self.starts: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.degrees: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.inner_hashes: npt.NDArray[np.uint64] = np.empty(0, np.uint64)

    def begin(self, seeds: npt.NDArray[np.int64]) -> None:
        """Forget the last sample and make `seeds` the frontier."""
        if not len(self.first_seen):  # A thread that never samples needs none: it is as long as the graph.
            self.first_seen = np.zeros(self.num_vertices, np.int32)
        self.base += self.found
        if self.base > LARGEST_INT32 - self.num_vertices:
            self.first_seen.fill(0)
            self.base = 1
        self.looked_up = self.found = 0
        self.reserve(len(seeds))
        # Also where one is refused: its entries must be forgotten.
        self.found = min(len(seeds), self.num_vertices)
        refused = place_seeds(seeds, self.first_seen, self.base, self.frontier)
        if refused >= 0:
            vertex = int(seeds[refused])
            if not 0 <= vertex < self.num_vertices:
                raise DataError(f"seed {vertex} at position {refused} is not a vertex of 0..{self.num_vertices - 1}")
            raise DataError(
                f"seed {vertex} stands at position {refused} and earlier too: give each seed once, "
                "for example torch.unique(seeds)"
            )

    def reserve(self, most: int) -> None:
        """Make room for `most` vertices, or all of the graph, and one that is written past the end."""
        most = min(most, self.num_vertices) + 1
        if most > len(self.frontier):
            # Twice as much, so that growing stays cheap.
            self._grow(max(most, 2 * len(self.frontier)), "frontier", "list_ends")

    def reserve_lists(self, most: int) -> None:
        """Make room for `most` lists."""
        if most > len(self.starts):
            self._grow(max(most, 2 * len(self.starts)), "starts", "degrees", "inner_hashes", "list_types")

    def _grow(self, length: int, *names: str) -> None:
        for name in names:
            old = getattr(self, name)
            larger = np.zeros(length, old.dtype)
            larger[: len(old)] = old
            setattr(self, name, larger)


def _check_array(name: str, array: Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    if array.ndim != 1 or array.dtype not in dtypes or array.device.type != "cpu":
        raise DataError(
            f"{name} is {array.dtype} of shape {list(array.shape)} on {array.device}: "
            f"give one dimension of {' or '.join(map(str, dtypes))} on the CPU"
        )
