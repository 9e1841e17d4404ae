"""Rows that were trained elsewhere, read where they will live; whole tables out of a run, for others to use."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import DataError, nearest_name
from windrow.comm.numpy_files import map_array
from windrow.partition.atomic_writes import open_atomically
from windrow.training.shard_files import ROW_IDS, ShardReader, StateTensor, rows_of_ids, write_safetensors

__all__ = ["export_safetensors", "export_torchrec", "load_pretrained", "write_pretrained"]

Range = tuple[int, int]


def load_pretrained(path: Path, table: str, rows: Range, columns: Range, *, shape: tuple[int, int]) -> Tensor:
    """Read a shard of a table's rows from a file; each rank reads its own, and nothing else.

    Args:
        path: a NumPy array (``.npy``), or a safetensors file whose tensor has the table's name or is the only
            one; floating point numbers, row k for id k.
        table: name of the table.
        rows: [start, stop) to read.
        columns: [start, stop) to read.
        shape: rows and dim of the whole table, which the file must have.

    Returns:
        [rows, columns] float32.

    Raises:
        DataError: no such file or tensor, another shape, no floating point numbers, or one that is not finite; the
            message names file and row.

    Memory: the shard; files are mapped.
    """
    if path.suffix not in (".npy", ".safetensors"):
        raise DataError(f"{path}: pretrained rows are read from .npy and .safetensors files")
    if not path.is_file():
        raise DataError(f"{path}: no such file; it should hold the pretrained rows of table {table!r}")
    read = _read_npy if path.suffix == ".npy" else _read_safetensors
    part = read(path, table, rows, columns, shape)
    finite = torch.isfinite(part)
    if not bool(finite.all()):
        row, column = (int(number) for number in (~finite).nonzero()[0])
        raise DataError(
            f"{path}: row {rows[0] + row}, column {columns[0] + column} of the pretrained rows of table {table!r} is "
            f"{part[row, column].item()}, not a finite float32: repair the file"
        )
    return part


def write_pretrained(
    pieces: Sequence[StateTensor], path: Path, shape: tuple[int, int], row_ids: Tensor | None = None
) -> None:
    """Overwrite weights that this rank stores of a table by those of a file.

    Args:
        pieces: of one table.
        path: of the file, as `load_pretrained` reads it.
        shape: rows and dim of the whole table.
        row_ids: int64 [rows], the id of each row of the table, where it is not its number.

    Raises:
        DataError: see `load_pretrained`.
    """
    for found in pieces:
        piece = found.piece
        if row_ids is None:
            values = load_pretrained(path, piece.name, piece.rows, piece.columns, shape=shape)
        else:
            read = partial(load_pretrained, path, piece.name, columns=piece.columns, shape=shape)
            values, _ = rows_of_ids(row_ids[slice(*piece.rows)], shape[0], lambda rows: torch.arange(*rows), read)
        found.tensor.copy_(values)


def _read_npy(path: Path, table: str, rows: Range, columns: Range, shape: tuple[int, int]) -> Tensor:
    try:
        array = map_array(path)
    except ValueError as error:
        raise DataError(f"{path} is no NumPy array that can be mapped: {error}") from error
    _check(path, table, tuple(array.shape), shape, str(array.dtype), is_floating=array.dtype.kind == "f")
    with np.errstate(over="ignore"):
        part = np.array(array[slice(*rows), slice(*columns)], dtype=np.float32, order="C")
    return torch.from_numpy(part)


def _read_safetensors(path: Path, table: str, rows: Range, columns: Range, shape: tuple[int, int]) -> Tensor:
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} is no safetensors file: {error}") from error
    with opened as file:
        stored = file.get_slice(_tensor_name(path, table, list(file.keys())))
        sample = stored[0:0] if stored.get_shape() else stored[...]
        found = tuple(stored.get_shape())
        _check(path, table, found, shape, str(sample.dtype), is_floating=sample.is_floating_point())
        part: Tensor = stored[slice(*rows), slice(*columns)]
        return part.to(torch.float32, copy=True, memory_format=torch.contiguous_format)


def _tensor_name(path: Path, table: str, names: list[str]) -> str:
    if table in names:
        return table
    if len(names) == 1:
        return names[0]
    raise DataError(f"{path} has no tensor {table!r}. {nearest_name(table, names)}")


def _check(
    path: Path, table: str, found: tuple[int, ...], shape: tuple[int, int], dtype: str, *, is_floating: bool
) -> None:
    if found != shape:
        raise DataError(
            f"{path} has shape {list(found)}, and table {table!r} has {shape[0]} rows of {shape[1]} numbers"
        )
    if not is_floating:
        raise DataError(f"{path} holds {dtype}: pretrained rows are floating point numbers")


CHUNK_BYTES = 1 << 24
CHUNK_BYTES_BY_ID = 1 << 30
"""Of a table whose rows stand in another order than that of their ids: all of it is read for each chunk."""


def export_safetensors(reader: ShardReader, path: Path, *, tables: Iterable[str] | None = None) -> str:
    """Write one safetensors file with every table, whole: its name -> [rows, dim], by id, in the precision of training.

    Args:
        reader: of the ranks' files.
        path: the file; its folder exists. It is replaced in one step.
        tables: which; all by default.

    Returns:
        The file's SHA-256, hexadecimal.

    Raises:
        StoreError: a table is not all there.
        OSError: the disk is full or not writable; an old file is as it was.

    Memory: a few pieces of 16 MiB, or of 1 GiB of rows that stand in another order; they are copied from file to file.
    """
    names = list(reader.tables if tables is None else tables)
    layout = {name: (reader.dtype(name), reader.shape(name)) for name in names}
    return write_safetensors(path, layout, lambda name: _row_chunks(reader, name), metadata={"format": "pt"})


def export_torchrec(
    reader: ShardReader, path: Path, *, tables: Iterable[str] | None = None, sequences: Collection[str] = ()
) -> None:
    """Write a state dict that TorchRec's collections load, by `torch.save`.

    ::

        collection = EmbeddingBagCollection(tables=[EmbeddingBagConfig(name="item", ...)])
        collection.load_state_dict(torch.load(path))       # embedding_bags.item.weight -> [rows, dim]

    Tables of an ``EmbeddingCollection`` are called ``embeddings.NAME.weight``.

    Args:
        reader: of the ranks' files.
        path: as of `export_safetensors`, whose errors it raises.
        tables: which: those of that collection; all by default.
        sequences: those that are looked up row by row, an ``EmbeddingCollection``'s.

    Memory: all these tables at once, since PyTorch saves no other way.
    """
    names = list(reader.tables if tables is None else tables)
    state = {}
    for name in names:
        kind = "embeddings" if name in sequences else "embedding_bags"
        state[f"{kind}.{name}.weight"] = torch.cat([torch.empty(0, reader.shape(name)[1]), *_row_chunks(reader, name)])
    with open_atomically(path) as file:
        torch.save(state, file)


def _row_chunks(reader: ShardReader, table: str) -> Iterator[Tensor]:
    rows, dim = reader.shape(table)
    by_id = ROW_IDS in reader.contents(table)
    step = max((CHUNK_BYTES_BY_ID if by_id else CHUNK_BYTES) // (dim * reader.dtype(table).itemsize), 1)
    for start in range(0, rows, step):
        window = (start, min(start + step, rows))
        yield (
            reader.read_ids(table, torch.arange(*window), (0, dim), "weight")
            if by_id
            else reader.read(table, window, (0, dim))
        )
