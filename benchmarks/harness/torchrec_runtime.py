"""TorchRec's own runtime on CPUs, over gloo: its tables, sharded by its plan or one of ours."""

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from windrow.comm.world import World
from windrow.partition.tables.costs import Workload
from windrow.partition.tables.plan import Plan, TableSpec
from windrow.recsys.torchrec_plans import even_rows, plan_with_torchrec, to_torchrec

__all__ = ["bags_of", "gloo", "sharded", "sharding_plan"]

PROPOSED = ("table_wise", "column_wise", "table_column_wise")
"""What TorchRec proposes on CPUs; neither rows, which it withholds there, nor copies, whose kernel is not fused."""


@contextlib.contextmanager
def gloo(world: World, rendezvous: str) -> Iterator[None]:
    """TorchRec's ranks, which are those of a world. Collective.

    Args:
        world: its ranks.
        rendezvous: a file that is not there yet; must agree.
    """
    import torch.distributed as dist

    warnings.simplefilter("ignore")  # TorchRec's, about itself
    logging.disable(logging.WARNING)
    os.environ.update(LOCAL_RANK=str(world.rank), LOCAL_WORLD_SIZE=str(world.size))
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=world.rank, world_size=world.size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def bags_of(specs: Sequence[TableSpec], learning_rate: float) -> Any:
    """TorchRec's collection of such tables, a feature each, without memory; they learn by row-wise Adagrad."""
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

    tables = [
        EmbeddingBagConfig(
            num_embeddings=spec.rows, embedding_dim=spec.dim, name=spec.name, feature_names=list(spec.features)
        )
        for spec in specs
    ]
    bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    apply_optimizer_in_backward(RowWiseAdagrad, bags.parameters(), {"lr": learning_rate})
    return bags


def sharding_plan(
    specs: Sequence[TableSpec],
    world: World,
    batch_size: int,
    *,
    memory: float = float("inf"),
    plan: Plan | None = None,
    module: str = "",
) -> Any:
    """TorchRec's sharding plan: its planner's, told ids per sample, batch size and memory, or ours in its words."""
    if plan is None:
        workload = Workload(batch_size=batch_size)
        plan = plan_with_torchrec(specs, world.size, memory, workload, sharding_types=PROPOSED)
    # TorchRec's replicated kernel for CPUs is not fused: such a table goes row by row, which is the nearest.
    copies = [spec for spec in specs if plan.replicas_of(spec.name)]
    rows = [shard for spec in copies for shard in even_rows(spec, range(world.size)) if shard.num_rows]
    return to_torchrec(Plan((*plan.shards, *rows)), specs, world.size, module=module)


def sharded(module: nn.Module, plan: Any) -> Any:
    """TorchRec's model around a module that holds such tables."""
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel

    return DistributedModelParallel(
        module, device=torch.device("cpu"), plan=plan, sharders=[EmbeddingBagCollectionSharder()]
    )
