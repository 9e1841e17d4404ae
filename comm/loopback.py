"""N ranks as threads of one process: the reference implementation, the test bed, and the world of size 1.

Messages are cloned when sent, as if they had travelled, so a race on a buffer shows as it would over a wire.
All ranks share the interpreter: this world is for correctness, not for speed.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias, TypeVar

import torch
from torch import Tensor

from windrow.comm.errors import PeerFailedError
from windrow.comm.launcher import DEFAULT_DEADLINE_S
from windrow.comm.transfer import Request, Tensors, as_bytes
from windrow.comm.world import World

__all__ = ["Loopback"]

T = TypeVar("T")

LOOK_AGAIN_S = 0.05
"""After which a rank that nobody woke up looks again: at its deadline, and whether a peer failed before it slept."""

_Key: TypeAlias = tuple[int, int, int, int, int]
"""Which message: duplicate of the world, sender, receiver, channel, and its number among those of these four."""


@dataclass
class _Hub:
    """What the ranks share: messages on their way, and who has failed or finished."""

    size: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Whoever holds it may read and change what follows."""
    changed: list[threading.Condition] = field(init=False)
    """One for each rank, told when messages for it have come, or a rank is gone. Others would wake up for nothing."""
    mailbox: dict[_Key, tuple[Tensor, torch.cuda.Event | None]] = field(default_factory=dict)
    """Each message, and where it is on a GPU when it is written, since its receiver reads it on another stream."""
    failed: dict[int, BaseException] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.changed = [threading.Condition(self.lock) for _ in range(self.size)]

    @contextmanager
    def change(self, ranks: Iterable[int]) -> Iterator[None]:
        """Let those of these ranks that wait look again afterwards."""
        with self.lock:
            yield
            for rank in ranks:
                self.changed[rank].notify_all()


class _Receive(Request):
    """Waits for one message from each of some peers, then copies them to where they are wanted.

    Whoever waits sleeps until something has changed: ranks that poll take the interpreter from those that compute.
    """

    polls = False

    def __init__(self, hub: _Hub, rank: int, wanted: dict[int, tuple[_Key, Tensor]]) -> None:
        self._hub = hub
        self._rank = rank
        self._wanted = wanted

    def test(self) -> bool:
        with self._hub.lock:
            late = self.late_peers()
            if late:
                self._raise_if_gone(late)
                return False
            messages = [(self._hub.mailbox.pop(key), tensor) for key, tensor in self._wanted.values()]
        for (message, written), tensor in messages:
            if written is not None:
                reader = torch.cuda.current_stream(message.device)
                reader.wait_event(written)
                message.record_stream(reader)
            as_bytes(tensor).copy_(as_bytes(message))
        return True

    def late_peers(self) -> Sequence[int]:
        return [peer for peer, (key, _) in self._wanted.items() if key not in self._hub.mailbox]

    def block(self, seconds: float) -> None:
        del seconds
        with self._hub.lock:
            if self.late_peers():
                self._hub.changed[self._rank].wait(LOOK_AGAIN_S)

    def _raise_if_gone(self, late: Sequence[int]) -> None:
        for peer in late:
            if peer in self._hub.failed:
                raise PeerFailedError(f"rank {peer} failed: {self._hub.failed[peer]!r}")
        for peer in late:
            if peer in self._hub.finished:
                raise PeerFailedError(f"rank {peer} has finished and will not send what is waited for")


class Loopback(World):
    """One rank of a world of threads; make one with `run` or `single`."""

    def __init__(self, hub: _Hub, rank: int, *, deadline_s: float, debug: bool) -> None:
        super().__init__(rank, hub.size, deadline_s=deadline_s, debug=debug)
        self._hub = hub
        self._posted: Counter[tuple[int, int, int]] = Counter()
        self._numbers = itertools.count()
        self._number = next(self._numbers)

    @staticmethod
    def single() -> "Loopback":
        """A world of one rank, in the calling thread."""
        return Loopback(_Hub(1), 0, deadline_s=DEFAULT_DEADLINE_S, debug=False)

    @staticmethod
    def run(
        size: int, body: Callable[[World], T], *, deadline_s: float = DEFAULT_DEADLINE_S, debug: bool = False
    ) -> list[T]:
        """Run ``body(world)`` once per rank, each in its own thread; see `World` for the other arguments.

        Returns:
            What the bodies returned, in rank order.

        Raises:
            BaseException: the first failing rank's own error (not the `PeerFailedError` of those that waited for it).
        """
        hub = _Hub(size)
        results: dict[int, T] = {}

        def one_rank(rank: int) -> None:
            world = Loopback(hub, rank, deadline_s=deadline_s, debug=debug)
            try:
                # Otherwise one thread runs the backward passes of all ranks on a GPU, and one rank waits there for
                # what another would send after it.
                with torch.autograd.set_multithreading_enabled(False):
                    results[rank] = body(world)
                with hub.change(range(size)):
                    hub.finished.add(rank)
            except BaseException as error:  # noqa: BLE001  # it is raised again below, in the caller's thread
                with hub.change(range(size)):
                    hub.failed[rank] = error
            finally:
                world.close()

        threads = [
            threading.Thread(target=one_rank, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if hub.failed:
            # The cause comes before the ranks that failed for want of it.
            errors = list(hub.failed.values())
            raise next((error for error in errors if not isinstance(error, PeerFailedError)), errors[0])
        return [results[rank] for rank in range(size)]

    def post_exchange(
        self, sends: Tensors, receives: Tensors, *, gives_way: bool = False, channels: Sequence[int] | None = None
    ) -> Request:
        """Put clones of what is sent into the mailbox."""
        del gives_way  # A message has arrived when it is posted.
        channels = channels or [0] * self.size
        peers = [peer for peer in range(self.size) if peer != self.rank]
        receivers = [peer for peer in peers if sends[peer].numel()]
        with self._hub.change(receivers):
            for peer in receivers:
                message = sends[peer].clone()
                written = torch.cuda.current_stream(message.device).record_event() if message.is_cuda else None
                self._hub.mailbox[self._next(self.rank, peer, channels[peer])] = message, written
        wanted = {
            peer: (self._next(peer, self.rank, channels[peer]), receives[peer])
            for peer in peers
            if receives[peer].numel()
        }
        return _Receive(self._hub, self.rank, wanted)

    def _duplicate(self) -> "Loopback":
        made = Loopback(self._hub, self.rank, deadline_s=self.deadline_s, debug=self.debug)
        made._numbers, made._number = self._numbers, next(self._numbers)
        return made

    def transport_device(self, device: torch.device) -> torch.device:
        """Threads share all memory: a tensor travels from where it is."""
        return device

    def abort(self, code: int = 1) -> NoReturn:
        """Fail this rank, and with it every rank that waits for it."""
        raise SystemExit(code)

    def _next(self, sender: int, receiver: int, channel: int) -> _Key:
        self._posted[sender, receiver, channel] += 1
        return self._number, sender, receiver, channel, self._posted[sender, receiver, channel]
