"""What one rank asks one owner for, as bytes.

Ahead of it travels its header, one int64 for the number of samples and one for each request::

    3 | 4 | ONE_EACH | 0          3 samples; 4 ids; one id for each sample; no ids

and then the ids themselves, all requests in one message::

    ids       7 2 5 1 | 3 3 8 |                      int32, or int64 where a piece has more rows than int32 counts
    weights   ...                                    float32, one for each id, in a weighted collection
    lengths   2 0 2           | 0 0 0                int32, of pooled lookups; none where there is one id each
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["ONE_EACH", "Message", "MessageFormat"]

ONE_EACH = -1
"""Stands in a header for the number of ids where every sample has exactly one: then no lengths travel."""


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
        header: [1 + requests] int64, as drawn above.
    """

    def __init__(self, form: MessageFormat, header: npt.NDArray[np.int64]) -> None:
        self.header = header
        self.num_samples = int(header[0])
        one_each = header[1:] == ONE_EACH
        self.counts: npt.NDArray[np.int64] = np.where(one_each, self.num_samples, header[1:])
        self.send_lengths: npt.NDArray[np.bool_] = ~one_each if form.with_lengths else np.zeros_like(one_each)
        num_ids = int(self.counts.sum())
        num_lengths = int(self.send_lengths.sum()) * self.num_samples
        num_weights = num_ids if form.weighted else 0
        bounds = np.cumsum([0, num_ids * form.id_bytes, 4 * num_weights, 4 * num_lengths]).tolist()
        self.buffer: Tensor = torch.empty(bounds[-1], dtype=torch.uint8)
        memory = self.buffer.numpy()
        self.ids = memory[bounds[0] : bounds[1]].view(form.id_type)
        self.weights = memory[bounds[1] : bounds[2]].view(np.float32)
        self.lengths = memory[bounds[2] : bounds[3]].view(np.int32)
