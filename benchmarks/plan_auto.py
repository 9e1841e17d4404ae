"""Whether what ``windrow plan --auto`` proposes is as fast as what is near it: six jobs on 4 emulated hosts.

Of each job a recipe is written as a newcomer might, links are measured, and settings proposed from predictions alone,
number formats of 8 bits on the wire allowed. Then ``windrow sweep`` trains some steps under what is proposed, under
each recipe near that, and under the first one, in turn. The aim is a proposal whose fastest neighbour, of those that
keep to the memory that the recipe allows, is at most 1.1 times as fast. The fastest of many equal ones is the luckiest:
so which it is one half of the rounds says, and how fast it is the other, and the other way round. The proposal is tried
twice, which says how far equal recipes are apart. "predicted" is how many times as fast as the first recipe it should
be, "measured" how many it is; of logs predictions leave out the dense part.

    tolokers       GraphSAGE, 2 layers, 11,758 vertices, a cache that has no room for all rows
    communities    GraphSAGE, 3 layers, 100,000 generated vertices with 128 features, likewise
    clicks         DLRM on a generated log, 5 % of the published tables' rows, in order of time
    sessions       the same, samples of a session together

    python benchmarks/plan_auto.py [--short] [--only tolokers | clicks | communities | sessions]
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.harness.power_law import power_law_communities
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Comparison, Findings, Measurement, Table, ratio
from windrow.comm.connect import connect
from windrow.comm.hosts import gather_hosts
from windrow.comm.links import Links, links_from_json, links_to_json
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.partitioning import graph_to_store, partition_to_store
from windrow.launch.auto_plan import AutoPlan, plan_graph, plan_log
from windrow.launch.commands.arguments import step_work
from windrow.launch.known_links import cache_folder, known_links
from windrow.launch.recipe import AnyRecipe, Recipe, make_any_recipe
from windrow.launch.sweep import changed, near_recipes, sweep
from windrow.partition.options import PartitionOptions
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.store import LogStore
from windrow.recsys.log.synthetic.generate import generate_log, session_log_recipe
from windrow.recsys.log.synthetic.options import recd

HOSTS = 4
SEED = 5
SHORTEST = "int8"
PROPOSED, AGAIN, FIRST = "proposed", "proposed again", "the first recipe"
RATES = {
    "tolokers": ("20mbit",),
    "clicks": ("1gbit", "100mbit"),
    "communities": ("100mbit", "1gbit"),
    "sessions": ("1gbit",),
}
"""Of the links, by data; the short form has the first of the first two."""
STEPS, QUICK = {False: 24, True: 4}, 5
"""Steps that are measured in a round; so many times as many where one takes 30 ms."""
MOST_SLOWER = 1.1
RUN = {"threads": 1, "seed": SEED}


def recipe_of(data: str, folder: Path) -> AnyRecipe:
    """The recipe that a job begins with; its data are made."""
    values = graph_values(data) if data in {"tolokers", "communities"} else log_values(data, folder)
    values |= {"name": data, "store": str(folder / data), "run": RUN}
    return make_any_recipe(values, source=data, base=folder)


def graph_values(data: str) -> dict[str, Any]:
    """Settings of a graph's recipe."""
    tolokers = Path(__file__).resolve().parent.parent / "examples" / "data" / "tolokers.npz"
    small = data == "tolokers"
    return {
        "graph": {"path": str(tolokers) if small else "generated.npz"},
        "partition": {"num_parts": HOSTS, "restarts": 1, "refine_cycles": 1},
        "model": {"hidden": 64, "num_layers": 2 if small else 3},
        "sampler": {"fanouts": [10, 10] if small else [15, 10, 5]},
        "training": {"batch_size": 1024, "epochs": 50},
        "cache": {"memory_gib": 5e-5 if small else 5e-3},
    }


def log_values(data: str, folder: Path) -> dict[str, Any]:
    """Settings of a log's recipe."""
    in_sessions = data == "sessions"
    values = session_log_recipe(recd(rows_scale=0.05, length_scale=0.3), log=str(folder / "log.parquet"), store=data)
    return values | {
        "deduplication": {"groups": [], "cluster": in_sessions},
        "tables": {"dim": 32},
        "plan": {"ranks_per_core": 2.0},
        "model": {"kind": "dlrm", "bottom": [64], "top": [64]},
        "training": {"batch_size": 2048, "shuffle": "sessions" if in_sessions else "window", "epochs": 20},
    }


def make_data(recipe: AnyRecipe, folder: Path, *, samples: int) -> None:
    """Partition, or prepare."""
    if not isinstance(recipe, Recipe):
        log = folder / "log.parquet"
        if not log.exists():
            generate_log(log, recd(rows_scale=0.05, length_scale=0.3, seed=SEED), samples=samples)
        prepare_log(recipe.store, recipe.log, recipe.split, cluster=recipe.deduplication.cluster)
    elif recipe.name == "tolokers":
        partition_to_store(recipe)
    else:
        graph = power_law_communities(
            100_000, 1_500_000, seed=SEED, num_communities=100, mixing=0.3, num_features=128, num_classes=16,
            train_share=0.3,
        )  # fmt: skip
        options = PartitionOptions(num_parts=HOSTS, restarts=1, refine_cycles=1)
        graph_to_store(graph, recipe.store, options, sampler=recipe.sampler, training=recipe.training)


def propose(recipe: AnyRecipe, links: Links) -> AutoPlan:
    """What the command proposes."""
    if not isinstance(recipe, Recipe):
        return plan_log(recipe, LogStore.open(recipe.store), HOSTS, links, shortest=SHORTEST)
    graph = PartitionedGraph.open(recipe.store, rank=0, size=HOSTS, read_features=False)
    work, _ = step_work(graph, recipe, links, HOSTS)
    return plan_graph(recipe, graph, links, work, shortest=SHORTEST)


def work(task: Mapping[str, Any]) -> object:
    """Be one of the hosts: measure links, which are kept, or train some steps under several recipes."""
    if "recipes" not in task:
        with connect("mpi", deadline_s=300) as world:
            links, _ = known_links(world, hosts=gather_hosts(world), folder=cache_folder())
        return links_to_json(links)
    settings = json.loads(Path(task["recipes"]).read_text("utf-8"))
    recipes = {name: make_any_recipe(values, source=name, base=Path("/")) for name, values in settings.items()}
    found = sweep(recipes, steps=task["steps"], rounds=task["rounds"], say=lambda _: None)
    return {name: one if isinstance(one, str) else asdict(one) for name, one in found.items()}


def measure(program: Program) -> Findings:
    """Do every job."""
    rounds, samples = (2, 30_000) if program.short else (6, 60_000)
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    comparisons: dict[str, Comparison] = {}
    tables: dict[str, Table] = {}
    with tempfile.TemporaryDirectory(prefix="plan_auto-") as name:
        folder = Path(name)
        kept = {"XDG_CACHE_HOME": str(folder / "cache")}
        chosen = program.chosen(tuple(RATES), short=2)
        jobs = [(data, rate) for data in chosen for rate in RATES[data][: 1 if program.short else None]]
        for data, rate in jobs:
            recipe = recipe_of(data, folder)
            if not recipe.store.exists():
                make_data(recipe, folder, samples=samples)
            told = program.on_ranks(HOSTS, {}, rate=rate, environment=kept)
            proposal = propose(recipe, links_from_json(told, source=rate))
            planned = changed(recipe, proposal.changes)
            recipes = {PROPOSED: planned, AGAIN: planned, FIRST: recipe, **near_recipes(planned, shortest=SHORTEST)}
            tried = folder / "recipes.json"
            tried.write_text(json.dumps({what: one.settings() for what, one in recipes.items()}), encoding="utf-8")
            steps = STEPS[program.short] * (QUICK if data == "tolokers" else 1)
            task = {"recipes": str(tried), "steps": steps, "rounds": rounds}
            found = program.on_ranks(HOSTS, task, rate=rate, environment=kept, deadline_s=3600)
            job = f"{data}_{rate}"
            larger = f"cache.memory_gib = {2 * recipe.cache.memory_gib}" if isinstance(recipe, Recipe) else ""
            comparisons[job] = times_of(found)
            conclude_job(job, proposal, comparisons[job], larger, figures, aims)
            tables[f"{job}: proposed {dict(proposal.changes)}"] = table_of(found)
    return Findings(figures=figures, aims=aims, comparisons=comparisons, tables=tables)


def times_of(found: Mapping[str, Any]) -> Comparison:
    """Of the recipes that were not refused."""
    times = {what: one["sample_s"] for what, one in found.items() if not isinstance(one, str)}
    variants = {what: Measurement(seconds=tuple(seconds)) for what, seconds in times.items()}
    return Comparison(baseline=PROPOSED, variants=variants, per="sample")


def fastest_neighbour(times: Comparison, near: Sequence[str]) -> float:
    """How many times as fast as the proposal the fastest is: chosen by half of the rounds, measured in the others."""

    def as_fast(name: str, rounds: slice) -> float:
        return ratio(times.variants[name].seconds[rounds], times.variants[PROPOSED].seconds[rounds]).median

    middle = len(times.variants[PROPOSED].seconds) // 2
    halves = (slice(0, middle), slice(middle, None))
    ratios = []
    for chosen_by, measured_in in (halves, halves[::-1]):
        fastest = max(near, key=lambda name: as_fast(name, chosen_by))
        ratios.append(as_fast(fastest, measured_in))
    return mean(ratios)


def conclude_job(
    job: str, proposal: AutoPlan, times: Comparison, larger: str, figures: dict[str, float], aims: dict[str, Aim]
) -> None:
    """The proposal beside its fastest neighbour, but for one with a larger cache, and the recipe that it began with."""
    near = [name for name in times.variants if name not in {PROPOSED, AGAIN, FIRST, larger}]
    before = proposal.before
    assert before is not None
    fastest = fastest_neighbour(times, near)
    figures |= {
        f"{job}_fastest_neighbour_over_proposed_ratio": fastest,
        f"{job}_same_again_over_proposed_ratio": times.ratio(AGAIN).median,
        f"{job}_proposed_over_first_ratio": times.ratio(PROPOSED, FIRST).median,
        f"{job}_predicted_over_first_ratio": before.seconds / proposal.after.seconds,
    }
    aims[job] = Aim(f"no neighbour more than {MOST_SLOWER:g} times as fast as what is proposed", fastest <= MOST_SLOWER)


def table_of(found: Mapping[str, Any]) -> Table:
    """What was measured of a job, besides time."""
    return Table.from_rows(
        [
            {
                "recipe": what,
                "kB sent a sample": None if isinstance(one, str) else one["sent_bytes"] / 1e3,
                "loss": None if isinstance(one, str) else one["loss"],
            }
            for what, one in found.items()
        ]
    )


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, ranks=True, parts=tuple(RATES))
