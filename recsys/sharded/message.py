"""What one rank asks one owner for, as bytes.

Ahead of it travels its header, int64: the rows of each group of features (samples in group 0, distinct ones in the
others), then a number for each request::

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

__all__ = ["ONE_EACH", "Message", "MessageFormat"]

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
    """

    def __init__(
        self, form: MessageFormat, header: npt.NDArray[np.int64], request_groups: Sequence[int]
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
        num_lengths = int(self.first_lengths[-1])
        num_weights = num_ids if form.weighted else 0
        bounds = np.cumsum([0, num_ids * form.id_bytes, 4 * num_weights, 4 * num_lengths]).tolist()
        self.buffer: Tensor = torch.empty(bounds[-1], dtype=torch.uint8)
        memory = self.buffer.numpy()
        self.ids = memory[bounds[0] : bounds[1]].view(form.id_type)
        self.weights = memory[bounds[1] : bounds[2]].view(np.float32)
        self.lengths = memory[bounds[2] : bounds[3]].view(np.int32)
