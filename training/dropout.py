"""Dropout whose choices do not depend on which rank computes a row, nor on when.

Whether column c of vertex v's row is kept is a pure function of (seed, epoch, step, layer, original id of
v, c), with the mixing function of `windrow.comm.random`:

    row key  = hash_ids(stream_key(seed, DROPOUT, epoch, step, layer), v)
    bits     = mix64(row key ^ mix64(floor(c / 4) + GOLDEN))       one 64-bit word for four columns
    kept     = 16 bits of the word, from bit 16 (c mod 4) up, are at least round(65536 p)

So the probability is rounded to a multiple of 1/65536. What is kept is divided by 1 - p (after rounding)
and the expectation stays x, as in Srivastava et al. (JMLR 2014). No mask is stored: the backward pass
draws the same bits again, or reads them off the result where a rectifier came first.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from windrow.comm.errors import RecipeError
from windrow.comm.random import GOLDEN, Stream, mixed, signed, stream_key
from windrow.comm.threads import ROWS_AT_ONCE, in_parallel
from windrow.training.dropout_kernels import drop_columns, pass_kept

__all__ = ["DropoutContext", "draws_from_torch", "run_model", "seeded_generator"]

_DECISIONS = 1 << 16

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class DropoutContext:
    """What the choices of one training step depend on."""

    seed: int
    """The run's seed."""
    epoch: int
    """Epoch, from 0."""
    step: int
    """Step inside the epoch, from 0."""
    row_ids: Tensor
    """int64 [inputs], id of each row of the model's input in the user's numbering, on the rows' device.
    The rows of later layers are prefixes of it, since destinations come first."""

    def drop(self, x: Tensor, probability: float, *, layer: int, rectify: bool = False) -> Tensor:
        """Drop entries of `x`, whose rows belong to the first vertices of `row_ids`; differentiable in `x`.

        Args:
            x: floating [rows, columns], rows at most `len(row_ids)`; returned as it is where the probability is 0.
            probability: chance of an entry to be dropped, in [0, 1).
            layer: number of the place in the model where this happens; two places must not share one.
            rectify: drop from max(x, 0) rather than from x; one pass over memory does both.

        Cost: one 64-bit hash for four entries, forward and, without `rectify`, backward.

        Raises:
            RecipeError: the probability is outside [0, 1) or rounds to 1.
        """
        if probability == 0:
            return torch.relu(x) if rectify else x
        threshold = round(probability * _DECISIONS)
        if not 0 <= threshold < _DECISIONS:
            raise RecipeError(f"dropout probability {probability} is outside [0, 1): choose one inside")
        key = stream_key(self.seed, Stream.DROPOUT, self.epoch, self.step, layer)
        result: Tensor = _Drop.apply(x, self.row_ids[: len(x)], key, threshold, rectify)  # type: ignore[no-untyped-call]
        return result


def run_model(model: nn.Module, *inputs: Any, dropout: Callable[[], DropoutContext] | None = None) -> Any:
    """Call a model. A parameter ``dropout`` of its forward method gets what that makes, or None in evaluation."""
    if not _takes_dropout(model):
        return model(*inputs)
    return model(*inputs, dropout=None if dropout is None else dropout())


def draws_from_torch(model: nn.Module) -> bool:
    """Whether its forward passes may: it takes no parameter ``dropout``, or it has modules of torch that drop."""
    return not _takes_dropout(model) or any(
        isinstance(module, _DROPOUTS) or (isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout)
        for module in model.modules()
    )


def _takes_dropout(model: nn.Module) -> bool:
    return "dropout" in inspect.signature(model.forward).parameters


@contextmanager
def seeded_generator(key: int, device: torch.device) -> Iterator[None]:
    """Let torch's generators, which `nn.Dropout` draws from, start at a key in here; afterwards they are as before."""
    devices = [device] if device.type == "cuda" else []
    seed = key & (2**63 - 1)  # torch takes signed 64-bit seeds
    with torch.random.fork_rng(devices=devices):
        # torch.manual_seed would note a stack trace at every step for each kind of device that is not there.
        torch.default_generator.manual_seed(seed)
        for each in devices:
            with torch.cuda.device(each):
                torch.cuda.manual_seed(seed)
        yield


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, row_ids: Tensor, key: int, threshold: int, rectify: bool) -> Tensor:  # noqa: FBT001
        out = _scale_or_zero(x.detach(), row_ids, key, threshold, rectify=rectify)
        ctx.save_for_backward(out if rectify else row_ids)
        ctx.key, ctx.threshold, ctx.rectify = key, threshold, rectify
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (kept,) = ctx.saved_tensors
        if not ctx.rectify:
            return (_scale_or_zero(upstream, kept, ctx.key, ctx.threshold, rectify=False), None, None, None, None)
        # An entry passed both exactly where it came out above zero, so nothing is drawn again.
        scale = _DECISIONS / (_DECISIONS - ctx.threshold)
        if not _has_kernel(upstream):
            gradient = torch.ops.aten.threshold_backward(upstream, kept, 0).mul_(scale)
        else:
            gradient = torch.empty_like(kept)
            arrays = (kept.numpy(), upstream.contiguous().numpy(), np.float32(scale), gradient.numpy())
            in_parallel(partial(pass_kept, *arrays), len(kept), at_once=ROWS_AT_ONCE)
        return gradient, None, None, None, None


def _scale_or_zero(x: Tensor, row_ids: Tensor, key: int, threshold: int, *, rectify: bool) -> Tensor:
    if not _has_kernel(x):
        return _drop_anywhere(torch.relu(x) if rectify else x, row_ids, key, threshold)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    drop = partial(
        drop_columns,
        x.contiguous().numpy(),
        row_ids.numpy(),
        np.uint64(key),
        np.uint16(threshold),
        np.float32(_DECISIONS / (_DECISIONS - threshold)),
        np.float32(0 if rectify else -np.inf),
        out.numpy(),
    )
    in_parallel(drop, len(x), at_once=ROWS_AT_ONCE)
    return out


def _has_kernel(x: Tensor) -> bool:
    """Whether compiled loops take it; other devices and dtypes go through torch."""
    return x.device.type == "cpu" and x.dtype == torch.float32


def _drop_anywhere(x: Tensor, row_ids: Tensor, key: int, threshold: int) -> Tensor:
    """The law in torch operations that every device has, for `threshold` = round(65536 p)."""
    row_keys = mixed(mixed(row_ids + signed(GOLDEN)) ^ signed(key))
    groups = mixed(torch.arange((x.shape[1] + 3) // 4, device=x.device) + signed(GOLDEN))
    words = mixed(row_keys.unsqueeze(1) ^ groups)
    shifts = torch.arange(0, 64, 16, device=x.device)
    decisions = (words.unsqueeze(2) >> shifts) & (_DECISIONS - 1)
    kept = decisions.flatten(1)[:, : x.shape[1]] >= threshold
    return x * (kept * (_DECISIONS / (_DECISIONS - threshold))).to(x.dtype)
