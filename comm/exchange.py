"""Rows that live on other ranks: fetch them by id, or push gradients back to where they live.

    rank 0 asks for ids 7 2 9 2          rows: ids 0..4 on rank 0, ids 5..9 on rank 1

      deduplicate     7 2 9      inverse 0 1 2 1
      group by owner  2 | 7 9    order 1 0 2
      counts          rank 1 learns that 2 ids come
      ids             7 9     ------------------->  rank 1 gathers rows 7 and 9, encodes them
      rows            r7 r9   <-------------------
      restore order   r7 r2 r9 r2

Three messages between each pair of ranks: counts, ids (8 bytes each), rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from windrow.comm.codec import Codec, Fp32Codec
from windrow.comm.row_stream import RowStream
from windrow.comm.rows import distinct_ids, group_by_owner
from windrow.comm.world import World

__all__ = ["RowExchange"]


class RowExchange:
    """Rows of one matrix, spread over the ranks in contiguous id ranges.

    Args:
        world: all its ranks make the same exchange and call the same methods in the same order.
        offsets: [size + 1], rank r holds ids offsets[r] .. offsets[r + 1] - 1; must agree.
        rows: [offsets[rank + 1] - offsets[rank], ...] this rank's rows, any device; row shape and dtype must agree.
        codec: how rows travel; must agree. Rows of this rank never pass through it.
        stage: name of the traffic in errors and in the meter.

    Raises:
        ValueError: `offsets` or `rows` do not fit the world.
    """

    def __init__(
        self,
        world: World,
        offsets: Sequence[int],
        rows: Tensor,
        *,
        codec: Codec | None = None,
        stage: str = "rows",
    ) -> None:
        self._world = world
        self._offsets = [int(offset) for offset in offsets]
        if len(self._offsets) != world.size + 1:
            raise ValueError(
                f"{len(self._offsets) - 1} id ranges for {world.size} ranks: there must be one each"
            )
        self._first = self._offsets[world.rank]
        held = self._offsets[world.rank + 1] - self._first
        if len(rows) != held:
            raise ValueError(f"rank {world.rank} owns {held} ids but was given {len(rows)} rows")
        self._rows = rows
        self._codec: Codec = codec or Fp32Codec()
        self._stage = stage
        self._stream = RowStream(world, rows, self._codec, stage=f"{stage}: rows")

    @property
    def num_rows(self) -> int:
        """Rows over all ranks."""
        return self._offsets[-1]

    @property
    def row_shape(self) -> torch.Size:
        """Shape of one row."""
        return self._rows.shape[1:]

    def fetch(self, ids: Tensor, *, unique: bool = False, out: Tensor | None = None) -> Tensor:
        """Gather rows from wherever they live. Collective: every rank calls it, if with no ids.

        Args:
            ids: [n] int64, 0 <= id < num_rows, in any order; n may differ between ranks and be 0.
            unique: the caller knows that no id repeats, so the search for duplicates is skipped.
            out: [n, ...] contiguous memory for the result, with `unique` only: large new memory costs as much time
                as filling it, so a caller that fetches at every step keeps its own. None: new memory.

        Returns:
            [n, ...] rows in the order of `ids`, of the dtype and device of `rows`; what came from another rank is
            as exact as the codec.

        Raises:
            DataError: an id is out of range.
            DeadlineError: a rank did not come in time.

        Cost: 8 + encoded row bytes on the wire for each distinct id of another rank.
        """
        if not unique:
            assert out is None, "rows that repeat are copied out of distinct ones, so out would save nothing"
            distinct, inverse = distinct_ids(ids)
            return self.fetch(distinct, unique=True).index_select(0, inverse)
        ids = ids.to(self._rows.device)
        order, counts = group_by_owner(ids, self._offsets)
        grouped = ids if order is None else ids[order]
        if self._world.meter is not None:
            own = counts[self._world.rank]
            self._world.meter.record_found(f"{self._stage}: rows", local=own, remote=sum(counts) - own)
        asked = self._exchange_ids(list(grouped.split(counts)))
        fetched = self._rows.new_empty((len(ids), *self.row_shape)) if out is None else out
        self._stream.move([request - self._first for request in asked], counts, order, fetched)
        return fetched

    def push(self, ids: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Send gradients of rows to the ranks that own them. Collective: every rank calls it, if with no ids.

        Args:
            ids: [n] int64, may repeat.
            gradients: [n, ...] one for each id, of the dtype and device of `rows`.

        Returns:
            What this rank received for its own rows: ``(positions, sums)``, positions [m] int64 distinct and
            ascending, 0 <= position < rows held here; sums [m, ...] added up over ids that repeat and over ranks,
            in rank order, so on the CPU the result does not depend on timing.

        Raises:
            DataError: an id is out of range.
            DeadlineError: a rank did not come in time.
        """
        distinct, summed = _sum_by_id(ids.to(self._rows.device), gradients)
        order, counts = group_by_owner(distinct, self._offsets)
        assert order is None, "sorted ids are grouped by owner"
        rank = self._world.rank
        received_ids = self._exchange_ids(list(distinct.split(counts)))
        outgoing = list(summed.split(counts))
        arrived = [summed.new_empty((len(theirs), *self.row_shape)) for theirs in received_ids]
        arrived[rank] = outgoing[rank]
        nothing = summed[:0]
        sends = [nothing if p == rank else self._codec.encode(rows) for p, rows in enumerate(outgoing)]
        wires = [nothing if p == rank else self._codec.wire_buffer(rows) for p, rows in enumerate(arrived)]
        self._world.start_exchange(sends, wires, stage=f"{self._stage}: gradients").wait()
        for peer, (wire, rows) in enumerate(zip(wires, arrived, strict=True)):
            if peer != rank:
                self._codec.decode(wire, out=rows)
        return _sum_by_id(torch.cat(received_ids) - self._first, torch.cat(arrived))

    def _exchange_ids(self, wanted: list[Tensor]) -> list[Tensor]:
        """Tell each owner which ids are wanted; returns what each rank wants of this one (itself: nothing sent)."""
        rank, stage = self._world.rank, f"{self._stage}: ids"
        counts = self._world.all_to_all_counts([len(ids) for ids in wanted], stage=stage)
        asked = [ids.new_empty(count) for ids, count in zip(wanted, counts, strict=True)]
        asked[rank] = wanted[rank]
        self._world.start_exchange(wanted, asked, stage=stage).wait()
        return asked


def _sum_by_id(ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    distinct, inverse = torch.unique(ids, return_inverse=True)
    sums = rows.new_zeros((len(distinct), *rows.shape[1:]))
    return distinct, sums.index_add_(0, inverse, rows)
