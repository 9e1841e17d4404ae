"""Sum gradients over ranks while the backward pass still runs.

As in PyTorch's DistributedDataParallel (Li et al., VLDB 2020): parameters are packed into buckets in reverse
order of registration, which is roughly the order in which the backward pass finishes them; a bucket whose last
gradient has come is all-reduced at once. Unlike there, a rank may skip parameters, or the whole backward pass
(it had no seeds in this step): buckets always start in the same order, and `finish` starts what is left.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from windrow.comm.error_feedback import ErrorFeedback
from windrow.comm.errors import RecipeError
from windrow.comm.transfer import Pending
from windrow.comm.wire import Codec
from windrow.comm.world import World

__all__ = ["GradientReducer", "gradient_strides"]

BUCKET_BYTES = 4 << 20
"""Large enough that latency does not show, small enough that the first bucket starts early."""


def gradient_strides(parameter: Tensor) -> tuple[int, ...]:
    """Order in memory that PyTorch expects of a gradient: the parameter's, where that has no gaps, else rows first."""
    return torch.empty_like(parameter, device="meta").stride()


@dataclass
class _Bucket:
    flat: Tensor
    views: dict[nn.Parameter, Tensor]
    missing: set[nn.Parameter] = field(default_factory=set)
    pending: Pending[Tensor] | None = None
    codec: Codec | None = None


class GradientReducer:
    """Sums the gradients of a model's parameters over all ranks.

    Use, in this order, at every step and on every rank::

        reducer.start()          # gradients are zero from here on
        loss.backward()          # or not, on a rank without seeds
        reducer.finish()         # parameter.grad now holds the sum over all ranks
        optimizer.step()

    Each gradient is sent off as soon as it has come, so that there is one backward pass in a step; others before it run
    inside `holding`, and what they gave is added up here first. The loss must already be divided by the number of all
    samples: gradients are summed, not averaged.
    ``parameter.grad`` is a view into a bucket, so nothing is copied; never set it to None.

    Args:
        world: all its ranks hold the same parameters, in the same order. One of `windrow.comm.hierarchy.hierarchical`
            sums within hosts first.
        parameters: those that require a gradient are reduced.
        codec: how float32 gradients travel (`World.start_all_reduce`), all others as they are; must agree. None: as
            they are.
        bucket_bytes: a bucket is closed once it holds this much.

    Raises:
        RecipeError: a parameter that learns has fewer than 32 bits.
    """

    def __init__(
        self,
        world: World,
        parameters: Iterable[nn.Parameter],
        *,
        codec: Codec | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._world = world
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[nn.Parameter, _Bucket] = {}
        self._next = 0
        self._holds = False
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        for short in {parameter.dtype for parameter in trained} & {torch.float16, torch.bfloat16}:
            raise RecipeError(
                f"weights in {short} learn nothing from small gradients: keep those that learn in float32, and set "
                'training.autocast = "bf16" to compute in bf16'
            )
        for group in _pack(list(reversed(trained)), bucket_bytes):
            self._add_bucket(group, codec)
        self.shapes = [list(parameter.shape) for parameter in trained]
        """Of what is reduced: residuals belong to these."""
        self._hooks = [p.register_post_accumulate_grad_hook(self._on_gradient) for p in trained]

    def start(self) -> None:
        """Zero all gradients and expect a backward pass."""
        assert all(bucket.pending is None for bucket in self._buckets), "finish() the last step first"
        self._next = 0
        for bucket in self._buckets:
            bucket.flat.zero_()
            bucket.missing = set(bucket.views)
            for parameter, view in bucket.views.items():
                parameter.grad = view

    @contextmanager
    def holding(self, hold: bool = True) -> Iterator[None]:  # noqa: FBT001, FBT002  # the only argument
        """A backward pass in here sends nothing: the next one does, with the sum of both. False: as usual."""
        self._holds = hold
        try:
            yield
        finally:
            self._holds = False

    def finish(self) -> None:
        """Wait until every gradient is the sum over all ranks, or for `DeadlineError`. Collective."""
        while self._next < len(self._buckets):
            self._start_bucket()
        for bucket in self._buckets:
            # While this one is waited for, others should be on their way, also those that have a second half to send.
            self._push()
            assert bucket.pending is not None
            bucket.pending.wait()
            bucket.pending = None

    def residuals(self) -> list[Tensor]:
        """What this rank has left out of its sums and is still to add, bucket by bucket, on the CPU; empty for most."""
        return [codec.residual.cpu() for codec in self._feedback if codec.residual is not None]

    def load_residuals(self, residuals: Sequence[Tensor]) -> None:
        """Go on with what `residuals` gave on this rank of as many, for the same `shapes`."""
        for codec, residual in zip(self._feedback, residuals, strict=False):
            codec.residual = residual

    @property
    def _feedback(self) -> list[ErrorFeedback]:
        return [bucket.codec for bucket in self._buckets if isinstance(bucket.codec, ErrorFeedback)]

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _add_bucket(self, parameters: list[nn.Parameter], codec: Codec | None) -> None:
        first, sizes = parameters[0], [p.numel() for p in parameters]
        flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        parts = zip(parameters, flat.split(sizes), strict=True)
        bucket = _Bucket(flat, {p: part.as_strided(p.shape, gradient_strides(p)) for p, part in parts})
        if codec is not None and flat.dtype == torch.float32:
            bucket.codec = codec.for_vector()
        self._buckets.append(bucket)
        self._bucket_of.update(dict.fromkeys(parameters, bucket))

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        if self._holds:
            return
        if self._bucket_of[parameter].pending is not None:
            raise RuntimeError(
                "a gradient came while its bucket was already being summed over the ranks: run all backward "
                "passes between start() and finish() but the last one inside holding(), or add up several losses first"
            )
        self._bucket_of[parameter].missing.discard(parameter)
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._start_bucket()
        self._push()

    def _push(self) -> None:
        """MPI moves data only inside its own calls, so each new gradient also pushes the earlier buckets on."""
        for bucket in self._buckets[: self._next]:
            if bucket.pending is not None:
                bucket.pending.test()

    def _start_bucket(self) -> None:
        bucket = self._buckets[self._next]
        bucket.pending = self._world.start_all_reduce(bucket.flat, stage="gradients", codec=bucket.codec)
        self._next += 1


def _pack(parameters: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Split a list into consecutive groups of one dtype and device, each closed once it holds `bucket_bytes`."""
    groups: list[list[nn.Parameter]] = []
    room = 0
    for parameter in parameters:
        last = groups[-1][-1] if groups else parameter
        if room <= 0 or (last.dtype, last.device) != (parameter.dtype, parameter.device):
            groups.append([])
            room = bucket_bytes
        groups[-1].append(parameter)
        room -= parameter.nbytes
    return groups
