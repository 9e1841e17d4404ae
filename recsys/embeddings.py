"""What was looked up for a minibatch: rows once for each distinct input, and which of them each sample has.

Two features that change together, and one that does not, 4 samples::

    groups[0]   names (user, city)   dims (2, 1)   rows  u0 u0 c0      inverse  0 0 1 1
                                                         u1 u1 c1
    groups[1]   names (item,)        dims (2,)     rows  i0 i0         inverse  None: a row for each sample
                                                         i1 i1
                                                         i2 i2
                                                         i3 i3

    order (item, user, city)         pooled()      i0 i0 u0 u0 c0
                                                   i1 i1 u0 u0 c0
                                                   i2 i2 u1 u1 c1
                                                   i3 i3 u1 u1 c1

What depends on a group alone is computed on its rows, and expands at the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from torch import Tensor

from windrow.comm.errors import DataError
from windrow.recsys.expansion import ColumnRun, expand_columns, expand_lists

if TYPE_CHECKING:
    from windrow.recsys.torchrec_adapter import JaggedTensor

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

    @property
    def num_samples(self) -> int:
        """B."""
        return len(self.rows if self.inverse is None else self.inverse)


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """Unpooled embeddings of one feature.

    Attributes:
        items: [n, d] float32, list after list.
        lengths: [U] integer items of each list; adds up to n.
        inverse: [B] int64 list of each sample; None where there is a list for each sample, in order.
    """

    items: Tensor
    lengths: Tensor
    inverse: Tensor | None

    @property
    def num_samples(self) -> int:
        """B."""
        return len(self.lengths if self.inverse is None else self.inverse)

    def expanded(self, *, pad: bool = False) -> "SequenceRows":
        """The same with a list for each sample; itself where it has them.

        Args:
            pad: go through a matrix as wide as the longest list, see `expand_lists`.
        """
        if self.inverse is None:
            return self
        return SequenceRows(*expand_lists(self.items, self.lengths, self.inverse, pad=pad), None)


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

    @staticmethod
    def of(
        pooled: Tensor, dims: Mapping[str, int], sequences: "Mapping[str, JaggedTensor] | None" = None
    ) -> "Embeddings":
        """Take embeddings that hold a row, and a list, for each sample.

        Args:
            pooled: [B, sum of dims] float32.
            dims: feature -> columns, in the order of the columns.
            sequences: TorchRec's containers by feature; None for none.
        """
        names = tuple(dims)
        return Embeddings(
            [PooledRows(names, tuple(dims.values()), pooled, None)],
            names,
            {
                name: SequenceRows(rows.values(), rows.lengths(), None)
                for name, rows in (sequences or {}).items()
            },
        )

    @property
    def num_samples(self) -> int:
        """B; 0 where there are no features at all."""
        parts: list[PooledRows | SequenceRows] = [*self.groups, *self.sequences.values()]
        return parts[0].num_samples if parts else 0

    def pooled(self) -> Tensor:
        """Give each sample its rows.

        Returns:
            [B, sum of dims] float32, columns in `order`; differentiable once, duplicates' gradients are added up in the
            order of samples. Nothing is copied where one group has it all, in this order, a row for each sample.
        """
        if not self.groups:
            assert self.sequences, "no embeddings at all, so nothing says how many samples there are"
            return next(iter(self.sequences.values())).items.new_empty(self.num_samples, 0)
        only = self.groups[0]
        if len(self.groups) == 1 and only.inverse is None and only.names == self.order:
            return only.rows
        return expand_columns(
            [group.rows for group in self.groups],
            [group.inverse for group in self.groups],
            _runs(self.groups, self.order),
            self.num_samples,
        )

    def feature(self, name: str) -> Tensor:
        """Give each sample its row of one pooled feature.

        Args:
            name: of the feature.

        Returns:
            [B, its columns] float32, differentiable once.

        Raises:
            DataError: no pooled feature has this name.
        """
        group = next((group for group in self.groups if name in group.names), None)
        if group is None:
            raise DataError(f"{name!r} is no pooled feature: choose one of {', '.join(self.order) or 'none'}")
        place = group.names.index(name)
        first, width = sum(group.dims[:place]), group.dims[place]
        if group.inverse is None:
            return group.rows[:, first : first + width]
        return expand_columns(
            [group.rows], [group.inverse], [[ColumnRun(first, 0, width)]], len(group.inverse)
        )

    def expanded(self) -> "Embeddings":
        """The same with a row for each sample in one group; sequences stay as they are."""
        dims = {name: dim for group in self.groups for name, dim in zip(group.names, group.dims, strict=True)}
        ordered = tuple(dims[name] for name in self.order)
        return Embeddings([PooledRows(self.order, ordered, self.pooled(), None)], self.order, self.sequences)


def _runs(groups: Sequence[PooledRows], order: tuple[str, ...]) -> list[list[ColumnRun]]:
    """Where the columns of each group go; neighbours that stay neighbours move together."""
    dims = {name: dim for group in groups for name, dim in zip(group.names, group.dims, strict=True)}
    ends = accumulate(dims[name] for name in order)
    targets = {name: end - dims[name] for name, end in zip(order, ends, strict=True)}
    runs: list[list[ColumnRun]] = []
    for group in groups:
        found: list[ColumnRun] = []
        source = 0
        for name, width in zip(group.names, group.dims, strict=True):
            last = found[-1] if found else None
            if last is not None and last.target + last.width == targets[name]:
                found[-1] = last._replace(width=last.width + width)
            else:
                found.append(ColumnRun(source, targets[name], width))
            source += width
        runs.append(found)
    return runs
