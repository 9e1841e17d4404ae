"""Tables on disk, as the ranks hold them: one safetensors file for each rank, from which any shard is read back.

    rank-00000.safetensors
        user/0-500/0-16/weight              float32 [500, 16]     table / rows / columns / what
        user/0-500/0-16/sum_of_squares      float32 [500]         ranges are [start, stop)
        item/0-90/8-16/weight               ...
    rank-00001.safetensors
        user/500-1000/0-16/weight           ...

The reader puts any shard together again from the files of any number of ranks, under whichever plan.

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
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias

import torch
from torch import Tensor

from windrow.comm.errors import StoreError
from windrow.partition.atomic_writes import open_atomically

__all__ = [
    "ROW_IDS",
    "LocalTable",
    "ShardReader",
    "StateAxis",
    "StateTensor",
    "StoredTables",
    "check_shard_files",
    "join_parts",
    "rows_of_ids",
    "write_safetensors",
    "write_shard_file",
]

ROW_IDS = "row_ids"
"""Name of the ids of a table's rows, where these are not their numbers: read to find rows, and never written over."""

StateAxis = Literal["rows", "columns"]
_Range = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalTable:
    """The rows and columns of one embedding table that this rank stores: a shard, or the whole table."""

    name: str
    """Name of the table."""
    rows: tuple[int, int]
    """[start, stop) of its rows in the whole table; may be empty."""
    columns: tuple[int, int]
    """[start, stop) of its columns in the whole table."""

    @property
    def num_rows(self) -> int:
        """Rows stored."""
        return self.rows[1] - self.rows[0]

    @property
    def dim(self) -> int:
        """Columns stored."""
        return self.columns[1] - self.columns[0]

    @property
    def num_cells(self) -> int:
        """Rows times columns."""
        return self.num_rows * self.dim

    def common(self, other: "LocalTable") -> "LocalTable":
        """What it has in common with another shard of the table; may be empty."""

        def overlap(first: _Range, second: _Range) -> _Range:
            start = max(first[0], second[0])
            return start, max(start, min(first[1], second[1]))

        return replace(self, rows=overlap(self.rows, other.rows), columns=overlap(self.columns, other.columns))

    def inside(self, whole: "LocalTable") -> tuple[slice, slice]:
        """Where it lies in a shard that it is a part of."""
        (top, _), (left, _) = whole.rows, whole.columns
        return slice(self.rows[0] - top, self.rows[1] - top), slice(self.columns[0] - left, self.columns[1] - left)


@dataclass(frozen=True, kw_only=True, slots=True)
class StateTensor:
    """One named tensor of what a rank stores, and how it is cut where several ranks hold parts of it.

    Checkpoints, resharding, export and pretrained rows know nothing of a table but these::

        name             axes                   shape              the part of another shard
        weight           ("rows", "columns")    [rows, columns]    its cells
        sum_of_squares   ("rows",)              [rows]             its rows: a mean over the piece's columns
        row_ids          ("rows",)              [rows]             ids of rows that stand in another order
        step             ()                     any                the same in every piece, never cut
        kept_rows        ()                     any                likewise: rows of another table that these are
    """

    piece: LocalTable
    """Which shard of which table it belongs to; what several tables share has a name of its own and
    rows = columns = (0, 1)."""
    name: str
    """What it holds: "weight", or what an optimiser keeps beside it; letters, digits and underscores."""
    tensor: Tensor
    """The values; may be a view into the storage, so it is read before the next step, and never written."""
    axes: tuple[StateAxis, ...]
    """What its axes run over, as drawn above."""
    replicated: bool
    """Whether every rank holds the same copy."""
    is_copy: bool = False
    """Whether a rank of another group of ranks holds the same, and saves it (`Plan.replica_groups`)."""
    fixed: bool = False
    """Whether what it means depends on its shape: then no rows can be added behind it."""

    @property
    def key(self) -> str:
        """Its name in a file."""
        return _shard_key(self.piece, self.name)

    @property
    def is_value(self) -> bool:
        """Whether lookups need it, and not only learning."""
        return self.name in {"weight", "kept_rows", "codes", "clusterings"}


class StoredTables(Protocol):
    """Tables of one rank, as checkpoints see them: `windrow.recsys.tables.table.TableBatch`."""

    def state(self) -> Sequence[StateTensor]:
        """Everything that is stored, by name."""

    def load_state(self, tensors: Iterable[StateTensor]) -> None:
        """Overwrite all of it."""


_FORMAT = {"format": "windrow.tables", "format_version": "1"}
"""What the header of every file says."""

_AXES: tuple[StateAxis, ...] = ("rows", "columns")
"""What a tensor's axes run over, the first ones where it has fewer; the header's "axes" names those with others."""

_KEY = re.compile(r"(.+)/(\d+)-(\d+)/(\d+)-(\d+)/(\w+)", re.DOTALL)


def write_shard_file(path: Path, state: Iterable[StateTensor]) -> str:
    """Write what one rank holds, of pieces that do not overlap; what is replicated is written by one rank only.

    Args:
        path: the file; its folder exists. It is replaced in one step.
        state: one tensor of it at a time is copied, and only where it comes from a GPU.

    Returns:
        The file's SHA-256, hexadecimal: what `check_shard_files` compares.

    Raises:
        OSError: the disk is full or not writable; the old file is as it was.
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
        key = found.key
        assert key not in tensors, f"{key} is there twice"
        tensors[key] = tensor
        if found.axes != _AXES[: tensor.ndim]:
            axes[key] = found.axes
    layout = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()}
    metadata = _FORMAT | ({"axes": json.dumps(axes)} if axes else {})
    return write_safetensors(path, layout, lambda key: [tensors[key]], metadata=metadata)


def check_shard_files(folder: Path, checksums: Mapping[str, str]) -> None:
    """Compare files of a folder with their SHA-256 by name; ranks may share them out, since each file is read whole.

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


def _shard_key(member: LocalTable, what: str) -> str:
    """The tensor's name for a content of a shard."""
    (top, bottom), (left, right) = member.rows, member.columns
    return f"{member.name}/{top}-{bottom}/{left}-{right}/{what}"


_MOST_PIECES_SHOWN = 3
_ROWS_AT_ONCE = 1 << 16


class _Stored(NamedTuple):
    """A piece of a table in a file."""

    piece: LocalTable
    name: str
    file: Any
    contents: list[str]

    def __str__(self) -> str:
        return f"{_shown(self.piece)} in {self.name}"


class ShardReader:
    """Files of `write_shard_file`, open for reading; a context manager.

    Each rank opens all files and reads only what it asks for: files are mapped, and only the rows and columns
    requested are touched. Contents are not compared with checksums; see `check_shard_files`.

    Args:
        folder: where the files are.
        names: the files, all that were written together.

    Raises:
        StoreError: a file is missing, cut off, or of another kind or version.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._folder = folder
        self._tables: dict[str, list[_Stored]] = {}
        self._axes: dict[str, Sequence[StateAxis]] = {}
        with ExitStack() as opened:
            for name in names:
                self._add(folder / name, opened)
            self._files = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tables = {}
        self._files.close()

    @property
    def tables(self) -> list[str]:
        """Names of the tables that there are pieces of."""
        return list(self._tables)

    def shape(self, table: str) -> tuple[int, int]:
        """Rows and columns of a table, as far as its pieces reach; StoreError where no file has it, as below."""
        pieces = [stored.piece for stored in self._pieces(table)]
        return max(piece.rows[1] for piece in pieces), max(piece.columns[1] for piece in pieces)

    def contents(self, table: str) -> list[str]:
        """What there is of a table: "weight" and the names of optimiser state."""
        return self._pieces(table)[0].contents

    def dtype(self, table: str) -> torch.dtype:
        """How the weights are stored."""
        return self._sample(table, "weight").dtype

    def read(self, table: str, rows: _Range, columns: _Range, what: str = "weight") -> Tensor:
        """One content of a shard of a table.

        See `join_parts`. What is not cut (Adam's step) must be the same in all pieces.

        Args:
            table: name.
            rows: [start, stop).
            columns: [start, stop).
            what: "weight", or one of `contents`.

        Returns:
            As stored: [rows, columns], [rows] or what is not cut, a tensor of the caller's own.

        Raises:
            StoreError: the files do not hold all of it, hold some of it twice, or disagree.
        """
        wanted = LocalTable(name=table, rows=rows, columns=columns)
        pieces = self._pieces(table)
        shared = [(stored, common) for stored in pieces if (common := stored.piece.common(wanted)).num_cells]
        for (one, rectangle), (other, another) in combinations(shared, 2):
            if rectangle.common(another).num_cells:
                raise StoreError(f"{self._folder}: {one} and {other} overlap: the files were not written together")
        if sum(common.num_cells for _, common in shared) != wanted.num_cells:
            shown = "; ".join(map(str, pieces[:_MOST_PIECES_SHOWN]))
            raise StoreError(
                f"{self._folder}: {_shown(wanted)} is not all there. The files hold {shown}"
                f"{'; ...' * (len(pieces) > _MOST_PIECES_SHOWN)}. Is a file missing, or has the table grown?"
            )
        sample = self._sample(table, what)
        axes = self._axes.get(_shard_key(pieces[0].piece, what), _AXES[: sample.ndim])
        if not axes:
            return self._uncut([stored for stored, _ in shared] or pieces[:1], what)
        # In the order of their columns, so that sums do not depend on which file holds what.
        ordered = sorted(shared, key=lambda found: (found[1].rows, found[1].columns))
        parts = (
            (common, self._view(stored, what)[common.inside(stored.piece)[: len(axes)]]) for stored, common in ordered
        )
        return join_parts(wanted, parts, len(axes), like=sample)

    def read_ids(self, table: str, ids: Tensor, columns: _Range, what: str) -> Tensor:
        """One content of the rows of some ids, of a table whose rows stood in any order, as `ROW_IDS` says.

        Args:
            table: name.
            ids: int64 [n], distinct.
            columns: [start, stop).
            what: as of `read`.

        Returns:
            As stored: [n, columns] or [n].

        Raises:
            StoreError: as `read`; or it is not known which row has which id.

        Cost: reads the whole table, some rows at a time.
        """
        rows, found = rows_of_ids(
            ids,
            self.shape(table)[0],
            lambda window: self.read(table, window, columns, ROW_IDS),
            lambda window: self.read(table, window, columns, what),
        )
        if found != len(ids):
            raise StoreError(f"{self._folder}: {len(ids) - found} of {len(ids)} rows of table {table!r} are not there")
        return rows

    def _add(self, path: Path, opened: ExitStack) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            # The library's stubs do not declare the context manager that its documentation shows.
            file: Any = opened.enter_context(safe_open(path, framework="pt"))
            metadata = file.metadata() or {}
        except (OSError, SafetensorError) as error:
            raise StoreError(f"{path} cannot be read: {error}. Use an older checkpoint.") from error
        found = {name: metadata.get(name) for name in _FORMAT}
        matches = [_KEY.fullmatch(key) for key in file.keys()]  # noqa: SIM118 - not a mapping
        if found != _FORMAT or None in matches:
            raise StoreError(
                f"{path} holds {found} where {_FORMAT} is read: use the windrow that wrote it, if it is a checkpoint's"
            )
        self._axes |= json.loads(metadata.get("axes", "{}"))
        pieces: dict[LocalTable, list[str]] = {}
        for match in filter(None, matches):
            top, bottom, left, right = map(int, match.groups()[1:5])
            pieces.setdefault(LocalTable(name=match[1], rows=(top, bottom), columns=(left, right)), []).append(match[6])
        for piece, contents in pieces.items():
            self._tables.setdefault(piece.name, []).append(_Stored(piece, path.name, file, contents))

    def _pieces(self, table: str) -> list[_Stored]:
        if table not in self._tables:
            known = ", ".join(self._tables) or "no tables"
            raise StoreError(f"{self._folder} has no table {table!r}: it holds {known}")
        return self._tables[table]

    def _view(self, stored: _Stored, what: str) -> Any:
        """The library's view of a tensor on disk."""
        if what not in stored.contents:
            held = ", ".join(stored.contents)
            raise StoreError(f"{self._folder}: {stored} has no {what!r}, only {held}: was another optimiser used?")
        return stored.file.get_slice(_shard_key(stored.piece, what))

    def _sample(self, table: str, what: str) -> Tensor:
        """No rows of a content, or the number it consists of: tells dtype and number of axes."""
        stored = self._view(self._pieces(table)[0], what)
        sample: Tensor = stored[0:0] if stored.get_shape() else stored[...]
        return sample

    def _uncut(self, pieces: Sequence[_Stored], what: str) -> Tensor:
        values: list[Tensor] = [self._view(stored, what)[...] for stored in pieces]
        for stored, value in zip(pieces, values, strict=True):
            if not torch.equal(value, values[0]):
                raise StoreError(
                    f"{self._folder}: {what} is {value} in {stored} and {values[0]} in {pieces[0]}: the files were not "
                    "written together"
                )
        return values[0].clone()


def rows_of_ids(
    ids: Tensor, num_rows: int, read_ids: Callable[[_Range], Tensor], read: Callable[[_Range], Tensor]
) -> tuple[Tensor, int]:
    """Pick the rows of some ids out of a table that is read some rows at a time.

    Args:
        ids: int64 [n], distinct.
        num_rows: of the table.
        read_ids: the ids of the rows [start, stop).
        read: these rows.

    Returns:
        [n, ...] the rows of the ids, and how many of them were there; the others hold anything.
    """
    ordered, order = ids.sort()
    like, found = read((0, 0)), 0
    rows = like.new_empty((len(ids), *like.shape[1:]))
    for start in range(0, num_rows if len(ids) else 0, _ROWS_AT_ONCE):
        window = (start, min(start + _ROWS_AT_ONCE, num_rows))
        stored = read_ids(window)
        places = torch.searchsorted(ordered, stored).clamp(max=len(ids) - 1)
        hits = ordered[places] == stored
        if bool(hits.any()):
            rows[order[places[hits]]] = read(window)[hits]
            found += int(hits.sum())
    return rows, found


def join_parts(
    wanted: LocalTable, parts: Iterable[tuple[LocalTable, Tensor]], num_axes: int, *, like: Tensor
) -> Tensor:
    """Put a content of a shard together from what other shards have of it.

    What is stored for each weight is copied bit for bit. What is stored for each row (row-wise Adagrad) is the mean
    over columns of a quantity, so the parts beside each other are averaged, weighted with their columns.

    Args:
        wanted: the shard.
        parts: cut it without gaps or overlaps, each with its values; where they are averaged the order counts.
        num_axes: 2 where there is a value for each weight, 1 for each row.
        like: of the same dtype and device.

    Returns:
        [rows, columns] or [rows], new.
    """
    whole = num_axes == len(_AXES)
    shape = (wanted.num_rows, wanted.dim)[:num_axes]
    total = like.new_zeros(shape, dtype=like.dtype if whole else torch.float64)
    for common, part in parts:
        if whole:
            total[common.inside(wanted)] = part
        else:
            # In float64 so that parts that agree, or a single one, come out as they went in.
            total[common.inside(wanted)[0]] += part.double() * common.dim
    return total if whole else (total / max(wanted.dim, 1)).to(like.dtype)


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
    """Write a file that appears whole or not at all, with one piece in memory at a time; its SHA-256, hexadecimal.

    Args:
        path: the file; its folder exists. It is replaced in one step.
        layout: the tensors' names, dtypes and shapes.
        chunks: called once for each name; gives the tensor in pieces along its first axis, in order, on any device.
        metadata: texts to keep in the header.

    Raises:
        OSError: the disk is full or not writable; the old file is as it was.
    """
    # The widest numbers first, so that each tensor starts at a multiple of its item size.
    names = sorted(layout, key=lambda name: -layout[name][0].itemsize)
    sizes = {name: layout[name][0].itemsize * prod(layout[name][1]) for name in names}
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    start = 0
    for name in names:
        dtype, shape = layout[name]
        stop = start + sizes[name]
        entries[name] = {"dtype": _DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % _HEADER_MULTIPLE)
    opening = len(header).to_bytes(8, "little") + header
    digest = hashlib.sha256(opening)
    with open_atomically(path) as file:
        file.write(opening)
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
