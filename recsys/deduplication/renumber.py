"""Numbers in the order of their first occurrence."""

import torch
from torch import Tensor

__all__ = ["renumber", "renumber_by_pytorch"]


def renumber(numbers: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Number what comes in a sequence in the order in which it first comes: 5 5 2 5 is 0 0 1 0 of 5 2.

    Args:
        numbers: [n] int64, 0 <= numbers < limit.
        limit: above all numbers.

    Returns:
        The distinct numbers [U] in order of their first, and the place of each among them [n]; int64, same device.

    Cost:
        CPU: one pass over the numbers and one over the limit. Other devices: a sort of the distinct numbers.
    """
    if numbers.device.type == "cpu":
        from windrow.recsys.deduplication.renumber_kernels import number_by_first

        source = numbers.contiguous().numpy()
        places = torch.full((limit,), -1, dtype=torch.int64)
        distinct = torch.empty(min(limit, len(source)), dtype=torch.int64)
        renumbered = torch.empty(len(source), dtype=torch.int64)
        count = number_by_first(source, places.numpy(), distinct.numpy(), renumbered.numpy())
        return distinct[:count].clone(), renumbered
    return renumber_by_pytorch(numbers, limit)


def renumber_by_pytorch(numbers: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Do the same with PyTorch's operations, on any device.

    Args:
        numbers: [n] int64, 0 <= numbers < limit.
        limit: above all numbers.

    Returns:
        As `renumber`.
    """
    absent = len(numbers)
    order = torch.arange(absent, device=numbers.device)
    first = numbers.new_full((limit,), absent).scatter_reduce_(0, numbers, order, "amin")
    ordered, distinct = first.sort(stable=True)
    distinct = distinct[: int((ordered < absent).sum())]
    places = numbers.new_empty(limit)
    places[distinct] = torch.arange(len(distinct), device=numbers.device)
    return distinct, places[numbers]
