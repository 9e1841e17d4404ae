"""Exact area under the ROC curve of samples spread over ranks, by a sort that is spread over them as well."""

import torch
from torch import Tensor

from windrow.comm.world import World

__all__ = ["exact_auc"]

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
