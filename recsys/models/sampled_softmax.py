"""The loss of models that score one item against many: a softmax over it and a sample of all items.

    -log( exp(s_p) / (exp(s_p) + sum of exp(s_n) over negatives n that are not taken) )

Scores are corrected for how often an item is drawn, s - log q (logQ correction; Yi et al., Sampling-Bias-Corrected
Neural Modeling for Large Corpus Item Recommendations, RecSys 2019), so that those drawn often are not punished for it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["corrected_scores", "sampled_softmax_loss"]


def corrected_scores(
    queries: Tensor,
    items: Tensor,
    ids: Tensor,
    *,
    temperature: float,
    log_probabilities: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Score each sample's own item, and the negatives that all share.

    Args:
        queries: [B, d].
        items: [B + M, d], each sample's own, then the negatives.
        ids: [B + M] int64 of the items.
        temperature: what dot products are divided by.
        log_probabilities: [items] log q by id; None for no correction.

    Returns:
        [B] scores of own items, [B, M] of negatives.
    """
    queries, num_positives = queries / temperature, len(queries)
    positive = (queries * items[:num_positives]).sum(dim=1)
    negatives = items[num_positives:]
    if log_probabilities is None:
        return positive, queries @ negatives.T
    correction = log_probabilities[ids]
    return positive - correction[:num_positives], torch.addmm(
        correction[num_positives:], queries, negatives.T, beta=-1
    )


def sampled_softmax_loss(positive: Tensor, negative: Tensor, taken: Tensor) -> Tensor:
    """Add up the loss of all samples; the formula stands at the top of this module.

    Args:
        positive: [B] scores.
        negative: [B, M] scores.
        taken: [B, M] bool negatives that are none for the sample.

    Returns:
        Scalar; 0, and still differentiable, where B is 0 or all negatives are taken.
    """
    # Not minus infinity: where every negative was taken, its gradient would be NaN.
    negative = negative.masked_fill(taken, torch.finfo(negative.dtype).min)
    return F.softplus(negative.logsumexp(dim=1) - positive).sum()
