"""Tables on disk, as the ranks hold them: one safetensors file for each rank, from which any rectangle is read back.

    rank-00000.safetensors
        user/0-500/0-16/weight              float32 [500, 16]     table / rows / columns / what
        user/0-500/0-16/sum_of_squares      float32 [500]         ranges are [start, stop)
        item/0-90/8-16/weight               ...
    rank-00001.safetensors
        user/500-1000/0-16/weight           ...

The reader puts any rectangle together again from the files of any number of ranks, under whichever plan.

Files are written piece by piece, in bounded memory: safetensors' own writer wants every tensor in memory at once, and
cannot say the checksum of what it wrote. The format is short (https://github.com/huggingface/safetensors): the header's
length as 8 bytes, little-endian; the header, JSON padded with blanks to a multiple of 8; then the tensors without
gaps::

    80 00 .. | {"__metadata__": {..}, "item": {"dtype": "F32", "shape": [9, 4], "data_offsets": [0, 144]}} | 144 bytes
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor

from windrow.comm.errors import StoreError
from windrow.partition.atomic_writes import open_atomically
from windrow.recsys.tables.table import LocalTable, StateAxis, StateTensor

__all__ = ["ShardReader", "check_shard_files", "write_safetensors", "write_shard_file"]

_FORMAT = {"format": "windrow.tables", "format_version": "1"}
"""What the header of every file says."""

_AXES: tuple[StateAxis, ...] = ("rows", "columns")
"""What a tensor's axes run over, the first ones where it has fewer; the header's "axes" names those with others."""

_KEY = re.compile(r"(.+)/(\d+)-(\d+)/(\d+)-(\d+)/(\w+)", re.DOTALL)


def write_shard_file(path: Path, state: Iterable[StateTensor]) -> str:
    """Write what one rank holds; nobody else has to be present.

    Args:
        path: the file; its folder exists. It is replaced in one step.
        state: of pieces that do not overlap. What is replicated is written by one rank only.

    Returns:
        The file's SHA-256, hexadecimal: what `check_shard_files` compares.

    Raises:
        OSError: the disk is full or not writable; the old file is as it was.

    Memory: one tensor, and only where it comes from a GPU.
    """
    tensors: dict[str, Tensor] = {}
    axes: dict[str, tuple[StateAxis, ...]] = {}
    for found in state:
        piece, tensor = found.piece, found.tensor
        if not (piece.num_rows and piece.dim):
            continue
        lengths = {"rows": piece.num_rows, "columns": piece.dim}
        assert not found.axes or tuple(tensor.shape) == tuple(lengths[axis] for axis in found.axes), (
            f"{found.name} of {piece} has shape {list(tensor.shape)}"
        )
        key = _shard_key(piece, found.name)
        assert key not in tensors, f"{key} is there twice"
        tensors[key] = tensor
        if found.axes != _AXES[: tensor.ndim]:
            axes[key] = found.axes
    layout = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()}
    metadata = _FORMAT | ({"axes": json.dumps(axes)} if axes else {})
    return write_safetensors(path, layout, lambda key: [tensors[key]], metadata=metadata)


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


def _parse_key(key: str) -> tuple[LocalTable, str] | None:
    """The rectangle and the content that a tensor's name stands for; None where it is not one of ours."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    top, bottom, left, right = (int(match[group]) for group in (2, 3, 4, 5))
    return LocalTable(name=match[1], rows=(top, bottom), columns=(left, right)), match[6]


def _shard_key(member: LocalTable, what: str) -> str:
    """The tensor's name for a content of a rectangle."""
    (top, bottom), (left, right) = member.rows, member.columns
    return f"{member.name}/{top}-{bottom}/{left}-{right}/{what}"


_Range = tuple[int, int]
_MOST_PIECES_SHOWN = 3


class _Overlap(NamedTuple):
    """A piece on disk, and the part of it that a request touches."""

    piece: LocalTable
    rows: _Range
    columns: _Range

    @property
    def area(self) -> int:
        """Cells touched."""
        return (self.rows[1] - self.rows[0]) * (self.columns[1] - self.columns[0])


class ShardReader:
    """Files of `write_shard_file`, open for reading; a context manager.

    Each rank opens all files and reads only what it asks for: files are mapped, and only the rows and columns
    requested are touched. Contents are not compared with checksums; see `check_shard_files`.

    Args:
        folder: where the files are.
        names: the files, all that were written together.

    Raises:
        StoreError: a file is missing, cut off, of another kind or version, or two pieces overlap.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._contents: dict[str, dict[LocalTable, tuple[Any, list[str]]]] = {}
        self._axes: dict[str, Sequence[StateAxis]] = {}
        try:
            for name in names:
                self._open(folder / name)
            for pieces in self._contents.values():
                _check_apart(list(pieces), folder)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the files."""
        self._contents = {}
        self._stack.close()

    @property
    def tables(self) -> list[str]:
        """Names of the tables that there are pieces of."""
        return list(self._contents)

    def shape(self, table: str) -> tuple[int, int]:
        """Rows and columns of a table, as far as its pieces reach.

        Raises:
            StoreError: no file has the table.
        """
        pieces = self._pieces(table)
        return max(piece.rows[1] for piece in pieces), max(piece.columns[1] for piece in pieces)

    def contents(self, table: str) -> list[str]:
        """What there is of a table: "weight" and the names of optimiser state.

        Raises:
            StoreError: no file has the table.
        """
        return next(iter(self._pieces(table).values()))[1]

    def dtype(self, table: str, what: str = "weight") -> torch.dtype:
        """How a content is stored.

        Raises:
            StoreError: no file has it.
        """
        return self._sample(table, what).dtype

    def read(self, table: str, rows: _Range, columns: _Range, what: str = "weight") -> Tensor:
        """One content of a rectangle of a table.

        What is stored for each weight is copied bit for bit. What is stored for each row (row-wise Adagrad) is the
        mean over columns of a quantity, so the pieces beside each other are averaged, weighted with the columns
        they have in common with the request. What is not cut (Adam's step) must be the same in all pieces.

        Args:
            table: name.
            rows: [start, stop).
            columns: [start, stop).
            what: "weight", or one of `contents`.

        Returns:
            As stored: [rows, columns], [rows] or what is not cut, a tensor of the caller's own.

        Raises:
            StoreError: the files do not hold all of it, or disagree.
        """
        overlaps = self._overlapping(table, rows, columns)
        if sum(overlap.area for overlap in overlaps) != (rows[1] - rows[0]) * (columns[1] - columns[0]):
            raise self._incomplete(table, rows, columns)
        first = next(iter(self._pieces(table)))
        sample = self._sample(table, what)
        axes = self._axes.get(_shard_key(first, what), _AXES[: sample.ndim])
        if not axes:
            return self._uncut(overlaps, what) if overlaps else self._stored(first, what)[...].clone()
        shape = (rows[1] - rows[0], columns[1] - columns[0])[: len(axes)]
        whole = len(axes) == len(_AXES)
        total = sample.new_zeros(shape, dtype=sample.dtype if whole else torch.float64)
        for overlap in overlaps:
            inside = slice(overlap.rows[0] - rows[0], overlap.rows[1] - rows[0])
            part = self._part(overlap, what)
            if whole:
                total[inside, overlap.columns[0] - columns[0] : overlap.columns[1] - columns[0]] = part
            else:
                # In float64 so that pieces that agree, or a single one, come out as they went in.
                total[inside] += part.double() * (overlap.columns[1] - overlap.columns[0])
        return total if whole else (total / max(columns[1] - columns[0], 1)).to(sample.dtype)

    def _open(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            # The library's stubs do not declare the context manager that its documentation shows.
            file: Any = self._stack.enter_context(safe_open(path, framework="pt"))
            metadata = file.metadata() or {}
        except (OSError, SafetensorError) as error:
            raise StoreError(f"{path} cannot be read: {error}. Use an older checkpoint.") from error
        if metadata.get("format") != _FORMAT["format"]:
            raise StoreError(f"{path} holds no embedding tables of windrow: its header says {metadata}")
        if metadata.get("format_version") != _FORMAT["format_version"]:
            raise StoreError(
                f"{path} has format version {metadata.get('format_version')}, and this windrow reads "
                f"{_FORMAT['format_version']}: use the windrow that wrote it"
            )
        self._axes |= json.loads(metadata.get("axes", "{}"))
        for key in file.keys():  # noqa: SIM118 - not a mapping
            parsed = _parse_key(key)
            if parsed is None:
                raise StoreError(f"{path} holds a tensor {key!r} that is no piece of a table")
            piece, what = parsed
            pieces = self._contents.setdefault(piece.name, {})
            if piece in pieces and pieces[piece][0] is not file:
                raise StoreError(
                    f"{self._folder}: two files hold {_shown(piece)}: they were not written together"
                )
            pieces.setdefault(piece, (file, []))[1].append(what)

    def _pieces(self, table: str) -> dict[LocalTable, tuple[Any, list[str]]]:
        if table not in self._contents:
            known = ", ".join(self._contents) or "no tables"
            raise StoreError(f"{self._folder} has no table {table!r}: it holds {known}")
        return self._contents[table]

    def _overlapping(self, table: str, rows: _Range, columns: _Range) -> list[_Overlap]:
        found = []
        for piece in self._pieces(table):
            common = _Overlap(piece, _common(piece.rows, rows), _common(piece.columns, columns))
            if common.area:
                found.append(common)
        return sorted(found, key=lambda overlap: (overlap.rows, overlap.columns))

    def _stored(self, piece: LocalTable, what: str) -> Any:
        """The library's view of a tensor on disk."""
        file, available = self._contents[piece.name][piece]
        if what not in available:
            raise StoreError(
                f"{self._folder}: {_shown(piece)} has no {what!r}, only {', '.join(available)}: was another optimiser "
                "used?"
            )
        return file.get_slice(_shard_key(piece, what))

    def _sample(self, table: str, what: str) -> Tensor:
        """No rows of a content, or the number it consists of: tells dtype and number of axes."""
        stored = self._stored(next(iter(self._pieces(table))), what)
        sample: Tensor = stored[0:0] if stored.get_shape() else stored[...].clone()
        return sample

    def _part(self, overlap: _Overlap, what: str) -> Tensor:
        """The part of a content that an overlap names, read from its file."""
        stored = self._stored(overlap.piece, what)
        (top, _), (left, _) = overlap.piece.rows, overlap.piece.columns
        inside = (
            slice(overlap.rows[0] - top, overlap.rows[1] - top),
            slice(overlap.columns[0] - left, overlap.columns[1] - left),
        )
        part: Tensor = stored[inside[: len(stored.get_shape())]]
        return part

    def _uncut(self, overlaps: list[_Overlap], what: str) -> Tensor:
        values: list[Tensor] = [self._stored(overlap.piece, what)[...] for overlap in overlaps]
        for overlap, value in zip(overlaps, values, strict=True):
            if not torch.equal(value, values[0]):
                raise StoreError(
                    f"{self._folder}: {what} is {_brief(value)} in {_shown(overlap.piece)} and {_brief(values[0])} "
                    f"in {_shown(overlaps[0].piece)}: the files were not written together"
                )
        return values[0].clone()

    def _incomplete(self, table: str, rows: _Range, columns: _Range) -> StoreError:
        pieces = sorted(self._pieces(table), key=lambda piece: (piece.rows, piece.columns))
        shown = "; ".join(_shown(piece) for piece in pieces[:_MOST_PIECES_SHOWN])
        more = f"; and {len(pieces) - _MOST_PIECES_SHOWN} more" if len(pieces) > _MOST_PIECES_SHOWN else ""
        wanted = LocalTable(name=table, rows=rows, columns=columns)
        return StoreError(
            f"{self._folder}: {_shown(wanted)} is not all there. The files hold {shown}{more}. Is a file missing, or "
            "has the table grown?"
        )


def _common(first: _Range, second: _Range) -> _Range:
    start = max(first[0], second[0])
    return start, max(start, min(first[1], second[1]))


def _check_apart(pieces: list[LocalTable], folder: Path) -> None:
    pieces.sort(key=lambda piece: (piece.rows, piece.columns))
    for number, piece in enumerate(pieces):
        for other in pieces[number + 1 :]:
            if other.rows[0] >= piece.rows[1]:
                break
            if max(piece.columns[0], other.columns[0]) < min(piece.columns[1], other.columns[1]):
                raise StoreError(
                    f"{folder}: {_shown(piece)} and {_shown(other)} overlap: not written together"
                )


def _brief(value: Tensor) -> str:
    return str(value.item()) if value.ndim == 0 else "an array"


def _shown(piece: LocalTable) -> str:
    return f"table {piece.name!r}, rows {list(piece.rows)}, columns {list(piece.columns)}"


_Layout: TypeAlias = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Dtype and shape of each tensor."""

_DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
}
_HEADER_MULTIPLE = 8


def write_safetensors(
    path: Path, layout: _Layout, chunks: Callable[[str], Iterable[Tensor]], *, metadata: Mapping[str, str]
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
    layout: _Layout, names: Iterable[str], sizes: Mapping[str, int], metadata: Mapping[str, str]
) -> tuple[bytes, bytes]:
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    start = 0
    for name in names:
        dtype, shape = layout[name]
        stop = start + sizes[name]
        entries[name] = {"dtype": _DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % _HEADER_MULTIPLE)
    return len(text).to_bytes(8, "little"), text
