"""A Parquet file of predictions that appears whole or not at all, written chunk by chunk.

    vertex: int64    id: string    prediction: int32    probability: float      one row per vertex, in the user's order
    0                anna          3                    0.91
    1                bert          0                    0.55

There is a column of ids where the user's files know vertices by anything else than their numbers. Each chunk is a row
group, so that writer and readers need memory for one at a time.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor

from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.gnn.graph import Task
from windrow.gnn.readers.options import EdgeListOptions
from windrow.gnn.readers.vertex_table import read_vertex_ids
from windrow.partition.atomic_file import open_atomically

__all__ = ["PredictionFile", "check_writable", "users_ids"]

METADATA_KEY = "windrow"
"""Of what the file says about itself, as JSON, in the metadata of its schema."""


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, before hours are spent on what belongs into it.

    Args:
        path: of the file.

    Raises:
        RecipeError: pyarrow is not installed.
        StoreError: the path is a folder, or its folder is not there.
    """
    if find_spec("pyarrow") is None:
        raise RecipeError(
            "predictions are written with pyarrow, which is not installed: pip install 'windrow[parquet]'"
        )
    if path.is_dir():
        raise StoreError(f"--out {path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise StoreError(f"--out {path}: there is no folder {path.parent}: make it, or choose another --out")


def users_ids(columns: EdgeListOptions, num_vertices: int, *, say: Callable[[str], None]) -> Any:
    """Read what the user's files call the vertices.

    Args:
        columns: of the edge list and its vertex file.
        num_vertices: of the graph.
        say: told where the file is gone.

    Returns:
        ``pyarrow.Array`` [N]; None where vertices are called by their numbers, or the file is gone.

    Raises:
        DataError: the file has changed since the graph was read.

    Memory: all ids at once.
    """
    if columns.ids == "rows" or not columns.vertex_file:
        return None
    if not Path(columns.vertex_file).exists():
        say(
            f"windrow: {columns.vertex_file} is not there any more, so there is no column of its ids: a vertex's "
            "number is its row in it, from 0"
        )
        return None
    ids = read_vertex_ids(columns)
    if len(ids) != num_vertices:
        raise DataError(
            f"{columns.vertex_file} has {len(ids)} rows, but the graph {num_vertices} vertices, so it has changed: put "
            "back the file that the graph was partitioned with"
        )
    return ids


class PredictionFile:
    """Writes predictions to a file that is open already; `create` opens one.

    Args:
        writer: a ``pyarrow.parquet.ParquetWriter``.
        task: of the graph, which says what the columns are.
        ids: ``pyarrow.Array`` [N] of the vertices' ids in the user's files; None where these are their numbers.
    """

    def __init__(self, writer: Any, task: Task, ids: Any = None) -> None:
        self._writer = writer
        self._task = task
        self._ids = ids

    @staticmethod
    @contextlib.contextmanager
    def create(
        path: Path, task: Task, num_outputs: int, about: Mapping[str, Any], *, ids: Any = None
    ) -> Iterator["PredictionFile"]:
        """Open a new file, which takes its name, durably, when the block ends without an error.

        Args:
            path: of the file; its folder exists. It is replaced in one step.
            task: of the graph.
            num_outputs: numbers that a model gives for a vertex.
            about: what JSON can hold; kept in the metadata of the file's schema.
            ids: as for the class.

        Yields:
            What to write to.

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
        try:
            with (
                open_atomically(path) as file,
                parquet.ParquetWriter(file, schema, compression="zstd") as writer,
            ):
                yield PredictionFile(writer, task, ids)
        except OSError as error:
            raise StoreError(
                f"cannot write {path}: {error.strerror or error}. Make room, or choose another --out."
            ) from error

    def write(self, vertices: Tensor, logits: Tensor) -> None:
        """Append a chunk.

        Args:
            vertices: int64 [n], their numbers in the user's order, ascending and above those of earlier chunks.
            logits: [n, outputs] on the CPU.

        Raises:
            DataError: an output is NaN or infinite.
            OSError: the disk is full.
        """
        import pyarrow as pa

        from windrow.gnn.prediction_columns import check_finite, prediction_columns

        check_finite(vertices, logits)
        columns = {"vertex": pa.array(vertices.numpy())}
        if self._ids is not None:
            columns["id"] = self._ids.take(columns["vertex"])
        for name, values in prediction_columns(self._task, logits).items():
            column = pa.array(values.reshape(-1).numpy())
            is_list = values.dim() > 1
            columns[name] = pa.FixedSizeListArray.from_arrays(column, values.shape[1]) if is_list else column
        schema = self._writer.schema
        self._writer.write_table(
            pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
        )
