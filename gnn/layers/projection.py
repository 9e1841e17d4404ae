"""Aggregation and a linear map, in the cheaper of their two orders."""

from typing import Literal

from torch import Tensor

from windrow.gnn.block import Block
from windrow.gnn.message_passing import aggregate
from windrow.training.dense import linear

__all__ = ["aggregate_projected", "projects_first"]

_GATHER_COST = 4.0
"""Time to gather and add one number over the time of one multiply-add inside a matrix product; about 4 to 5
on a core with AVX-512 and rows of 128 float32. It only chooses between two equal results."""


def aggregate_projected(block: Block, x: Tensor, weight: Tensor, *, reduce: Literal["sum", "mean"]) -> Tensor:
    """Aggregate the rows of `x W^T` over each destination's sources.

    Both steps are linear, so aggregate(x W^T) = aggregate(x) W^T up to rounding.

    Args:
        block: the bipartite graph.
        x: floating [num_sources, in_features].
        weight: [out_features, in_features].
        reduce: "sum" or "mean".

    Returns:
        [num_destinations, out_features]; zeros for a destination without edges.
    """
    if projects_first(block, x, weight.shape[0]):
        return aggregate(block, linear(x, weight), reduce=reduce)
    return linear(aggregate(block, x, reduce=reduce), weight)


def projects_first(block: Block, x: Tensor, out_features: int) -> bool:
    """Whether projecting all sources costs less than aggregating rows of full width.

    Projecting first gathers narrower rows (where out < in) but multiplies one row per source rather than one
    per destination. Both are counted with their backward pass; an input that needs no gradient (the first
    layer's features) spares the aggregation's.

    Args:
        block: the bipartite graph.
        x: [num_sources, in_features].
        out_features: columns after the projection.
    """
    in_features = x.shape[1]
    products = 3 if x.requires_grad else 2
    gathers = 2 if x.requires_grad else 1
    projected_first = (
        _GATHER_COST * 2 * block.num_edges * out_features
        + products * block.num_sources * in_features * out_features
    )
    aggregated_first = (
        _GATHER_COST * gathers * block.num_edges * in_features
        + products * block.num_destinations * in_features * out_features
    )
    return projected_first < aggregated_first
