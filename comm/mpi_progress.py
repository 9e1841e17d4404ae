"""How long MPI messages move while a rank computes: a progress thread, and sends in pieces.

MPI moves a long message piece by piece, and only inside its own calls: without the thread, rows that were asked for
before a backward pass travel after it. A thread that looks after all messages in flight every few milliseconds costs a
few percent of a core while there are some and nothing while there are none, so no core needs to be spared for it.

A connection carries messages in the order in which they were handed over. What is waited for at once (sums of
gradients) therefore comes after all that was posted before it for later (rows of the next minibatches), which on a
slow link is seconds. Paced sends stay with the sender and follow piece by piece, each handed over when an earlier one
has arrived, so that whatever else is posted meanwhile has to pass few of them. How many are on their way follows from
how long they take: enough that the link never falls idle between two looks, and as few as a peer receives in
`LONGEST_S`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

__all__ = ["BackgroundProgress", "PacedMessage", "PacedSends", "SendRequest"]

INTERVAL_S = 1e-3
"""Between the first two looks after something was posted."""

LONGEST_INTERVAL_S = 4e-3
"""Between two looks when nothing was posted for a while: each interval is half as long again. At 10 Gbit/s it is 5 MB,
about what the system's buffers keep of a connection, so the wire hardly falls idle in between. On 4 ranks that train on
2 cores the thread takes 2 % of a core of each."""


class BackgroundProgress:
    """A thread that drives whatever is in flight, while the ``with`` block runs.

    Args:
        drive: makes progress and says whether anything is left in flight; called from the thread.
        interval_s: seconds between the first two calls while there is.
    """

    def __init__(self, drive: Callable[[], bool], *, interval_s: float = INTERVAL_S) -> None:
        self._drive = drive
        self._interval_s = interval_s
        self._work = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def notify(self) -> None:
        """Say that something was posted."""
        self._work.set()

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the thread and wait for it."""
        self._ended.set()
        self._work.set()
        self._thread.join()

    def _run(self) -> None:
        interval_s = self._interval_s
        in_flight = False
        while not self._ended.is_set():
            # Cleared before looking: what is posted meanwhile sets it again.
            posted = self._work.wait(interval_s if in_flight else None)
            self._work.clear()
            if self._ended.is_set():
                return
            interval_s = self._interval_s if posted else min(1.5 * interval_s, LONGEST_INTERVAL_S)
            in_flight = self._drive()


LONGEST_S = 0.02
"""That a piece may be on its way before fewer are: what an urgent message has to wait for on a link so slow that even
the fewest pieces take longer is about twice as much as those."""

FEWEST = 2
"""Pieces on their way to a peer, at least: while one arrives, the next is announced."""


class SendRequest(Protocol):
    """A piece on its way; `mpi4py.MPI.Request` is one."""

    def Test(self) -> bool:  # noqa: N802 - MPI's name
        """Whether the peer has it, or is about to."""


class PacedMessage:
    """What one call has to send, to any number of peers."""

    def __init__(self) -> None:
        self.pieces_left: dict[int, int] = {}
        """Of each peer that does not have all of them yet."""
        self.error: Exception | None = None
        """What went wrong with a piece; it counts as arrived."""

    def add(self, peer: int) -> None:
        """Count a piece more."""
        self.pieces_left[peer] = self.pieces_left.get(peer, 0) + 1

    def arrived(self, peer: int) -> None:
        """Count a piece less."""
        self.pieces_left[peer] -= 1
        if self.pieces_left[peer] == 0:
            del self.pieces_left[peer]


@dataclass
class _Lane:
    """The way to one peer."""

    waiting: deque[tuple[object, PacedMessage]] = field(default_factory=deque)
    under_way: deque[tuple[SendRequest, float, PacedMessage]] = field(default_factory=deque)
    limit: int = FEWEST
    """Pieces that may be on their way."""


class PacedSends:
    """Hands pieces of messages over, as many at a time as the way to each peer takes.

    Pieces for one peer leave in the order in which they were added. Any thread may drive.

    Args:
        post: hands one piece over, ``post(buffer, peer)``; its request is complete when the peer takes the piece, not
            when it has merely been copied.
        clock: gives seconds.
    """

    def __init__(
        self, post: Callable[[object, int], SendRequest], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._post = post
        self._clock = clock
        self._lanes: dict[int, _Lane] = {}
        self._busy = False
        self._driving = threading.Lock()

    def add(self, pieces: Iterable[tuple[int, object]]) -> PacedMessage:
        """Begin to send.

        Args:
            pieces: peer and buffer of each; buffers must stay until the message has no piece left.
        """
        message = PacedMessage()
        with self._driving:
            for peer, buffer in pieces:
                message.add(peer)
                self._lanes.setdefault(peer, _Lane()).waiting.append((buffer, message))
            self._busy = True
        self.drive()
        return message

    def drive(self) -> None:
        """See what has arrived, and hand over what may follow. Never waits; cheap where there is nothing to send."""
        if not self._busy or not self._driving.acquire(blocking=False):
            return
        try:
            for peer, lane in self._lanes.items():
                self._take_arrived(peer, lane)
                self._hand_over(peer, lane)
            self._busy = any(lane.waiting or lane.under_way for lane in self._lanes.values())
        finally:
            self._driving.release()

    def _take_arrived(self, peer: int, lane: _Lane) -> None:
        while lane.under_way:
            request, posted_s, message = lane.under_way[0]
            try:
                if not request.Test():
                    return
            except Exception as error:  # noqa: BLE001 - whoever waits for the message raises it
                message.error = error
            lane.under_way.popleft()
            message.arrived(peer)
            took_s = self._clock() - posted_s
            if took_s > LONGEST_S:
                lane.limit = max(FEWEST, lane.limit - 1)
            elif lane.waiting:
                lane.limit += 1

    def _hand_over(self, peer: int, lane: _Lane) -> None:
        while lane.waiting and len(lane.under_way) < lane.limit:
            buffer, message = lane.waiting.popleft()
            try:
                request = self._post(buffer, peer)
            except Exception as error:  # noqa: BLE001 - whoever waits for the message raises it
                message.error = error
                message.arrived(peer)
            else:
                lane.under_way.append((request, self._clock(), message))
