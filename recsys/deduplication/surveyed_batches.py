"""Batches of a log, and how much of them repeats."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from windrow.recsys.batch import Batch
from windrow.recsys.deduplication.coded_samples import CodedSamples, code_batch
from windrow.recsys.deduplication.session_sample import read_rows
from windrow.recsys.lanes import Lanes
from windrow.recsys.store import SESSION_COLUMN, LogSplit

__all__ = ["CLUSTERED_BATCHES", "SurveyedBatches", "batches_as_read", "batches_of_neighbours"]

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
        """What is left of a batch when equal lists of a group are held once.

        Args:
            group: at least one feature.

        Returns:
            Distinct rows, and for each feature the ids in them; means over the batches.
        """
        counts = [batch.distinct(group) for batch in self.batches]
        ids = {name: float(np.mean([count.ids[name] for count in counts])) for name in group}
        return float(np.mean([count.rows for count in counts])), ids

    def factor(self, group: Sequence[str]) -> float:
        """Samples over distinct rows of a group; 1 where there are no samples."""
        rows, _ = self.distinct(group)
        return self.num_samples / rows if rows else 1.0


def batches_of_neighbours(
    samples: CodedSamples, sessions: npt.NDArray[np.int64], *, batch_size: int, lanes: int, size: int
) -> SurveyedBatches:
    """Cut samples into batches as training cuts a log whose order it keeps.

    Args:
        samples: in clustered order, at least one.
        sessions: of each.
        batch_size: samples of a step over all ranks.
        lanes: of the reader.
        size: ranks.

    Returns:
        Batches of rank 0, `CLUSTERED_BATCHES` of them at most, all full where any is.

    Raises:
        RecipeError: more ranks than lanes.
    """
    cut = Lanes(len(sessions), batch_size, lanes)
    mine = cut.of_rank(0, size)
    full_steps = max(1, len(sessions) // batch_size)
    places = []
    for step in np.unique(np.linspace(0, full_steps - 1, CLUSTERED_BATCHES).astype(int)).tolist():
        pieces = [np.arange(*cut.places(lane, step)) + cut.rows(lane)[0] for lane in mine]
        places.append(np.concatenate(pieces))
    return SurveyedBatches(
        tuple(samples.take(chosen) for chosen in places),
        _samples_per_session([sessions[chosen] for chosen in places]),
    )


def batches_as_read(split: LogSplit, batches: Iterable[Batch]) -> SurveyedBatches:
    """Look at batches of the training reader.

    Args:
        split: that they are of; has sessions.
        batches: on the CPU, no feature held once.

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
