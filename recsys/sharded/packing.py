"""From the samples of a rank to one message for each owner."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from windrow.recsys.sharded.layout import OwnerLayout
from windrow.recsys.sharded.message import ONE_EACH, Message, MessageFormat
from windrow.recsys.sharded.samples import Samples

__all__ = ["pack"]

ALL_IDS = -1


def pack(samples: Sequence[Samples], owners: Sequence[OwnerLayout], form: MessageFormat) -> list[Message]:
    """Sort the ids of a minibatch out by owner.

    Args:
        samples: each group of this rank.
        owners: what they hold and are asked for.
        form: of the messages.

    Returns:
        One message for each owner, with its header.

    Cost:
        One pass over the ids of each request, two where its table is cut by rows.
    """
    rows = np.array([group.num_rows for group in samples], np.int64)
    counted = [_count(group, number, owners, form) for number, group in enumerate(samples)]
    messages = []
    for owner_number, owner in enumerate(owners):
        counts = [group.counts[group.of_owner(owner_number)] for group in counted]
        message = Message(form, np.concatenate([rows, *counts]), owner.request_groups)
        first = 0
        for group, found in zip(samples, counted, strict=True):
            stop = first + len(found.counts[found.of_owner(owner_number)])
            _write(group, found, owner_number, message, slice(first, stop))
            first = stop
        messages.append(message)
    return messages


@dataclass(frozen=True, slots=True)
class _Counted:
    """The requests of one group's features to all owners."""

    requests: npt.NDArray[np.int64]
    """[r, 4] as `count_requests` reads them, owner after owner."""
    bounds: npt.NDArray[np.int64]
    """[owners + 1] where those of each owner begin."""
    counts: npt.NDArray[np.int64]
    """[r] number of ids, or ONE_EACH."""
    bag_lengths: npt.NDArray[np.int32]
    """[requests of cut tables, rows]."""

    def of_owner(self, owner: int) -> slice:
        """The requests to one."""
        return slice(int(self.bounds[owner]), int(self.bounds[owner + 1]))


def _count(samples: Samples, group: int, owners: Sequence[OwnerLayout], form: MessageFormat) -> _Counted:
    from windrow.recsys.sharded.packing_kernels import count_requests

    rows, bounds, num_cut = [], [0], 0
    for owner in owners:
        of_group = slice(bisect_left(owner.request_groups, group), bisect_right(owner.request_groups, group))
        for request in owner.requests[of_group]:
            key = samples.keys[request.feature]
            rows.append((key, *request.rows, ALL_IDS if request.whole else num_cut))
            num_cut += not request.whole
        bounds.append(len(rows))
    requests = np.array(rows, np.int64).reshape(-1, 4)
    counts = np.empty(len(requests), np.int64)
    bag_lengths = np.empty((num_cut, samples.num_rows), np.int32)
    count_requests(samples.lengths, samples.ids, samples.starts, requests, counts, bag_lengths)
    if form.with_lengths:
        counts[(requests[:, 3] == ALL_IDS) & samples.one_each[requests[:, 0]]] = ONE_EACH
    return _Counted(requests, np.array(bounds, np.int64), counts, bag_lengths)


def _write(samples: Samples, counted: _Counted, owner: int, message: Message, requests: slice) -> None:
    """Fill the part of a message that is of one group."""
    from windrow.recsys.sharded.packing_kernels import pack_requests

    if requests.start == requests.stop:
        return
    ids = slice(*message.first_ids[[requests.start, requests.stop]].tolist())
    pack_requests(
        samples.lengths,
        samples.ids,
        samples.weights,
        samples.starts,
        counted.requests[counted.of_owner(owner)],
        message.send_lengths[requests],
        counted.bag_lengths,
        message.ids[ids],
        message.weights[ids],
        message.lengths[slice(*message.first_lengths[[requests.start, requests.stop]].tolist())],
    )
