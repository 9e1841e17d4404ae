"""The ranks of a job, and the few collectives that everything else is written with.

The law, as in MPI: every collective is issued by all ranks, in the same order. What must agree is said at
each method; ``debug=True`` checks it before each call (`check_agreement`) and raises the same error on every rank.

A backend implements two transfers, `_post_exchange` (one optional message to and from each peer) and
`_post_all_reduce`; the collectives, their checks, metering and deadlines are written once, here.
"""

import contextlib
import functools
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor

from windrow.comm.errors import CollectiveMismatchError
from windrow.comm.meter import Operation, Tracer, trace_clock_ns
from windrow.comm.transfer import Pending, Request, from_transport, to_transport

if TYPE_CHECKING:
    from windrow.comm.meter import Meter

__all__ = ["DEFAULT_DEADLINE_S", "ReduceOp", "World", "check_agreement"]

T = TypeVar("T")
ReduceOp = Literal["sum", "max", "min"]

DEFAULT_DEADLINE_S = 600.0
"""Seconds that a wait may take: longer than any honest stage, short enough that a hung job ends by itself."""

REDUCIBLE = (torch.float32, torch.float64, torch.int32, torch.int64)


class World(ABC):
    """The ranks of one job.

    Implementations: `windrow.comm.loopback.Loopback` (threads of one process), `windrow.comm.mpi_world.MPIWorld`,
    `windrow.comm.torch_world.TorchWorld` (gloo, NCCL). Open one with `windrow.comm.connect.connect`.
    Collectives of one world must be issued from one thread.

    Attributes:
        rank: this process's number, 0 <= rank < size.
        size: the number of ranks.
        deadline_s: seconds that any wait may take before `DeadlineError`.
        debug: whether ranks agree on (operation, stage, shape, dtype) before each collective.
        meter: counts rows and bytes when set; None costs nothing.
        tracer: records a span of time for each collective when set; None costs nothing.
    """

    def __init__(
        self, rank: int, size: int, *, deadline_s: float = DEFAULT_DEADLINE_S, debug: bool = False
    ) -> None:
        self.rank = rank
        self.size = size
        self.deadline_s = deadline_s
        self.debug = debug
        self.meter: Meter | None = None
        self.tracer: Tracer | None = None

    # What a backend provides.

    @abstractmethod
    def _post_exchange(
        self, sends: Sequence[Tensor], receives: Sequence[Tensor], *, gives_way: bool
    ) -> Request:
        """Start sending ``sends[p]`` to and receiving ``receives[p]`` from every peer p; both ends know the sizes.

        Entry ``rank`` of both is empty, and so may others be: an empty tensor is no message. All are contiguous
        and on a device that `transport_device` accepts. Messages from one rank to another arrive in order, those that
        give way among themselves.
        """

    @abstractmethod
    def _post_all_reduce(self, tensor: Tensor, op: ReduceOp) -> Request:
        """Start reducing `tensor` (contiguous) in place over all ranks."""

    @abstractmethod
    def abort(self, code: int = 1) -> None:
        """End every rank of the job now, with this exit status; the calling rank does not return."""

    def transport_device(self, device: torch.device) -> torch.device:
        """The device a tensor must be on to travel: `device` itself where the backend can send from there."""
        del device
        return torch.device("cpu")

    def background_progress(self) -> contextlib.AbstractContextManager[None]:
        """While the ``with`` block runs, let messages in flight move on although this rank computes.

        Not collective. Where the backend has threads of its own, as here, nothing needs to be done.
        """
        return contextlib.nullcontext()

    def close(self) -> None:  # noqa: B027  # not every backend holds something
        """Release what the backend holds. Collective where the backend says so."""

    # Tensors.

    def start_exchange(
        self,
        sends: Sequence[Tensor],
        receives: Sequence[Tensor],
        *,
        stage: str,
        gives_way: bool = False,
        num_rows: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> Pending[None]:
        """Start one message to and from every peer, sizes known on both ends.

        Messages between two ranks stay in order, and that is all that is asked for: a rank that has nothing for
        another and expects nothing from it need not call, so this is not a collective and debug mode does not
        check it.

        Args:
            sends: one contiguous tensor per rank; entry ``rank`` is ignored; empty means no message.
            receives: one contiguous tensor per rank to be filled; entry ``rank`` is ignored. Rank p's
                ``receives[q]`` must have the byte count of rank q's ``sends[p]``.
            stage: what this traffic is for, named in errors and in the meter; must agree.
            gives_way: whether what is posted later may overtake it, where the backend can arrange that: for what
                is needed later than that. Must agree between sender and receiver.
            num_rows: rows in what is sent to, and in what comes from, each rank, for the meter; None where tensors are
                rows first.

        Returns:
            A handle; the buffers belong to the world until it is done.
        """
        meter = self.meter
        sizes: list[tuple[int, int, int, int, int]] = []
        if meter is not None:
            rows_sent, rows_received = num_rows or (list(map(len, sends)), list(map(len, receives)))
            sizes = [
                (peer, rows_sent[peer], sent.nbytes, rows_received[peer], received.nbytes)
                for peer, (sent, received) in enumerate(zip(sends, receives, strict=True))
                if peer != self.rank
            ]
        nothing = torch.empty(0)
        outgoing = [nothing if p == self.rank else self._outgoing(t) for p, t in enumerate(sends)]
        incoming = [nothing if p == self.rank else self._incoming(t) for p, t in enumerate(receives)]

        def finish() -> None:
            for peer, (transport, wanted) in enumerate(zip(incoming, receives, strict=True)):
                if peer != self.rank:
                    from_transport(transport, wanted)
            # Counted at the end: what is under way when a checkpoint is written is sent again after it.
            if meter is not None:
                for peer, sent_to, bytes_sent, received_from, bytes_received in sizes:
                    meter.record_sent(stage, peer, sent_to, bytes_sent)
                    meter.record_received(stage, peer, received_from, bytes_received)

        end = self._recorded(finish, "exchange", stage, outgoing, incoming)
        return self._pending(
            self._post_exchange(outgoing, incoming, gives_way=gives_way), end, "exchange", stage
        )

    def start_all_to_all(
        self,
        send: Tensor,
        send_counts: Sequence[int],
        receive_counts: Sequence[int],
        *,
        stage: str,
        out: Tensor | None = None,
    ) -> Pending[Tensor]:
        """Start a ragged all-to-all of rows. Collective.

        Args:
            send: [sum(send_counts), ...] rows grouped by the rank they go to; contiguous, any dtype and device.
                Row shape and dtype must agree on all ranks.
            send_counts: rows for each rank.
            receive_counts: rows from each rank; rank p's ``receive_counts[q]`` is rank q's ``send_counts[p]``
                (`all_to_all_counts` tells).
            stage: what this traffic is for; must agree.
            out: [sum(receive_counts), ...] buffer to receive into; a new one if None.

        Returns:
            A handle whose result is [sum(receive_counts), ...], grouped by the rank the rows came from.

        Raises:
            ValueError: counts and rows do not match.
            CollectiveMismatchError: in debug mode, where ranks disagree.
        """
        self._check_counts(send, send_counts, receive_counts)
        self._agree("all_to_all", stage, row_shape=tuple(send.shape[1:]), dtype=str(send.dtype))
        received_rows = sum(receive_counts)
        received = send.new_empty((received_rows, *send.shape[1:])) if out is None else out
        wanted = (received_rows, *send.shape[1:])
        if tuple(received.shape) != wanted or received.dtype != send.dtype:
            raise ValueError(
                f"out is {received.dtype} {list(received.shape)}, but {send.dtype} {list(wanted)} is to be received"
            )
        sends = send.detach().contiguous().split(list(send_counts))
        receives = received.split(list(receive_counts))
        receives[self.rank].copy_(sends[self.rank])
        exchange = self.start_exchange(sends, receives, stage=stage)
        return exchange.then(lambda _: received)

    def all_to_all(
        self,
        send: Tensor,
        send_counts: Sequence[int],
        receive_counts: Sequence[int],
        *,
        stage: str,
        out: Tensor | None = None,
    ) -> Tensor:
        """`start_all_to_all` and wait for it."""
        return self.start_all_to_all(send, send_counts, receive_counts, stage=stage, out=out).wait()

    def start_all_to_all_counts(self, counts: Sequence[int], *, stage: str) -> Pending[list[int]]:
        """Start telling every rank one number. Collective.

        Args:
            counts: one non-negative number for each rank.
            stage: what the numbers are for; must agree.

        Returns:
            A handle whose result is the number that each rank had for this one.
        """
        ones = [1] * self.size
        started = self.start_all_to_all(torch.tensor(counts, dtype=torch.int64), ones, ones, stage=stage)
        return started.then(lambda received: [int(count) for count in received.tolist()])

    def all_to_all_counts(self, counts: Sequence[int], *, stage: str) -> list[int]:
        """`start_all_to_all_counts` and wait for it."""
        return self.start_all_to_all_counts(counts, stage=stage).wait()

    def start_all_reduce(self, tensor: Tensor, *, stage: str, op: ReduceOp = "sum") -> Pending[Tensor]:
        """Start reducing a tensor over all ranks, in place. Collective.

        Args:
            tensor: contiguous, float32, float64, int32 or int64; shape and dtype must agree on all ranks.
            stage: what the sum is for; must agree.
            op: "sum", "max" or "min", element by element; must agree.

        Returns:
            A handle whose result is `tensor`, the same on every rank. (MPI only advises its libraries to make it the
            same bit for bit; those tried here do.)

        Raises:
            TypeError: a dtype that MPI cannot add (convert to float32 first).
            ValueError: a tensor that is not contiguous.
            CollectiveMismatchError: in debug mode, where ranks disagree.
        """
        if tensor.dtype not in REDUCIBLE:
            raise TypeError(
                f"all_reduce of {tensor.dtype}: convert to one of {', '.join(map(str, REDUCIBLE))}"
            )
        if not tensor.is_contiguous():
            raise ValueError(
                "all_reduce works in place and needs a contiguous tensor: pass tensor.contiguous()"
            )
        self._agree("all_reduce", stage, shape=tuple(tensor.shape), dtype=str(tensor.dtype), op=op)
        if self.meter is not None and self.size > 1:
            self.meter.record_reduced(stage, tensor.numel(), tensor.nbytes)
        target = tensor.detach()
        transport = self._outgoing(target)

        def finish() -> Tensor:
            from_transport(transport, target)
            return tensor

        end = self._recorded(finish, "all_reduce", stage, [target], [target])
        return self._pending(self._post_all_reduce(transport, op), end, "all_reduce", stage)

    def all_reduce(self, tensor: Tensor, *, stage: str, op: ReduceOp = "sum") -> Tensor:
        """`start_all_reduce` and wait for it."""
        return self.start_all_reduce(tensor, stage=stage, op=op).wait()

    def all_gather(self, tensor: Tensor, *, stage: str) -> list[Tensor]:
        """Give every rank the rows of all ranks. Collective.

        Args:
            tensor: [n, ...] with any n on each rank; row shape and dtype must agree.
            stage: what the rows are for; must agree.

        Returns:
            One tensor per rank, in rank order; that of this rank shares memory with `tensor`. Cost: each rank
            sends its rows size - 1 times.
        """
        self._agree("all_gather", stage, row_shape=tuple(tensor.shape[1:]), dtype=str(tensor.dtype))
        counts = self.all_to_all_counts([len(tensor)] * self.size, stage=stage)
        mine = tensor.detach().contiguous()
        gathered = [mine.new_empty((count, *mine.shape[1:])) for count in counts]
        gathered[self.rank] = mine
        on_its_way = self._outgoing(mine)  # One copy of GPU memory for all peers.
        self.start_exchange([on_its_way] * self.size, gathered, stage=stage).wait()
        return gathered

    def broadcast(self, tensor: Tensor, *, root: int, stage: str) -> Tensor:
        """Overwrite `tensor` on every rank with the root's. Collective.

        Args:
            tensor: contiguous; shape and dtype must agree.
            root: the rank whose values win; must agree.
            stage: what this is for; must agree.

        Returns:
            `tensor`. Cost: the root sends it size - 1 times (meant for set-up, not for steps).
        """
        self._agree("broadcast", stage, shape=tuple(tensor.shape), dtype=str(tensor.dtype), root=root)
        flat = tensor.detach().view(-1)
        nothing = flat[:0]
        is_root = self.rank == root
        sends = [flat if is_root else nothing] * self.size
        receives = [flat if not is_root and peer == root else nothing for peer in range(self.size)]
        self.start_exchange(sends, receives, stage=stage).wait()
        return tensor

    # Objects, and points in time.

    def all_gather_object(self, value: T, *, stage: str) -> list[T]:
        """Give every rank the (small, picklable) objects of all ranks, in rank order. Collective."""
        payload = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        return [pickle.loads(part.numpy().tobytes()) for part in self.all_gather(payload, stage=stage)]

    def gather_object(self, value: T, *, root: int, stage: str) -> list[T]:
        """Give the root the (picklable) objects of all ranks, in rank order; other ranks get none. Collective."""
        payload = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = [len(payload) if peer == root else 0 for peer in range(self.size)]
        arriving = self.all_to_all_counts(sizes, stage=stage)
        received = self.all_to_all(payload, sizes, arriving, stage=stage)
        parts = received.split(arriving) if self.rank == root else ()
        return [pickle.loads(part.numpy().tobytes()) for part in parts]

    def broadcast_object(self, value: T | None, *, root: int, stage: str) -> T:
        """Give every rank the root's (small, picklable) object; other ranks' arguments are ignored. Collective."""
        everyone: list[Any] = self.all_gather_object(value if self.rank == root else None, stage=stage)
        result: T = everyone[root]
        return result

    def barrier(self, *, stage: str) -> None:
        """Return once every rank has come here. Collective."""
        self.all_to_all_counts([0] * self.size, stage=stage)

    # Helpers.

    def _pending(self, request: Request, finish: Callable[[], T], operation: str, stage: str) -> Pending[T]:
        description = f"rank {self.rank} of {self.size}, {operation} in stage {stage!r}"
        on_waited = None if self.meter is None else functools.partial(self.meter.record_waiting, stage)
        return Pending(
            request, finish, description=description, deadline_s=self.deadline_s, on_waited=on_waited
        )

    def _recorded(
        self,
        finish: Callable[[], T],
        operation: Operation,
        stage: str,
        sends: Sequence[Tensor],
        receives: Sequence[Tensor],
    ) -> Callable[[], T]:
        """What ends a collective that is about to be posted, so that a tracer sees both moments."""
        if self.tracer is None or self.size == 1:
            return finish
        return self.tracer.recording(
            finish,
            stage,
            trace_clock_ns(),
            operation=operation,
            bytes_sent=sum(tensor.nbytes for tensor in sends),
            bytes_received=sum(tensor.nbytes for tensor in receives),
        )

    def _outgoing(self, tensor: Tensor) -> Tensor:
        return to_transport(tensor.detach(), self.transport_device(tensor.device))

    def _incoming(self, tensor: Tensor) -> Tensor:
        device = self.transport_device(tensor.device)
        if tensor.device == device:
            return tensor
        return torch.empty(
            tensor.shape,
            dtype=tensor.dtype,
            device=device,
            pin_memory=tensor.is_cuda and device.type == "cpu",
        )

    def _agree(self, operation: str, stage: str, **must_agree: object) -> None:
        if not self.debug or self.size == 1:
            return
        # The check itself must travel unchecked and uncounted.
        meter, self.meter, self.debug = self.meter, None, False
        tracer, self.tracer = self.tracer, None
        try:
            check_agreement(self, {"operation": operation, "stage": stage, **must_agree})
        finally:
            self.meter, self.debug = meter, True
            self.tracer = tracer

    def _check_counts(self, send: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]) -> None:
        if len(send_counts) != self.size or len(receive_counts) != self.size:
            raise ValueError(
                f"expected one count for each of {self.size} ranks, got {len(send_counts)} to send "
                f"and {len(receive_counts)} to receive"
            )
        if send_counts[self.rank] != receive_counts[self.rank]:
            raise ValueError(
                f"rank {self.rank} sends itself {send_counts[self.rank]} rows but is to receive "
                f"{receive_counts[self.rank]}: they are the same rows"
            )
        if sum(send_counts) != len(send) or min(send_counts) < 0 or min(receive_counts) < 0:
            raise ValueError(
                f"send_counts {list(send_counts)} must be non-negative and add up to the {len(send)} rows to send, "
                f"and receive_counts {list(receive_counts)} be non-negative"
            )


def check_agreement(world: "World", call: Mapping[str, object]) -> None:
    """Compare a description of the collective that each rank is about to issue. Collective.

    Args:
        world: all its ranks call this at the same point of their collective order.
        call: what must be equal on all ranks: the operation, stage, shape, dtype, and so on.

    Raises:
        CollectiveMismatchError: on every rank, with the same text, listing each rank's call.

    Cost: one all-gather of a few hundred bytes.
    """
    calls = world.all_gather_object(dict(call), stage="debug agreement")
    if all(other == calls[0] for other in calls):
        return
    lines = "\n".join(f"  rank {rank}: {_describe(other)}" for rank, other in enumerate(calls))
    raise CollectiveMismatchError(
        f"ranks issued collectives that do not agree:\n{lines}\n"
        "Every rank must issue the same collectives in the same order; look for a branch that depends on the rank."
    )


def _describe(call: Mapping[str, object]) -> str:
    details = ", ".join(f"{key}={value}" for key, value in call.items() if key != "operation")
    return f"{call['operation']}({details})"
