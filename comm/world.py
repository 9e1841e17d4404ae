"""The ranks of a job, and the few collectives that everything else is written with.

The law, as in MPI: every collective is issued by all ranks, in the same order. What must agree is said at
each method; ``debug=True`` checks it before each call and raises the same error on every rank.

A backend implements `World.post_exchange` (one optional message to and from each peer), and may reduce by itself
(`World.post_all_reduce`); the collectives, their checks, metering and deadlines are written once, here. `World.split`
makes worlds of some of the ranks, which need no more from the backend.
"""

import contextlib
import functools
import itertools
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from windrow.comm.errors import CollectiveMismatchError, RecipeError, WindrowError
from windrow.comm.launcher import DEFAULT_DEADLINE_S
from windrow.comm.meter import Operation, Tracer, trace_clock_ns
from windrow.comm.reduction import ReduceOp, reduce_in_steps
from windrow.comm.transfer import Pending, Request, Steps, Tensors, from_transport, to_transport

if TYPE_CHECKING:
    from windrow.comm.meter import Meter
    from windrow.comm.shared_memory import Mailbox
    from windrow.comm.wire import Codec

__all__ = ["World", "exchange_with"]

T = TypeVar("T")

REDUCIBLE = (torch.float32, torch.float64, torch.int32, torch.int64)

MOST_LANES = 4096
"""Sums of two ranks that may be under way at once: their channels are MPI tags, which end at 32767."""


class World(ABC):
    """The ranks of one job.

    Implementations: `windrow.comm.loopback.Loopback` (threads of one process), `windrow.comm.mpi_world.MPIWorld`,
    `windrow.comm.torch_world.TorchWorld` (gloo, NCCL), and what `split` and `windrow.comm.hierarchy.hierarchical` make
    of one of these. Open one with `windrow.comm.connect.connect`. Collectives of one world and its subgroups must be
    issued from one thread; another thread needs a `duplicate`.

    Attributes:
        rank: this process's number, 0 <= rank < size.
        size: the number of ranks.
        ranks: the number of each in the whole job, which meters and errors go by; here 0, 1, ..., size - 1.
        name: which rank of which world, for messages.
        deadline_s: seconds that any wait may take before `DeadlineError`.
        debug: whether ranks agree on (operation, stage, shape, dtype) before each collective.
        meter: counts rows and bytes when set; None costs nothing.
        tracer: records a span of time for each collective when set; None costs nothing.
        shares_memory: whether ranks of one host may leave messages for each other in memory; must agree.
    """

    shares_memory = True

    has_channels = True
    """Whether channels keep messages apart; where they do not, ranks must post in the same order."""

    def __init__(self, rank: int, size: int, *, deadline_s: float = DEFAULT_DEADLINE_S, debug: bool = False) -> None:
        self.rank = rank
        self.size = size
        self.ranks: Sequence[int] = range(size)
        self.name = f"rank {rank} of {size}"
        self.deadline_s = deadline_s
        self.debug = debug
        self._channels = [0] * size
        self._mailbox: Mailbox | None = None
        self._meter: Meter | None = None
        self._tracer: Tracer | None = None
        self.original: World | None = None
        """The world that this is a duplicate of."""

    @property
    def meter(self) -> "Meter | None":
        """What counts."""
        return self._meter if self.original is None else self.original.meter

    @meter.setter
    def meter(self, meter: "Meter | None") -> None:
        self._meter = meter

    @property
    def tracer(self) -> Tracer | None:
        """What records."""
        return self._tracer if self.original is None else self.original.tracer

    @tracer.setter
    def tracer(self, tracer: Tracer | None) -> None:
        self._tracer = tracer

    # What a backend provides.

    @abstractmethod
    def post_exchange(
        self, sends: Tensors, receives: Tensors, *, gives_way: bool = False, channels: Sequence[int] | None = None
    ) -> Request:
        """Start sending ``sends[p]`` to and receiving ``receives[p]`` from every peer p; both ends know the sizes.

        Entry ``rank`` of both counts for nothing, and others may be empty: an empty tensor is no message. All are
        contiguous and on a device that `transport_device` accepts. Messages from one rank to another arrive in order:
        those that give way among themselves, and those of each channel (from `new_channels`; None: channel 0).
        """

    def post_all_reduce(self, tensor: Tensor, op: ReduceOp, codec: "Codec | None" = None) -> Request:
        """Start reducing `tensor` (contiguous) in place over all ranks; numbers travel as the codec has it.

        Here by exchanges, in the order of the ranks; a backend that reduces by itself does so where there is no codec.
        """
        return self.in_steps(reduce_in_steps(self, tensor.view(-1), op, codec))

    def in_steps(self, steps: Iterator[Request]) -> Request:
        """Transfers of which each is posted when the one before it has come."""
        return Steps(steps, only_waiting=not self.has_channels)

    def new_channels(self, peers: Sequence[int] | None = None) -> list[int]:
        """Channels to some peers (None: all ranks) for a collective that posts messages at moments of its own.

        Both ends ask at the same point of the order of collectives, so they get the same number.
        """
        chosen = range(self.size) if peers is None else peers
        for peer in chosen:
            self._channels[peer] = self._channels[peer] % MOST_LANES + 1
        return [self._channels[peer] for peer in chosen]

    @abstractmethod
    def abort(self, code: int = 1) -> None:
        """End every rank of the job now, with this exit status; the calling rank does not return."""

    def transport_device(self, device: torch.device) -> torch.device:
        """The device a tensor must be on to travel: `device` itself where the backend can send from there."""
        del device
        return torch.device("cpu")

    def background_progress(self) -> contextlib.AbstractContextManager[None]:
        """While the ``with`` block runs, let messages in flight move on although this rank computes. Not collective."""
        # Where the backend has threads of its own nothing needs to be done.
        return contextlib.nullcontext()

    def duplicate(self) -> "World":
        """The same ranks once more, for collectives that another thread issues meanwhile. Collective.

        Of a subgroup, over all ranks of its parent. Meter and tracer are those of this world, so its stages need names
        of their own; how long it waits is not counted. It cannot be closed: it lives as long as this world.

        Raises:
            RecipeError: the backend does not let several threads in.
        """
        made = self._duplicate()
        made.name, made.shares_memory = f"{self.name}, another thread", self.shares_memory
        made.original = self
        return made

    @abstractmethod
    def _duplicate(self) -> "World":
        """What `duplicate` gives."""

    def close(self) -> None:
        """Release what the backend holds. Collective where the backend says so."""
        # Its addresses are many; other references to this world may live on.
        self._mailbox = None

    @property
    def mailbox(self) -> "Mailbox":
        """Where ranks of one host leave messages for each other. Collective at its first use."""
        # No cached_property: before Python 3.12 one lock of it is for all instances, and ranks may be threads.
        if self._mailbox is None:
            from windrow.comm.shared_memory import Mailbox

            self._mailbox = Mailbox(self)
        return self._mailbox

    # Subgroups.

    def split(self, groups: Sequence[Sequence[int]]) -> "World":
        """The world of those ranks that share a group with this one. Collective, over all ranks of this world.

        It counts its ranks from 0, in the order of the group; it shares meter and tracer with this world, and its
        collectives are issued in one order with those of this world and of other subgroups, by all ranks concerned. An
        all-reduce in it sums in the order of its ranks, by exchanges.

        Args:
            groups: every rank of this world once, in any order; must agree. See `windrow.comm.hosts.host_groups`.

        Raises:
            RecipeError: on all ranks, where a rank is missing, named twice or out of range.
            CollectiveMismatchError: on all ranks, where they disagree.
        """
        from windrow.comm.subgroup import Subgroup

        listed = [list(group) for group in groups]
        self._agree_now({"operation": "split", "groups": listed})
        if sorted(itertools.chain(*listed)) != list(range(self.size)):
            raise RecipeError(
                f"groups {listed} of {self.size} ranks: a rank is missing, named more than once or out of range. Name "
                f"each rank from 0 to {self.size - 1} in one group"
            )
        return Subgroup(self, next(group for group in groups if self.rank in group))

    # Tensors.

    def start_exchange(
        self,
        sends: Sequence[Tensor],
        receives: Sequence[Tensor],
        *,
        stage: str,
        gives_way: bool = False,
        num_rows: tuple[Sequence[int], Sequence[int]] | None = None,
        num_bytes: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> Pending[None]:
        """Start one message to and from every peer, sizes known on both ends.

        Messages between two ranks stay in order. A rank that has nothing for another and expects nothing from it need
        not call, so this is not a collective and debug mode does not check it.

        Args:
            sends: one contiguous tensor per rank; entry ``rank`` is ignored; empty means no message.
            receives: the same, to be filled. Rank p's ``receives[q]`` must have the byte count of rank q's
                ``sends[p]``.
            stage: what this traffic is for, named in errors and in the meter; must agree.
            gives_way: whether what is posted later may overtake it, where the backend can arrange that. Must agree
                between sender and receiver.
            num_rows: rows to and from each rank, for the meter; None where tensors are rows first.
            num_bytes: likewise; None: those of the tensors.

        Returns:
            A handle; the buffers belong to the world until it is done.
        """
        meter = self.meter
        others = [peer for peer in range(self.size) if peer != self.rank]
        rows_sent, rows_received = num_rows or (list(map(len, sends)), list(map(len, receives)))
        nothing = torch.empty(0)
        outgoing = [nothing if p == self.rank else self._outgoing(t) for p, t in enumerate(sends)]
        incoming = [nothing if p == self.rank else self._incoming(t) for p, t in enumerate(receives)]
        bytes_sent, bytes_received = num_bytes or ([t.nbytes for t in outgoing], [t.nbytes for t in incoming])

        def finish() -> None:
            for peer in others:
                from_transport(incoming[peer], receives[peer])
                # Counted at the end: what is under way when a checkpoint is written is sent again after it.
                if meter is not None:
                    meter.record_sent(stage, self.ranks[peer], rows_sent[peer], bytes_sent[peer])
                    meter.record_received(stage, self.ranks[peer], rows_received[peer], bytes_received[peer])

        end = self._recorded(finish, "exchange", stage, sum(bytes_sent), sum(bytes_received))
        return self._pending(self.post_exchange(outgoing, incoming, gives_way=gives_way), end, "exchange", stage)

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
            send: [sum(send_counts), ...] rows grouped by the rank they go to; any dtype and device. Row shape and dtype
                must agree on all ranks.
            send_counts: rows for each rank.
            receive_counts: rows from each rank, which `all_to_all_counts` tells.
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
        wanted = (sum(receive_counts), *send.shape[1:])
        received = send.new_empty(wanted) if out is None else out
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
        """Start telling every rank one number; the handle's result is what each rank had for this one. Collective."""
        ones = [1] * self.size
        started = self.start_all_to_all(torch.tensor(counts, dtype=torch.int64), ones, ones, stage=stage)
        return started.then(lambda received: [int(count) for count in received.tolist()])

    def all_to_all_counts(self, counts: Sequence[int], *, stage: str) -> list[int]:
        """`start_all_to_all_counts` and wait for it."""
        return self.start_all_to_all_counts(counts, stage=stage).wait()

    def start_all_reduce(
        self, tensor: Tensor, *, stage: str, op: ReduceOp = "sum", codec: "Codec | None" = None
    ) -> Pending[Tensor]:
        """Start reducing a tensor over all ranks, in place. Collective.

        Args:
            tensor: contiguous, float32, float64, int32 or int64; shape and dtype must agree on all ranks.
            stage: what the sum is for; must agree.
            op: "sum", "max" or "min", element by element; must agree.
            codec: how the numbers of a float32 sum travel; must agree. Each rank adds up a piece of the tensor, in
                float32 and in rank order, and sends the encoded sum to all. None: as they are, by the backend's own
                all-reduce.

        Returns:
            A handle whose result is `tensor`, the same on every rank (MPI only advises its libraries so).

        Raises:
            TypeError: a dtype that MPI cannot add (convert to float32 first), or a codec for anything but a float32
                sum.
            ValueError: a tensor that is not contiguous.
            CollectiveMismatchError: in debug mode, where ranks disagree.
        """
        if tensor.dtype not in REDUCIBLE:
            raise TypeError(f"all_reduce of {tensor.dtype}: convert to one of {', '.join(map(str, REDUCIBLE))}")
        if not tensor.is_contiguous():
            raise ValueError("all_reduce works in place and needs a contiguous tensor: pass tensor.contiguous()")
        if codec is not None and (op != "sum" or tensor.dtype != torch.float32):
            raise TypeError(f"all_reduce of {tensor.dtype} by {op!r} with a codec: codecs are for sums of float32")
        coded = {} if codec is None else {"codec": codec.name}
        self._agree("all_reduce", stage, shape=tuple(tensor.shape), dtype=str(tensor.dtype), op=op, **coded)
        if self.meter is not None and self.size > 1:
            num_bytes = tensor.nbytes if codec is None else codec.wire_row_bytes(tensor.shape, tensor.dtype)
            self.meter.record_reduced(stage, tensor.numel(), num_bytes)
        target = tensor.detach()
        transport = self._outgoing(target)

        def finish() -> Tensor:
            from_transport(transport, target)
            return tensor

        end = self._recorded(finish, "all_reduce", stage, target.nbytes, target.nbytes)
        request = self.post_all_reduce(transport, op, codec if self.size > 1 else None)
        return self._pending(request, end, "all_reduce", stage)

    def all_reduce(self, tensor: Tensor, *, stage: str, op: ReduceOp = "sum", codec: "Codec | None" = None) -> Tensor:
        """`start_all_reduce` and wait for it."""
        return self.start_all_reduce(tensor, stage=stage, op=op, codec=codec).wait()

    def all_gather(self, tensor: Tensor, *, stage: str) -> list[Tensor]:
        """Give every rank the rows of all ranks. Collective. Cost: each rank sends its rows size - 1 times.

        Args:
            tensor: [n, ...] with any n on each rank; row shape and dtype must agree.
            stage: what the rows are for; must agree.

        Returns:
            One tensor per rank, in rank order; that of this rank shares memory with `tensor`.
        """
        self._agree("all_gather", stage, row_shape=tuple(tensor.shape[1:]), dtype=str(tensor.dtype))
        counts = self.all_to_all_counts([len(tensor)] * self.size, stage=stage)
        mine = tensor.detach().contiguous()
        gathered = [mine.new_empty((count, *mine.shape[1:])) for count in counts]
        gathered[self.rank] = mine
        on_its_way = self._outgoing(mine)  # One copy of GPU memory for all peers.
        self.start_exchange([on_its_way] * self.size, gathered, stage=stage).wait()
        return gathered

    # Objects, and points in time.

    def all_gather_object(self, value: T, *, stage: str) -> list[T]:
        """Give every rank the (small, picklable) objects of all ranks, in rank order. Collective."""
        return [pickle.loads(part.numpy().tobytes()) for part in self.all_gather(_pickled(value), stage=stage)]

    def gather_object(self, value: T, *, root: int, stage: str) -> list[T]:
        """Give the root the (picklable) objects of all ranks, in rank order; other ranks get none. Collective."""
        payload = _pickled(value)
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

    def from_rank_0(self, make: Callable[[], T], *, stage: str) -> T:
        """Give every rank what a function returns on rank 0, (small,) picklable. Collective.

        Raises:
            WindrowError: that of the function, on every rank.
        """
        found: T | None = None
        refusal: WindrowError | None = None
        if self.rank == 0:
            try:
                found = make()
            except WindrowError as error:
                refusal = error
        told: tuple[Any, WindrowError | None] = self.broadcast_object((found, refusal), root=0, stage=stage)
        if told[1] is not None:
            raise refusal or told[1]
        result: T = told[0]
        return result

    def barrier(self, *, stage: str) -> None:
        """Return once every rank has come here. Collective."""
        self.all_to_all_counts([0] * self.size, stage=stage)

    # Helpers.

    def _pending(self, request: Request, finish: Callable[[], T], operation: str, stage: str) -> Pending[T]:
        description = f"{self.name}, {operation} in stage {stage!r}"
        # Other threads wait beside the one whose time is accounted for.
        meter = self.meter if self.original is None else None
        on_waited = None if meter is None else functools.partial(meter.record_waiting, stage)
        return Pending(request, finish, description=description, deadline_s=self.deadline_s, on_waited=on_waited)

    def _recorded(
        self, finish: Callable[[], T], operation: Operation, stage: str, bytes_sent: int, bytes_received: int
    ) -> Callable[[], T]:
        """What ends a collective that is about to be posted, so that a tracer sees both moments."""
        tracer, begin_ns = self.tracer, trace_clock_ns()
        if tracer is None or self.size == 1:
            return finish

        def record_and_finish() -> T:
            end_ns = trace_clock_ns()
            tracer.record(
                stage, begin_ns, end_ns, operation=operation, bytes_sent=bytes_sent, bytes_received=bytes_received
            )
            return finish()

        return record_and_finish

    def _outgoing(self, tensor: Tensor) -> Tensor:
        return to_transport(tensor.detach(), self.transport_device(tensor.device))

    def _incoming(self, tensor: Tensor) -> Tensor:
        device = self.transport_device(tensor.device)
        if tensor.device == device:
            return tensor
        pinned = tensor.is_cuda and device.type == "cpu"
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device, pin_memory=pinned)

    def _agree(self, operation: str, stage: str, **must_agree: object) -> None:
        if self.debug and self.size > 1:
            self._agree_now({"operation": operation, "stage": stage, **must_agree})

    def _agree_now(self, call: Mapping[str, object]) -> None:
        # The check itself must travel unchecked and uncounted.
        meter, tracer, debug, original = self.meter, self.tracer, self.debug, self.original
        self.original = self.meter = self.tracer = None
        self.debug = False
        try:
            calls = self.all_gather_object(dict(call), stage="debug agreement")
        finally:
            self.meter, self.tracer, self.debug, self.original = meter, tracer, debug, original
        if all(other == calls[0] for other in calls):
            return
        lines = "\n".join(f"  rank {rank}: {_described(other)}" for rank, other in zip(self.ranks, calls, strict=True))
        raise CollectiveMismatchError(
            f"ranks issued collectives that do not agree:\n{lines}\n"
            "Every rank must issue the same collectives in the same order; look for a branch that depends on the rank."
        )

    def _check_counts(self, send: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]) -> None:
        if len(send_counts) != self.size or len(receive_counts) != self.size:
            got = f"{len(send_counts)} to send and {len(receive_counts)} to receive"
            raise ValueError(f"expected one count for each of {self.size} ranks, got {got}")
        if send_counts[self.rank] != receive_counts[self.rank]:
            raise ValueError(
                f"rank {self.rank} sends itself {send_counts[self.rank]} rows but is to receive "
                f"{receive_counts[self.rank]}: they are the same rows"
            )
        if sum(send_counts) != len(send) or min(*send_counts, *receive_counts) < 0:
            raise ValueError(
                f"send_counts {list(send_counts)} must be non-negative and add up to the {len(send)} rows to send, "
                f"and receive_counts {list(receive_counts)} be non-negative"
            )


def exchange_with(
    world: World, peer: int, *, send: Tensor | None = None, receive: Tensor | None = None, stage: str
) -> None:
    """Send a tensor to one rank, fill one with what it sends, or both, and wait for it."""
    nothing = torch.empty(0)
    sends, receives = [nothing] * world.size, [nothing] * world.size
    sends[peer] = nothing if send is None else send
    receives[peer] = nothing if receive is None else receive
    world.start_exchange(sends, receives, stage=stage).wait()


def _pickled(value: object) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _described(call: Mapping[str, object]) -> str:
    details = ", ".join(f"{key}={value}" for key, value in call.items() if key != "operation")
    return f"{call['operation']}({details})"
