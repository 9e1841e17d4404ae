"""Rows of vertices that are learnt, on a real graph: LightGCN on Gowalla, by the published split.

    python benchmarks/vertex_tables.py [--short] [--data FOLDER]

29,858 users and 40,981 items, joined by 810,128 training check-ins; a row of 64 numbers for each vertex, owned by the
rank whose vertex it is, and three layers of LightGCN over the whole graph in every step, on 2 ranks
(`windrow.gnn.FullGraphLinkTask`). Each pair of a step is to score higher than the user with the items of the rank's
other pairs that the user has not been to: a softmax of cosines over a temperature (Wu et al., On the Effectiveness of
Sampled Softmax Loss for Item Recommendation, TOIS 2024), which learns in far fewer steps than the paper's pairwise
loss. Test items are searched among all items that a user has not been trained with, and the last epoch counts.
Published for LightGCN: recall@20 0.1830, ndcg@20 0.1554 (He et al., SIGIR 2020). --short: one epoch.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

import windrow as wr
from benchmarks.harness.compare import mean_and_standard_error
from benchmarks.harness.data_sets import data_option
from benchmarks.harness.program import MissingDataError, Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from windrow import gnn, recsys
from windrow.comm.connect import connect
from windrow.comm.meter import Meter
from windrow.launch.rank_process import GRAPH_SHAPES, keep_freed_memory, keep_shapes
from windrow.training.schedule import ScheduleOptions

FILE = "gowalla.npz"
SPLITS = ("train", "test")
RANKS = 2
DIM, LAYERS = 64, 3
BATCH_SIZE = 2048
TEMPERATURE = 0.1
RATE = 0.005
K = 20
PUBLISHED = {"recall": 0.1830, "ndcg": 0.1554}
USERS_AT_ONCE = 1024
MEASURED_EVERY = 5
"""Epochs, to show how it goes."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is trained."""

    epochs: int
    seeds: int


FULL, SHORT = Scale(epochs=20, seeds=3), Scale(epochs=1, seeds=1)


class CosineLightGCN(gnn.LightGCN):
    """LightGCN whose pairs are scored by cosines over a temperature."""

    def score(self, sources: Tensor, others: Tensor) -> Tensor:
        """[n, 1, d] and [n, m, d] or [1, m, d] to [n, m]."""
        sources, others = F.normalize(sources, dim=2), F.normalize(others, dim=2)
        sources = sources / TEMPERATURE
        if len(others) == 1:
            return sources.squeeze(1) @ others.squeeze(0).T
        return (others @ sources.transpose(1, 2)).squeeze(2)


def recall_and_ndcg(vectors: Tensor, num_users: int, lists: Mapping[str, tuple[Ids, Ids]]) -> tuple[float, float]:
    """Means over users that have test items, as in LightGCN's code; `lists` are offsets and items of a split."""
    items, discounts = vectors[num_users:].T.contiguous(), 1 / np.log2(np.arange(K) + 2)
    recalls, ndcgs = list[float](), list[float]()
    for first in range(0, num_users, USERS_AT_ONCE):
        users = range(first, min(first + USERS_AT_ONCE, num_users))
        scores = vectors[first : users.stop] @ items
        offsets, known = lists["train"]
        own = slice(offsets[first], offsets[users.stop])
        rows = np.repeat(np.arange(len(users)), np.diff(offsets[first : users.stop + 1]))
        scores[torch.from_numpy(rows), torch.from_numpy(known[own])] = -np.inf
        best = scores.topk(K).indices.numpy()
        offsets, wanted = lists["test"]
        for user, found in zip(users, best, strict=True):
            relevant = wanted[offsets[user] : offsets[user + 1]]
            if not len(relevant):
                continue
            hits = np.isin(found, relevant)
            recalls.append(hits.sum() / len(relevant))
            ndcgs.append((hits * discounts).sum() / discounts[: len(relevant)].sum())
    return float(np.mean(recalls)), float(np.mean(ndcgs))


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """Train from one seed; called on each rank."""
    torch.set_num_threads(1)
    keep_freed_memory()
    keep_shapes(GRAPH_SHAPES)
    data = np.load(task["data"], allow_pickle=False)
    lists = {
        split: (data[f"{split}_indptr"].astype(np.int64), data[f"{split}_items"].astype(np.int64)) for split in SPLITS
    }
    num_users = len(lists["train"][0]) - 1
    num_items = 1 + max(int(items.max()) for _, items in lists.values())
    pairs = torch.from_numpy(
        np.stack([np.repeat(np.arange(num_users), np.diff(lists["train"][0])), num_users + lists["train"][1]])
    )
    none = pairs[:, :0]
    graph = gnn.assemble_graph(pairs[0].numpy(), pairs[1].numpy(), num_users + num_items)
    with connect("mpi", deadline_s=600) as world:
        part = gnn.partition(graph, world)
        rows = recsys.EmbeddingCollection(
            [recsys.EmbeddingConfig(part.num_vertices, DIM, "vertex")],
            world=world,
            plan=part.plan_of_rows("vertex", DIM),
            optimizer=recsys.TableOptions(optimizer="adam", learning_rate=RATE, initial_scale=0.1),
            row_ids=part.original_ids,
            seed=task["seed"],
        )
        links = gnn.Links(train=pairs, validation=none, test=none)
        learnt = gnn.FullGraphLinkTask(part, links, negatives="in-batch", embedding=rows)
        model = CosineLightGCN(LAYERS)
        options = {"epochs": task["epochs"], "batch_size": BATCH_SIZE, "seed": task["seed"]}
        epochs = []
        with wr.Trainer(world, model, learnt, schedule=ScheduleOptions(kind="linear"), **options) as trainer:
            for epoch in range(task["epochs"]):
                world.meter = meter = Meter()
                start = time.perf_counter()
                mean_loss = trainer.train_epoch(epoch)
                seconds, moved = time.perf_counter() - start, meter.totals().bytes_received
                found = {"epoch": epoch + 1, "loss": mean_loss, "seconds": seconds, "MB": moved / 1e6}
                if epoch + 1 == task["epochs"] or (epoch + 1) % MEASURED_EVERY == 0:
                    vectors = F.normalize(trainer.predict(), dim=1)
                    if world.rank == 0:
                        found["recall"], found["ndcg"] = recall_and_ndcg(vectors, num_users, lists)
                    world.barrier(stage="measured")
                epochs.append(found)
                if world.rank == 0:
                    print(found, flush=True)
    return {"epochs": epochs, "steps": trainer.steps_per_epoch}


def measure(program: Program) -> Findings:
    """Train from every seed."""
    scale = SHORT if program.short else FULL
    file = program.options.data.resolve() / FILE
    if not file.exists():
        raise MissingDataError(f"{file} is not there: name its folder by --data")
    found = [
        program.on_ranks(RANKS, {"data": str(file), "seed": seed, **asdict(scale)}, deadline_s=3600)
        for seed in range(scale.seeds)
    ]
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    for name, published in PUBLISHED.items():
        mean, error = mean_and_standard_error([one["epochs"][-1][name] for one in found])
        figures |= {f"{name}_at_20_share": mean, f"{name}_at_20_standard_error_share": error}
        if not program.short:
            aims[name] = Aim(f"{name}@20 >= {published}, as published", mean >= published)
    rows = [{"seed": seed, **epoch} for seed, one in enumerate(found) for epoch in one["epochs"] if "recall" in epoch]
    figures["epoch_seconds"] = float(np.median([epoch["seconds"] for one in found for epoch in one["epochs"]]))
    return Findings(figures=figures, aims=aims, tables={f"{found[0]['steps']} steps an epoch": Table.from_rows(rows)})


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, add_options=data_option(FILE, "recsys"))
