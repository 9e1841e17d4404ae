"""ROBE against dense tables: lookups and steps of one process, same ids.

26 tables of D columns, 8 GB together, looked up by FBGEMM, one id each for 2,048 samples; and the same tables in one
ROBE array that a cache of the last level holds (8 MB) or not (100 MB), in blocks of 8, 32 and D numbers, by our loop
and by straightforward PyTorch: every place of every number, then a gather and sums. Ids are uniform, or follow Zipf's
law with exponent 1.05 from row 0 on. A step looks up, goes back and updates by SGD; ROBE's gradient is as long as its
array.

The floor of a lookup reads every number once and writes it once, at the speed of a copy in memory.

Published: 3.1 times the dense model's inference throughput, on a GPU (ROBE, MLSys 2022).

    python benchmarks/robe.py [--short]
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.compare import compare
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Comparison, Findings, Table, comparison_from_json, comparison_to_json
from benchmarks.harness.zipf import zipf_ids
from windrow.launch.rank_process import keep_freed_memory
from windrow.recsys.tables.fbgemm import FBGEMMTableBatch
from windrow.recsys.tables.forms import Segment, whole_table
from windrow.recsys.tables.options import TableOptions
from windrow.recsys.tables.robe import Robe

TABLES, SAMPLES = 26, 2048
DENSE_BYTES = {False: 8 << 30, True: 1 << 30}
ARRAY_NUMBERS = {"8 MB": 2_000_000, "100 MB": 25_000_000}
IDS = ("uniform", "zipf")
SEED, LEARNING_RATE = 5, 0.01
DENSE, OURS, PLAIN = "FBGEMM, dense", "ROBE", "ROBE in plain PyTorch"
AIM_DENSE, AIM_PLAIN = 1.5, 5.0


def draw(kind: str, rows: int) -> Tensor:
    """Ids of all tables, table after table."""
    if kind == "uniform":
        return torch.randint(0, rows, (TABLES * SAMPLES,), generator=torch.Generator().manual_seed(SEED))
    return zipf_ids(rows, TABLES * SAMPLES, exponent=1.05, seed=SEED)


def work(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Time every setting of one width."""
    keep_freed_memory()
    torch.set_num_threads(1)
    dim = task["dim"]
    rows = task["dense_bytes"] // (4 * dim * TABLES)
    tables = [whole_table(f"t{number}", rows, dim) for number in range(TABLES)]
    dense = FBGEMMTableBatch(
        tuple(tables), tuple(range(TABLES)), TableOptions(optimizer="sgd", learning_rate=LEARNING_RATE)
    )
    dense.initialise(seed=SEED, scales=[1.0] * TABLES)
    offsets = torch.arange(TABLES * SAMPLES + 1)
    segments = [Segment(number, 0, (0, dim)) for number in range(TABLES)]
    upstream = torch.rand(SAMPLES, TABLES * dim, generator=torch.Generator().manual_seed(SEED))
    found = []
    for size, numbers in ARRAY_NUMBERS.items():
        for block in dict.fromkeys((8, 32, dim)):
            form = Robe(tables, TableOptions(form="robe", compression=rows * dim * TABLES / numbers, robe_block=block))
            array = torch.rand(form.stored[0].num_rows, block, requires_grad=True)
            for kind in IDS:
                ids = draw(kind, rows)

                def plain(form: Robe = form, array: Tensor = array, ids: Tensor = ids) -> Tensor:
                    of_tables = ids.view(TABLES, SAMPLES)
                    return torch.cat([form.rows(number, of_tables[number], [array]) for number in range(TABLES)], 1)

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

                with torch.no_grad():
                    forward = compare(lookups, baseline=DENSE, repeats=task["repeats"])
                steps = {name: partial(step, name) for name in lookups}
                whole = compare(steps, baseline=DENSE, repeats=task["repeats"])
                setting = {"D": dim, "Z": block, "array": size, "ids": kind}
                found += [
                    setting | {"what": "lookup", "timed": comparison_to_json(forward)},
                    setting | {"what": "step", "timed": comparison_to_json(whole)},
                ]
    return found


def measure(program: Program) -> Findings:
    """Time everything, one width after another."""
    task = {"dense_bytes": DENSE_BYTES[program.short], "repeats": 5 if program.short else 15}
    found = [one for dim in (32, 64, 128) for one in program.in_process(task | {"dim": dim}, threads=1)]
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
    return Findings(figures=figures, aims=aims, comparisons=comparisons, tables={"ROBE": Table.from_rows(rows)})


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work)
