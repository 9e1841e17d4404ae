"""Vertices known by names: numbering them, and finding a name's number."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError

__all__ = ["look_up", "number_names"]


def number_names(
    sources: Sequence[Any], destinations: Sequence[Any], order: Literal["first-appearance", "sorted"]
) -> tuple[Any, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Number every name that an edge mentions.

    Args:
        sources: a ``pyarrow.Array`` of names for each batch of edges.
        destinations: likewise, of the same lengths.
        order: "first-appearance" counts in the order of the edges, source before destination; "sorted"
            ascending.

    Returns:
        (names: a ``pyarrow.Array``, entry i the name of vertex i; sources and destinations as numbers, int64
        [E]).

    Cost:
        One hash table of all names.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not sources:
        empty = np.empty(0, dtype=np.int64)
        return pa.array([], pa.int64()), empty, empty
    chunks = [
        pa.concat_arrays([batch_sources, batch_destinations])
        .take(pa.array(_interleaved(len(batch_sources))))
        .dictionary_encode()
        for batch_sources, batch_destinations in zip(sources, destinations, strict=True)
    ]
    unified = pa.chunked_array(chunks).unify_dictionaries()
    names = unified.chunk(0).dictionary
    numbers = np.concatenate([chunk.indices.to_numpy() for chunk in unified.chunks]).astype(np.int64)
    if order == "sorted":
        ascending = pc.sort_indices(names)
        rank = np.empty(len(names), dtype=np.int64)
        rank[ascending.to_numpy()] = np.arange(len(names))
        names, numbers = names.take(ascending), rank[numbers]
    return names, numbers[0::2], numbers[1::2]


def look_up(names: Any, wanted: Sequence[Any], place: str) -> npt.NDArray[np.int64]:
    """Find the number of each name.

    Args:
        names: ``pyarrow.Array``, entry i the name of vertex i.
        wanted: a ``pyarrow.Array`` of names for each batch.
        place: file and column, for the error.

    Returns:
        int64, one number per wanted name.

    Raises:
        DataError: a name is not there; the message names it and its row, of which the first is 1.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pa.chunked_array(wanted, type=names.type)
    found = pc.index_in(values, value_set=names)
    if found.null_count:
        row = pc.index(pc.is_null(found), True).as_py()
        raise DataError(
            f"{place}, row {row + 1}: {values[row].as_py()!r} is not in the vertex file; add it there or "
            "remove the edge."
        )
    numbers: npt.NDArray[np.int64] = found.to_numpy().astype(np.int64)
    return numbers


def _interleaved(length: int) -> npt.NDArray[np.int64]:
    return np.arange(2 * length).reshape(2, length).T.reshape(-1)
