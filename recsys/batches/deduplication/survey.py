"""What repeats in a prepared log: formulas on whole sessions of it, and counts in the batches of a clustered log.

A block of neighbouring samples would not do where sessions are interleaved, since it holds little of each. So the
sessions of a span, up to 16 times as long, are chosen by a hash of their number, each with all its samples::

    sessions   a b a c b a c c b d ...      a and c chosen, then put together:      a a a c c c

Equal lists get equal numbers, so that looking for repeats is comparing integers::

    item       7    2    7    7           0 1 0 0
    history    [4]  []   [4]  [4, 1]      0 1 0 2       item and history together: 3 distinct samples, 0 1 3

Formulas: `windrow.recsys.batches.deduplication.options`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import StoreError
from windrow.comm.random import hash_ids
from windrow.recsys.batches.arrow_columns import filled_in
from windrow.recsys.batches.batch_reader import Shards
from windrow.recsys.batches.deduplication.distinct_lists import distinct_lists
from windrow.recsys.batches.deduplication.options import dedupe_factor, left_of_batch, samples_per_session_in_batch
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.row_groups import ColumnChoice, Columns, SplitFiles
from windrow.recsys.batches.transforms import Transforms
from windrow.recsys.log.store import CURE, DENSE_COLUMN, SESSION_COLUMN, TIME_COLUMN, WEIGHTS_SUFFIX, LogSplit, LogStore

__all__ = ["SAMPLE_ROWS", "LogSurvey", "choose_sessions", "cut_batches", "read_rows", "survey_log"]

Rows = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]

SAMPLE_ROWS = 1 << 18
"""Samples of a survey: 16,000 sessions of 16 samples; rates are then within 1 % of those of the log."""

SPAN = 16
"""Samples that sessions are chosen among, for each that is wanted."""

SESSION_KEY, ORDER_KEY, ID_KEY = 0x5E55, 0x04D3, 0x1D5
"""Key the choice of sessions, their order, and the choice of ids, so that none follows from how a log was split."""

BATCHES = 8
"""Batches that are counted, spread over the sample."""

ID_SAMPLE = 1 << 14
"""Ids of each feature that are kept, to tell how many fall into a range of rows: within 0.4 % of all, one deviation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSurvey:
    """What repeats in a log, by a sample of n samples in clustered order.

    Attributes:
        num_samples: n.
        num_sessions: their sessions.
        split_samples: samples of the training split.
        is_clustered: whether the samples of each session are neighbours in the store.
        batch_size: B, samples of one rank's batch.
        pieces: runs of neighbours that it is made of: the shards that the rank reads.
        codes: feature -> [n] int32, equal for samples with equal lists.
        lengths: feature -> [n] int32 ids of each sample.
        repeated: feature -> [n - 1] whether a sample has the list of the one before, which is of the same session.
        ids: feature -> some of its ids, sorted.
        batch_ids: feature -> its distinct ids of each of `batches`, all together, sorted.
        batches: positions in the sample of each of some batches of a clustered log.
    """

    num_samples: int
    num_sessions: int
    split_samples: int
    is_clustered: bool
    batch_size: float
    pieces: float
    codes: Mapping[str, Codes]
    lengths: Mapping[str, Codes]
    repeated: Mapping[str, npt.NDArray[np.bool_]]
    ids: Mapping[str, Rows]
    batch_ids: Mapping[str, Rows]
    batches: Sequence[Rows]

    @property
    def features(self) -> tuple[str, ...]:
        """All features that the reader gives, in its order."""
        return tuple(self.codes)

    @property
    def samples_per_session(self) -> float:
        """S of the log."""
        return self.num_samples / self.num_sessions

    @property
    def samples_per_session_in_batch(self) -> float:
        """S in a clustered batch, by the formula."""
        return samples_per_session_in_batch(self.batch_size, self.samples_per_session, pieces=self.pieces)

    def repeats(self, group: Sequence[str]) -> npt.NDArray[np.bool_]:
        """[n - 1] whether a sample has all of a group as the one before, which is of the same session."""
        found: npt.NDArray[np.bool_] = np.logical_and.reduce([self.repeated[name] for name in group])
        return found

    def unchanged(self, group: Sequence[str]) -> float:
        """d of a group: share of samples in which all of it is as in the sample before of the session."""
        pairs = self.num_samples - self.num_sessions
        return int(np.count_nonzero(self.repeats(group))) / pairs if pairs else 0.0

    def mean_length(self, feature: str) -> float:
        """l: ids in a list of a feature, mean."""
        return float(self.lengths[feature].mean())

    def predicted_factor(self, group: Sequence[str]) -> float:
        """DedupeFactor of a group in a clustered batch, by the formula."""
        return dedupe_factor(self.samples_per_session_in_batch, self.unchanged(group))

    def predicted_rows(self, group: Sequence[str]) -> float:
        """Distinct rows of a group in a clustered batch, by the formula."""
        return self.batch_size / self.predicted_factor(group)

    def predicted_ids(self, feature: str, group: Sequence[str]) -> float:
        """Ids of a feature in the distinct rows of its group in a clustered batch, by the formula.

        Each sample weighs as much as it has ids: lists that change may be longer than those that stay.
        """
        lengths = self.lengths[feature].astype(np.int64)
        share = float(lengths[1:][self.repeats(group)].sum() / max(1, lengths.sum()))
        return self.mean_length(feature) * left_of_batch(self.batch_size, share, pieces=self.pieces)

    def counted_samples(self) -> float:
        """Samples of the batches that were counted, mean."""
        return float(np.mean([len(places) for places in self.batches]))

    def counted_ids(self, feature: str) -> float:
        """Ids of a feature in a batch, mean."""
        return float(np.mean([self.lengths[feature][places].sum(dtype=np.int64) for places in self.batches]))

    def distinct(self, group: Sequence[str]) -> tuple[float, dict[str, float]]:
        """Distinct rows when equal lists of a group are held once, and for each feature the ids in them; means."""
        rows, ids = 0, dict.fromkeys(group, 0)
        for places in self.batches:
            found = np.zeros(len(places), np.int64)
            for name in group:
                # Products of two int32 numbers fit; numbering anew keeps it so.
                both = found * (np.int64(self.codes[name].max()) + 1) + self.codes[name][places]
                _, first, found = np.unique(both, return_index=True, return_inverse=True)
            rows += len(first)
            for name in group:
                ids[name] += int(self.lengths[name][places][first].sum(dtype=np.int64))
        count = len(self.batches)
        return rows / count, {name: number / count for name, number in ids.items()}

    def counted_factor(self, group: Sequence[str]) -> float:
        """Samples over distinct rows of a group, counted in batches of a clustered log."""
        return self.counted_samples() / self.distinct(group)[0]

    def distinct_ids(self, feature: str) -> float:
        """Distinct ids of a feature in a batch, mean."""
        return len(self.batch_ids[feature]) / len(self.batches)

    def id_share(
        self,
        feature: str,
        rows: tuple[int, int],
        *,
        distinct: bool = False,
        renumber: Callable[[npt.NDArray[np.int64]], None] | None = None,
    ) -> float:
        """Share of a feature's ids that fall into rows of its table: from the first, up to the one after the last.

        With `distinct`, of those that a batch has, each counted once. `renumber` changes ids in place before.
        """
        ids = self.batch_ids[feature] if distinct else self.ids[feature]
        if renumber is not None:
            ids = ids.copy()
            renumber(ids)
            ids.sort()
        first, last = np.searchsorted(ids, rows)
        return float(last - first) / len(ids) if len(ids) else 0.0


def survey_log(
    store: LogStore,
    *,
    batch_size: int,
    reader_shards: int,
    size: int,
    transforms: Transforms | None = None,
    max_rows: int = SAMPLE_ROWS,
) -> LogSurvey:
    """Look at the training split of a prepared log.

    Args:
        store: prepared with sessions.
        batch_size: samples of a step over all ranks.
        reader_shards: of the reader.
        size: ranks.
        transforms: of the reader: lists are compared after them; None for none.
        max_rows: about the most samples to look at.

    Raises:
        StoreError: the store has no sessions, or a file cannot be read.
        RecipeError: more ranks than shards.

    Cost:
        Decodes up to `SPAN` times `max_rows` samples, a feature at a time; keeps 8 bytes for each feature and sample.
    """
    split = store.split("train")
    rows, sessions, is_clustered = choose_sessions(store, max_rows=max_rows)
    batches = cut_batches(len(rows), batch_size=batch_size, reader_shards=reader_shards, size=size)
    choice = ColumnChoice(features=store.features, num_dense=store.num_dense, transforms=transforms)
    within = sessions[1:] == sessions[:-1]
    codes, lengths, repeated, ids, batch_ids = {}, {}, {}, {}, {}
    for feature in choice.given:
        name = feature.name
        stored = [name] + [name + WEIGHTS_SUFFIX] * feature.weighted
        is_new = transforms is not None and transforms.is_new(name)
        columns = Columns(read_rows(split, [DENSE_COLUMN] if is_new else stored, rows), choice)
        lists = columns.lists(name) if feature.multi_hot else Jagged.of_single(columns.ids(name))
        codes[name] = distinct_lists([lists]).inverse.astype(np.int32)
        repeated[name] = within & (codes[name][1:] == codes[name][:-1])
        lengths[name] = lists.lengths.astype(np.int32)
        batch_ids[name] = np.sort(np.concatenate([np.unique(lists.select(places).values) for places in batches]))
        values = lists.values[lists.offsets[0] : lists.offsets[-1]]
        if len(values) > ID_SAMPLE:
            values = values[(hash_ids(ID_KEY, np.arange(ID_SAMPLE)) % np.uint64(len(values))).astype(np.int64)]
        ids[name] = np.sort(values)
    return LogSurvey(
        num_samples=len(rows),
        num_sessions=len(rows) - int(np.count_nonzero(within)),
        split_samples=split.rows,
        is_clustered=is_clustered,
        batch_size=min(batch_size, split.rows) / size,
        pieces=len(Shards(len(rows), batch_size, reader_shards).of_rank(0, size)),
        codes=codes,
        lengths=lengths,
        repeated=repeated,
        ids=ids,
        batch_ids=batch_ids,
        batches=batches,
    )


def choose_sessions(store: LogStore, *, max_rows: int = SAMPLE_ROWS) -> tuple[Rows, Rows, bool]:
    """Choose sessions out of the middle of the training split: at least one, each whole, about `max_rows` samples.

    Returns:
        Numbers of their samples in the split, session after session, in order of time (else of the log); sessions in
        the order of the store where that is clustered, else in a random one. The session of each. And whether the
        store is clustered.

    Raises:
        StoreError: the store has no sessions, or a file cannot be read.
    """
    if not store.manifest.has_session:
        raise StoreError(
            f"{store.path} has no sessions, which deduplication is about: name their column by session = ... in "
            "[log] and run windrow prepare again"
        )
    split = store.split("train")
    length = min(split.rows, max_rows * SPAN)
    start = (split.rows - length) // 2
    has_time = store.manifest.has_time
    table = read_rows(split, [SESSION_COLUMN] + [TIME_COLUMN] * has_time, np.arange(start, start + length))
    sessions = table.column(SESSION_COLUMN).to_numpy()
    is_clustered = int(np.count_nonzero(np.diff(sessions))) + 1 == len(np.unique(sessions))
    draws = hash_ids(SESSION_KEY, sessions)
    bound = np.uint64(2**64 * (max_rows / length)) if length > max_rows else np.uint64(2**64 - 1)
    rows = np.flatnonzero(draws <= max(bound, draws.min()))
    if not is_clustered:
        # As windrow prepare would put them: by a hash of their number, in each by time.
        times = table.column(TIME_COLUMN).to_numpy()[rows] if has_time else rows
        rows = rows[np.lexsort((rows, times, sessions[rows], hash_ids(ORDER_KEY, sessions[rows])))]
    return rows + start, sessions[rows], is_clustered


def cut_batches(num_samples: int, *, batch_size: int, reader_shards: int, size: int) -> list[Rows]:
    """Positions of the samples of some batches of rank 0 of `size`, as training cuts a log whose order it keeps.

    `BATCHES` of them at most, all full where any is. More ranks than shards are refused with a RecipeError.
    """
    cut = Shards(num_samples, batch_size, reader_shards)
    steps = np.unique(np.linspace(0, max(1, num_samples // batch_size) - 1, BATCHES).astype(int)).tolist()
    mine = cut.of_rank(0, size)
    return [
        np.concatenate([np.arange(*cut.places(shard, step)) + cut.rows(shard)[0] for shard in mine]) for step in steps
    ]


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
    files = SplitFiles(split)
    parts = []
    for number, (start, stop) in enumerate(pairwise(files.offsets)):
        first, last = np.searchsorted(wanted, (start, stop))
        if first < last:
            parts.append(files.read(number, columns, filled_in).take(pa.array(wanted[first:last] - start)))
    if not parts:
        raise StoreError(f"{split.files[0].parent} holds none of the {len(rows)} samples asked for: {CURE}")
    return pa.concat_tables(parts).take(pa.array(np.argsort(order))).combine_chunks()
