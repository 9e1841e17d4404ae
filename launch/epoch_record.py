"""What is kept about one finished epoch: a line of metrics.jsonl, a row of the table, a point of the plot."""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["EpochRecord", "best_record"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """Figures of one epoch, over all ranks together unless a field says otherwise."""

    epoch: int
    """Epochs finished, this one included: the first has 1."""
    step: int
    """Optimiser steps finished since the start of the run."""
    loss: float
    """Mean training loss over the epoch's seeds or samples."""
    learning_rate: float
    """At the last step."""
    metric: str
    """What validation and test were measured by, for example "roc_auc"."""
    higher_is_better: bool = True
    """Whether the metric should rise."""
    validation: float | None = None
    """The metric on the validation split; None in an epoch without evaluation."""
    test: float | None = None
    """The metric on the test split; None in an epoch without evaluation."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What else was measured, by name, for example "test log loss" or "samples per second"."""
    seconds: float
    """Wall-clock seconds of the epoch, evaluation included."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds per stage, on the slowest rank of each; stages that overlap add up to more than the epoch."""
    rows_fetched: int = 0
    """Rows that came from another rank."""
    bytes_fetched: int = 0
    """Bytes of those rows on the wire."""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(line: str) -> "EpochRecord":
        """The inverse of `to_json`.

        Raises:
            ValueError: the line is no JSON object, or has not exactly the fields of a record.
        """
        values = json.loads(line)
        try:
            return EpochRecord(**values)
        except TypeError as error:
            raise ValueError(f"not the record of an epoch: {line[:100]!r}") from error


def best_record(records: Iterable[EpochRecord]) -> EpochRecord | None:
    """The epoch with the best validation metric; as in early stopping, a tie is not better and NaN never is.

    Args:
        records: of one run, in order.

    Returns:
        None where nothing was evaluated.
    """
    best: tuple[float, EpochRecord] | None = None
    for record in records:
        if record.validation is not None:
            value = record.validation if record.higher_is_better else -record.validation
            if value > (best[0] if best else -math.inf):
                best = value, record
    return best[1] if best else None
