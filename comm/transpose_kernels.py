"""Lists turned round: from the columns that each row lists to the rows in whose lists each column stands."""

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["transpose"]

Entries = npt.NDArray[np.integer]


@numba.njit(cache=True, nogil=True)
def transpose(
    indptr: Entries,
    indices: Entries,
    out_indptr: npt.NDArray[np.int64],
    out_indices: Entries,
    positions: Entries | None,
) -> None:
    """List, for each column, the rows that list it, ascending; a counting sort that needs no memory of its own.

    Args:
        indptr: [rows + 1], where each row's list starts.
        indices: [E], the lists one after another.
        out_indptr: int64 [columns + 1] of zeros; written.
        out_indices: [E] of any integer type; written.
        positions: [E] of any integer type; written: where each entry stands in `indices`. None: nobody asks.
    """
    num_columns = len(out_indptr) - 1
    for entry in range(len(indices)):
        out_indptr[indices[entry] + 1] += 1
    for column in range(num_columns):
        out_indptr[column + 1] += out_indptr[column]
    for row in range(len(indptr) - 1):
        for entry in range(indptr[row], indptr[row + 1]):
            place = out_indptr[indices[entry]]
            out_indptr[indices[entry]] = place + 1
            out_indices[place] = row
            if positions is not None:
                positions[place] = entry
    # Filling has moved every start to the next one's.
    for column in range(num_columns, 0, -1):
        out_indptr[column] = out_indptr[column - 1]
    out_indptr[0] = 0
