"""Samples per second of DLRM training: windrow against TorchRec's DistributedModelParallel, and against plain FBGEMM.

Both sides train the same model on the same batches in the same processes, in turn: 26 tables with the proportions and
the multi-hot sizes of MLPerf's DLRM-DCNv2, cut to fit, ids by Zipf's law; row-wise Adagrad fused into the backward
pass, Adagrad for the dense part. TorchRec runs over gloo, which is what it has on CPUs, with its fused kernel (its
default one for CPUs is slower and breaks), with and without its pipeline, under its own planner's plan and under ours;
the one that windrow is ahead of by the least is the baseline. windrow runs over MPI, under its own plan.

Three ratios: over TorchRec as its users run it; over TorchRec with our dense layers, which leaves lookup, exchange and
update; and of the tables alone, whose model is the mean of the pooled embeddings. windrow runs with messages instead of
shared memory between its ranks as well.

On one rank the baseline is FBGEMM's table-batched embeddings under the same dense model, without any collection: what
our collection costs on top.
"""

import contextlib
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness.compare import Variant, compare
from benchmarks.harness.layers import give_our_layers
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, comparison_from_json, comparison_to_json
from benchmarks.harness.torchrec_runtime import bags_of, gloo, sharded, sharding_plan
from windrow.comm.connect import connect
from windrow.comm.process import keep_freed_memory
from windrow.comm.random import hash_ids, stream_key
from windrow.comm.world import World
from windrow.partition.tables.plan import Plan, TableSpec
from windrow.partition.tables.planners import PlanOptions, make_plan
from windrow.recsys.batches.batch import Batch
from windrow.recsys.embeddings import Embeddings
from windrow.recsys.models.build import build_model
from windrow.recsys.models.click_models import ClickModel
from windrow.recsys.models.options import ModelOptions

if TYPE_CHECKING:
    from benchmarks.harness.result import Comparison

MLPERF_ROWS = (
    40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209, 11938, 155, 4, 976,
    14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36,
)  # fmt: skip
"""Rows of the tables of MLPerf's DLRM-DCNv2, Criteo 1TB (facebookresearch/dlrm, torchrec_dlrm)."""

MLPERF_MULTI_HOT = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
"""Ids per sample of each, same source."""

MOST_ROWS = 200_000
"""Rows that the largest tables are cut to: 1.3 million in all, 330 MB of 64 float32, on both sides."""

DIM = 64
DENSE_FEATURES = 13
BOTTOM = [512, 256, DIM]
TOP = [512, 256, 1]
"""Dense layers of the DLRM repository's Criteo Kaggle benchmark, up to the width of its embeddings."""

SAMPLES_PER_RANK = 2048
TABLE_RATE = 0.02
DENSE_RATE = 0.01
BATCHES = 4
SEED = 3
OURS = "windrow"
BY_MESSAGES = "windrow, messages instead of shared memory"
AIM_RATIO = 1.5
AIM_TABLES = 2.0
AIM_FBGEMM = 1.0

Dense = Literal["PyTorch's layers", "our layers", "tables alone"]
"""What surrounds the tables of the peer: a DLRM of PyTorch's linear layers or of ours, or nothing but a mean."""
DENSE: tuple[Dense, ...] = ("PyTorch's layers", "our layers", "tables alone")
KEYS: Mapping[str, str] = {"PyTorch's layers": "as_it_is", "our layers": "our_layers", "tables alone": "tables_alone"}


@dataclass(frozen=True)
class Setting:
    """The tables of one run."""

    rows: tuple[int, ...]
    multi_hot: tuple[int, ...]

    @property
    def features(self) -> list[str]:
        """Names of the features, and of the tables."""
        return [f"feature_{number}" for number in range(len(self.rows))]

    def specs(self) -> list[TableSpec]:
        """What planners read."""
        return [
            TableSpec(
                name=name,
                rows=rows,
                dim=DIM,
                features=(name,),
                optimizer_bytes_per_row=4,
                lookups_per_sample=float(ids),
            )
            for name, rows, ids in zip(self.features, self.rows, self.multi_hot, strict=True)
        ]


SETTING = Setting(tuple(min(rows, MOST_ROWS) for rows in MLPERF_ROWS), MLPERF_MULTI_HOT)


def make_batch(setting: Setting, *, rank: int, number: int) -> Batch:
    """A batch whose ids follow Zipf's law: the chance of row i is proportional to 1 / (i + 1)."""
    from windrow.recsys.torchrec_adapter import KeyedJaggedTensor

    values, lengths = [], []
    for feature, (rows, ids) in enumerate(zip(setting.rows, setting.multi_hot, strict=True)):
        chance = _uniform(stream_key(SEED, rank, number, feature), SAMPLES_PER_RANK * ids)
        values.append(np.minimum((rows + 1.0) ** chance - 1.0, rows - 1).astype(np.int64))
        lengths.append(np.full(SAMPLES_PER_RANK, ids, dtype=np.int64))
    dense = _uniform(stream_key(SEED, rank, number, 1000), SAMPLES_PER_RANK * DENSE_FEATURES)
    labels = _uniform(stream_key(SEED, rank, number, 1001), SAMPLES_PER_RANK) < 0.25
    sparse = KeyedJaggedTensor(
        keys=setting.features,
        values=torch.from_numpy(np.concatenate(values)),
        lengths=torch.from_numpy(np.concatenate(lengths)),
    )
    return Batch(
        torch.from_numpy(dense.astype(np.float32).reshape(SAMPLES_PER_RANK, DENSE_FEATURES)),
        sparse,
        torch.from_numpy(labels.astype(np.float32)),
        torch.arange(SAMPLES_PER_RANK),
    )


def _uniform(key: int, count: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return (hash_ids(key, np.arange(count)) >> np.uint64(11)).astype(np.float64) / float(1 << 53)


# ------------------------------------------------------------------------------------------------------------ TorchRec


@dataclass
class TorchRecBatch:
    """A batch as TorchRec's pipelines want it."""

    dense: Tensor
    sparse: Any
    labels: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "TorchRecBatch":  # noqa: FBT001, FBT002
        """Itself: everything is on the CPU."""
        del device, non_blocking
        return self

    def record_stream(self, stream: Any) -> None:
        """Nothing to record on a CPU."""

    def pin_memory(self) -> "TorchRecBatch":
        """Itself."""
        return self


class MeanOfTables(nn.Module):
    """As good as nothing around a collection of tables: a logit for each sample, the mean of its pooled embeddings."""

    def __init__(self, bags: nn.Module) -> None:
        super().__init__()
        self.bags = bags
        self.scale = nn.Parameter(torch.ones(()))  # trainers want something to train

    def forward(self, batch: Any) -> Tensor:
        """Logits [B]."""
        logits: Tensor = self.bags(batch.sparse).values().mean(1) * self.scale
        return logits


class TorchRecLoss(nn.Module):
    """A model around TorchRec's tables, its own DLRM or none, with its loss."""

    def __init__(self, setting: Setting, dense: Dense) -> None:
        from torchrec.models.dlrm import DLRM

        super().__init__()
        bags = bags_of(setting.specs(), TABLE_RATE)
        self.alone = dense == "tables alone"
        self.model = MeanOfTables(bags) if self.alone else DLRM(bags, DENSE_FEATURES, BOTTOM, TOP)
        if dense == "our layers":
            give_our_layers(self.model)

    def forward(self, batch: TorchRecBatch) -> tuple[Tensor, Tensor]:
        """Loss, and what pipelines return."""
        logits = self.model(batch) if self.alone else self.model(batch.dense, batch.sparse)[:, 0]
        loss = functional.binary_cross_entropy_with_logits(logits, batch.labels)
        return loss, loss.detach()


def torchrec_step(
    setting: Setting, world: World, plan: Plan | None, batches: list[Batch], *, pipeline: bool, dense: Dense
) -> Callable[[], object]:
    """A function that trains TorchRec's model for one step."""
    from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
    from torchrec.streamable import Pipelineable

    Pipelineable.register(TorchRecBatch)
    module = TorchRecLoss(setting, dense)
    path = "model.bags" if module.alone else "model.sparse_arch.embedding_bag_collection"
    model = sharded(module, sharding_plan(setting.specs(), world, SAMPLES_PER_RANK, plan=plan, module=path))
    parameters = [parameter for name, parameter in model.named_parameters() if "embedding_bags" not in name]
    optimizer = torch.optim.Adagrad(parameters, lr=DENSE_RATE)
    theirs = [TorchRecBatch(batch.dense, batch.sparse, batch.labels) for batch in batches]
    stream = itertools.cycle(theirs)
    if pipeline:
        steps = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"))
        return lambda: steps.progress(stream)

    def step() -> None:
        optimizer.zero_grad()
        loss, _ = model(next(stream))
        loss.backward()
        optimizer.step()

    return step


# ------------------------------------------------------------------------------------------------------------- windrow


class RepeatedBatches:
    """A source of batches that are in memory already."""

    def __init__(self, world: World, batches: list[Batch], steps: int) -> None:
        self._size = world.size
        self._batches = batches
        self.steps_per_epoch = steps

    @property
    def samples_per_epoch(self) -> int:
        """Over all ranks."""
        return self.steps_per_epoch * SAMPLES_PER_RANK * self._size

    def global_batch_size(self, epoch: int, step: int) -> int:
        """Over all ranks."""
        del epoch, step
        return SAMPLES_PER_RANK * self._size

    @contextlib.contextmanager
    def batches(self, epoch: int, first_step: int = 0) -> Iterator[Iterator[Batch]]:
        """The same few batches in turn."""
        del epoch
        yield itertools.islice(itertools.cycle(self._batches), self.steps_per_epoch - first_step)


def windrow_epoch(
    setting: Setting, world: World, plan: Plan, batches: list[Batch], steps: int, *, alone: bool
) -> Callable[[], object]:
    """A function that trains our model, or the tables alone, for some steps, as `windrow train` does."""
    from windrow.recsys.recommender import Recommender
    from windrow.recsys.sharded.pooled import EmbeddingBagCollection
    from windrow.recsys.tables.options import EmbeddingBagConfig, TableOptions
    from windrow.recsys.task import RecommendationTask
    from windrow.training.trainer import Trainer

    options = TableOptions(dim=DIM, optimizer="rowwise_adagrad", learning_rate=TABLE_RATE)
    bags = EmbeddingBagCollection(
        [
            EmbeddingBagConfig(num_embeddings=rows, embedding_dim=DIM, name=name, feature_names=[name])
            for name, rows in zip(setting.features, setting.rows, strict=True)
        ],
        world=world,
        plan=plan,
        optimizer=options,
        seed=SEED,
    )
    trainer = Trainer(
        world,
        MeanOfTables(bags) if alone else Recommender(bags, None, dense_model(setting)),
        RecommendationTask(RepeatedBatches(world, batches, steps)),
        epochs=1000,
        optimizer="adagrad",
        learning_rate=DENSE_RATE,
        seed=SEED,
    )
    return lambda: trainer.train_epoch(0)


def dense_model(setting: Setting) -> ClickModel:
    """The DLRM around the tables."""
    options = ModelOptions(kind="dlrm", bottom=tuple(BOTTOM[:-1]), top=tuple(TOP[:-1]))
    return build_model(options, num_dense=DENSE_FEATURES, pooled_dims=dict.fromkeys(setting.features, DIM), seed=SEED)


def fbgemm_epoch(setting: Setting, batches: list[Batch], steps: int, *, alone: bool) -> Callable[[], object]:
    """A function that trains the same dense model, or the tables alone, on bare FBGEMM for some steps: one process."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows in setting.rows],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=TABLE_RATE,
        eps=1e-8,
    )
    tables.init_embedding_weights_uniform(-0.01, 0.01)
    model = dense_model(setting)
    dims = dict.fromkeys(setting.features, DIM)
    scale = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.Adagrad([scale] if alone else model.parameters(), lr=DENSE_RATE)

    def run() -> None:
        for batch in itertools.islice(itertools.cycle(batches), steps):
            optimizer.zero_grad()
            pooled = tables(batch.sparse.values(), batch.sparse.offsets())
            if alone:
                loss = functional.binary_cross_entropy_with_logits(pooled.mean(1) * scale, batch.labels)
            else:
                loss = model.loss_sum(model(batch.dense, Embeddings.of(pooled, dims)), batch) / batch.num_samples
            loss.backward()
            optimizer.step()
            loss.item()

    return run


# ------------------------------------------------------------------------------------------------------------- running


def variants(world: World, by_messages: World, steps: int, dense: Dense) -> dict[str, Variant]:
    """Everything that is timed together on this number of ranks; each runs `steps` steps."""
    batches = [make_batch(SETTING, rank=world.rank, number=number) for number in range(BATCHES)]
    plan = make_plan(PlanOptions(planner="greedy_lookups"), SETTING.specs(), world.size)
    alone = dense == "tables alone"
    found = {OURS: windrow_epoch(SETTING, world, plan, batches, steps, alone=alone)}
    if world.size == 1:
        found["FBGEMM"] = fbgemm_epoch(SETTING, batches, steps, alone=alone)
    else:
        found[BY_MESSAGES] = windrow_epoch(SETTING, by_messages, plan, batches, steps, alone=alone)
        for whose, pipeline in itertools.product(("its plan", "our plan"), ("", ", pipeline")):
            theirs = plan if whose == "our plan" else None
            step = torchrec_step(SETTING, world, theirs, batches, pipeline=bool(pipeline), dense=dense)
            found[f"TorchRec, {whose}{pipeline}"] = functools.partial(repeat, step, steps)
    samples = steps * SAMPLES_PER_RANK * world.size
    return {name: Variant(run=run, rows=samples) for name, run in found.items()}


def repeat(step: Callable[[], object], times: int) -> None:
    """Call a function some times."""
    for _ in range(times):
        step()


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """Be one rank: time windrow and its peers in turn, with each kind of dense model."""
    torch.set_num_threads(1)
    # As `windrow train` does; TorchRec gains as well.
    keep_freed_memory()
    found: dict[str, Any] = {}
    with (
        connect("mpi", deadline_s=300) as world,
        connect("mpi", deadline_s=300, shared_memory=False) as by_messages,
        gloo(world, task["rendezvous"]) if world.size > 1 else contextlib.nullcontext(),
    ):
        for dense in DENSE if world.size > 1 else DENSE[1:]:
            timed = variants(world, by_messages, task["steps"], dense)
            compared = compare(timed, baseline=OURS, repeats=task["repeats"], world=world)
            found[dense] = comparison_to_json(compared.against(compared.rival(OURS, besides=[BY_MESSAGES])))
    return found


def measure(program: Program) -> Findings:
    """Time everything on 1, 2 and 4 ranks."""
    repeats, steps = (4, 6) if program.short else (15, 8)
    comparisons: dict[str, Comparison] = {}
    figures: dict[str, float] = {}
    for size in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            rendezvous = str(Path(folder) / "rendezvous")
            found = program.on_ranks(size, {"repeats": repeats, "steps": steps, "rendezvous": rendezvous})
        peer = "fbgemm" if size == 1 else "torchrec"
        for dense, samples in found.items():
            compared = comparison_from_json(samples)
            comparisons[f"{size} ranks, {dense}, {steps} steps of {SAMPLES_PER_RANK} samples per rank"] = compared
            gain, key = compared.ratio(OURS), f"over_{peer}_{size}_ranks_{KEYS[dense]}"
            figures[f"{key}_ratio"], figures[f"{key}_low"], figures[f"{key}_high"] = gain.median, gain.low, gain.high
            if size > 1:
                saved = compared.ratio(OURS, BY_MESSAGES)
                figures[f"over_messages_{size}_ranks_{KEYS[dense]}_ratio"] = saved.median
            if dense == DENSE[1]:
                trained = steps * SAMPLES_PER_RANK * size
                figures[f"windrow_{size}_ranks_samples_per_second"] = trained / compared.variants[OURS].median_s
    aims = {
        f"{KEYS[dense]}_{size}_ranks": Aim(
            f"{size} ranks, over TorchRec's fastest, {dense}: >= {aim}x",
            figures[f"over_torchrec_{size}_ranks_{KEYS[dense]}_ratio"] >= aim,
        )
        for dense, aim in ((DENSE[1], AIM_RATIO), (DENSE[2], AIM_TABLES))
        for size in (2, 4)
    }
    one = figures[f"over_fbgemm_1_ranks_{KEYS[DENSE[1]]}_ratio"]
    aims["one_process"] = Aim(f"one process, over bare FBGEMM: >= {AIM_FBGEMM}x", one >= AIM_FBGEMM)
    return Findings(figures=figures, aims=aims, comparisons=comparisons)


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work)
