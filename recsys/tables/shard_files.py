"""Tables on disk, as the ranks hold them: one safetensors file for each rank.

    rank-00000.safetensors
        user/0-500/0-16/weight              float32 [500, 16]     table / rows / columns / what
        user/0-500/0-16/sum_of_squares      float32 [500]         ranges are [start, stop)
        item/0-90/8-16/weight               ...
    rank-00001.safetensors
        user/500-1000/0-16/weight           ...

`windrow.recsys.tables.shard_reader` puts any rectangle together again, under whichever plan.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from windrow.comm.errors import StoreError
from windrow.recsys.tables.safetensors_writer import write_safetensors
from windrow.recsys.tables.table import LocalTable

__all__ = ["FORMAT", "check_shard_files", "parse_key", "shard_key", "write_shard_file"]

FORMAT = {"format": "windrow.tables", "format_version": "1"}
"""What the header of every file says."""

KEY = re.compile(r"(.+)/(\d+)-(\d+)/(\d+)-(\d+)/(\w+)", re.DOTALL)


def write_shard_file(path: Path, members: Iterable[tuple[LocalTable, Mapping[str, Tensor]]]) -> str:
    """Write what one rank holds; nobody else has to be present.

    Args:
        path: the file; its folder exists. It is replaced in one step.
        members: rectangles that do not overlap, each with its tensors by name: "weight" [rows, dim], and optimiser
            state [rows, dim] (for each weight), [rows] (for each row) or [] (for the rectangle). A replicated table
            is written by one rank only.

    Returns:
        The file's SHA-256, hexadecimal: what `check_shard_files` compares.

    Raises:
        OSError: the disk is full or not writable; the old file is as it was.

    Memory: one tensor, and only where it comes from a GPU.
    """
    tensors: dict[str, Tensor] = {}
    for member, contents in members:
        if not (member.num_rows and member.dim):
            continue
        shapes = {(member.num_rows, member.dim), (member.num_rows,), ()}
        for what, tensor in contents.items():
            assert tuple(tensor.shape) in shapes, f"{what} of {member} has shape {list(tensor.shape)}"
            key = shard_key(member, what)
            assert key not in tensors, f"{key} is there twice"
            tensors[key] = tensor
    layout = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()}
    return write_safetensors(path, layout, lambda key: [tensors[key]], metadata=FORMAT)


def check_shard_files(folder: Path, checksums: Mapping[str, str]) -> None:
    """Compare files with what was written; ranks may share them out, since each file is read whole.

    Args:
        folder: where they are.
        checksums: SHA-256 by file name.

    Raises:
        StoreError: names the first file that is missing or damaged.
    """
    for name, expected in checksums.items():
        path = folder / name
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}. Use an older checkpoint.") from error
        if found != expected:
            raise StoreError(
                f"{path} is damaged: its checksum is {found[:12]} instead of {expected[:12]}. Use an older checkpoint."
            )


def parse_key(key: str) -> tuple[LocalTable, str] | None:
    """The rectangle and the content that a tensor's name stands for; None where it is not one of ours."""
    match = KEY.fullmatch(key)
    if match is None:
        return None
    top, bottom, left, right = (int(match[group]) for group in (2, 3, 4, 5))
    return LocalTable(name=match[1], rows=(top, bottom), columns=(left, right)), match[6]


def shard_key(member: LocalTable, what: str) -> str:
    """The tensor's name for a content of a rectangle."""
    (top, bottom), (left, right) = member.rows, member.columns
    return f"{member.name}/{top}-{bottom}/{left}-{right}/{what}"
