"""First values of embedding tables, the same under every plan.

A value is a function of seed, table name, row and column of the whole table, so a shard holds what the same rectangle
of the whole table would.
"""

import hashlib

import numpy as np
import torch
from torch import Tensor

from windrow.comm.random import Stream, stream_key

__all__ = ["default_scale", "initialise_rectangle"]

CHUNK_VALUES = 1 << 20
"""Values made at a time where they must be converted or sent to another device: 4 MB, so they stay in a cache."""


def default_scale(table_rows: int) -> float:
    """sqrt(1 / rows): half the width of the first values' interval, as in DLRM (Naumov et al., 2019)."""
    return float(max(table_rows, 1) ** -0.5)


def initialise_rectangle(
    weight: Tensor, name: str, *, first_row: int, first_column: int, scale: float, seed: int
) -> None:
    """Write the first values of a rectangle of a table, uniform in [-scale, scale).

    Args:
        weight: [rows, columns] of any float type on any device, written; rounded from float32 where it is shorter.
        name: of the table.
        first_row: of the rectangle in the whole table.
        first_column: of the rectangle in the whole table.
        scale: half the width of the interval.
        seed: the run's seed.
    """
    from windrow.recsys.tables.initialise_kernels import fill_uniform

    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    key = np.uint64(stream_key(seed, Stream.INITIALISE, int.from_bytes(digest, "little")))
    if weight.device.type == "cpu" and weight.dtype == torch.float32:
        fill_uniform(weight.numpy(), key, first_row, first_column, np.float32(scale))
        return
    rows_at_once = max(CHUNK_VALUES // max(weight.shape[1], 1), 1)
    for start in range(0, len(weight), rows_at_once):
        part = weight[start : start + rows_at_once]
        values = np.empty(part.shape, dtype=np.float32)
        fill_uniform(values, key, first_row + start, first_column, np.float32(scale))
        part.copy_(torch.from_numpy(values))
