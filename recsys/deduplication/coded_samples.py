"""Samples whose lists are numbers: equal lists have equal numbers, so that looking for repeats is comparing integers.

item       7    2    7    7           0 1 0 0
history    [4]  []   [4]  [4, 1]      0 1 0 2       item and history together: 3 distinct samples, 0 1 3
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windrow.recsys.deduplication.distinct_lists import distinct_lists

if TYPE_CHECKING:
    from windrow.recsys.batch import Batch

__all__ = ["CodedSamples", "DistinctCounts", "code_batch", "code_lists"]

Codes = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class DistinctCounts:
    """What is left of samples when those that are equal in a group of features are held once.

    Attributes:
        rows: distinct samples.
        ids: feature -> ids in the lists of the distinct samples.
    """

    rows: int
    ids: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CodedSamples:
    """Some samples, in an order.

    Attributes:
        codes: feature -> [n] int32, equal for samples with equal lists.
        lengths: feature -> [n] int32 ids of each sample.
    """

    codes: Mapping[str, Codes]
    lengths: Mapping[str, Codes]

    @property
    def num_samples(self) -> int:
        """n; 0 where there is no feature."""
        return len(next(iter(self.codes.values()), ()))

    def take(self, places: npt.NDArray[np.int64]) -> "CodedSamples":
        """Other samples.

        Args:
            places: [m] which, in their new order.
        """
        return CodedSamples(
            {name: codes[places] for name, codes in self.codes.items()},
            {name: lengths[places] for name, lengths in self.lengths.items()},
        )

    def num_ids(self, feature: str) -> int:
        """Ids of a feature in all samples."""
        return int(self.lengths[feature].sum(dtype=np.int64))

    def joined(self, group: Sequence[str]) -> Codes:
        """Number the samples so that those that are equal in all features of a group have equal numbers.

        Args:
            group: at least one feature.

        Returns:
            [n] int32.

        Cost:
            A sort for each feature but the first.
        """
        found = self.codes[group[0]]
        for name in group[1:]:
            codes = self.codes[name]
            # Products of two int32 numbers fit; numbering anew keeps it so.
            both = found * (np.int64(codes.max(initial=0)) + 1) + codes
            found = np.unique(both, return_inverse=True)[1].astype(np.int32)
        return found

    def distinct(self, group: Sequence[str]) -> DistinctCounts:
        """Hold the samples that are equal in all features of a group once.

        Args:
            group: at least one feature.
        """
        first = np.unique(self.joined(group), return_index=True)[1]
        ids = {name: int(self.lengths[name][first].sum(dtype=np.int64)) for name in group}
        return DistinctCounts(len(first), ids)

    def unchanged(self, group: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which samples are equal to the one before in all features of a group.

        Args:
            group: at least one feature.

        Returns:
            [n - 1]; [0] where there is no sample.
        """
        same = np.ones(max(self.num_samples - 1, 0), np.bool_)
        for name in group:
            same &= self.codes[name][1:] == self.codes[name][:-1]
        return same


def code_lists(
    offsets: npt.NDArray[np.integer], ids: npt.NDArray[np.int64], weights: npt.NDArray[np.float32] | None
) -> tuple[Codes, Codes]:
    """Turn the lists of a feature into numbers.

    Args:
        offsets: [n + 1] sample i has the ids offsets[i] .. offsets[i + 1] - 1.
        ids: of all lists.
        weights: one for each id; None where the feature has none.

    Returns:
        ``(codes, lengths)``, each [n] int32.
    """
    inverse = distinct_lists([offsets], [ids], [weights]).inverse
    return inverse.astype(np.int32), np.diff(offsets).astype(np.int32)


def code_batch(batch: "Batch") -> CodedSamples:
    """Turn a batch into numbers.

    Args:
        batch: on the CPU, none of whose features are held once already.
    """
    assert not batch.deduplicated, "its features stand in groups, where repeats are gone"
    codes, lengths = {}, {}
    for name in batch.sparse.keys():  # noqa: SIM118  # a method of TorchRec's container, which cannot be iterated
        feature = batch.sparse[name]
        weights = feature.weights_or_none()
        # Offsets of a feature are those of the whole batch, less where its first list begins.
        codes[name], lengths[name] = code_lists(
            feature.offsets().numpy(), feature.values().numpy(), None if weights is None else weights.numpy()
        )
    return CodedSamples(codes, lengths)
