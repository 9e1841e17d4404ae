"""Chosen rows of chosen features of a jagged tensor: what both deduplicating and expanding copy."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import DataError

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = ["list_positions", "places_of", "select_by_pytorch", "select_lists"]


def places_of(jagged: "KeyedJaggedTensor", features: Sequence[str]) -> list[int]:
    """Where features stand among a jagged tensor's keys.

    Args:
        jagged: every feature has the same number of samples.
        features: names.

    Returns:
        A place for each name.

    Raises:
        DataError: a name is not among the keys, is among them twice, or comes twice, or samples differ in number.
    """
    if jagged.variable_stride_per_key():
        raise DataError(
            "features have different numbers of samples: convert them with from_variable_batch first"
        )
    keys: list[str] = jagged.keys()
    for feature in features:
        if keys.count(feature) != 1 or features.count(feature) != 1:
            raise DataError(
                f"feature {feature!r} is {keys.count(feature)} times among the keys {', '.join(keys)}, and "
                f"{features.count(feature)} times in {', '.join(features)}: it must be once in each"
            )
    return [keys.index(feature) for feature in features]


def select_lists(jagged: "KeyedJaggedTensor", features: Sequence[str], rows: Tensor) -> "KeyedJaggedTensor":
    """Copy some samples of some features, in any order and any number of times.

    Args:
        jagged: F features of B samples.
        features: f of its keys, in the result's order.
        rows: [n] int64 on its device, 0 <= rows < B, not checked: which sample comes first, second and so on.

    Returns:
        f features of n samples; types, device and whether there are weights as before, memory of its own.

    Raises:
        DataError: as `places_of`.
    """
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

    places, num_rows = places_of(jagged, features), int(jagged.stride())
    select = _select_by_loops if jagged.values().device.type == "cpu" else select_by_pytorch
    values, weights, lengths = select(
        jagged.offsets().detach(), jagged.values().detach(), jagged.weights_or_none(), num_rows, places, rows
    )
    return KeyedJaggedTensor(
        keys=list(features), values=values, weights=weights, lengths=lengths, stride=len(rows)
    )


def _select_by_loops(
    offsets: Tensor,
    values: Tensor,
    weights: Tensor | None,
    num_rows: int,
    places: Sequence[int],
    rows: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor]:
    from windrow.recsys.deduplication.select_lists_kernels import copy_lists, selected_lengths

    bounds, features, chosen = offsets.numpy(), np.array(places, np.int64), rows.numpy()
    lengths = np.empty(len(features) * len(chosen), bounds.dtype)
    total = selected_lengths(bounds, num_rows, features, chosen, lengths)

    def copied(column: Tensor) -> Tensor:
        source = column.detach().contiguous().numpy()
        out = np.empty(total, source.dtype)
        copy_lists(bounds, source, num_rows, features, chosen, out)
        return torch.from_numpy(out)

    return copied(values), None if weights is None else copied(weights), torch.from_numpy(lengths)


def select_by_pytorch(
    offsets: Tensor,
    values: Tensor,
    weights: Tensor | None,
    num_rows: int,
    places: Sequence[int],
    rows: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Do the same with PyTorch's operations, on any device.

    Args:
        offsets: [F * num_rows + 1] where lists begin.
        values: of all lists.
        weights: of all values, or None.
        num_rows: B.
        places: f features.
        rows: [n] int64 samples.

    Returns:
        Values, weights and lengths of the f * n lists.
    """
    chosen = torch.cat([rows + place * num_rows for place in places])
    starts = offsets[:-1].index_select(0, chosen)
    lengths = offsets[1:].index_select(0, chosen) - starts
    positions = list_positions(starts, lengths)
    return (
        values.index_select(0, positions),
        None if weights is None else weights.detach().index_select(0, positions),
        lengths,
    )


def list_positions(starts: Tensor, lengths: Tensor) -> Tensor:
    """Positions of the values of lists, list after list.

    Args:
        starts: [n] integers where each begins.
        lengths: [n] integers.

    Returns:
        [sum of lengths] int64, on the same device.
    """
    ends = lengths.long().cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    shifts = (starts.long() - ends + lengths).repeat_interleave(lengths, output_size=total)
    return torch.arange(total, device=starts.device) + shifts
