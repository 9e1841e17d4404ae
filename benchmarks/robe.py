"""ROBE against dense tables: lookups and steps of one process, and a whole DLRM on 4 emulated hosts, same ids.

26 tables of D columns, 8 GB together, looked up by FBGEMM, one id each for 2,048 samples; and the same tables in one
ROBE array that a cache of the last level holds (8 MB) or not (100 MB), in blocks of 8, 32 and D numbers, by our loop
and by straightforward PyTorch: every place of every number, then a gather and sums. Ids are uniform, or follow Zipf's
law with exponent 1.05 from row 0 on. A step looks up, goes back and updates by SGD; ROBE's gradient is as long as its
array.

The floor of a lookup reads every number once and writes it once, at the speed of a copy in memory.

On the hosts the tables of 64 columns are spread over the ranks, each on one of them, or every rank has the array and
sums its gradient with all others: a DLRM (bottom 128-64, top 256-128-1) trains on 2,048 samples a rank, or only
computes its outputs, at 1 and at 10 Gbit/s.

Published: 3.1 times the dense model's inference throughput, on a GPU (ROBE, MLSys 2022).

    python benchmarks/robe.py [--short]
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.compare import compare, waited_for
from benchmarks.harness.dlrm import ModelOnTables
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Comparison, Findings, Table, comparison_from_json, comparison_to_json
from benchmarks.harness.zipf import zipf_ids
from windrow.comm.connect import connect
from windrow.comm.process import keep_freed_memory
from windrow.recsys.batches.jagged import keyed
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.tables.fbgemm import FBGEMMTableBatch
from windrow.recsys.tables.forms import Segment, whole_table
from windrow.recsys.tables.options import EmbeddingBagConfig, TableOptions
from windrow.recsys.tables.robe import Robe

TABLES, SAMPLES = 26, 2048
DENSE_BYTES = {False: 8 << 30, True: 1 << 30}
ARRAY_NUMBERS = {"8 MB": 2_000_000, "100 MB": 25_000_000}
IDS = ("uniform", "zipf")
HOSTS, HOSTS_DIM, RATES = 4, 64, ("1gbit", "10gbit")
SEED, LEARNING_RATE = 5, 0.01
DENSE, OURS, PLAIN = "FBGEMM, dense", "ROBE", "ROBE in plain PyTorch"
AIM_DENSE, AIM_PLAIN = 1.5, 5.0


def draw(kind: str, rows: int, samples: int, seed: int = SEED) -> Tensor:
    """Ids of all tables, table after table."""
    if kind == "uniform":
        return torch.randint(0, rows, (TABLES * samples,), generator=torch.Generator().manual_seed(seed))
    return zipf_ids(rows, TABLES * samples, exponent=1.05, seed=seed)


def on_hosts(task: Mapping[str, Any]) -> dict[str, Any]:
    """Be one of the hosts: train a DLRM, and compute its outputs, with either kind of tables."""
    dim, rows = HOSTS_DIM, task["dense_bytes"] // (4 * HOSTS_DIM * TABLES)
    configs = [
        EmbeddingBagConfig(name=f"t{number}", num_embeddings=rows, embedding_dim=dim) for number in range(TABLES)
    ]
    dense = TableOptions(optimizer="sgd", learning_rate=LEARNING_RATE)
    options = {DENSE: dense} | {
        f"{OURS}, {size}": replace(dense, form="robe", compression=rows * dim * TABLES / numbers)
        for size, numbers in ARRAY_NUMBERS.items()
    }
    with connect("mpi", deadline_s=600) as world:
        ids = [
            keyed(
                [config.name for config in configs],
                draw(kind, rows, SAMPLES, seed=SEED + world.rank),
                torch.ones(TABLES * SAMPLES, dtype=torch.int64),
                num_samples=SAMPLES,
            )
            for kind in IDS
        ]
        models = {
            name: ModelOnTables(
                EmbeddingBagCollection(configs, world=world, optimizer=own, seed=SEED),
                SAMPLES,
                shape=ModelOptions(bottom=(128,), top=(256, 128)),
                world=world,
                seed=SEED,
            )
            for name, own in options.items()
        }
        found = {}
        for kind, given in zip(IDS, ids, strict=True):
            for what in ("train", "infer"):
                each = {name: partial(getattr(model, what), given) for name, model in models.items()}
                timed = compare(each, baseline=DENSE, repeats=task["repeats"], world=world)
                found[f"{what}, {kind}"] = comparison_to_json(timed)
        return found


def work(task: Mapping[str, Any]) -> Any:
    """Do what the task says."""
    keep_freed_memory()
    torch.set_num_threads(1)
    return on_hosts(task) if task["do"] == "hosts" else of_one_width(task)


def of_one_width(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Time every setting of one width."""
    dim, samples, device = task["dim"], task["samples"], torch.device(task["device"])
    rows = task["dense_bytes"] // (4 * dim * TABLES)
    tables = [whole_table(f"t{number}", rows, dim) for number in range(TABLES)]
    options = TableOptions(optimizer="sgd", learning_rate=LEARNING_RATE)
    dense = FBGEMMTableBatch(tuple(tables), tuple(range(TABLES)), options, device=device)
    if device.type == "cpu":  # It takes minutes for a GPU's sizes.
        dense.initialise(seed=SEED, scales=[1.0] * TABLES)
    offsets = torch.arange(TABLES * samples + 1, device=device)
    segments = [Segment(number, 0, (0, dim)) for number in range(TABLES)]
    chance = torch.Generator(device).manual_seed(SEED)
    upstream = torch.rand(samples, TABLES * dim, device=device, generator=chance)
    found = []
    for size, numbers in ARRAY_NUMBERS.items():
        for block in dict.fromkeys((8, 32, dim)):
            form = Robe(tables, TableOptions(form="robe", compression=rows * dim * TABLES / numbers, robe_block=block))
            array = torch.rand(form.stored[0].num_rows, block, device=device, generator=chance, requires_grad=True)
            for kind in IDS:
                ids = draw(kind, rows, samples).to(device)

                def plain(form: Robe = form, array: Tensor = array, ids: Tensor = ids) -> Tensor:
                    of_tables = ids.view(TABLES, samples)
                    return torch.cat(
                        [form.reference_rows(number, of_tables[number], [array]) for number in range(TABLES)], 1
                    )

                lookups: dict[str, Callable[[], Tensor]] = {
                    DENSE: partial(dense, ids, offsets),
                    OURS: partial(form.pool, segments, ids, offsets, None, [array]),
                    PLAIN: plain,
                }

                def step(name: str, lookups: Mapping[str, Any] = lookups, array: Tensor = array) -> None:
                    lookups[name]().backward(upstream)
                    if name != DENSE:
                        assert array.grad is not None
                        with torch.no_grad():
                            array.sub_(array.grad, alpha=LEARNING_RATE)
                        array.grad = None

                runs = {name: waited_for(run, device) for name, run in lookups.items()}
                with torch.no_grad():
                    forward = compare(runs, baseline=DENSE, repeats=task["repeats"])
                steps = {name: waited_for(partial(step, name), device) for name in lookups}
                whole = compare(steps, baseline=DENSE, repeats=task["repeats"])
                setting = {"D": dim, "Z": block, "array": size, "ids": kind}
                found += [
                    setting | {"what": "lookup", "timed": comparison_to_json(forward)},
                    setting | {"what": "step", "timed": comparison_to_json(whole)},
                ]
    return found


def measure(program: Program) -> Findings:
    """Time everything, one width after another, then on hosts."""
    task = {"dense_bytes": DENSE_BYTES[program.short], "repeats": 5 if program.short else 15}
    one = {**task, "do": "one width", "device": "cpu", "samples": SAMPLES}
    widths = [{**one, "dim": dim} for dim in (32, 64, 128)]
    found = [one for of_width in widths for one in program.in_process(of_width, threads=1)]
    hosts = {rate: program.on_ranks(HOSTS, {**task, "do": "hosts"}, rate=rate, deadline_s=1800) for rate in RATES}
    rows, figures, comparisons = [], dict[str, float](), dict[str, Comparison]()
    for one in found:
        timed = comparison_from_json(one["timed"])
        setting = {name: value for name, value in one.items() if name != "timed"}
        key = "_".join(str(value) for value in setting.values()).replace(" ", "_")
        comparisons[key] = timed
        plain = timed.variants[PLAIN].median_s / timed.variants[OURS].median_s
        figures |= {f"{key}_over_dense_ratio": timed.ratio(OURS).median, f"{key}_over_plain_ratio": plain}
        rows.append(
            setting
            | {f"{name} ms": 1e3 * timed.variants[name].median_s for name in timed.variants}
            | {"over dense": timed.ratio(OURS).median, "over plain": plain}
        )
    fitting = [row for row in rows if row["array"] == "8 MB" and row["ids"] == "uniform" and row["what"] == "lookup"]
    best = {dim: max(row["over dense"] for row in fitting if row["D"] == dim) for dim in (32, 64, 128)}
    aims = {
        "over_dense": Aim(
            f"lookup of uniform ids, array in the cache, best block of each width: >= {AIM_DENSE}x FBGEMM's",
            min(best.values()) >= AIM_DENSE,
        ),
        "over_plain": Aim(
            f"every lookup >= {AIM_PLAIN}x plain PyTorch's",
            min(row["over plain"] for row in rows if row["what"] == "lookup") >= AIM_PLAIN,
        ),
    }
    of_hosts: list[dict[str, object]] = []
    for rate, timings in hosts.items():
        for what, one in timings.items():
            timed = comparisons[f"{HOSTS} hosts at {rate}, {what}"] = comparison_from_json(one)
            for name in timed.variants:
                ratio = timed.ratio(name).median
                of_hosts.append(
                    {
                        "rate": rate,
                        "step": what,
                        "tables": name,
                        "ms": 1e3 * timed.variants[name].median_s,
                        "over dense": ratio,
                    }
                )
                if name != DENSE:
                    figures[f"hosts_{rate}_{what}_{name}_over_dense_ratio".replace(", ", "_").replace(" ", "_")] = ratio
    tables = {"ROBE": Table.from_rows(rows), "On hosts": Table.from_rows(of_hosts)}
    return Findings(figures=figures, aims=aims, comparisons=comparisons, tables=tables)


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, ranks=True)
