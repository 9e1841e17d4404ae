"""Ranks that talk MPI, straight from the memory of their tensors, also while a rank computes. Only this imports mpi4py.

MPI moves a long message piece by piece, and only inside its own calls: without the progress thread, rows that were
asked for before a backward pass travel after it. It looks after all messages in flight every few milliseconds, but not
while the rank itself waits for some, which moves them too. On shared cores each look takes the core from a rank for as
long as others then have it: with looks at any time, steps of 10 ms took 30 on 4 ranks of 2 cores.

A connection carries messages in the order in which they were handed over. What is waited for at once (sums of
gradients) therefore comes after all that was posted before it for later (rows of the next minibatches), which on a
slow link is seconds. Paced sends stay with the sender and follow piece by piece, each handed over when an earlier one
has arrived, so that whatever else is posted meanwhile has to pass few of them. How many are on their way follows from
how long they take: enough that the link never falls idle between two looks, and as few as a peer receives in
`LONGEST_S`.
"""

import contextlib
import math
import os
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Self

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.comm.launcher import DEFAULT_DEADLINE_S, Rendezvous, abort_job, listen
from windrow.comm.progress_kernels import IN_FLIGHT, TESTS, sleep_until_needed
from windrow.comm.reduction import ReduceOp
from windrow.comm.transfer import Request, Tensors, as_bytes, chunk_bounds
from windrow.comm.wire import Codec
from windrow.comm.world import World

__all__ = ["BackgroundProgress", "MPIWorld", "PacedMessage", "PacedSends", "mpi_rendezvous"]

INTERVAL_S = 2e-3
"""After which a rank that has tested nothing is taken to compute, so that the first look is due. With 1 ms, steps of 10
ms took half as long again on 4 ranks of 2 cores; with 4 ms, longer ones a tenth."""

LONGEST_INTERVAL_S = 4e-3
"""Between two looks while the rank computes: each interval is half as long again. At 10 Gbit/s it is 5 MB, about what
the system's buffers keep of a connection, so the wire hardly falls idle in between."""


class BackgroundProgress:
    """A thread that calls `drive`, which makes progress and says whether anything is left, in the ``with`` block.

    Not while others say that they have `tested`, which makes progress too: until nobody has for a while it sleeps in
    compiled code, without Python's lock.

    Args:
        drive: makes progress.
        interval_s: that nobody has tested; whole milliseconds.
    """

    def __init__(self, drive: Callable[[], bool], *, interval_s: float = INTERVAL_S) -> None:
        self._drive = drive
        self._interval_s = interval_s
        self._signals = np.zeros(2, np.int64)
        self._end = os.pipe()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def notify(self) -> None:
        """Say that something was posted."""
        self._signals[IN_FLIGHT] = 1
        self.tested()

    def tested(self) -> None:
        """Say that somebody else has tested."""
        self._signals[TESTS] += 1

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread and wait for it."""
        reading, writing = self._end
        os.close(writing)
        self._thread.join()
        os.close(reading)

    def _run(self) -> None:
        interval_s, tests = self._interval_s, 0
        while sleep_until_needed(self._signals, self._end[0], math.ceil(1e3 * interval_s)):
            # Cleared before looking: what is posted meanwhile sets it again.
            self._signals[IN_FLIGHT] = 0
            if self._drive():
                self._signals[IN_FLIGHT] = 1
            before, tests = tests, self._signals[TESTS]
            interval_s = self._interval_s if tests != before else min(1.5 * interval_s, LONGEST_INTERVAL_S)


LONGEST_S = 0.02
"""That a piece may be on its way before fewer are: what an urgent message has to wait for on a link so slow that even
the fewest pieces take longer is about twice as much as those."""

FEWEST = 2
"""Pieces on their way to a peer, at least: while one arrives, the next is announced."""


@dataclass
class PacedMessage:
    """What one call has to send, to any number of peers."""

    pieces_left: Counter[int] = field(default_factory=Counter)
    """Of each peer that does not have all of them yet."""
    error: Exception | None = None
    """What went wrong with a piece; it counts as arrived."""

    def arrived(self, peer: int) -> None:
        """Count a piece less."""
        self.pieces_left[peer] -= 1
        if self.pieces_left[peer] == 0:
            del self.pieces_left[peer]


@dataclass
class _Channel:
    """The way to one peer."""

    waiting: deque[tuple[object, PacedMessage]] = field(default_factory=deque)
    under_way: deque[tuple[MPI.Request, float, PacedMessage]] = field(default_factory=deque)
    limit: int = FEWEST
    """Pieces that may be on their way."""


class PacedSends:
    """Hands pieces of messages over, as many at a time as the way to each peer takes.

    Pieces for one peer leave in the order in which they were added. Any thread may drive. ``post(buffer, peer)`` hands
    one over; its request is complete when the peer takes the piece, not when it has merely been copied.
    """

    def __init__(
        self, post: Callable[[object, int], MPI.Request], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._post = post
        self._clock = clock
        self._channels: dict[int, _Channel] = {}
        self._busy = False
        self._driving = threading.Lock()

    def add(self, pieces: Iterable[tuple[int, object]]) -> PacedMessage:
        """Begin to send pieces, peer and buffer of each; buffers must stay until the message has no piece left."""
        message = PacedMessage()
        with self._driving:
            for peer, buffer in pieces:
                message.pieces_left[peer] += 1
                self._channels.setdefault(peer, _Channel()).waiting.append((buffer, message))
            self._busy = True
        self.drive()
        return message

    def drive(self) -> None:
        """See what has arrived, and hand over what may follow. Never waits; cheap where there is nothing to send."""
        if not self._busy or not self._driving.acquire(blocking=False):
            return
        try:
            for peer, channel in self._channels.items():
                self._take_arrived(peer, channel)
                self._hand_over(peer, channel)
            self._busy = any(channel.waiting or channel.under_way for channel in self._channels.values())
        finally:
            self._driving.release()

    def _take_arrived(self, peer: int, channel: _Channel) -> None:
        while channel.under_way:
            request, posted_s, message = channel.under_way[0]
            try:
                if not request.Test():
                    return
            except Exception as error:  # noqa: BLE001 - whoever waits for the message raises it
                message.error = error
            channel.under_way.popleft()
            message.arrived(peer)
            took_s = self._clock() - posted_s
            if took_s > LONGEST_S:
                channel.limit = max(FEWEST, channel.limit - 1)
            elif channel.waiting:
                channel.limit += 1

    def _hand_over(self, peer: int, channel: _Channel) -> None:
        while channel.waiting and len(channel.under_way) < channel.limit:
            buffer, message = channel.waiting.popleft()
            try:
                request = self._post(buffer, peer)
            except Exception as error:  # noqa: BLE001 - whoever waits for the message raises it
                message.error = error
                message.arrived(peer)
            else:
                channel.under_way.append((request, self._clock(), message))


LARGEST_MESSAGE_BYTES = 4 << 20
"""Longer messages and sums travel in pieces of this size, all posted at once. MPI's counts are 32-bit signed, so there
must be a limit; it is this low because MPICH 5.0.2 over TCP sends messages above 16 MiB a slow way. Between hosts at
1 Gbit/s, a sum of 64 MB over 4 of them reached 53 % of the wire in one call and 96 % in pieces; messages of 32 MiB
between 2 reached 46 to 93 %, and in pieces 88 to 95 %. Shorter pieces gain nothing and cost latency."""

PACED_MESSAGE_BYTES = 32 << 10
"""Of messages that give way. A sum over 4 ranks takes 4 rounds, and each waits for the pieces on their way: at
70 Mbit/s and with two pieces to each of 3 peers 22 ms, which is little beside a sum of 1 MB; with pieces of 128 KiB a
step of training took 5 % longer."""

PACED = 1
"""Tag of messages that give way: MPI keeps those of a pair and a tag in order, and these are overtaken. Lane 0 has
tag 0, and channel 1 the one behind this."""

OPERATIONS = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}


class _Requests(Request):
    """MPI requests with the peer that each one waits for (None: all ranks). Any thread may test them.

    `paced` is driven whenever these are tested, and `message`, which goes through it, must arrive too.
    """

    def __init__(
        self,
        requests: list[MPI.Request],
        peers: list[int | None],
        size: int,
        paced: PacedSends,
        message: PacedMessage | None = None,
        background: "BackgroundProgress | None" = None,
    ) -> None:
        self._background = background
        self._requests = requests
        self._peers = peers
        self._size = size
        self._paced = paced
        self._message = message or PacedMessage()
        self._testing = threading.Lock()
        self._error: Exception | None = None
        self.is_over = False
        """Whether a test has seen the end; MPI has let go of the memory then."""

    def test(self) -> bool:
        if self._background is not None:
            self._background.tested()
        return self.drive()

    def drive(self) -> bool:
        """`test`, by the thread that makes progress."""
        # Whoever waits, for whatever: what gives way moves on.
        self._paced.drive()
        with self._testing:
            self._error = self._error or self._message.error
            if self._error is None:
                try:
                    received = bool(MPI.Request.Testall(self._requests))
                    self.is_over = received and not self._message.pieces_left
                except MPI.Exception as error:
                    # The request is gone once MPI has reported on it, and the thread that waits must hear of it too.
                    self._error = error
            if self._error is not None:
                self.is_over = True
                raise self._error
        return self.is_over

    def late_peers(self) -> Sequence[int]:
        with self._testing:
            pairs = zip(self._requests, self._peers, strict=True)
            late = {peer for request, peer in pairs if not request.Test()} | set(self._message.pieces_left)
        return list(range(self._size)) if None in late else sorted(peer for peer in late if peer is not None)


class MPIWorld(World):
    """The ranks of an MPI job, on a duplicate of its communicator, so that others' traffic cannot mix with ours.

    Args:
        deadline_s: seconds that any wait may take.
        debug: agree before each collective.
        cuda_aware: whether this MPI library takes GPU memory; else CUDA tensors go through page-locked memory.
        largest_message_bytes: longer messages and sums travel in pieces of this size.

    Raises:
        DeadlineError: a rank did not come in time; opening is collective.
    """

    def __init__(
        self,
        *,
        deadline_s: float = DEFAULT_DEADLINE_S,
        debug: bool = False,
        cuda_aware: bool = False,
        largest_message_bytes: int = LARGEST_MESSAGE_BYTES,
    ) -> None:
        super().__init__(MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size(), deadline_s=deadline_s, debug=debug)
        self._paced = PacedSends(
            # Synchronous: over when the peer takes it, not when it waits in the system's buffers.
            lambda buffer, peer: self._communicator.Issend([buffer, MPI.BYTE], dest=peer, tag=PACED)
        )
        # Not Dup, which would wait for ever for a rank that never comes.
        self._communicator, copying = MPI.COMM_WORLD.Idup()
        self._pending(_Requests([copying], [None], self.size, self._paced), lambda: None, "opening", "connect").wait()
        self._cuda_aware = cuda_aware
        self._largest_message_bytes = largest_message_bytes
        self._background: BackgroundProgress | None = None
        # Until it is over, also where nobody waits for it: MPI writes into memory that must not go away.
        self._in_flight: list[_Requests] = []

    def post_exchange(
        self, sends: Tensors, receives: Tensors, *, gives_way: bool = False, channels: Sequence[int] | None = None
    ) -> Request:
        """Send and receive in pieces, all of them posted at once, or paced where they give way."""
        _wait_for_gpu([*sends, *receives])
        gives_way = gives_way and channels is None
        tags = [channel + PACED if channel else PACED * gives_way for channel in channels or [0] * self.size]
        largest = min(self._largest_message_bytes, PACED_MESSAGE_BYTES if gives_way else sys.maxsize)
        # Receives first, and every rank starts with its right-hand neighbour: no rank is everybody's first target.
        steps = range(1, self.size)
        incoming = _chunks(receives, [(self.rank - step) % self.size for step in steps], largest)
        outgoing = _chunks(sends, [(self.rank + step) % self.size for step in steps], largest)
        peers: list[int | None] = [peer for peer, _ in incoming]
        requests = [
            self._communicator.Irecv([chunk, MPI.BYTE], source=peer, tag=tags[peer]) for peer, chunk in incoming
        ]
        if gives_way:
            return self._posted(requests, peers, self._paced.add(outgoing))
        peers += [peer for peer, _ in outgoing]
        requests += [self._communicator.Isend([chunk, MPI.BYTE], dest=peer, tag=tags[peer]) for peer, chunk in outgoing]
        return self._posted(requests, peers)

    def post_all_reduce(self, tensor: Tensor, op: ReduceOp, codec: Codec | None = None) -> Request:
        """Reduce in pieces, all of them posted at once, where nothing is encoded."""
        if codec is not None:
            return super().post_all_reduce(tensor, op, codec)
        _wait_for_gpu([tensor])
        flat = tensor.view(-1)
        bounds = chunk_bounds(flat.numel(), max(1, self._largest_message_bytes // tensor.element_size()))
        requests = [
            self._communicator.Iallreduce(MPI.IN_PLACE, _buffer(flat[start:stop]), op=OPERATIONS[op])
            for start, stop in bounds
        ]
        return self._posted(requests, [None] * len(requests))

    @contextlib.contextmanager
    def background_progress(self) -> Iterator[None]:
        """A thread of this process drives what is in flight, where MPI lets several threads in."""
        if self._background is not None or self.size == 1 or MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            yield
            return
        with BackgroundProgress(self._drive) as background:
            self._background = background
            try:
                yield
            finally:
                self._background = None

    def _duplicate(self) -> "MPIWorld":
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise RecipeError(
                "this MPI library lets one thread in at a time, and two want to communicate: use one that was built "
                "for MPI_THREAD_MULTIPLE, or backend gloo"
            )
        return MPIWorld(
            deadline_s=self.deadline_s,
            debug=self.debug,
            cuda_aware=self._cuda_aware,
            largest_message_bytes=self._largest_message_bytes,
        )

    def transport_device(self, device: torch.device) -> torch.device:
        """CPU memory, or the GPU's own where the MPI library is CUDA-aware."""
        return device if self._cuda_aware else torch.device("cpu")

    def abort(self, code: int = 1) -> NoReturn:
        """End the job through MPI_Abort."""
        abort_job(code)

    def close(self) -> None:
        """Free the duplicated communicator. Collective; waits for what nobody has waited for.

        Raises:
            DeadlineError: a message that was posted here has no counterpart.
        """
        for posted in self._in_flight:
            if not posted.is_over:
                self._pending(posted, lambda: None, "message that nobody waited for", "close").wait()
        self._communicator.Free()
        super().close()

    def _posted(
        self, requests: list[MPI.Request], peers: list[int | None], message: PacedMessage | None = None
    ) -> _Requests:
        posted = _Requests(requests, peers, self.size, self._paced, message, self._background)
        self._in_flight = [*(earlier for earlier in self._in_flight if not earlier.is_over), posted]
        if self._background is not None:
            self._background.notify()
        return posted

    def _drive(self) -> bool:
        """Move what is in flight on; whoever waits for it hears of errors."""
        are_over = []
        for posted in self._in_flight:
            with contextlib.suppress(MPI.Exception):
                posted.drive()
            are_over.append(posted.is_over)
        return not all(are_over)


def _wait_for_gpu(tensors: Sequence[Tensor]) -> None:
    """MPI knows nothing of the GPU's queue: what is still to write or read these tensors must be done first."""
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()


def _chunks(tensors: Sequence[Tensor], peers: Sequence[int], largest: int) -> list[tuple[int, object]]:
    """The memory of each peer's tensor in pieces, each with its peer."""
    return [
        (peer, _buffer(memory[start:stop]))
        for peer, memory in ((peer, as_bytes(tensors[peer])) for peer in peers)
        for start, stop in chunk_bounds(memory.numel(), largest)
    ]


def _buffer(tensor: Tensor) -> object:
    """What mpi4py reads as the tensor's memory: NumPy's view of it, or the CUDA array interface of a GPU tensor."""
    return tensor if tensor.is_cuda else tensor.numpy()


def mpi_rendezvous(*, deadline_s: float = DEFAULT_DEADLINE_S) -> Rendezvous:
    """Agree through MPI where a torch.distributed job meets: the launcher stays mpirun or srun. Collective.

    Raises:
        DeadlineError: a rank did not come in `deadline_s` seconds.
    """
    world = MPIWorld(deadline_s=deadline_s)
    hosts = world.all_gather_object(socket.gethostname(), stage="rendezvous")
    # Of several machines at every address: the own name of one need not even resolve there.
    address = "127.0.0.1" if len(set(hosts)) == 1 else ""
    listener, port = listen(address) if world.rank == 0 else (None, None)
    port = world.broadcast_object(port, root=0, stage="rendezvous")
    world.close()
    host = address or hosts[0]
    return Rendezvous(rank=world.rank, size=world.size, host=host, port=port, listener=listener, abort=abort_job)
