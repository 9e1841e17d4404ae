"""TT-Rec: a table as a chain of small cores, multiplied for each row that is wanted.

A row's number is written in mixed radix, the first digit the most significant, and each digit chooses a matrix of its
core; n <= p_1 p_2 p_3 rows, D = q_1 q_2 q_3 columns, ranks r_1, r_2::

    i = (i_1 p_2 + i_2) p_3 + i_3
    row i  =  G_1[i_1]  @  G_2[i_2]  @  G_3[i_3]        [q_1, r_1] @ [r_1, q_2 r_2] -> [q_1 q_2, r_2] @ [r_2, q_3]

Yin, Acun, Wu, Liu: TT-Rec: Tensor Train Compression for Deep Learning Recommendation Models, MLSys 2021, arXiv
2101.11714. Ids are looked up once each, products of the first digits are computed once for all rows that share them,
and a row learns from the sum of its gradients (as in EL-Rec, Wang et al., SC 2022). The backward pass computes products
again, for some rows at a time, in place of keeping them.

First values: a dense table starts best from N(0, 1 / (3 n)), says the paper, and so the product of cores should. A
product of normal numbers has too many near zero, so cores are drawn from a normal distribution without its middle,
|z| >= 2 ("sampled Gaussian"). For numbers with E[z^2] = 5.7464, d cores and a wanted deviation s, each is multiplied by

    (s / sqrt(r_1 .. r_(d-1))) ** (1 / d) / sqrt(5.7464)

The published code multiplies by (1 / sqrt(3 n)) ** (1 / 3) instead, whatever the ranks, d and E[z^2] are, which makes
the variance of the table thousands of times 1 / (3 n).
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from windrow.comm.threads import in_parallel
from windrow.recsys.tables.forms import Form, refuse_unless_smaller, scale_of, whole_table
from windrow.recsys.tables.options import FirstCores, TableOptions
from windrow.recsys.tables.table import table_key
from windrow.training.shard_files import LocalTable

__all__ = ["TensorTrain", "column_factors", "decompose", "row_factors"]

TAIL = 2.0
"""Normal numbers nearer to zero are left out."""
_BEYOND = math.erfc(TAIL / math.sqrt(2)) / 2
TAIL_VARIANCE = 1 + TAIL * math.exp(-TAIL * TAIL / 2) / math.sqrt(2 * math.pi) / _BEYOND
"""E[z^2] of a normal number with \\|z\\| >= 2: 5.7464."""
ROWS_AT_ONCE = 2048
"""Rows whose products are computed, and computed again, at a time: as many as share matrices, in a few megabytes."""
WORTH_A_THREAD = 256
"""Rows."""


class TensorTrain(Form):
    """One table in cores.

    Where one rank has them, on CPUs, each matrix learns as soon as its gradient is there, which then is not kept.

    Args:
        table: all of it.
        options: ``tt_cores``; ``tt_rank`` of all bonds, None for the largest that ``compression`` allows;
            ``tt_first_values``.

    Raises:
        RecipeError: the cores would not be smaller than the table.
    """

    can_learn_alone = True

    def __init__(self, table: LocalTable, options: TableOptions) -> None:
        self.rows_of = row_factors(table.num_rows, options.tt_cores)
        """p of each core."""
        self.columns_of = column_factors(table.dim, options.tt_cores)
        """q of each core."""
        rank = options.tt_rank or _largest_rank(
            self.rows_of, self.columns_of, table.num_rows * table.dim / options.compression
        )
        self.ranks = (1, *(min(rank, most) for most in _largest_useful_ranks(self.rows_of, self.columns_of)), 1)
        """Before, between and behind the cores."""
        stored = [
            whole_table(f"{table.name}.core_{number}", rows, left * columns * right)
            for number, (rows, columns, (left, right)) in enumerate(
                zip(self.rows_of, self.columns_of, pairwise(self.ranks), strict=True)
            )
        ]
        refuse_unless_smaller(table, stored, "tensor_train")
        super().__init__([table], stored)
        self._deviation = scale_of(options, table) / math.sqrt(3)
        self._first_values = options.tt_first_values

    def first_values(self, seed: int) -> list[Tensor]:
        """See `Form.first_values`."""
        kind, number = self._first_values, len(self.stored)
        variance = {"gaussian": 1.0, "uniform": 1 / 3}.get(kind, TAIL_VARIANCE)
        scale = (self._deviation / math.sqrt(math.prod(self.ranks))) ** (1 / number) / math.sqrt(variance)
        if kind == "published_code":
            scale = float((3 * self.tables[0].num_rows) ** (-1 / 6))
        return [scale * _drawn(kind, core, seed) for core in self.stored]

    def nearest(self, tables: Sequence[Tensor]) -> list[Tensor]:
        """See `Form.nearest` and `decompose`."""
        return decompose(tables[0], self)

    def rows(self, table: int, ids: Tensor, stored: Sequence[Tensor]) -> Tensor:
        """See `Form.rows`. Ids in ascending order share the products of their first digits."""
        del table
        if ids.device.type == "cpu":
            found: Tensor = _Rows.apply(self, ids, *stored)  # type: ignore[no-untyped-call]
            return found
        return self.reference_rows(ids, stored)

    def learn(self, stored: Sequence[Tensor], kept: Sequence[Tensor], learning_rate: float, eps: float) -> None:
        """See `Form.learn`: each matrix is read and written once, and there is no gradient of all of them."""
        from windrow.recsys.tables.tensor_train_kernels import multiply_back

        if not self.waiting:
            return
        ids, arriving = self.take_waiting()
        arguments, cores = _numbers(self, ids, stored), _matrices(stored)
        squares = _matrices(kept) if kept else tuple(np.empty(0, np.float32) for _ in stored)
        numbers = np.array([learning_rate, eps], np.float32)
        multiply_back(*arguments, arriving.numpy(), cores, squares, numbers)

    def reference_rows(self, ids: Tensor, stored: Sequence[Tensor]) -> Tensor:
        """The formula by batched products, on any device; what is computed is kept for the backward pass."""
        if not len(ids):
            return stored[0].new_empty(0, self.tables[0].dim)
        prefixes, digits, parents = ids, [], []
        for rows in reversed(self.rows_of):
            digits.append(prefixes % rows)
            prefixes, parent = torch.unique_consecutive(prefixes // rows, return_inverse=True)
            parents.append(parent)
        product = stored[0].new_ones(len(prefixes), 1, 1)
        for core, digit, parent, (left, right) in zip(
            stored, reversed(digits), reversed(parents), pairwise(self.ranks), strict=True
        ):
            chosen = core.index_select(0, digit).view(len(digit), left, -1)
            product = torch.bmm(product.index_select(0, parent), chosen).view(len(digit), -1, right)
        return product.view(len(ids), -1)


def row_factors(rows: int, cores: int) -> tuple[int, ...]:
    """Numbers near each other, ascending, whose product is at least `rows`."""
    factors = []
    for left in range(cores, 0, -1):
        # Roots of floats are off by a little.
        factor = max(round(rows ** (1 / left)) - 1, 1)
        while factor**left < rows:
            factor += 1
        factors.append(factor)
        rows = -(-rows // factor)
    return tuple(sorted(factors))


def column_factors(columns: int, cores: int) -> tuple[int, ...]:
    """The factorisation of a number whose factors are nearest to each other, ascending."""
    if cores == 1:
        return (columns,)
    best: tuple[int, ...] = (1,) * (cores - 1) + (columns,)
    for factor in range(1, columns + 1):
        if columns % factor == 0 and factor**cores <= columns:
            candidate = (factor, *column_factors(columns // factor, cores - 1))
            if sum(candidate) < sum(best):
                best = candidate
    return tuple(sorted(best))


def decompose(table: Tensor, form: TensorTrain) -> list[Tensor]:
    """Cores near a dense table, by truncated SVDs (Oseledets: Tensor-Train Decomposition, SIAM J. Sci. Comput. 2011).

    Args:
        table: [rows, dim] floating, of the form's table.
        form: its shapes and ranks.

    Returns:
        Values of ``form.stored``. Where ranks are large enough, `TensorTrain.rows` gives the table back.

    Memory: some copies of the table, padded to all rows that the cores could have.
    """
    rest = torch.zeros(math.prod(form.rows_of), table.shape[1], dtype=table.dtype, device=table.device)
    rest[: len(table)] = table
    cores = len(form.rows_of)
    axes = [axis for number in range(cores) for axis in (number, cores + number)]
    rest = rest.view(*form.rows_of, *form.columns_of).permute(axes)
    found: list[Tensor] = []
    for rows, columns, (left, right) in zip(form.rows_of, form.columns_of, pairwise(form.ranks), strict=True):
        rest = rest.reshape(left * rows * columns, -1)
        if right == 1 and len(found) == cores - 1:
            core = rest
        else:
            core, values, rest = torch.linalg.svd(rest, full_matrices=False)
            core, rest = core[:, :right], values[:right, None] * rest[:right]
        core = core.reshape(left, rows, columns * right).transpose(0, 1)
        found.append(core.reshape(rows, -1).contiguous())
    return found


def _largest_rank(rows: Sequence[int], columns: Sequence[int], numbers: float) -> int:
    """The largest rank of all bonds with which cores have no more numbers, at least 1."""

    def size(rank: int) -> int:
        ranks = (1, *[rank] * (len(rows) - 1), 1)
        return sum(p * q * left * right for p, q, (left, right) in zip(rows, columns, pairwise(ranks), strict=True))

    rank = 1
    while size(rank + 1) <= numbers:
        rank += 1
    return rank


def _largest_useful_ranks(rows: Sequence[int], columns: Sequence[int]) -> list[int]:
    """Between the cores: what is before and behind a bond cannot have a larger rank."""
    sizes = [p * q for p, q in zip(rows, columns, strict=True)]
    before = list(accumulate(sizes, lambda a, b: a * b))
    behind = list(accumulate(reversed(sizes), lambda a, b: a * b))[::-1]
    return [min(one, other) for one, other in zip(before[:-1], behind[1:], strict=True)]


def _drawn(kind: FirstCores, core: LocalTable, seed: int) -> Tensor:
    """Numbers of [-1, 1), normal ones, or normal ones with |z| >= `TAIL`."""
    generator = torch.Generator().manual_seed(table_key(core.name, seed))
    # Of (-1, 1], without zero: the sign is that of the number, the size is its place in its half.
    drawn = 1 - 2 * torch.rand(core.num_rows, core.dim, generator=generator, dtype=torch.float64)
    if kind == "uniform":
        return drawn.float()
    # By the inverse of the distribution.
    beyond = 0.5 if kind == "gaussian" else _BEYOND
    size = -torch.special.ndtri(drawn.abs().clamp_min(1e-15) * beyond)
    return torch.copysign(size, drawn).float()


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, form: TensorTrain, ids: Tensor, *cores: Tensor) -> Tensor:
        from windrow.recsys.tables.tensor_train_kernels import multiply

        context.form = form
        context.save_for_backward(ids, *cores)
        found = torch.empty(len(ids), form.tables[0].dim)
        arguments = (*_numbers(form, ids, cores), found.numpy())
        in_parallel(
            lambda first, last: multiply(*arguments, first, last), len(ids), chunks_per_thread=1, at_once=WORTH_A_THREAD
        )
        return found

    @staticmethod
    @once_differentiable
    def backward(context: Any, arriving: Tensor) -> tuple[Tensor | None, ...]:
        from windrow.recsys.tables.tensor_train_kernels import multiply_back

        ids, *cores = context.saved_tensors
        if context.form.learns_alone:
            context.form.waiting.append((ids, arriving))
            return None, None, *(None for _ in cores)
        gradients = [torch.zeros_like(core) for core in cores]
        arguments = _numbers(context.form, ids, cores)
        multiply_back(*arguments, arriving.contiguous().numpy(), _matrices(gradients), None, np.zeros(2, np.float32))
        return None, None, *gradients


def _numbers(form: TensorTrain, ids: Tensor, cores: Sequence[Tensor]) -> tuple[Any, int, Any, Any]:
    shapes = np.array([(*form.rows_of,), (*form.columns_of,), form.ranks[:-1], form.ranks[1:]], np.int64).T.copy()
    return shapes, ROWS_AT_ONCE, ids.numpy(), _matrices(cores)


def _matrices(cores: Sequence[Tensor]) -> Any:
    return tuple(core.detach().view(-1).numpy() for core in cores)
