"""Ranks that talk through torch.distributed: NCCL between GPUs, gloo between CPUs; also what TorchRec needs."""

import ctypes
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import ClassVar, Literal, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from windrow.comm.errors import DeadlineError, PeerFailedError
from windrow.comm.launcher import DEFAULT_DEADLINE_S, Rendezvous, launched_local_rank
from windrow.comm.reduction import ReduceOp
from windrow.comm.transfer import Request, Tensors, as_bytes
from windrow.comm.wire import Codec
from windrow.comm.world import World

__all__ = ["Backend", "TorchWorld"]

Backend = Literal["gloo", "nccl"]

GROUP_PATIENCE = 2
"""Deadlines after which torch.distributed itself gives up a collective."""

TIMED_OUT = ("timed out", "application timeout")
"""What gloo says of the wait that lasted too long, and of each later one on the same connection."""

LATEST_WORKS = 8
"""Reductions that gloo's own threads (two a group) may still have in hand when the group is closed, and some more."""

OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class _Works(Request):
    """torch.distributed work handles with the peer that each one waits for (None: all ranks)."""

    def __init__(self, works: list[dist.Work], peers: list[int | None], size: int, patience_s: float) -> None:
        self._waiting = list(zip(works, peers, strict=True))
        self._size = size
        self._patience = timedelta(seconds=patience_s)
        self._timed_out = False

    def test(self) -> bool:
        # The wait that ran out of patience broke the connection: what it says from then on is no news.
        if self._timed_out:
            return False
        # A work that failed is complete as well: only waiting for it tells.
        self._waiting = [
            (work, peer) for work, peer in self._waiting if not (work.is_completed() and self._is_done(work, peer))
        ]
        return not self._waiting

    def late_peers(self) -> Sequence[int]:
        peers = {peer for _, peer in self._waiting}
        return list(range(self._size)) if None in peers else sorted(peer for peer in peers if peer is not None)

    def _is_done(self, work: dist.Work, peer: int | None) -> bool:
        """Wait for a work; False where the patience ran out first."""
        late = not work.is_completed()
        try:
            work.wait(self._patience)
        except RuntimeError as error:
            if not any(words in str(error).lower() for words in TIMED_OUT):
                other = "another rank" if peer is None else f"rank {peer}"
                raise PeerFailedError(f"lost the connection to {other}: {error}") from error
            if late:
                self._timed_out = True
                return False
            raise DeadlineError(f"gave up before anybody waited for the result: {error}") from error
        return True


class _GlooWorks(_Works):
    """Gloo marks a point-to-point transfer as complete only when somebody waits for it."""

    polls = False

    def block(self, seconds: float) -> None:
        """Wait for one transfer; its own threads need the core more than this one."""
        del seconds
        if self._is_done(*self._waiting[0]):
            self._waiting.pop(0)


class TorchWorld(World):
    """The ranks of the default torch.distributed process group, which it opens and closes: one at a time. Collective.

    Args:
        backend: "gloo" for CPU tensors, "nccl" for CUDA tensors; tensors elsewhere are copied there and back.
        rendezvous: where the ranks meet.
        deadline_s: seconds that any wait may take.
        debug: agree before each collective.
        is_duplicate: that group is open, and this one is besides.
    """

    _kept_works: ClassVar[tuple[dist.Work, ...]] = ()
    """The latest of the world that was closed last in this process."""

    def __init__(
        self,
        backend: Backend,
        rendezvous: Rendezvous,
        *,
        deadline_s: float = DEFAULT_DEADLINE_S,
        debug: bool = False,
        is_duplicate: bool = False,
    ) -> None:
        super().__init__(rendezvous.rank, rendezvous.size, deadline_s=deadline_s, debug=debug)
        self._backend = backend
        self._group: dist.ProcessGroup | None = None
        self.has_channels = backend != "nccl"  # Which has no tags.
        self._rendezvous = rendezvous
        self._latest_works: deque[dist.Work] = deque(maxlen=LATEST_WORKS)
        timeout = timedelta(seconds=deadline_s)
        # The group gives up later than we do, so that it is our error that is seen: it names stage and peers.
        patience = GROUP_PATIENCE * timeout
        if is_duplicate:
            self._group = dist.new_group(timeout=patience, backend=backend)
            return
        if backend == "nccl" and not torch.cuda.is_initialized():
            # Nobody has chosen a GPU yet, and NCCL wants one for each rank.
            torch.cuda.set_device(launched_local_rank() % torch.cuda.device_count())
        store = TCPStore(
            rendezvous.host,
            rendezvous.port,
            self.size,
            is_master=self.rank == 0,
            timeout=timeout,
            master_listen_fd=rendezvous.listener,
        )
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=patience)

    def post_exchange(
        self, sends: Tensors, receives: Tensors, *, gives_way: bool = False, channels: Sequence[int] | None = None
    ) -> Request:
        """Send and receive by one batch."""
        del gives_way  # The backends send as they see fit.
        channels = channels or [0] * self.size
        operations: list[dist.P2POp] = []
        for step in range(1, self.size):
            source, target = (self.rank - step) % self.size, (self.rank + step) % self.size
            if receives[source].numel():
                received = as_bytes(receives[source])
                operations.append(dist.P2POp(dist.irecv, received, source, self._group, channels[source]))
            if sends[target].numel():
                sent = as_bytes(sends[target])
                operations.append(dist.P2POp(dist.isend, sent, target, self._group, channels[target]))
        works = dist.batch_isend_irecv(operations) if operations else []
        # NCCL returns one handle for the whole batch.
        one_each = len(works) == len(operations)
        return self._request(works, [op.peer for op in operations] if one_each else [None] * len(works))

    def post_all_reduce(self, tensor: Tensor, op: ReduceOp, codec: Codec | None = None) -> Request:
        """Leave it to the library where nothing is encoded."""
        if codec is not None:
            return super().post_all_reduce(tensor, op, codec)
        work = dist.all_reduce(tensor, op=OPERATIONS[op], group=self._group, async_op=True)
        works = [] if work is None else [work]
        self._latest_works.extend(works)
        return self._request(works, [None] * len(works))

    def _duplicate(self) -> "TorchWorld":
        # Two threads may not call NCCL in an order that differs from rank to rank.
        return TorchWorld("gloo", self._rendezvous, deadline_s=self.deadline_s, debug=self.debug, is_duplicate=True)

    def transport_device(self, device: torch.device) -> torch.device:
        """The CPU for gloo, this rank's GPU for NCCL."""
        if self._backend == "gloo":
            return torch.device("cpu")
        return device if device.type == "cuda" else torch.device("cuda", torch.cuda.current_device())

    def abort(self, code: int = 1) -> NoReturn:
        """End the job through its launcher."""
        self._rendezvous.abort(code)

    def close(self) -> None:
        """Leave and destroy the process group. Collective."""
        super().close()
        dist.destroy_process_group(self._group)
        # Once torch._dynamo is imported, as optimisers do, gloo's threads outlive their group. One that lets go of a
        # finished work as its last owner wants the GIL for the work's tensors, and aborts the process where the
        # interpreter has begun to end. So the latest works keep an owner for good. Those of the world that was closed
        # before need none any more, and would keep threads that spin since their peers have left.
        before, TorchWorld._kept_works = TorchWorld._kept_works, tuple(self._latest_works)
        self._latest_works.clear()
        for work in TorchWorld._kept_works:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(work))
        for work in before:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(work))

    def _request(self, works: list[dist.Work], peers: list[int | None]) -> Request:
        kind = _GlooWorks if self._backend == "gloo" else _Works
        return kind(works, peers, self.size, self.deadline_s)
