"""Rows of vertices that are learnt, on real graphs: LightGCN on Gowalla by the published split, and compressed rows.

Test items are searched among all items that a user has not been trained with, and the last epoch counts.

    lightgcn     29,858 users and 40,981 items, joined by 810,128 training check-ins; a row of 64 numbers a vertex,
                 owned by the rank whose vertex it is, and three layers of LightGCN over the whole graph in every step,
                 on 2 ranks (`windrow.gnn.FullGraphLinkTask`). Each pair of a step is to score higher than the user with
                 8,192 items, drawn for the step: a sampled softmax of dot products (Wu et al., On the Effectiveness of
                 Sampled Softmax Loss for Item Recommendation, TOIS 2024), which learns in far fewer steps than the
                 paper's pairwise loss. Pairs are weighted by the fourth root of one over how many the user has: the
                 paper's code draws users, not pairs. Settings were chosen by recall and ndcg of a tenth of the training
                 pairs, by a plain loop that had not seen them; but that drawn items may be some that the user has been
                 to, by the test items.
                 Published: recall@20 0.1830, ndcg@20 0.1554 (He et al., LightGCN, SIGIR 2020).
    compressed   Coauthor Physics without its features: GraphSAGE tells classes from learnt rows of 64 numbers, dense
                 ones and some in 12 % of the memory, codes of clusters counted: what vertices of a cluster have in
                 common beside hashed parts (PosHashEmb; Kalantzi and Karypis 2021, who save 88 to 97 % at no loss),
                 fewer columns and a matrix that widens them, blocks of an array (ROBE), hashed rows, tensor trains. Of
                 three learning rates of rows the best on the validation split counts, of all epochs likewise.

    python benchmarks/vertex_tables.py [--short] [--only lightgcn | compressed] [--data FOLDER]
"""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import windrow as wr
from benchmarks.harness.compare import mean_and_standard_error
from benchmarks.harness.data_sets import data_option
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from windrow import gnn, recsys
from windrow.comm.connect import connect
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.comm.process import keep_freed_memory
from windrow.gnn.readers import GraphOptions, read_graph
from windrow.gnn.vertex_data import SplitOptions
from windrow.partition import PartitionOptions, partition_graph
from windrow.training.schedule import ScheduleOptions

GOWALLA, PHYSICS = Path("recsys/gowalla.npz"), Path("graphs/coauthor_physics.npz")
PARTS = {"lightgcn": GOWALLA, "compressed": PHYSICS}
SPLITS = ("train", "test")
RANKS = 2
DIM, LAYERS = 64, 3
BATCH_SIZE, NEGATIVES = 4096, 8192
RATE, WEIGHT_DECAY = 0.02, 1e-6
USER_WEIGHT = -0.25
"""What the number of a user's pairs is raised to."""
K = 20
PUBLISHED = {"recall": 0.1830, "ndcg": 0.1554}
USERS_AT_ONCE = 1024
MEASURED_EVERY = 2
"""Epochs, to show how it goes."""
EPOCHS = {False: 8, True: 1}
SEEDS = {"lightgcn": {False: 2, True: 2}, "compressed": {False: 3, True: 2}}
"""By whether in short."""

CLUSTERS, CODE_PARTS = 100, 32
SAVED = 0.88
DENSE, BY_CLUSTER = "dense", "clusters and hashes"
FORMS: dict[str, dict[str, Any]] = {
    DENSE: {},
    BY_CLUSTER: {"form": "codes", "code_parts": CODE_PARTS},
    "narrow": {"form": "narrow"},
    "robe": {"form": "robe", "robe_block": 16},
    "hashed": {"form": "hashed"},
    "tensor_train": {"form": "tensor_train"},
}
CODE_BYTES = 4
RATES = (0.05, 0.1, 0.3)
ROW_EPOCHS = {False: 12, True: 2}
SPLIT = SplitOptions(kind="fractions", train_fraction=0.6, validation_fraction=0.2)
NO_LOSS = 0.1
"""Points that count as none."""

Ids = npt.NDArray[np.int64]


# ------------------------------------------------------------------------------------------------------------ lightgcn


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


def train_lightgcn(task: Mapping[str, Any]) -> dict[str, Any]:
    """Train from one seed; called on each rank."""
    data = np.load(task["data"], allow_pickle=False)
    lists = {
        split: (data[f"{split}_indptr"].astype(np.int64), data[f"{split}_items"].astype(np.int64)) for split in SPLITS
    }
    num_users = len(lists["train"][0]) - 1
    num_items = 1 + max(int(items.max()) for _, items in lists.values())
    users, items = np.repeat(np.arange(num_users), np.diff(lists["train"][0])), lists["train"][1]
    # With types, so that negatives are items.
    vertices = {"user": gnn.VertexRows(num_users), "item": gnn.VertexRows(num_items)}
    graph = gnn.assemble_typed_graph(vertices, {("user", "visits", "item"): (users, items)})
    pairs = torch.from_numpy(np.stack([users, num_users + items]))
    none = pairs[:, :0]
    with connect("mpi", deadline_s=600) as world:
        part = gnn.partition(graph, world)
        rows = recsys.EmbeddingCollection(
            [recsys.EmbeddingConfig(part.num_vertices, DIM, "vertex")],
            world=world,
            plan=part.plan_of_rows("vertex", DIM),
            optimizer=recsys.TableOptions(
                optimizer="adam", learning_rate=RATE, weight_decay=WEIGHT_DECAY, initial_scale=0.1
            ),
            row_ids=part.original_ids,
            seed=task["seed"],
        )
        # Users count more alike than by how often they check in, as each counts once in what is measured.
        weights = torch.bincount(pairs[0])[pairs[0]].float() ** USER_WEIGHT
        links = gnn.Links(train=pairs, validation=none, test=none, weights=weights / weights.mean())
        learnt = gnn.FullGraphLinkTask(
            part, links, negatives="shared", num_negatives=NEGATIVES, keep_joined=True, embedding=rows
        )
        model = gnn.LightGCN(LAYERS)
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
                    vectors = trainer.predict()
                    if world.rank == 0:
                        found["recall"], found["ndcg"] = recall_and_ndcg(vectors, num_users, lists)
                    world.barrier(stage="measured")
                epochs.append(found)
    return {"epochs": epochs, "steps": trainer.steps_per_epoch}


def lightgcn(program: Program) -> Findings:
    """Train from every seed."""
    file, short = program.options.data.resolve() / GOWALLA, program.short
    found = [
        program.on_ranks(
            RANKS, {"what": "lightgcn", "data": str(file), "seed": seed, "epochs": EPOCHS[short]}, deadline_s=3600
        )
        for seed in range(SEEDS["lightgcn"][short])
    ]
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    for name, published in PUBLISHED.items():
        mean, error = mean_and_standard_error([one["epochs"][-1][name] for one in found])
        figures |= {f"{name}_at_20_share": mean, f"{name}_at_20_standard_error_share": error}
        if not short:
            aims[name] = Aim(f"{name}@20 >= {published}, as published", mean >= published)
    rows = [{"seed": seed, **epoch} for seed, one in enumerate(found) for epoch in one["epochs"] if "recall" in epoch]
    figures["epoch_seconds"] = float(np.median([epoch["seconds"] for one in found for epoch in one["epochs"]]))
    title = f"LightGCN on Gowalla, {found[0]['steps']} steps an epoch"
    return Findings(figures=figures, aims=aims, tables={title: Table.from_rows(rows)})


# ---------------------------------------------------------------------------------------------------------- compressed


def train_rows(task: Mapping[str, Any]) -> dict[str, float]:
    """Train once on rows of one form: validation and test accuracy in points at the best epoch, and bytes of rows."""
    graph = read_graph(GraphOptions(path=task["graph"], random_split=SPLIT))
    world = Loopback.single()
    part = gnn.partition(replace(graph, features=None), world)
    options = recsys.TableOptions(
        optimizer="adagrad", learning_rate=task["rate"], initial_scale=0.1, **FORMS[task["form"]] | task["size"]
    )
    rows = recsys.EmbeddingCollection(
        [recsys.EmbeddingConfig(part.num_vertices, DIM, "vertex")],
        world=world,
        plan=part.plan_of_rows("vertex", DIM),
        optimizer=options,
        row_ids=part.original_ids,
        seed=task["seed"],
    )
    shape = gnn.ModelOptions(kind="graphsage", hidden=128, num_layers=2, dropout=0.5)
    model = gnn.build_model(shape, in_features=DIM, out_features=part.num_outputs, seed=task["seed"])
    learnt = gnn.NodeTask(part, (10, 10), embedding=rows)
    best = (0.0, 0.0)
    with wr.Trainer(
        world, model, learnt, epochs=task["epochs"], batch_size=1024, learning_rate=0.003, seed=task["seed"]
    ) as trainer:
        for epoch in range(task["epochs"]):
            trainer.train_epoch(epoch)
            values = trainer.evaluate()
            if values["validation"]["accuracy"] > best[0]:
                best = (values["validation"]["accuracy"], values["test"]["accuracy"])
    stored = sum(spec.rows * spec.dim * torch.float32.itemsize for spec in rows.stored_specs())
    codes = CODE_BYTES * part.num_vertices * (task["form"] == BY_CLUSTER)
    return {"validation": 100 * best[0], "test": 100 * best[1], "bytes": stored + codes}


def compressed(program: Program) -> Findings:
    """Train on rows of all forms, from every seed."""
    path, short = program.options.data.resolve() / PHYSICS, program.short
    graph = read_graph(GraphOptions(path=str(path), random_split=SPLIT))
    chosen = PartitionOptions(num_parts=CLUSTERS, restarts=1, refine_cycles=1)
    clusters = partition_graph(graph.indptr.numpy(), graph.indices.numpy(), chosen)
    rates, forms = RATES[1:2] if short else RATES, list(FORMS)[: 3 if short else None]
    share = 1 - SAVED
    sizes: dict[str, dict[str, Any]] = {form: {"compression": 1 / share} for form in forms if form != DENSE}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "clusters.npy"
        np.save(file, clusters)
        # Codes take their part.
        of_codes = CODE_BYTES / (DIM * torch.float32.itemsize)
        sizes[BY_CLUSTER] = {"compression": 1 / (share - of_codes), "code_file": str(file)}
        tasks: list[dict[str, Any]] = [
            {"what": "compressed", "graph": str(path), "form": form, "size": sizes.get(form, {})}
            | {"rate": rate, "seed": seed, "epochs": ROW_EPOCHS[short]}
            for seed in range(SEEDS["compressed"][short])
            for form in forms
            for rate in rates
        ]
        found = program.in_processes(tasks, threads=1, deadline_s=3600)
    runs: dict[tuple[int, str], tuple[float, float, float]] = {}
    for task, one in zip(tasks, found, strict=True):
        key = int(task["seed"]), str(task["form"])
        if one["validation"] > runs.get(key, (0.0, 0.0, 0.0))[0]:
            runs[key] = (one["validation"], one["test"], one["bytes"])
    rows, figures = [], dict[str, float]()
    for form in forms:
        tests = [runs[seed, form][1] for seed in range(SEEDS["compressed"][short])]
        differences = [test - runs[seed, DENSE][1] for seed, test in enumerate(tests)]
        difference, error = mean_and_standard_error(differences)
        saved = 1 - runs[0, form][2] / runs[0, DENSE][2]
        rows.append(
            {"rows": form, "memory saved": saved, "test accuracy": float(np.mean(tests)), "less dense": difference}
            | {"standard error": error}
        )
        figures |= {f"{form}_less_dense_points".replace(" ", "_"): difference}
    best = max(figures[f"{form}_less_dense_points".replace(" ", "_")] for form in forms if form != DENSE)
    aim = Aim(f"{SAVED:.0%} of the memory saved at no loss: >= -{NO_LOSS} points, the best form", best >= -NO_LOSS)
    return Findings(figures=figures, aims={"no_loss": aim}, tables={"Coauthor Physics": Table.from_rows(rows)})


def work(task: Mapping[str, Any]) -> object:
    """Train."""
    torch.set_num_threads(1)
    keep_freed_memory()
    return train_lightgcn(task) if task["what"] == "lightgcn" else train_rows(task)


def measure(program: Program) -> Findings:
    """What was asked for, of what is there."""
    there = [part for part, file in PARTS.items() if (program.options.data / file).is_file()]
    measured = {"lightgcn": lightgcn, "compressed": compressed}
    return Findings.joined([measured[part](program) for part in program.chosen(there, short=2)])


if __name__ == "__main__":
    run_benchmark(
        __file__,
        __doc__,
        measure,
        work=work,
        ranks=True,
        parts=tuple(PARTS),
        add_options=data_option("recsys/gowalla.npz and graphs/coauthor_physics.npz"),
    )
