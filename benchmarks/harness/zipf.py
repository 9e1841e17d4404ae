"""Ids of tables with few hot rows and many cold ones."""

import torch
from torch import Tensor

__all__ = ["zipf_ids"]


def zipf_ids(rows: int, count: int, *, exponent: float, seed: int) -> Tensor:
    """Draw [count] int64 rows, row k about as often as (k + 1) ** -exponent, for any exponent but 1.

    By the inverse of the continuous law on [1, rows + 1), whose integer parts they are.
    """
    drawn = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    power = 1 - exponent
    found = (1 + drawn * ((rows + 1) ** power - 1)) ** (1 / power)
    ids: Tensor = (found.long() - 1).clamp(0, rows - 1)
    return ids
