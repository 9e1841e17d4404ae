"""What runs on a GPU, over what a copy in its memory takes, and over what else does the same there.

    python benchmarks/gpu.py [--short]

Rows in few bits: float32 rows of 256 and 602 columns, picked in random order, are quantised into a message, and that is
dequantised, in turn with a copy of the rows (`torch.Tensor.copy_`). Counted are bytes that are read and written, so a
share of 1 would be the copy's bandwidth.

ROBE: lookups and steps as in `robe.py`, of 16,384 samples; a cache of the second level holds the array of 8 MB.
Published: 3.1 times the dense model's inference throughput (ROBE, MLSys 2022).

Training: GraphSAGE, 3 layers of 256, fanouts 15, 10, 5, on a generated graph of 1,000,000 vertices (100,000 in the
short form) and 128 features: an epoch of one rank, with minibatches made and fetched ahead and without, rows in the
GPU's memory and in the host's.
"""

import os
from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from benchmarks.codec import BITS, COLUMNS, COPY, PICK, timed
from benchmarks.harness.compare import compare, waited_for
from benchmarks.harness.program import MissingDataError, Program, run_benchmark
from benchmarks.harness.result import Aim, Comparison, Findings, Table, comparison_from_json, comparison_to_json
from benchmarks.robe import of_one_width
from windrow.caching.selection import CacheOptions
from windrow.comm.loopback import Loopback
from windrow.comm.quantize import packed_row_bytes
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.pipeline import PipelineOptions
from windrow.gnn.synthetic import community_graph
from windrow.gnn.task import NodeTask
from windrow.partition.book import PartitionBook
from windrow.training.trainer import Trainer

MATRIX_BYTES, DENSE_BYTES = 2 << 30, 8 << 30
VERTICES = {False: 1_000_000, True: 100_000}
"""Short form or not."""
SAMPLES, DIMS, REPEATS = 16_384, (64, 128), 21
FANOUTS, BATCH_SIZE, FEATURES, HIDDEN, CLASSES = (15, 10, 5), 1024, 128, 256, 16
AIM_CODEC = 0.6
SEED, DEVICE = 7, torch.device("cuda")
AHEAD, ONE_BY_ONE = "ahead", "one after another"


def of_codec(_: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Time both ways beside a copy, as `codec.py` does."""
    found = []
    for columns, bits in product(COLUMNS, BITS):
        one = timed(columns, bits, matrix_bytes=MATRIX_BYTES, repeats=REPEATS, device=DEVICE)
        found.append({"columns": columns, "bits": bits, "timed": comparison_to_json(one)})
    return found


def of_robe(_: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Time lookups and steps of every width and array, as `robe.py` does."""
    task = {"device": "cuda", "dense_bytes": DENSE_BYTES, "samples": SAMPLES, "repeats": REPEATS}
    return [one for dim in DIMS for one in of_one_width(task | {"dim": dim})]


def of_training(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Time epochs of one rank."""
    graph = community_graph(task["vertices"], CLASSES, seed=SEED, average_degree=20, num_features=FEATURES, signal=0.2)
    book = PartitionBook.from_assignment(np.zeros(graph.num_vertices, np.int32), 1)
    trainers = {}
    for ahead, share in product((True, False), (1.0, 0.0)):
        options = ModelOptions(kind="graphsage", hidden=HIDDEN, num_layers=len(FANOUTS))
        pipeline = PipelineOptions(depth=4 if ahead else 0, sampler_threads=max(1, task["threads"] // 2))
        trainers[f"{AHEAD if ahead else ONE_BY_ONE}, rows in the {'GPU' if share else 'host'}"] = Trainer(
            Loopback.single(),
            build_model(options, in_features=FEATURES, out_features=CLASSES, seed=SEED).cuda(),
            NodeTask(
                PartitionedGraph.from_graph(graph, book, 0),
                FANOUTS,
                cache=CacheOptions(gpu_share=share),
                pipeline=pipeline,
            ),
            batch_size=BATCH_SIZE,
            seed=SEED,
        )
    runs = {name: waited_for(partial(trainer.train_epoch, 0), DEVICE) for name, trainer in trainers.items()}
    epochs = compare(runs, baseline=f"{ONE_BY_ONE}, rows in the host", repeats=task["repeats"])
    for trainer in trainers.values():
        trainer.close()
    return [{"seeds": len(graph.train_ids), "timed": comparison_to_json(epochs)}]


KINDS = {"codec": of_codec, "robe": of_robe, "training": of_training}


def work(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Time one kind."""
    return KINDS[task["kind"]](task)


def measure(program: Program) -> Findings:
    """Time everything, one kind after another."""
    if not torch.cuda.is_available():
        raise MissingDataError("there is no GPU here")
    threads = len(os.sched_getaffinity(0))
    task = {"vertices": VERTICES[program.short], "repeats": 5, "threads": threads}
    figures: dict[str, float] = {}
    comparisons: dict[str, Comparison] = {}
    tables = {}
    for kind in KINDS:
        rows = []
        for one in program.in_process(task | {"kind": kind}, threads=threads):
            comparison = comparison_from_json(one.pop("timed"))
            key = "_".join([kind, *(f"{name}_{value}".replace(" ", "_") for name, value in one.items())])
            comparisons[key.replace("_", " ")] = comparison
            for name, variant in comparison.variants.items():
                ratio = comparison.ratio(name).median
                row = one | {"": name, "ms": 1e3 * variant.median_s, "over the baseline": ratio}
                if kind == "codec":
                    # A copy and picking read and write rows, the others rows and a message.
                    message = packed_row_bytes(one["columns"], one["bits"]) / (4 * one["columns"])
                    ratio *= 1 if name in (COPY, PICK) else (1 + message) / 2
                    row["of a copy's bandwidth"] = ratio
                figures[f"{key}_{name}_ratio".replace(" ", "_").replace(",", "")] = ratio
                rows.append(row)
        tables[kind] = Table.from_rows(rows)
    plain = tuple(f"_{name}_ratio" for name in (COPY, PICK))
    shares = [figures[key] for key in figures if key.startswith("codec") and not key.endswith(plain)]
    aims = {
        "codec": Aim(
            f"quantising and dequantising at >= {AIM_CODEC:.0%} of a copy's bandwidth, the worst counts",
            min(shares) >= AIM_CODEC,
        )
    }
    return Findings(figures=figures, aims=aims, comparisons=comparisons, tables=tables)


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work)
