"""How long an epoch of minibatch training on a graph takes, from the rows that travel, the network, and a step's work.

A step needs the processor (sampling, gathering rows), the device that computes (where that is a CPU: the same cores),
and the network. One after another, as with ``pipeline.depth = 0``, their seconds add up. A pipeline does for later
steps whatever it can while one is computed. The sums of gradients stay: the next step needs them, and nobody has them
before the backward pass::

    no pipeline    | sample, gather |  counts, ids, rows  | compute | sums |          seconds: the sum
    pipeline       | sample, gather, compute |
                   | counts, ids, rows         | sums |                               seconds: the longer row, and sums
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from windrow.comm.link_model import predict_all_reduce, predict_all_to_all
from windrow.comm.links import Links

__all__ = ["ID_BYTES", "EpochTime", "StepWork", "estimate_epoch"]

ID_BYTES = 8
"""Of one id on the wire."""

COUNT_BYTES = 8
"""Of the number of ids, which each rank tells each before they travel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWork:
    """What a rank does in one step, without the network."""

    processor_s: float
    """Seconds of sampling and gathering rows; where a CPU computes the model, of that as well."""
    device_s: float
    """Seconds of forward, backward and update on a GPU; 0 where a CPU does them."""
    gradient_bytes: int
    """Of the gradients that are summed over the ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochTime:
    """Where an epoch's seconds go, without evaluation."""

    processor_s: float
    """Sampling and gathering; on a CPU the model as well."""
    device_s: float
    """The model on a GPU."""
    exchange_s: float
    """Counts, ids and rows on the network."""
    reduction_s: float
    """Sums of gradients on the network."""

    def seconds(self, *, pipelined: bool) -> float:
        """Of the epoch.

        Args:
            pipelined: whether the network works while minibatches are sampled and computed.
        """
        parts = (self.processor_s, self.device_s, self.exchange_s)
        return self.reduction_s + (max(parts) if pipelined else sum(parts))


def estimate_epoch(
    work: StepWork, links: Links, asked: npt.NDArray[np.float64] | None, row_bytes: int, *, steps: int
) -> EpochTime:
    """Predict an epoch from its mean step.

    Args:
        work: of a step.
        links: of the network.
        asked: float64 [n, n], rows that each rank asks each for in a step; None where every rank has every row, so
            that there is no exchange. Where merely nobody asks, counts still travel, since ranks cannot know.
        row_bytes: of one row on the wire.
        steps: in an epoch.
    """
    exchange = 0.0
    if asked is not None:
        counts = np.full((links.size, links.size), float(COUNT_BYTES))
        exchange = (
            predict_all_to_all(links, counts)
            + predict_all_to_all(links, ID_BYTES * asked)
            + predict_all_to_all(links, row_bytes * asked.T)
        )
    return EpochTime(
        processor_s=steps * work.processor_s,
        device_s=steps * work.device_s,
        exchange_s=steps * exchange,
        reduction_s=steps * predict_all_reduce(links, work.gradient_bytes),
    )
