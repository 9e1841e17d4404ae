"""From a jagged tensor, or from several deduplicated ones, to one whose lists are held once each; and TorchRec's form.

TorchRec has a variable batch, in which each feature has rows of its own number. Of the example in
`windrow.recsys.batches.deduplication.ikjt` its container is::

    keys     cart sellers
    values   7 3 4 1 1 9
    lengths  2 0 1 2 0 1               cart's three rows, then sellers'
    stride_per_key_per_rank [[3] [3]]  rows of each feature
    inverse_indices ([cart sellers], [[0 0 1 0 2] [0 0 1 0 2]])    row of each sample, for each feature
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.recsys.batches.batch import check_inverse
from windrow.recsys.batches.deduplication.distinct_lists import (
    DeviceColumn,
    distinct_lists,
    distinct_on_device,
)
from windrow.recsys.batches.deduplication.ikjt import (
    InverseKeyedJaggedTensor,
    places_of,
    renumber,
    select_lists,
)

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = [
    "canonical",
    "concatenate",
    "deduplicate",
    "device_columns",
    "from_variable_batch",
    "to_variable_batch",
]


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


def to_variable_batch(groups: Sequence[InverseKeyedJaggedTensor]) -> "KeyedJaggedTensor":
    """Make TorchRec's container.

    Args:
        groups: of the same samples and different features, at least one; all with weights, or none.

    Returns:
        Features of all groups, in their order. TorchRec's bag collections expand what they look up by
        ``inverse_indices``; its `EmbeddingCollection` of one process ignores them.

    Raises:
        DataError: no group, groups of different numbers of samples, a feature twice, or weights in some groups only.
    """
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

    if not groups:
        raise DataError("no groups to convert: give at least one")
    keys = [key for group in groups for key in group.keys]
    counts = [group.num_samples for group in groups]
    weights = [group.unique.weights_or_none() for group in groups]
    if len(set(keys)) < len(keys) or len(set(counts)) > 1:
        raise DataError(
            f"groups of {counts} samples with features {', '.join(keys)}: samples must be as many, features different"
        )
    given = [weight for weight in weights if weight is not None]
    if given and len(given) < len(groups):
        raise DataError(f"only some of the groups of {', '.join(keys)} have weights: give all or none")
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.cat([group.unique.values() for group in groups]),
        weights=torch.cat(given) if given else None,
        lengths=torch.cat([group.unique.lengths() for group in groups]),
        stride_per_key_per_rank=[[group.num_unique] for group in groups for _ in group.keys],
        inverse_indices=(keys, torch.stack([group.inverse for group in groups for _ in group.keys])),
    )


def from_variable_batch(
    jagged: "KeyedJaggedTensor", groups: Sequence[Sequence[str]]
) -> tuple[InverseKeyedJaggedTensor, ...]:
    """Make groups of distinct rows of TorchRec's container.

    Args:
        jagged: of one rank's samples, with ``inverse_indices``; rows may be equal, in any order, or of no sample.
        groups: features of each group.

    Returns:
        What `windrow.recsys.batches.deduplication.deduplicate.deduplicate` gives of the expanded input, for each
        group. Where the features of a group have the same inverse, nothing is expanded.

    Raises:
        DataError: no ``inverse_indices``, or some that name rows which are not there; rows of several ranks; or a
            feature that is not there.
    """
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

    indices = jagged.inverse_indices_or_none()
    strides = jagged.stride_per_key_per_rank()
    if indices is None or any(len(of_ranks) != 1 for of_ranks in strides):
        raise DataError(
            "rows without inverse_indices, or of several ranks: give what one rank made, or use deduplicate"
        )
    named, inverses = indices
    inverse_of = dict(zip(named, inverses, strict=True))
    rows = {key: of_ranks[0] for key, of_ranks in zip(jagged.keys(), strides, strict=True)}
    for feature, inverse in inverse_of.items():
        if feature in rows:
            check_inverse(
                inverse, num_unique=rows[feature], num_samples=inverses.shape[1], name=f"feature {feature!r}"
            )
    single = jagged.to_dict()

    def together(features: Sequence[str], lists: "Sequence[KeyedJaggedTensor]") -> "KeyedJaggedTensor":
        weighted = jagged.weights_or_none() is not None
        return KeyedJaggedTensor(
            keys=list(features),
            values=torch.cat([part.values() for part in lists]),
            weights=torch.cat([part.weights() for part in lists]) if weighted else None,
            lengths=torch.cat([part.lengths() for part in lists]),
            stride=int(lists[0].stride()),
        )

    def rows_of(feature: str) -> "KeyedJaggedTensor":
        part = single[feature]
        return KeyedJaggedTensor(
            keys=[feature],
            values=part.values(),
            weights=part.weights_or_none(),
            lengths=part.lengths(),
            stride=rows[feature],
        )

    found = []
    for group in groups:
        missing = [feature for feature in group if feature not in rows or feature not in inverse_of]
        if missing or not group:
            raise DataError(
                f"group {list(group)} of features {', '.join(rows)}: name some of these, in each group"
            )
        lists, inverse = [rows_of(feature) for feature in group], inverse_of[group[0]]
        if all(
            rows[feature] == rows[group[0]] and torch.equal(inverse_of[feature], inverse) for feature in group
        ):
            found.append(canonical(together(group, lists), inverse.contiguous()))
            continue
        expanded = [
            select_lists(part, part.keys(), inverse_of[feature].contiguous())
            for feature, part in zip(group, lists, strict=True)
        ]
        found.append(deduplicate(together(group, expanded), group))
    return tuple(found)
