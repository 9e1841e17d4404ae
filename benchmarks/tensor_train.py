"""Tensor trains: a forward and backward pass against batched products in PyTorch, and a training step against FBGEMM.

One table of 10,131,227 rows (the largest of Criteo Kaggle), one id each for 2,048 or 16,384 samples, 3 cores. The
straightforward way gathers the matrices of each id and multiplies them by `torch.bmm`, every id for itself; ours looks
each id up once, shares the products of first digits, and computes them again in the backward pass. Ids are uniform, or
follow Zipf's law with exponent 1.05.

The step of 26 tables trains a dense FBGEMM collection, then one whose seven largest tables are trains of rank 32, with
and without hot rows (1 % of the rows, which hold most lookups under Zipf's law); both through
`windrow.recsys.EmbeddingBagCollection`, with SGD. Once with gradients that are given, so that there is nothing but
tables, and once below a DLRM (bottom 512-256-64-16, top 512-256-1, as TT-Rec's for Criteo Kaggle), all of which learns.

Published: 3 times the implementation before (T3nsor), and 1.14 times the training time of a DLRM with dense tables
(TT-Rec, MLSys 2021), on GPUs.

    python benchmarks/tensor_train.py [--short]
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.compare import compare
from benchmarks.harness.dlrm import ModelOnTables
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Comparison, Findings, Table, comparison_from_json, comparison_to_json
from benchmarks.harness.zipf import zipf_ids
from windrow.comm.process import keep_freed_memory
from windrow.recsys.batches.jagged import keyed
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.tables.forms import Segment, whole_table
from windrow.recsys.tables.options import EmbeddingBagConfig, TableOptions, TableOverrides
from windrow.recsys.tables.tensor_train import TensorTrain

ROWS = 10_131_227
KAGGLE = (
    *(10_131_227, 8_351_593, 7_046_547, 5_461_306, 2_202_608, 286_181, 142_572),
    *(93_145, 24, 12_517, 633, 3, 5_683, 3_194, 27, 14_992, 10, 5_652, 2_173, 4, 18, 15, 105, 1_460, 583, 305),
)
"""Rows of the 26 tables of Criteo Kaggle, those that TT-Rec compresses first."""
COMPRESSED = 7
RANK, HOT_SHARE = 32, 0.01
BOTTOM, TOP = (512, 256, 64), (512, 256)
SEED = 3
PLAIN, OURS = "torch.bmm", "windrow"
DENSE, COLD, HOT = "dense", "tensor trains", "tensor trains, hot rows"
AIMS = {"uniform": 3.0, "zipf": 8.0}
AIM_STEP = 1.15


def draw(kind: str, rows: int, count: int, seed: int = SEED) -> Tensor:
    """Ids of one table."""
    if kind == "uniform":
        return torch.randint(0, rows, (count,), generator=torch.Generator().manual_seed(seed))
    return zipf_ids(rows, count, exponent=1.05, seed=seed)


def plain(form: TensorTrain, cores: list[Tensor], ids: Tensor) -> Tensor:
    """Every id for itself."""
    _, second, third = form.rows_of
    digits = (ids // (second * third), ids // third % second, ids % third)
    product = torch.ones(len(ids), 1, 1)
    for core, digit, left, right in zip(cores, digits, form.ranks[:-1], form.ranks[1:], strict=True):
        product = torch.bmm(product, core.index_select(0, digit).view(len(ids), left, -1)).view(len(ids), -1, right)
    return product.view(len(ids), -1)


def forward_and_back(lookup: Callable[[], Tensor], cores: list[Tensor], upstream: Tensor) -> None:
    """Of one table."""
    torch.autograd.grad(lookup(), cores, upstream)


def passes(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Time a forward and backward pass of one table."""
    found = []
    for dim, rank, count, kind in task["settings"]:
        form = TensorTrain(whole_table("t", ROWS, dim), TableOptions(form="tensor_train", tt_rank=rank))
        cores = [core.requires_grad_() for core in form.first_values(SEED)]
        ids, offsets = draw(kind, ROWS, count), torch.arange(count + 1)
        upstream = torch.rand(count, dim, generator=torch.Generator().manual_seed(SEED))
        lookups = {
            PLAIN: partial(plain, form, cores, ids),
            OURS: partial(form.pool, [Segment(0, 0, (0, dim))], ids, offsets, None, cores),
        }

        torch.testing.assert_close(lookups[OURS](), lookups[PLAIN](), rtol=1e-3, atol=1e-5)
        both = {name: partial(forward_and_back, lookup, cores, upstream) for name, lookup in lookups.items()}
        timed = compare(both, baseline=PLAIN, repeats=task["repeats"])
        about = {"D": dim, "rank": rank, "samples": count, "ids": kind}
        found.append(about | {"timed": comparison_to_json(timed)})
    return found


def step_of_tables(collection: EmbeddingBagCollection, upstream: Tensor, batches: Iterator[Any]) -> None:
    """Of all tables, and nothing else."""
    collection(next(batches)).values().backward(upstream)
    collection.step()


def train_next(model: ModelOnTables, batches: Iterator[Any]) -> None:
    """A step of a whole DLRM."""
    model.train(next(batches))


def steps(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Time training steps of all tables."""
    dim, count = task["dim"], task["samples"]
    configs = [
        EmbeddingBagConfig(name=f"t{number}", num_embeddings=rows, embedding_dim=dim)
        for number, rows in enumerate(KAGGLE)
    ]
    upstream = torch.rand(count, dim * len(configs), generator=torch.Generator().manual_seed(SEED)) / count
    found = []
    for kind in AIMS:
        batches = [
            keyed(
                [config.name for config in configs],
                torch.cat([draw(kind, rows, count, seed=100 * turn + n) for n, rows in enumerate(KAGGLE)]),
                torch.ones(len(configs) * count, dtype=torch.int64),
                num_samples=count,
            )
            for turn in range(4)
        ]
        of_tables, of_model = {}, {}
        for name, share in ((DENSE, None), (COLD, 0.0), (HOT, HOT_SHARE)):
            train = TableOverrides(form="tensor_train", tt_rank=RANK, hot_share=share)
            per_table = {} if share is None else {f"t{number}": train for number in range(COMPRESSED)}
            options = TableOptions(optimizer="sgd", learning_rate=0.01, per_table=per_table)
            collection = EmbeddingBagCollection(configs, optimizer=options, seed=SEED)
            of_tables[name] = partial(step_of_tables, collection, upstream, cycle(batches))
            model = ModelOnTables(collection, count, shape=ModelOptions(bottom=BOTTOM, top=TOP), seed=SEED)
            of_model[name] = partial(train_next, model, cycle(batches))
        for what, one_each in (("tables", of_tables), ("DLRM", of_model)):
            timed = compare(one_each, baseline=DENSE, repeats=task["repeats"])
            found.append({"of": what, "D": dim, "samples": count, "ids": kind, "timed": comparison_to_json(timed)})
    return found


def work(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Do what the task says."""
    keep_freed_memory()
    torch.set_num_threads(1)
    return passes(task) if task["do"] == "passes" else steps(task)


def measure(program: Program) -> Findings:
    """Time everything in one process each."""
    repeats = 5 if program.short else 15
    sizes = [(16, 32), (64, 8), (64, 16), (64, 32), (128, 32)]
    settings = [
        (dim, rank, count, kind)
        for dim, rank in sizes
        for count in ((2048,) if program.short else (2048, 16384))
        for kind in AIMS
    ]
    one_table = program.in_process({"do": "passes", "settings": settings, "repeats": repeats}, threads=1)
    all_tables = program.in_process({"do": "steps", "dim": 16, "samples": 2048, "repeats": repeats}, threads=1)
    figures, comparisons = dict[str, float](), dict[str, Comparison]()
    tables: dict[str, list[dict[str, object]]] = {"passes": [], "steps": []}
    for what, found in (("passes", one_table), ("steps", all_tables)):
        for one in found:
            timed = comparison_from_json(one["timed"])
            setting = {name: value for name, value in one.items() if name != "timed"}
            key = "_".join([what, *(f"{name}_{value}" for name, value in setting.items())])
            comparisons[key] = timed
            ratios = {name: timed.ratio(name).median for name in timed.variants if name != timed.baseline}
            figures |= {f"{key}_{name}_ratio".replace(", ", "_").replace(" ", "_"): r for name, r in ratios.items()}
            milliseconds = {f"{name} ms": 1e3 * timed.variants[name].median_s for name in timed.variants}
            tables[what].append(setting | milliseconds | {f"{name} over it": ratio for name, ratio in ratios.items()})
    worst = {
        kind: min(figures[key] for key in figures if key.startswith("passes") and f"ids_{kind}" in key) for kind in AIMS
    }
    step_times = 1 / next(
        figures[key] for key in figures if key.startswith("steps_of_DLRM") and "hot" in key and "zipf" in key
    )
    aims = {
        kind: Aim(f"{kind} ids, every setting: >= {wanted}x torch.bmm", worst[kind] >= wanted)
        for kind, wanted in AIMS.items()
    } | {
        "step": Aim(
            f"a step of a DLRM with hot rows, Zipf: <= {AIM_STEP} of the time with dense tables", step_times <= AIM_STEP
        )
    }
    return Findings(
        figures=figures,
        aims=aims,
        comparisons=comparisons,
        tables={name: Table.from_rows(found) for name, found in tables.items()},
    )


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work)
