"""From the samples of a rank to one message for each owner."""

from collections.abc import Sequence

import numpy as np

from windrow.recsys.sharded.layout import OwnerLayout
from windrow.recsys.sharded.message import ONE_EACH, Message, MessageFormat
from windrow.recsys.sharded.samples import Samples

__all__ = ["pack"]

ALL_IDS = -1


def pack(samples: Samples, owners: Sequence[OwnerLayout], form: MessageFormat) -> list[Message]:
    """Sort the ids of a minibatch out by owner.

    Args:
        samples: of this rank.
        owners: what they hold and are asked for.
        form: of the messages.

    Returns:
        One message for each owner, with its header.

    Cost:
        One pass over the ids of each request, two where its table is cut by rows.
    """
    from windrow.recsys.sharded.packing_kernels import count_requests, pack_requests

    requests, num_cut = _request_array(samples, owners)
    counts = np.empty(len(requests), np.int64)
    bag_lengths = np.empty((num_cut, samples.num_samples), np.int32)
    count_requests(samples.lengths, samples.ids, samples.starts, requests, counts, bag_lengths)
    if form.with_lengths:
        counts[(requests[:, 3] == ALL_IDS) & samples.one_each[requests[:, 0]]] = ONE_EACH
    messages = []
    stop = 0
    for owner in owners:
        start, stop = stop, stop + len(owner.requests)
        message = Message(form, np.concatenate([[samples.num_samples], counts[start:stop]]))
        pack_requests(
            samples.lengths,
            samples.ids,
            samples.weights,
            samples.starts,
            requests[start:stop],
            message.send_lengths,
            bag_lengths,
            message.ids,
            message.weights,
            message.lengths,
        )
        messages.append(message)
    return messages


def _request_array(samples: Samples, owners: Sequence[OwnerLayout]) -> tuple[np.ndarray, int]:
    """The requests of all owners as `count_requests` reads them, and how many are of cut tables."""
    rows = []
    num_cut = 0
    for request in (request for owner in owners for request in owner.requests):
        rows.append((samples.keys[request.feature], *request.rows, ALL_IDS if request.whole else num_cut))
        num_cut += not request.whole
    return np.array(rows, np.int64).reshape(-1, 4), num_cut
