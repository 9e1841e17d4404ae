"""The one place where FBGEMM is imported: tables that learn within the backward pass.

FBGEMM's table-batched embedding looks all tables up in one call. The backward pass adds up the gradients of a row
that occurs several times and then updates that row, so neither a dense gradient nor a second pass over the tables is
needed ("exact" optimisers). On GPUs it is FBGEMM's, on CPUs ours, in the same storage: in a third of the time. With g
the summed gradient of a row of D columns::

    sgd              w -= learning_rate * g
    adagrad          s += g ** 2;             w -= learning_rate * g / (sqrt(s) + eps)
    rowwise_adagrad  s += sum(g ** 2) / D;    w -= learning_rate * g / (sqrt(s) + eps)

Its kernels work on four columns at a time, so other rows get columns of zeros at their end, P in all, which nobody sees
and whose gradient is zero. Its row-wise Adagrad then divides by P. With the gradient times a = sqrt(P / D), and a
learning rate of 1 / a of what it is, the same formula comes out, and s is what it would be::

    s += sum((a * g) ** 2) / P = sum(g ** 2) / D;    w -= learning_rate / a * a * g / (sqrt(s) + eps)
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor
from torch.autograd.function import once_differentiable

from windrow.comm.threads import in_parallel
from windrow.partition.tables.plan import COLUMN_MULTIPLE
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import TableBatch
from windrow.recsys.tables.table_kernels import learn
from windrow.training.shard_files import LocalTable

__all__ = ["FBGEMMTableBatch"]

_OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}


class FBGEMMTableBatch(TableBatch):
    """Members in flat FBGEMM storage, fp32 or fp16, updated by ``backward()`` itself.

    Results are always float32, and so are the accumulators. fp16 values are rounded to nearest, on GPUs too, where
    FBGEMM can round stochastically: its draws would come from a global generator, and a resumed run would differ.
    Values are zero until `initialise` or `load_state` writes them.

    Args:
        members, lookups, pooled: see `TableBatch`.
        options: optimiser (not adam), its settings, and precision.
        device: CPU or a CUDA device. The batch cannot move later.
    """

    def __init__(
        self,
        members: tuple[LocalTable, ...],
        lookups: tuple[int, ...],
        options: TableOptions,
        *,
        pooled: bool = True,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(members, lookups, pooled=pooled)
        assert not options.moves_every_row, f"{options.optimizer} needs dense gradients"
        device = device or torch.device("cpu")
        # One call has one learning rate, so neighbours with equal factors share one: all, unless dims are no multiples.
        self._calls: list[_Call] = []
        first = 0
        for factor, found in groupby(members, lambda member: _gradient_factor(member, options, device)):
            chosen = list(found)
            own_lookups = [lookup - first for lookup in lookups if 0 <= lookup - first < len(chosen)]
            self._calls.append(_Call(chosen, own_lookups, options, factor, pooled=pooled, device=device))
            first += len(chosen)
        self._weights = [weight for call in self._calls for weight in call.weights]
        self._squares = [squares for call in self._calls for squares in call.squares]

    def forward(self, values: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Tensor:
        """See `TableBatch.forward`. On GPUs it waits where members need several calls."""
        if torch.is_inference_mode_enabled():
            # FBGEMM has a CPU kernel for no_grad, but none for inference_mode.
            with torch.inference_mode(mode=False), torch.no_grad():
                return self.forward(values, offsets, per_sample_weights)
        if len(self._calls) == 1:
            return self._calls[0](values, offsets, per_sample_weights)
        num_samples = (len(offsets) - 1) // len(self.lookups)
        bounds = list(accumulate((call.num_lookups * num_samples for call in self._calls), initial=0))
        columns = []
        for call, (start, stop), (first, last) in zip(
            self._calls, pairwise(bounds), pairwise(offsets[bounds].tolist()), strict=True
        ):
            weights = None if per_sample_weights is None else per_sample_weights[first:last]
            columns.append(call(values[first:last], offsets[start : stop + 1] - first, weights))
        return torch.cat(columns, dim=1)

    def rows(self, values: Tensor, offsets: Tensor) -> Tensor:
        """See `TableBatch.rows`: the kernel was made for one of the two."""
        return self.forward(values, offsets)

    def step(self) -> None:
        """See `TableBatch.step`."""

    def set_learning_rate(self, learning_rate: float) -> None:
        """See `TableBatch.set_learning_rate`."""
        for call in self._calls:
            call.set_learning_rate(learning_rate)

    def _stored(self, member: int) -> dict[str, Tensor]:
        squares = {"sum_of_squares": self._squares[member]} if self._squares else {}
        return {"weight": self._weights[member], **squares}


def _padded(dim: int) -> int:
    """Columns that are stored."""
    return -(-dim // COLUMN_MULTIPLE) * COLUMN_MULTIPLE


def _gradient_factor(member: LocalTable, options: TableOptions, device: torch.device) -> float:
    """What the gradient is multiplied by, and the learning rate divided by, on GPUs."""
    divides_by_all = device.type != "cpu" and options.optimizer == "rowwise_adagrad"
    return math.sqrt(_padded(member.dim) / member.dim) if divides_by_all else 1.0


class _Call:
    """Some members in one flat storage, padded, with their optimiser.

    It is no module: weights would be parameters that someone else could reduce, update, count or move.

    Args:
        members, lookups, options, pooled, device: see `FBGEMMTableBatch`.
        factor: `_gradient_factor` of the members.
    """

    def __init__(
        self,
        members: Sequence[LocalTable],
        lookups: list[int],
        options: TableOptions,
        factor: float,
        *,
        pooled: bool,
        device: torch.device,
    ) -> None:
        on_cpu = device.type == "cpu"
        location = EmbeddingLocation.HOST if on_cpu else EmbeddingLocation.DEVICE
        compute = ComputeDevice.CPU if on_cpu else ComputeDevice.CUDA
        # FBGEMM takes a batch without any row for one that lives elsewhere: each member gets one row at least.
        shapes = [(max(member.num_rows, 1), _padded(member.dim)) for member in members]
        self.num_lookups = len(lookups)
        self._factor = factor
        self._learning = _CPULearning(members, lookups, shapes, options, pooled=pooled) if on_cpu else None
        self._kernel = SplitTableBatchedEmbeddingBagsCodegen(
            [(*shape, location, compute) for shape in shapes],
            feature_table_map=lookups,
            weights_precision=SparseType.FP16 if options.precision == "fp16" else SparseType.FP32,
            output_dtype=SparseType.FP32,
            optimizer=EmbOptimType.EXACT_SGD if on_cpu else _OPTIMIZERS[options.optimizer],
            learning_rate=options.learning_rate / factor,
            eps=options.eps,
            stochastic_rounding=False,
            pooling_mode=PoolingMode.SUM if pooled else PoolingMode.NONE,
            # The collection has checked the ids, all of them at once, where the user's batch came in.
            bounds_check_mode=BoundsCheckMode.NONE,
            device=device,
            preallocated_host_buffers={"weights": self._learning.tables} if self._learning else None,
        )
        self.weights: list[Tensor] = [
            values[: member.num_rows, : member.dim]
            for values, member in zip(self._kernel.split_embedding_weights(), members, strict=True)
        ]
        # One state for each member; no lists at all where the optimiser keeps nothing.
        states = self._learning.states() if self._learning else [s for (s,) in self._kernel.split_optimizer_states()]
        self.squares: list[Tensor] = [
            squares[: member.num_rows] if squares.ndim == 1 else squares[: member.num_rows, : member.dim]
            for squares, member in zip(states, members, strict=False)
        ]
        self._columns: Tensor | None = None
        """Where a result has what was asked for; None for everywhere."""
        dims = [members[lookup].dim for lookup in lookups] if pooled else [members[0].dim]
        if any(dim != _padded(dim) for dim in dims):
            starts = accumulate(map(_padded, dims), initial=0)
            columns = [start + column for start, dim in zip(starts, dims, strict=False) for column in range(dim)]
            self._columns = torch.tensor(columns, device=device)

    def __call__(self, values: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
        """See `TableBatch.forward`."""
        if self._learning is not None and torch.is_grad_enabled():
            learnt: Tensor = _LearnOnCPU.apply(  # type: ignore[no-untyped-call]
                self._look_up, self._learning, values, offsets, weights, torch.empty(0, requires_grad=True)
            )
            return learnt
        found = self._look_up(values, offsets, weights)
        return found if self._factor == 1 else _ScaleGradient.apply(found, self._factor)  # type: ignore[no-untyped-call]

    def _look_up(self, values: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
        found: Tensor = self._kernel(values, offsets, weights)
        return found if self._columns is None else found.index_select(1, self._columns)

    def set_learning_rate(self, learning_rate: float) -> None:
        """See `TableBatch.set_learning_rate`."""
        if self._learning is not None:
            self._learning.learning_rate = learning_rate
        else:
            self._kernel.set_learning_rate(learning_rate / self._factor)


class _CPULearning:
    """Storage of a call's members in memory of the CPU, and how they learn on all of torch's threads.

    Args:
        members, lookups, options, pooled: of the call.
        shapes: rows and columns that are stored of each member.
    """

    def __init__(
        self,
        members: Sequence[LocalTable],
        lookups: Sequence[int],
        shapes: Sequence[tuple[int, int]],
        options: TableOptions,
        *,
        pooled: bool,
    ) -> None:
        self.learning_rate = options.learning_rate
        self._eps, self._pooled = options.eps, pooled
        kept = [{"sgd": 0, "rowwise_adagrad": 1, "adagrad": stored}[options.optimizer] for _, stored in shapes]
        starts, squares_starts = (
            list(accumulate((rows * per_row for (rows, _), per_row in zip(shapes, widths, strict=True)), initial=0))
            for widths in ([stored for _, stored in shapes], kept)
        )
        # From NumPy, which asks the system for huge pages: rows at random places are found faster.
        half = options.precision == "fp16"
        self.tables = torch.from_numpy(np.zeros(starts[-1], np.float16 if half else np.float32))
        """Flat, in the order of the members."""
        self._squares = np.zeros(squares_starts[-1], np.float32)
        self._shapes = [shape if many > 1 else shape[:1] for shape, many in zip(shapes, kept, strict=True) if many]
        firsts = [bisect_left(lookups, member) for member in range(len(members) + 1)]
        self._members = np.array(
            [
                (*ends, rows, member.dim, stored, start, squares_start, many)
                for ends, (rows, stored), member, start, squares_start, many in zip(
                    pairwise(firsts), shapes, members, starts, squares_starts, kept, strict=False
                )
            ],
            np.int64,
        )
        self._columns = np.array([*accumulate((members[lookup].dim for lookup in lookups[:-1]), initial=0)], np.int64)

    def states(self) -> list[Tensor]:
        """What the optimiser keeps of each member: views, [rows] or [rows, columns stored]."""
        flat = torch.from_numpy(self._squares).split([math.prod(shape) for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(flat, self._shapes, strict=True)]

    def learn(
        self, values: Tensor, offsets: Tensor, weights: Tensor | None, gradients: Tensor, learning_rate: float
    ) -> None:
        """Apply the gradients of what was found, [samples, columns] or unpooled [n, columns]."""
        tables = self.tables.numpy()
        arguments = (
            tables.view(np.uint16) if tables.dtype == np.float16 else tables,
            self._squares,
            self._members,
            self._columns,
            values.numpy(),
            offsets.long().numpy(),
            None if weights is None else weights.detach().contiguous().numpy(),
            gradients.float().contiguous().numpy(),
            self._pooled,
            np.float32(learning_rate),
            np.float32(self._eps),
        )
        parts = torch.get_num_threads()

        def learn_parts(first: int, last: int) -> None:
            for part in range(first, last):
                learn(*arguments, part, parts)

        in_parallel(learn_parts, parts, chunks_per_thread=1)


class _LearnOnCPU(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        look_up: Callable[[Tensor, Tensor, Tensor | None], Tensor],
        learning: _CPULearning,
        values: Tensor,
        offsets: Tensor,
        weights: Tensor | None,
        _anchor: Tensor,
    ) -> Tensor:
        context.learning, context.learning_rate = learning, learning.learning_rate
        context.save_for_backward(values, offsets, weights)
        return look_up(values, offsets, weights)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[None, ...]:
        context.learning.learn(*context.saved_tensors, gradient, context.learning_rate)
        return (None,) * 6


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor, factor: float) -> Tensor:
        context.factor = factor
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * context.factor, None
