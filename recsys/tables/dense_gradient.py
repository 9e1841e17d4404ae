"""Tables with a gradient as large as themselves: lookup by sums of rows, and row-wise Adagrad.

For what moves every row (adam, weight decay), and for tables of which every rank holds a copy.
The updates are those of `windrow.recsys.tables.fbgemm`, applied to every row. Where a row was not looked up its
gradient is zero, and but for those two it stays as it is.

A large table of which few rows are looked up in a step can have a gradient of these rows alone (PyTorch's sparse
tensors): its members learn *by row*, with the same updates.

PyTorch's ``embedding_bag`` sums rows of one table; its dense gradient sorts the ids first, which costs several times
the additions themselves. So rows of several tables are summed here by compiled loops.

Row-wise Adagrad has one accumulator for each row instead of one for each value. The mean over a row's D columns takes
the place of the single square (as in FBGEMM's and TorchRec's kernels)::

    accumulator[row] += (1 / D) * sum over columns of gradient[row, column] ** 2
    weight[row]      -= learning_rate * gradient[row] / (sqrt(accumulator[row]) + eps)

Adagrad itself: Duchi, Hazan, Singer: Adaptive Subgradient Methods, JMLR 2011.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, embedding_bag
from torch.optim import SGD, Adagrad, Adam, Optimizer

from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import TableBatch
from windrow.training.shard_files import LocalTable

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = ["DenseGradientTableBatch", "pool_rows", "segment_bounds"]

_STATE_NAMES = {"sum": "sum_of_squares", "exp_avg": "first_moment", "exp_avg_sq": "second_moment", "step": "step"}
"""PyTorch's name of a state -> ours."""


class DenseGradientTableBatch(TableBatch):
    """Members are float32 parameters, with PyTorch's optimisers and row-wise Adagrad.

    Where ranks hold copies, ``GradientReducer(world, batch.parameters())`` sums the gradients between the backward
    pass and `step`. Values are zero until `initialise` or `load_state` writes them.

    Args:
        members, lookups, pooled, replicated: see `TableBatch`.
        options: optimiser and its settings; precision must be fp32.
        by_row: members that learn by row; none where options move every row.
        elsewhere: those of them that someone else changes, with the state that is kept here.
        device: of everything. The batch cannot move later: the optimiser state would stay behind.
    """

    def __init__(
        self,
        members: tuple[LocalTable, ...],
        lookups: tuple[int, ...],
        options: TableOptions,
        *,
        pooled: bool = True,
        replicated: bool = False,
        by_row: Collection[int] = (),
        elsewhere: Collection[int] = (),
        device: torch.device | None = None,
    ) -> None:
        super().__init__(members, lookups, pooled=pooled, replicated=replicated)
        assert options.dtype == torch.float32, "dense gradients are fp32"
        assert not (by_row and options.moves_every_row), f"{options.optimizer} moves every row"
        self._weights = nn.ParameterList(
            nn.Parameter(torch.zeros(member.num_rows, member.dim, device=device)) for member in members
        )
        self._parameters_in_order = tuple(self._weights)
        self._keeps_steps = options.optimizer == "adam"
        self._moves_every_row = options.moves_every_row
        self._by_row = frozenset(by_row)
        self.dense_parameters = [part for n, part in enumerate(self._parameters_in_order) if n not in by_row]
        """Those with a dense gradient, which ranks that hold copies sum before `step`."""
        self.row_parameters = [self._parameters_in_order[n] for n in sorted(set(by_row) - set(elsewhere))]
        """Those that learn by row, here."""
        self._optimizers = [_make_optimizer(self.dense_parameters, options)] if self.dense_parameters else []
        if by_row:
            self._optimizers.append(_ByRow([self._parameters_in_order[n] for n in sorted(by_row)], options))

    def forward(self, values: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Tensor:
        """See `TableBatch.forward`."""
        tables = self._parameters_in_order
        return pool_rows(tables, self.lookups, values, offsets, per_sample_weights, by_row=self._by_row)

    def rows(self, values: Tensor, offsets: Tensor) -> Tensor:
        """See `TableBatch.rows`."""
        cut = _cut(self.lookups, offsets)
        tables = self._parameters_in_order
        return torch.cat([embedding(values[i:j], tables[n], sparse=n in self._by_row) for n, _, i, j in cut])

    def step(self) -> None:
        """See `TableBatch.step`. Reads and writes every row of what does not learn by row."""
        if self._moves_every_row:
            # By past moments or by decay: so a missing gradient is a zero one, never a skipped step.
            for parameter in self._parameters_in_order:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        for optimizer in self._optimizers:
            optimizer.step()
        # Copies keep theirs, which may be views into the bucket in which ranks sum them; others would be filled with
        # zeros only to be added to.
        if self.dense_parameters:
            self._optimizers[0].zero_grad(set_to_none=not self.replicated)
        for parameter in self.row_parameters:
            parameter.grad = None

    def sum_row_gradients(self, world: "World", *, stage: str) -> None:
        """Sum the gradients of what learns by row over ranks that hold copies, in their order. Collective.

        Cost: each rank sends the rows that it looked up to all others, in three messages.
        """
        if not self.row_parameters:
            return
        rows: list[Tensor] = []
        values: list[Tensor] = []
        for parameter in self.row_parameters:
            mine = None if parameter.grad is None else parameter.grad.coalesce()
            rows.append(parameter.new_empty(0, dtype=torch.int64) if mine is None else mine.indices()[0])
            values.append(parameter.new_empty(0) if mine is None else mine.values().flatten())
        counts = torch.tensor([len(found) for found in rows], device=rows[0].device)
        widths = [parameter.shape[1] for parameter in self.row_parameters]
        all_rows: list[tuple[Tensor, ...]] = []
        all_values: list[tuple[Tensor, ...]] = []
        gathered = [world.all_gather(part, stage=stage) for part in (counts, torch.cat(rows), torch.cat(values))]
        for of_rank, rows_of_rank, values_of_rank in zip(*gathered, strict=True):
            numbers = of_rank.tolist()
            all_rows.append(rows_of_rank.split(numbers))
            all_values.append(values_of_rank.split([n * width for n, width in zip(numbers, widths, strict=True)]))
        for parameter, found, changes in zip(
            self.row_parameters, zip(*all_rows, strict=True), zip(*all_values, strict=True), strict=True
        ):
            parameter.grad = torch.sparse_coo_tensor(
                torch.cat(found)[None],
                torch.cat(changes).view(-1, parameter.shape[1]),
                parameter.shape,
                check_invariants=False,
            )

    def renew(self, member: int, rows: Tensor, like: Sequence[int]) -> None:
        """Have rows [n] of a member go on from values of their own at the pace of other members.

        Squares of gradients that the optimiser keeps of them become the mean of those of the others: with none, Adagrad
        would move each number by the whole learning rate. What else it keeps becomes zero.
        """
        for name, state in self._stored(member).items():
            if name == "weight" or not state.ndim:
                continue
            others = [self._stored(other)[name] for other in like]
            is_square = name != "first_moment"
            mean = sum(float(other.sum()) for other in others) / sum(other.numel() for other in others)
            state[rows] = mean if is_square else 0

    def share_rows(self, world: "World", member: int, rows: Tensor, *, stage: str) -> None:
        """Give rows [n] of a member the values and the state that they have on rank 0. Collective.

        Ranks of other processors, or with another number of threads, may have rounded them otherwise.
        """
        states = [state for state in self._stored(member).values() if state.ndim]
        found = world.broadcast_object([state[rows].cpu() for state in states], root=0, stage=stage)
        for state, values in zip(states, found, strict=True):
            state[rows] = values.to(state.device)

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return float(self._optimizers[0].param_groups[0]["lr"])

    def set_learning_rate(self, learning_rate: float) -> None:
        """See `TableBatch.set_learning_rate`."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate

    def _stored(self, member: int) -> dict[str, Tensor]:
        parameter = self._parameters_in_order[member]
        states = [optimizer.state[parameter] for optimizer in self._optimizers if parameter in optimizer.state]
        kept = {
            _STATE_NAMES[name]: value
            for state in states
            for name, value in state.items()
            if self._keeps_steps or name != "step"
        }
        return {"weight": parameter.detach(), **kept}


def _make_optimizer(parameters: Sequence[nn.Parameter], options: TableOptions) -> Optimizer:
    """The optimiser of a section, with its state in place from the start."""
    rate, eps, decay = options.learning_rate, options.eps, options.weight_decay
    match options.optimizer:
        case "sgd":
            return SGD(parameters, lr=rate, weight_decay=decay, fused=True)
        case "rowwise_adagrad":
            return _RowWiseAdagrad(parameters, lr=rate, eps=eps, weight_decay=decay)
        case "adagrad":
            # PyTorch has a fused Adagrad for CPUs only.
            fused = parameters[0].device.type == "cpu"
            return Adagrad(parameters, lr=rate, eps=eps, weight_decay=decay, fused=fused)
        case "adam":
            adam = Adam(parameters, lr=rate, eps=eps, betas=options.betas, weight_decay=decay, fused=True)
            for parameter in parameters:
                adam.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter, requires_grad=False),
                    "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
                }
            return adam


class _RowWiseAdagrad(Optimizer):
    """The state of a parameter [rows, dim] is ``sum``, [rows] float32; rows with a zero gradient keep their values."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, lr: float, eps: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "eps": eps, "weight_decay": weight_decay})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["sum"] = parameter.new_zeros(len(parameter))

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # nobody gives it a closure
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                gradient, accumulator = weight.grad, self.state[weight]["sum"]
                if group["weight_decay"]:
                    gradient = gradient.add(weight, alpha=group["weight_decay"])
                accumulator.add_(torch.linalg.vecdot(gradient, gradient), alpha=1 / weight.shape[1])
                scale = accumulator.sqrt().add_(group["eps"]).reciprocal_().mul_(-group["lr"])
                weight.addcmul_(gradient, scale[:, None])


class _ByRow(Optimizer):
    """The formulas of `windrow.recsys.tables.fbgemm` for sparse gradients; the state is ``sum``, as that of others."""

    def __init__(self, parameters: Sequence[nn.Parameter], options: TableOptions) -> None:
        super().__init__(parameters, {"lr": options.learning_rate})
        self._kind, self._eps = options.optimizer, options.eps
        for parameter in parameters:
            if self._kind != "sgd":
                shape = parameter.shape if self._kind == "adagrad" else parameter.shape[:1]
                self.state[parameter]["sum"] = parameter.new_zeros(shape)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # nobody gives it a closure
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                if weight.device.type == "cpu":
                    self._learn(weight, weight.grad, group["lr"])
                    continue
                gradient = weight.grad.coalesce()
                rows, change = gradient.indices()[0], gradient.values()
                if self._kind != "sgd":
                    squares, accumulator = change.square(), self.state[weight]["sum"]
                    accumulator.index_add_(0, rows, squares if accumulator.ndim > 1 else squares.mean(1))
                    divisor = accumulator[rows].sqrt().add_(self._eps)
                    change = change / (divisor if divisor.ndim > 1 else divisor[:, None])
                weight.index_add_(0, rows, change, alpha=-group["lr"])

    def _learn(self, weight: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """The same in one loop."""
        from windrow.recsys.tables.table_kernels import learn

        # The public names would sort first.
        (rows,), change = gradient._indices().numpy(), gradient._values().contiguous().numpy()  # noqa: SLF001
        accumulator = self.state[weight]["sum"].numpy() if self._kind != "sgd" else np.empty(0, np.float32)
        shape, kept = weight.shape, accumulator.size // max(len(weight), 1)
        member = np.array([(0, 1, shape[0], shape[1], shape[1], 0, 0, kept)], np.int64)
        offsets, columns = np.array([0, len(rows)]), np.zeros(1, np.int64)
        tables, numbers = weight.numpy().reshape(-1), (np.float32(learning_rate), np.float32(self._eps))
        learn(tables, accumulator.reshape(-1), member, columns, rows, offsets, None, change, False, *numbers, 0, 1)  # noqa: FBT003


def pool_rows(
    tables: Sequence[Tensor],
    lookups: tuple[int, ...],
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    *,
    by_row: Collection[int] = (),
) -> Tensor:
    """Sum rows of bags: see `TableBatch.forward`; `lookups` name the table of each segment, [rows, dim] float32.

    Differentiable towards the tables, whose gradients are dense, or of the rows that were looked up: sparse tensors.
    """
    if values.device.type == "cpu":
        pooled: Tensor = _PoolRows.apply(lookups, by_row, values, offsets.long(), weights, *tables)  # type: ignore[no-untyped-call]
        return pooled
    columns = [
        embedding_bag(
            values[first:last],
            tables[number],
            bags - first,
            mode="sum",
            sparse=number in by_row,
            per_sample_weights=None if weights is None else weights[first:last],
            include_last_offset=True,
        )
        for number, bags, first, last in _cut(lookups, offsets)
    ]
    return torch.cat(columns, dim=1)


def segment_bounds(offsets: Tensor, segments: int) -> list[int]:
    """Where the values of each segment begin, and where the last ends; see `TableBatch.forward`."""
    num_samples = (len(offsets) - 1) // segments
    return offsets[::num_samples].tolist() if num_samples else [0] * (segments + 1)


def _cut(lookups: tuple[int, ...], offsets: Tensor) -> Iterator[tuple[int, Tensor, int, int]]:
    """Of each lookup the table, the offsets of its bags, the first and the last; waits once, to learn these."""
    num_samples, bounds = (len(offsets) - 1) // len(lookups), segment_bounds(offsets, len(lookups))
    for number, table in enumerate(lookups):
        bags = offsets[number * num_samples : (number + 1) * num_samples + 1]
        yield table, bags, bounds[number], bounds[number + 1]


class _PoolRows(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        lookups: tuple[int, ...],
        by_row: Collection[int],
        values: Tensor,
        offsets: Tensor,
        weights: Tensor | None,
        *tables: Tensor,
    ) -> Tensor:
        from windrow.recsys.tables.table_kernels import sum_rows

        context.lookups, context.by_row = lookups, by_row
        context.save_for_backward(values, offsets, weights, *tables)
        num_samples = (len(offsets) - 1) // len(lookups)
        pooled = torch.empty(num_samples, sum(tables[table].shape[1] for table in lookups))
        for table, bags, column in _segments(lookups, offsets, tables):
            sum_rows(tables[table].detach().numpy(), values.numpy(), bags, _array(weights), pooled.numpy(), column)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(context: Any, pooled_gradient: Tensor) -> tuple[Tensor | None, ...]:
        from windrow.recsys.tables.table_kernels import add_to_rows, distinct

        values, offsets, weights, *tables = context.saved_tensors
        arriving = pooled_gradient.contiguous().numpy()
        places = values.numpy().astype(np.int64) if context.by_row else values.numpy()
        segments = _segments(context.lookups, offsets, tables)
        found: dict[int, Tensor] = {}
        for number in context.by_row:
            # Segments of a table are neighbours; its rows are numbered by those that are there.
            of_table = [bags for table, bags, _ in segments if table == number]
            own = slice(of_table[0][0], of_table[-1][-1])
            rows, places[own], _ = distinct(places[own], len(tables[number]))
            found[number] = torch.from_numpy(rows)
        gradients = [
            table.new_zeros(len(found[number]), table.shape[1]) if number in found else torch.zeros_like(table)
            for number, table in enumerate(tables)
        ]
        for table, bags, column in segments:
            add_to_rows(gradients[table].numpy(), places, bags, _array(weights), arriving, column)
        for number, looked_up in found.items():
            gradients[number] = torch.sparse_coo_tensor(
                looked_up[None], gradients[number], tables[number].shape, check_invariants=False, is_coalesced=True
            )
        return None, None, None, None, None, *gradients


def _segments(
    lookups: tuple[int, ...], offsets: Tensor, tables: tuple[Tensor, ...] | list[Tensor]
) -> list[tuple[int, np.ndarray[Any, np.dtype[np.int64]], int]]:
    """(table, where the bags of its segment begin, first column of the result) of each lookup."""
    num_samples = (len(offsets) - 1) // len(lookups)
    starts = offsets.numpy()
    segments = []
    column = 0
    for number, table in enumerate(lookups):
        segments.append((table, starts[number * num_samples : (number + 1) * num_samples + 1], column))
        column += tables[table].shape[1]
    return segments


def _array(weights: Tensor | None) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.empty(0, dtype=np.float32) if weights is None else weights.detach().contiguous().numpy()
