"""One checkpoint on disk: written atomically, and refused when a single bit of it is wrong.

windrow-checkpoint                   what it is
{"format_version": 1, "epoch": 4, ... "sha256": "9f..."}     a header of one line, for any tool to read
...                                  torch.save of {"state": ...}, loaded with weights_only
"""

import dataclasses
import errno
import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from windrow.comm.errors import StoreError
from windrow.launch.formatting import byte_size
from windrow.partition.atomic_file import write_atomically

__all__ = ["FORMAT_VERSION", "CheckpointHeader", "read_checkpoint", "read_header", "write_checkpoint"]

FORMAT_VERSION = 2
MAGIC = b"windrow-checkpoint\n"
LONGEST_HEADER_BYTES = 1 << 22
OUTSIDE_HEADER_CLASS = frozenset({"format_version", "payload_bytes", "sha256"})
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointHeader:
    """What a checkpoint belongs to, readable without loading it."""

    recipe: Mapping[str, Any]
    """The settings that the weights depend on, as nested dictionaries."""
    data_fingerprint: str
    """Digest of the user's graph or log."""
    epoch: int
    """Epochs finished."""
    step: int
    """Steps finished of the epoch after those; 0 at the end of an epoch."""
    world_size: int
    """Ranks of the run that wrote it."""
    best: bool = False
    """Whether the validation metric was the best so far."""
    table_files: Mapping[str, str] = field(default_factory=dict)
    """Files with the ranks' shards of embedding tables, in the folder beside the checkpoint: SHA-256 by name."""

    @property
    def position(self) -> tuple[int, int]:
        """(epoch, step), where training goes on."""
        return self.epoch, self.step


def write_checkpoint(path: Path, header: CheckpointHeader, state: Mapping[str, Any]) -> None:
    """Write a checkpoint so that the file is either complete or not there.

    Args:
        path: the file; its folder exists. An older file of that name is replaced in one step.
        header: what it belongs to.
        state: tensors and plain Python values, nested in dictionaries and lists.

    Raises:
        StoreError: the disk is full or the folder cannot be written; no file is changed.

    Cost:
        One copy of the state in memory.
    """
    buffer = io.BytesIO()
    torch.save({"state": dict(state)}, buffer)
    payload = buffer.getbuffer()
    described = {
        "format_version": FORMAT_VERSION,
        **dataclasses.asdict(header),
        "payload_bytes": payload.nbytes,
    }
    described["sha256"] = _digest(described, payload)
    start = MAGIC + json.dumps(described).encode() + b"\n"
    try:
        write_atomically(path, start, payload)
    except OSError as error:
        raise _cannot_write(path, len(start) + payload.nbytes, error) from error


def read_header(path: Path) -> CheckpointHeader:
    """Read a checkpoint's header only; the state after it is not checked.

    Raises:
        StoreError: there is no checkpoint, it is damaged, or of another version.
    """
    return _read(path, with_payload=False)[0]


def read_checkpoint(path: Path) -> tuple[CheckpointHeader, dict[str, Any]]:
    """Read a checkpoint, checking every byte of its state.

    Returns:
        The header, and the state with its tensors on the CPU.

    Raises:
        StoreError: there is no checkpoint, it is damaged, or of another version.
    """
    header, payload = _read(path, with_payload=True)
    state: dict[str, Any] = torch.load(io.BytesIO(payload), weights_only=True, map_location="cpu")["state"]
    return header, state


def _read(path: Path, *, with_payload: bool) -> tuple[CheckpointHeader, bytes]:
    try:
        with path.open("rb") as file:
            if file.readline(len(MAGIC)) != MAGIC:
                raise _damaged(path, "it does not begin like a checkpoint")
            described = _parse_header(path, file.readline(LONGEST_HEADER_BYTES))
            payload = file.read() if with_payload else b""
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}. Name another checkpoint.") from error
    digest = described.pop("sha256")
    num_bytes = described["payload_bytes"]
    if with_payload:
        if len(payload) != num_bytes:
            raise _damaged(path, f"it holds {len(payload)} bytes of state where {num_bytes} were written")
        if _digest(described, payload) != digest:
            raise _damaged(path, "its checksum differs from the one it was written with")
    known = {field.name for field in dataclasses.fields(CheckpointHeader)}
    return CheckpointHeader(**{name: described[name] for name in known}), payload


def _parse_header(path: Path, line: bytes) -> dict[str, Any]:
    try:
        described = json.loads(line)
        version = described["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, "its header is not readable") from error
    if version != FORMAT_VERSION:
        raise StoreError(
            f"{path}: has checkpoint format {version}, but this version of windrow reads format "
            f"{FORMAT_VERSION}. Use the version of windrow that wrote it (environment.json in the run folder names it)."
        )
    expected = {field.name for field in dataclasses.fields(CheckpointHeader)} | OUTSIDE_HEADER_CLASS
    if set(described) != expected:
        raise _damaged(path, f"its header lacks or adds {sorted(set(described) ^ expected)}")
    return dict(described)


def _digest(described: Mapping[str, Any], payload: bytes | memoryview) -> str:
    """SHA-256 of header (without the digest itself) and payload."""
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    digest.update(payload)
    return digest.hexdigest()


def _damaged(path: Path, reason: str) -> StoreError:
    return StoreError(
        f"{path}: this checkpoint is damaged: {reason}. Delete it, so that an older one is used."
    )


def _cannot_write(path: Path, num_bytes: int, error: OSError) -> StoreError:
    needed = f"{byte_size(num_bytes)} ({num_bytes} bytes)"
    if error.errno in NO_SPACE:
        return StoreError(
            f"no space left for a checkpoint in {path.parent}: it needs {needed}. Earlier checkpoints are "
            "intact: free some space, then go on with --resume."
        )
    return StoreError(
        f"cannot write a checkpoint of {needed} to {path.parent}: {error.strerror}. Earlier checkpoints are "
        "intact: make the folder writable, then go on with --resume."
    )
