"""What a shorter form of vectors on the wire saves and costs: a DLRM on 4 emulated hosts at 1 Gbit/s.

A DLRM learns clicks from a generated log (`windrow.recsys.log.synthetic`), its tables spread over the hosts, as
float32 on the wire and with ``[wire]`` vectors, gradients of vectors, and then sums of dense gradients too as
bfloat16 and in 8 bits. The forms train in turn, epoch by epoch, from the same first weights on the same minibatches;
bytes are those that `Meter` counts, headers of packets and ids left out; AUC is that of the test split after the last
epoch. The step is short of computing and long of traffic on purpose, so that the wire shows. "in 2 parts" and "in 4"
learn from the same minibatches part by part (``training.accumulate``): vectors of the next part, and gradients of the
one before, travel while a part is computed. "lookahead" (``training.lookahead``) sends those vectors of the next
minibatch early that this one does not change, as BagPipe does (Agarwal et al., SOSP 2023). "next vectors early" is no
way to train: all rows of the next minibatch are read and sent before this one is learnt from, so that they are stale.
It bounds what any lookahead can gain.

    python benchmarks/wire.py [--short]
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.harness.compare import Variant, compare, mean_and_standard_error
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table, comparison_from_json, comparison_to_json
from windrow.comm.connect import connect
from windrow.comm.meter import Meter
from windrow.comm.world import World
from windrow.launch.recommendation_recipe import RecommendationRecipe, make_recommendation_recipe
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.synthetic.generate import generate_log, session_log_recipe
from windrow.recsys.log.synthetic.options import recd
from windrow.recsys.recommendation import recommendation
from windrow.training.trainer import Trainer

if TYPE_CHECKING:
    from windrow.recsys.recommender import Lookups
    from windrow.recsys.task import RecommendationTask

HOSTS, RATE = 4, "1gbit"
PLAIN, SHORT, SHORTEST = "float32", "bfloat16 vectors and gradients", "bfloat16 sums too"
INT8, INT8_BOTH, INT8_ALL = "int8 vectors, bfloat16 gradients", "int8 vectors and gradients", "fp8 sums too"
IN_2, IN_4, INT8_IN_2 = "float32, in 2 parts", "float32, in 4 parts", "int8 vectors and gradients, in 2 parts"
LOOKAHEAD, EARLY = "float32, lookahead", "float32, next vectors early"
BF16_VECTORS, INT8_VECTORS = {"vectors": "bf16", "gradients": "bf16"}, {"vectors": "int8", "gradients": "int8"}
FORMS: dict[str, tuple[dict[str, str], int]] = {
    PLAIN: ({}, 1),
    SHORT: (BF16_VECTORS, 1),
    SHORTEST: (BF16_VECTORS | {"sums": "bf16"}, 1),
    INT8: ({"vectors": "int8", "gradients": "bf16"}, 1),
    INT8_BOTH: (INT8_VECTORS, 1),
    INT8_ALL: (INT8_VECTORS | {"sums": "fp8"}, 1),
    IN_2: ({}, 2),
    IN_4: ({}, 4),
    INT8_IN_2: (INT8_VECTORS, 2),
    LOOKAHEAD: ({}, 1),
    EARLY: ({}, 1),
}
"""What is on the wire, and the parts of a minibatch."""
BATCH_SIZE = 4096
KEYS = {
    SHORT: "bf16",
    SHORTEST: "bf16_sums_too",
    INT8: "int8_vectors",
    INT8_BOTH: "int8",
    INT8_ALL: "int8_fp8_sums_too",
    IN_2: "in_2_parts",
    IN_4: "in_4_parts",
    INT8_IN_2: "int8_in_2_parts",
    LOOKAHEAD: "lookahead",
    EARLY: "early",
}
"""Of figures."""
STAGES = ("vectors", "vectors early", "gradients")
"""What ends the names of stages that the codecs of vectors are for."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is."""

    samples: int
    seeds: int
    epochs: int


FULL, BRIEF = Scale(samples=60_000, seeds=3, epochs=2), Scale(samples=10_000, seeds=2, epochs=1)


def recipe_of(
    folder: Path, wire: Mapping[str, str], parts: int, seed: int, *, lookahead: bool = False
) -> RecommendationRecipe:
    """The recipe of one run."""
    values = session_log_recipe(recd(length_scale=0.3, rows_scale=0.01), log="log.parquet", store="store")
    values |= {
        "name": "wire",
        "deduplication": {"groups": [], "cluster": False},
        "tables": {"dim": 64},
        "model": {"kind": "dlrm", "bottom": [64], "top": [64]},
        "plan": {"replicate_below_bytes": 0},
        "training": {
            "batch_size": BATCH_SIZE // parts,
            "accumulate": parts,
            "shuffle": "window",
            "lookahead": lookahead,
        },
        "wire": dict(wire),
        "run": {"seed": seed},
    }
    return make_recommendation_recipe(values, source="wire.py", base=folder)


class Run:
    """Epoch after epoch of one form from one seed, and what the last has moved."""

    def __init__(self, world: World, recipe: RecommendationRecipe, *, early: bool) -> None:
        self._world = world
        self._epoch = 0
        model, task = recommendation(world, recipe, torch.device("cpu"), seed=recipe.run.seed)
        if early:
            read_early(task)
        self._trainer = Trainer(world, model, task, recipe.training, wire=recipe.wire, seed=recipe.run.seed)
        self.samples = self._trainer.task.samples_per_epoch
        self.num_bytes = 0.0

    def __call__(self) -> None:
        """Train one epoch."""
        meter = self._world.meter = Meter()
        self._trainer.train_epoch(self._epoch)
        self._world.meter = None
        self._epoch += 1
        of_vectors = {stage for stage, _ in meter.table() if any(stage == f"embedding bags: {what}" for what in STAGES)}
        self.num_bytes = float(sum(meter.totals(stage).bytes_sent for stage in of_vectors))

    def finish(self) -> tuple[float, float]:
        """Test AUC, and bytes of vectors and their gradients in an epoch, over all ranks."""
        auc = self._trainer.evaluate("test")["test"]["auc"]
        self._trainer.close()
        moved = torch.tensor(self.num_bytes, dtype=torch.float64)
        return auc, float(self._world.all_reduce(moved, stage="figures"))


def read_early(task: "RecommendationTask") -> None:
    """Have the rows of the next minibatch read and sent before a minibatch is computed."""
    minibatches = task.minibatches

    @contextmanager
    def one_ahead(epoch: int, steps: range) -> "Iterator[Iterator[Lookups]]":
        with minibatches(epoch, steps) as lookups:
            # Asking for one has its rows read.
            yield (before for before, _ in pairwise(chain(lookups, [None])) if before is not None)

    task.minibatches = one_ahead  # type: ignore[method-assign]  # of this object alone


def work(task: Mapping[str, Any]) -> object:
    """Be one of the hosts: train all forms from one seed, in turn."""
    torch.set_num_threads(1)
    with connect("mpi", deadline_s=300) as world:
        runs = {
            name: Run(
                world,
                recipe_of(Path(task["folder"]), *form, task["seed"], lookahead=name == LOOKAHEAD),
                early=name == EARLY,
            )
            for name, form in FORMS.items()
        }
        compared = compare(
            {name: Variant(run=run, rows=run.samples) for name, run in runs.items()},
            baseline=PLAIN,
            repeats=task["epochs"],
            world=world,
        )
        return {"comparison": comparison_to_json(compared), "ends": {name: run.finish() for name, run in runs.items()}}


def measure(program: Program) -> Findings:
    """Train all forms from every seed."""
    scale = BRIEF if program.short else FULL
    with tempfile.TemporaryDirectory(prefix="wire-") as name:
        folder = Path(name)
        generate_log(folder / "log.parquet", recd(length_scale=0.3, rows_scale=0.01), samples=scale.samples)
        recipe = recipe_of(folder, {}, 1, 0)
        prepare_log(recipe.store, recipe.log, recipe.split)
        found = [
            program.on_ranks(HOSTS, {**asdict(scale), "folder": name, "seed": seed}, rate=RATE, deadline_s=2400)
            for seed in range(scale.seeds)
        ]
    comparisons = {f"seed {seed}": comparison_from_json(one["comparison"]) for seed, one in enumerate(found)}
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    for form, key in KEYS.items():
        bytes_ratio = fmean(one["ends"][form][1] / one["ends"][PLAIN][1] for one in found)
        speed = fmean(compared.ratio(form).median for compared in comparisons.values())
        differences = [one["ends"][form][0] - one["ends"][PLAIN][0] for one in found]
        difference, error = mean_and_standard_error(differences)
        figures |= {
            f"{key}_bytes_ratio": bytes_ratio,
            f"{key}_speed_ratio": speed,
            f"{key}_auc_difference_share": difference,
            f"{key}_auc_difference_standard_error_share": error,
        }
        if form == SHORT:
            aims["bytes"] = Aim("0.5 of the bytes of vectors and gradients", bytes_ratio <= 0.5)
    rows = [
        {"seed": seed, "form": form, "test AUC": auc, "MB in an epoch": moved / 1e6}
        for seed, one in enumerate(found)
        for form, (auc, moved) in one["ends"].items()
    ]
    return Findings(figures=figures, aims=aims, comparisons=comparisons, tables={"Runs": Table.from_rows(rows)})


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, ranks=True)
