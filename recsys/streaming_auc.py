"""Area under the ROC curve from two histograms: any number of samples in 1 MiB, with a bound of its own error.

AUC is the share of pairs (a click, a non-click) in which the click has the larger logit, a tie counting one half::

    logit    -16      -16 + w            0                    16
    bin       |   0   |   1   | ...      |      ...   | 65535 |        w = 32 / 65536 = 1 / 2048
    clicks        0       3                               2            ends take what lies beyond
    others        7       9                               0

Pairs in different bins are counted as they are, pairs in one bin as ties. So the estimate is off by at most half the
share of pairs that met in a bin, which the histograms tell.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from windrow.comm.world import World

__all__ = ["AUCEstimate", "StreamingAUC", "auc_of_counts"]

LARGEST_LOGIT = 16.0
"""Logits beyond are in the outermost bins; a probability of 1e-7, below the resolution of float32 near 1."""


class AUCEstimate(NamedTuple):
    """An area under the ROC curve, and how far the exact one can be.

    Attributes:
        auc: between 0 and 1; NaN where there is no click or nothing else.
        error_bound: the exact area is in [auc - error_bound, auc + error_bound].
    """

    auc: float
    error_bound: float


class StreamingAUC:
    """Counts clicks and other samples by logit, to estimate the area under the ROC curve.

    Counts are integers, so the estimate is the same bit for bit on any number of ranks and in any order.

    Args:
        num_bins: bins of equal width between logits of -16 and 16; 16 bytes each.

    Attributes:
        counts: [2, num_bins] int64 on the CPU: other samples, then clicks.
    """

    def __init__(self, num_bins: int = 1 << 16) -> None:
        self.counts = torch.zeros(2, num_bins, dtype=torch.int64)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Count samples.

        Args:
            logits: [B] floating, without NaN.
            labels: [B], 0 or 1.
        """
        num_bins = self.counts.shape[1]
        scaled = (logits.detach().double() + LARGEST_LOGIT) * (num_bins / (2 * LARGEST_LOGIT))
        bins = scaled.clamp(0, num_bins - 1).long() + num_bins * (labels > 0)
        self.counts += torch.bincount(bins, minlength=2 * num_bins).view(2, num_bins).cpu()

    def merge(self, other: "StreamingAUC") -> None:
        """Add the samples that another of as many bins has counted."""
        self.counts += other.counts

    def compute(self, world: World) -> AUCEstimate:
        """Estimate over the samples of all ranks. Collective; what was counted stays.

        Returns:
            The same on every rank.
        """
        total = world.all_reduce(self.counts.clone(), stage="auc histogram")
        return auc_of_counts(positives=total[1], negatives=total[0])


def auc_of_counts(*, positives: Tensor, negatives: Tensor) -> AUCEstimate:
    """The area under the ROC curve of samples counted in bins.

    Args:
        positives: [bins] int64, clicks in each bin, in the order of growing logits.
        negatives: [bins] int64, other samples.

    Returns:
        Exact, up to the bound, for fewer than 2^53 pairs: sum of clicks x (others below + half of those in the bin),
        over the number of pairs.
    """
    clicks, others = positives.double(), negatives.double()
    pairs = float(clicks.sum() * others.sum())
    if pairs == 0:
        return AUCEstimate(float("nan"), float("nan"))
    below = others.cumsum(0) - others
    tied = float(clicks @ others) / 2
    return AUCEstimate((float(clicks @ below) + tied) / pairs, tied / pairs)
