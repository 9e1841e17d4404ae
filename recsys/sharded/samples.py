"""The ids of a minibatch as compiled loops read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.recsys.batches.batch import check_jagged
from windrow.recsys.batches.jagged import check_inverse

if TYPE_CHECKING:
    from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor
    from windrow.recsys.sharded.layout import Layout
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = ["Samples", "read_samples"]


@dataclass(frozen=True, slots=True)
class Samples:
    """Ids of the features of one group for the samples of one rank, in memory of the CPU."""

    keys: Mapping[int, int]
    """For each feature of the layout that is in the group, its row of `lengths`."""
    lengths: npt.NDArray[Any]
    """[features of the batch, rows] int32 or int64; a row for each sample, or for each distinct one."""
    ids: npt.NDArray[Any]
    """[n] int32 or int64, feature by feature."""
    weights: npt.NDArray[np.float32]
    """[n], or [0] where ids have no weights."""
    starts: npt.NDArray[np.int64]
    """[features of the batch + 1] where each feature's ids begin."""
    one_each: npt.NDArray[np.bool_]
    """[features of the batch] whether every row has exactly one id."""
    inverse: Tensor | None
    """[B] int64 row of each sample, on the batch's device; None where there is a row for each sample."""

    @property
    def num_rows(self) -> int:
        """Samples, or distinct ones."""
        return int(self.lengths.shape[1])

    def inverse_on(self, device: torch.device) -> Tensor | None:
        """`inverse` where the vectors are, which need not be where the batch is."""
        return None if self.inverse is None else self.inverse.to(device)


def read_samples(
    jagged: "KeyedJaggedTensor",
    deduplicated: "Sequence[InverseKeyedJaggedTensor]",
    layout: "Layout",
    *,
    is_weighted: bool,
) -> tuple[Samples, ...]:
    """Look at a batch, and refuse one that kernels could not be trusted with.

    Args:
        jagged: ids of the features with a list for each sample; may hold more features than the layout.
        deduplicated: each group of the layout; likewise.
        layout: says which features are looked up, and how many rows they choose from.
        is_weighted: whether ids have weights; those of a part of the batch that has none weigh 1.

    Returns:
        One for each group of the layout. Views of the batch's memory; copies of what is on a GPU.

    Raises:
        DataError: a group, a feature or weights are missing, an inverse is not int64, names a row that is not there
            or has another number of samples, or a law of `check_jagged` is broken.

    Cost:
        One pass over lengths, ids and inverses.
    """
    if len(deduplicated) != layout.num_groups - 1:
        raise DataError(
            f"the batch has {len(deduplicated)} deduplicated groups, but the collection was made for "
            f"{layout.num_groups - 1}: give both the same groups, in the same order"
        )
    parts = [jagged, *(group.unique for group in deduplicated)]
    if is_weighted and all(part.weights_or_none() is None for part in parts):
        raise DataError("this collection is weighted, but the batch has no weights: give one for each id")
    found = [_read_group(jagged, layout, 0, None, is_weighted=is_weighted)]
    for number, group in enumerate(deduplicated, 1):
        check_inverse(
            group.inverse,
            num_unique=group.num_unique,
            num_samples=jagged.stride(),
            name=f"group {number} of the batch, {', '.join(group.keys)}",
        )
        found.append(_read_group(group.unique, layout, number, group.inverse, is_weighted=is_weighted))
    return tuple(found)


def _read_group(
    jagged: "KeyedJaggedTensor", layout: "Layout", group: int, inverse: Tensor | None, *, is_weighted: bool
) -> Samples:
    names: Sequence[str] = jagged.keys()
    wanted = layout.features_of_group(group)
    keys = _keys(names, {feature: layout.features[feature] for feature in wanted}, group)
    weights = jagged.weights_or_none() if is_weighted else None
    limits = np.full(len(names), -1, np.int64)
    for feature, key in keys.items():
        limits[key] = layout.rows[feature]
    # Offsets are looked at before lengths are asked for, which the container would derive from them.
    if (
        len(set(names)) < len(names)
        or jagged.variable_stride_per_key()
        or not _are_integers(jagged.values())
        or not _are_lawful_offsets(jagged)
    ):
        _refuse(jagged, layout)
    num_rows = jagged.stride()
    flat = jagged.lengths().detach().cpu()
    if flat.numel() != len(names) * num_rows:
        _refuse(jagged, layout)
    lengths = flat.numpy().reshape(len(names), num_rows)
    ids = jagged.values().detach().cpu().contiguous().numpy()
    starts, one_each = np.empty(len(names) + 1, np.int64), np.empty(len(names), np.bool_)
    from windrow.recsys.sharded.packing_kernels import summarise

    if not summarise(lengths, ids, limits, starts, one_each):
        _refuse(jagged, layout)
    if weights is not None and (weights.dtype != torch.float32 or weights.shape != ids.shape):
        _refuse(jagged, layout)
    held = np.ones(len(ids) if is_weighted else 0, np.float32)
    if weights is not None:
        held = weights.detach().cpu().contiguous().numpy()
    return Samples(keys, lengths, ids, held, starts, one_each, inverse)


def _keys(names: Sequence[str], features: Mapping[int, str], group: int) -> dict[int, int]:
    place = {name: number for number, name in enumerate(names)}
    missing = [feature for feature in features.values() if feature not in place]
    if missing:
        where = f"group {group} of the batch" if group else "the batch"
        cure = ": give it the groups that the collection was made for, in their order" if group else ""
        raise DataError(
            f"feature {missing[0]!r} is not in {where}, which has {', '.join(names) or 'no features'}{cure}"
        )
    return {number: place[feature] for number, feature in features.items()}


def _are_integers(tensor: Tensor) -> bool:
    return tensor.dim() == 1 and tensor.dtype in (torch.int32, torch.int64)


def _are_lawful_offsets(jagged: "KeyedJaggedTensor") -> bool:
    """Whether offsets, where the batch has any, start at 0 and say the same as its lengths."""
    offsets, lengths = jagged.offsets_or_none(), jagged.lengths_or_none()
    if offsets is None:
        return lengths is not None and _are_integers(lengths)
    if not _are_integers(offsets) or not len(offsets) or int(offsets[0]) != 0:
        return False
    return lengths is None or (_are_integers(lengths) and torch.equal(offsets.diff(), lengths.to(offsets)))


def _refuse(jagged: "KeyedJaggedTensor", layout: "Layout") -> None:
    """Say slowly what the fast look found."""
    unlimited = dict.fromkeys(jagged.keys(), torch.iinfo(torch.int64).max)
    check_jagged(jagged, {**unlimited, **dict(zip(layout.features, layout.rows, strict=True))})
    raise DataError("weights of the ids must be float32, one for each id")
