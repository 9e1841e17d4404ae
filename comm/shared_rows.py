"""Rows of the ranks of a host, in memory that all of them map: each reads the others' where they stand.

No id is sent, nobody gathers for anybody else, and nothing is packed: a row costs what one of the own rows costs::

    rank 0                       memory of the host                        rank 1
    reads rows 3 1 4    <----    rows of rank 0 | rows of rank 1   ---->   reads rows 0 2 5

The memory has no name in any file system. It is gone when the last process that maps it is gone, however that ends.
"""

import mmap
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from windrow.comm.hosts import kernel_id
from windrow.comm.numpy_files import read_only_tensor
from windrow.comm.rows import offsets_from_counts
from windrow.comm.wire import Codec
from windrow.comm.world import World

__all__ = ["SharedRows"]


@dataclass(frozen=True, slots=True)
class _Offer:
    """Where other processes find a rank's rows."""

    host: tuple[str, str]
    process: int
    descriptor: int
    file: tuple[int, int]
    """Device and inode: another container may have a process of the same number."""
    shape: tuple[int, ...]


class SharedRows:
    """The rows of each rank on this host; made by all ranks together.

    Args:
        world: its ranks.
        rows: [n, ...] on the CPU, this rank's; copied. They must not change any more, which is why features of a graph
            can be shared and tables that learn cannot. Dtype and row shape must agree.
        stage: what they are, in errors; must agree.

    Where the system has no such memory, or does not let a rank open another's, that rank is not among those `near`.

    Raises:
        DeadlineError: a rank did not come in time.

    Cost: the memory of the rows, and on each rank of the host a table of pages, 8 bytes for 4 KiB.
    """

    def __init__(self, world: World, rows: Tensor, *, stage: str) -> None:
        descriptor = os.memfd_create("windrow") if hasattr(os, "memfd_create") else None
        try:
            offer = None
            self.local = rows
            """[n, ...] this rank's rows, in the memory of the host."""
            if descriptor is not None:
                self.local = _published(rows, descriptor)
                offer = _Offer(_host(), os.getpid(), descriptor, _identity(descriptor), tuple(rows.shape))
            offers = world.all_gather_object(offer, stage=f"{stage}: shared memory")
            self._rows = [
                _opened(found, rows.dtype) if found and rank != world.rank else None
                for rank, found in enumerate(offers)
            ]
            # Everybody has opened it before it is closed here.
            world.barrier(stage=f"{stage}: shared memory")
        finally:
            if descriptor is not None:
                os.close(descriptor)
        self.near = frozenset(rank for rank, found in enumerate(self._rows) if found is not None)
        """The other ranks whose rows are here."""

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
            rows = self._rows[rank]
            if rows is not None and start < stop:
                codec.decode(rows, out, positions=ids[start:stop] - offsets[rank], places=places[start:stop])
                copied += stop - start
        return copied


def _host() -> tuple[str, str]:
    return socket.gethostname(), kernel_id()


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _published(rows: Tensor, descriptor: int) -> Tensor:
    """The same rows in the memory behind a descriptor."""
    if rows.nbytes == 0:
        return rows
    os.ftruncate(descriptor, rows.nbytes)
    memory = torch.frombuffer(mmap.mmap(descriptor, rows.nbytes), dtype=torch.uint8)
    return memory.view(rows.dtype).view(rows.shape).copy_(rows)


def _opened(offer: _Offer, dtype: torch.dtype) -> Tensor | None:
    """Another rank's rows, if they are on this host and the system lets this process open them."""
    if offer.host != _host():
        return None
    num_bytes = torch.Size(offer.shape).numel() * dtype.itemsize
    if num_bytes == 0:
        return torch.empty(offer.shape, dtype=dtype)
    try:
        with Path(f"/proc/{offer.process}/fd/{offer.descriptor}").open("rb") as file:
            if _identity(file.fileno()) != offer.file:
                return None
            # The table of pages is filled now, not row by row in the first epoch.
            memory = mmap.mmap(file.fileno(), num_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
    except OSError:
        return None
    return read_only_tensor(np.frombuffer(memory, np.uint8)).view(dtype).view(offer.shape)
