"""From options to a batch of tables with their first values."""

from collections.abc import Mapping

import torch

from windrow.comm.errors import RecipeError
from windrow.recsys.tables.dense_gradient import DenseGradientTableBatch
from windrow.recsys.tables.initialise import default_scale, initialise_rectangle
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import LocalTable, TableBatch

__all__ = ["make_table_batch"]


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
