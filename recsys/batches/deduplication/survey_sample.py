"""What a survey measures: whole sessions of a prepared log, which of their lists are equal, and what they take on disk.

A block of neighbouring samples would not do where sessions are interleaved, since it holds little of each. So the
sessions of a span, up to 16 times as long, are chosen by a hash of their number, each with all its samples::

    sessions   a b a c b a c c b d ...      a and c chosen, then put together:      a a a c c c

Equal lists have equal numbers, so that looking for repeats is comparing integers::

    item       7    2    7    7           0 1 0 0
    history    [4]  []   [4]  [4, 1]      0 1 0 2       item and history together: 3 distinct samples, 0 1 3
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import StoreError
from windrow.comm.random import hash_ids
from windrow.recsys.batches.arrow_columns import Lists, filled_in
from windrow.recsys.batches.deduplication.distinct_lists import distinct_lists
from windrow.recsys.batches.jagged import jagged_of
from windrow.recsys.batches.row_groups import SplitFiles
from windrow.recsys.log.store import CURE, ROW_GROUP_ROWS, SESSION_COLUMN, TIME_COLUMN, LogSplit, LogStore, SplitWriter

if TYPE_CHECKING:
    from windrow.recsys.batches.batch import Batch

__all__ = [
    "SAMPLE_ROWS",
    "CodedSamples",
    "SessionSample",
    "StorageScales",
    "StorageSizes",
    "choose_sessions",
    "code_batch",
    "code_lists",
    "read_rows",
]

Rows = npt.NDArray[np.int64]

SAMPLE_ROWS = 1 << 18
"""Samples of a survey: 16,000 sessions of 16 samples; rates are then within 1 % of those of the log."""

SPAN = 16
"""Samples that sessions are chosen among, for each that is wanted."""

SESSION_KEY, SHARD_KEY, ORDER_KEY = 0x5E55, 0x5EAD, 0x04D3
"""Key the choice of sessions, of their files, and of their order, so that none follows from how a log was split."""


@dataclass(frozen=True, slots=True)
class SessionSample:
    """Sessions of a split.

    Attributes:
        rows: [n] numbers of their samples in the split, session after session, in order of time (else of the log);
            sessions in the order of the store where that is clustered, else in a random one.
        sessions: [n] session of each.
        as_logged: [m] neighbouring samples in the order in which the log had them before it was clustered, that of
            time; None where the log has no times and is clustered already, so that nobody knows any more how sessions
            were interleaved.
        sessions_as_logged: [m] session of each; [0] where there is no such order.
        is_clustered: whether the samples of each session are neighbours in the store.
    """

    rows: Rows
    sessions: Rows
    as_logged: Rows | None
    sessions_as_logged: Rows
    is_clustered: bool

    @property
    def num_sessions(self) -> int:
        """How many sessions."""
        return int(np.count_nonzero(np.diff(self.sessions))) + 1 if len(self.sessions) else 0

    def sharded(self, num_files: int) -> Rows | None:
        """The samples `as_logged`, dealt to files by session: file after file, each in the log's order."""
        if self.as_logged is None:
            return None
        files = hash_ids(SHARD_KEY, self.sessions_as_logged) % np.uint64(num_files)
        return self.as_logged[np.argsort(files, kind="stable")]


def choose_sessions(store: LogStore, *, max_rows: int = SAMPLE_ROWS) -> SessionSample:
    """Choose sessions out of the middle of the training split: at least one.

    Args:
        store: prepared with sessions.
        max_rows: about the most samples; all of the split where it has no more. Sessions stay whole.

    Raises:
        StoreError: the store has no sessions, or a file cannot be read.
    """
    if not store.manifest.has_session:
        raise StoreError(
            f"{store.path} has no sessions, which deduplication is about: name their column by session = ... in "
            "[log] and run windrow prepare again"
        )
    of_split = store.split("train")
    length = min(of_split.rows, max_rows * SPAN)
    start = (of_split.rows - length) // 2
    has_time = store.manifest.has_time
    table = read_rows(of_split, [SESSION_COLUMN] + [TIME_COLUMN] * has_time, np.arange(start, start + length))
    sessions = table.column(SESSION_COLUMN).to_numpy()
    times = table.column(TIME_COLUMN).to_numpy() if has_time else np.arange(length)
    is_clustered = int(np.count_nonzero(np.diff(sessions))) + 1 == len(np.unique(sessions))
    chosen = np.flatnonzero(_chosen(sessions, max_rows))
    # A clustered store keeps its order. Else sessions are put as windrow prepare would: by a hash of their number.
    keys = sessions[chosen], hash_ids(ORDER_KEY, sessions[chosen])
    rows = chosen if is_clustered else chosen[np.lexsort((chosen, times[chosen], *keys))]
    as_logged: Rows | None
    if is_clustered:
        as_logged = chosen[np.lexsort((chosen, times[chosen]))] if has_time else None
    else:
        as_logged = np.arange(length)[max(0, (length - max_rows) // 2) :][:max_rows]
    return SessionSample(
        rows=rows + start,
        sessions=sessions[rows],
        as_logged=None if as_logged is None else as_logged + start,
        sessions_as_logged=sessions[:0] if as_logged is None else sessions[as_logged],
        is_clustered=is_clustered,
    )


def read_rows(split: LogSplit, columns: Sequence[str], rows: Rows) -> Any:
    """Read columns of the samples `rows` [n] of a split, numbers in any order.

    Returns:
        ``pyarrow.Table`` of n rows in that order, each column in one chunk. Cost: decodes these columns of the row
        groups that hold any of the rows.

    Raises:
        StoreError: a file cannot be read.
    """
    import pyarrow as pa

    order = np.argsort(rows, kind="stable")
    wanted = rows[order]
    parts = []
    files = SplitFiles(split)
    for number, (start, stop) in enumerate(pairwise(files.offsets)):
        first, last = np.searchsorted(wanted, (start, stop))
        if first == last:
            continue
        table = files.read(number, columns, filled_in)
        chosen = wanted[first:last] - start
        whole = len(chosen) == table.num_rows and bool((np.diff(chosen) == 1).all())
        parts.append(table if whole else table.take(pa.array(chosen)))
    if not parts:
        raise StoreError(f"{split.files[0].parent} holds none of the {len(rows)} samples asked for: {CURE}")
    found = pa.concat_tables(parts).combine_chunks()
    if bool((np.diff(order) == 1).all()):
        return found
    return found.take(pa.array(np.argsort(order, kind="stable"))).combine_chunks()


def _chosen(sessions: Rows, max_rows: int) -> npt.NDArray[np.bool_]:
    """Whose sessions are among the share that is wanted; at least one session."""
    if len(sessions) <= max_rows:
        return np.ones(len(sessions), np.bool_)
    draws = hash_ids(SESSION_KEY, sessions)
    bound = np.uint64(2**64 * (max_rows / len(sessions)))
    chosen: npt.NDArray[np.bool_] = draws <= max(bound, draws.min())
    return chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageSizes:
    """Bytes on disk of a sample of the log, all columns, for each sample and in each order."""

    as_logged: float | None
    """In order of time, sessions interleaved; None where that order is not known any more."""
    sharded: float | None
    """Dealt to files by session (O1)."""
    clustered: float
    """Samples of a session next to one another (O2)."""


class StorageScales:
    """Reads columns of a sample, and weighs each in every order, one at a time.

    Args:
        split: of a prepared store.
        chosen: samples of it.
        num_files: files that sessions would be dealt to.
    """

    def __init__(self, split: LogSplit, chosen: SessionSample, num_files: int) -> None:
        self._split = split
        self._orders: dict[str, npt.NDArray[np.int64]] = {"clustered": chosen.rows}
        if chosen.as_logged is not None:
            self._orders["as_logged"] = chosen.as_logged
        sharded = chosen.sharded(num_files)
        if sharded is not None and num_files > 1:
            self._orders["sharded"] = sharded
        self._bytes = dict.fromkeys(self._orders, 0)

    def add(self, columns: list[str], *, of_feature: bool = False) -> Any:
        """Weigh columns, and return a ``pyarrow.Table`` of them in clustered order.

        Args:
            columns: names.
            of_feature: whether they are the ids of a feature, and their weights where it has any: of those a clustered
                store leaves out what repeats.

        Raises:
            StoreError: a file cannot be read.
        """
        repeats = [(columns[0], "".join(columns[1:]))] if of_feature else []
        for name, rows in reversed(self._orders.items()):
            table = read_rows(self._split, columns, rows)
            clustered = name == "clustered"
            self._bytes[name] += _stored_bytes(table, clustered=clustered, repeats=repeats if clustered else ())
        return table

    def sizes(self) -> StorageSizes:
        """Bytes of what was weighed, for each sample."""
        each = {name: self._bytes[name] / len(rows) for name, rows in self._orders.items()}
        as_logged = each.get("as_logged")
        return StorageSizes(as_logged=as_logged, sharded=each.get("sharded", as_logged), clustered=each["clustered"])


def _stored_bytes(columns: Any, *, clustered: bool, repeats: Sequence[tuple[str, str]] = ()) -> int:
    """Bytes of the files, footers included, of samples that are written as in a prepared store."""
    with TemporaryDirectory(prefix="windrow-sizes-") as folder:
        with SplitWriter(Path(folder), "sample", clustered=clustered, repeats=repeats) as writer:
            for batch in columns.to_batches(max_chunksize=ROW_GROUP_ROWS):
                writer.write(batch)
        return sum(path.stat().st_size for path in Path(folder).rglob("*.parquet"))


Codes = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class CodedSamples:
    """Some samples, in an order.

    Attributes:
        codes: feature -> [n] int32, equal for samples with equal lists.
        lengths: feature -> [n] int32 ids of each sample.
    """

    codes: Mapping[str, Codes]
    lengths: Mapping[str, Codes]

    @property
    def num_samples(self) -> int:
        """n; 0 where there is no feature."""
        return len(next(iter(self.codes.values()), ()))

    def take(self, places: npt.NDArray[np.int64]) -> "CodedSamples":
        """Samples [m] in an order of their own."""
        return CodedSamples(
            {name: codes[places] for name, codes in self.codes.items()},
            {name: lengths[places] for name, lengths in self.lengths.items()},
        )

    def num_ids(self, feature: str) -> int:
        """Ids of a feature in all samples."""
        return int(self.lengths[feature].sum(dtype=np.int64))

    def joined(self, group: Sequence[str]) -> Codes:
        """[n] int32, equal for samples that are equal in all features of a group. Cost: a sort for each but one."""
        found = self.codes[group[0]]
        for name in group[1:]:
            codes = self.codes[name]
            # Products of two int32 numbers fit; numbering anew keeps it so.
            both = found * (np.int64(codes.max(initial=0)) + 1) + codes
            found = np.unique(both, return_inverse=True)[1].astype(np.int32)
        return found

    def distinct(self, group: Sequence[str]) -> tuple[int, dict[str, int]]:
        """How many samples differ in a group of one feature or more, and the ids of each feature in these."""
        first = np.unique(self.joined(group), return_index=True)[1]
        return len(first), {name: int(self.lengths[name][first].sum(dtype=np.int64)) for name in group}

    def unchanged(self, group: Sequence[str]) -> npt.NDArray[np.bool_]:
        """[n - 1] which samples are equal to the one before in all features of a group; [0] where there is none."""
        same = np.ones(max(self.num_samples - 1, 0), np.bool_)
        for name in group:
            same &= self.codes[name][1:] == self.codes[name][:-1]
        return same


def code_lists(lists: Lists) -> tuple[Codes, Codes]:
    """Turn the lists of a feature into numbers: ``(codes, lengths)``, each [n] int32."""
    return distinct_lists([lists]).inverse.astype(np.int32), lists.lengths.astype(np.int32)


def code_batch(batch: "Batch") -> CodedSamples:
    """Turn a batch, on the CPU and none of whose features are held once already, into numbers."""
    assert not batch.deduplicated, "its features stand in groups, where repeats are gone"
    codes, lengths = {}, {}
    for name in batch.sparse.keys():  # noqa: SIM118  # a method of TorchRec's container, which cannot be iterated
        codes[name], lengths[name] = code_lists(jagged_of(batch.sparse[name]).to_numpy())
    return CodedSamples(codes, lengths)
