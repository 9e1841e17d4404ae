"""In how many bits the messages of full-graph training travel, and when that is decided anew (AdaQP).

Ranges of rows are those that quantising met last. Every rank groups the rows that it sends, all gather the groups'
weights, every rank solves the same problem, and each tells its peers the width of every row::

    epoch       0 .. n - 1       n .. 2n - 1                       2n ..
    widths      `FIRST_BITS`     from the ranges of epoch n - 1    from those of epoch 2n - 1

They are assigned at the end of an epoch and belong to a checkpoint, so that a resumed run sends what a run that was
never killed does.

Source: Wan, Zhao, Wu: Adaptive Message Quantization and Parallelization for Distributed Full-graph GNN Training, MLSys
2023. There rank 0 solves for all.
"""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.bits import (
    BitsOfChannels,
    GroupsOfChannels,
    MessageGroups,
    adaptive_bits,
    error_weights,
    group_messages,
    random_bits,
    spread_bits,
)
from windrow.comm.links import Links
from windrow.comm.quantize import packed_row_bytes
from windrow.comm.quantized_codec import QuantizedCodec
from windrow.comm.random import Stream, stream_key
from windrow.comm.world import World
from windrow.gnn.halo import WAYS, Halo, HaloExchange, Way

__all__ = ["FIRST_BITS", "MessageBits", "Messages"]

Messages: TypeAlias = Literal["wire", "int1", "int2", "int4", "int8", "adaptive", "random"]
"""How rows between parts travel: in the number formats of [wire], in so many bits, or in widths that are assigned."""

FIRST_BITS = 8
"""Of all rows until their ranges are known, as in AdaQP's released code."""


class MessageBits:
    """The codecs of all layers and ways, their random numbers and widths. All ranks make the same one.

    Args:
        world: a rank for each part.
        messages: not "wire".
        num_layers: of the model.
        links: what messages take between ranks.
        widths: that may be assigned.
        group_size: rows of a message that share a width.
        error_share: AdaQP's lambda, see `windrow.comm.bits.adaptive_bits`.
        every_epochs: epochs between two assignments.
        own_weights: what the square of an error counts in a sum of a vertex, and in its gradient: [own vertices] each.
        seed: the run's.
        partition: digest of who owns which vertex: widths of another partition are those of other rows.
    """

    def __init__(
        self,
        world: World,
        messages: Messages,
        *,
        num_layers: int,
        links: Links,
        widths: Sequence[int],
        group_size: int,
        error_share: float,
        every_epochs: int,
        own_weights: Mapping[Way, Tensor],
        seed: int,
        partition: int,
    ) -> None:
        self._world = world
        self._partition = partition
        self._is_random = messages == "random"
        self._assigns = messages in ("adaptive", "random")
        self._links = links
        self._widths = widths
        self._group_size = group_size
        self._error_share = error_share
        self._every_epochs = every_epochs
        self._own_weights = own_weights
        self._seed = seed
        bits = FIRST_BITS if self._assigns else int(messages.removeprefix("int"))
        self.codecs: list[dict[Way, QuantizedCodec]] = [
            {way: QuantizedCodec(bits, rank=world.rank, traces=messages == "adaptive") for way in WAYS}
            for _ in range(num_layers)
        ]
        """Of each layer."""
        self._coefficients: dict[tuple[int, Way], list[Tensor]] = {}
        self.state: dict[str, Tensor] = {}
        """Widths of all ranks' rows, for `load_state`."""

    def begin(self, epoch: int) -> None:
        """Round by other random numbers in each epoch."""
        for layer, codecs in enumerate(self.codecs):
            for number, codec in enumerate(codecs.values()):
                codec.key = stream_key(self._seed, Stream.QUANTISE, epoch, layer, number)

    def end(self, epoch: int, exchanges: Sequence[HaloExchange]) -> None:
        """Assign widths to what travelled in an epoch, where that is due. Collective."""
        if self._assigns and (epoch + 1) % self._every_epochs == 0:
            self._assign(epoch, exchanges)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on with these widths; where they are those of another partition, with `FIRST_BITS`."""
        if int(state.get("partition", torch.tensor(-1))) != self._partition:
            return
        self.state = dict(state)
        for layer, codecs in enumerate(self.codecs):
            for way, codec in codecs.items():
                name = f"{layer} {way} {self._world.rank}"
                if f"bits {name}" in state:
                    counts, bits = state[f"counts {name}"].view(2, -1), state[f"bits {name}"]
                    sent, received = bits.split(counts.sum(1).tolist())
                    codec.assign(sent.split(counts[0].tolist()), received.split(counts[1].tolist()))

    def _assign(self, epoch: int, exchanges: Sequence[HaloExchange]) -> None:
        """Assign widths to what travelled last."""
        used = [(layer, way, halo) for layer, each in enumerate(exchanges) for way, halo in each.used.items()]
        mine: list[list[MessageGroups]] = []
        orders: list[list[npt.NDArray[np.int64]]] = []
        for layer, way, halo in used:
            found = [group_messages(beta, self._group_size) for beta in self.error_weights(layer, way, halo)]
            orders.append([order for order, _ in found])
            mine.append([groups for _, groups in found])
        everyone = self._world.all_gather_object(mine, stage="halo: groups of messages")
        assigned: dict[str, Tensor] = {}
        for number, (layer, way, halo) in enumerate(used):
            codec = self.codecs[layer][way]
            key = stream_key(self._seed, Stream.QUANTISE, epoch, number)
            bits = self._solve([of_rank[number] for of_rank in everyone], codec.width, key)[self._world.rank]
            sent = [
                torch.from_numpy(spread_bits(order, groups.sizes, of_groups))
                for order, groups, of_groups in zip(orders[number], mine[number], bits, strict=True)
            ]
            send_counts, receive_counts = halo.counts(way)
            told = self._world.all_to_all(torch.cat(sent), send_counts, receive_counts, stage="halo: bits of rows")
            codec.assign(sent, told.split(receive_counts))
            name = f"{layer} {way} {self._world.rank}"
            assigned[f"counts {name}"] = torch.tensor([*send_counts, *receive_counts])
            assigned[f"bits {name}"] = torch.cat([*sent, told])
        everyones = self._world.all_gather_object(assigned, stage="halo: bits of rows")
        self.state = {**ChainMap(*everyones), "partition": torch.tensor(self._partition)}

    def _solve(self, groups: GroupsOfChannels, width: int, key: int) -> BitsOfChannels:
        if self._is_random:
            return random_bits(groups, self._widths, key)
        row_bytes = {bits: packed_row_bytes(width, bits) for bits in self._widths}
        return adaptive_bits(groups, self._links, row_bytes, error_share=self._error_share)

    def error_weights(self, layer: int, way: Way, halo: Halo) -> list[npt.NDArray[np.float64]]:
        """`windrow.comm.bits.error_weights` of the rows that went to each rank last. Collective."""
        send_counts, receive_counts = halo.counts(way)
        if self._is_random:
            return [np.ones(count) for count in send_counts]
        if (layer, way) not in self._coefficients:
            # Only who gets a row knows where it counts.
            of_received = halo.error_coefficients(way, self._own_weights[way]).cpu()
            told = self._world.all_to_all(of_received, receive_counts, send_counts, stage="halo: coefficients")
            self._coefficients[layer, way] = list(told.split(send_counts))
        codec = self.codecs[layer][way]
        return [
            error_weights(coefficients.numpy(), codec.ranges_to(peer, len(coefficients)).numpy(), codec.width)
            for peer, coefficients in enumerate(self._coefficients[layer, way])
        ]
