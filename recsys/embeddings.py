"""What was looked up for a minibatch: rows once for each distinct input, and how they expand to one for each sample.

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

What depends on a group alone is computed on its rows, and expands at the end, rows and lists of rows (`Deduplicated`)
alike::

    inverse         0 0 1 0                      sample 3 has row 0
    rows            a b          -> a a b a      gradient of a: those of samples 0, 1 and 3 added up, in this order
    lists           [a b] [c]    -> [a b] [a b] [c] [a b]

The second is the jagged index select of RecD (Zhao et al., RecD: Deduplication for End-to-End Deep Learning
Recommendation Model Training Infrastructure, MLSys 2023, arXiv 2211.05239): no list is padded to the longest.

On CPUs compiled loops copy and add; other devices use PyTorch's operations, whose sums may come in any order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from windrow.comm.errors import DataError
from windrow.comm.rows import Runs, join_runs, move_columns
from windrow.recsys.batches.jagged import Deduplicated, is_compiled

__all__ = ["Embeddings", "PooledRows", "expand_rows"]


def expand_rows(rows: Tensor, inverse: Tensor | None) -> Tensor:
    """Give each sample its row of `rows` [U, width] floating: [B, width], differentiable once.

    `inverse` is the [B] int64 row of each sample; None: `rows` themselves are given back.
    """
    if inverse is None:
        return rows
    return _expand_columns([rows], [inverse], [join_runs([(0, 0, rows.shape[1])])], len(inverse))


def _expand_columns(
    rows: Sequence[Tensor], inverses: Sequence[Tensor | None], runs: Sequence[Runs], num_samples: int
) -> Tensor:
    """Put columns of groups of rows [U, width] together, a row for each sample; `runs` fill each column once.

    Cost: one pass over the result, and one over its gradient.
    """
    if all(is_compiled(group) for group in rows):
        result: Tensor = _ExpandColumns.apply(num_samples, tuple(inverses), tuple(runs), *rows)  # type: ignore[no-untyped-call]
        return result
    expanded = [
        group if inverse is None else group.index_select(0, inverse)
        for group, inverse in zip(rows, inverses, strict=True)
    ]
    pieces = [
        (target, group[:, source : source + width])
        for group, group_runs in zip(expanded, runs, strict=True)
        for source, target, width in group_runs.tolist()
    ]
    return torch.cat([piece for _, piece in sorted(pieces, key=lambda pair: pair[0])], 1)


class _ExpandColumns(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, num_samples: int, inverses: tuple[Tensor | None, ...], runs: tuple[Runs, ...], *rows: Tensor
    ) -> Tensor:
        ctx.runs, ctx.shapes = runs, [group.shape for group in rows]
        ctx.save_for_backward(*inverses)
        columns = sum(int(table[:, 2].sum()) for table in runs)
        out = rows[0].new_empty(num_samples, columns)
        for group, inverse, table in zip(rows, inverses, runs, strict=True):
            move_columns(group, out, table, index=inverse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients: list[Tensor | None] = []
        wanted = ctx.needs_input_grad[3:]
        for inverse, table, shape, is_wanted in zip(ctx.saved_tensors, ctx.runs, ctx.shapes, wanted, strict=True):
            if not is_wanted:
                gradients.append(None)
                continue
            gradient = upstream.new_zeros(shape)
            move_columns(upstream, gradient, table, index=inverse, back=True, add=True)
            gradients.append(gradient)
        return None, None, None, *gradients


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
        return (self.rows if self.inverse is None else self.inverse).shape[0]


@dataclass(frozen=True, slots=True)
class Embeddings:
    """All embeddings of B samples.

    Attributes:
        groups: pooled ones; every pooled feature is in one of them.
        order: pooled features in the order in which models see them.
        sequences: unpooled ones by feature: of each list its vectors [d].
    """

    groups: Sequence[PooledRows]
    order: tuple[str, ...]
    sequences: Mapping[str, Deduplicated[Tensor]] = field(default_factory=dict)

    @staticmethod
    def of(
        pooled: Tensor, dims: Mapping[str, int], sequences: Mapping[str, Deduplicated[Tensor]] | None = None
    ) -> "Embeddings":
        """Take pooled embeddings [B, sum of dims] float32, a row for each sample; `dims` by feature, in order."""
        names = tuple(dims)
        return Embeddings([PooledRows(names, tuple(dims.values()), pooled, None)], names, sequences or {})

    @property
    def num_samples(self) -> int:
        """B; 0 where there are no features at all."""
        parts: list[PooledRows | Deduplicated[Tensor]] = [*self.groups, *self.sequences.values()]
        return parts[0].num_samples if parts else 0

    def pooled(self) -> Tensor:
        """Give each sample its rows.

        Returns:
            [B, sum of dims] float32, columns in `order`; differentiable once, duplicates' gradients are added up in the
            order of samples. Nothing is copied where one group has it all, in this order, a row for each sample.
        """
        if not self.groups:
            assert self.sequences, "no embeddings at all, so nothing says how many samples there are"
            return next(iter(self.sequences.values())).jagged.values.new_empty(self.num_samples, 0)
        only = self.groups[0]
        if len(self.groups) == 1 and only.inverse is None and only.names == self.order:
            return only.rows
        return _expand_columns(
            [group.rows for group in self.groups],
            [group.inverse for group in self.groups],
            _runs(self.groups, self.order),
            self.num_samples,
        )

    def feature(self, name: str) -> Tensor:
        """Give each sample its row of one pooled feature: [B, its columns] float32, differentiable once.

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
        return _expand_columns([group.rows], [group.inverse], [join_runs([(first, 0, width)])], len(group.inverse))

    def expanded(self) -> "Embeddings":
        """The same with a row for each sample in one group; sequences stay as they are."""
        dims = {name: dim for group in self.groups for name, dim in zip(group.names, group.dims, strict=True)}
        return Embeddings.of(self.pooled(), {name: dims[name] for name in self.order}, self.sequences)


def _runs(groups: Sequence[PooledRows], order: tuple[str, ...]) -> list[Runs]:
    """Where the columns of each group go."""
    dims = {name: dim for group in groups for name, dim in zip(group.names, group.dims, strict=True)}
    targets = dict(zip(order, accumulate((dims[name] for name in order), initial=0), strict=False))
    return [
        join_runs(
            (source, targets[name], width)
            for name, width, source in zip(group.names, group.dims, accumulate(group.dims, initial=0), strict=False)
        )
        for group in groups
    ]
