"""One minibatch, as every model and trainer takes it, and the laws of its ids.

Embedding kernels trust their input: an id past its table reads foreign memory, and offsets that go down make a
sample of negative length. Batches of a prepared store were checked when it was written; a user's own are checked
here, one private check per law.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor, PartialLists

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = ["Batch", "check_inverse", "check_jagged"]


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of a minibatch that one rank works on; may hold none.

    Attributes:
        dense: [B, D] float32 dense features; D may be 0.
        sparse: ids of every feature for each sample, TorchRec's container::

                        sample 0   sample 1   sample 2
            item        [7]        [2]        [7]           values  7 2 7 4 1 9
            history     [4, 1]     []         [9]           lengths 1 1 1 2 0 1    features first, samples second

            Ids are int64 row numbers of the feature's table, weights float32 or None.
        labels: [B] float32, 0 or 1.
        row_ids: [B] int64 numbers of the samples in their split: what randomness is keyed by.
        deduplicated: groups of features whose lists are held once each; these features are not in `sparse`.
        windows: features of `sparse` whose ids there are packed: a sample's list is its window into all of them, see
            `windrow.recsys.batches.deduplication.ikjt`. For `EmbeddingCollection` only.
    """

    dense: Tensor
    sparse: "KeyedJaggedTensor"
    labels: Tensor
    row_ids: Tensor
    deduplicated: tuple[InverseKeyedJaggedTensor, ...] = ()
    windows: Mapping[str, PartialLists] = field(default_factory=dict)

    @property
    def num_samples(self) -> int:
        """B."""
        return len(self.labels)

    def expanded(self) -> "Batch":
        """The same with a list for each sample of every feature but `windows`; itself where it has them.

        Raises:
            DataError: an inverse names rows that are not there, or has another number of samples.
        """
        if not self.deduplicated:
            return self
        for group in self.deduplicated:
            check_inverse(
                group.inverse,
                num_unique=group.num_unique,
                num_samples=self.sparse.stride(),
                name=f"the group {', '.join(group.keys)}",
            )
        from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

        parts = [self.sparse, *(group.expand() for group in self.deduplicated)]
        weights = [part.weights_or_none() for part in parts]
        if any(of_part is not None for of_part in weights):
            weights = [
                torch.ones_like(part.values(), dtype=torch.float32) if of_part is None else of_part
                for part, of_part in zip(parts, weights, strict=True)
            ]
        given = [of_part for of_part in weights if of_part is not None]
        sparse = KeyedJaggedTensor(
            keys=[key for part in parts for key in part.keys()],  # noqa: SIM118  # no mapping
            values=torch.cat([part.values() for part in parts]),
            weights=torch.cat(given) if given else None,
            lengths=torch.cat([part.lengths() for part in parts]),
            stride=self.sparse.stride(),
        )
        return Batch(self.dense, sparse, self.labels, self.row_ids, windows=self.windows)

    def to(self, device: torch.device) -> "Batch":
        """This batch on a device; itself where it is there already."""
        if self.labels.device == device:
            return self
        # A copy to the CPU would be read before it is there.
        non_blocking = device.type != "cpu"
        return Batch(
            self.dense.to(device, non_blocking=non_blocking),
            self.sparse.to(device, non_blocking=non_blocking),
            self.labels.to(device, non_blocking=non_blocking),
            self.row_ids,
            tuple(group.to(device, non_blocking=non_blocking) for group in self.deduplicated),
            {name: lists.to(device, non_blocking=non_blocking) for name, lists in self.windows.items()},
        )


_INTEGERS = (torch.int32, torch.int64)


def check_jagged(jagged: "KeyedJaggedTensor", rows_of_feature: Mapping[str, int]) -> None:
    """Refuse a batch that breaks a law of the container, or names a row that no table has.

    Args:
        jagged: ids of some features for B samples, with or without weights; on any device.
        rows_of_feature: rows of the table that each feature looks into.

    Raises:
        DataError: a feature unknown or twice; another number of lengths or offsets than features x samples;
            offsets that do not start at 0, go down, or do not end at the number of ids; a negative length;
            lengths that do not sum to the number of ids; lengths and offsets that contradict each other; weights
            of another length; an id that is negative or past its table. Names feature, sample, value and cure.

    Cost:
        Two passes over lengths and one over ids; on a GPU four waits for the device.
    """
    _check_features(jagged, rows_of_feature)
    _check_types(jagged)
    _check_counts(jagged)
    _check_offsets(jagged)
    _check_lengths(jagged)
    _check_weights(jagged)
    _check_ids(jagged, rows_of_feature)


def check_inverse(inverse: Tensor, *, num_unique: int, num_samples: int, name: str) -> None:
    """Refuse an inverse that names rows which are not there: compiled loops would read foreign memory.

    Args:
        inverse: which row each sample has.
        num_unique: rows.
        num_samples: of the batch.
        name: of the group, as the error has it.

    Raises:
        DataError: it is not int64 [num_samples], or has a number that is negative or no row's.

    Cost:
        One pass; on a GPU a wait for the device.
    """
    if inverse.dim() != 1 or inverse.dtype != torch.int64:
        raise DataError(
            f"{name}: inverse is {inverse.dtype} of shape {list(inverse.shape)}: give int64 of shape [B]"
        )
    if len(inverse) != num_samples:
        raise DataError(
            f"{name}: {len(inverse)} samples, but the batch has {num_samples}: give it one of each"
        )
    if not len(inverse):
        return
    low, high = (int(extreme) for extreme in torch.aminmax(inverse))
    if low < 0 or high >= num_unique:
        raise DataError(
            f"{name}: inverse holds {low if low < 0 else high}, but there are rows 0 to {num_unique - 1}"
        )


def _check_features(jagged: "KeyedJaggedTensor", rows_of_feature: Mapping[str, int]) -> None:
    seen = set()
    for feature in jagged.keys():  # noqa: SIM118 - a method of KeyedJaggedTensor, which is no mapping
        if feature not in rows_of_feature:
            known = ", ".join(map(repr, rows_of_feature))
            raise DataError(
                f"feature {feature!r} looks into no table: known are {known}. Rename or remove it"
            )
        if feature in seen:
            raise DataError(f"feature {feature!r} comes twice: join its ids, or name the second differently")
        seen.add(feature)


def _check_types(jagged: "KeyedJaggedTensor") -> None:
    named = {"ids": jagged.values(), "lengths": jagged.lengths_or_none(), "offsets": jagged.offsets_or_none()}
    for name, tensor in named.items():
        if tensor is not None and (tensor.dim() != 1 or tensor.dtype not in _INTEGERS):
            raise DataError(
                f"{name} are a {tensor.dim()}-dimensional tensor of {tensor.dtype}: must be a vector of int64 or int32"
            )
    if named["lengths"] is None and named["offsets"] is None:
        raise DataError("a batch with neither lengths nor offsets: give one number per feature and sample")


def _check_counts(jagged: "KeyedJaggedTensor") -> None:
    if jagged.variable_stride_per_key():
        raise DataError(
            "features have different numbers of samples (stride_per_key_per_rank): give each feature "
            "every sample, with length 0 where there is no id"
        )
    keys, samples = len(jagged.keys()), jagged.stride()
    for name, tensor, extra in (
        ("lengths", jagged.lengths_or_none(), 0),
        ("offsets", jagged.offsets_or_none(), 1),
    ):
        if tensor is not None and len(tensor) != keys * samples + extra:
            raise DataError(
                f"{len(tensor)} {name} for {keys} features of {samples} samples: must be {keys * samples + extra}, "
                "those of the first feature for all samples first"
            )


def _check_offsets(jagged: "KeyedJaggedTensor") -> None:
    offsets = jagged.offsets_or_none()
    if offsets is None:
        return
    steps = offsets.diff()
    wrong = steps < 0
    lengths = jagged.lengths_or_none()
    contradicts = wrong if lengths is None else steps != lengths
    first, last, falls, contradictions = torch.stack(
        [offsets[0], offsets[-1], wrong.sum(), contradicts.sum()]
    ).tolist()
    if first != 0:
        raise DataError(f"offsets start at {first}: must start at 0; subtract {first} from all of them")
    if falls:
        place = _first(wrong)
        raise DataError(
            f"{_where(jagged, place)}: offset {int(offsets[place + 1])} comes after {int(offsets[place])}: offsets "
            "must never go down"
        )
    if lengths is not None and contradictions:
        place = _first(contradicts)
        raise DataError(
            f"{_where(jagged, place)}: length {int(lengths[place])}, but its offsets differ by {int(steps[place])}: "
            "give lengths or offsets, not both"
        )
    if last != len(jagged.values()):
        raise DataError(
            f"offsets end at {last}, but there are {len(jagged.values())} ids: the last offset must be their number"
        )


def _check_lengths(jagged: "KeyedJaggedTensor") -> None:
    lengths = jagged.lengths()
    negative = lengths < 0
    num_negative, total = torch.stack([negative.sum(), lengths.sum()]).tolist()
    if num_negative:
        place = _first(negative)
        raise DataError(f"{_where(jagged, place)}: length {int(lengths[place])}: must be 0 or more")
    if total != len(jagged.values()):
        raise DataError(
            f"lengths sum to {total}, but there are {len(jagged.values())} ids: each id is of one sample"
        )


def _check_weights(jagged: "KeyedJaggedTensor") -> None:
    weights = jagged.weights_or_none()
    if weights is None:
        return
    if weights.dim() != 1 or len(weights) != len(jagged.values()):
        raise DataError(
            f"weights of shape {list(weights.shape)} for {len(jagged.values())} ids: give one number per id, "
            "1 where a feature has no weights"
        )
    if not weights.is_floating_point():
        raise DataError(f"weights are {weights.dtype}: must be float32")


def _check_ids(jagged: "KeyedJaggedTensor", rows_of_feature: Mapping[str, int]) -> None:
    if len(jagged.values()) == 0:
        return
    # One slice per feature: the counts are trusted here, since lengths were checked before.
    counts = jagged.lengths().view(len(jagged.keys()), -1).sum(dim=1).tolist()
    held = [
        (feature, ids)
        for feature, ids in zip(jagged.keys(), jagged.values().split(counts), strict=True)
        if len(ids)
    ]
    extremes = torch.stack([extreme for _, ids in held for extreme in torch.aminmax(ids)]).tolist()
    for (feature, ids), low, high in zip(held, extremes[::2], extremes[1::2], strict=True):
        if low < 0 or high >= rows_of_feature[feature]:
            raise _bad_id(jagged, feature, ids, rows_of_feature[feature])


def _bad_id(jagged: "KeyedJaggedTensor", feature: str, ids: Tensor, rows: int) -> DataError:
    index = _first((ids < 0) | (ids >= rows))
    before = jagged.keys().index(feature) * jagged.stride()
    ends = jagged.lengths()[before : before + jagged.stride()].cumsum(0)
    sample = _first(ends > index)
    return DataError(
        f"{_where(jagged, before + sample)}: id {int(ids[index])}, but the table has rows 0 to {rows - 1}: give the "
        "table more rows, or map unknown ids to one of its rows"
    )


def _where(jagged: "KeyedJaggedTensor", place: int) -> str:
    feature, sample = divmod(place, jagged.stride())
    return f"feature {jagged.keys()[feature]!r}, sample {sample}"


def _first(mask: Tensor) -> int:
    return int(mask.nonzero()[0])
