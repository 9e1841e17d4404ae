"""One minibatch, as every model and trainer takes it, and the laws of its ids.

Embedding kernels trust their input: an id past its table reads foreign memory, and offsets that go down make a
sample of negative length. Batches of a prepared store were checked when it was written; a user's own are checked
here, one private check per law.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor
from windrow.recsys.batches.jagged import Jagged, Windows, check_inverse, check_lists, jagged_of, side_by_side

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = ["Batch", "check_jagged"]


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
        labels: [B] float32, 0 or 1, or any real numbers; [B, L] where a sample has several labels.
        row_ids: [B] int64 numbers of the samples in their split: what randomness is keyed by.
        deduplicated: groups of features whose lists are held once each; these features are not in `sparse`.
        windows: features of `sparse` whose ids there are packed: a sample's list is its window into all of them, see
            `windrow.recsys.batches.jagged`. For `EmbeddingCollection` only.
        weights: [B] float32, what the loss of each sample is multiplied by; None: 1.
    """

    dense: Tensor
    sparse: "KeyedJaggedTensor"
    labels: Tensor
    row_ids: Tensor
    deduplicated: tuple[InverseKeyedJaggedTensor, ...] = ()
    windows: Mapping[str, Windows[Tensor]] = field(default_factory=dict)
    weights: Tensor | None = None

    @property
    def num_samples(self) -> int:
        """B."""
        return self.labels.shape[0]

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
        together = side_by_side([self.sparse, *(group.expand() for group in self.deduplicated)])
        return replace(self, sparse=together, deduplicated=())

    def to(self, device: torch.device) -> "Batch":
        """This batch on a device; itself where it is there already."""
        if self.labels.device == device:
            return self
        # A copy to the CPU would be read before it is there.
        move: dict[str, Any] = {"device": device, "non_blocking": device.type != "cpu"}
        return Batch(
            self.dense.to(**move),
            self.sparse.to(**move),
            self.labels.to(**move),
            self.row_ids,
            tuple(group.to(**move) for group in self.deduplicated),
            {name: lists.to(**move) for name, lists in self.windows.items()},
            None if self.weights is None else self.weights.to(**move),
        )


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
    """
    _check_features(jagged, rows_of_feature)
    _check_counts(jagged)
    if jagged.lengths_or_none() is not None:
        _check_lengths(jagged)
    if jagged.offsets_or_none() is None and int(jagged.lengths().sum()) != len(jagged.values()):
        raise DataError(
            f"lengths sum to {int(jagged.lengths().sum())}, but there are {len(jagged.values())} ids: each id is of "
            "one sample"
        )
    lists = jagged_of(jagged)
    check_lists(lists, "the batch", partial(_where, jagged))
    for place, feature in enumerate(jagged.keys()):
        _check_ids(jagged, lists, place, rows_of_feature[feature])


def _check_features(jagged: "KeyedJaggedTensor", rows_of_feature: Mapping[str, int]) -> None:
    seen = set()
    for feature in jagged.keys():  # noqa: SIM118 - a method of KeyedJaggedTensor, which is no mapping
        if feature not in rows_of_feature:
            known = ", ".join(map(repr, rows_of_feature))
            raise DataError(f"feature {feature!r} looks into no table: known are {known}. Rename or remove it")
        if feature in seen:
            raise DataError(f"feature {feature!r} comes twice: join its ids, or name the second differently")
        seen.add(feature)


def _check_counts(jagged: "KeyedJaggedTensor") -> None:
    if jagged.variable_stride_per_key():
        raise DataError(
            "features have different numbers of samples (stride_per_key_per_rank): give each feature "
            "every sample, with length 0 where there is no id"
        )
    given = (("lengths", jagged.lengths_or_none(), 0), ("offsets", jagged.offsets_or_none(), 1))
    if all(tensor is None for _, tensor, _ in given):
        raise DataError("a batch with neither lengths nor offsets: give one number per feature and sample")
    keys, samples = len(jagged.keys()), jagged.stride()
    for name, tensor, extra in given:
        if tensor is not None and tensor.numel() != keys * samples + extra:
            raise DataError(
                f"{tensor.numel()} {name} for {keys} features of {samples} samples: must be {keys * samples + extra}, "
                "those of the first feature for all samples first"
            )


def _check_lengths(jagged: "KeyedJaggedTensor") -> None:
    lengths, offsets = jagged.lengths(), jagged.offsets_or_none()
    if lengths.dim() != 1 or lengths.dtype not in (torch.int32, torch.int64):
        raise DataError(
            f"lengths are {lengths.dtype} of shape {list(lengths.shape)}: must be a vector of int64 or int32"
        )
    negative = lengths < 0
    if negative.any():
        place = _first(negative)
        raise DataError(f"{_where(jagged, place)}: length {int(lengths[place])}: must be 0 or more")
    if offsets is not None and not torch.equal(offsets.diff(), lengths.to(offsets.dtype)):
        place = _first(offsets.diff() != lengths)
        raise DataError(
            f"{_where(jagged, place)}: length {int(lengths[place])}, but its offsets differ by "
            f"{int(offsets.diff()[place])}: give lengths or offsets, not both"
        )


def _check_ids(jagged: "KeyedJaggedTensor", lists: Jagged[Tensor], feature: int, rows: int) -> None:
    of_feature = lists.slice(feature * jagged.stride(), (feature + 1) * jagged.stride())
    wrong = (of_feature.values < 0) | (of_feature.values >= rows)
    if wrong.any():
        index = _first(wrong)
        place = feature * jagged.stride() + int(of_feature.rows[index])
        raise DataError(
            f"{_where(jagged, place)}: id {int(of_feature.values[index])}, but the table has rows 0 to {rows - 1}: "
            "give the table more rows, or map unknown ids to one of its rows"
        )


def _where(jagged: "KeyedJaggedTensor", place: int) -> str:
    feature, sample = divmod(place, jagged.stride())
    return f"feature {jagged.keys()[feature]!r}, sample {sample}"


def _first(mask: Tensor) -> int:
    return int(mask.nonzero()[0])
