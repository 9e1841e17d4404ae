"""Which remote rows a cache holds from one minibatch to the next, where the minibatches to come are known."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.caching.request import RowRequest

__all__ = ["CacheWindow"]

NEVER = float(1 << 40)
"""When a row is due that no known minibatch needs: later than any number of a minibatch. Ranks are added to it."""


class CacheWindow:
    """Keeps, of all remote rows that come by, those that are needed soonest: Belady's rule, as far as it can see.

    Sampling is keyed, so the ids of the next minibatches are known before their rows are asked for::

        minibatch      t      t + 1    t + 2      a cache with room for 2 rows, which holds 9 and 4
        needs         7 9      4 7      8 4
        asks for       7                 8
        keeps         7 4      7 4      ...       instead of 9, which is not in sight

    Rows that are not in sight rank behind those that are: first what the cache was filled with, in that order, which
    should be the most probable first (`windrow.caching.vip`). So the cache is never much worse than one that stays as
    it was filled. L. A. Belady, A study of replacement algorithms, IBM Systems Journal 1966.

    Nothing here is collective.

    Args:
        index: int32 [N], slot of each id, -1 where it is not cached; changed with every plan.
        cached_ids: int64 [C], the id in each slot.
        travels: of each rank, whether its rows come as messages; others are never kept.
        length: minibatches that are known when the one ahead of them is planned.

    Cost:
        16 bytes for each vertex; some passes over the ids and one over the slots for each minibatch.
    """

    def __init__(
        self, index: npt.NDArray[np.int32], cached_ids: Tensor, travels: Sequence[bool], *, length: int
    ) -> None:
        self._length = length
        self._index = index
        self._held = cached_ids.numpy().copy()
        self._travels = np.array(travels)
        # Whole numbers, which float64 adds to NEVER exactly; all others rank behind those.
        self._rank = np.full(len(index), float(len(index)))
        self._rank[self._held] = np.arange(len(self._held))
        self._due = self._out_of_sight(self._held)
        # Of each occurrence of an id that was seen, and not planned, the minibatch that needs the id next.
        self._after = np.empty(0)
        self._first = 0
        self._last = np.full(len(index), -1)
        self._seen = 0

    def planned(self, requests: Iterable[RowRequest]) -> Iterator[RowRequest]:
        """Plan minibatches, each when so many that follow it are known as the window is long, or all there are.

        Args:
            requests: of each minibatch, distinct ids, of which none is taken for cached; drawn when they are needed.

        Yields:
            Each request with what the cache holds of it, and what it keeps: rows that must be there before those of the
            next are read. Who stops early begins anew.
        """
        self._forget()
        seen = deque[RowRequest]()
        for request in requests:
            self._see(request)
            seen.append(request)
            if len(seen) > self._length:
                yield self._plan(seen.popleft())
        while seen:
            yield self._plan(seen.popleft())

    def _forget(self) -> None:
        """Forget what was seen, and is not planned: other minibatches will follow."""
        self._first += len(self._after)
        self._after = np.empty(0)
        self._due = self._out_of_sight(self._held)

    def _see(self, request: RowRequest) -> None:
        """Note what one more minibatch needs."""
        ids = request.remote.numpy()[self._travelling(request)]
        before = self._last[ids] - self._first
        again = before >= 0
        self._after[before[again]] = self._seen
        slots = self._index[ids[~again]]
        self._due[slots[slots >= 0]] = self._seen
        self._last[ids] = self._first + len(self._after) + np.arange(len(ids))
        self._after = np.concatenate([self._after, self._out_of_sight(ids)])
        self._seen += 1

    def _plan(self, request: RowRequest) -> RowRequest:
        """Find what the cache holds of the first minibatch that was seen, and choose what it holds afterwards."""
        travelling = np.flatnonzero(self._travelling(request))
        grouped = request.remote.numpy()
        ids = grouped[travelling]
        after, self._after = np.split(self._after, [len(ids)])
        self._first += len(ids)
        slots = self._index[ids]
        is_cached = slots >= 0
        self._due[slots[is_cached]] = after[is_cached]
        asked = np.flatnonzero(~is_cached)
        # Positions among the rows that come as messages, of those that are due before some row that the cache holds.
        rows = np.flatnonzero(after[asked] < self._due.max(initial=0))
        room = len(self._held)
        due = np.concatenate([self._due, after[asked[rows]]])
        leaves = np.ones(len(due), np.bool_)
        if room:
            leaves[np.argpartition(due, room - 1)[:room]] = False
        freed, rows = np.flatnonzero(leaves[:room]), rows[~leaves[room:]]
        self._index[self._held[freed]] = -1
        self._held[freed], self._due[freed] = ids[asked[rows]], after[asked[rows]]
        self._index[self._held[freed]] = freed
        is_remote = np.ones(len(grouped), np.bool_)
        is_remote[travelling[is_cached]] = False
        places = request.remote_places.numpy()
        counts = np.bincount(self._owners(request)[is_remote], minlength=len(self._travels))
        return replace(
            request,
            cached=torch.from_numpy(slots[is_cached].astype(np.int64)),
            cached_places=torch.from_numpy(places[~is_remote]),
            remote=torch.from_numpy(grouped[is_remote]),
            remote_places=torch.from_numpy(places[is_remote]),
            remote_counts=counts.tolist(),
            kept=torch.from_numpy(rows),
            kept_slots=torch.from_numpy(freed),
        )

    def _out_of_sight(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """When rows are due that no known minibatch needs: those that the cache was filled with before others."""
        due: npt.NDArray[np.float64] = NEVER + self._rank[ids]
        return due

    def _owners(self, request: RowRequest) -> npt.NDArray[np.int64]:
        return np.repeat(np.arange(len(self._travels)), request.remote_counts)

    def _travelling(self, request: RowRequest) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self._travels[self._owners(request)]
        return found
