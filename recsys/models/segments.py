"""Operations inside each of many runs of rows, without padding them to one length."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["places_from_the_end", "repeated", "segment_softmax", "summed"]


def segment_softmax(scores: Tensor, lengths: Tensor) -> Tensor:
    """Softmax inside each of many runs of numbers.

    Args:
        scores: [n] floating, the runs one after another.
        lengths: [B] int64, adding up to n; may hold zeros.

    Returns:
        [n]: each run is non-negative and adds up to 1, however large its scores. Cost: three passes over n.
    """
    # The largest score of a run cancels out, so no gradient goes through it.
    largest = _reduced(scores.detach(), "max", lengths, initial=-torch.inf)
    raised = torch.exp(scores - repeated(largest, lengths, len(scores)))
    totals = summed(raised, lengths)
    return raised / repeated(totals, lengths, len(scores))


def repeated(rows: Tensor, lengths: Tensor, total: int) -> Tensor:
    """Give each member of a run the run's row.

    Args:
        rows: [B, ...].
        lengths: [B] int64.
        total: sum of the lengths.

    Returns:
        [total, ...].
    """
    return rows.repeat_interleave(lengths, 0, output_size=total)


def places_from_the_end(lengths: Tensor, total: int) -> Tensor:
    """Number the members of each run from its end.

    Args:
        lengths: [B] int64; may hold zeros.
        total: sum of the lengths.

    Returns:
        [total] int64: 0 for the last of a run.
    """
    ends = repeated(lengths.cumsum(0), lengths, total)
    return ends - 1 - torch.arange(total, device=lengths.device)


def summed(rows: Tensor, lengths: Tensor) -> Tensor:
    """Add up the rows of each run.

    Args:
        rows: [n, ...] floating, the runs one after another.
        lengths: [B] int64, adding up to n.

    Returns:
        [B, ...]; zeros for an empty run.
    """
    return _reduced(rows, "sum", lengths, initial=0)


def _reduced(rows: Tensor, reduce: Literal["max", "sum"], lengths: Tensor, *, initial: float) -> Tensor:
    # Torch refuses an empty list of lengths, so an empty run is added and its result dropped.
    return torch.segment_reduce(rows, reduce, lengths=F.pad(lengths, (0, 1)), initial=initial)[:-1]
