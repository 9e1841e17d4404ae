"""Vertex features: from sparse to dense, and to a common scale."""

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from windrow.comm.errors import DataError, RecipeError

__all__ = ["Standardise", "dense_features", "float_features", "standardise_features"]

Standardise = Literal["none", "standard", "rows"]
"""As they are; each column to mean 0 and variance 1; or each row divided by the sum of its magnitudes."""


COLUMNS_PER_CHUNK = 64


def float_features(values: Tensor | npt.NDArray[np.generic]) -> Tensor:
    """Turn a matrix of numbers into float32 rows.

    Args:
        values: integers, booleans or floats, [N, F] or [N] (one feature).

    Returns:
        float32 [N, F].

    Raises:
        DataError: the values are no numbers.
    """
    if not isinstance(values, Tensor):
        if values.dtype.kind not in "biuf":
            raise DataError(f"features have dtype {values.dtype}; convert them to numbers.")
        if values.dtype in (np.uint16, np.uint32, np.uint64):
            values = values.astype(np.float32)
        values = torch.from_numpy(np.ascontiguousarray(values))
    values = values.detach().to(torch.float32)
    return values.unsqueeze(1) if values.dim() == 1 else values.contiguous()


def dense_features(
    indptr: npt.NDArray[np.integer],
    indices: npt.NDArray[np.integer],
    values: npt.NDArray[np.generic],
    shape: tuple[int, int],
) -> Tensor:
    """Fill in the zeros of a sparse matrix stored by row (CSR).

    Args:
        indptr: integers [N + 1].
        indices: integers [nonzeros]; columns.
        values: numbers [nonzeros].
        shape: (N, F).

    Returns:
        float32 [N, F].

    Raises:
        DataError: the three arrays do not describe a matrix of this shape.
    """
    rows, columns = shape
    offsets = indptr.astype(np.int64)
    per_row = offsets[1:] - offsets[:-1]
    consistent = (
        indptr.shape == (rows + 1,)
        and indices.shape == values.shape == (int(offsets[-1]),)
        and int(offsets[0]) == 0
        and bool((per_row >= 0).all())
    )
    if not consistent:
        raise DataError(
            f"the sparse features of shape {shape} are inconsistent: {indptr.size} offsets, {indices.size} "
            f"columns, {values.size} values; write the matrix again, for example with "
            "scipy.sparse.csr_matrix."
        )
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < columns:
        position = int(np.flatnonzero((indices.astype(np.int64) < 0) | (indices >= columns))[0])
        raise DataError(
            f"sparse feature {position} is in column {indices[position]}, but there are {columns} columns; "
            "correct the matrix or its shape."
        )
    dense = np.zeros((rows, columns), dtype=np.float32)
    row_of_value = np.repeat(np.arange(rows), per_row)
    np.add.at(dense, (row_of_value, indices), values.astype(np.float32))
    return torch.from_numpy(dense)


def standardise_features(features: Tensor, how: Standardise) -> None:
    """Bring features to a common scale, in place: features may fill most of the memory.

    The statistics are taken over all vertices, those of the test split included: features of every vertex are
    known while training (transductive learning), and only their labels are hidden.

    Args:
        features: floats [N, F], changed.
        how: "none" leaves them unchanged. "standard" gives each column mean 0 and variance 1; a constant
            column becomes 0. "rows" divides each row by the sum of its magnitudes, as is usual for bags of
            words; a row of zeros stays.

    Raises:
        RecipeError: `how` is none of the three.
    """
    if how == "standard":
        for start in range(0, features.shape[1], COLUMNS_PER_CHUNK):
            columns = features[:, start : start + COLUMNS_PER_CHUNK]
            columns.copy_(_standard_columns(columns))
    elif how == "rows":
        sums = torch.linalg.vector_norm(features, ord=1, dim=1, keepdim=True)
        features.div_(torch.where(sums > 0, sums, 1.0))
    elif how != "none":
        raise RecipeError(f"standardise is {how!r}; use 'none', 'standard' or 'rows'.")


def _standard_columns(columns: Tensor) -> Tensor:
    variance, mean = torch.var_mean(columns.double(), dim=0, correction=0)
    constant = columns.amin(dim=0) == columns.amax(dim=0)
    scale = torch.where(constant, 1.0, variance.sqrt())
    return ((columns - mean) / scale).masked_fill(constant, 0.0)
