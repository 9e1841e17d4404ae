"""Which rows are wanted most, counted while a run goes on, in bounded memory.

At most `room` rows have a count. What is counted beyond that takes part as soon as others are forgotten: all but the
half that is wanted most are, whenever there is no more room (lossy counting: Manku, Motwani: Approximate Frequency
Counts over Data Streams, VLDB 2002, with the room given in place of the error). A row that is wanted more often than
2 / room of the time is not forgotten for good.

    room 4    counted  9: 5   2: 3   7: 1   4: 1        8 comes      kept  9: 5   2: 3   8: 1
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["HotRows", "most_wanted"]

Longs = npt.NDArray[np.int64]


class HotRows:
    """Counts of rows.

    Args:
        room: rows that have a count at most, at least 2.
    """

    def __init__(self, room: int) -> None:
        self.state = torch.full((2, room), -1, dtype=torch.int64)
        """[2, room] rows in ascending order, those without a count -1 at the end, and counts: everything there is, so
        that a run that goes on chooses as one that was never stopped."""

    def count(self, ids: Tensor, times: Tensor | None = None) -> None:
        """Count rows, [n] int64, each once or so many times."""
        counted = self._counted()
        added = np.ones(len(ids), np.int64) if times is None else times.cpu().numpy()
        rows, places = np.unique(np.concatenate([counted[0], ids.cpu().numpy()]), return_inverse=True)
        counts = np.bincount(places, weights=np.concatenate([counted[1], added])).astype(np.int64)
        room = self.state.shape[1]
        if len(rows) > room:
            kept = np.sort(most_wanted(rows, counts, max(room // 2, 1)))
            rows, counts = rows[kept], counts[kept]
        self.state.fill_(-1)
        self.state[:, : len(rows)] = torch.from_numpy(np.stack([rows, counts]))

    def fade(self) -> None:
        """Let what was counted until now count a sixteenth less; count in large units then."""
        counts = self.state[1]
        counts -= counts.clamp(min=0) // 16

    def counts(self) -> tuple[Longs, Longs]:
        """Rows in ascending order, and how often each was wanted since it is counted."""
        rows, counts = self._counted()
        return rows.copy(), counts.copy()

    def _counted(self) -> Longs:
        found: Longs = self.state.numpy()
        return found[:, found[0] >= 0]


def most_wanted(rows: Longs, counts: Longs, number: int) -> Longs:
    """Places of the rows with the largest counts, largest first; of equal ones the smaller row."""
    return np.lexsort((rows, -counts))[:number]
