"""What clustered minibatches cost a model of clicks: AUC epoch by epoch, against samples shuffled one by one.

Deduplication pays where the samples of a session are in one minibatch, which then holds fewer sessions, more alike
(RecD; Zhao et al., MLSys 2023, arXiv 2211.05239, does not say what that does to a model). A DLRM of pooled features
learns from a generated log with the published statistics (`windrow.recsys.log.synthetic`), split by sessions; who knew
how its clicks were drawn would reach an AUC of 0.82:

  shuffled        samples shuffled anew in each epoch, in windows of 65,536: the default, without deduplication
  sessions        whole sessions shuffled in such windows, their samples together, deduplicated
  ..._halved      either, in minibatches of half the size

    python benchmarks/recd_clicks.py [--short]
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.harness.compare import mean_and_standard_error
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from windrow.comm.loopback import Loopback
from windrow.launch.recommendation_recipe import RecommendationRecipe, make_recommendation_recipe
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.synthetic.generate import generate_log, session_log_recipe
from windrow.recsys.log.synthetic.options import recd

SAMPLES, SAMPLES_SHORT = 200_000, 40_000
SEEDS, SEEDS_SHORT = 3, 2
EPOCHS, EPOCHS_SHORT = 5, 2
BATCH_SIZE = 1024
LENGTH_SCALE, ROWS_SCALE = 0.3, 0.01
"""Of lists and tables: each row is then seen often enough to be learned from this log."""
CHANGES: dict[str, dict[str, Any]] = {
    "shuffled": {"shuffle": "window", "batch_size": BATCH_SIZE},
    "sessions": {"shuffle": "sessions", "batch_size": BATCH_SIZE},
    "shuffled_halved": {"shuffle": "window", "batch_size": BATCH_SIZE // 2},
    "sessions_halved": {"shuffle": "sessions", "batch_size": BATCH_SIZE // 2},
}
"""Of each variant, in `[training]`."""


def recipe_of(folder: Path, variant: str, seed: int) -> RecommendationRecipe:
    """The recipe of one run."""
    clustered = variant.startswith("sessions")
    values = session_log_recipe(
        recd(length_scale=LENGTH_SCALE, rows_scale=ROWS_SCALE),
        log="log.parquet",
        store="clustered" if clustered else "time",
    )
    groups = values["deduplication"]["groups"] if clustered else []
    values |= {
        "name": "recd_clicks",
        "deduplication": {"groups": groups, "cluster": clustered},
        "model": {"kind": "dlrm", "bottom": [64], "top": [128, 64]},
        "training": CHANGES[variant],
        "run": {"seed": seed},
    }
    return make_recommendation_recipe(values, source="recd_clicks.py", base=folder)


def work(task: Mapping[str, Any]) -> object:
    """Train one variant from one seed; the test AUC after each epoch."""
    from windrow.comm.process import keep_freed_memory
    from windrow.recsys.recommendation import recommendation
    from windrow.training.trainer import Trainer

    keep_freed_memory()
    world = Loopback.single()
    recipe = recipe_of(Path(task["folder"]), task["variant"], task["seed"])
    trainer = Trainer(
        world,
        *recommendation(world, recipe, torch.device("cpu"), seed=recipe.run.seed),
        recipe.training,
        seed=task["seed"],
    )
    found = []
    for epoch in range(task["epochs"]):
        trainer.train_epoch(epoch)
        found.append(trainer.evaluate("test")["test"]["auc"])
    trainer.close()
    return found


def measure(program: Program) -> Findings:
    """Train every variant from every seed."""
    samples, seeds, epochs = (SAMPLES_SHORT, SEEDS_SHORT, EPOCHS_SHORT) if program.short else (SAMPLES, SEEDS, EPOCHS)
    with tempfile.TemporaryDirectory(prefix="recd-clicks-") as name:
        folder = Path(name)
        options = recd(length_scale=LENGTH_SCALE, rows_scale=ROWS_SCALE)
        generate_log(folder / "log.parquet", options, samples=samples)
        for variant in ("shuffled", "sessions"):
            recipe = recipe_of(folder, variant, 0)
            clustered = recipe.deduplication.cluster
            prepare_log(recipe.store, recipe.log, recipe.split, cluster=clustered, leave_out_repeats=clustered)
        runs: dict[tuple[str, int], list[float]] = {
            (variant, seed): program.in_process(
                {"folder": name, "variant": variant, "seed": seed, "epochs": epochs}, threads=2
            )
            for seed in range(seeds)
            for variant in CHANGES
        }
    rows = [
        {"variant": variant, "seed": seed, **{f"epoch {n}": auc for n, auc in enumerate(found, 1)}}
        for (variant, seed), found in runs.items()
    ]
    figures: dict[str, float] = {}
    for variant in CHANGES:
        for epoch in range(epochs):
            figures[f"{variant}_epoch_{epoch + 1}_auc_share"] = fmean(
                runs[variant, seed][epoch] for seed in range(seeds)
            )
    best = {variant: [max(runs[variant, seed]) for seed in range(seeds)] for variant in CHANGES}
    aims = {}
    for halved in ("", "_halved"):
        pairs = zip(best[f"sessions{halved}"], best[f"shuffled{halved}"], strict=True)
        differences = [ours - theirs for ours, theirs in pairs]
        mean, error = mean_and_standard_error(differences)
        figures[f"sessions{halved}_best_auc_difference_share"] = mean
        figures[f"sessions{halved}_best_auc_difference_standard_error_share"] = error
        aims[f"sessions{halved}"] = Aim(
            f"best AUC of sessions{halved} less that of shuffled{halved}: no loss beyond two standard errors",
            mean >= -2 * error,
        )
    return Findings(figures=figures, aims=aims, tables={"Test AUC": Table.from_rows(rows)})


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work)
