"""Lists of about equal lengths side by side, so that a matrix product takes many at once and little of it is padding.

::

    lengths            3 1 0 3 2 20 18          order of the lists: 2 1 4 0 3 6 5
    buckets            [0] [1] [2] [3 3] [18 20]
    only the last one is padded: 2 rows of 40
"""

from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from windrow.recsys.expansion import expand_rows

__all__ = ["Bucket", "ListBuckets", "bucket_limit"]

_BUCKETS_PER_DOUBLING = 8
"""At most an eighth of a bucket is padding; lists of up to 16 items have a bucket for each length."""


def bucket_limit(length: int) -> int:
    """The greatest length that shares a bucket with this one.

    Args:
        length: items of a list, at least 0.
    """
    step = max(1, (1 << max(length - 1, 0).bit_length()) // (2 * _BUCKETS_PER_DOUBLING))
    return -(-length // step) * step


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Some lists next to one another, as a matrix.

    Attributes:
        num_lists: k.
        longest: L, items of the longest list.
        num_items: items of all k lists; k L where all are equally long.
        rows: [k L] int64 item at each place of the matrix, the first one where there is none; None: place by place.
        places: [num_items] int64 place of each item; None where `rows` is.
        is_item: [k, 1, 1, L] bool which places hold items; None where all do.
    """

    num_lists: int
    longest: int
    num_items: int
    rows: Tensor | None
    places: Tensor | None
    is_item: Tensor | None

    def padded(self, items: Tensor) -> Tensor:
        """[num_items, columns] to [k L, columns]; places without an item get some item."""
        return expand_rows(items, self.rows)

    def cut(self, matrix: Tensor) -> Tensor:
        """[k L, columns] to [num_items, columns]."""
        return expand_rows(matrix, self.places)


class ListBuckets:
    """An order of lists by their lengths, and the buckets in it.

    Args:
        lengths: [U] int64.
    """

    def __init__(self, lengths: Tensor) -> None:
        self.lengths, self.order = lengths.sort(stable=True)
        """[U] int64, ascending; and the list at each place."""
        self.buckets = [
            _bucket(list(group), lengths.device) for _, group in groupby(self.lengths.tolist(), bucket_limit)
        ]

    @property
    def place_of_list(self) -> Tensor:
        """[U] int64 place of each list in the order."""
        place = torch.empty_like(self.order)
        place[self.order] = torch.arange(len(self.order), device=self.order.device)
        return place


def _bucket(lengths: list[int], device: torch.device) -> Bucket:
    """Of ascending lengths."""
    num_lists, longest, num_items = len(lengths), lengths[-1], sum(lengths)
    if lengths[0] == longest:
        return Bucket(num_lists, longest, num_items, None, None, None)
    is_item = torch.arange(longest, device=device) < torch.tensor(lengths, device=device).unsqueeze(1)
    places = is_item.flatten().nonzero().flatten()
    rows = torch.zeros(num_lists * longest, dtype=torch.int64, device=device)
    rows[places] = torch.arange(num_items, device=device)
    return Bucket(num_lists, longest, num_items, rows, places, is_item.view(num_lists, 1, 1, longest))
