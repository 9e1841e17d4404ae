"""Quality against bytes: every form of compressed tables, from half of the dense bytes to a thousandth.

All tables together get so many bytes. Every form is given to all tables that it makes smaller; the others stay dense,
and count. Codes that are learnt, and counts of hot rows, come on top ("MB beside").

    fewer columns       dense tables, and a model, of as many columns less
    codes, clustered    codes are chosen anew after three and six eighths of training (CCE)
    codes, over robe    entries that hashes choose begin at any place, without clustering
    robe, hot rows      half of the bytes for the rows that occur most often (`windrow.recsys.choose_forms`)
    hashed, hot rows    the same, for as many rows of the tables with the largest gradients by now (CAFE)
    tensor_train, ...   first values of cores from other distributions, at a tenth
    int8, int4          rows in few bits, which learn by row-wise Adagrad without weight decay
    dense, row-wise     dense tables that learn so
    served in ... bits  the dense tables as `windrow export --table-bits` writes them (Frappe alone)

The learning rate of tables is the recipe's, tuned for dense ones, a third or three times of it: that of the best
validation metric with the first seed, for dense tables too. Test metric at the best validation epoch. One thread
computes, and seconds are the processor's: a form is trained on each core at a time, and they share its memory.

    frappe     86,582 samples of ten fields, AUC (examples/frappe.toml)
    clicks     200,000 generated samples of 31 features, whose labels a planted model draws, AUC
    gowalla    810,128 visits, recall@20 (examples/gowalla.toml, 64 columns, 3 epochs, a tenth to validate)

Published: ROBE 1000 times at the dense AUC, with about twice the steps; TT-Rec 4.1, 58, 117 and 221.9 times on Criteo
Kaggle at 0.03 to 0.3 % loss; CAFE keeps 57 % of the samples per second of hashed rows.

    python benchmarks/compression.py [--short] [--only PART] [--data FOLDER]
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from pyarrow import parquet
from scipy.stats import rankdata

from benchmarks.harness.compare import mean_and_standard_error
from benchmarks.harness.data_sets import data_option
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from windrow import recsys
from windrow.comm.errors import RecipeError
from windrow.comm.numpy_files import integer_row, load_arrays
from windrow.launch.cli import main
from windrow.launch.recipe import load_any_recipe
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.launch.settings import write_toml
from windrow.launch.training import train
from windrow.partition.tables.plan import TableSpec
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.store import LogStore
from windrow.recsys.log.synthetic.generate import generate_log, session_log_recipe
from windrow.recsys.log.synthetic.options import recd
from windrow.recsys.log_tables import count_table_rows, log_table_specs
from windrow.recsys.models.retrieval import two_tower_tables
from windrow.recsys.sharded.tables_of_ranks import table_specs
from windrow.recsys.tables.choose import choose_forms, with_forms
from windrow.recsys.tables.compressed import make_forms
from windrow.recsys.tables.options import EmbeddingConfig, TableOptions, TableOverrides

FILES = {"frappe": "frappe", "clicks": "", "gowalla": "gowalla.npz"}
DENSE, HOT = "dense", "robe, hot rows"
CLUSTERED, OVER_ROBE = "codes, clustered", "codes, over robe"
CAFE, COLUMNS = "hashed, hot rows", "fewer columns"
FIRST_VALUES = {f"tensor_train, {kind}": kind for kind in ("gaussian", "uniform", "published_code")}
FEW_BITS, ROW_WISE = ("int8", "int4"), "dense, row-wise"
FORMS = (
    *(ROW_WISE, *FEW_BITS),
    *(COLUMNS, "narrow", "hashed", CAFE, "quotient_remainder", "tensor_train", *FIRST_VALUES),
    *("robe", HOT, "codes", OVER_ROBE, CLUSTERED),
)
RATIO_OF_FIRST_VALUES = 10
AS_IN_CAFE = {"hot_by": "gradients", "hot_leave": True}
RATIOS, RATIOS_SHORT = (2, 10, 100, 1000), (10, 100)
RATES = (1 / 3, 1.0, 3.0)
SEEDS = 3
DEADLINE_S = 14_400
LOSS = 0.003
"""Of the dense metric: the largest published loss of TT-Rec."""
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
CLICKS = {"training.epochs": 2, "training.batch_size": 1024, "training.schedule.kind": "linear", "model.dropout": 0.2}
"""As in `make demo`."""
GOWALLA = ("interactions.validation_fraction=0.1", "training.epochs=3", "evaluation.every_epochs=3")
"""A tenth chooses the rate; all is measured once, at the end."""


SERVED_BITS = (8, 4)
"""Of dense tables, after training."""


class Job(NamedTuple):
    """What is trained, but for the form of its tables."""

    recipe: RecommendationRecipe
    specs: Sequence[TableSpec]
    counts: Mapping[str, npt.NDArray[np.int64]]
    steps: int
    """Of three quarters of an epoch: what is chosen anew learns for a while before the end."""


def clicks_recipe(folder: Path, *, samples: int) -> RecommendationRecipe:
    """A generated log and its recipe."""
    options = recd(length_scale=0.1, rows_scale=0.01, seed=1)
    generate_log(folder / "clicks.parquet", options, samples=samples)
    path = folder / "clicks.toml"
    write_toml(path, session_log_recipe(options, log="clicks.parquet", store="store"))
    tables = {"dim": 16, "learning_rate": 0.005, "initial_scale": 0.01, "weight_decay": 1e-4, "optimizer": "adagrad"}
    changed = CLICKS | {f"tables.{name}": value for name, value in tables.items()}
    return load(path, [f"{name}={value}" for name, value in changed.items()])


def load(path: Path, changed: Sequence[str]) -> RecommendationRecipe:
    """A recipe of recommendation."""
    recipe = load_any_recipe(path, changed)
    assert isinstance(recipe, RecommendationRecipe)
    return recipe


def job_of(part: str, data: Path, folder: Path, *, short: bool) -> Job:
    """Read, or generate, and prepare."""
    if part == "gowalla":
        path = data / FILES[part]
        changed = [f"log.paths=['{path}']", "tables.dim=64", *GOWALLA]
        recipe = load(EXAMPLES / "gowalla.toml", changed)
        arrays = load_arrays(path)
        offsets, items = integer_row(path, arrays, "train_indptr"), integer_row(path, arrays, "train_items")
        counts = {"user": np.diff(offsets), "item": np.bincount(items)}
        tables = two_tower_tables(len(counts["user"]), len(counts["item"]), recipe.tables.dim)
        steps = 3 * len(items) // recipe.training.batch_size // 4
        return Job(recipe, table_specs(tables, recipe.tables), counts, steps)
    if part == "frappe":
        files = [str(data / "frappe" / f"frappe.{name}.libfm*") for name in ("validation", "test")]
        changed = [f"log.paths=['{files[0]}']", f"split.test_paths=['{files[1]}']", f"store={folder / 'store'}"]
        recipe = load(EXAMPLES / "frappe.toml", changed)
    else:
        recipe = clicks_recipe(folder, samples=60_000 if short else 200_000)
    order = recipe.deduplication
    store = prepare_log(recipe.store, recipe.log, recipe.split, shard=order.shard, cluster=order.cluster)
    steps = 3 * store.split("train").rows // recipe.training.batch_size // 4
    return Job(recipe, log_table_specs(recipe, store), count_table_rows(LogStore.open(store.path)), steps)


def options_of(job: Job, form: str, ratio: int) -> TableOptions:
    """Tables in one form, in the bytes of the dense ones over a ratio."""
    base = job.recipe.tables
    if form == DENSE:
        return base
    if form in {HOT, CAFE}:
        budget = sum(4 * spec.rows * spec.dim for spec in job.specs) // ratio
        cold = "robe" if form == HOT else "hashed"
        chosen = choose_forms(job.specs, job.counts, budget, options=replace(base, optimizer="sgd"), form=cold)  # type: ignore[arg-type]
        return with_counted(with_forms(base, chosen), job.steps, **(AS_IN_CAFE if form == CAFE else {}))
    if form == ROW_WISE:
        return replace(base, optimizer="rowwise_adagrad", weight_decay=0.0)
    if form == COLUMNS:
        return replace(base, dim=max(base.dim // ratio, 1))
    per_table = dict(base.per_table)
    for spec in job.specs:
        own = overrides_of(form, ratio, job.steps * job.recipe.training.epochs // 2)
        try:
            make_forms([EmbeddingConfig(spec.rows, spec.dim, spec.name)], TableOptions(per_table={spec.name: own}))
        except RecipeError:
            continue  # No smaller so.
        given = {entry.name: getattr(own, entry.name) for entry in fields(own)}
        changed = {name: value for name, value in given.items() if value is not None}
        per_table[spec.name] = replace(base.per_table.get(spec.name, own), **changed)
    return replace(base, per_table=per_table)


def with_counted(options: TableOptions, steps: int, **how: Any) -> TableOptions:
    """The same, but that hot rows are found in the run, twenty times in so many steps."""
    counted = {"hot_counted": True, "hot_every": max(steps // 20, 1), **how}
    changed = {name: replace(own, **counted) for name, own in options.per_table.items() if own.hot_bytes}
    return replace(options, per_table={**options.per_table, **changed})


def overrides_of(form: str, ratio: int, code_every: int) -> TableOverrides:
    """One table in a form."""
    if form == CLUSTERED:
        return TableOverrides(form="codes", compression=ratio, code_every=code_every)
    if form == OVER_ROBE:
        return TableOverrides(form="codes", compression=ratio, code_sketch="robe")
    if form in FEW_BITS:
        return TableOverrides(form=form, optimizer="rowwise_adagrad", weight_decay=0.0)  # type: ignore[arg-type]
    if form in FIRST_VALUES:
        return TableOverrides(form="tensor_train", compression=ratio, tt_first_values=FIRST_VALUES[form])  # type: ignore[arg-type]
    return TableOverrides(form=form, compression=ratio)  # type: ignore[arg-type]


def stored(job: Job, options: TableOptions) -> tuple[int, int]:
    """Numbers that tables consist of, and bytes of what is needed beside them."""
    forms = make_forms([EmbeddingConfig(spec.rows, spec.dim, spec.name) for spec in job.specs], options)
    compressed = {table.name for form in forms for table in form.tables}
    # All of one model's tables have fewer columns, or none.
    share = options.dim / job.recipe.tables.dim
    dense = sum(round(spec.rows * spec.dim * share) for spec in job.specs if spec.name not in compressed)
    numbers = dense + sum(table.num_rows * table.dim for form in forms for table in form.stored)
    return numbers, sum(form.index_bytes() for form in forms)


def ratios_of(form: str, ratios: Sequence[int], job: Job) -> Sequence[int]:
    """How many times smaller a form is tried."""
    if form in {DENSE, ROW_WISE, *FEW_BITS}:
        return (1,)
    if form in FIRST_VALUES:
        return (RATIO_OF_FIRST_VALUES,)
    return [ratio for ratio in ratios if form != COLUMNS or ratio <= job.recipe.tables.dim]


def served_auc(recipe: RecommendationRecipe, run_folder: Path, bits: int) -> float:
    """AUC of the test split as the exported model scores it; every feature has one id."""
    out, store = run_folder / f"served_{bits}", LogStore.open(recipe.store)
    export = ["export", str(run_folder), "--format", "model", "--checkpoint", "latest", "--out", str(out)]
    assert main([*export, "--table-bits", str(bits)]) == 0
    rows = pa.concat_tables([parquet.read_table(file) for file in store.split("test").files])
    ids = torch.tensor(np.stack([rows[feature.name] for feature in store.features]))
    scores = recsys.load(out).score(torch.empty(rows.num_rows, 0), ids).numpy()
    is_click = np.asarray(rows["label"]) > 0
    positives, ranks = int(is_click.sum()), rankdata(scores)
    return float((ranks[is_click].sum() - positives * (positives + 1) / 2) / (positives * (~is_click).sum()))


def as_served(job: Job, found: Mapping[str, Any], folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The runs of dense tables, served in few bits."""
    rows = sum(spec.rows for spec in job.specs)
    return [
        {
            **found,
            "form": f"dense, served in {bits} bits",
            # Each row has a scale and a zero point of 16 bits.
            "numbers": rows + found["numbers"] * bits // 32,
            "test": [served_auc(job.recipe, folder, bits) for folder in folders],
        }
        for bits in SERVED_BITS
    ]


def work(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Train one form at every size."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = job_of(task["part"], Path(task["data"]), folder, short=task["short"])

        folders: dict[tuple[int, float], Path] = {}

        def run(options: TableOptions, seed: int, rate: float) -> tuple[Any, float]:
            own = replace(options, learning_rate=options.learning_rate * rate)
            recipe = replace(job.recipe, tables=own, run=replace(job.recipe.run, seed=seed, threads=1))
            folders[seed, rate] = folder / f"run_{len(list(folder.iterdir()))}"
            began = time.process_time()
            return train(recipe, run_folder=folders[seed, rate]), time.process_time() - began

        form = task["form"]
        for ratio in ratios_of(form, task["ratios"], job):
            try:
                options = options_of(job, form, ratio)
            except RecipeError:
                continue  # Not a row for each table.
            numbers, beside = stored(job, options)
            if found and found[-1]["numbers"] == numbers and found[-1]["form"] == form:
                continue  # As small as this form gets: the same tables.
            first = {rate: run(options, 0, rate) for rate in task["rates"]}

            def value(rate: float, first: Mapping[float, Any] = first) -> float:
                result, _ = first[rate]
                return float(result.test if result.validation is None else result.validation)

            best = max(first, key=value)
            runs = [first[best], *(run(options, seed, best) for seed in range(1, task["seeds"]))]
            of_form = {
                "form": form,
                "ratio": ratio,
                "numbers": numbers,
                "beside": beside,
                "rate": best,
                "test": [result.test for result, _ in runs],
                "seconds": [seconds for _, seconds in runs],
                "epochs": [result.best_epoch or result.epochs for result, _ in runs],
            }
            found.append(of_form)
            if form == DENSE and task["part"] == "frappe":
                found += as_served(job, of_form, [folders[seed, best] for seed in range(task["seeds"])])
    return found


def measure(program: Program) -> Findings:
    """Train everything on each data set."""
    parts = [part for part, file in FILES.items() if (program.options.data / file).exists()]
    rows: list[dict[str, object]] = []
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    for part in program.chosen(parts, short=1):
        task = {
            "part": part,
            "data": str(program.options.data),
            "short": program.short,
            "ratios": RATIOS_SHORT if program.short else RATIOS,
            "rates": RATES[1:2] if program.short else RATES,
            "seeds": 1 if program.short else SEEDS,
        }
        tasks = [{**task, "form": form} for form in (DENSE, *FORMS)]
        found = list(chain.from_iterable(program.in_processes(tasks, threads=1, deadline_s=DEADLINE_S)))
        dense = found[0]
        kept: dict[str, float] = {}
        for one in found:
            differences = [value - base for value, base in zip(one["test"], dense["test"], strict=True)]
            mean, error = mean_and_standard_error(differences) if len(differences) > 1 else (differences[0], 0.0)
            smaller = dense["numbers"] / one["numbers"]
            key = f"{part}_{one['form']}_{one['ratio']}".replace(", ", "_").replace(" ", "_")
            figures |= {f"{key}_metric": fmean(one["test"]), f"{key}_less_dense": mean, f"{key}_ratio": smaller}
            rows.append(
                {
                    "data": part,
                    "form": one["form"],
                    "times smaller": smaller,
                    "numbers": one["numbers"],
                    "MB beside": one["beside"] / 1e6,
                    "test metric": fmean(one["test"]),
                    "less dense": mean,
                    "standard error": error,
                    "of the dense rate": one["rate"],
                    "processor seconds": fmean(one["seconds"]),
                    "over dense": fmean(dense["seconds"]) / fmean(one["seconds"]),
                    "best epoch": fmean(one["epochs"]),
                }
            )
            if mean >= -LOSS * fmean(dense["test"]):
                kept[one["form"]] = max(kept.get(one["form"], 0.0), smaller)
        figures |= {f"{part}_{form}_smallest_ratio".replace(", ", "_").replace(" ", "_"): r for form, r in kept.items()}
        best = max(kept, key=lambda form: kept[form])
        aims[part] = Aim(
            f"{part}: some form >= 10 times smaller loses at most {LOSS:.1%} of the metric (here {best}, "
            f"{kept[best]:.3g} times)",
            kept[best] >= 10,
        )
    return Findings(figures=figures, aims=aims, tables={"forms": Table.from_rows(rows)})


if __name__ == "__main__":
    run_benchmark(
        __file__,
        __doc__,
        measure,
        work=work,
        parts=tuple(FILES),
        add_options=data_option("Frappe and Gowalla", "recsys"),
    )
