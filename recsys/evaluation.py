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

The exact AUC takes a sort that is spread over the ranks, as the samples are. The streaming one takes two histograms:
any number of samples in 1 MiB, with a bound of its own error::

    logit    -16      -16 + w            0                    16
    bin       |   0   |   1   | ...      |      ...   | 65535 |        w = 32 / 65536 = 1 / 2048
    clicks        0       3                               2            ends take what lies beyond
    others        7       9                               0

Pairs in different bins are counted as they are, pairs in one bin as ties. So the estimate is off by at most half the
share of pairs that met in a bin, which the histograms tell.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.options import NonNegativeInt, PositiveInt, checked_dataclass
from windrow.comm.world import World
from windrow.recsys.log.options import LabelKind
from windrow.recsys.recommender import BatchSource, pipelined, prefetched
from windrow.training.task import Metrics

__all__ = [
    "METRICS_OF",
    "ClickEvaluator",
    "ClickMetric",
    "ClickMetrics",
    "RealMetrics",
    "RecommendationEvaluationOptions",
    "auc_of_histogram",
    "check_split_can_be_scored",
    "exact_auc",
    "histogram_of",
]

ClickMetric = Literal["auto", "auc", "normalised_entropy", "log_loss", "rmse", "mae", "r2"]
"""What the best epoch may be chosen by; auto: auc for binary labels, rmse for real ones."""

METRICS_OF: Mapping[LabelKind, tuple[str, ...]] = {
    "binary": ("auc", "normalised_entropy", "log_loss"),
    "real": ("rmse", "mae", "r2"),
}
"""Metrics that each kind of label has; the first one is chosen where none is."""

HIGHER_IS_BETTER = ("auc", "r2")


@checked_dataclass
class RecommendationEvaluationOptions:
    """How and when a recommender is measured."""

    metric: ClickMetric = "auto"
    """What chooses the best epoch; auto: auc, or rmse where labels are real. The others are reported too. Two towers
    are chosen by recall."""
    batch_size: PositiveInt = 16384
    """Samples per step, over all ranks; for two towers, users."""
    auc: Literal["exact", "histogram"] = "exact"
    """exact: 5 bytes of memory for each sample of a split; histogram: 1 MiB in all, and a bound of the error."""
    k: PositiveInt = 20
    """two_tower only: items recommended to a user, in recall@k and ndcg@k."""
    every_epochs: PositiveInt = 1
    """Epochs between two evaluations; the last epoch is always evaluated."""
    patience_epochs: NonNegativeInt = 0
    """Stop when validation has not improved for this many epochs; 0: never."""


class ClickEvaluator:
    """Measures one recommender on the splits of a log.

    Args:
        world: all its ranks make the same evaluator.
        model: what is measured: a `Recommender`, or any module as `windrow.recsys.task.RecommendationTask` takes it.
        sources: this rank's batches of each split, in order of the log.
        metric, auc: see `RecommendationEvaluationOptions`.
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
        auc: Literal["exact", "histogram"] = "exact",
        metrics: Metrics | None = None,
        labels: Sequence[str] = ("label",),
        label_kind: LabelKind = "binary",
        device: torch.device | None = None,
    ) -> None:
        known = METRICS_OF[label_kind]
        if metric not in ("auto", *known):
            raise RecipeError(f"metric = {metric!r} is none of {label_kind} labels: choose from {', '.join(known)}")
        self.metric: str = next(iter(metrics)) if metrics else known[0] if metric == "auto" else metric
        self._labels = tuple(labels)
        self._label_kind = label_kind
        self._world = world
        self._model = prefetched(model)
        self._metrics = metrics
        self._sources = sources
        self._auc = auc
        self._device = device or torch.device("cpu")

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value of `metric` is the better one."""
        return self._metrics is not None or self.metric in HIGHER_IS_BETTER

    @torch.no_grad()
    def evaluate(self) -> dict[str, dict[str, float]]:
        """Measure. Collective.

        Returns:
            For each split, what `ClickMetrics.compute`, `RealMetrics.compute` or the metrics of one's own give, the
            same on every rank. The model is left in evaluation mode.

        Raises:
            DataError: a prediction is NaN or infinite.
        """
        self._model.eval()
        return {split: self._measure(split, source) for split, source in self._sources.items()}

    def _measure(self, split: str, source: BatchSource) -> dict[str, float]:
        of_labels = [
            ClickMetrics(self._name(split, label), auc=self._auc)
            if self._label_kind == "binary"
            else RealMetrics(self._name(split, label))
            for label in self._labels
        ]
        outputs: list[Tensor] = []
        labels: list[Tensor] = []
        with source.batches(0) as batches:
            moved = (batch.to(self._device) for batch in batches)
            for batch, lookup in pipelined(moved, self._model.start):
                output = self._model.finish(batch, lookup)
                if self._metrics is None:
                    columns = (values.reshape(-1, len(of_labels)).unbind(1) for values in (output, batch.labels))
                    for collected, predicted, actual in zip(of_labels, *columns, strict=True):
                        collected.update(predicted, actual)
                else:
                    outputs.append(output.float().cpu())
                    labels.append(batch.labels.cpu())
        if self._metrics is None:
            found = [collected.compute(self._world) for collected in of_labels]
            if len(found) == 1:
                return found[0]
            of_each = {
                f"{label}.{name}": value
                for label, values in zip(self._labels, found, strict=True)
                for name, value in values.items()
            }
            return {name: sum(values[name] for values in found) / len(found) for name in found[0]} | of_each
        everyone = [torch.cat(self._world.all_gather(torch.cat(own), stage="evaluation")) for own in (outputs, labels)]
        return {name: float(metric(*everyone)) for name, metric in self._metrics.items()}

    def _name(self, split: str, label: str) -> str:
        """Of what is measured, for messages."""
        return split if len(self._labels) == 1 else f"{label} of {split}"


class RealMetrics:
    """Collects predictions of real labels, batch by batch, and measures those of all ranks together.

    Args:
        split: name of what is measured, for messages.
    """

    def __init__(self, split: str = "the split") -> None:
        self._split = split
        # Samples, predictions that are not finite, squared and absolute errors, labels and their squares.
        self._sums = torch.zeros(6, dtype=torch.float64)

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """Take in a batch, [B] each, on one device; no communication."""
        finite = predictions.isfinite()
        labels = labels.double()
        errors = torch.where(finite, predictions.detach().double() - labels, 0)
        lost = (~finite).sum().double()
        found = [errors.square().sum(), errors.abs().sum(), labels.sum(), labels.square().sum()]
        self._sums += torch.stack([lost.new_tensor(len(labels)), lost, *found]).cpu()

    def compute(self, world: World) -> dict[str, float]:
        """Measure the samples of all ranks: rmse, mae and r2, the same on every rank. Collective.

        Raises:
            DataError: on every rank: a prediction was NaN or infinite, or there are no samples.
        """
        count, lost, squared, absolute, total, squares = world.all_reduce(self._sums.clone(), stage="errors").tolist()
        _check_finite(self._split, int(lost), int(count))
        if not count:
            raise DataError(f"no samples to measure {self._split} on: give the split some, in [split], or leave it out")
        variance = squares / count - (total / count) ** 2
        mean_squared = squared / count
        return {
            "rmse": math.sqrt(mean_squared),
            "mae": absolute / count,
            "r2": 1 - mean_squared / variance if variance > 0 else float("nan"),
        }


def _check_finite(split: str, num_lost: int, num_samples: int) -> None:
    if num_lost:
        raise DataError(
            f"{num_lost} of {num_samples} predictions for {split} are NaN or infinite: the training diverged; lower "
            "the learning rate of the model or of the tables"
        )


def check_split_can_be_scored(split: str, num_samples: int, num_clicks: int) -> None:
    """Refuse samples for which the metrics mean nothing; call it on each split before training starts.

    Args:
        split: its name, for the message.
        num_samples: samples in it.
        num_clicks: those with label 1.

    Raises:
        DataError: there are no samples, or they all have the same label.
    """
    if num_samples == 0:
        raise DataError(f"no samples to measure {split} on: give the split some, in [split], or leave it out")
    if num_clicks in {0, num_samples}:
        raise DataError(
            f"AUC and normalised entropy have no meaning on {split}, whose {num_samples} samples all have the label "
            f"{int(num_clicks > 0)}: make the split larger, or split by hash"
        )


class ClickMetrics:
    """Collects predictions of this rank's samples, batch by batch, and measures those of all ranks together.

    Numbers are added in double precision: on another number of ranks they differ by rounding of that, and AUC not at
    all.

    Args:
        split: name of what is measured, for messages.
        auc: see `RecommendationEvaluationOptions`.
    """

    def __init__(self, split: str = "the split", *, auc: Literal["exact", "histogram"] = "exact") -> None:
        self._split = split
        self._histogram = torch.zeros(2, NUM_BINS, dtype=torch.int64) if auc == "histogram" else None
        self._logits: list[Tensor] = []
        self._clicked: list[Tensor] = []
        # Samples, clicks, predictions that are not finite; then sums of losses and of probabilities.
        self._counts = torch.zeros(3, dtype=torch.int64)
        self._sums = torch.zeros(2, dtype=torch.float64)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Take in a batch; no communication.

        Args:
            logits: [B] floating; B may be 0.
            labels: [B], 0 or 1, on the same device.
        """
        logits = logits.detach().float()
        clicked = labels > 0
        # Counted here and refused in `compute`, so that all ranks raise together.
        finite = logits.isfinite()
        logits = torch.where(finite, logits, 0)
        exact = logits.double()
        losses = F.binary_cross_entropy_with_logits(exact, clicked.double(), reduction="sum")
        self._counts += torch.stack([torch.tensor(len(logits)), clicked.sum().cpu(), (~finite).sum().cpu()])
        self._sums += torch.stack([losses, torch.sigmoid(exact).sum()]).cpu()
        if self._histogram is not None:
            self._histogram += histogram_of(logits, clicked)
        else:
            self._logits.append(logits.cpu())
            self._clicked.append(clicked.cpu())

    def compute(self, world: World) -> dict[str, float]:
        """Measure the samples of all ranks. Collective; every rank must have the same kind of `auc`.

        Returns:
            log_loss, normalised_entropy, calibration, auc and, of the histogram, auc_error_bound; the same on every
            rank.

        Raises:
            DataError: on every rank: a prediction was NaN or infinite, or what `check_split_can_be_scored` refuses.
        """
        counts = world.all_reduce(self._counts.clone(), stage="click counts")
        sums = world.all_reduce(self._sums.clone(), stage="click sums")
        num_samples, num_clicks, num_lost = counts.tolist()
        loss, predicted = sums.tolist()
        _check_finite(self._split, num_lost, num_samples)
        check_split_can_be_scored(self._split, num_samples, num_clicks)
        log_loss, share = loss / num_samples, num_clicks / num_samples
        entropy = -sum(p * math.log(p) for p in (share, 1 - share))
        return {
            "log_loss": log_loss,
            "normalised_entropy": log_loss / entropy,
            "calibration": predicted / num_clicks,
            **self._areas(world),
        }

    def _areas(self, world: World) -> dict[str, float]:
        if self._histogram is not None:
            total = world.all_reduce(self._histogram.clone(), stage="auc histogram")
            area, error_bound = auc_of_histogram(total)
            return {"auc": area, "auc_error_bound": error_bound}
        logits = torch.cat([torch.empty(0), *self._logits])
        clicked = torch.cat([torch.empty(0, dtype=torch.bool), *self._clicked])
        return {"auc": exact_auc(world, logits, clicked)}


_CANDIDATES_PER_RANK = 256
"""Logits that each rank offers as borders between ranks: with p ranks the fullest gets about 1 / p + 1 / 256 of all."""


def exact_auc(world: World, logits: Tensor, clicked: Tensor) -> float:
    """Share of pairs (a click, another sample) in which the click has the larger logit; a tie counts one half.

    Samples are sorted by a sample sort: ranks agree on borders between logits, rank r receives all samples between
    the borders r - 1 and r, so that equal logits meet, and counts its own pairs; pairs across borders follow from
    the ranks' counts alone. All counts are integers, so the area is the same bit for bit on any number of ranks.

    Collective. Cost: n log n for the n samples of a rank, 5 bytes sent for each.

    Args:
        world: its ranks hold the samples.
        logits: [n] float32 in CPU memory, finite; any n on each rank.
        clicked: [n] bool.

    Returns:
        Between 0 and 1, the same on every rank; NaN where no sample, or every one, is a click. Exact for fewer than
        2^62 pairs.
    """
    # Zeros of both signs are equal.
    logits, order = torch.sort(logits + 0.0)
    clicked = clicked[order]
    borders = _borders(world, logits)
    # A border belongs to the rank below it, on every rank alike.
    ends = torch.searchsorted(logits, borders, right=True).tolist()
    counts = [stop - start for start, stop in zip([0, *ends], [*ends, len(logits)], strict=True)]
    receive_counts = world.all_to_all_counts(counts, stage="auc")
    logits = world.all_to_all(logits, counts, receive_counts, stage="auc")
    clicked = world.all_to_all(clicked.to(torch.uint8), counts, receive_counts, stage="auc") > 0
    clicks_and_others = torch.tensor([int(clicked.sum()), int((~clicked).sum())])
    totals = torch.stack(world.all_gather(clicks_and_others.unsqueeze(0), stage="auc")).view(world.size, 2)
    others_below = int(totals[: world.rank, 1].sum())
    won_twice = _won_pairs_twice(logits, clicked) + 2 * others_below * int(clicks_and_others[0])
    won = world.all_reduce(torch.tensor([won_twice]), stage="auc")
    clicks, others = totals.sum(0).tolist()
    return int(won) / (2 * clicks * others) if clicks and others else float("nan")


def _borders(world: World, ordered: Tensor) -> Tensor:
    """size - 1 logits that cut all ranks' samples into about equal parts; fewer samples than that give fewer parts."""
    offered = ordered[:: max(1, len(ordered) // _CANDIDATES_PER_RANK)]
    everyone = torch.cat(world.all_gather(offered, stage="auc")).sort().values
    if len(everyone) == 0:
        return everyone.new_zeros(world.size - 1)
    places = torch.arange(1, world.size) * len(everyone) // world.size
    return everyone[places]


def _won_pairs_twice(logits: Tensor, clicked: Tensor) -> int:
    """Twice the number of pairs of these samples that the click wins, ties counting one half."""
    runs, run_of = torch.unique(logits, return_inverse=True)
    clicks = torch.bincount(run_of[clicked], minlength=len(runs))
    others = torch.bincount(run_of[~clicked], minlength=len(runs))
    below = others.cumsum(0) - others
    return int((clicks * (2 * below + others)).sum())


NUM_BINS = 1 << 16
"""Bins of equal width between logits of -16 and 16; 16 bytes each."""

LARGEST_LOGIT = 16.0
"""Logits beyond are in the outermost bins; a probability of 1e-7, below the resolution of float32 near 1."""


def histogram_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Count clicks and other samples by logit. Sums of such counts are those of all samples, in any order.

    Args:
        logits: [B] floating, without NaN.
        labels: [B], 0 or 1.

    Returns:
        [2, NUM_BINS] int64 on the CPU: other samples, then clicks.
    """
    scaled = (logits.detach().double() + LARGEST_LOGIT) * (NUM_BINS / (2 * LARGEST_LOGIT))
    bins = scaled.clamp(0, NUM_BINS - 1).long() + NUM_BINS * (labels > 0)
    return torch.bincount(bins, minlength=2 * NUM_BINS).view(2, NUM_BINS).cpu()


def auc_of_histogram(counts: Tensor) -> tuple[float, float]:
    """Estimate the area under the ROC curve of samples counted in bins, and say how far the exact one can be.

    Args:
        counts: [2, bins] of `histogram_of`.

    Returns:
        The area: sum of clicks x (others below + half of those in the bin), over the number of pairs; and a bound of
        its error. Exact, up to the bound, for fewer than 2^53 pairs; NaN where there is no click or nothing else.
    """
    others, clicks = counts.double()
    pairs = float(clicks.sum() * others.sum())
    if pairs == 0:
        return float("nan"), float("nan")
    below = others.cumsum(0) - others
    tied = float(clicks @ others) / 2
    return (float(clicks @ below) + tied) / pairs, tied / pairs
