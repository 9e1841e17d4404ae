"""From options to a batch of tables with their first values, the same under every plan."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from windrow.comm.errors import RecipeError
from windrow.recsys.tables.dense_gradient import DenseGradientTableBatch
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.table import TableBatch, table_key
from windrow.training.shard_files import LocalTable

__all__ = ["first_values", "initialise", "make_table_batch"]

_GENERATOR_IN_USE = threading.Lock()
"""Ranks that are threads share PyTorch's generator."""


def make_table_batch(
    options: TableOptions,
    members: tuple[LocalTable, ...],
    lookups: tuple[int, ...],
    *,
    table_rows: Mapping[str, int],
    pooled: bool = True,
    replicated: bool = False,
    by_row: bool = False,
    device: torch.device | None = None,
    seed: int | None = 0,
    row_ids: Tensor | None = None,
) -> TableBatch:
    """Make the storage of some shards of tables, with their first values.

    Args:
        options: of all tables; those of the members must be `TableOptions.of_one_batch`.
        members: the shards.
        lookups: ascending members, one for each segment of the input; see `TableBatch`.
        table_rows: rows of the whole table for each name: its first values depend on them.
        pooled: sum the rows of each bag, or return each row.
        replicated: whether every rank holds the same shards: gradients are then dense, so that ranks can sum
            them. Others learn within the backward pass where the optimiser can.
        by_row: whether some ranks hold the same shards: gradients are then of the rows that were looked up alone.
        device: where to store them; None for the CPU.
        seed: the run's seed. Equal seeds give equal values, however the tables are cut. None: values are zero.
        row_ids: see `TableBatch.row_ids`.

    Returns:
        Values are uniform in [-initial_scale, initial_scale), for None sqrt(1 / rows) as in DLRM (Naumov et al.,
        2019); optimiser state is zero.

    Raises:
        RecipeError: options ask for fp16 with dense gradients; or move every row of what is to learn by row.
    """
    own = options.of(members[0].name)
    batch: TableBatch
    if by_row and own.moves_every_row:
        raise RecipeError(
            f'tables.optimizer = "{own.optimizer}" with weight_decay = {own.weight_decay:g} moves every row, but '
            "groups of ranks that hold all tables each (replica_groups) exchange the rows of a step alone: take sgd, "
            "adagrad or rowwise_adagrad without weight_decay"
        )
    if not (own.moves_every_row or replicated or by_row):
        from windrow.recsys.tables.fbgemm import FBGEMMTableBatch

        batch = FBGEMMTableBatch(members, lookups, own, pooled=pooled, device=device)
    else:
        if own.dtype != torch.float32:
            names = ", ".join(dict.fromkeys(member.name for member in members))
            raise RecipeError(
                f'tables.precision = "{own.precision}": tables {names} have gradients that ranks sum (copies on '
                'several ranks), which need fp32: take precision = "fp32", or have the plan hold these tables once'
            )
        batch = DenseGradientTableBatch(
            members,
            lookups,
            own,
            pooled=pooled,
            replicated=replicated,
            by_row=range(len(members)) if by_row else (),
            device=device,
        )
    batch.row_ids = row_ids
    if seed is not None:
        initialise(batch, options, table_rows, seed=seed)
    return batch


def initialise(batch: TableBatch, options: TableOptions, table_rows: Mapping[str, int], *, seed: int) -> None:
    """Write the first values of `make_table_batch`, whose arguments these are."""
    scales = [
        options.of(member.name).initial_scale or float(max(table_rows[member.name], 1) ** -0.5)
        for member in batch.members
    ]
    batch.initialise(seed=seed, scales=scales)


def first_values(init_fn: Callable[[Tensor], Any], name: str, shape: tuple[int, int], *, seed: int) -> Tensor:
    """Have a user's function write the first values of a whole table.

    Args:
        init_fn: writes into a parameter that holds normally distributed numbers, as TorchRec's. What it draws from
            PyTorch's CPU generator depends on seed and table alone, and no one else's draws depend on it.
        name: of the table.
        shape: rows and columns.
        seed: the run's seed.

    Returns:
        [rows, dim] float32 on the CPU.
    """
    with _GENERATOR_IN_USE, torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(table_key(name, seed))
        table = nn.Parameter(torch.randn(shape, device="cpu"))
        init_fn(table)
    return table.detach()
