"""From the messages of all ranks to the input of an owner's tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from windrow.recsys.sharded.layout import OwnerLayout
from windrow.recsys.sharded.message import Message, MessageFormat

__all__ = ["LookupInput", "unpack"]

ONE_ID_EACH = -1
"""Stands for the place of lengths that were not sent."""


@dataclass(frozen=True, slots=True)
class LookupInput:
    """What `TableBatch.forward` takes, and where ranks begin in it."""

    values: Tensor
    """[n] int64 row numbers, lookup by lookup, and within a lookup rank by rank."""
    offsets: Tensor
    """[lookups x bags + 1] int64 where bags begin. Pooled: a bag for each row; else one for each rank that asks."""
    weights: Tensor | None
    """[n] float32, or None."""
    num_bags: tuple[int, ...]
    """Bags of each rank that asks, for each lookup."""
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
        return LookupInput(values, offsets.to(self.offsets), None, self.num_bags, counts)

    def to(self, device: torch.device) -> "LookupInput":
        """The same on a device."""
        weights = None if self.weights is None else self.weights.to(device)
        return LookupInput(
            self.values.to(device), self.offsets.to(device), weights, self.num_bags, self.counts
        )


def unpack(messages: Sequence[Message], owner: OwnerLayout, form: MessageFormat) -> list[LookupInput]:
    """Bring the requests of all ranks into the order of the owner's lookups.

    Args:
        messages: what each rank asks for.
        owner: who is asked.
        form: of the messages.

    Returns:
        Pooled lookups: an input for each batch of tables (`OwnerLayout.batches`), where lookups with fewer rows than
        others of the batch have empty bags at the end of each rank's. Unpooled lookups: one input of all. Ids of a
        request that several lookups share are repeated.

    Cost:
        One pass over the ids.
    """
    if not form.with_lengths:
        return [_unpack_lookups(messages, owner, form, range(len(owner.lookups)), ())]
    return [
        _unpack_lookups(messages, owner, form, range(*batch.lookups), batch.groups) for batch in owner.batches
    ]


def _unpack_lookups(
    messages: Sequence[Message],
    owner: OwnerLayout,
    form: MessageFormat,
    chosen: Sequence[int],
    groups: Sequence[int],
) -> LookupInput:
    """The input of some lookups. Pooled: with as many bags for each rank as the largest of the groups has rows."""
    from windrow.recsys.sharded.packing_kernels import place_requests

    of_lookup = np.array([owner.lookups[number].request for number in chosen], np.int64)
    group_of_lookup = np.array(owner.request_groups, np.int64)[of_lookup]
    counts = np.stack([message.counts[of_lookup] for message in messages])
    # Ids: lookups outside, ranks inside.
    ends = counts.T.reshape(-1).cumsum()
    places = (
        np.concatenate([[0], ends[:-1]]).reshape(len(of_lookup), len(messages)) if len(ends) else counts.T
    )
    total = int(ends[-1]) if len(ends) else 0
    bags = np.array([message.num_rows[list(groups)].max() if groups else 1 for message in messages], np.int64)
    first_bags = np.concatenate([[0], bags.cumsum()])
    # FBGEMM works with int64 on CPUs, and would convert.
    values = np.empty(total, np.int64)
    weights = np.empty(total if form.weighted else 0, np.float32)
    offsets = np.empty(len(of_lookup) * int(first_bags[-1]) + 1, np.int64)
    offsets[-1] = total
    for rank, message in enumerate(messages):
        lookups = np.stack(
            [
                message.first_ids[of_lookup],
                counts[rank],
                np.where(message.send_lengths[of_lookup], message.first_lengths[of_lookup], ONE_ID_EACH),
                message.num_rows[group_of_lookup] if groups else np.ones_like(of_lookup),
                places[:, rank],
                np.arange(len(of_lookup)) * first_bags[-1] + first_bags[rank],
            ],
            axis=1,
        )
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
        tuple(bags.tolist()),
        counts,
    )
