"""Which rows of a log are read in which step, and by which rank: arithmetic alone, no state.

The rows of a split are cut into lanes, contiguous and near-equal. A global minibatch is dealt from the lanes like
cards: its sample at position g of the epoch is the next one of lane ``g mod lanes``. Every rank reads a contiguous
block of lanes, so that batches of ranks, one after the other, are the global minibatch in the order of lanes, and
the same for any number of ranks. 11 rows, 2 lanes, batches of 4::

    lane 0   rows 0 1 2 3 4 5      step 0   0 1 | 6 7      2 ranks: rank 0 has 0 1, rank 1 has 6 7
    lane 1   rows 6 7 8 9 10       step 1   2 3 | 8 9
                                   step 2   4 5 | 10       short: what is left

That is the order without shuffling. A shuffle cuts each lane into windows, at multiples of ``shuffle_rows`` of the
row number, takes the windows of a lane in an order of its own in each epoch, and the rows of each window in an order
of its own too. Position (epoch, step) is thus all that resuming needs.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import RecipeError
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.comm.rows import near_equal_split

__all__ = [
    "Lanes",
    "Window",
    "permutation",
    "permutation_of_runs",
    "shuffled_windows",
    "windows_in_order",
]


@dataclass(frozen=True, slots=True)
class Lanes:
    """How the rows of a split are dealt to steps and ranks.

    Attributes:
        num_rows: of the split; may be 0, an epoch then has no step.
        batch_size: samples of a step over all ranks; the last step of an epoch has what is left.
        num_lanes: how many lanes; where there are more lanes than rows, some are empty.

    Raises:
        RecipeError: a batch size or number of lanes below 1.
    """

    num_rows: int
    batch_size: int
    num_lanes: int

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise RecipeError(f"batch_size = {self.batch_size}: must be at least 1")
        if self.num_lanes < 1:
            raise RecipeError(f"lanes = {self.num_lanes}: must be at least 1")

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, the same on every rank and in every epoch."""
        return -(-self.num_rows // self.batch_size)

    def global_batch_size(self, step: int) -> int:
        """Samples of one step over all ranks, at least 1.

        Args:
            step: of an epoch, 0 <= step < steps_per_epoch.
        """
        assert 0 <= step < self.steps_per_epoch, f"step {step} of an epoch of {self.steps_per_epoch}"
        return self._dealt_before(step + 1) - self._dealt_before(step)

    def rows(self, lane: int) -> tuple[int, int]:
        """The rows of a lane, ``(start, stop)``, numbers in the split."""
        each, longer = divmod(self.num_rows, self.num_lanes)
        start = lane * each + min(lane, longer)
        return start, start + each + (lane < longer)

    def places(self, lane: int, step: int) -> tuple[int, int]:
        """Which samples of a lane are in a step.

        Args:
            lane: 0 <= lane < num_lanes.
            step: of an epoch, 0 <= step < steps_per_epoch.

        Returns:
            ``(start, stop)``, counted from 0 in the order in which the lane is read.
        """
        return self.places_before(lane, step), self.places_before(lane, step + 1)

    def places_before(self, lane: int, step: int) -> int:
        """Samples of a lane in the steps before one, 0 <= step <= steps_per_epoch."""
        return (self._dealt_before(step) + self.num_lanes - 1 - lane) // self.num_lanes

    def step_of(self, lane: int, place: int) -> int:
        """The step that takes the sample of a lane at a place: the inverse of `places`."""
        return (place * self.num_lanes + lane) // self.batch_size

    def of_rank(self, rank: int, size: int) -> range:
        """The lanes that a rank reads.

        Args:
            rank: 0 <= rank < size.
            size: number of ranks.

        Raises:
            RecipeError: more ranks than lanes, so that some rank would never have a sample.
        """
        if size > self.num_lanes:
            raise RecipeError(
                f"{size} ranks share {self.num_lanes} lanes of the log, so {size - self.num_lanes} would have no "
                f"samples: set lanes to a multiple of {size}, or start at most {self.num_lanes} ranks"
            )
        bounds = near_equal_split(self.num_lanes, size)
        return range(bounds[rank], bounds[rank + 1])

    def _dealt_before(self, step: int) -> int:
        return min(step * self.batch_size, self.num_rows)


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive rows of a lane that are read together.

    Attributes:
        lane: which.
        start: first row, number in the split.
        stop: first row after.
        first_place: how many samples of the lane come before the window's in the epoch.
    """

    lane: int
    start: int
    stop: int
    first_place: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def end_place(self) -> int:
        """How many samples of the lane the epoch has had after this window."""
        return self.first_place + len(self)


def windows_in_order(lane: int, rows: tuple[int, int], window_rows: int) -> list[Window]:
    """Cut a lane at multiples of a row number.

    Not at multiples counted from the lane's start: so a window is a whole row group of a file, where lanes begin in
    the middle of one.

    Args:
        lane: number of the lane.
        rows: ``(start, stop)`` of the lane.
        window_rows: the most rows in a window, at least 1.

    Returns:
        The windows in the order of rows; none for an empty lane.
    """
    return _placed(lane, _cuts(rows, window_rows))


def shuffled_windows(
    lane: int, rows: tuple[int, int], window_rows: int, *, seed: int, epoch: int
) -> list[Window]:
    """Cut a lane as `windows_in_order` does, and draw the order of windows for an epoch.

    Args:
        lane: number of the lane.
        rows: ``(start, stop)`` of the lane.
        window_rows: the most rows in a window, at least 1.
        seed: the run's seed.
        epoch: from 0.

    Returns:
        The windows in the order in which they are read.
    """
    cuts = _cuts(rows, window_rows)
    order = permutation(stream_key(seed, Stream.SHUFFLE, epoch, lane), len(cuts))
    return _placed(lane, [cuts[index] for index in order.tolist()])


def permutation(key: int, length: int) -> npt.NDArray[np.int64]:
    """A random order of ``0 .. length - 1``, a pure function of the key.

    Args:
        key: from `windrow.comm.random.stream_key`.
        length: how many, below 2**32.

    Returns:
        [length] int64.

    Cost:
        One sort of `length` integers.
    """
    # Numbers and their positions in one integer: sorting that is several times faster than argsort.
    bits = np.uint64(max(length - 1, 0).bit_length())
    positions = np.arange(length, dtype=np.uint64)
    tagged = ((hash_ids(key, positions) >> bits) << bits) | positions
    tagged.sort()
    return (tagged & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)


def permutation_of_runs(key: int, sessions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """A random order of runs of equal numbers, each run staying together and in its order.

    Args:
        key: from `windrow.comm.random.stream_key`.
        sessions: [n] int64; a run is a longest stretch of one number, so one number may have several.

    Returns:
        [n] int64 positions: of 7 7 5 5 5 7, when the second run comes first and the last second, 2 3 4 5 0 1.

    Cost:
        One sort of as many integers as there are runs, and a few passes over n.
    """
    if not len(sessions):
        return np.zeros(0, np.int64)
    starts = np.flatnonzero(np.concatenate([[True], sessions[1:] != sessions[:-1]]))
    lengths = np.diff(np.append(starts, len(sessions)))
    drawn = permutation(key, len(starts))
    lengths = lengths[drawn]
    # Where a run goes, less where it is: added to each of its places.
    shifts = starts[drawn] - (np.cumsum(lengths) - lengths)
    order: npt.NDArray[np.int64] = np.arange(len(sessions)) + np.repeat(shifts, lengths)
    return order


def _cuts(rows: tuple[int, int], window_rows: int) -> list[tuple[int, int]]:
    start, stop = rows
    first_cut = (start // window_rows + 1) * window_rows
    bounds = [start, *range(first_cut, stop, window_rows), stop]
    return [(low, high) for low, high in pairwise(bounds) if low < high]


def _placed(lane: int, cuts: list[tuple[int, int]]) -> list[Window]:
    windows, place = [], 0
    for start, stop in cuts:
        windows.append(Window(lane, start, stop, place))
        place = windows[-1].end_place
    return windows
