"""From a jagged tensor, or from several deduplicated ones, to one whose lists are held once each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.recsys.deduplication.distinct_lists import distinct_lists
from windrow.recsys.deduplication.distinct_on_device import DeviceColumn, distinct_on_device
from windrow.recsys.deduplication.renumber import renumber
from windrow.recsys.deduplication.select_lists import places_of, select_lists
from windrow.recsys.ikjt import InverseKeyedJaggedTensor

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = ["canonical", "concatenate", "deduplicate", "device_columns"]


def deduplicate(jagged: "KeyedJaggedTensor", group: Sequence[str]) -> InverseKeyedJaggedTensor:
    """Hold the lists of a group of features once each.

    Args:
        jagged: F features of B samples, on any device; those that are not in the group are left out.
        group: names of features, at least one.

    Returns:
        Distinct rows in the order in which samples first have them, features in the order of the group. Its
        `InverseKeyedJaggedTensor.expand` is the input, restricted to the group.

    Raises:
        DataError: the group is empty, names a feature twice or one that is not there, or features have different
            numbers of samples.

    Cost:
        CPU: `distinct_lists`, then one copy of the distinct lists. Other devices: a sort of B hashes and some passes
        over the ids.
    """
    if not group:
        raise DataError("a group of no features has no lists to compare: name at least one feature")
    places, num_samples = places_of(jagged, group), int(jagged.stride())
    offsets, values, weights = jagged.offsets(), jagged.values().detach(), jagged.weights_or_none()
    bounds = [offsets[place * num_samples : (place + 1) * num_samples + 1] for place in places]
    if values.device.type == "cpu":
        ids = values.contiguous().numpy()
        numbers = None if weights is None else weights.detach().contiguous().numpy()
        found = distinct_lists(
            [bound.numpy() for bound in bounds], [ids] * len(group), [numbers] * len(group)
        )
        representatives, inverse = torch.from_numpy(found.representatives), torch.from_numpy(found.inverse)
    else:
        representatives, inverse = distinct_on_device(device_columns(bounds, values, weights))
    return InverseKeyedJaggedTensor(select_lists(jagged, group, representatives), inverse)


def device_columns(bounds: Sequence[Tensor], values: Tensor, weights: Tensor | None) -> list[DeviceColumn]:
    """What `distinct_on_device` compares: the ids of each feature, and the bits of their weights.

    Args:
        bounds: for each feature [B + 1] offsets.
        values: ids of all features.
        weights: a weight for each id, or None.

    Returns:
        A column for each feature, and another for each where there are weights.
    """
    columns = [DeviceColumn(bound, values) for bound in bounds]
    if weights is not None:
        integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
        bits = weights.detach().contiguous().view(integers[weights.element_size()])
        columns += [DeviceColumn(bound, bits) for bound in bounds]
    return columns


def canonical(unique: "KeyedJaggedTensor", inverse: Tensor) -> InverseKeyedJaggedTensor:
    """Merge equal rows, leave out those of no sample, and number them in the order in which samples first have them.

    Args:
        unique: rows of every feature, in any order, some perhaps equal or of no sample.
        inverse: [B] int64 row of each sample.

    Returns:
        What `deduplicate` gives of the samples; only rows are compared.
    """
    rows, numbers = renumber(inverse, int(unique.stride()))
    merged = deduplicate(select_lists(unique, unique.keys(), rows), unique.keys())
    return InverseKeyedJaggedTensor(merged.unique, merged.inverse.index_select(0, numbers))


def concatenate(parts: Sequence[InverseKeyedJaggedTensor]) -> InverseKeyedJaggedTensor:
    """Put the samples of several deduplicated groups one after the other.

    Args:
        parts: of the same features in the same order, on one device, at least one.

    Returns:
        What `deduplicate` gives of all samples: rows that several parts have are held once. Only rows are compared.

    Raises:
        DataError: no part, or parts of different features, or only some of them have weights.
    """
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

    if not parts:
        raise DataError("no parts to concatenate: give at least one")
    groups = {part.keys for part in parts}
    if len(groups) > 1:
        raise DataError(f"parts hold different features, {sorted(groups)}: give parts of one group")
    if len({part.unique.weights_or_none() is None for part in parts}) > 1:
        raise DataError(f"only some parts of group {', '.join(parts[0].keys)} have weights: give all or none")
    keys, counts = parts[0].keys, [part.num_unique for part in parts]
    offsets = [part.unique.offsets() for part in parts]
    lengths = torch.cat(
        [part.unique.lengths().view(len(keys), count) for part, count in zip(parts, counts, strict=True)], 1
    )
    cuts = [
        (part.unique, int(offset[place * count]), int(offset[(place + 1) * count]))
        for place in range(len(keys))
        for part, count, offset in zip(parts, counts, offsets, strict=True)
    ]
    weighted = parts[0].unique.weights_or_none() is not None
    rows = KeyedJaggedTensor(
        keys=list(keys),
        values=torch.cat([unique.values()[start:stop] for unique, start, stop in cuts]),
        weights=torch.cat([unique.weights()[start:stop] for unique, start, stop in cuts])
        if weighted
        else None,
        lengths=lengths.reshape(-1),
        stride=sum(counts),
    )
    before = [sum(counts[:number]) for number in range(len(parts))]
    return canonical(
        rows, torch.cat([part.inverse + first for part, first in zip(parts, before, strict=True)])
    )
