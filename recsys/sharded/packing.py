"""What one rank asks one owner for, as bytes: packed from samples, unpacked to the input of the owner's tables.

Ahead of a message travels its header, int64: the rows of each group of features (samples in group 0, distinct ones in
the others), then a number for each request::

    3 2 | 4 | ONE_EACH | 0        3 samples, 2 distinct rows; 4 ids; one id for each sample; no ids

and then the ids themselves, all requests in one message, group by group::

    ids       7 2 5 1 | 3 3 8 |                      int32, or int64 where a piece has more rows than int32 counts
    weights   ...                                    float32, one for each id, in a weighted collection
    lengths   2 0 2           | 0 0                  int32, of pooled lookups; none where there is one id each
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.recsys.sharded.layout import IndexMap, OwnerLayout
from windrow.recsys.sharded.samples import Samples

__all__ = ["ONE_EACH", "LookupInput", "Message", "MessageFormat", "pack", "unpack"]

ONE_EACH = -1
"""Stands in a header for the number of ids where every row has exactly one: then no lengths travel."""


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """What all messages of a collection have in common."""

    id_type: type[np.signedinteger[Any]]
    """Type of an id on the wire."""
    weighted: bool
    """Whether weights travel."""
    with_lengths: bool
    """Whether bags are told apart: pooled lookups."""

    @property
    def id_bytes(self) -> int:
        """Bytes of one id."""
        return np.dtype(self.id_type).itemsize


class Message:
    """Memory of one message, and what it says of itself.

    Args:
        form: of all messages.
        header: [groups + requests] int64, as drawn above.
        request_groups: group of each request, ascending: `OwnerLayout.request_groups`.
        allocate: have memory of its own; otherwise `lie_in` gives it some.
    """

    def __init__(
        self,
        form: MessageFormat,
        header: npt.NDArray[np.int64],
        request_groups: Sequence[int],
        *,
        allocate: bool = True,
    ) -> None:
        groups = len(header) - len(request_groups)
        self.header = header
        self.num_rows: npt.NDArray[np.int64] = header[:groups]
        """[groups]."""
        rows = self.num_rows[np.array(request_groups, np.int64)]
        one_each = header[groups:] == ONE_EACH
        self.counts: npt.NDArray[np.int64] = np.where(one_each, rows, header[groups:])
        """[requests] ids."""
        self.send_lengths: npt.NDArray[np.bool_] = ~one_each if form.with_lengths else np.zeros_like(one_each)
        """[requests]."""
        self.first_ids: npt.NDArray[np.int64] = np.concatenate([[0], self.counts.cumsum()])
        """[requests + 1] where the ids of each begin."""
        self.first_lengths: npt.NDArray[np.int64] = np.concatenate([[0], (self.send_lengths * rows).cumsum()])
        """[requests + 1] where the lengths of each begin."""
        num_ids = int(self.first_ids[-1])
        self._ids_end = num_ids * form.id_bytes
        self._weights_end = self._ids_end + _WORD_BYTES * num_ids * form.weighted
        self._id_type = form.id_type
        self.num_bytes = self._weights_end + _WORD_BYTES * int(self.first_lengths[-1])
        if allocate:
            self.lie_in(torch.empty(self.num_bytes, dtype=torch.uint8))

    def lie_in(self, memory: Tensor) -> None:
        """Take memory of `num_bytes`."""
        self.buffer: Tensor = memory
        parts = memory.numpy()
        self.ids = parts[: self._ids_end].view(self._id_type)
        self.weights = parts[self._ids_end : self._weights_end].view(np.float32)
        self.lengths = parts[self._weights_end :].view(np.int32)

    def places(self, first: int, requests: slice) -> npt.NDArray[np.int64]:
        """Where some requests' parts begin in memory whose byte `first` the message begins at.

        Returns:
            [requests, 3] of ids, weights, and lengths or -1 for none, each counted in items of its type.
        """
        ids, lengths = self.first_ids[:-1][requests], self.first_lengths[:-1][requests]
        return np.stack(
            [
                first // self._id_type(0).itemsize + ids,
                (first + self._ids_end) // _WORD_BYTES + ids,
                np.where(
                    self.send_lengths[requests], (first + self._weights_end) // _WORD_BYTES + lengths, -1
                ),
            ],
            axis=1,
        )


_WORD_BYTES = 4
"""Of a weight, and of a length."""

_ALIGNMENT = 8
"""Bytes; messages that share memory begin at multiples, so that ids of either type do."""


def pack(
    samples: Sequence[Samples], owners: Sequence[OwnerLayout], index: Sequence[IndexMap], form: MessageFormat
) -> list[Message]:
    """Sort the ids of a minibatch out by owner.

    Args:
        samples: each group of this rank.
        owners: what they hold and are asked for.
        index: of these owners, for each group.
        form: of the messages.

    Returns:
        One message for each owner, with its header.

    Cost:
        One pass over the ids, two where tables are cut by rows, however many owners there are.
    """
    from windrow.recsys.sharded.packing_kernels import pack_requests

    rows = np.array([group.num_rows for group in samples], np.int64)
    counted = [_count(group, of_group, form) for group, of_group in zip(samples, index, strict=True)]
    messages, firsts = [], [0]
    for number, owner in enumerate(owners):
        counts = [
            found.counts[of_group.of_owner(number)] for found, of_group in zip(counted, index, strict=True)
        ]
        messages.append(Message(form, np.concatenate([rows, *counts]), owner.request_groups, allocate=False))
        firsts.append(firsts[-1] + -(-messages[-1].num_bytes // _ALIGNMENT) * _ALIGNMENT)
    memory = torch.empty(firsts[-1], dtype=torch.uint8)
    for message, first in zip(messages, firsts, strict=False):
        message.lie_in(memory[first : first + message.num_bytes])
    done = [0] * len(owners)
    for group, of_group, found in zip(samples, index, counted, strict=True):
        places = []
        for number, message in enumerate(messages):
            asked = of_group.of_owner(number)
            requests = slice(done[number], done[number] + asked.stop - asked.start)
            places.append(message.places(firsts[number], requests))
            done[number] = requests.stop
        flat = memory.numpy()
        pack_requests(
            group.lengths,
            group.ids,
            group.weights,
            group.starts,
            found.requests,
            found.features,
            of_group.bounds,
            of_group.first_asked,
            of_group.asked,
            np.concatenate(places),
            found.bag_lengths,
            flat.view(form.id_type),
            flat.view(np.float32),
            flat.view(np.int32),
        )
    return messages


@dataclass(frozen=True, slots=True)
class _Counted:
    """The requests of one group's features to all owners, with features as the batch counts them."""

    requests: npt.NDArray[np.int64]
    """`IndexMap.requests`."""
    features: npt.NDArray[np.int64]
    """`IndexMap.features`."""
    counts: npt.NDArray[np.int64]
    """[r] number of ids, or ONE_EACH."""
    bag_lengths: npt.NDArray[np.int32]
    """[requests of cut tables, rows]."""


def _count(samples: Samples, index: IndexMap, form: MessageFormat) -> _Counted:
    from windrow.recsys.sharded.packing_kernels import count_requests

    requests, features = index.requests.copy(), index.features.copy()
    for found in (requests, features):
        found[:, 0] = [samples.keys[feature] for feature in found[:, 0].tolist()]
    counts = np.empty(len(requests), np.int64)
    bag_lengths = np.empty((int(requests[:, 2].max(initial=-1)) + 1, samples.num_rows), np.int32)
    count_requests(
        samples.lengths,
        samples.ids,
        samples.starts,
        requests,
        features,
        index.bounds,
        index.first_asked,
        index.asked,
        counts,
        bag_lengths,
    )
    if form.with_lengths:
        counts[(requests[:, 2] < 0) & samples.one_each[requests[:, 0]]] = ONE_EACH
    return _Counted(requests, features, counts, bag_lengths)


_ONE_ID_EACH = -1
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
                np.where(message.send_lengths[of_lookup], message.first_lengths[of_lookup], _ONE_ID_EACH),
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
