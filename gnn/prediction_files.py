"""Files of predictions for vertices, written chunk by chunk: Parquet of labels, or a NumPy array of vectors.

A file takes its name, durably, when the block that writes it ends without an error; else an old one is as it was.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from torch import Tensor

from windrow.comm.errors import StoreError
from windrow.gnn.graph import Task
from windrow.gnn.metrics import check_finite, prediction_columns
from windrow.partition.atomic_writes import open_atomically

__all__ = ["prediction_file", "vector_file"]

METADATA_KEY = "windrow"
"""Of what the file says about itself, as JSON, in the metadata of its schema."""


@contextlib.contextmanager
def vector_file(path: Path, shape: tuple[int, int]) -> Iterator[Callable[[Tensor, Tensor], None]]:
    """The same as `prediction_file` for vectors of all vertices: a NumPy array of float32 of this shape."""
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False, "shape": shape}

    def write(vertices: Tensor, rows: Tensor) -> None:
        check_finite(vertices, rows)
        file.write(rows.float().contiguous().numpy().data)

    with _written(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        yield write


@contextlib.contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """Open a new file, which takes its name, durably, when the block ends without an error."""
    try:
        with open_atomically(path) as file:
            yield file
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror or error}. Make room, or choose another --out."
        ) from error


@contextlib.contextmanager
def prediction_file(
    path: Path, task: Task, num_outputs: int, about: Mapping[str, Any], *, ids: Any = None
) -> Iterator[Callable[[Tensor, Tensor], None]]:
    """Open a new file, which takes its name, durably, when the block ends without an error.

    Args:
        path: of the file; its folder exists. It is replaced in one step.
        task: of the graph, which says what the columns are.
        num_outputs: numbers that a model gives for a vertex.
        about: what JSON can hold; kept in the metadata of the file's schema.
        ids: ``pyarrow.Array`` [N] of the vertices' ids in the user's files; None where these are their numbers.

    Yields:
        What appends a chunk: int64 [n] numbers in the user's order, ascending over all chunks, and [n, outputs] logits.
        It raises a DataError where an output is NaN or infinite.

    Raises:
        StoreError: the disk is full or the folder not writable; an old file is as it was.
    """
    import pyarrow as pa
    from pyarrow import parquet

    fields = [("vertex", pa.int64())]
    if ids is not None:
        fields.append(("id", ids.type))
    if task == "single-label":
        fields.append(("prediction", pa.int32()))
    if task == "multi-label":
        fields.append(("probabilities", pa.list_(pa.float32(), num_outputs)))
    else:
        fields.append(("probability", pa.float32()))
    schema = pa.schema(
        [pa.field(name, kind, nullable=False) for name, kind in fields],
        metadata={METADATA_KEY: json.dumps(dict(about))},
    )

    def write(vertices: Tensor, logits: Tensor) -> None:
        check_finite(vertices, logits)
        columns = {"vertex": pa.array(vertices.numpy())}
        if ids is not None:
            columns["id"] = ids.take(columns["vertex"])
        for name, values in prediction_columns(task, logits).items():
            column = pa.array(values.reshape(-1).numpy())
            is_list = values.dim() > 1
            columns[name] = pa.FixedSizeListArray.from_arrays(column, values.shape[1]) if is_list else column
        writer.write_table(pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema))

    with _written(path) as file, parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        yield write
