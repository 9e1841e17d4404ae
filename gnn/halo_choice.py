"""Which methods of full-graph training go together with what else, and which is predicted to be faster."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
from torch import nn

from windrow.comm.errors import RecipeError
from windrow.comm.link_model import predict_all_to_all
from windrow.comm.links import Links
from windrow.comm.rows import near_equal_split
from windrow.gnn.message_bits import Messages
from windrow.gnn.models import GNN

__all__ = ["NUMBER_BYTES", "Method", "check_method", "check_model", "faster_method"]

Method: TypeAlias = Literal["exact", "boundary_sampling", "stale", "skip_broadcasts", "feature_slices", "auto"]

NUMBER_BYTES = 4
"""Of a float32. In other formats both ways that are compared take less in proportion."""


def check_method(method: Method, messages: Messages, *, recompute: bool) -> None:
    """Refuse settings that have no meaning together: RecipeError."""
    if method in ("boundary_sampling", "skip_broadcasts", "feature_slices", "auto") and messages in (
        "adaptive",
        "random",
    ):
        raise RecipeError(
            f'full_graph.messages = "{messages}" with full_graph.method = "{method}": widths are assigned to rows that '
            'travel in every epoch; choose a number of bits ("int8", "int4", "int2", "int1") or "wire"'
        )
    if method in ("stale", "skip_broadcasts") and recompute:
        raise RecipeError(
            f'full_graph.recompute = true with full_graph.method = "{method}", which keeps rows of others from one '
            "epoch to the next, and could not fetch the same again: leave one of the two out"
        )


def check_model(method: Method, model: nn.Module, *, recompute: bool) -> None:
    """Refuse a model whose layers look at each source, where sources are left out or cut: RecipeError.

    A module of the user's own is refused when it asks for rows.
    """
    if not isinstance(model, GNN):
        return
    if recompute and model.options.is_typed:
        raise RecipeError(
            f'full_graph.recompute = true with model.kind = "{model.options.kind}", whose layers sort the rows that '
            "arrive by type and keep the copies: leave it out"
        )
    if method in ("boundary_sampling", "feature_slices") and _looks_at_sources(model):
        raise RecipeError(
            f'full_graph.method = "{method}" with model.kind = "{model.options.kind}", whose layers look at each '
            'source, where this method has no whole rows of all of them: choose "exact", "stale" or "skip_broadcasts", '
            "or another kind"
        )


def _looks_at_sources(model: GNN) -> bool:
    return model.options.kind == "gat" or model.options.is_typed


def faster_method(
    links: Links, send_counts: Sequence[Sequence[int]], offsets: Sequence[int], model: nn.Module
) -> tuple[Literal["exact", "feature_slices"], str]:
    """Choose by what the messages of a hidden layer take, both ways; sums over own sources, which hide some, aside.

    Args:
        links: between the ranks; more than one.
        send_counts: [size][size] rows of a halo from each rank to each.
        offsets: [size + 1] where each part's ids start.
        model: what is trained.

    Returns:
        The method, and why.
    """
    if not isinstance(model, GNN):
        return "exact", "it is not known whether the layers of a module of your own look at each source"
    if _looks_at_sources(model):
        return "exact", f"layers of {model.options.kind} look at each source"
    width = model.options.hidden
    rows = np.array(send_counts, np.float64)
    columns = np.diff(near_equal_split(width, links.size))
    slices = np.outer([stop - start for start, stop in pairwise(offsets)], columns)
    halo_s = sum(predict_all_to_all(links, NUMBER_BYTES * width * sent) for sent in (rows, rows.T))
    slices_s = 2 * sum(predict_all_to_all(links, NUMBER_BYTES * sent) for sent in (slices, slices.T))
    why = (
        f"rows of {width} columns and their gradients are predicted to travel for {1e3 * halo_s:.3g} ms as rows of the "
        f"halo, {1e3 * slices_s:.3g} ms in slices"
    )
    return ("feature_slices" if slices_s < halo_s else "exact"), why
