"""What repeats in a prepared log: measured on whole sessions of it, and on batches as training would have them.

    session sample  ->  S, d(f), lengths, bytes on disk in each order
                    ->  batches of neighbours: as a clustered log gives them
    training reader ->  batches as they are now

Formulas beside it: `windrow.recsys.batches.deduplication.options`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from windrow.comm.random import hash_ids
from windrow.recsys.batches.arrow_columns import Lists, one_chunk
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.batch_reader import Lanes
from windrow.recsys.batches.deduplication.options import (
    dedupe_factor,
    distinct_rows,
    left_of_batch,
    samples_per_session_in_batch,
)
from windrow.recsys.batches.deduplication.survey_sample import (
    SAMPLE_ROWS,
    CodedSamples,
    StorageScales,
    StorageSizes,
    choose_sessions,
    code_batch,
    code_lists,
    read_rows,
)
from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.transforms import Transforms
from windrow.recsys.log.store import (
    DENSE_COLUMN,
    LABEL_COLUMN,
    SESSION_COLUMN,
    TIME_COLUMN,
    WEIGHTS_SUFFIX,
    LogSplit,
    LogStore,
)

if TYPE_CHECKING:
    from windrow.recsys.log.store import FeatureEntry

__all__ = [
    "CLUSTERED_BATCHES",
    "LogSurvey",
    "SurveyedBatches",
    "batches_as_read",
    "batches_of_neighbours",
    "survey_log",
]

CLUSTERED_BATCHES = 8
"""Batches of neighbours that are looked at, spread over the sample."""


@dataclass(frozen=True, slots=True)
class SurveyedBatches:
    """Batches of one rank in one order of the log.

    Attributes:
        batches: their samples.
        samples_per_session: S in a batch, as counted: samples over distinct sessions.
    """

    batches: tuple[CodedSamples, ...]
    samples_per_session: float

    @property
    def num_samples(self) -> float:
        """Of a batch, mean."""
        return float(np.mean([batch.num_samples for batch in self.batches]))

    def num_ids(self, feature: str) -> float:
        """Ids of a feature in a batch, mean."""
        return float(np.mean([batch.num_ids(feature) for batch in self.batches]))

    def longest(self, feature: str) -> float:
        """Ids of the longest list of a feature in a batch, mean."""
        return float(np.mean([batch.lengths[feature].max(initial=0) for batch in self.batches]))

    def distinct(self, group: Sequence[str]) -> tuple[float, dict[str, float]]:
        """Distinct rows when equal lists of a group are held once, and for each feature the ids in them; means."""
        rows, ids = zip(*(batch.distinct(group) for batch in self.batches), strict=True)
        return float(np.mean(rows)), {name: float(np.mean([of_batch[name] for of_batch in ids])) for name in group}

    def factor(self, group: Sequence[str]) -> float:
        """Samples over distinct rows of a group; 1 where there are no samples."""
        rows, _ = self.distinct(group)
        return self.num_samples / rows if rows else 1.0


def batches_of_neighbours(
    samples: CodedSamples, sessions: npt.NDArray[np.int64], *, batch_size: int, lanes: int, size: int
) -> SurveyedBatches:
    """Cut samples in clustered order, at least one, into batches as training cuts a log whose order it keeps.

    Args:
        samples: all of them.
        sessions: of each.
        batch_size: samples of a step over all ranks.
        lanes: of the reader.
        size: ranks; more than lanes are refused with a RecipeError.

    Returns:
        Batches of rank 0, `CLUSTERED_BATCHES` of them at most, all full where any is.
    """
    cut = Lanes(len(sessions), batch_size, lanes)
    mine = cut.of_rank(0, size)
    full_steps = max(1, len(sessions) // batch_size)
    places = []
    for step in np.unique(np.linspace(0, full_steps - 1, CLUSTERED_BATCHES).astype(int)).tolist():
        pieces = [np.arange(*cut.places(lane, step)) + cut.rows(lane)[0] for lane in mine]
        places.append(np.concatenate(pieces))
    return SurveyedBatches(
        tuple(samples.take(chosen) for chosen in places), _samples_per_session([sessions[chosen] for chosen in places])
    )


def batches_as_read(split: LogSplit, batches: Iterable[Batch]) -> SurveyedBatches:
    """Look at batches of the training reader, of a split with sessions, on the CPU, no feature held once.

    Raises:
        StoreError: a file cannot be read.
    """
    coded, rows = [], []
    for batch in batches:
        coded.append(code_batch(batch))
        rows.append(batch.row_ids.numpy())
    found = read_rows(split, [SESSION_COLUMN], np.concatenate(rows)).column(SESSION_COLUMN).to_numpy()
    bounds = np.cumsum([len(of_batch) for of_batch in rows])[:-1]
    return SurveyedBatches(tuple(coded), _samples_per_session(np.split(found, bounds)))


def _samples_per_session(batches: Sequence[npt.NDArray[np.int64]]) -> float:
    return sum(map(len, batches)) / max(1, sum(len(np.unique(sessions)) for sessions in batches))


ID_SAMPLE = 1 << 14
"""Ids of each feature that are kept, to tell how many fall into a range of rows: within 0.4 % of all, one deviation."""

ID_KEY = 0x1D5
"""Keys the choice of these ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSurvey:
    """What repeats in a log."""

    num_samples: int
    """Samples that were looked at."""
    num_sessions: int
    """Their sessions."""
    split_samples: int
    """Samples of the training split."""
    is_clustered: bool
    """Whether the samples of each session are neighbours in the store."""
    batch_size: float
    """B: samples of one rank's batch."""
    pieces: float
    """Runs of neighbours that it is made of: the lanes that the rank reads."""
    num_files: int
    """Files that `storage.sharded` deals sessions to."""
    sample: CodedSamples
    """The sample in clustered order."""
    within: npt.NDArray[np.bool_]
    """[num_samples - 1] whether a sample is of the same session as the one before."""
    num_stored: Mapping[str, int]
    """Ids of each feature in the sample as the store has them, before transforms."""
    ids: Mapping[str, npt.NDArray[np.int64]]
    """Some ids of each feature, sorted."""
    clustered: SurveyedBatches
    """Batches of a clustered log."""
    as_read: SurveyedBatches
    """Batches that training reads from the store as it is."""
    storage: StorageSizes
    """On disk."""

    @property
    def features(self) -> tuple[str, ...]:
        """All features that the reader gives, in its order."""
        return tuple(self.sample.codes)

    @property
    def samples_per_session(self) -> float:
        """S of the log."""
        return self.num_samples / self.num_sessions

    @property
    def samples_per_session_in_batch(self) -> float:
        """S in a clustered batch, by the formula."""
        return samples_per_session_in_batch(self.batch_size, self.samples_per_session, pieces=self.pieces)

    def unchanged(self, group: Sequence[str]) -> float:
        """d of a group: share of samples in which all of it is as in the sample before of the session."""
        num_pairs = int(np.count_nonzero(self.within))
        return int(np.count_nonzero(self.sample.unchanged(group) & self.within)) / num_pairs if num_pairs else 0.0

    def mean_length(self, feature: str) -> float:
        """l: ids in a list of a feature, mean."""
        return self.sample.num_ids(feature) / self.num_samples

    def predicted_factor(self, group: Sequence[str]) -> float:
        """DedupeFactor of a group in a clustered batch, by the formula."""
        return dedupe_factor(self.samples_per_session_in_batch, self.unchanged(group))

    def predicted_rows(self, group: Sequence[str]) -> float:
        """Distinct rows of a group in a clustered batch, by the formula."""
        return distinct_rows(self.batch_size, self.samples_per_session, self.unchanged(group), pieces=self.pieces)

    def predicted_ids(self, feature: str, group: Sequence[str]) -> float:
        """Ids of a feature in the distinct rows of its group in a clustered batch, by the formula.

        Each sample weighs as much as it has ids: lists that change may be longer than those that stay.
        """
        lengths = self.sample.lengths[feature].astype(np.int64)
        repeated = lengths[1:][self.sample.unchanged(group) & self.within].sum()
        share = float(repeated / lengths.sum()) if lengths.any() else 0.0
        return self.mean_length(feature) * left_of_batch(self.batch_size, share, pieces=self.pieces)

    def id_share(self, feature: str, rows: tuple[int, int]) -> float:
        """Share of a feature's ids that fall into rows of its table: from the first, up to the one after the last."""
        ids = self.ids[feature]
        first, last = np.searchsorted(ids, rows)
        return float(last - first) / len(ids) if len(ids) else 0.0


def survey_log(
    store: LogStore,
    read: Iterable[Batch],
    *,
    batch_size: int,
    lanes: int,
    size: int,
    transforms: Transforms | None = None,
    num_files: int = 1,
    max_rows: int = SAMPLE_ROWS,
) -> LogSurvey:
    """Look at the training split of a prepared log.

    Args:
        store: prepared with sessions.
        read: some batches of rank 0, as training reads them and no feature of which is held once.
        batch_size: samples of a step over all ranks.
        lanes: of the reader.
        size: ranks.
        transforms: of the reader: lists are compared after them; None for none.
        num_files: files that sessions would be dealt to.
        max_rows: about the most samples to look at.

    Returns:
        What was found.

    Raises:
        StoreError: the store has no sessions, or a file cannot be read.
        RecipeError: more ranks than lanes.

    Cost:
        Decodes up to `windrow.recsys.batches.deduplication.survey_sample.SPAN` times `max_rows` samples, a feature at a
        time; keeps 8 bytes for each feature and sample.
    """
    split = store.split("train")
    chosen = choose_sessions(store, max_rows=max_rows)
    clustered_lanes = Lanes(len(chosen.rows), batch_size, lanes)
    scales = StorageScales(split, chosen, num_files)
    changes = transforms or Transforms({}, store.features, store.dense)
    codes, lengths, ids, num_stored = {}, {}, {}, {}
    stored = {feature.name for feature in store.features}
    dense: npt.NDArray[np.float32] | None = None
    if store.dense:
        dense = one_chunk(scales.add([DENSE_COLUMN]), DENSE_COLUMN).flatten().to_numpy().reshape(-1, store.num_dense)
    for feature in changes.features:
        if feature.name in stored:
            columns = [feature.name] + [feature.name + WEIGHTS_SUFFIX] * feature.weighted
            table = scales.add(columns, of_feature=True)
            lists, num_stored[feature.name] = _lists(table, feature, changes)
        else:
            assert dense is not None, "a new feature is made of a dense column"
            lists = Jagged.of_single(changes.new_ids(feature.name, dense))
            num_stored[feature.name] = len(dense)
        codes[feature.name], lengths[feature.name] = code_lists(lists)
        ids[feature.name] = _some_ids(lists.values)
    for column in [LABEL_COLUMN, SESSION_COLUMN] + [TIME_COLUMN] * store.manifest.has_time:
        scales.add([column])
    sample = CodedSamples(codes, lengths)
    return LogSurvey(
        num_samples=len(chosen.rows),
        num_sessions=chosen.num_sessions,
        split_samples=split.rows,
        is_clustered=chosen.is_clustered,
        batch_size=min(batch_size, split.rows) / size,
        pieces=len(clustered_lanes.of_rank(0, size)),
        num_files=num_files,
        sample=sample,
        within=chosen.sessions[1:] == chosen.sessions[:-1],
        num_stored=num_stored,
        ids=ids,
        clustered=batches_of_neighbours(sample, chosen.sessions, batch_size=batch_size, lanes=lanes, size=size),
        as_read=batches_as_read(split, read),
        storage=scales.sizes(),
    )


def _lists(table: Any, feature: "FeatureEntry", changes: Transforms) -> tuple[Lists, int]:
    """The lists of a feature as the reader gives them, and how many ids the store has for them."""
    column = one_chunk(table, feature.name)
    if not feature.multi_hot:
        return Jagged.of_single(changes.ids(feature.name, column.to_numpy())), len(column)
    offsets = column.offsets.to_numpy()
    weights = None
    if feature.weighted:
        # Of the same lengths, though they may begin elsewhere in their memory.
        weights = one_chunk(table, feature.name + WEIGHTS_SUFFIX).flatten().to_numpy()
    ids = column.flatten().to_numpy()
    return changes.lists(feature.name, Jagged(ids, offsets - offsets[0], weights)), len(ids)


def _some_ids(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if len(values) <= ID_SAMPLE:
        return np.sort(values)
    chosen = hash_ids(ID_KEY, np.arange(ID_SAMPLE)) % np.uint64(len(values))
    return np.sort(values[chosen.astype(np.int64)])
