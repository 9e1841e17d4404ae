"""How good predicted click probabilities are, over the samples of all ranks.

log_loss             mean of -log of the probability given to what happened, in nats       lower is better
normalised_entropy   log_loss / (-p log p - (1 - p) log(1 - p)), p the share of clicks     below 1: better than
                     (He et al., ADKDD 2014): 1 is what always predicting p gives          knowing p alone
calibration          sum of predicted probabilities / number of clicks                     1 is right on average
auc                  share of pairs (a click, another sample) in which the click has the   higher is better,
                     larger logit, a tie counting one half                                 0.5 is chance
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.comm.world import World
from windrow.recsys.exact_auc import exact_auc
from windrow.recsys.streaming_auc import StreamingAUC

__all__ = ["ClickMetrics", "base_entropy", "check_split_can_be_scored"]


def base_entropy(num_samples: int, num_clicks: int) -> float:
    """Mean log loss, in nats, of always predicting the share of clicks: H(p) = -p log p - (1 - p) log(1 - p)."""
    share = num_clicks / num_samples
    return -sum(p * math.log(p) for p in (share, 1 - share) if p > 0)


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
        auc: "exact" keeps 5 bytes per sample until the end; "histogram" 1 MiB in all, and reports beside `auc` an
            `auc_error_bound`.
    """

    def __init__(self, split: str = "the split", *, auc: Literal["exact", "histogram"] = "exact") -> None:
        self._split = split
        self._histogram = StreamingAUC() if auc == "histogram" else None
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
            self._histogram.update(logits, clicked)
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
        if num_lost:
            raise DataError(
                f"{num_lost} of {num_samples} predictions for {self._split} are NaN or infinite: the training "
                "diverged; lower the learning rate of the model or of the tables"
            )
        check_split_can_be_scored(self._split, num_samples, num_clicks)
        log_loss = loss / num_samples
        return {
            "log_loss": log_loss,
            "normalised_entropy": log_loss / base_entropy(num_samples, num_clicks),
            "calibration": predicted / num_clicks,
            **self._areas(world),
        }

    def _areas(self, world: World) -> dict[str, float]:
        if self._histogram is not None:
            estimate = self._histogram.compute(world)
            return {"auc": estimate.auc, "auc_error_bound": estimate.error_bound}
        logits = torch.cat([torch.empty(0), *self._logits])
        clicked = torch.cat([torch.empty(0, dtype=torch.bool), *self._clicked])
        return {"auc": exact_auc(world, logits, clicked)}
