"""The 26 tables of MLPerf's DLRM, 105 GB in float32, in 4 GB of memory: built, trained, checkpointed and served.

DLRM-DCNv2 of Criteo 1TB has 204 million rows of 128 numbers, and 204 ids in a sample. As one ROBE array of 100 MB, and
with tensor trains of rank 32 for the tables of more than 100,000 rows and the others dense, a DLRM learns 100 steps of
a generated log whose ids follow Zipf's law, is saved, exported, loaded, and asked: what is served must be what was
trained. One process; the peak of its memory counts everything, the log too.

    python benchmarks/mlperf_tables.py [--short]
"""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from benchmarks.harness.memory import peak_memory_bytes
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from benchmarks.harness.zipf import zipf_ids
from benchmarks.torchrec_peer import MLPERF_MULTI_HOT, MLPERF_ROWS
from windrow import recsys
from windrow.comm.loopback import Loopback
from windrow.comm.process import keep_freed_memory
from windrow.recsys.models.options import ModelOptions
from windrow.training.trainer import Trainer

DIM, NUM_DENSE, BATCH_SIZE = 128, 13, 256
STEPS = {False: 100, True: 10}
BOTTOM, TOP = (512, 256), (512, 256)
LARGE, RANK = 100_000, 32
DENSE_BYTES = sum(MLPERF_ROWS) * DIM * 4
MOST_BYTES = {"robe": 100e6, "tensor_train": 1e9}
MOST_MEMORY = 4 << 30
ASKED = 64
"""Samples that are asked about."""


def options_of(form: str) -> recsys.TableOptions:
    """How tables are stored."""
    base = recsys.TableOptions(optimizer="sgd", learning_rate=0.1)
    if form == "robe":
        return replace(base, form="robe", compression=1.001 * DENSE_BYTES / MOST_BYTES["robe"])
    train = recsys.TableOverrides(form="tensor_train", tt_rank=RANK)
    per_table = {f"f{place}": train for place, rows in enumerate(MLPERF_ROWS) if rows > LARGE}
    return replace(base, per_table=per_table)


def make_log(folder: Path, samples: int) -> recsys.LogStore:
    """A log with ids of all tables."""
    chance = np.random.default_rng(0)
    columns: dict[str, Any] = {f"x{place}": chance.normal(size=samples) for place in range(NUM_DENSE)}
    for place, (rows, ids) in enumerate(zip(MLPERF_ROWS, MLPERF_MULTI_HOT, strict=True)):
        drawn = zipf_ids(rows, samples * ids, exponent=1.05, seed=place).numpy()
        offsets = pa.array(np.arange(0, samples * ids + 1, ids, dtype=np.int32))
        columns[f"f{place}"] = pa.ListArray.from_arrays(offsets, pa.array(drawn))
    columns["label"] = chance.integers(0, 2, samples)
    parquet.write_table(pa.table(columns), folder / "log.parquet")
    features = {
        f"f{place}": recsys.FeatureOptions(ids="rows", rows=rows, multi_hot=True)
        for place, rows in enumerate(MLPERF_ROWS)
    }
    return recsys.prepare(
        folder / "log.parquet", folder / "log", dense=[f"x{place}" for place in range(NUM_DENSE)], features=features
    )


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """Everything with one form."""
    keep_freed_memory()
    world = Loopback.single()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = make_log(folder, int(task["steps"] * BATCH_SIZE / 0.8) + BATCH_SIZE)
        begun = time.perf_counter()
        bags = recsys.EmbeddingBagCollection(log.tables(dim=DIM), world=world, optimizer=options_of(task["form"]))
        model = recsys.build_model(
            ModelOptions(bottom=BOTTOM, top=TOP),
            num_dense=NUM_DENSE,
            pooled_dims=dict(zip(bags.embedding_names, bags.embedding_dims, strict=True)),
            seed=1,
        )
        built_s = time.perf_counter() - begun
        recommender = recsys.Recommender(bags, None, model)
        with Trainer(world, recommender, recsys.ClickTask(log), epochs=1, batch_size=BATCH_SIZE) as trainer:
            result = trainer.fit(run_folder=folder / "run")
            recsys.export(recommender, log, folder / "served")
            rows = parquet.read_table(folder / "log.parquet").slice(0, ASKED)
            recsys.prepare_rows(folder / "asked", [_written(folder / "asked.parquet", rows)], log)
            expected = trainer.predict(log=recsys.LogStore.open(folder / "asked")).sigmoid()
        begun = time.perf_counter()
        served = recsys.load(folder / "served")
        found = served.predict(rows.drop_columns(["label"]))
        return {
            "bytes": sum(4 * spec.rows * spec.dim for spec in bags.stored_specs()),
            "built_s": built_s,
            "samples_per_s": result.figures["samples per second"],
            "checkpoint_bytes": sum(path.stat().st_size for path in (folder / "run").rglob("*") if path.is_file()),
            "served_bytes": sum(path.stat().st_size for path in (folder / "served").rglob("*") if path.is_file()),
            "first_answer_s": time.perf_counter() - begun,
            "difference": float((found - expected).abs().max()),
            "peak_bytes": peak_memory_bytes(),
        }


def _written(path: Path, rows: Any) -> Path:
    parquet.write_table(rows, path)
    return path


def measure(program: Program) -> Findings:
    """Each form in a process of its own."""
    rows, figures, aims = [], dict[str, float](), dict[str, Aim]()
    for form, most in MOST_BYTES.items():
        found = program.in_process({"form": form, "steps": STEPS[program.short]}, threads=2)
        rows.append({"form": form, "times smaller": DENSE_BYTES / found["bytes"], **found})
        figures |= {f"{form}_{name}": value for name, value in found.items()}
        fits = found["bytes"] <= most and found["peak_bytes"] <= MOST_MEMORY and found["difference"] < 1e-5
        aims[form] = Aim(
            f"{form}: at most {most / 1e6:.0f} MB of tables and 4 GiB of memory in all, served as trained", fits
        )
    return Findings(figures=figures, aims=aims, tables={"26 tables": Table.from_rows(rows)})


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work)
