"""Transfers under way: handles, the one loop in the project that waits, and copies to and from what a backend sends."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from windrow.comm.errors import DeadlineError

__all__ = ["Pending", "Request", "Steps", "Tensors", "as_bytes", "chunk_bounds", "from_transport", "to_transport"]

T = TypeVar("T")
U = TypeVar("U")

Tensors: TypeAlias = Sequence[Tensor]
"""One for each rank."""

SPIN_S = 0.05
"""Seconds of polling before the waiting loop begins to sleep, which is what an MPI library itself does for ever: a
long message moves piece by piece, one piece for each poll."""

LONG_YIELD_S = 2e-4
"""Yielding takes a hundredth of it on a core that nobody else wants, and less than it where ranks that share a core all
wait: with 5e-5 four ranks on two cores slept there too, and took 0.9 ms for a sum of 100 numbers instead of 0.3."""
NAP_S = 1e-4
"""Seconds between polls on a core that others want, such as ranks that share it: they compute meanwhile."""

POLLS_PER_SLEEP = 32
LONGEST_SLEEP_S = 1e-3


class Request(ABC):
    """What a backend knows about one posted communication."""

    polls: bool = True
    """Whether waiting begins with polling; False where only `block` brings completion about, or is told of it."""

    @abstractmethod
    def test(self) -> bool:
        """Drive progress and say whether the communication is complete; cheap, never blocks."""

    @abstractmethod
    def late_peers(self) -> Sequence[int]:
        """Ranks that this communication still waits for, as far as the backend can tell."""

    def block(self, seconds: float) -> None:
        """Give up the core for at most `seconds`, or until something may have changed."""
        time.sleep(seconds)


class Steps(Request):
    """Transfers of which each is posted, and then yielded by `steps`, when the one before it has come.

    With `only_waiting` `test` posts nothing, so that ranks post in the same order whatever they test.
    """

    def __init__(self, steps: Iterator[Request], *, only_waiting: bool = False) -> None:
        self._steps = steps
        self._only_waiting = only_waiting
        self._go_on()

    def test(self) -> bool:
        """Post what may follow, and say whether the last one is complete."""
        if not self._only_waiting:
            self._post_what_may_follow()
        return self._current is None

    def late_peers(self) -> Sequence[int]:
        """Those of the transfer under way."""
        return [] if self._current is None else self._current.late_peers()

    def block(self, seconds: float) -> None:
        """Wait for the transfer under way."""
        self._post_what_may_follow()
        if self._current is not None:
            self._current.block(seconds)

    def _post_what_may_follow(self) -> None:
        while self._current is not None and self._current.test():
            self._go_on()

    def _go_on(self) -> None:
        self._current = next(self._steps, None)
        self.polls = not self._only_waiting and (self._current is None or self._current.polls)


class Pending(Generic[T]):
    """A collective in flight: `wait` for its result, or `test` whether it has come.

    Buffers must stay untouched until the handle is done; wait for every one, in the thread that started it. `on_waited`
    is told the seconds that each `wait` took.
    """

    def __init__(
        self,
        request: Request,
        finish: Callable[[], T],
        *,
        description: str,
        deadline_s: float,
        on_waited: Callable[[float], None] | None = None,
    ) -> None:
        self._request: Request | None = request
        self._finish = finish
        self._result: T | None = None
        self._description = description
        self._deadline_s = deadline_s
        self._on_waited = on_waited

    def test(self) -> bool:
        """Drive progress; True once the result is there. A backend may report False until `wait` is called."""
        if self._request is not None and self._request.test():
            self._request = None
            self._result = self._finish()
        return self._request is None

    def wait(self) -> T:
        """Wait for the collective's result, the same object at every call.

        Raises:
            DeadlineError: the world's deadline passed; names rank, stage and the peers that are missing.
            PeerFailedError: a peer is known to have failed.
        """
        started = time.monotonic()
        polls, nap = 0, 0.0
        while not self.test():
            polls += 1
            now = time.monotonic()
            waited = now - started
            assert self._request is not None
            if self._request.polls and (waited < SPIN_S or polls % POLLS_PER_SLEEP):
                if nap:
                    time.sleep(nap)
                    continue
                os.sched_yield()
                # A core that others want is not given up for long by yielding: Linux would soon hand it back.
                nap = NAP_S if time.monotonic() - now > LONG_YIELD_S else 0.0
                continue
            if waited > self._deadline_s:
                raise self._late(waited)
            self._request.block(min(LONGEST_SLEEP_S, waited / 100))
        if self._on_waited is not None:
            self._on_waited(time.monotonic() - started)
        return self._result  # type: ignore[return-value]  # T may itself be Optional, so no assert can narrow it

    def then(self, transform: Callable[[T], U]) -> "Pending[U]":
        """A handle for ``transform(result)``; from here on wait for that one, not for this."""
        assert self._request is not None, "then() is called right after start, before test() or wait()"
        return Pending(
            self._request,
            lambda: transform(self._finish()),
            description=self._description,
            deadline_s=self._deadline_s,
            on_waited=self._on_waited,
        )

    def _late(self, waited: float) -> DeadlineError:
        assert self._request is not None
        peers = ", ".join(map(str, self._request.late_peers())) or "unknown"
        return DeadlineError(
            f"{self._description}: still waiting for rank(s) {peers} after {waited:.1f} s "
            f"(deadline {self._deadline_s:g} s). Either they are gone, or they issued other collectives "
            f"(run with debug=true to see which), or they are slow (raise deadline_s)."
        )


def to_transport(tensor: Tensor, device: torch.device) -> Tensor:
    """A contiguous tensor on the device it travels from: itself where it is there, else a copy, finished on return."""
    if tensor.is_cuda and device.type == "cpu":
        # Page-locked: twice the copy bandwidth, and the driver need not stage it again.
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return pinned.copy_(tensor)
    return tensor.to(device)


def from_transport(transport: Tensor, wanted: Tensor) -> None:
    """Copy what arrived into the tensor that was to receive it; nothing to do where they are the same memory."""
    if transport.data_ptr() != wanted.data_ptr() or transport.device != wanted.device:
        wanted.copy_(transport)


def as_bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor as a vector of uint8, whatever its dtype; nothing is copied."""
    # A tensor of no or one element may have any stride, 0 too, which `view` would refuse.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def chunk_bounds(length: int, limit: int) -> list[tuple[int, int]]:
    """Cut a range into chunks, ``(start, stop)`` of each in order, of which all but the last have length `limit`.

    Raises:
        ValueError: the limit is below 1, or the length is negative.
    """
    if limit < 1 or length < 0:
        raise ValueError(f"cannot cut {length} elements into chunks of {limit}")
    return [(start, min(start + limit, length)) for start in range(0, length, limit)]
