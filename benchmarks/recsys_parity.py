"""The answer does not depend on the plan, the number of ranks or the backend, and is that of plain PyTorch.

50 steps of a DLRM under every kind of plan on 1, 2 and 4 ranks, Loopback and MPI, against one process that trains
`torch.nn.EmbeddingBag` tables with PyTorch's optimisers from the same weights on the same batches. And, on the same
jagged batches, pooled vectors and gradients of the tables against TorchRec's `EmbeddingBagCollection`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from windrow.comm.connect import connect
from windrow.comm.gradients import GradientReducer
from windrow.comm.loopback import Loopback
from windrow.comm.random import hash_ids, stream_key
from windrow.comm.rows import near_equal_split
from windrow.comm.world import World
from windrow.partition.tables.plan import Plan, Replica, Shard, TableSpec
from windrow.partition.tables.planners import plan_with_planner
from windrow.recsys.batches.batch import Batch
from windrow.recsys.embeddings import Embeddings
from windrow.recsys.models.build import build_model
from windrow.recsys.models.click_models import ClickModel
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.tables.options import EmbeddingBagConfig, Optimizer, PoolingType, TableOptions

STEPS = 50
SAMPLES = 96
"""Of a global batch: on 4 ranks some have no id at all for some feature."""

DIM = 16
NUM_DENSE = 4
SEED = 11
TABLE_RATE = 0.05
DENSE_RATE = 0.01
EPS = 1e-4
"""Of Adagrad and Adam on both sides. With their tiny defaults a number's first step is the learning rate times the sign
of its gradient, however small that is: where a gradient is zero but for rounding, the order of a sum decides."""

TOLERANCE = 1e-5
ROWS = {"user": 400, "item": 1000, "shop": 50, "city": 7}
FEATURES = {"user": ["user"], "item": ["item", "history"], "shop": ["shops"], "city": ["city"]}
"""Table -> features that look into it."""

MOST_IDS = {"user": 1, "item": 1, "history": 6, "shops": 3, "city": 1}
MEAN_POOLED = {"shop"}
LAUNCHED_SIZES = (1, 2, 4)


def configs() -> list[EmbeddingBagConfig]:
    """The tables."""
    return [
        EmbeddingBagConfig(
            num_embeddings=rows,
            embedding_dim=DIM,
            name=name,
            feature_names=FEATURES[name],
            pooling=PoolingType.MEAN if name in MEAN_POOLED else PoolingType.SUM,
        )
        for name, rows in ROWS.items()
    ]


def specs() -> list[TableSpec]:
    """The tables, as planners see them."""
    return [TableSpec(name=n, rows=rows, dim=DIM, features=tuple(FEATURES[n])) for n, rows in ROWS.items()]


def plans(size: int) -> dict[str, Plan]:
    """A plan of every kind."""
    planners: dict[str, str] = {
        "table-wise": "round_robin",
        "row-wise": "row_wise",
        "column-wise": "column_wise",
        "replicated": "replicated",
    }
    found = {
        kind: plan_with_planner(planner, specs(), size, replicate_below_bytes=0) for kind, planner in planners.items()
    }
    last = size - 1
    halves = [(rows, columns) for rows in ((0, 300), (300, 1000)) for columns in ((0, 4), (4, 16))]
    grid = [Shard("item", n % size, rows, columns) for n, (rows, columns) in enumerate(halves)]
    rows_of_user = [Shard("user", 0, (0, 100), (0, DIM)), Shard("user", last, (100, 400), (0, DIM))]
    found["mixed"] = Plan(
        (*grid, *rows_of_user, Shard("shop", last, (0, 50), (0, DIM))), (Replica("city", (0, ROWS["city"])),)
    )
    return found


def global_batch(step: int) -> dict[str, Any]:
    """Dense values, labels, and for each feature the ids of each sample, made from counters."""

    def numbers(purpose: int, count: int) -> "np.ndarray[Any, np.dtype[np.uint64]]":
        return hash_ids(stream_key(SEED, step, purpose), np.arange(count)) >> np.uint64(11)

    dense = (numbers(0, SAMPLES * NUM_DENSE) % 1000).astype(np.float32).reshape(SAMPLES, NUM_DENSE) / 500 - 1
    bags: dict[str, list[list[int]]] = {}
    for position, (feature, most) in enumerate(MOST_IDS.items()):
        rows = next(ROWS[name] for name, features in FEATURES.items() if feature in features)
        lengths = numbers(2 * position + 1, SAMPLES) % (most + 1) if most > 1 else np.ones(SAMPLES, np.int64)
        ids = numbers(2 * position + 2, SAMPLES * most).reshape(SAMPLES, most) % rows
        bags[feature] = [row[: int(n)].tolist() for row, n in zip(ids.astype(np.int64), lengths, strict=True)]
    # Something to learn: the label hangs on the item.
    labels = np.array([float(sample[0] % 3 == 0) for sample in bags["item"]], dtype=np.float32)
    return {"dense": torch.from_numpy(dense), "labels": torch.from_numpy(labels), "bags": bags}


def share_of(batch: dict[str, Any], rank: int, size: int) -> Batch:
    """A rank's samples of a global batch."""
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

    bounds = near_equal_split(SAMPLES, size)
    own = slice(bounds[rank], bounds[rank + 1])
    bags = {feature: lists[own] for feature, lists in batch["bags"].items()}
    ids = [i for lists in bags.values() for bag in lists for i in bag]
    sparse = KeyedJaggedTensor(
        keys=list(bags),
        values=torch.tensor(ids, dtype=torch.int64),
        lengths=torch.tensor([len(bag) for lists in bags.values() for bag in lists], dtype=torch.int64),
    )
    return Batch(batch["dense"][own], sparse, batch["labels"][own], torch.arange(own.start, own.stop))


def dense_model() -> ClickModel:
    """A small DLRM; every feature has its own pooled vector, in the order of the tables."""
    options = ModelOptions(kind="dlrm", bottom=(32,), top=(64, 32))
    return build_model(options, num_dense=NUM_DENSE, pooled_dims=pooled_dims(), seed=SEED)


def pooled_dims() -> dict[str, int]:
    """Columns of every feature's pooled vector, in the order of the tables."""
    return {feature: DIM for names in FEATURES.values() for feature in names}


# ------------------------------------------------------------------------------------------------------------ windrow


def losses_of(world: World, plan: Plan, optimizer: Optimizer) -> list[float]:
    """Mean loss of each global batch, trained under a plan."""
    from windrow.recsys.recommender import Recommender
    from windrow.recsys.sharded.pooled import EmbeddingBagCollection

    options = TableOptions(dim=DIM, optimizer=optimizer, learning_rate=TABLE_RATE, eps=EPS)
    bags = EmbeddingBagCollection(configs(), world=world, plan=plan, optimizer=options, seed=SEED)
    recommender = Recommender(bags, None, dense_model())
    reducer = GradientReducer(world, [*bags.replicated_parameters(), *recommender.model.parameters()])
    dense = torch.optim.Adagrad(recommender.model.parameters(), lr=DENSE_RATE, eps=EPS)
    losses = []
    for step in range(STEPS):
        batch = share_of(global_batch(step), world.rank, world.size)
        reducer.start()
        loss = recommender.model.loss_sum(recommender(batch), batch)
        (loss / SAMPLES).backward()
        reducer.finish()
        dense.step()
        bags.step()
        total = loss.detach().double()
        losses.append(float(world.all_reduce(total, stage="loss")) / SAMPLES)
    return losses


# ------------------------------------------------------------------------------------------------------- plain PyTorch


class PlainTables(nn.Module):
    """One `nn.EmbeddingBag` per table, from windrow's first weights."""

    def __init__(self) -> None:
        from windrow.recsys.sharded.pooled import EmbeddingBagCollection

        super().__init__()
        whole = EmbeddingBagCollection(configs(), seed=SEED)
        weights = {
            part.piece.name: part.tensor
            for table in whole.local_tables()
            for part in table.state()
            if part.name == "weight"
        }
        self.tables = nn.ModuleDict(
            {
                name: nn.EmbeddingBag.from_pretrained(
                    weights[name].clone(), mode="mean" if name in MEAN_POOLED else "sum", freeze=False
                )
                for name in ROWS
            }
        )

    def forward(self, bags: dict[str, list[list[int]]]) -> Tensor:
        """Pooled vectors side by side."""
        pooled = []
        for name, features in FEATURES.items():
            for feature in features:
                ids = torch.tensor([i for bag in bags[feature] for i in bag], dtype=torch.int64)
                lengths = torch.tensor([0, *map(len, bags[feature])])
                pooled.append(self.tables[name](ids, lengths.cumsum(0)[:-1]))
        return torch.cat(pooled, 1)


def plain_losses(optimizer: Optimizer) -> list[float]:
    """The reference: one process, PyTorch alone."""
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "adagrad": lambda parameters, lr: torch.optim.Adagrad(parameters, lr=lr, eps=EPS),
        "adam": lambda parameters, lr: torch.optim.Adam(parameters, lr=lr, eps=EPS),
    }
    tables, model = PlainTables(), dense_model()
    optimizers = [
        kinds[optimizer](tables.parameters(), lr=TABLE_RATE),
        torch.optim.Adagrad(model.parameters(), lr=DENSE_RATE, eps=EPS),
    ]
    losses = []
    for step in range(STEPS):
        batch = global_batch(step)
        logits = model(batch["dense"], Embeddings.of(tables(batch["bags"]), pooled_dims()))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch["labels"])
        for each in optimizers:
            each.zero_grad()
        loss.backward()
        for each in optimizers:
            each.step()
        losses.append(loss.item())
    return losses


# ------------------------------------------------------------------------------------------------------------ TorchRec


def difference_to_torchrec() -> float:
    """Largest difference of pooled vectors, and of tables after one step of SGD, over all plans on 2 ranks."""
    from torchrec.modules.embedding_configs import EmbeddingBagConfig as TorchRecConfig
    from torchrec.modules.embedding_configs import PoolingType as TorchRecPooling
    from torchrec.modules.embedding_modules import EmbeddingBagCollection as TorchRecCollection

    theirs = TorchRecCollection(
        tables=[
            TorchRecConfig(
                num_embeddings=config.num_embeddings,
                embedding_dim=config.embedding_dim,
                name=config.name,
                feature_names=config.feature_names,
                pooling=TorchRecPooling[config.pooling.name],
            )
            for config in configs()
        ]
    )
    weights = {name: bag.weight for name, bag in PlainTables().tables.items()}
    with torch.no_grad():
        for name, bag in theirs.embedding_bags.items():
            bag.weight.copy_(weights[name])
    batch = global_batch(0)
    pooled = theirs(share_of(batch, 0, 1).sparse).values()
    upstream = torch.from_numpy((hash_ids(SEED, np.arange(pooled.numel())) % np.uint64(97)).astype(np.float32)).reshape(
        pooled.shape
    )
    pooled.backward(upstream)
    learnt = {name: bag.weight.detach() - TABLE_RATE * bag.weight.grad for name, bag in theirs.embedding_bags.items()}

    def body(world: World, plan: Plan) -> float:
        from windrow.recsys.sharded.pooled import EmbeddingBagCollection

        options = TableOptions(dim=DIM, optimizer="sgd", learning_rate=TABLE_RATE)
        bags = EmbeddingBagCollection(configs(), world=world, plan=plan, optimizer=options, seed=SEED)
        reducer = GradientReducer(world, bags.replicated_parameters()) if plan.replicated else None
        if reducer is not None:
            reducer.start()
        ours = bags(share_of(batch, world.rank, world.size).sparse).values()
        own = share_of(batch, world.rank, world.size).row_ids
        apart = [float((ours - pooled[own]).detach().abs().max())]
        ours.backward(upstream[own])
        if reducer is not None:
            reducer.finish()
        bags.step()
        for part in (part for table in bags.local_tables() for part in table.state()):
            shard = (slice(*part.piece.rows), slice(*part.piece.columns))
            apart.append(float((part.tensor - learnt[part.piece.name][shard]).abs().max()))
        return max(apart)

    return max(apart for plan in plans(2).values() for apart in Loopback.run(2, functools.partial(body, plan=plan)))


# ------------------------------------------------------------------------------------------------------------- running


def work(task: Mapping[str, Any]) -> dict[str, list[float]]:
    """As one rank of a real MPI job: losses of every plan and optimiser."""
    torch.set_num_threads(1)
    with connect("mpi", deadline_s=300) as world:
        return {
            f"{kind}, {optimizer}": losses_of(world, plan, optimizer)
            for optimizer in task["optimizers"]
            for kind, plan in plans(world.size).items()
        }


def largest_difference(losses: list[float], reference: list[float]) -> float:
    """Largest relative difference over the steps."""
    return max(abs(mine - theirs) / abs(theirs) for mine, theirs in zip(losses, reference, strict=True))


def measure(program: Program) -> Findings:
    """Compare."""
    torch.set_num_threads(1)
    optimizers: list[Optimizer] = ["sgd", "adagrad"] if program.short else ["sgd", "adagrad", "adam"]
    references = {optimizer: plain_losses(optimizer) for optimizer in optimizers}
    rows: list[dict[str, object]] = []
    for size in LAUNCHED_SIZES:
        launched = program.on_ranks(size, {"optimizers": optimizers}, deadline_s=900)
        for optimizer in optimizers:
            for kind, plan in plans(size).items():
                train = functools.partial(losses_of, plan=plan, optimizer=optimizer)
                loopback = Loopback.run(size, train)[0]
                reference = references[optimizer]
                rows.append(
                    {
                        "plan": kind,
                        "optimiser": optimizer,
                        "ranks": size,
                        "Loopback": largest_difference(loopback, reference),
                        "MPI": largest_difference(launched[f"{kind}, {optimizer}"], reference),
                    }
                )
    for optimizer, reference in references.items():
        print(f"{optimizer}: loss of step 1 {reference[0]:.6f}, of step {STEPS} {reference[-1]:.6f}")
    worst = max(float(str(row[backend])) for row in rows for backend in ("Loopback", "MPI"))
    torchrec = difference_to_torchrec()
    return Findings(
        figures={
            "largest_relative_difference_to_embedding_bag_ratio": worst,
            "largest_difference_to_torchrec_absolute": torchrec,
            "first_loss_nats": references["sgd"][0],
            "last_loss_nats": references["sgd"][-1],
        },
        aims={
            "embedding_bag": Aim(f"every plan, 1, 2, 4 ranks, Loopback and MPI: <= {TOLERANCE:g}", worst <= TOLERANCE),
            "torchrec": Aim(
                f"pooled vectors and tables after a step, against TorchRec: <= {TOLERANCE:g}", torchrec <= TOLERANCE
            ),
        },
        tables={"largest relative difference of the loss": Table.from_rows(rows)},
    )


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, ranks=True)
