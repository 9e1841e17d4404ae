"""Memory that the ranks of a host map: rows are read where they stand, and messages where they were packed.

Rows that do not change, `SharedRows`: no id is sent, nobody gathers for anybody else, and a row costs what one of the
own rows costs::

    rank 0                       memory of the host                        rank 1
    reads rows 3 1 4    <----    rows of rank 0 | rows of rank 1   ---->   reads rows 0 2 5

Messages, `Mailbox`: the sender packs into its memory, and a note of where travels by the world's own messages, which
also say when. The receiver lands rows from there, and its next note says that the memory may be used again::

    rank 0                        memory of rank 0                         rank 1
    packs               ---->     message for rank 1               ---->   lands
                        ....... note: at byte 8192 ....................>
                        <...... note: done with byte 8192 .............

An MPI library copies twice between processes, into memory of its own and out of it.

The memory has no name in any file system. It is gone when the last process that maps it is gone, however that ends.
"""

import mmap
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from windrow.comm.hosts import kernel_id
from windrow.comm.numpy_files import read_only_tensor
from windrow.comm.rows import offsets_from_counts
from windrow.comm.transfer import as_bytes
from windrow.comm.wire import Buffers, Codec
from windrow.comm.world import World

__all__ = ["Mailbox", "SharedRows"]


@dataclass(frozen=True, slots=True)
class _Offer:
    """Where other processes find a rank's memory."""

    host: tuple[str, str]
    process: int
    descriptor: int
    file: tuple[int, int]
    """Device and inode: another container may have a process of the same number."""
    num_bytes: int


class _HostMemory:
    """Memory of each rank that the ranks of its host map. Collective.

    Args:
        world: its ranks.
        num_bytes: of this rank's.
        stage: what it is for, in errors; must agree.
        content: uint8 [num_bytes] on the CPU, copied into it before others map it. None: zeros, which take no memory
            until they are written to.

    Attributes:
        local: uint8 [num_bytes], this rank's; None where the system has no such memory.
        near: the other ranks on this host whose memory is mapped here, and who map this rank's.

    Where the system has no such memory, or does not let a rank open another's, those two are not near each other.

    Raises:
        DeadlineError: a rank did not come in time.
    """

    def __init__(self, world: World, num_bytes: int, *, stage: str, content: Tensor | None = None) -> None:
        stage = f"{stage}: shared memory"
        self._map: mmap.mmap | None = None
        self.local: Tensor | None = None
        offer, descriptor = None, None
        with suppress(AttributeError, OSError):  # Not on this system, or refused, by a sandbox say.
            descriptor = os.memfd_create("windrow")
        try:
            if descriptor is not None:
                # An address space that is limited may have no room for it.
                with suppress(OSError):
                    os.ftruncate(descriptor, num_bytes)
                    if num_bytes:
                        self._map = mmap.mmap(descriptor, num_bytes)
                    self.local = _tensor_of(self._map)
                    if content is not None:
                        self.local.copy_(content)
                    offer = _Offer(_host(), os.getpid(), descriptor, _identity(descriptor), num_bytes)
            offers = world.all_gather_object(offer, stage=stage)
            self._others = [
                _opened(found, populate=content is not None) if found and rank != world.rank else None
                for rank, found in enumerate(offers)
            ]
            mapped = [found is not None for found in self._others]
            # Everybody has opened it before it is closed here.
            mapped_by = world.all_gather_object(mapped, stage=stage)
        finally:
            if descriptor is not None:
                os.close(descriptor)
        self.near = frozenset(rank for rank, by_rank in enumerate(mapped_by) if mapped[rank] and by_rank[world.rank])

    def release(self, start: int, stop: int) -> None:
        """Give the memory of whole pages of this rank's back to the system: they are zeros again."""
        if self._map is not None and hasattr(mmap, "MADV_REMOVE"):
            with suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE, start, stop - start)

    def of(self, rank: int) -> Tensor:
        """The memory of a rank that is near: uint8 [its num_bytes], which must not be written to."""
        memory = self._others[rank]
        assert memory is not None, f"rank {rank} is not near"
        return memory


class SharedRows:
    """The rows of each rank on this host; made by all ranks together.

    Args:
        world: its ranks.
        rows: [n, ...] on the CPU, this rank's; copied. They must not change any more, which is why features of a graph
            can be shared and tables that learn cannot. Dtype and row shape must agree.
        stage: what they are, in errors; must agree.

    Attributes:
        local: [n, ...] this rank's rows, in the memory of the host where there is such.
        near: the other ranks whose rows are here.

    Raises:
        DeadlineError: a rank did not come in time.

    Cost: the memory of the rows, and on each rank of the host a table of pages, 8 bytes for 4 KiB.
    """

    def __init__(self, world: World, rows: Tensor, *, stage: str) -> None:
        memory = _HostMemory(world, rows.nbytes, stage=stage, content=as_bytes(rows.contiguous()))
        self.local = rows if memory.local is None else memory.local.view(rows.dtype).view(rows.shape)
        self.near = memory.near
        self._rows = {rank: memory.of(rank).view(rows.dtype).view(-1, *rows.shape[1:]) for rank in self.near}

    def read(
        self, ids: Tensor, counts: Sequence[int], places: Tensor, offsets: Sequence[int], codec: Codec, out: Tensor
    ) -> int:
        """Copy the rows of the ranks that are near, and leave the places of others as they are.

        Args:
            ids: int64 [sum(counts)], grouped by the rank that owns them.
            counts: ids of each rank.
            places: int64 [sum(counts)], where in `out` each row belongs; no two equal.
            offsets: [size + 1], where each rank's ids start.
            codec: what the rows were encoded by.
            out: [m, ...] contiguous on the CPU, of a dtype that rows convert to.

        Returns:
            How many rows were copied.
        """
        copied = 0
        for rank, (start, stop) in enumerate(pairwise(offsets_from_counts(counts))):
            if rank in self._rows and start < stop:
                rows = self._rows[rank]
                codec.decode(rows, out, positions=ids[start:stop] - offsets[rank], places=places[start:stop])
                copied += stop - start
        return copied


MAILBOX_BYTES = 1 << 37
"""Addresses, not memory: what is never written to takes none. 512 ranks of a host use half of what a process has."""

PAGE_BYTES = mmap.PAGESIZE

NOTE_LENGTH = 8
"""Numbers in a note: where the message is, and where those are that have been landed since the last note; -1: none.
A reader returns one message for each that it gets, so that the rest never waits for long."""


class _Addresses:
    """Memory for messages of a rank, from the front to the back of what others map."""

    def __init__(self, memory: _HostMemory) -> None:
        self._memory = memory
        self._end = 0

    def new(self, num_bytes: int) -> Tensor:
        """Uint8 [at least num_bytes], whole pages never handed out before."""
        assert self._memory.local is not None, "no rank is near"
        start, self._end = self._end, self._end + -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
        if self._end > len(self._memory.local):
            raise MemoryError(
                f"messages between ranks of this host have used {MAILBOX_BYTES >> 30} GiB of addresses up: set "
                "run.shared_memory = false"
            )
        return self._memory.local[start : self._end]

    def drop(self, buffer: Tensor) -> None:
        """Give the system its memory back; the addresses stay unused."""
        start = int(buffer.storage_offset())
        self._memory.release(start, start + len(buffer))


class Mailbox:
    """Messages between the ranks of a host, in memory that all of them map; `windrow.comm.world.World.mailbox`.

    For each exchange, and each rank that is near, both ways: `lend` memory for a message and pack it, send the `note`;
    `open` the note that came, land the rows, and then say that they have `landed`.

    Args:
        world: its ranks; collective.

    Attributes:
        near: the ranks that messages can be left for.
    """

    def __init__(self, world: World) -> None:
        self._memory = _HostMemory(world, MAILBOX_BYTES if world.size > 1 else 0, stage="mailbox")
        self.near = self._memory.near
        # Made from no method of this object: without a cycle of references, addresses go when the world goes.
        addresses = _Addresses(self._memory)
        self._buffers = Buffers(addresses.new, addresses.drop)
        self._lent: dict[int, Tensor] = {}
        self._landed: dict[int, list[int]] = {rank: [] for rank in self.near}

    def lend(self, num_bytes: int) -> Tensor:
        """Memory for a message to one rank, uint8 [num_bytes], until that rank has landed it.

        Raises:
            MemoryError: messages that nobody landed have used all addresses up.
        """
        buffer = self._buffers.take(num_bytes)
        self._lent[int(buffer.storage_offset())] = buffer
        return buffer[:num_bytes]

    def note(self, rank: int, message: Tensor) -> Tensor:
        """What to send to a rank that is near, int64 [NOTE_LENGTH]; `message` is what was lent for it, or empty."""
        landed = self._landed[rank]
        returned, self._landed[rank] = landed[: NOTE_LENGTH - 1], landed[NOTE_LENGTH - 1 :]
        numbers = [message.storage_offset() if len(message) else -1, *returned]
        return torch.tensor(numbers + [-1] * (NOTE_LENGTH - len(numbers)))

    def empty_note(self) -> Tensor:
        """Memory to receive a note in."""
        return torch.empty(NOTE_LENGTH, dtype=torch.int64)

    def open(self, rank: int, note: Tensor, num_bytes: int) -> Tensor:
        """The message that a note speaks of, uint8 [num_bytes]; must not be written to. Once for each note."""
        start, *returned = note.tolist()
        for offset in returned:
            if offset >= 0:
                self._buffers.give(self._lent.pop(offset))
        return self._memory.of(rank)[start : start + num_bytes] if start >= 0 else torch.empty(0, dtype=torch.uint8)

    def landed(self, rank: int, note: Tensor) -> None:
        """The message that a note spoke of is not needed any more."""
        if (start := int(note[0])) >= 0:
            self._landed[rank].append(start)


def _host() -> tuple[str, str]:
    return socket.gethostname(), kernel_id()


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _opened(offer: _Offer, *, populate: bool) -> Tensor | None:
    """Another rank's memory, if it is on this host and the system lets this process open it."""
    if offer.host != _host():
        return None
    if offer.num_bytes == 0:
        return _tensor_of(None)
    # The table of pages is filled now, not row by row in the first epoch.
    flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if populate else 0)
    try:
        with Path(f"/proc/{offer.process}/fd/{offer.descriptor}").open("rb") as file:
            if _identity(file.fileno()) != offer.file:
                return None
            memory = mmap.mmap(file.fileno(), offer.num_bytes, flags=flags, prot=mmap.PROT_READ)
    except OSError:
        return None
    return _tensor_of(memory)


def _tensor_of(memory: mmap.mmap | None) -> Tensor:
    """Memory as uint8, which must not be written to where it is mapped to be read."""
    if memory is not None and hasattr(mmap, "MADV_DONTDUMP"):
        # Addresses are many more than memory, and writing a core file looks at all of them.
        memory.madvise(mmap.MADV_DONTDUMP)
    # What is made in inference mode could not be written to outside of it, by the next training step.
    with torch.inference_mode(mode=False):
        found = torch.empty(0, dtype=torch.uint8)
        return found if memory is None else read_only_tensor(np.frombuffer(memory, np.uint8))
