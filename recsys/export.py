"""Whole tables out of a run, for others to use."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from windrow.partition.atomic_file import open_atomically
from windrow.recsys.tables.safetensors_writer import write_safetensors
from windrow.recsys.tables.shard_reader import ShardReader

__all__ = ["export_safetensors", "export_torchrec"]

CHUNK_BYTES = 1 << 24


def export_safetensors(reader: ShardReader, path: Path, *, tables: Iterable[str] | None = None) -> str:
    """Write one safetensors file with every table, whole: its name -> [rows, dim], in the precision it was trained in.

    Args:
        reader: of the ranks' files.
        path: the file; its folder exists. It is replaced in one step.
        tables: which; all by default.

    Returns:
        The file's SHA-256, hexadecimal.

    Raises:
        StoreError: a table is not all there.
        OSError: the disk is full or not writable; an old file is as it was.

    Memory: a few pieces of 16 MiB; rows are copied from file to file.
    """
    names = list(reader.tables if tables is None else tables)
    layout = {name: (reader.dtype(name), reader.shape(name)) for name in names}
    return write_safetensors(path, layout, lambda name: _row_chunks(reader, name), metadata={"format": "pt"})


def export_torchrec(
    reader: ShardReader,
    path: Path,
    *,
    tables: Iterable[str] | None = None,
    sequences: Collection[str] = (),
) -> None:
    """Write a state dict that TorchRec's collections load, by `torch.save`.

    ::

        collection = EmbeddingBagCollection(tables=[EmbeddingBagConfig(name="item", ...)])
        collection.load_state_dict(torch.load(path))       # embedding_bags.item.weight -> [rows, dim]

    Tables of an ``EmbeddingCollection`` are called ``embeddings.NAME.weight``.

    Args:
        reader: of the ranks' files.
        path: the file; its folder exists. It is replaced in one step.
        tables: which: those of that collection; all by default.
        sequences: those that are looked up row by row, an ``EmbeddingCollection``'s.

    Raises:
        StoreError: a table is not all there.
        OSError: the disk is full or not writable; an old file is as it was.

    Memory: all these tables at once, since PyTorch saves no other way.
    """
    names = list(reader.tables if tables is None else tables)
    state = {
        f"{'embeddings' if name in sequences else 'embedding_bags'}.{name}.weight": _whole(reader, name)
        for name in names
    }
    with open_atomically(path) as file:
        torch.save(state, file)


def _row_chunks(reader: ShardReader, table: str) -> Iterator[Tensor]:
    rows, dim = reader.shape(table)
    step = max(CHUNK_BYTES // (dim * reader.dtype(table).itemsize), 1)
    for start in range(0, rows, step):
        yield reader.read(table, (start, min(start + step, rows)), (0, dim))


def _whole(reader: ShardReader, table: str) -> Tensor:
    rows, dim = reader.shape(table)
    return reader.read(table, (0, rows), (0, dim))
