"""Rows in 8 or 4 bits a number, in training: what a row learns is rounded up or down by chance, right on average.

    stored row      scale, low, codes: 8 or 4 bits each, packed into 32-bit words           8 + D bits / 8 bytes
    vector          low + scale * code

A change is mostly far smaller than the step between two codes: rounded to nearest it would be lost. So a number between
two codes becomes the upper one with the chance that its distance from the lower says (stochastic rounding; Gupta et
al., Deep Learning with Limited Numerical Precision, ICML 2015). Chance depends on step, row and column alone, so that
copies on several ranks stay equal. Scale and low are of the row after each change.

Words are stored as float32 numbers with the same bits, so that they are saved, sent and served as those of other forms.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from windrow.comm.errors import RecipeError
from windrow.comm.random import GOLDEN, mixed, signed
from windrow.comm.threads import ROWS_AT_ONCE, in_parallel
from windrow.recsys.tables.forms import Form, distinct, refuse_unless_smaller, scale_of, whole_table
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import fill_slices, table_key
from windrow.training.shard_files import LocalTable, StateTensor

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = ["QuantisedRows", "pack", "unpack"]

HEAD = 2
"""Words before the codes: scale and low."""
CHANCE_BITS = 24
"""Of a random number; float32 holds as many."""
FILLED_AT_ONCE = 1 << 14


class QuantisedRows(Form):
    """One table with a row for each id, in few bits.

    Args:
        table: all of it.
        options: ``form``, "int8" or "int4"; ``optimizer``, whose state is float32.

    Raises:
        RecipeError: it would be no smaller; or the optimiser moves rows that were not looked up, or keeps as many
            numbers as the table has.
    """

    can_learn_alone = needs_to_learn_alone = True
    by_row = (0,)

    def __init__(self, table: LocalTable, options: TableOptions) -> None:
        self._bits = {"int8": 8, "int4": 4}[options.form]
        if options.moves_every_row or options.optimizer == "adagrad":
            raise RecipeError(
                f'table {table.name!r}: form = "{options.form}" does not go with optimizer = "{options.optimizer}" and '
                f"weight_decay = {options.weight_decay:g}: rows in few bits learn when they are looked up, with one "
                "number of optimiser state at most. Take rowwise_adagrad or sgd without weight_decay"
            )
        stored = whole_table(f"{table.name}.{options.form}", table.num_rows, HEAD + -(-table.dim * self._bits // 32))
        refuse_unless_smaller(table, [stored], options.form)
        super().__init__([table], [stored])
        self._kind = options.optimizer
        self._scale = scale_of(options, table)
        self._key = table_key(stored.name, 0)
        self._steps, self._device = 0, torch.device("cpu")

    def rows(self, table: int, ids: Tensor, stored: Sequence[Tensor]) -> Tensor:
        """See `Form.rows`. Gradients wait for `learn`."""
        del table
        found: Tensor = _Rows.apply(self, ids, stored[0])  # type: ignore[no-untyped-call]
        return found

    def unpacked(self, words: Tensor, ids: Tensor) -> Tensor:
        """Vectors [n, dim] of the stored rows of some ids."""
        if words.device.type != "cpu":
            return unpack(words[ids], self.tables[0].dim, self._bits)
        from windrow.recsys.tables.quantised_kernels import unpack_rows

        found, given = torch.empty(len(ids), self.tables[0].dim), _as_arrays(words)
        places, target = ids.numpy(), found.numpy()
        in_parallel(
            lambda first, last: unpack_rows(*given, places[first:last], self._bits, target[first:last]),
            len(ids),
            at_once=ROWS_AT_ONCE,
        )
        return found

    def first_values(self, seed: int) -> list[Tensor]:
        """See `Form.first_values`: those of the dense table, to nearest."""
        (table,) = self.tables
        found = torch.empty(table.num_rows, self.stored[0].dim)
        for start in range(0, table.num_rows, FILLED_AT_ONCE):
            piece = replace(table, rows=(start, min(start + FILLED_AT_ONCE, table.num_rows)))
            values = torch.empty(piece.num_rows, table.dim)
            fill_slices(values, piece, self._scale, seed)
            found[slice(*piece.rows)] = pack(values, self._bits)
        return [found]

    def nearest(self, tables: Sequence[Tensor]) -> list[Tensor]:
        """See `Form.nearest`."""
        return [torch.cat([pack(values, self._bits) for values in tables[0].split(FILLED_AT_ONCE)])]

    def start(self, stored: Sequence[Tensor]) -> None:
        """See `Form.start`."""
        self._steps, self._device = 0, stored[0].device

    def gather(self, world: "World", *, stage: str) -> None:
        """See `Form.gather`."""
        device, (table,) = self._device, self.tables
        nothing = (torch.empty(0, dtype=torch.int64, device=device), torch.empty(0, table.dim, device=device))
        mine = [torch.cat(parts) for parts in zip(nothing, *self.waiting, strict=True)]
        ids, gradients = (torch.cat(world.all_gather(part, stage=stage)) for part in mine)
        self.waiting = [(ids, gradients)]

    def learn(self, stored: Sequence[Tensor], kept: Sequence[Tensor], learning_rate: float, eps: float) -> None:
        """See `Form.learn`."""
        self._steps += 1
        if not self.waiting:
            return
        ids, arriving = self.take_waiting()
        found, places, _ = distinct(ids, self.tables[0].num_rows)
        change = arriving.new_zeros(len(found), arriving.shape[1])
        if change.device.type == "cpu":
            change.index_add_(0, places, arriving)
        else:
            # `index_add_` adds in any order there, and copies of the table must stay equal.
            change.index_put_((places,), arriving, accumulate=True)
        rates = change.new_full((len(found),), learning_rate)
        if self._kind == "rowwise_adagrad":
            squares = kept[0][found] + change.square().mean(1)
            kept[0][found] = squares
            rates /= squares.sqrt() + eps
        if change.device.type != "cpu":
            learnt = self.unpacked(stored[0], found) - rates[:, None] * change
            stored[0][found] = pack(learnt, self._bits, self.chance(found))
            return
        from windrow.recsys.tables.quantised_kernels import learn_rows

        given, key, step = _as_arrays(stored[0]), np.uint64(self._key), np.uint64(self._steps)
        rows, changes, of_rows = found.numpy(), change.numpy(), rates.numpy()

        def learn(first: int, last: int) -> None:
            piece = slice(first, last)
            learn_rows(*given, rows[piece], self._bits, changes[piece], of_rows[piece], key, step)

        in_parallel(learn, len(rows), at_once=ROWS_AT_ONCE)

    def state(self, *, replicated: bool) -> list[StateTensor]:
        """See `Form.state`: the steps, on which chance depends."""
        steps = torch.tensor(self._steps)
        return [StateTensor(piece=self.stored[0], name="steps", tensor=steps, axes=(), replicated=replicated)]

    def load(self, part: StateTensor) -> bool:
        """See `Form.load`."""
        if part.piece != self.stored[0] or part.name != "steps":
            return False
        self._steps = int(part.tensor)
        return True

    def chance(self, ids: Tensor) -> Tensor:
        """[n, dim] numbers of [0, 1) for this step; columns 2 i and 2 i + 1 have the halves of one 64-bit number."""
        of_rows = mixed(signed(self._key) ^ mixed(mixed(ids + signed(GOLDEN)) + self._steps))
        dim = self.tables[0].dim
        pairs = torch.arange(-(-dim // 2), device=ids.device)
        words = mixed(of_rows[:, None] + pairs * signed(GOLDEN))
        halves = torch.stack([words, words >> 32], 2).flatten(1)[:, :dim]
        return (halves & ((1 << CHANCE_BITS) - 1)).float() / (1 << CHANCE_BITS)


def pack(values: Tensor, bits: int, chance: Tensor | None = None) -> Tensor:
    """Stored rows of vectors.

    Args:
        values: [n, dim] float32, finite.
        bits: of each code.
        chance: [n, dim] in [0, 1), above which a number between two codes becomes the lower; None: to nearest.

    Returns:
        [n, 2 + dim bits / 32] float32: scale, low, and bits of words, the first code lowest.
    """
    low, high = values.aminmax(dim=1, keepdim=True)
    scale = (high - low) / ((1 << bits) - 1)
    steps = (values - low) / torch.where(scale > 0, scale, 1)
    codes = (steps + (0.5 if chance is None else chance)).floor().clamp_(0, (1 << bits) - 1).long()
    in_a_word = 32 // bits
    words = math.ceil(codes.shape[1] / in_a_word)
    padded = codes.new_zeros(len(codes), words * in_a_word)
    padded[:, : codes.shape[1]] = codes
    shifts = torch.arange(in_a_word, device=values.device) * bits
    packed = (padded.view(len(codes), words, in_a_word) << shifts).sum(2)
    # Upper halves of 64-bit numbers are zero: the lower ones have the bits.
    lower = packed.view(torch.int32)[:, ::2].contiguous()
    return torch.cat([scale, low, lower.view(torch.float32)], 1)


def unpack(words: Tensor, dim: int, bits: int) -> Tensor:
    """Vectors [n, dim] float32 of what `pack` gave."""
    shifts = torch.arange(32 // bits, device=words.device, dtype=torch.int32) * bits
    codes = (words[:, HEAD:].contiguous().view(torch.int32)[:, :, None] >> shifts) & ((1 << bits) - 1)
    return words[:, 1:HEAD] + words[:, :1] * codes.flatten(1)[:, :dim]


def _as_arrays(words: Tensor) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Stored rows as compiled loops want them."""
    array = words.detach().numpy()
    return array, array.view(np.uint8)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, form: QuantisedRows, ids: Tensor, words: Tensor) -> Tensor:
        context.form = form
        context.save_for_backward(ids)
        return form.unpacked(words.detach(), ids)

    @staticmethod
    @once_differentiable
    def backward(context: Any, arriving: Tensor) -> tuple[None, None, None]:
        (ids,) = context.saved_tensors
        context.form.waiting.append((ids, arriving))
        return None, None, None
