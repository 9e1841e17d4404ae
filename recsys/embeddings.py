"""What was looked up for a minibatch: rows once for each distinct input, and which of them each sample has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Embeddings", "PooledRows", "SequenceRows"]


@dataclass(frozen=True, slots=True)
class PooledRows:
    """Pooled embeddings of features that share their rows.

    Attributes:
        names: features, in the order of the columns.
        dims: columns of each.
        rows: [U, sum of dims] float32.
        inverse: [B] int64 row of each sample; None where there is a row for each sample, in order.
    """

    names: tuple[str, ...]
    dims: tuple[int, ...]
    rows: Tensor
    inverse: Tensor | None


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """Unpooled embeddings of one feature.

    Attributes:
        items: [n, d] float32, list after list.
        lengths: [U] int64 items of each list; adds up to n.
        inverse: [B] int64 list of each sample; None where there is a list for each sample, in order.
    """

    items: Tensor
    lengths: Tensor
    inverse: Tensor | None


@dataclass(frozen=True, slots=True)
class Embeddings:
    """All embeddings of B samples.

    Attributes:
        groups: pooled ones; every pooled feature is in one of them.
        order: pooled features in the order in which models see them.
        sequences: unpooled ones by feature.
    """

    groups: Sequence[PooledRows]
    order: tuple[str, ...]
    sequences: Mapping[str, SequenceRows] = field(default_factory=dict)

    def pooled(self) -> Tensor:
        """[B, sum of dims] float32: a row for each sample, columns in `order`."""
        raise NotImplementedError
