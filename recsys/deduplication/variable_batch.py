"""Between groups of distinct rows and TorchRec's variable batch, in which each feature has rows of its own number.

Of the example in `windrow.recsys.ikjt` TorchRec's container is::

    keys     cart sellers
    values   7 3 4 1 1 9
    lengths  2 0 1 2 0 1               cart's three rows, then sellers'
    stride_per_key_per_rank [[3] [3]]  rows of each feature
    inverse_indices ([cart sellers], [[0 0 1 0 2] [0 0 1 0 2]])    row of each sample, for each feature
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from windrow.comm.errors import DataError
from windrow.recsys.deduplication.deduplicate import canonical, deduplicate
from windrow.recsys.deduplication.select_lists import select_lists
from windrow.recsys.ikjt import InverseKeyedJaggedTensor
from windrow.recsys.jagged_checks import check_inverse

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = ["from_variable_batch", "to_variable_batch"]


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
        What `windrow.recsys.deduplication.deduplicate.deduplicate` gives of the expanded input, for each group. Where
        the features of a group have the same inverse, nothing is expanded.

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
