"""Writing a safetensors file piece by piece, in bounded memory.

The library's own writer wants every tensor in memory at once, and cannot say the checksum of what it wrote. The
format is short (https://github.com/huggingface/safetensors): the header's length as 8 bytes, little-endian; the
header, JSON padded with blanks to a multiple of 8; then the tensors without gaps::

    80 00 .. | {"__metadata__": {..}, "item": {"dtype": "F32", "shape": [9, 4], "data_offsets": [0, 144]}} | 144 bytes
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from windrow.partition.atomic_file import open_atomically

__all__ = ["Layout", "write_safetensors"]

Layout: TypeAlias = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Dtype and shape of each tensor."""

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
}
HEADER_MULTIPLE = 8


def write_safetensors(
    path: Path, layout: Layout, chunks: Callable[[str], Iterable[Tensor]], *, metadata: Mapping[str, str]
) -> str:
    """Write a file that appears whole or not at all.

    Args:
        path: the file; its folder exists. It is replaced in one step.
        layout: the tensors' names, dtypes and shapes.
        chunks: called once for each name; gives the tensor in pieces along its first axis, in order, on any device.
        metadata: texts to keep in the header.

    Returns:
        The file's SHA-256, hexadecimal.

    Raises:
        OSError: the disk is full or not writable; the old file is as it was.

    Memory: one piece.
    """
    # The widest numbers first, so that each tensor starts at a multiple of its item size.
    names = sorted(layout, key=lambda name: -layout[name][0].itemsize)
    sizes = {name: layout[name][0].itemsize * prod(layout[name][1]) for name in names}
    digest = hashlib.sha256()
    with open_atomically(path) as file:
        for block in _header(layout, names, sizes, metadata):
            file.write(block)
            digest.update(block)
        for name in names:
            written = 0
            for chunk in chunks(name):
                assert chunk.dtype == layout[name][0], f"{name} changes its dtype to {chunk.dtype}"
                values = chunk.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
                file.write(values.data)
                digest.update(values.data)
                written += values.nbytes
            assert written == sizes[name], f"{name} has {written} bytes instead of {sizes[name]}"
    return digest.hexdigest()


def _header(
    layout: Layout, names: Iterable[str], sizes: Mapping[str, int], metadata: Mapping[str, str]
) -> tuple[bytes, bytes]:
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    start = 0
    for name in names:
        dtype, shape = layout[name]
        stop = start + sizes[name]
        entries[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % HEADER_MULTIPLE)
    return len(text).to_bytes(8, "little"), text
