"""First rows of tables from the graph of a log, against random ones.

What occurs together is joined, and a row for each id is learnt so that a one-layer GraphSAGE tells joined ids from
others (`examples/graph_of_log.py`); its vectors are what tables start from, as large as the random rows. Everything
else is alike: the same recipe, the same seeds.

    frappe       ids of ten fields in positive samples, for a DLRM: AUC after each of three epochs
    diginetica   items clicked one after the other, for the next item of a session: recall@20 at the best epoch

    python benchmarks/graph_vectors.py [--short] [--only PART] [--data FOLDER]
"""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import recd_quality
from benchmarks.harness.compare import mean_and_standard_error
from benchmarks.harness.data_sets import DIGINETICA, data_option
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from examples.graph_of_log import as_large_as, first_rows, vectors_of_graph
from windrow.comm.loopback import Loopback
from windrow.launch.recommendation_recipe import load_recommendation_recipe
from windrow.launch.training import train
from windrow.recsys.log.prepare import prepare_log
from windrow.training.journal import read_records

FILES = {"frappe": "frappe", "diginetica": DIGINETICA}
RANDOM, GRAPH = "random", "of the graph"
SEEDS, GRAPH_EPOCHS = 3, 3
FRAPPE = Path(__file__).resolve().parent.parent / "examples" / "frappe.toml"


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """Train once: the metric, and those of the epochs before."""
    seed, data, short = task["seed"], Path(task["data"]), task["short"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if task["part"] == "frappe":
            files = [str(data / "frappe" / f"frappe.{split}.libfm*") for split in ("validation", "test")]
            changed = [f"log.paths=['{files[0]}']", f"split.test_paths=['{files[1]}']", f"store={folder / 'store'}"]
            recipe = load_recommendation_recipe(FRAPPE, [*changed, f"run.seed={seed}", "run.tensorboard=false"])
            prepare_log(recipe.store, recipe.log, recipe.split)
            if task["rows"] == GRAPH:
                rows = first_rows(Loopback.single(), recipe, folder, 1 if short else GRAPH_EPOCHS)
                recipe = replace(recipe, tables=replace(recipe.tables, pretrained=rows))
            result = train(recipe, run_folder=folder / "run")
            return {
                "metric": result.test,
                "epochs": [one.test for one in read_records(folder / "run" / "metrics.jsonl")],
            }
        path = None
        if task["rows"] == GRAPH:
            sessions, _, num_items = recd_quality.read_data(data, short=short)
            clicks = sessions.clicks
            is_next = np.diff(clicks.rows) == 0
            pairs = np.stack([clicks.values[:-1][is_next], clicks.values[1:][is_next]])
            size = {"dim": recd_quality.DIM, "epochs": 1 if short else GRAPH_EPOCHS, "seed": seed}
            vectors = vectors_of_graph(Loopback.single(), pairs, num_items, folder=folder / "graph", **size)
            path = folder / "item.npy"
            np.save(path, as_large_as(vectors, recd_quality.INITIAL_SCALE))
        found = recd_quality.work({**task, "variant": recd_quality.SHUFFLED}, path)
        return {"metric": found["recall@20"], "epochs": found["validations"]}


def measure(program: Program) -> Findings:
    """Both kinds of first rows, from every seed."""
    data = program.options.data.resolve()
    parts = [part for part, file in FILES.items() if (data / file).exists()]
    seeds = range(1 if program.short else SEEDS)
    rows: list[dict[str, object]] = []
    figures: dict[str, float] = {}
    aims = {}
    for part in program.chosen(parts, short=1):
        tasks = [
            {"part": part, "rows": kind, "seed": seed, "data": str(data), "short": program.short}
            for seed in seeds
            for kind in (RANDOM, GRAPH)
        ]
        found = program.in_processes(tasks, threads=1, deadline_s=7200)
        of_kind = {
            kind: [one for one, task in zip(found, tasks, strict=True) if task["rows"] == kind]
            for kind in (RANDOM, GRAPH)
        }
        for kind, runs in of_kind.items():
            epochs = [fmean(values) for values in zip(*(one["epochs"] for one in runs), strict=False)]
            shown = ", ".join(f"{value:.4f}" for value in epochs)
            rows.append(
                {
                    "data": part,
                    "first rows": kind,
                    "test metric": fmean(one["metric"] for one in runs),
                    "after each epoch": shown,
                }
            )
        gains = [one["metric"] - other["metric"] for one, other in zip(of_kind[GRAPH], of_kind[RANDOM], strict=True)]
        gain, error = mean_and_standard_error(gains) if len(gains) > 1 else (gains[0], 0.0)
        figures |= {f"{part}_gain_share": gain, f"{part}_gain_standard_error_share": error}
        aims[part] = Aim(f"{part}: rows of the graph gain more than two standard errors", gain > 2 * error)
    return Findings(figures=figures, aims=aims, tables={"First rows": Table.from_rows(rows)})


if __name__ == "__main__":
    add = data_option("Frappe and Diginetica", "recsys")
    run_benchmark(__file__, __doc__, measure, work=work, parts=tuple(FILES), add_options=add)
