"""Minibatches of a prepared log for one rank: which rows each step has, and the reader that decodes them ahead.

The rows of a split are cut into shards, contiguous and near-equal. A global minibatch is dealt from the shards like
cards: its sample at position g of the epoch is the next one of shard ``g mod shards``. Every rank reads a contiguous
block of shards, so that batches of ranks, one after the other, are the global minibatch in the order of shards, and
the same for any number of ranks. 11 rows, 2 shards, batches of 4::

    shard 0   rows 0 1 2 3 4 5      step 0   0 1 | 6 7      2 ranks: rank 0 has 0 1, rank 1 has 6 7
    shard 1   rows 6 7 8 9 10       step 1   2 3 | 8 9
                                   step 2   4 5 | 10       short: what is left

That is the order without shuffling. A shuffle cuts each shard into windows, at multiples of ``shuffle_rows`` of the
row number, takes the windows of a shard in an order of its own in each epoch, and the rows of each window in an order
of its own too. Position (epoch, step) is thus all that resuming needs: nothing depends on what was read before.

Threads read ahead: two decode row groups and shuffle windows, a window each, while another cuts batches::

    row groups of files -> windows, shuffled -> [one per shard] -> batches -> [prefetch_steps] -> training
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from time import perf_counter
from typing import Literal

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.comm.rows import near_equal_split
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.jagged import list_positions
from windrow.recsys.batches.prefetch import ordered_map, prefetch
from windrow.recsys.batches.row_groups import ColumnChoice, RowGroups
from windrow.recsys.batches.transforms import Transforms
from windrow.recsys.batches.windows import GroupBatches, Piece, WindowColumns, batch_of_pieces, read_window
from windrow.recsys.log.store import CURE, ROW_GROUP_ROWS, SESSION_COLUMN, FeatureEntry, LogStore

__all__ = ["BatchReader", "Shards", "Window", "permutation", "permutation_of_runs", "windows_of"]


DECODERS = 2
"""Threads that decode: Arrow decodes the columns of a row group side by side, the largest of which takes half of it."""


@dataclass(frozen=True, slots=True)
class Shards:
    """How the rows of a split are dealt to steps and ranks.

    Attributes:
        num_rows: of the split; may be 0, an epoch then has no step.
        batch_size: samples of a step over all ranks; the last step of an epoch has what is left.
        num_shards: how many shards; where there are more shards than rows, some are empty.

    Raises:
        RecipeError: a batch size or number of shards below 1.
    """

    num_rows: int
    batch_size: int
    num_shards: int

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise RecipeError(f"batch_size = {self.batch_size}: must be at least 1")
        if self.num_shards < 1:
            raise RecipeError(f"reader_shards = {self.num_shards}: must be at least 1")

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, the same on every rank and in every epoch."""
        return -(-self.num_rows // self.batch_size)

    def global_batch_size(self, step: int) -> int:
        """Samples of one step over all ranks, at least 1."""
        assert 0 <= step < self.steps_per_epoch, f"step {step} of an epoch of {self.steps_per_epoch}"
        return self._dealt_before(step + 1) - self._dealt_before(step)

    def rows(self, shard: int) -> tuple[int, int]:
        """The rows of a shard, ``(start, stop)``, numbers in the split."""
        each, longer = divmod(self.num_rows, self.num_shards)
        start = shard * each + min(shard, longer)
        return start, start + each + (shard < longer)

    def places(self, shard: int, step: int) -> tuple[int, int]:
        """Which samples of a shard are in a step: ``(start, stop)``, counted in the order in which it is read."""
        return self.places_before(shard, step), self.places_before(shard, step + 1)

    def places_before(self, shard: int, step: int) -> int:
        """Samples of a shard in the steps before one, 0 <= step <= steps_per_epoch."""
        return (self._dealt_before(step) + self.num_shards - 1 - shard) // self.num_shards

    def step_of(self, shard: int, place: int) -> int:
        """The step that takes the sample of a shard at a place: the inverse of `places`."""
        return (place * self.num_shards + shard) // self.batch_size

    def of_rank(self, rank: int, size: int) -> range:
        """The shards that a rank of so many reads.

        Raises:
            RecipeError: more ranks than shards, so that some rank would never have a sample.
        """
        if size > self.num_shards:
            raise RecipeError(
                f"{size} ranks share {self.num_shards} shards of the log, so {size - self.num_shards} would have no "
                f"samples: set reader_shards to a multiple of {size}, or start at most {self.num_shards} ranks"
            )
        bounds = near_equal_split(self.num_shards, size)
        return range(bounds[rank], bounds[rank + 1])

    def _dealt_before(self, step: int) -> int:
        return min(step * self.batch_size, self.num_rows)


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive rows of a shard that are read together.

    Attributes:
        shard: which.
        start: first row, number in the split.
        stop: first row after.
        first_place: how many samples of the shard come before the window's in the epoch.
    """

    shard: int
    start: int
    stop: int
    first_place: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def end_place(self) -> int:
        """How many samples of the shard the epoch has had after this window."""
        return self.first_place + len(self)


def windows_of(
    shard: int, rows: tuple[int, int], window_rows: int, *, seed: int | None = None, epoch: int = 0
) -> list[Window]:
    """Cut a shard of rows ``(start, stop)`` into windows of `window_rows` at most, in the order in which they are read.

    Cut is at multiples of the row number, not at multiples counted from the shard's start: so a window is a whole row
    group of a file, where shards begin in the middle of one. With a `seed` the order of windows is drawn anew for every
    epoch.
    """
    start, stop = rows
    cuts = [start, *range((start // window_rows + 1) * window_rows, stop, window_rows), stop]
    bounds = [(low, high) for low, high in pairwise(cuts) if low < high]
    if seed is not None:
        order = permutation(stream_key(seed, Stream.SHUFFLE, epoch, shard), len(bounds))
        bounds = [bounds[index] for index in order]
    places = accumulate((high - low for low, high in bounds), initial=0)
    return [Window(shard, low, high, place) for (low, high), place in zip(bounds, places, strict=False)]


def permutation(key: int, length: int) -> npt.NDArray[np.int64]:
    """A random order of ``0 .. length - 1``, [length] int64, a pure function of the key. Cost: one sort.

    Args:
        key: from `windrow.comm.random.stream_key`.
        length: how many, below 2**32.
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
        [n] int64 positions: of 7 7 5 5 5 7, when the second run comes first and the last second, 2 3 4 5 0 1. Cost: a
        sort of as many integers as there are runs, and a few passes over n.
    """
    starts = np.flatnonzero(np.concatenate([[True], sessions[1:] != sessions[:-1]]))
    lengths = np.diff(np.append(starts, len(sessions)))
    drawn = permutation(key, len(starts))
    return list_positions(starts[drawn], lengths[drawn])


class BatchReader:
    """Reads one rank's share of every global minibatch of a split.

    The shares of all ranks, in their order, are the same global minibatch for any number of ranks. Each rank reads
    its own rows alone, and each row once per epoch, so far as `memory_bytes` and row groups allow: a row group that
    two shards share is decoded for both where it was dropped in between.

    Args:
        store: the prepared log.
        split: train, validation or test.
        rank: whose share.
        size: number of ranks.
        batch_size: samples of a step over all ranks.
        reader_shards: contiguous pieces that the rows are cut into, at least one per rank. Minibatches depend on it.
        shuffle: "window" draws an order of windows, and of the rows in each, for every epoch; "sessions" does so
            with the sessions in each, whose rows stay together and in their order; "none" takes rows in their order
            (each shard's).
        shuffle_rows: rows of a window; a multiple of `windrow.recsys.log.store.ROW_GROUP_ROWS` is read fastest.
        seed: the run's seed.
        memory_bytes: decoded row groups kept across windows and epochs. Two windows for each of the rank's shards,
            the row groups of three more and `prefetch_steps` batches come on top.
        prefetch_steps: batches held ready, at least 1.
        groups: features whose lists are held and given once for samples that have the same in all features of a
            group: `Batch.deduplicated` has each group, in this order; other features stay in `Batch.sparse`.
        transforms: made of this store's features; what is done to ids as row groups are decoded.
        transform_once: transform distinct lists of groups alone; without, all lists before they are compared. The
            batches are the same.

    Raises:
        RecipeError: a number out of range, more ranks than shards, an unknown feature in a group, or one in two.
        StoreError: no such split, a file that has no readable footer, or sessions are to be shuffled and the store
            has none.

    Attributes:
        waited_s: seconds that the user of the batches has waited for them so far, over all epochs.
    """

    def __init__(
        self,
        store: LogStore,
        split: str,
        *,
        rank: int,
        size: int,
        batch_size: int,
        reader_shards: int = 8,
        shuffle: Literal["window", "sessions", "none"] = "window",
        shuffle_rows: int = ROW_GROUP_ROWS,
        seed: int = 0,
        memory_bytes: int = 1 << 30,
        prefetch_steps: int = 2,
        groups: Sequence[Sequence[str]] = (),
        transforms: Transforms | None = None,
        transform_once: bool = True,
    ) -> None:
        for name, value, least in (
            ("shuffle_rows", shuffle_rows, 1),
            ("memory_bytes", memory_bytes, 0),
            ("prefetch_steps", prefetch_steps, 1),
        ):
            if value < least:
                raise RecipeError(f"{name} = {value}: must be at least {least}")
        if shuffle not in ("window", "sessions", "none"):
            raise RecipeError(f"shuffle = {shuffle!r}: must be 'window', 'sessions' or 'none'")
        if shuffle == "sessions" and not store.manifest.has_session:
            raise StoreError(
                f"{store.path} has no sessions to shuffle: set session in [log] to the column that names them and "
                f"{CURE}, or set shuffle to 'window'"
            )
        choice = ColumnChoice(
            features=store.features,
            num_dense=store.num_dense,
            num_labels=len(store.labels),
            sample_weights=store.manifest.has_sample_weight,
            groups=tuple(tuple(group) for group in groups),
            transforms=transforms,
            transform_once=transform_once,
            sessions=shuffle == "sessions",
        )
        choice.check_groups()
        of_split = store.split(split)
        self.waited_s = 0.0
        self._choice = choice
        self._shards = Shards(of_split.rows, batch_size, reader_shards)
        self._mine = self._shards.of_rank(rank, size)
        self._groups = RowGroups(of_split, choice, memory_bytes=memory_bytes)
        self._shuffle = shuffle
        self._window_rows = ROW_GROUP_ROWS if shuffle == "none" else shuffle_rows
        self._window_seed = None if shuffle == "none" else seed
        self._seed = seed
        self._prefetch_steps = prefetch_steps

    @property
    def features(self) -> tuple[FeatureEntry, ...]:
        """The features that batches have, in groups or not: the store's after their transforms, and new ones."""
        return self._choice.given

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, the same on every rank."""
        return self._shards.steps_per_epoch

    @property
    def samples_per_epoch(self) -> int:
        """Samples in an epoch, over all ranks."""
        return self._shards.num_rows

    def global_batch_size(self, epoch: int, step: int) -> int:
        """Samples of a step, over all ranks: the batch size, in the last step what is left."""
        del epoch
        return self._shards.global_batch_size(step)

    @contextmanager
    def batches(self, epoch: int, first_step: int = 0) -> Iterator[Iterator[Batch]]:
        """This rank's batches of an epoch, one per step; leaving the context ends the threads that read ahead.

        Args:
            epoch: from 0.
            first_step: where to begin; steps_per_epoch gives no batch.

        Returns:
            Context manager of an iterator. A batch may hold no sample. Its memory is its own.

        Raises:
            StoreError: a row group cannot be read; where its first sample would have come, at the latest.
        """
        assert 0 <= first_step <= self.steps_per_epoch, f"step {first_step} of an epoch of {self.steps_per_epoch}"
        with closing(self._timed(epoch, first_step)) as batches:
            yield batches

    def _timed(self, epoch: int, first_step: int) -> Generator[Batch, None, None]:
        with closing(prefetch(self._steps(epoch, first_step), depth=self._prefetch_steps)) as ready:
            while True:
                began = perf_counter()
                batch = next(ready, None)
                self.waited_s += perf_counter() - began
                if batch is None:
                    return
                yield batch

    def _steps(self, epoch: int, first_step: int) -> Generator[Batch, None, None]:
        needed = self._windows(epoch, first_step)
        current: dict[int, tuple[Window, WindowColumns]] = {}
        features = self._choice.plain
        # Not the reader's own: an epoch that was left early may still be reading when the next one begins.
        groups = GroupBatches(self._choice.groups, list(map(self._choice.is_weighted, self._choice.groups)))
        windows = ordered_map(lambda window: (window, self._shuffled(epoch, window)), needed, workers=DECODERS)
        with closing(prefetch(windows, depth=len(self._mine))) as loaded:
            for step in range(first_step, self.steps_per_epoch):
                pieces = []
                for shard in self._mine:
                    place, stop = self._shards.places(shard, step)
                    while place < stop:
                        if shard not in current or current[shard][0].end_place <= place:
                            current.pop(shard, None)
                            current[shard] = next(loaded)
                        window, columns = current[shard]
                        end = min(stop, window.end_place)
                        pieces.append(Piece(columns, place - window.first_place, end - window.first_place))
                        place = end
                if not pieces:  # A batch of no samples is made of any window.
                    held = [columns for _, columns in current.values()]
                    pieces = [Piece(held[0] if held else read_window(self._groups.covering(0, 1), 0, None), 0, 0)]
                yield batch_of_pieces(pieces, features, groups)

    def _windows(self, epoch: int, first_step: int) -> list[Window]:
        """The windows that this rank still reads in an epoch, in the order in which `_steps` asks for them."""
        found = []
        for shard in self._mine:
            windows = windows_of(
                shard, self._shards.rows(shard), self._window_rows, seed=self._window_seed, epoch=epoch
            )
            begun = self._shards.places_before(shard, first_step)
            found += [
                (self._shards.step_of(shard, max(window.first_place, begun)), shard, window.first_place, window)
                for window in windows
                if window.end_place > begun
            ]
        return [window for _, _, _, window in sorted(found, key=lambda entry: entry[:3])]

    def _shuffled(self, epoch: int, window: Window) -> WindowColumns:
        groups = self._groups.covering(window.start, window.stop)
        order = None
        if self._shuffle != "none":
            key = stream_key(self._seed, Stream.SHUFFLE, epoch, window.shard, window.start)
            if self._shuffle == "sessions":
                parts = [group.columns[SESSION_COLUMN][start:stop] for group, start, stop in groups]
                order = permutation_of_runs(key, np.concatenate(parts))
            else:
                order = permutation(key, len(window))
        return read_window(groups, window.start, order)
