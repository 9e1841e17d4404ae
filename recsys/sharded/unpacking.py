"""From the messages of all ranks to the input of an owner's tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from windrow.recsys.sharded.layout import OwnerLayout
from windrow.recsys.sharded.message import Message, MessageFormat

__all__ = ["LookupInput", "unpack"]


@dataclass(frozen=True, slots=True)
class LookupInput:
    """What `TableBatch.forward` takes, and where ranks begin in it."""

    values: Tensor
    """[n] int64 row numbers, lookup by lookup, and within a lookup rank by rank."""
    offsets: Tensor
    """[lookups x bags + 1] int64 where bags begin. Pooled: a bag for each sample; else one for each rank that asks."""
    weights: Tensor | None
    """[n] float32, or None."""
    num_samples: tuple[int, ...]
    """Samples of each rank that asks."""
    counts: np.ndarray
    """[ranks, lookups] int64 number of ids."""

    def select(self, lookups: Sequence[int]) -> "LookupInput":
        """The part of some lookups, unpooled and without weights."""
        ranks, total = self.counts.shape
        starts = self.offsets[:-1].view(total, ranks)[:, 0].tolist()
        ends = self.counts.sum(axis=0)
        values = torch.cat([self.values[starts[n] : starts[n] + int(ends[n])] for n in lookups])
        counts = self.counts[:, list(lookups)]
        offsets = torch.from_numpy(np.concatenate([[0], counts.T.reshape(-1).cumsum()]))
        return LookupInput(values, offsets.to(self.offsets), None, self.num_samples, counts)

    def to(self, device: torch.device) -> "LookupInput":
        """The same on a device."""
        weights = None if self.weights is None else self.weights.to(device)
        return LookupInput(
            self.values.to(device), self.offsets.to(device), weights, self.num_samples, self.counts
        )


def unpack(messages: Sequence[Message], owner: OwnerLayout, form: MessageFormat) -> LookupInput:
    """Bring the requests of all ranks into the order of the owner's lookups.

    Args:
        messages: what each rank asks for.
        owner: who is asked.
        form: of the messages.

    Returns:
        Input of the owner's tables. Ids of a request that several lookups share are repeated.

    Cost:
        One pass over the ids.
    """
    from windrow.recsys.sharded.packing_kernels import place_requests

    of_lookup = np.array([lookup.request for lookup in owner.lookups], np.int64)
    counts = np.stack([message.counts[of_lookup] for message in messages])
    # Ids: lookups outside, ranks inside.
    ends = counts.T.reshape(-1).cumsum()
    places = (
        np.concatenate([[0], ends[:-1]]).reshape(len(of_lookup), len(messages)) if len(ends) else counts.T
    )
    total = int(ends[-1]) if len(ends) else 0
    num_samples = np.array([message.num_samples for message in messages], np.int64)
    bags = num_samples if form.with_lengths else np.ones_like(num_samples)
    first_bags = np.concatenate([[0], bags.cumsum()])
    # FBGEMM works with int64 on CPUs, and would convert.
    values = np.empty(total, np.int64)
    weights = np.empty(total if form.weighted else 0, np.float32)
    offsets = np.empty(len(of_lookup) * int(first_bags[-1]) + 1, np.int64)
    offsets[-1] = total
    for rank, message in enumerate(messages):
        starts = np.concatenate([[0], message.counts.cumsum()])[of_lookup]
        before = np.concatenate([[0], message.send_lengths.cumsum()])[of_lookup]
        lengths = np.where(message.send_lengths[of_lookup], before * message.num_samples, -1)
        first_offsets = np.arange(len(of_lookup)) * first_bags[-1] + first_bags[rank]
        lookups = np.stack([starts, counts[rank], lengths, places[:, rank], first_offsets], axis=1)
        place_requests(
            message.ids,
            message.weights,
            message.lengths,
            lookups,
            int(bags[rank]),
            values,
            weights,
            offsets,
        )
    return LookupInput(
        torch.from_numpy(values),
        torch.from_numpy(offsets),
        torch.from_numpy(weights) if form.weighted else None,
        tuple(num_samples.tolist()),
        counts,
    )
