"""N ranks as threads of one process: the reference implementation, the test bed, and the world of size 1.

Messages are cloned when sent, as if they had travelled, so a race on a buffer shows as it would over a wire.
All ranks share the interpreter: this world is for correctness, not for speed.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor

from windrow.comm.errors import PeerFailedError
from windrow.comm.launcher import DEFAULT_DEADLINE_S
from windrow.comm.reduction import ReduceOp, reduce_in_order
from windrow.comm.transfer import Request, Tensors, as_bytes
from windrow.comm.world import World

__all__ = ["Loopback"]

T = TypeVar("T")

SUMS_LANE = -1
"""All-reduces have an order of their own, as in the other backends."""


class _Key(NamedTuple):
    """Which message."""

    number: int
    """Of those between these two in this lane."""
    lane: int
    sender: int
    receiver: int


@dataclass
class _Hub:
    """What the ranks share: messages on their way, and who has failed."""

    size: int
    changed: threading.Condition = field(default_factory=threading.Condition)
    mailbox: dict["_Key", Tensor] = field(default_factory=dict)
    failed: dict[int, BaseException] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)

    def post(self, messages: dict[_Key, Tensor]) -> None:
        with self.changed:
            self.mailbox.update(messages)
            self.changed.notify_all()

    def finish(self, rank: int) -> None:
        with self.changed:
            self.finished.add(rank)
            self.changed.notify_all()

    def fail(self, rank: int, error: BaseException) -> None:
        with self.changed:
            self.failed[rank] = error
            self.changed.notify_all()


class _Receive(Request):
    """Waits for one message from each of some peers, then hands them over."""

    def __init__(self, hub: _Hub, keys: dict[int, _Key], take: Callable[[dict[int, Tensor]], None]) -> None:
        self._hub = hub
        self._keys = keys
        self._take = take

    def test(self) -> bool:
        with self._hub.changed:
            late = self.late_peers()
            if late:
                self._raise_if_gone(late)
                return False
            messages = {peer: self._hub.mailbox.pop(key) for peer, key in self._keys.items()}
        self._take(messages)
        return True

    def late_peers(self) -> Sequence[int]:
        return [peer for peer, key in self._keys.items() if key not in self._hub.mailbox]

    def block(self, seconds: float) -> None:
        with self._hub.changed:
            if self.late_peers():
                self._hub.changed.wait(seconds)

    def _raise_if_gone(self, late: Sequence[int]) -> None:
        gone = [peer for peer in late if peer in self._hub.failed]
        if gone:
            raise PeerFailedError(f"rank {gone[0]} failed: {self._hub.failed[gone[0]]!r}")
        finished = [peer for peer in late if peer in self._hub.finished]
        if finished:
            raise PeerFailedError(f"rank {finished[0]} has finished and will not send what is waited for")


class Loopback(World):
    """One rank of a world of threads; make one with `run` or `single`."""

    def __init__(self, hub: _Hub, rank: int, *, deadline_s: float, debug: bool) -> None:
        super().__init__(rank, hub.size, deadline_s=deadline_s, debug=debug)
        self._hub = hub
        self._sent: Counter[tuple[int, int]] = Counter()
        self._received: Counter[tuple[int, int]] = Counter()

    @staticmethod
    def single() -> "Loopback":
        """A world of one rank, in the calling thread."""
        return Loopback(_Hub(1), 0, deadline_s=DEFAULT_DEADLINE_S, debug=False)

    @staticmethod
    def run(
        size: int, body: Callable[[World], T], *, deadline_s: float = DEFAULT_DEADLINE_S, debug: bool = False
    ) -> list[T]:
        """Run ``body(world)`` once per rank, each in its own thread.

        Args:
            size: number of ranks, at least 1.
            body: what each rank does.
            deadline_s: seconds that any wait may take.
            debug: agree before each collective.

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
                results[rank] = body(world)
                hub.finish(rank)
            except BaseException as error:  # noqa: BLE001  # it is raised again below, in the caller's thread
                hub.fail(rank, error)

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
        self, sends: Tensors, receives: Tensors, *, gives_way: bool = False, lanes: Sequence[int] | None = None
    ) -> Request:
        """Put clones of what is sent into the mailbox."""
        del gives_way  # A message has arrived when it is posted.
        lanes = lanes or [0] * self.size
        pairs = [(p, lanes[p]) for p in range(self.size) if p != self.rank]
        self._hub.post({self._sending(*pair): sends[pair[0]].clone() for pair in pairs if sends[pair[0]].numel()})
        keys = {pair[0]: self._receiving(*pair) for pair in pairs if receives[pair[0]].numel()}

        def take(messages: dict[int, Tensor]) -> None:
            for peer, message in messages.items():
                as_bytes(receives[peer]).copy_(as_bytes(message))

        return _Receive(self._hub, keys, take)

    def post_all_reduce(self, tensor: Tensor, op: ReduceOp) -> Request:
        """Send the whole tensor to all, and reduce in rank order."""
        peers = range(self.size)
        self._hub.post({self._sending(peer, SUMS_LANE): tensor.clone() for peer in peers})
        keys = {peer: self._receiving(peer, SUMS_LANE) for peer in peers}

        def take(messages: dict[int, Tensor]) -> None:
            tensor.copy_(reduce_in_order([messages[peer] for peer in peers], op))

        return _Receive(self._hub, keys, take)

    def transport_device(self, device: torch.device) -> torch.device:
        """Threads share all memory: a tensor travels from where it is."""
        return device

    def abort(self, code: int = 1) -> NoReturn:
        """Fail this rank, and with it every rank that waits for it."""
        raise SystemExit(code)

    def _sending(self, peer: int, lane: int) -> _Key:
        self._sent[peer, lane] += 1
        return _Key(self._sent[peer, lane], lane, self.rank, peer)

    def _receiving(self, peer: int, lane: int) -> _Key:
        self._received[peer, lane] += 1
        return _Key(self._received[peer, lane], lane, peer, self.rank)
