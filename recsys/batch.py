"""One minibatch of a click log, as every model and trainer takes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windrow.recsys.deduplication.partial import PartialLists
from windrow.recsys.ikjt import InverseKeyedJaggedTensor
from windrow.recsys.jagged_checks import check_inverse

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = ["Batch"]


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
            `windrow.recsys.deduplication.partial`. For `EmbeddingCollection` only.
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
