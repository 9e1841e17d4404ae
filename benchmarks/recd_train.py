"""What each step of RecD gains in training: a pooled and a sequence model, one process and 4 emulated hosts.

A generated log with the published statistics (`windrow.recsys.log.synthetic`) is prepared in order of time and
clustered by session. Then the steps are switched on one after another, as in the paper (Zhao et al., MLSys 2023): O1
and O2, the clustered log; O3 and O4, a reader that gives distinct lists; O5, distinct lists alone travel and are
looked up; O6, rows of lists are expanded without padding; O7, what depends on a list alone is computed once for each.
Every variant trains whole epochs in turn with the others in one job; samples stay decoded from epoch to epoch, since
the paper's readers have machines of their own (`recd_reader.py` times ours). The paper's best model, one of
sequences, trains 2.48 times as fast.

    python benchmarks/recd_train.py [--short]
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.compare import Variant, compare
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table, comparison_from_json, comparison_to_json
from windrow.comm.connect import connect
from windrow.comm.meter import Meter
from windrow.comm.world import World
from windrow.launch.recommendation_recipe import RecommendationRecipe, make_recommendation_recipe
from windrow.partition.tables.plan import Cost
from windrow.recsys.batches.deduplication.survey import survey_log
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.store import LogStore
from windrow.recsys.log.synthetic.generate import generate_log, recipe_groups, session_log_recipe
from windrow.recsys.log.synthetic.options import recd
from windrow.recsys.log_tables import log_transforms
from windrow.recsys.recommendation import recommendation
from windrow.recsys.recommender import collections_of
from windrow.recsys.sharded.traffic import FeatureLoad, expected_traffic
from windrow.training.trainer import Trainer

HOSTS = 4
RATE = "1gbit"
SEED = 3
SEQUENCES = ("history_items", "watched_videos")
PLAIN, SHARED, LAST = "time order", "O3, O4: reader", "O7: computing"
VARIANTS: dict[str, tuple[str, ...]] = {
    PLAIN: (),
    "O1, O2: clustered": ("cluster",),
    SHARED: ("cluster", "read", "transform"),
    "O5: lookup": ("cluster", "read", "transform", "look_up"),
    "O6: expansion": ("cluster", "read", "transform", "look_up", "expand_jagged"),
    LAST: ("cluster", "read", "transform", "look_up", "expand_jagged", "compute"),
}
"""Switches that are on."""
SWITCHES = ("read", "transform", "look_up", "expand_jagged", "compute")
HASHED_SHARE = 0.5
"""Rows of a table that ids of lists are hashed to while they are read, over those of the log: so that the reader has to
do something with each id, as readers of production logs have."""

MODELS: dict[str, dict[str, Any]] = {
    "pooled": {"kind": "dlrm", "bottom": [128], "top": [256, 128]},
    "sequence": {
        "kind": "dlrm",
        "bottom": [128],
        "top": [256, 128],
        "sequences": list(SEQUENCES),
        "sequence_pooling": "self",
        "sequence_layers": 1,
        "sequence_heads": 4,
    },
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is."""

    samples: int
    batch_size: int
    dim: int
    rows_scale: float
    repeats: int


FULL_SCALE = Scale(samples=60_000, batch_size=4096, dim=64, rows_scale=0.01, repeats=2)
SHORT_SCALE = Scale(samples=5_000, batch_size=1024, dim=32, rows_scale=0.005, repeats=1)


def recipe_of(
    folder: Path, scale: Scale, model: str, switches: Sequence[str], more: Mapping[str, Mapping[str, Any]] | None = None
) -> RecommendationRecipe:
    """The recipe of one variant; `more` has further settings by section."""
    options = recd(rows_scale=scale.rows_scale, seed=SEED)
    clustered = "cluster" in switches
    log, store = str(folder / "log.parquet"), str(folder / ("clustered" if clustered else "time"))
    values = session_log_recipe(options, log=log, store=store)
    lists = [feature for group in options.groups if group.mean_length for feature in group.features]
    values |= {
        "name": "recd_train",
        "deduplication": {
            "groups": recipe_groups(options),
            "cluster": clustered,
            **{name: name in switches for name in SWITCHES},
        },
        "transforms": {f.name: {"hash_rows": max(2, round(HASHED_SHARE * f.rows))} for f in lists},
        "model": MODELS[model],
        "tables": {"dim": scale.dim},
        "training": {"batch_size": scale.batch_size, "shuffle": "none", "reader_shards": HOSTS},
    }
    values["split"]["fractions"] = [0.9, 0.05, 0.05]
    for section, settings in (more or {}).items():
        values[section] = values.get(section, {}) | settings
    return make_recommendation_recipe(values, source="recd_train.py", base=folder)


def make_stores(folder: Path, scale: Scale) -> None:
    """Generate the log, in order of time, and prepare it as it is and clustered."""
    options = recd(rows_scale=scale.rows_scale, seed=SEED)
    generate_log(folder / "log.parquet", options, samples=scale.samples)
    for switches in ((), ("cluster",)):
        recipe = recipe_of(folder, scale, "pooled", switches)
        clustered = recipe.deduplication.cluster
        prepare_log(recipe.store, recipe.log, recipe.split, cluster=clustered, leave_out_repeats=clustered)


class Epochs:
    """Epoch after epoch of one variant, and what the last has moved."""

    def __init__(self, world: World, recipe: RecommendationRecipe) -> None:
        self.world = world
        self.trainer = Trainer(
            world, *recommendation(world, recipe, torch.device("cpu"), seed=recipe.run.seed), recipe.training, seed=SEED
        )
        self.epoch = 0
        self.loss = 0.0
        self.moved: dict[str, float] = {}

    def __call__(self) -> None:
        """Train one epoch."""
        meter = self.world.meter = Meter()
        # Rates do not change from epoch to epoch, so any number of them may be trained.
        self.loss = self.trainer.train_epoch(self.epoch)
        self.world.meter = None
        self.epoch += 1
        stages = {stage for stage, _ in meter.table()}
        self.moved = {
            "lookups": float(meter.found().local + meter.found().remote),
            **{
                what: float(sum(meter.totals(s).bytes_sent for s in stages if s.endswith(f": {what}")))
                for what in ("ids", "vectors", "gradients")
            },
        }


def work(task: Mapping[str, Any]) -> object:
    """Time the variants in turn, in one process or as one of the hosts."""
    torch.set_num_threads(1)
    scale, folder = Scale(**task["scale"]), Path(task["folder"])
    with connect("mpi", deadline_s=300) as world:
        runs = {
            name: Epochs(world, recipe_of(folder, scale, task["model"], switches))
            for name, switches in VARIANTS.items()
        }
        samples = runs[PLAIN].trainer.task.samples_per_epoch
        compared = compare(
            {name: Variant(run=run, rows=samples) for name, run in runs.items()},
            baseline=PLAIN,
            repeats=scale.repeats,
            world=world,
        )
        found = {
            "comparison": comparison_to_json(compared),
            "samples": samples,
            "losses": {name: run.loss for name, run in runs.items()},
            "moved": {
                name: {what: total(world, amount) for what, amount in run.moved.items()} for name, run in runs.items()
            },
            "predicted": {
                name: predicted(world, recipe_of(folder, scale, task["model"], VARIANTS[name]), runs[name])
                for name in (SHARED, LAST)
            },
            "stages": {name: run.trainer.stopwatch.seconds for name, run in runs.items()},
        }
        for run in runs.values():
            run.trainer.close()
    return found


def total(world: World, value: float) -> float:
    """The sum over all ranks."""
    return float(world.all_reduce(torch.tensor(value, dtype=torch.float64), stage="figures"))


def predicted(world: World, recipe: RecommendationRecipe, run: Epochs) -> dict[str, float]:
    """What all ranks together move in an epoch of a clustered log, as the formulas of the paper have it.

    From samples per session, share of unchanged samples and ids, and mean lengths of the log; batches are not looked
    at.
    """
    store = LogStore.open(recipe.store)
    steps = run.trainer.steps_per_epoch
    # The last batch of an epoch is smaller: the mean one stands for all.
    mean_batch = run.trainer.task.samples_per_epoch / steps
    survey = survey_log(
        store,
        batch_size=round(mean_batch),
        reader_shards=HOSTS,
        size=world.size,
        transforms=log_transforms(recipe, store),
    )
    moved = Cost()
    for collection in collections_of(run.trainer.model):
        samples = mean_batch / world.size
        held = {name: (samples, samples * survey.mean_length(name)) for name in survey.features}
        for group in collection.groups:
            rows = survey.predicted_rows(group)
            held |= {name: (rows, survey.predicted_ids(name, group)) for name in group}
        loads = {feature.name: FeatureLoad(*held[feature.name], not feature.multi_hot) for feature in store.features}
        # Whole tables: no range of rows is asked for.
        moved += expected_traffic(collection.layout, collection.form, loads, lambda *_: (1.0, 1.0))
    return {
        "lookups": steps * moved.lookups,
        "ids": steps * moved.id_bytes,
        "vectors": steps * moved.forward_bytes,
        "gradients": steps * moved.backward_bytes,
    }


def factor_row(what: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """How much less of something there is with all steps than with none, on the clustered log."""
    return {
        "what": what,
        "measured": found["moved"][SHARED][what] / found["moved"][LAST][what],
        "predicted": found["predicted"][SHARED][what] / found["predicted"][LAST][what],
    }


def key(variant: str) -> str:
    """A variant's name in figures."""
    return variant.split(":", maxsplit=1)[0].replace(", ", "_").replace(" ", "_").lower()


def measure(program: Program) -> Findings:
    """Time both models in one process and on emulated hosts."""
    scale = SHORT_SCALE if program.short else FULL_SCALE
    figures: dict[str, float] = {}
    comparisons, rows, factor_rows = {}, [], []
    errors: list[float] = []
    with tempfile.TemporaryDirectory(prefix="recd-") as name:
        folder = Path(name)
        make_stores(folder, scale)
        for model in MODELS:
            for hosts in (1, HOSTS):
                task = {"folder": name, "scale": vars(scale), "model": model}
                found = program.on_ranks(hosts, task, rate=RATE if hosts > 1 else None, deadline_s=2400)
                compared = comparison_from_json(found["comparison"])
                place = f"{model} model, {'one process' if hosts == 1 else f'{hosts} hosts at {RATE}'}"
                comparisons[place] = compared
                seconds = {variant: measured.median_s for variant, measured in compared.variants.items()}
                moved = found["moved"]
                prefix = f"{model}_{hosts}_hosts"
                factors = [factor_row(what, found) for what in moved[LAST] if moved[LAST][what]]
                errors += [abs(row["predicted"] / row["measured"] - 1) for row in factors]
                factor_rows += [{"model": model, "hosts": hosts, **row} for row in factors]
                figures |= {
                    f"{prefix}_{key(variant)}_ratio": seconds[PLAIN] / value
                    for variant, value in seconds.items()
                    if variant != PLAIN
                }
                figures |= {f"{prefix}_{row['what']}_factor_ratio": row["measured"] for row in factors}
                rows += [
                    {
                        "model": model,
                        "hosts": hosts,
                        "variant": variant,
                        "samples/s": found["samples"] / value,
                        "faster": seconds[PLAIN] / value,
                        "lookups": moved[variant]["lookups"],
                        "MB of ids": moved[variant]["ids"] / 1e6,
                        "MB of vectors": moved[variant]["vectors"] / 1e6,
                        "MB of gradients": moved[variant]["gradients"] / 1e6,
                        "loss": found["losses"][variant],
                    }
                    for variant, value in seconds.items()
                ]
    best = max(figures[f"sequence_{hosts}_hosts_{key(LAST)}_ratio"] for hosts in (1, HOSTS))
    aims = {
        "sequence": Aim("sequence model at least 2.5 times as fast with O1 to O7", best >= 2.5),
        "prediction": Aim("lookups and bytes within 2 % of the dedupe factor's prediction", max(errors) <= 0.02),
    }
    figures["prediction_worst_error_percent"] = 100 * max(errors)
    tables = {"Epochs": Table.from_rows(rows), "Factors": Table.from_rows(factor_rows)}
    return Findings(figures=figures, aims=aims, comparisons=comparisons, tables=tables)


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work)
