"""Measure a recommender's predicted click probabilities on validation and test samples, all ranks together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from windrow.comm.errors import RecipeError
from windrow.comm.world import World
from windrow.recsys.batch import Batch
from windrow.recsys.metrics import ClickMetrics
from windrow.recsys.pipeline import pipelined
from windrow.recsys.recommender import Recommender
from windrow.recsys.trainer import BatchSource

__all__ = ["ClickEvaluator", "ClickMetric", "RecommendationEvaluationOptions"]

ClickMetric = Literal["auc", "normalised_entropy", "log_loss"]
"""What the best epoch may be chosen by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecommendationEvaluationOptions:
    """How and when a recommender is measured."""

    metric: ClickMetric = "auc"
    """What chooses the best epoch of a click model; the others are reported too. Two towers are chosen by recall."""
    batch_size: int = 16384
    """Samples per step, over all ranks; for two towers, users."""
    auc: Literal["exact", "histogram"] = "exact"
    """exact: 5 bytes of memory for each sample of a split; histogram: 1 MiB in all, and a bound of the error."""
    k: int = 20
    """two_tower only: items recommended to a user, in recall@k and ndcg@k."""
    every_epochs: int = 1
    """Epochs between two evaluations; the last epoch is always evaluated."""
    patience_epochs: int = 0
    """Stop when validation has not improved for this many epochs; 0: never."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            RecipeError: names the field, its value and what is allowed.
        """
        for name, least in (("batch_size", 1), ("k", 1), ("every_epochs", 1), ("patience_epochs", 0)):
            if getattr(self, name) < least:
                raise RecipeError(f"evaluation.{name} = {getattr(self, name)}: must be at least {least}")


class ClickEvaluator:
    """Measures one recommender on the splits of a log.

    Args:
        world: all its ranks make the same evaluator.
        recommender: what is measured.
        sources: this rank's batches of each split, in order of the log.
        metric: what the best epoch is chosen by.
        auc: "exact" or "histogram", see `ClickMetrics`.
        device: where the recommender is.
    """

    def __init__(
        self,
        world: World,
        recommender: Recommender,
        sources: Mapping[str, BatchSource],
        *,
        metric: ClickMetric = "auc",
        auc: Literal["exact", "histogram"] = "exact",
        device: torch.device | None = None,
    ) -> None:
        self.metric: str = metric
        self._world = world
        self._recommender = recommender
        self._sources = sources
        self._auc = auc
        self._device = device or torch.device("cpu")

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value of `metric` is the better one."""
        return self.metric == "auc"

    @torch.no_grad()
    def evaluate(self) -> dict[str, dict[str, float]]:
        """Measure. Collective.

        Returns:
            For each split, what `ClickMetrics.compute` gives, the same on every rank. The recommender is left in
            evaluation mode.

        Raises:
            DataError: a prediction is NaN or infinite.
        """
        self._recommender.eval()
        return {split: self._measure(split, source) for split, source in self._sources.items()}

    def _measure(self, split: str, source: BatchSource) -> dict[str, float]:
        metrics = ClickMetrics(split, auc=self._auc)
        with source.batches(0) as batches:
            for batch, lookup in pipelined(self._moved(batches), self._recommender.start):
                metrics.update(self._recommender.finish(batch, lookup), batch.labels)
        return metrics.compute(self._world)

    def _moved(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        return (batch.to(self._device) for batch in batches)
