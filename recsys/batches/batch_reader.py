"""Minibatches of a prepared log for one rank, decoded ahead of the training that uses them.

Two threads read ahead, the second in the name of the first::

    row groups of files -> windows, shuffled -> [one per lane] -> batches -> [prefetch_steps] -> training

A stream can be started at any (epoch, step): nothing of it depends on what was read before.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from time import perf_counter
from typing import Literal, TypeVar, cast

from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.random import Stream, stream_key
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.lanes import (
    Lanes,
    Window,
    permutation,
    permutation_of_runs,
    shuffled_windows,
    windows_in_order,
)
from windrow.recsys.batches.prefetch import prefetch
from windrow.recsys.batches.row_groups import ColumnChoice, RowGroups
from windrow.recsys.batches.transforms import Transforms
from windrow.recsys.batches.windows import (
    GroupBatches,
    Piece,
    WindowColumns,
    batch_of_pieces,
    no_samples,
    read_window,
    sessions_of,
)
from windrow.recsys.log.store import CURE, ROW_GROUP_ROWS, FeatureEntry, LogStore

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
        shuffle: "window" draws an order of windows, and of the rows in each, for every epoch; "sessions" does so
            with the sessions in each, whose rows stay together and in their order; "none" takes rows in their order
            (each lane's).
        shuffle_rows: rows of a window; a multiple of `windrow.recsys.log.store.ROW_GROUP_ROWS` is read fastest.
        seed: the run's seed.
        memory_bytes: decoded row groups kept across windows and epochs. Two windows for each of the rank's lanes
            and `prefetch_steps` batches come on top.
        prefetch_steps: batches held ready, at least 1.
        groups: features whose lists are held and given once for samples that have the same in all features of a
            group: `Batch.deduplicated` has each group, in this order; other features stay in `Batch.sparse`.
        transforms: made of this store's features; what is done to ids as row groups are decoded.
        transform_once: transform distinct lists of groups alone; without, all lists before they are compared. The
            batches are the same.

    Raises:
        RecipeError: a number out of range, more ranks than lanes, an unknown feature in a group, or one in two.
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
        lanes: int = 8,
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
            num_dense=len(store.dense),
            groups=tuple(tuple(group) for group in groups),
            transforms=transforms,
            transform_once=transform_once,
            sessions=shuffle == "sessions",
        )
        choice.check_groups()
        of_split = store.split(split)
        self.waited_s = 0.0
        self._choice = choice
        self._lanes = Lanes(of_split.rows, batch_size, lanes)
        self._mine = self._lanes.of_rank(rank, size)
        self._groups = RowGroups(of_split, choice, memory_bytes=memory_bytes)
        self._none = no_samples(choice.plain, choice.num_dense, num_groups=len(choice.groups))
        self._shuffle = shuffle
        self._shuffle_rows = shuffle_rows
        self._seed = seed
        self._prefetch_steps = prefetch_steps

    @property
    def features(self) -> tuple[FeatureEntry, ...]:
        """The features that batches have, in groups or not: the store's after their transforms, and new ones."""
        return self._choice.given

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
        features = self._choice.plain
        # Not the reader's own: an epoch that was left early may still be reading when the next one begins.
        groups = GroupBatches(self._choice.groups, list(map(self._choice.is_weighted, self._choice.groups)))
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
                yield batch_of_pieces(pieces, features, groups)

    def _windows(self, epoch: int, first_step: int) -> list[Window]:
        """The windows that this rank still reads in an epoch, in the order in which `_steps` asks for them."""
        found = []
        for lane in self._mine:
            rows = self._lanes.rows(lane)
            if self._shuffle == "none":
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
        groups = self._groups.covering(window.start, window.stop)
        order = None
        if self._shuffle != "none":
            key = stream_key(self._seed, Stream.SHUFFLE, epoch, window.lane, window.start)
            if self._shuffle == "sessions":
                order = permutation_of_runs(key, sessions_of(groups))
            else:
                order = permutation(key, len(window))
        return window, read_window(groups, window.start, order)


def _ahead(items: Iterator[Item], depth: int) -> Generator[Item, None, None]:
    return cast("Generator[Item, None, None]", prefetch(items, depth=depth))
