"""Any rectangle of a table, put together from the files of any number of ranks."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from windrow.comm.errors import StoreError
from windrow.recsys.tables.shard_files import FORMAT, parse_key, shard_key
from windrow.recsys.tables.table import LocalTable

__all__ = ["ShardReader"]

Range = tuple[int, int]
MOST_PIECES_SHOWN = 3


class Overlap(NamedTuple):
    """A piece on disk, and the part of it that a request touches."""

    piece: LocalTable
    rows: Range
    columns: Range

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

    def read(self, table: str, rows: Range, columns: Range, what: str = "weight") -> Tensor:
        """One content of a rectangle of a table.

        What is stored for each weight is copied bit for bit. What is stored for each row (row-wise Adagrad) is the
        mean over columns of a quantity, so the pieces beside each other are averaged, weighted with the columns
        they have in common with the request. One number for a whole piece (Adam's step) must be the same in all.

        Args:
            table: name.
            rows: [start, stop).
            columns: [start, stop).
            what: "weight", or one of `contents`.

        Returns:
            As stored: [rows, columns], [rows] or [], a tensor of the caller's own.

        Raises:
            StoreError: the files do not hold all of it, or disagree.
        """
        overlaps = self._overlapping(table, rows, columns)
        if sum(overlap.area for overlap in overlaps) != (rows[1] - rows[0]) * (columns[1] - columns[0]):
            raise self._incomplete(table, rows, columns)
        sample = self._sample(table, what)
        if sample.ndim == 0:
            return self._scalar(overlaps, what) if overlaps else sample
        shape = (rows[1] - rows[0], columns[1] - columns[0])[: sample.ndim]
        total = sample.new_zeros(shape, dtype=sample.dtype if sample.ndim == 2 else torch.float64)
        for overlap in overlaps:
            inside = slice(overlap.rows[0] - rows[0], overlap.rows[1] - rows[0])
            part = self._part(overlap, what)
            if sample.ndim == 2:
                total[inside, overlap.columns[0] - columns[0] : overlap.columns[1] - columns[0]] = part
            else:
                # In float64 so that pieces that agree, or a single one, come out as they went in.
                total[inside] += part.double() * (overlap.columns[1] - overlap.columns[0])
        return total if sample.ndim == 2 else (total / max(columns[1] - columns[0], 1)).to(sample.dtype)

    def _open(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            # The library's stubs do not declare the context manager that its documentation shows.
            file: Any = self._stack.enter_context(safe_open(path, framework="pt"))
            metadata = file.metadata() or {}
        except (OSError, SafetensorError) as error:
            raise StoreError(f"{path} cannot be read: {error}. Use an older checkpoint.") from error
        if metadata.get("format") != FORMAT["format"]:
            raise StoreError(f"{path} holds no embedding tables of windrow: its header says {metadata}")
        if metadata.get("format_version") != FORMAT["format_version"]:
            raise StoreError(
                f"{path} has format version {metadata.get('format_version')}, and this windrow reads "
                f"{FORMAT['format_version']}: use the windrow that wrote it"
            )
        for key in file.keys():  # noqa: SIM118 - not a mapping
            parsed = parse_key(key)
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

    def _overlapping(self, table: str, rows: Range, columns: Range) -> list[Overlap]:
        found = []
        for piece in self._pieces(table):
            common = Overlap(piece, _common(piece.rows, rows), _common(piece.columns, columns))
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
        return file.get_slice(shard_key(piece, what))

    def _sample(self, table: str, what: str) -> Tensor:
        """No rows of a content, or the number it consists of: tells dtype and number of axes."""
        stored = self._stored(next(iter(self._pieces(table))), what)
        sample: Tensor = stored[0:0] if stored.get_shape() else stored[...].clone()
        return sample

    def _part(self, overlap: Overlap, what: str) -> Tensor:
        """The part of a content that an overlap names, read from its file."""
        stored = self._stored(overlap.piece, what)
        (top, _), (left, _) = overlap.piece.rows, overlap.piece.columns
        inside = (
            slice(overlap.rows[0] - top, overlap.rows[1] - top),
            slice(overlap.columns[0] - left, overlap.columns[1] - left),
        )
        part: Tensor = stored[inside[: len(stored.get_shape())]]
        return part

    def _scalar(self, overlaps: list[Overlap], what: str) -> Tensor:
        values: list[Tensor] = [self._stored(overlap.piece, what)[...] for overlap in overlaps]
        for overlap, value in zip(overlaps, values, strict=True):
            if not torch.equal(value, values[0]):
                raise StoreError(
                    f"{self._folder}: {what} is {value.item()} in {_shown(overlap.piece)} and {values[0].item()} in "
                    f"{_shown(overlaps[0].piece)}: the files were not written together"
                )
        return values[0].clone()

    def _incomplete(self, table: str, rows: Range, columns: Range) -> StoreError:
        pieces = sorted(self._pieces(table), key=lambda piece: (piece.rows, piece.columns))
        shown = "; ".join(_shown(piece) for piece in pieces[:MOST_PIECES_SHOWN])
        more = f"; and {len(pieces) - MOST_PIECES_SHOWN} more" if len(pieces) > MOST_PIECES_SHOWN else ""
        wanted = LocalTable(name=table, rows=rows, columns=columns)
        return StoreError(
            f"{self._folder}: {_shown(wanted)} is not all there. The files hold {shown}{more}. Is a file missing, or "
            "has the table grown?"
        )


def _common(first: Range, second: Range) -> Range:
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


def _shown(piece: LocalTable) -> str:
    return f"table {piece.name!r}, rows {list(piece.rows)}, columns {list(piece.columns)}"
