"""The ids of a minibatch as compiled loops read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.recsys.jagged_checks import check_jagged

if TYPE_CHECKING:
    from windrow.recsys.sharded.layout import Layout
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = ["Samples", "read_samples"]

NO_WEIGHTS = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Samples:
    """Ids of all features for the samples of one rank, in memory of the CPU."""

    keys: tuple[int, ...]
    """For each feature of the layout its row of `lengths`."""
    lengths: npt.NDArray[Any]
    """[features of the batch, samples] int32 or int64."""
    ids: npt.NDArray[Any]
    """[n] int32 or int64, feature by feature."""
    weights: npt.NDArray[np.float32]
    """[n], or [0] where ids have no weights."""
    starts: npt.NDArray[np.int64]
    """[features of the batch + 1] where each feature's ids begin."""
    one_each: npt.NDArray[np.bool_]
    """[features of the batch] whether every sample has exactly one id."""

    @property
    def num_samples(self) -> int:
        """Samples."""
        return int(self.lengths.shape[1])


def read_samples(jagged: "KeyedJaggedTensor", layout: "Layout", *, is_weighted: bool) -> Samples:
    """Look at a batch, and refuse one that kernels could not be trusted with.

    Args:
        jagged: ids; may hold more features than the layout.
        layout: says which features are looked up, and how many rows they choose from.
        is_weighted: whether ids have weights.

    Returns:
        Views of the batch's memory; copies of what is on a GPU.

    Raises:
        DataError: a feature is missing, weights are missing, or a law of `check_jagged` is broken.

    Cost:
        One pass over lengths and ids.
    """
    names: Sequence[str] = jagged.keys()
    keys = _keys(names, layout.features)
    weights = jagged.weights_or_none() if is_weighted else None
    if is_weighted and weights is None:
        raise DataError("this collection is weighted, but the batch has no weights: give one for each id")
    limits = np.full(len(names), -1, np.int64)
    limits[list(keys)] = layout.rows
    # Offsets are looked at before lengths are asked for, which the container would derive from them.
    if (
        len(set(names)) < len(names)
        or jagged.variable_stride_per_key()
        or not _are_integers(jagged.values())
        or not _are_lawful_offsets(jagged)
    ):
        _refuse(jagged, layout)
    num_samples = jagged.stride()
    flat = jagged.lengths().detach().cpu()
    if flat.numel() != len(names) * num_samples:
        _refuse(jagged, layout)
    lengths = flat.numpy().reshape(len(names), num_samples)
    ids = jagged.values().detach().cpu().contiguous().numpy()
    starts, one_each = np.empty(len(names) + 1, np.int64), np.empty(len(names), np.bool_)
    from windrow.recsys.sharded.packing_kernels import summarise

    if not summarise(lengths, ids, limits, starts, one_each):
        _refuse(jagged, layout)
    if weights is not None and (weights.dtype != torch.float32 or weights.shape != ids.shape):
        _refuse(jagged, layout)
    held = NO_WEIGHTS if weights is None else weights.detach().cpu().contiguous().numpy()
    return Samples(keys, lengths, ids, held, starts, one_each)


def _keys(names: Sequence[str], features: Sequence[str]) -> tuple[int, ...]:
    place = {name: number for number, name in enumerate(names)}
    missing = [feature for feature in features if feature not in place]
    if missing:
        raise DataError(f"feature {missing[0]!r} is not in the batch, which has {', '.join(names)}")
    return tuple(place[feature] for feature in features)


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
