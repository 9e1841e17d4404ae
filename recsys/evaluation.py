"""Measure what a recommender predicts on validation and test samples, all ranks together: clicks or real numbers.

log_loss             mean of -log of the probability given to what happened, in nats       lower is better
normalised_entropy   log_loss / (-p log p - (1 - p) log(1 - p)), p the share of clicks     below 1: better than
                     (He et al., ADKDD 2014): 1 is what always predicting p gives          knowing p alone
calibration          sum of predicted probabilities / number of clicks                     1 is right on average
auc                  share of pairs (a click, another sample) in which the click has the   higher is better,
                     larger logit, a tie counting one half                                 0.5 is chance

rmse, mae            of real labels: root of the mean squared error, mean absolute error   lower is better
r2                   1 - mean squared error / variance of the label                        higher is better

Several labels are measured each for itself, as "NAME.auc"; "auc" is the mean over labels then.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.options import PositiveInt, checked_dataclass
from windrow.comm.world import World
from windrow.recsys.log.options import LabelKind
from windrow.recsys.recommender import BatchSource, PrefetchedModel
from windrow.training.task import EvaluationTimes, Metrics, measured

__all__ = [
    "METRICS_OF",
    "ClickEvaluator",
    "ClickMetric",
    "RecommendationEvaluationOptions",
    "check_split_can_be_scored",
    "exact_auc",
    "measure_clicks",
    "measure_real",
]

ClickMetric = Literal["auto", "auc", "normalised_entropy", "log_loss", "rmse", "mae", "r2"]
"""What the best epoch may be chosen by; auto: auc for binary labels, rmse for real ones."""

METRICS_OF: Mapping[LabelKind, tuple[str, ...]] = {
    "binary": ("auc", "normalised_entropy", "log_loss"),
    "real": ("rmse", "mae", "r2"),
}
"""Metrics that each kind of label has; the first one is chosen where none is."""

HIGHER_IS_BETTER = ("auc", "r2")

BLOCK_SAMPLES = 1 << 18
"""Samples measured at a time, in double precision; of the rarer kind, in AUC, those of all ranks."""


@checked_dataclass
class RecommendationEvaluationOptions(EvaluationTimes):
    """How and when a recommender is measured."""

    metric: ClickMetric = "auto"
    """What chooses the best epoch; auto: auc, or rmse where labels are real. The others are reported too. Two towers
    are chosen by recall."""
    batch_size: PositiveInt = 16384
    """Samples per step, over all ranks; for two towers, users."""
    k: PositiveInt = 20
    """two_tower only: items recommended to a user, in recall@k and ndcg@k."""


class ClickEvaluator:
    """Measures one recommender on the splits of a log.

    Args:
        world: all its ranks make the same evaluator.
        model: what is measured: a `Recommender`, or any module as `windrow.recsys.task.RecommendationTask` takes it.
        sources: this rank's batches of each split, in order of the log.
        metric: see `RecommendationEvaluationOptions`.
        metrics: of one's own instead, by name; the first is the metric, higher being better. Every rank holds all
            outputs and labels of a split then.
        labels: their names, in the order of the model's outputs.
        label_kind: what they are.
        device: where the model is.
    """

    def __init__(
        self,
        world: World,
        model: nn.Module,
        sources: Mapping[str, BatchSource],
        *,
        metric: ClickMetric = "auto",
        metrics: Metrics | None = None,
        labels: Sequence[str] = ("label",),
        label_kind: LabelKind = "binary",
        device: torch.device | None = None,
    ) -> None:
        known = METRICS_OF[label_kind]
        if metric not in ("auto", *known):
            raise RecipeError(f"metric = {metric!r} is none of {label_kind} labels: choose from {', '.join(known)}")
        self.metric: str = next(iter(metrics)) if metrics else known[0] if metric == "auto" else metric
        self.higher_is_better = bool(metrics) or self.metric in HIGHER_IS_BETTER
        self._labels = tuple(labels)
        self._measure_label = measure_clicks if label_kind == "binary" else measure_real
        self._world = world
        self._model = PrefetchedModel(model)
        self._metrics = metrics
        self._sources = sources
        self.splits = tuple(sources)
        self._device = device or torch.device("cpu")

    @torch.no_grad()
    def evaluate(self) -> dict[str, dict[str, float]]:
        """Measure. Collective.

        Returns:
            For each split, what `measure_clicks`, `measure_real` or the metrics of one's own give, the same on every
            rank. The model is left in evaluation mode. Memory: outputs and labels of this rank's samples.

        Raises:
            DataError: a prediction is NaN or infinite.
        """
        return {split: self._measure(split, source) for split, source in self._sources.items()}

    def _measure(self, split: str, source: BatchSource) -> dict[str, float]:
        outputs, labels = [torch.empty(0)], [torch.empty(0)]
        for batch, output in self._model.outputs(source, self._device):
            outputs.append(output)
            labels.append(batch.labels.cpu())
        # The first is empty, of a shape that goes with any other.
        own = [torch.cat(parts) for parts in (outputs, labels)]
        del outputs, labels
        if self._metrics:
            everyone = [torch.cat(self._world.all_gather(part, stage="evaluation")) for part in own]
            return measured(self._metrics, *everyone)
        count = len(self._labels)
        columns = zip(self._labels, *(part.reshape(-1, count).unbind(1) for part in own), strict=True)
        found = {
            label: self._measure_label(self._world, *column, split=split if count == 1 else f"{label} of {split}")
            for label, *column in columns
        }
        means = {name: sum(of[name] for of in found.values()) / count for name in found[self._labels[0]]}
        of_each = {f"{label}.{name}": value for label, of in found.items() for name, value in of.items()}
        return means | of_each if count > 1 else means


def measure_real(world: World, predictions: Tensor, labels: Tensor, *, split: str = "the split") -> dict[str, float]:
    """Measure predictions [n] of real labels [n], floating, of this rank's samples, on the CPU. Collective.

    Returns:
        rmse, mae and r2, the same on every rank.

    Raises:
        DataError: on every rank: a prediction is NaN or infinite, or there are no samples.
    """
    sums = _sums_of_finite(
        world, split, predictions, labels, lambda y, real: ((y - real).square(), (y - real).abs(), real, real.square())
    )
    count, squared, absolute, total, squares = sums
    _check_not_empty(split, int(count))
    variance = squares / count - (total / count) ** 2
    mean_squared = squared / count
    return {
        "rmse": math.sqrt(mean_squared),
        "mae": absolute / count,
        "r2": 1 - mean_squared / variance if variance > 0 else float("nan"),
    }


def _sums_of_finite(
    world: World, split: str, predictions: Tensor, labels: Tensor, terms: Callable[[Tensor, Tensor], Sequence[Tensor]]
) -> list[float]:
    """Number of all ranks' predictions, and sums of terms of these and of labels; refuses lost ones on all ranks."""
    own = torch.zeros(1, dtype=torch.float64)
    for some, wanted in zip(predictions.split(BLOCK_SAMPLES), labels.split(BLOCK_SAMPLES), strict=True):
        sums = [one.sum() for one in terms(some.double(), wanted.double())]
        own = own + torch.stack([torch.tensor(len(some)), (~some.isfinite()).sum(), *sums])
    num_samples, num_lost, *found = world.all_reduce(own, stage="metrics").tolist()
    if num_lost:
        raise DataError(
            f"{num_lost:.0f} of {num_samples:.0f} predictions for {split} are NaN or infinite: the training diverged; "
            "lower the learning rate of the model or of the tables"
        )
    return [num_samples, *found]


def check_split_can_be_scored(split: str, num_samples: int, num_clicks: int) -> None:
    """Refuse samples for which the metrics mean nothing; call it on each split before training starts.

    Raises:
        DataError: there are no samples, or they all have the same label.
    """
    _check_not_empty(split, num_samples)
    if num_clicks in {0, num_samples}:
        raise DataError(
            f"AUC and normalised entropy have no meaning on {split}, whose {num_samples} samples all have the label "
            f"{int(num_clicks > 0)}: make the split larger, or split by hash"
        )


def _check_not_empty(split: str, num_samples: int) -> None:
    if num_samples == 0:
        raise DataError(f"no samples to measure {split} on: give the split some, in [split], or leave it out")


def measure_clicks(world: World, logits: Tensor, labels: Tensor, *, split: str = "the split") -> dict[str, float]:
    """Measure logits [n] of labels [n], 0 or 1, floating, of this rank's samples, on the CPU. Collective.

    Returns:
        log_loss, normalised_entropy, calibration and auc, the same on every rank. Numbers are added in double
        precision: on another number of ranks they differ by rounding of that, and AUC not at all.

    Raises:
        DataError: on every rank: a prediction is NaN or infinite, or what `check_split_can_be_scored` refuses.
    """
    clicked, entropies = labels > 0, partial(F.binary_cross_entropy_with_logits, reduction="none")
    num_samples, num_clicks, loss, predicted = _sums_of_finite(
        world, split, logits, clicked, lambda some, real: (real, entropies(some, real), some.sigmoid())
    )
    check_split_can_be_scored(split, int(num_samples), int(num_clicks))
    log_loss, share = loss / num_samples, num_clicks / num_samples
    entropy = -sum(p * math.log(p) for p in (share, 1 - share))
    return {
        "log_loss": log_loss,
        "normalised_entropy": log_loss / entropy,
        "calibration": predicted / num_clicks,
        "auc": exact_auc(world, logits.float(), clicked),
    }


def exact_auc(world: World, logits: Tensor, clicked: Tensor) -> float:
    """Share of pairs (a click, another sample) in which the click has the larger logit; a tie counts one half.

    Every rank gets the logits of the rarer kind of samples, a block at a time, and compares its own of the other kind
    with them. All counts are integers, so the area is the same bit for bit on any number of ranks. Collective: each
    rank has any number n of logits, [n] float32 in CPU memory, finite, and `clicked` [n] bool.

    Returns:
        Between 0 and 1, the same on every rank; NaN where no sample, or every one, is a click. Exact for fewer than
        2^62 pairs. Cost: log n for each own sample, and each click of all ranks, or each other sample where those are
        fewer. Memory: 14 n bytes on any number of ranks, and 24 for each sample of a block.
    """
    of_kinds = logits[clicked].numpy(), logits[~clicked].numpy()
    counts = torch.stack(world.all_gather(torch.tensor([len(of_kind) for of_kind in of_kinds]), stage="auc"))
    totals = counts.sum(0).tolist()
    rarer = totals.index(min(totals))
    rare, own = of_kinds[rarer], of_kinds[1 - rarer]
    own.sort()
    below_twice, share = torch.zeros(1, dtype=torch.int64), max(1, BLOCK_SAMPLES // world.size)
    for start in range(0, int(counts[:, rarer].max()), share):
        block = torch.cat(world.all_gather(torch.from_numpy(rare[start : start + share]), stage="auc")).sort().values
        # Its own below each rare one, and a tie counted once of twice.
        below_twice += sum(int(np.searchsorted(own, block.numpy(), side).sum()) for side in ("left", "right"))
    pairs_twice = 2 * totals[0] * totals[1]
    won_twice = int(world.all_reduce(below_twice, stage="auc"))
    won_twice = won_twice if rarer == 0 else pairs_twice - won_twice
    return won_twice / pairs_twice if pairs_twice else float("nan")
