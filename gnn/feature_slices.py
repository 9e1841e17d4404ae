"""Full-graph training in slices of features: each rank adds up some columns of the rows of all vertices.

    own rows, all columns  --all-to-all-->  rows of all vertices, own columns
                                            sums over all edges
    own sums, all columns  <--all-to-all--  sums of all vertices, own columns

and likewise backward, along edges turned round. What travels grows with vertices, not with the edges between parts: two
exchanges of (n - 1) / n of all rows on n ranks, so this is for graphs that no partition cuts well. Every rank adds up
equally many numbers, in the order of one process.

Source: Ai et al.: NeutronTP, Load-Balanced Distributed Full-Graph GNN Training with Tensor Parallelism, PVLDB 18(2),
2024. There the linear maps of all layers come before all sums, which changes the model and saves exchanges; here not.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.comm.route import Block, Landing, Route
from windrow.comm.rows import near_equal_split
from windrow.gnn.halo import Arrival, HaloExchange, TwoWays, Way

__all__ = ["FeatureSlices"]


class FeatureSlices(HaloExchange):
    """An exchange of slices of all rows, `overlap` aside as `windrow.gnn.halo.HaloExchange`.

    What callers compute hides the way there.

    Args:
        args: of `HaloExchange`, as `more`; no rows of a halo travel.
        whole: all edges of the graph, by ids of the partition.
        offsets: [size + 1] where each part's ids start; must agree.

    Memory: some columns of the rows of all vertices, and of their sums.
    """

    def __init__(self, *args: Any, whole: TwoWays, offsets: Sequence[int], **more: Any) -> None:
        super().__init__(*args, **more)
        self._whole = whole
        self._parts = [slice(*bounds) for bounds in pairwise(offsets)]

    def rows(self, x: Tensor) -> Tensor:
        """Refuse to: RecipeError, as layers that look at each source need whole rows."""
        raise RecipeError(
            f"{len(x)} rows of a layer that looks at each source (gat, Block.with_sources) with full_graph.method = "
            '"feature_slices", where no rank has whole rows of others: choose another method'
        )

    def begin_sums(self, x: Tensor, *, weighted: bool, keeps: bool = False) -> Arrival:
        """See `HaloExchange.begin_sums`."""
        return self._add_slices("rows", x, weighted=weighted, keeps=keeps)

    def begin_spread(self, upstream: Tensor, *, weighted: bool) -> Arrival:
        """See `HaloExchange.begin_spread`."""
        return self._add_slices("gradients", upstream, weighted=weighted)

    def _add_slices(self, way: Way, x: Tensor, *, weighted: bool, keeps: bool = False) -> Arrival:
        wire, world = self._exact if keeps else self._wires[way], self._world
        columns = list(pairwise(near_equal_split(x.shape[1], world.size)))
        first, last = columns[world.rank]
        # Of fewer columns than ranks, some ranks have none, and no messages.
        own = [[Block(0, slice(0, len(x)), of_rank)] if of_rank[0] < of_rank[1] else [] for of_rank in columns]
        parts = [[Block(0, part)] if first < last else [] for part in self._parts]
        slices = x.new_empty(self._parts[-1].stop, last - first)
        there, back = (
            Route(
                wire,
                outgoing,
                [[Landing(0, block) for block in blocks] for blocks in landing],
                [[(block.num_rows, width) for block in blocks] for blocks, width in zip(landing, widths, strict=True)],
            )
            for outgoing, landing, widths in (
                (own, parts, [last - first] * world.size),
                (parts, own, [stop - start for start, stop in columns]),
            )
        )
        with self._stopwatch.measure("halo"):
            transfer = there.start([x], into=[slices])

        def complete() -> Tensor:
            with self._stopwatch.measure("halo"):
                transfer.finish([slices])
            sums = torch.zeros_like(slices)
            if first < last:
                self._whole[way == "gradients"].add(slices, sums, weighted=weighted)
            total = torch.empty_like(x)
            with self._stopwatch.measure("halo"):
                back.start([sums], into=[total]).finish([total])
            return total

        return complete
