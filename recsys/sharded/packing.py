"""A minibatch's ids: checked, packed into one message for each owner, and unpacked to the input of its tables.

Ahead of a message travels its header, int64: the rows of each group of features (samples in group 0, distinct ones in
the others), then the number of ids of each request, and at the end the bags of each pooled request for some rows of a
table alone, of which those without ids are left out::

    3 2 | 4 | ONE_EACH | 3 | 2    3 samples, 2 distinct rows; 4 ids; one id for each sample; 3 ids; these in 2 bags

and then the ids themselves, all requests in one message, group by group::

    ids       7 2 5 1 | 3 3 8 | 4 4 6                int32, or int64 where a piece has more rows than int32 counts
    weights   ...                                    float32, one for each id, in a weighted collection
    lengths   2 0 2           | 1 2                  int32, of pooled lookups; none where there is one id each
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.recsys.batches.batch import check_jagged
from windrow.recsys.batches.jagged import check_inverse
from windrow.recsys.sharded.layout import IndexMap, OwnerLayout

if TYPE_CHECKING:
    from windrow.recsys.batches.deduplication.ikjt import InverseKeyedJaggedTensor
    from windrow.recsys.sharded.layout import Layout, Request
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

__all__ = [
    "ONE_EACH",
    "LookupInput",
    "Message",
    "MessageFormat",
    "Samples",
    "distinct_ids",
    "header_length",
    "pack",
    "read_samples",
    "unpack",
]


_Ints: TypeAlias = npt.NDArray[np.int64]


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
    starts: _Ints
    """[features of the batch + 1] where each feature's ids begin."""
    one_each: npt.NDArray[np.bool_]
    """[features of the batch] whether every row has exactly one id."""
    inverse: Tensor | None
    """[B] int64 row of each sample, on the batch's device; None where there is a row for each sample."""
    repeats: "Repeats | None" = None
    """What `distinct_ids` left out; else None."""

    @property
    def num_rows(self) -> int:
        """Samples, or distinct ones."""
        return int(self.lengths.shape[1])

    def requested(self, request: "Request") -> slice | Tensor:
        """Which of a feature's ids, row after row, a request asks for: all, or [n] int64 positions."""
        key = self.keys[request.feature]
        start, stop = self.starts[key : key + 2].tolist()
        if request.whole:
            return slice(0, stop - start)
        ids = self.ids[start:stop]
        return torch.from_numpy(np.flatnonzero((request.rows[0] <= ids) & (ids < request.rows[1])))

    def inverse_on(self, device: torch.device) -> Tensor | None:
        """`inverse` where the vectors are, which need not be where the batch is."""
        return None if self.inverse is None else self.inverse.to(device)


@dataclass(frozen=True, slots=True)
class Repeats:
    """Lists whose ids are held once."""

    lengths: npt.NDArray[Any]
    """`Samples.lengths` of the lists."""
    places: Mapping[int, Tensor]
    """For each row of `lengths` that is looked up: [ids] int64, which of the distinct ids each is."""


def distinct_ids(samples: Samples) -> Samples:
    """The same with each id of a feature once, in a list of its own, in the order in which they first come.

    Cost: one look into a table of hashes for each id.
    """
    from windrow.recsys.sharded.packing_kernels import number_ids

    found, places = [samples.ids[:0]] * len(samples.lengths), {}
    for row in samples.keys.values():
        ids = samples.ids[slice(*samples.starts[row : row + 2].tolist())]
        slots = np.full(1 << (2 * len(ids)).bit_length(), -1, np.int32)
        distinct, place = np.empty_like(ids), np.empty(len(ids), np.int64)
        found[row] = distinct[: number_ids(ids, slots, distinct, place)]
        places[row] = torch.from_numpy(place)
    counts = np.array([len(ids) for ids in found], np.int64)
    lengths = (np.arange(counts.max(initial=0)) < counts[:, None]).astype(samples.lengths.dtype)
    return Samples(
        samples.keys,
        lengths,
        np.concatenate(found) if found else samples.ids,
        samples.weights,
        np.concatenate([[0], counts.cumsum()]),
        counts == lengths.shape[1],
        samples.inverse,
        Repeats(samples.lengths, places),
    )


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
    wanted = {number: name for number, name in enumerate(layout.features) if layout.groups[number] == group}
    keys = _keys(names, wanted, group)
    weights = jagged.weights_or_none() if is_weighted else None
    limits = np.full(len(names), -1, np.int64)
    for feature, key in keys.items():
        limits[key] = layout.rows[feature]
    # Offsets are looked at before lengths are asked for, which the container would derive from them.
    if (
        len(set(names)) < len(names)
        or jagged.variable_stride_per_key()
        or not _are_integers(jagged.values())
        or not _are_valid_offsets(jagged)
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


def _are_valid_offsets(jagged: "KeyedJaggedTensor") -> bool:
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


ONE_EACH = -1
"""Stands in a header for the number of ids where every bag has exactly one: then no lengths travel."""


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
        header: int64, as drawn above.
        owner: who is asked.
        allocate: have memory of its own; otherwise `lie_in` gives it some.
    """

    def __init__(self, form: MessageFormat, header: _Ints, owner: OwnerLayout, *, allocate: bool = True) -> None:
        groups = len(header) - header_length(owner, 0)
        self.header = header
        self.num_rows: _Ints = header[:groups]
        """[groups]."""
        self.bags: _Ints = self.num_rows[np.array(owner.request_groups, np.int64)]
        """[requests] rows, or those that have ids."""
        self.bags[list(owner.cut)] = header[groups + len(self.bags) :]
        self.places: dict[int, _Ints] = {}
        """Where it was packed, for each request of `OwnerLayout.cut` the rows that have ids: [bags]."""
        counts = header[groups : groups + len(self.bags)]
        one_each = counts == ONE_EACH
        self.counts: _Ints = np.where(one_each, self.bags, counts)
        """[requests] ids."""
        self.send_lengths: npt.NDArray[np.bool_] = ~one_each if form.with_lengths else np.zeros_like(one_each)
        """[requests]."""
        self.first_ids: _Ints = np.concatenate([[0], self.counts.cumsum()])
        """[requests + 1] where the ids of each begin."""
        self.first_lengths: _Ints = np.concatenate([[0], (self.send_lengths * self.bags).cumsum()])
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

    def places_in_memory(self, first: int, requests: slice) -> _Ints:
        """Where some requests' parts begin in memory whose byte `first` the message begins at.

        Returns:
            [requests, 3] of ids, weights, and lengths or -1 for none, each counted in items of its type.
        """
        ids, lengths = self.first_ids[:-1][requests], self.first_lengths[:-1][requests]
        return np.stack(
            [
                first // self._id_type(0).itemsize + ids,
                (first + self._ids_end) // _WORD_BYTES + ids,
                np.where(self.send_lengths[requests], (first + self._weights_end) // _WORD_BYTES + lengths, -1),
            ],
            axis=1,
        )


def header_length(owner: OwnerLayout, num_groups: int) -> int:
    """Numbers in the header of a message to an owner."""
    return num_groups + len(owner.requests) + len(owner.cut)


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
        One pass over the ids; three where tables are cut by rows, to find, count and pack those of each piece.
    """
    from windrow.recsys.sharded.packing_kernels import pack_requests

    rows = np.array([group.num_rows for group in samples], np.int64)
    counted = [_count(group, of_group, form) for group, of_group in zip(samples, index, strict=True)]
    messages, firsts = [], [0]
    for number, owner in enumerate(owners):
        parts = [found.of(of_group.of_owner(number)) for found, of_group in zip(counted, index, strict=True)]
        bags = [found[cut] for _, found, cut in parts]
        header = np.concatenate([rows, *(counts for counts, _, _ in parts), *bags])
        messages.append(Message(form, header, owner, allocate=False))
        firsts.append(firsts[-1] + -(-messages[-1].num_bytes // _ALIGNMENT) * _ALIGNMENT)
    memory = torch.empty(firsts[-1], dtype=torch.uint8)
    for message, first in zip(messages, firsts, strict=False):
        message.lie_in(memory[first : first + message.num_bytes])
    done = [0] * len(owners)
    flat = memory.numpy()
    for group, of_group, found in zip(samples, index, counted, strict=True):
        places = []
        for number, message in enumerate(messages):
            asked = of_group.of_owner(number)
            requests = slice(done[number], done[number] + asked.stop - asked.start)
            places.append(message.places_in_memory(firsts[number], requests))
            for request, row in enumerate(range(asked.start, asked.stop), requests.start):
                if found.requests[row, 3]:
                    first, stop = found.first_bags[row : row + 2].tolist()
                    message.places[request] = found.places[first:stop]
            done[number] = requests.stop
        pack_requests(
            group.lengths,
            group.ids,
            group.weights,
            group.starts,
            found.requests,
            found.features,
            of_group.first_asked,
            of_group.asked,
            np.concatenate(places),
            found.bag_lengths,
            found.pieces,
            found.first_bags,
            found.places,
            flat.view(form.id_type),
            flat.view(np.float32),
            flat.view(np.int32),
        )
    return messages


@dataclass(frozen=True, slots=True)
class _Counted:
    """What one group's features ask all owners for."""

    requests: _Ints
    """`IndexMap.requests`, with features as the batch counts them."""
    features: _Ints
    """`IndexMap.features`, likewise."""
    counts: _Ints
    """[r] ids, or `ONE_EACH`."""
    bags: _Ints
    """[r]"""
    bag_lengths: npt.NDArray[np.int32]
    """[requests of cut tables, rows]"""
    pieces: npt.NDArray[np.int32]
    """[ids of cut tables]"""
    first_bags: _Ints
    """[r + 1] where the bags of each begin in `places`, where those without ids are left out."""
    places: _Ints
    """Rows of these bags; not filled yet."""

    def of(self, requests: slice) -> tuple[_Ints, _Ints, npt.NDArray[np.bool_]]:
        """Counts and bags of some requests, and for which of these bags without ids are left out."""
        return self.counts[requests], self.bags[requests], self.requests[requests, 3] > 0


def _count(samples: Samples, index: IndexMap, form: MessageFormat) -> _Counted:
    from windrow.recsys.sharded.packing_kernels import count_requests

    requests, features = index.requests.copy(), index.features.copy()
    for found in (requests, features):
        found[:, 0] = [samples.keys[feature] for feature in found[:, 0].tolist()]
    counts, bags = np.empty(len(requests), np.int64), np.empty(len(requests), np.int64)
    one_each = np.empty(len(requests), np.bool_)
    bag_lengths = np.empty((int(requests[:, 2].max(initial=-1)) + 1, samples.num_rows), np.int32)
    pieces = np.empty(int(np.diff(samples.starts)[features[:, 0]].sum()), np.int32)
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
        bags,
        one_each,
        bag_lengths,
        pieces,
    )
    first_bags = np.concatenate([[0], (bags * requests[:, 3]).cumsum()])
    if form.with_lengths:
        counts[np.where(requests[:, 2] < 0, samples.one_each[requests[:, 0]], one_each)] = ONE_EACH
    filled = np.empty(int(first_bags[-1]), np.int64)
    return _Counted(requests, features, counts, bags, bag_lengths, pieces, first_bags, filled)


@dataclass(frozen=True, slots=True)
class LookupInput:
    """What `TableBatch.forward` takes, and where ranks begin in it."""

    values: Tensor
    """[n] int64 row numbers, lookup by lookup, and within a lookup rank by rank."""
    offsets: Tensor
    """[lookups x bags + 1] int64 where bags begin. Unpooled there is one for each rank that asks."""
    weights: Tensor | None
    """[n] float32, or None."""
    num_bags: tuple[int, ...]
    """Bags of each rank that asks, for each lookup."""
    counts: np.ndarray
    """[ranks, lookups] int64 number of ids."""

    def to(self, device: torch.device) -> "LookupInput":
        """The same on a device."""
        weights = None if self.weights is None else self.weights.to(device)
        return LookupInput(self.values.to(device), self.offsets.to(device), weights, self.num_bags, self.counts)


def unpack(messages: Sequence[Message], owner: OwnerLayout, form: MessageFormat) -> list[LookupInput]:
    """Bring the requests of all ranks into the order of the owner's lookups.

    Args:
        messages: what each rank asks for.
        owner: who is asked.
        form: of the messages.

    Returns:
        An input for each batch of tables (`OwnerLayout.batches`). Pooled lookups with fewer bags than others of the
        batch have empty ones at the end of each rank's. Ids of a request that several lookups share are repeated.

    Cost:
        One pass over the ids.
    """
    return [_unpack_lookups(messages, owner, form, range(*lookups)) for lookups in owner.batches]


def _unpack_lookups(
    messages: Sequence[Message], owner: OwnerLayout, form: MessageFormat, chosen: Sequence[int]
) -> LookupInput:
    """The input of some lookups. Pooled: with as many bags for each rank as the largest of them has."""
    from windrow.recsys.sharded.packing_kernels import place_requests

    of_lookup = np.array([owner.lookups[number].request for number in chosen], np.int64)
    counts = np.stack([message.counts[of_lookup] for message in messages])
    # Ids: lookups outside, ranks inside.
    ends = counts.T.reshape(-1).cumsum()
    places = np.concatenate([[0], ends[:-1]]).reshape(len(of_lookup), len(messages)) if len(ends) else counts.T
    total = int(ends[-1]) if len(ends) else 0
    bags = np.array([message.bags[of_lookup].max() if form.with_lengths else 1 for message in messages], np.int64)
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
                np.where(message.send_lengths[of_lookup], message.first_lengths[of_lookup], -1),
                message.bags[of_lookup] if form.with_lengths else np.ones_like(of_lookup),
                places[:, rank],
                np.arange(len(of_lookup)) * first_bags[-1] + first_bags[rank],
            ],
            axis=1,
        )
        place_requests(
            message.ids, message.weights, message.lengths, lookups, int(bags[rank]), values, weights, offsets
        )
    return LookupInput(
        torch.from_numpy(values),
        torch.from_numpy(offsets),
        torch.from_numpy(weights) if form.weighted else None,
        tuple(bags.tolist()),
        counts,
    )
