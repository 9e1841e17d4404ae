"""From options to a batch of tables with their first values, the same under every plan.

A value is a function of seed, table name, row and column of the whole table, so a shard holds what the same rectangle
of the whole table would.
"""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.comm.random import Stream, stream_key
from windrow.recsys.tables.dense_gradient import DenseGradientTableBatch
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import LocalTable, TableBatch

__all__ = ["default_scale", "initialise_rectangle", "make_table_batch"]


def make_table_batch(
    options: TableOptions,
    members: tuple[LocalTable, ...],
    lookups: tuple[int, ...],
    *,
    table_rows: Mapping[str, int],
    pooled: bool = True,
    fused: bool | None = None,
    device: torch.device | None = None,
    seed: int = 0,
) -> TableBatch:
    """Make the storage of some rectangles of tables, with their first values.

    Args:
        options: how values are stored, and how they learn.
        members: the rectangles.
        lookups: ascending members, one for each segment of the input; see `TableBatch`.
        table_rows: rows of the whole table for each name: its first values depend on them.
        pooled: sum the rows of each bag, or return each row.
        fused: learn within the backward pass, which neither adam nor weight decay can; False for dense
            gradients, which ranks can sum. None: fused where the optimiser can be.
        device: where to store them; None for the CPU.
        seed: the run's seed. Equal seeds give equal values, however the tables are cut.

    Returns:
        Values are those of `initialise_rectangle`; optimiser state is zero.

    Raises:
        RecipeError: options ask for fused adam or fused weight decay, or for fp16 with dense gradients.
    """
    names = ", ".join(dict.fromkeys(member.name for member in members))
    fused = options.can_fuse if fused is None else fused
    batch: TableBatch
    if fused:
        if not options.can_fuse:
            raise RecipeError(
                f'tables.optimizer = "{options.optimizer}", weight_decay = {options.weight_decay:g}: tables {names} '
                "are to learn within the backward pass, which these cannot: take rowwise_adagrad, adagrad or sgd "
                "without weight_decay"
            )
        from windrow.recsys.tables.fbgemm import FBGEMMTableBatch

        batch = FBGEMMTableBatch(members, lookups, options, pooled=pooled, device=device)
    else:
        if options.dtype != torch.float32:
            raise RecipeError(
                f'tables.precision = "{options.precision}": tables {names} have dense gradients (a copy on every '
                'rank), which need fp32: take precision = "fp32", or have the plan shard these tables'
            )
        batch = DenseGradientTableBatch(members, lookups, options, pooled=pooled, device=device)
    for number, member in enumerate(members):
        scale = options.initial_scale
        initialise_rectangle(
            batch.weight(number),
            member.name,
            first_row=member.rows[0],
            first_column=member.columns[0],
            scale=default_scale(table_rows[member.name]) if scale is None else scale,
            seed=seed,
        )
    return batch


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
    from windrow.recsys.tables.table_kernels import fill_uniform

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
