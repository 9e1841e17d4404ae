"""Minibatches of a prepared log for one rank, decoded ahead of the training that uses them.

Two threads read ahead, the second in the name of the first::

    row groups of files -> windows, shuffled -> [one per lane] -> batches -> [prefetch_steps] -> training

A stream can be started at any (epoch, step): nothing of it depends on what was read before.
"""

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from time import perf_counter
from typing import Literal, TypeVar, cast

from windrow.comm.errors import RecipeError
from windrow.comm.random import Stream, stream_key
from windrow.recsys.batch import Batch
from windrow.recsys.lanes import Lanes, Window, permutation, shuffled_windows, windows_in_order
from windrow.recsys.prefetch import prefetch
from windrow.recsys.row_groups import RowGroups
from windrow.recsys.store import ROW_GROUP_ROWS, LogStore
from windrow.recsys.window_columns import Piece, WindowColumns, batch_of_pieces, no_samples, read_window

__all__ = ["BatchReader"]

Item = TypeVar("Item")


class BatchReader:
    """Reads one rank's share of every global minibatch of a split.

    The shares of all ranks, in their order, are the same global minibatch for any number of ranks. Each rank reads
    its own rows alone, and each row once per epoch, so far as `memory_bytes` and row groups allow: a row group that
    two lanes share is decoded for both where it was dropped in between.

    Args:
        store: the prepared log.
        split: train, validation or test.
        rank: whose share.
        size: number of ranks.
        batch_size: samples of a step over all ranks.
        lanes: contiguous pieces that the rows are cut into, at least one per rank. Minibatches depend on it.
        shuffle: "window" draws an order of windows, and of the rows in each, for every epoch; "none" takes rows in
            their order (each lane's).
        shuffle_rows: rows of a window; a multiple of `windrow.recsys.store.ROW_GROUP_ROWS` is read fastest.
        seed: the run's seed.
        memory_bytes: decoded row groups kept across windows and epochs. Two windows for each of the rank's lanes
            and `prefetch_steps` batches come on top.
        prefetch_steps: batches held ready, at least 1.

    Raises:
        RecipeError: a number out of range, or more ranks than lanes.
        StoreError: no such split, or a file that has no readable footer.

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
        lanes: int = 8,
        shuffle: Literal["window", "none"] = "window",
        shuffle_rows: int = ROW_GROUP_ROWS,
        seed: int = 0,
        memory_bytes: int = 1 << 30,
        prefetch_steps: int = 2,
    ) -> None:
        for name, value, least in (
            ("shuffle_rows", shuffle_rows, 1),
            ("memory_bytes", memory_bytes, 0),
            ("prefetch_steps", prefetch_steps, 1),
        ):
            if value < least:
                raise RecipeError(f"{name} = {value}: must be at least {least}")
        if shuffle not in ("window", "none"):
            raise RecipeError(f"shuffle = {shuffle!r}: must be 'window' or 'none'")
        of_split = store.split(split)
        self.waited_s = 0.0
        self._lanes = Lanes(of_split.rows, batch_size, lanes)
        self._mine = self._lanes.of_rank(rank, size)
        self._groups = RowGroups(
            of_split, store.features, num_dense=len(store.dense), memory_bytes=memory_bytes
        )
        self._features = store.features
        self._none = no_samples(store.features, len(store.dense))
        self._shuffle_rows = shuffle_rows if shuffle == "window" else None
        self._seed = seed
        self._prefetch_steps = prefetch_steps

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, the same on every rank."""
        return self._lanes.steps_per_epoch

    @property
    def samples_per_epoch(self) -> int:
        """Samples in an epoch, over all ranks."""
        return self._lanes.num_rows

    def global_batch_size(self, epoch: int, step: int) -> int:
        """Samples of a step, over all ranks.

        Args:
            epoch: from 0; all epochs are cut alike.
            step: of the epoch, 0 <= step < steps_per_epoch.

        Returns:
            The batch size; in the last step what is left.
        """
        del epoch
        return self._lanes.global_batch_size(step)

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
        assert 0 <= first_step <= self.steps_per_epoch, (
            f"step {first_step} of an epoch of {self.steps_per_epoch}"
        )
        with closing(self._timed(epoch, first_step)) as batches:
            yield batches

    def _timed(self, epoch: int, first_step: int) -> Generator[Batch, None, None]:
        with closing(_ahead(self._steps(epoch, first_step), self._prefetch_steps)) as ready:
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
        with closing(_ahead(map(partial(self._load, epoch), needed), len(self._mine))) as loaded:
            for step in range(first_step, self.steps_per_epoch):
                pieces = [self._none]
                for lane in self._mine:
                    place, stop = self._lanes.places(lane, step)
                    while place < stop:
                        if lane not in current or current[lane][0].end_place <= place:
                            current.pop(lane, None)
                            current[lane] = next(loaded)
                        window, columns = current[lane]
                        end = min(stop, window.end_place)
                        pieces.append(Piece(columns, place - window.first_place, end - window.first_place))
                        place = end
                yield batch_of_pieces(pieces, self._features)

    def _windows(self, epoch: int, first_step: int) -> list[Window]:
        """The windows that this rank still reads in an epoch, in the order in which `_steps` asks for them."""
        found = []
        for lane in self._mine:
            rows = self._lanes.rows(lane)
            if self._shuffle_rows is None:
                windows = windows_in_order(lane, rows, ROW_GROUP_ROWS)
            else:
                windows = shuffled_windows(lane, rows, self._shuffle_rows, seed=self._seed, epoch=epoch)
            begun = self._lanes.places_before(lane, first_step)
            found += [
                (self._lanes.step_of(lane, max(window.first_place, begun)), lane, window.first_place, window)
                for window in windows
                if window.end_place > begun
            ]
        return [window for _, _, _, window in sorted(found, key=lambda entry: entry[:3])]

    def _load(self, epoch: int, window: Window) -> tuple[Window, WindowColumns]:
        order = None
        if self._shuffle_rows is not None:
            key = stream_key(self._seed, Stream.SHUFFLE, epoch, window.lane, window.start)
            order = permutation(key, len(window))
        groups = self._groups.covering(window.start, window.stop)
        return window, read_window(groups, window.start, order)


def _ahead(items: Iterator[Item], depth: int) -> Generator[Item, None, None]:
    return cast("Generator[Item, None, None]", prefetch(items, depth=depth))
