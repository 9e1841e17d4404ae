"""How many bits each message of an exchange gets: AdaQP's assignment, and those that it is compared with.

A message is one row, rounded at random to multiples of (max - min) / (2^b - 1). What its error weighs is beta / (2^b -
1)^2, and what it costs are its bytes. Messages of a channel (sender, receiver) are sorted by beta and cut into groups
that share a width, so that little has to be told and gathered::

    each rank, for each receiver     error_weights -> group_messages -> order, groups
    all ranks                        gather the groups of all channels
    each rank, the same on all       adaptive_bits, uniform_bits or random_bits -> the width of every group
    each rank, for each receiver     spread_bits -> the width of each of its messages

Source: Wan, Zhao, Wu: Adaptive Message Quantization and Parallelization for Distributed Full-graph GNN Training, MLSys
2023 (AdaQP). Its released code sums the weights of a group over messages of other groups, counts the last group of a
channel as a whole one and leaves out what a row takes beside its numbers; here all three are exact.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from windrow.comm.links import Links, TimeCurve
from windrow.comm.quantize import expected_squared_error
from windrow.comm.random import hash_ids, stream_key

__all__ = [
    "BitsOfChannels",
    "GroupsOfChannels",
    "MessageGroups",
    "adaptive_bits",
    "error_weights",
    "group_messages",
    "random_bits",
    "spread_bits",
    "uniform_bits",
]

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]

MOST_STATES = 3_000_000
"""States that `adaptive_bits` compares, of all channels together, beside those of the greedy paths: half a second."""
FARTHEST = 3
"""Groups by which a state may differ from one of the greedy path: for the exact optimum 1 was enough with widths 2, 4,
8, whose steps cost bytes as 1 : 2, and 3 with widths 1, 2, 4, 8."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MessageGroups:
    """Messages of one channel, the heaviest first, in groups: what has to be gathered of them."""

    sizes: Longs
    """[G] messages of each group: all equal but the last, which may have fewer."""
    weights: Floats
    """[G] sum of the error weights of each group's messages."""


GroupsOfChannels = Sequence[Sequence[MessageGroups]]
"""``groups[sender][receiver]``; those of a rank to itself count for nothing."""
BitsOfChannels = list[list[Bits]]
"""``bits[sender][receiver]``, uint8 [G]: the width of each group."""


def error_weights(coefficients: Floats, ranges: npt.NDArray[np.floating], width: int) -> Floats:
    """Weigh messages: beta = ``sum of c_uv^2 * width * range^2 / 6``, float64 [n] (AdaQP, theorem 2).

    With b bits the squared error that a message adds to the sums of its receiver is beta / (2^b - 1)^2 on average.

    Args:
        coefficients: [n] the sum, over the sums of the receiver that a row is in, of its coefficient's square there:
            1 / d_v^2 for the mean of vertex v with d_v edges, 1 / (d_u d_v) for a graph convolution.
        ranges: [n] the largest number of each row minus the smallest.
        width: numbers of a row.
    """
    one_bit = torch.ones(len(ranges), dtype=torch.uint8)
    of_rows = expected_squared_error(torch.from_numpy(ranges.astype(np.float64)), width, one_bit)
    return np.asarray(coefficients * of_rows.numpy(), np.float64)


def group_messages(weights: Floats, group_size: int) -> tuple[Longs, MessageGroups]:
    """Sort the messages of a channel by error weight, the heaviest first, and cut them into groups.

    Args:
        weights: [n] error weight of each message, finite and not negative.
        group_size: messages of a group, at least 1.

    Returns:
        order, int64 [n]: message ``order[i]`` is the i-th heaviest; equal ones stay in order. And the groups.
    """
    order = np.argsort(-weights, kind="stable")
    starts = np.arange(0, len(weights), group_size)
    sums = np.add.reduceat(weights[order], starts) if len(weights) else np.empty(0)
    return order, MessageGroups(sizes=np.diff(starts, append=len(weights)), weights=sums)


def spread_bits(order: Longs, sizes: Longs, bits: Bits) -> Bits:
    """Give every message the width of its group: uint8 [n] from the result of `group_messages` and widths [G]."""
    of_messages = np.empty(len(order), np.uint8)
    of_messages[order] = np.repeat(bits, sizes)
    return of_messages


def uniform_bits(groups: GroupsOfChannels, bits: int) -> BitsOfChannels:
    """Give all groups one width."""
    return _for_each_channel(groups, lambda _p, _q, channel: np.full(len(channel.sizes), bits, np.uint8))


def random_bits(groups: GroupsOfChannels, widths: Sequence[int], key: int) -> BitsOfChannels:
    """Draw each group's width, all equally likely, by a key from `windrow.comm.random.stream_key`.

    It depends on the key, the channel, and the number of the group in it alone.
    """

    def draw(sender: int, receiver: int, channel: MessageGroups) -> Bits:
        numbers = hash_ids(stream_key(key, sender, receiver), np.arange(len(channel.sizes)))
        drawn: Bits = np.array(widths, np.uint8)[numbers % np.uint64(len(widths))]
        return drawn

    return _for_each_channel(groups, draw)


def adaptive_bits(
    groups: GroupsOfChannels, links: Links, row_bytes: Mapping[int, int], *, error_share: float
) -> BitsOfChannels:
    """Weigh the error of an exchange against its time, and give each group the width that suits both best.

    It minimises, over one width b_g for each group g,

        share * (V - V_least) / (V_most - V_least)  +  (1 - share) * (T - T_least) / (T_most - T_least)

        V = sum over groups of weight_g / (2^b_g - 1)^2
        T = sum over rounds r = 1 to W - 1 of the slowest channel from p to (p + r) mod W, in seconds

    V is most and T least where all groups have the narrowest width, and the other way round with the widest. A term
    that is the same for all widths counts for nothing, and of choices that cost the same a channel takes the one with
    the fewest bytes: a share of 0 gives all groups the narrowest width.

    For a given deadline of a round each channel does best to widen groups by the error that a byte saves. States of
    this greedy path, and those that differ from one of them by up to `FARTHEST` groups, are compared: for each channel
    those that no other beats in both bytes and error; then for each round, which does not depend on the others, all
    deadlines at which a channel changes. In 800 random instances of 2 to 4 ranks the objective was the exact solver's.
    Where `MOST_STATES` allows the greedy path alone, it is 0.6 % higher for 3 groups in a channel, 0.01 % for 200.

    Every rank gets the same answer from the same arguments, on any processor: sums are taken in a fixed order. Cost:
    O(S log S) for S states, of which the greedy paths have k^2 G for k widths and G groups in all.

    Args:
        groups: from `group_messages`, of all channels.
        links: what a message of m bytes takes between two ranks; messages alone count, nothing that all share.
        row_bytes: the widths that may be used, and what a row of each takes on the wire: wider ones no fewer bytes.
        error_share: lambda, from 0 (time alone counts) to 1 (the error alone).
    """
    widths = np.array(sorted(row_bytes), np.int64)
    bytes_of_row = np.array([row_bytes[int(bits)] for bits in widths], np.int64)
    errors = 1 / ((1 << widths) - 1) ** 2
    rounds = _rounds(groups, links)
    channels = list(itertools.chain(*rounds))
    least_s, most_s = (
        sum(
            max(float(channel.curve.seconds(num_bytes * channel.num_messages)) for channel in around)
            for around in rounds
        )
        for num_bytes in bytes_of_row[[0, -1]]
    )
    error_span = sum(channel.weight for channel in channels) * (errors[0] - errors[-1])
    per_error = error_share / error_span if error_span > 0 else 0.0
    per_second = (1 - error_share) / (most_s - least_s) if most_s > least_s else 0.0

    most_states = MOST_STATES // max(len(channels), 1)
    assigned = uniform_bits(groups, int(widths[0]))
    for around in rounds:
        choices = [_choices(channel, bytes_of_row, per_error * errors, most_states) for channel in around]
        deadlines = np.unique(np.concatenate([choice.seconds for choice in choices]))
        deadlines = deadlines[deadlines >= max(choice.seconds[0] for choice in choices)]
        costs = per_second * deadlines + sum(choice.costs[choice.best_within(deadlines)] for choice in choices)
        deadline = deadlines[np.argmin(costs)]
        for channel, choice in zip(around, choices, strict=True):
            levels = choice.levels(int(choice.best_within(deadline)))
            assigned[channel.sender][channel.receiver] = widths[levels].astype(np.uint8)
    return assigned


def _for_each_channel(groups: GroupsOfChannels, assign: Callable[[int, int, MessageGroups], Bits]) -> BitsOfChannels:
    return [[assign(p, q, channel) for q, channel in enumerate(row)] for p, row in enumerate(groups)]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Channel:
    """A channel that has messages."""

    sender: int
    receiver: int
    groups: MessageGroups
    curve: TimeCurve

    @property
    def num_messages(self) -> int:
        return int(self.groups.sizes.sum())

    @property
    def weight(self) -> float:
        # Not sum, whose order of additions depends on the processor.
        return float(np.cumsum(self.groups.weights)[-1])


def _rounds(groups: GroupsOfChannels, links: Links) -> list[list[_Channel]]:
    """The channels of each round that has any."""
    size = len(groups)
    rounds = []
    for distance in range(1, size):
        pairs = [(p, (p + distance) % size) for p in range(size)]
        channels = [
            _Channel(
                sender=pair[0],
                receiver=pair[1],
                groups=groups[pair[0]][pair[1]],
                curve=TimeCurve(
                    latency_s=float(links.latency_s[pair]),
                    seconds_per_unit=float(links.seconds_per_byte[pair]),
                    hidden_s=float(links.hidden_s[pair]),
                ),
            )
            for pair in pairs
            if len(groups[pair[0]][pair[1]].sizes)
        ]
        if channels:
            rounds.append(channels)
    return rounds


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Choices:
    """States of a channel, of which each takes more bytes and costs less than the one before it."""

    seconds: Floats
    """[n] what each state takes."""
    costs: Floats
    """[n] its error, as a term of the objective."""
    widened: Longs
    """[n, k - 1] whole groups that have more than the 1st, 2nd, ... width: the heaviest ones."""
    last: Longs
    """[n] the number of the last group's width."""
    num_whole: int
    """Groups but the last."""

    def best_within(self, deadline: npt.ArrayLike) -> Longs:
        """The state that costs least and meets each deadline."""
        return np.asarray(np.searchsorted(self.seconds, deadline, side="right") - 1)

    def levels(self, state: int) -> Longs:
        """The number of each group's width in a state."""
        of_whole = (np.arange(self.num_whole)[:, None] < self.widened[state]).sum(axis=1)
        return np.append(of_whole, self.last[state])


def _choices(channel: _Channel, bytes_of_row: Longs, costs_of_errors: Floats, most_states: int) -> _Choices:
    """The states of a channel that no other beats, of those near the greedy path.

    Whole groups are as large as each other and descend in weight, so that heavier ones never do better with fewer bits
    than lighter ones: a state is how many of them are widened how far, and the width of the last group.
    """
    sizes, weights = channel.groups.sizes, channel.groups.weights
    num_whole, num_steps = len(sizes) - 1, len(bytes_of_row) - 1
    step_bytes = sizes[0] * np.diff(bytes_of_row)
    step_savings = -np.diff(costs_of_errors)

    # The greedy path: single steps of single groups by what they save for a byte.
    rates = (step_savings / np.maximum(step_bytes, 0.5))[:, None] * weights[:num_whole]
    steps = np.argsort(-rates, axis=None, kind="stable") // max(num_whole, 1)
    path = np.zeros((len(steps) + 1, num_steps), np.int64)
    np.cumsum(steps[:, None] == np.arange(num_steps), axis=0, out=path[1:])
    states = len(path) * len(bytes_of_row)
    reach = max(n for n in range(FARTHEST + 1) if n == 0 or states * (2 * n + 1) ** num_steps <= most_states)
    around = np.array(list(itertools.product(range(-reach, reach + 1), repeat=num_steps)), np.int64)
    widened = (path[:, None] + around).clip(0, num_whole).reshape(len(path) * len(around), num_steps)
    widened = np.minimum.accumulate(widened, axis=1)

    saved = np.concatenate([[0.0], np.cumsum(weights[:num_whole])])
    num_bytes = num_whole * sizes[0] * bytes_of_row[0] + (widened * step_bytes).sum(axis=1)
    costs = saved[-1] * costs_of_errors[0] - sum(
        step_savings[step] * saved[widened[:, step]] for step in range(num_steps)
    )
    all_bytes = (num_bytes[:, None] + sizes[-1] * bytes_of_row).ravel()
    all_costs = (np.reshape(costs, (-1, 1)) + weights[-1] * costs_of_errors).ravel()
    order = np.lexsort((all_costs, all_bytes))
    least = np.minimum.accumulate(all_costs[order])
    kept = order[np.append(True, least[1:] < least[:-1])]
    return _Choices(
        seconds=channel.curve.seconds(all_bytes[kept]),
        costs=all_costs[kept],
        widened=widened[kept // len(bytes_of_row)],
        last=kept % len(bytes_of_row),
        num_whole=num_whole,
    )
