"""Placement by rows, beside placement by tables: predicted against the best there is, and measured on emulated hosts.

Exact: the search on 200 instances of two tables on two ranks, with costs made by hand, against every plan that
replicates some octaves of their rows.

Measured, on 4 emulated hosts at 1 and 10 Gbit/s and 4 ranks of one host, steps of the tables alone, training and
looking up, under the plan of each method, in turn, all but the last by our runtime:

    zipf .8, 1.05, 1.2   26 tables of a thousand to a million rows, 32 columns, one id in a sample, by Zipf's law
    zipf 1.2, hashed     the same rows of 1.2 in no order: ids are hashed, and which ones are frequent is counted
    mlperf               26 tables with the sizes, cut to 200,000 rows, and the ids a sample of MLPerf's DLRM-DCNv2
    gowalla              users and items of the visits, one each, 64 columns
    diginetica           items of a session so far, unpooled, 64 columns; a rank asks for each id once

    oper                 hot rows replicated, the others where they cost least (`planner = "oper"`)
    neuroshard, row_wise, torchrec   whole tables or columns, by search; by rows; what TorchRec's planner finds
    by probability       rows that a rank looks up in half of its steps or more replicated, the others in ranges with as
                         many lookups (FlexShard)
    row_wise, every id   unpooled tables by rows, each id as often as it comes, which is TorchRec's default

    torchrec's runtime   TorchRec over gloo, under the plan that its planner makes of what it proposes for CPUs: whole
                         tables and columns, without the limit to memory where none fits; pooled tables alone

Lookahead (BagPipe), at 1 Gbit/s: training steps of a round of 8 minibatches, counts and ids of the next ones on their
way, under some of these plans, with and without `training.lookahead`.

A plan that is equal to oper's is not measured again. Each rank has memory for 40 % of all tables. Bytes are those of a
training step, all ranks together.

    python benchmarks/oper.py [--short] [--only exact | "zipf .8" | ... | diginetica | lookahead] [--data FOLDER]
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.harness.compare import compare
from benchmarks.harness.data_sets import data_option, read_sessions
from benchmarks.harness.dlrm import ranks_per_core, steps_in_flight, steps_of_tables
from benchmarks.harness.hand_made_costs import best_of_octaves, hand_made_model, one_hot_tables
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Comparison, Findings, Table, comparison_from_json, comparison_to_json
from benchmarks.harness.torchrec_runtime import bags_of, gloo, sharded, sharding_plan
from benchmarks.torchrec_peer import MLPERF_MULTI_HOT, MLPERF_ROWS, MOST_ROWS
from windrow import recsys
from windrow.comm.connect import connect
from windrow.comm.errors import PlanError
from windrow.comm.links import NetworkDescription, described_links
from windrow.comm.meter import Meter
from windrow.comm.world import World
from windrow.partition.tables.access import draw_rows, most_hot, octave_shares, steps_of, zipf_shares
from windrow.partition.tables.cost_model import ComputeModel
from windrow.partition.tables.costs import TableCosts, Workload
from windrow.partition.tables.plan import Copies, Plan, Replica, Shard, TableSpec, rank_bytes
from windrow.partition.tables.planners import PLANNERS, SHIPPED_MODEL, Planner
from windrow.partition.tables.search import search_plan

HOSTS, BATCH, REPEATS = 4, 2048, {False: 10, True: 3}
HASHED = "zipf 1.2, hashed"
ZIPF = {"zipf .8": 0.8, "zipf 1.05": 1.05, "zipf 1.2": 1.2, HASHED: 1.2}
REAL = {"gowalla": "gowalla.npz", "diginetica": "sessions_diginetica.npz"}
LOOKAHEAD = "lookahead"
PARTS = ("exact", *ZIPF, "mlperf", *REAL, LOOKAHEAD)
LOOKED_AHEAD = ("zipf .8", "zipf 1.2", *REAL)
ROUND = 8
RATES: dict[bool, tuple[str | None, ...]] = {False: ("1gbit", "10gbit", None), True: ("1gbit",)}
"""None: ranks of one host."""
INSTANCES = {False: 200, True: 20}
MEMORY_SHARE = 0.4
OURS, BY_PROBABILITY, RUNTIME, EVERY_ID = "oper", "by probability", "torchrec's runtime", "row_wise, every id"
AIM_GAP, AIM_TRAINING, AIM_LOOKUPS, AIM_LEAST, AIM_BYTES, AIM_BOUND = 0.01, 1.5, 2.0, 0.95, 0.15, 0.10

AIM_RUNTIME = {"training": 2.3, "looking up": 4.0}
"""Published, over the state of the art."""

Ids = npt.NDArray[np.int64]


def by_probability(specs: Sequence[TableSpec], world_size: int, memory: float, workload: Workload) -> Plan:
    """Rows that a rank looks up in half of its steps replicated, as far as memory goes; ranges of equal lookups."""
    copies, listed, shards = [], list[Copies](), []
    room = memory - sum(spec.num_bytes for spec in specs) / world_size
    for spec in specs:
        held, shares = steps_of(spec)
        lookups = workload.batch_size * spec.lookups_per_sample
        often = held[1 - np.exp(-lookups * shares / held) >= 0.5].sum()  # a half
        hot = int(min(often, room / len(specs) / (spec.dim * spec.bytes_per_value)))
        if spec.hot:
            listed += [Copies(spec.name, spec.hot[:hot])] if hot else []
            hot = 0
        elif hot:
            copies.append(Replica(spec.name, (0, hot)))
        held, shares = steps_of(spec, (hot, spec.rows))
        rows = np.concatenate([[0.0], held.cumsum()])
        ends = np.interp(np.linspace(0, shares.sum(), world_size + 1), np.concatenate([[0.0], shares.cumsum()]), rows)
        bounds = np.unique(hot + ends.round().astype(np.int64)).tolist()
        shards += [Shard(spec.name, rank, bound, (0, spec.dim)) for rank, bound in enumerate(pairwise(bounds))]
    return Plan(tuple(shards), tuple(copies), copies=tuple(listed))


METHODS: dict[str, Planner] = {
    OURS: PLANNERS["oper"],
    "neuroshard": PLANNERS["neuroshard"],
    "row_wise": PLANNERS["row_wise"],
    "torchrec": PLANNERS["torchrec"],
    BY_PROBABILITY: by_probability,
}


# --------------------------------------------------------------------------------------------------------------- exact


def exact(program: Program) -> Findings:
    """Gaps to the best plan of octaves."""
    found = program.in_process({"what": "exact", "instances": INSTANCES[program.short]}, threads=1, deadline_s=7200)
    return Findings(
        figures={"gap_mean": fmean(found), "gap_largest": max(found)},
        aims={"gap": Aim(f"mean gap to the best plan of octaves <= {AIM_GAP:.0%}", fmean(found) <= AIM_GAP)},
    )


def try_all(instances: int) -> list[float]:
    """Gaps to the best."""
    gaps = []
    for seed in range(instances):
        chance = np.random.default_rng(seed)
        rate = f"{10 ** chance.uniform(-2, 1):.3f}gbit"
        links = described_links(NetworkDescription(nodes=2, rate=rate, latency_us=50.0))
        workload = Workload(batch_size=int(chance.integers(20, 5000)), links=links)
        costs = TableCosts(one_hot_tables(chance, 2, most_rows=2000), 2, workload, hand_made_model())
        gaps.append(search_plan(costs, float("inf"), by_rows=True)[1].total / best_of_octaves(costs) - 1)
    return gaps


# ------------------------------------------------------------------------------------------------------------ measured


def zipf_tables(exponent: float) -> list[TableSpec]:
    """Tables of any size."""
    rows = np.geomspace(1e3, 1e6, 26).astype(int).tolist()
    return [table(f"t{n}", many, 32, zipf_shares(many, exponent)) for n, many in enumerate(rows)]


def mlperf_tables() -> list[TableSpec]:
    """MLPerf's, cut to fit."""
    return [
        table(f"t{n}", min(rows, MOST_ROWS), 64, zipf_shares(min(rows, MOST_ROWS), 1.05), lookups=float(ids))
        for n, (rows, ids) in enumerate(zip(MLPERF_ROWS, MLPERF_MULTI_HOT, strict=True))
    ]


def table(
    name: str, rows: int, dim: int, access: tuple[float, ...], *, lookups: float = 1.0, pooled: bool = True
) -> TableSpec:
    """Row-wise Adagrad."""
    return TableSpec(
        name=name,
        rows=rows,
        dim=dim,
        features=(name,),
        optimizer_bytes_per_row=4.0,
        lookups_per_sample=lookups,
        access=access,
        pooled=pooled,
        index_dedup=not pooled,
    )


def frequent_first(ids: Ids) -> tuple[Ids, Ids]:
    """Ids numbered by how often they come, and how often."""
    _, number, counts = np.unique(ids, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place[number], counts[order]


def population(part: str, data: str) -> tuple[list[TableSpec], Callable[[int], dict[str, tuple[Ids, Ids]]]]:
    """Tables, and what draws a rank's minibatch: ids and lengths of each."""
    if part in REAL:
        return real(part, data)
    specs = mlperf_tables() if part == "mlperf" else zipf_tables(ZIPF[part])
    places = {spec.name: np.random.default_rng(0).permutation(spec.rows) for spec in specs if part == HASHED}

    def draw(seed: int) -> dict[str, tuple[Ids, Ids]]:
        chance = np.random.default_rng(seed)
        lengths = [np.full(BATCH, int(spec.lookups_per_sample)) for spec in specs]
        drawn = [draw_rows(spec, int(own.sum()), chance) for spec, own in zip(specs, lengths, strict=True)]
        drawn = [places.get(spec.name, np.arange(spec.rows))[rows] for spec, rows in zip(specs, drawn, strict=True)]
        return {spec.name: (rows, own) for spec, rows, own in zip(specs, drawn, lengths, strict=True)}

    return [in_no_order(spec, places[spec.name]) if places else spec for spec in specs], draw


def in_no_order(spec: TableSpec, places: Ids) -> TableSpec:
    """A table whose row of each place by frequency is another one; the first half of them, or 131,071, are known."""
    return replace(spec, frequent_first=False, hot=tuple(places[: most_hot(spec.rows, spec.rows)].tolist()))


def real(part: str, data: str) -> tuple[list[TableSpec], Callable[[int], dict[str, tuple[Ids, Ids]]]]:
    """Those of a real log."""
    path = Path(data) / REAL[part]
    if part == "diginetica":
        items, offsets = read_sessions(path)
        items, counts = frequent_first(items)
        # Each prefix of a session is a sample.
        starts, stops = np.repeat(offsets[:-1], np.diff(offsets)), np.arange(1, len(items) + 1)
        mean = float((stops - starts).mean())
        specs = [table("item", len(counts), 64, octave_shares(counts), lookups=mean, pooled=False)]

        def draw_prefixes(seed: int) -> dict[str, tuple[Ids, Ids]]:
            chosen = np.random.default_rng(seed).integers(0, len(items), BATCH)
            found = [items[start:stop] for start, stop in zip(starts[chosen], stops[chosen], strict=True)]
            return {"item": (np.concatenate(found), np.array([len(each) for each in found]))}

        return specs, draw_prefixes
    with np.load(path, allow_pickle=False) as file:
        visited, per_user = file["train_items"], np.diff(file["train_indptr"])
    columns = {"user": frequent_first(np.repeat(np.arange(len(per_user)), per_user)), "item": frequent_first(visited)}
    specs = [table(name, len(counts), 64, octave_shares(counts)) for name, (_, counts) in columns.items()]

    def draw_visits(seed: int) -> dict[str, tuple[Ids, Ids]]:
        chosen = np.random.default_rng(seed).integers(0, len(visited), BATCH)
        return {name: (ids[chosen], np.ones(BATCH, np.int64)) for name, (ids, _) in columns.items()}

    return specs, draw_visits


def measure_part(world: World, part: str, data: str, rate: str | None, repeats: int) -> dict[str, Any]:
    """Steps of one population under each method's plan, in turn. Collective, of TorchRec's ranks too."""
    specs, draw = population(part, data)
    links = described_links(
        NetworkDescription(nodes=world.size, rate=rate, latency_us=50.0)
        if rate
        else NetworkDescription(nodes=1, ranks_per_node=world.size)
    )
    memory = MEMORY_SHARE * sum(spec.num_bytes for spec in specs)
    ids = jagged(draw(world.rank))
    pooled = specs[0].pooled
    model, found = ComputeModel.load(SHIPPED_MODEL), {}
    for what, learns in (("training", True), ("looking up", False)):
        workload = Workload(batch_size=BATCH, links=links, learns=learns, ranks_per_core=ranks_per_core(world.size))
        costs = TableCosts(specs, world.size, workload, model)
        steps: dict[str, Callable[[], object]] = {}
        plans: dict[str, Plan] = {}
        about: dict[str, dict[str, float]] = {}
        for name, planner in METHODS.items():
            made = planner(specs, world.size, memory, workload) if world.rank == 0 else None
            plan = world.broadcast_object(made, root=0, stage="plan")
            if plan == plans.get(OURS):
                continue
            plans[name] = plan
            step = steps_of_tables(collection_of(specs, world, plan), ids, world)[not learns]
            steps[name] = step
            about[name] = traffic(world, step) | {
                "predicted_s": costs.of_plan(plan).total,
                "least_s": costs.least_possible(),
                "fullest": max(rank_bytes(plan, specs, world.size)) / memory,
            }
        if pooled:
            steps[RUNTIME] = steps_of_torchrec(specs, ids, world, memory)[not learns]
        else:
            plain = collection_of(specs, world, plans.get("row_wise", plans[OURS]), index_dedup=False)
            step = steps[EVERY_ID] = steps_of_tables(plain, ids, world)[not learns]
            about[EVERY_ID] = traffic(world, step)
        timed = compare(steps, baseline=OURS, repeats=repeats, warm_up=2, world=world)
        found[what] = {"timed": comparison_to_json(timed), "about": about}
    return found


def jagged(drawn: Mapping[str, tuple[Ids, Ids]]) -> KeyedJaggedTensor:
    """A minibatch."""
    return KeyedJaggedTensor(
        keys=list(drawn),
        values=torch.from_numpy(np.concatenate([values for values, _ in drawn.values()])),
        lengths=torch.from_numpy(np.concatenate([lengths for _, lengths in drawn.values()])).int(),
    )


def collection_of(
    specs: Sequence[TableSpec], world: World, plan: Plan, *, index_dedup: bool = True
) -> recsys.EmbeddingBagCollection | recsys.EmbeddingCollection:
    """The tables under a plan."""
    pooled = specs[0].pooled
    config = recsys.EmbeddingBagConfig if pooled else recsys.EmbeddingConfig
    configs = [
        config(num_embeddings=spec.rows, embedding_dim=spec.dim, name=spec.name, feature_names=[spec.name])
        for spec in specs
    ]
    if pooled:
        return recsys.EmbeddingBagCollection(configs, world=world, plan=plan)
    return recsys.EmbeddingCollection(configs, world=world, plan=plan, index_dedup=index_dedup)


def measure_ahead(world: World, part: str, data: str, rate: str, repeats: int) -> dict[str, Any]:
    """Rounds of one population under some plans, with and without lookahead, in turn. Collective."""
    specs, draw = population(part, data)
    links = described_links(NetworkDescription(nodes=world.size, rate=rate, latency_us=50.0))
    workload = Workload(batch_size=BATCH, links=links, ranks_per_core=ranks_per_core(world.size))
    memory = MEMORY_SHARE * sum(spec.num_bytes for spec in specs)
    minibatches = [jagged(draw(world.rank + world.size * number)) for number in range(ROUND)]
    rounds: dict[str, Callable[[], object]] = {}
    shares: dict[str, float] = {}
    plans: list[Plan] = []
    for name in (OURS, "row_wise", BY_PROBABILITY):
        made = METHODS[name](specs, world.size, memory, workload) if world.rank == 0 else None
        plan = world.broadcast_object(made, root=0, stage="plan")
        if plan in plans:
            continue
        plans.append(plan)
        for ahead in (False, True):
            collection = collection_of(specs, world, plan)
            one = steps_in_flight(collection, minibatches, world, lookahead=ahead)
            rounds[name + ", lookahead" * ahead] = one
            if ahead:
                world.meter = Meter()
                one()
                sent = [world.meter.totals(f"{collection.stage}: vectors{end}").bytes_sent for end in (" early", "")]
                early, rest = np.sum(world.all_gather_object(sent, stage="bytes"), axis=0).tolist()
                world.meter = None
                shares[name] = early / max(early + rest, 1)
    timed = compare(rounds, baseline=OURS, repeats=repeats, warm_up=2, world=world)
    return {"timed": comparison_to_json(timed), "early": shares}


def ahead(program: Program) -> Findings:
    """What lookahead gains under each plan, and which share of vectors it sends early."""
    comparisons: dict[str, Comparison] = {}
    figures: dict[str, float] = {}
    rows = []
    (rate,) = RATES[True]
    for part in LOOKED_AHEAD:
        task = {"what": LOOKAHEAD, "part": part, "rate": rate, "repeats": REPEATS[program.short]}
        with tempfile.TemporaryDirectory() as folder:
            task |= {"data": str(program.options.data), "rendezvous": str(Path(folder) / "rendezvous")}
            found = program.on_ranks(HOSTS, task, rate=rate, deadline_s=3600)
        comparison = comparisons[part] = comparison_from_json(found["timed"])
        for plan, share in found["early"].items():
            faster = comparison.variants[plan].median_s / comparison.variants[f"{plan}, lookahead"].median_s
            over_ours = 1 / comparison.ratio(f"{plan}, lookahead").median
            figures |= {f"{part}_{plan}_ahead".replace(" ", "_"): faster}
            rows.append((part, plan, comparison.variants[plan].median_s / ROUND * 1e3, share, faster, over_ours))
    columns = (
        "tables",
        "plan",
        "ms a step",
        "vectors early",
        "faster with lookahead",
        "oper without, faster than this",
    )
    table = Table(columns=columns, rows=tuple(rows))
    return Findings(figures=figures, aims={}, comparisons=comparisons, tables={"Lookahead": table})


def steps_of_torchrec(
    specs: Sequence[TableSpec], ids: KeyedJaggedTensor, world: World, memory: float
) -> tuple[Callable[[], object], Callable[[], object]]:
    """`steps_of_tables` by TorchRec. Collective of its ranks."""
    try:
        plan = sharding_plan(specs, world, BATCH, memory=memory)
    except PlanError:
        plan = sharding_plan(specs, world, BATCH)
    model = sharded(bags_of(specs, 0.01), plan)

    def look_up() -> torch.Tensor:
        pooled: torch.Tensor = model(ids).values()
        return pooled

    return (lambda: look_up().sum().backward()), torch.no_grad()(look_up)


def traffic(world: World, step: Callable[[], None]) -> dict[str, float]:
    """Bytes that a step of all ranks sends. Collective."""
    world.meter = Meter()
    step()
    sent = sum(amount.bytes_sent for amount in world.meter.table().values())
    world.meter = None
    return {"bytes": float(sum(world.all_gather_object(sent, stage="bytes")))}


def work(task: Mapping[str, Any]) -> object:
    """Try all plans, or be one of the hosts."""
    torch.set_num_threads(1)
    if task["what"] == "exact":
        return try_all(task["instances"])
    with connect("mpi", deadline_s=300) as world, gloo(world, task["rendezvous"]):
        if task["what"] == LOOKAHEAD:
            return measure_ahead(world, task["part"], task["data"], task["rate"], task["repeats"])
        return measure_part(world, task["what"], task["data"], task["rate"], task["repeats"])


def measured(program: Program, parts: Sequence[str]) -> Findings:
    """All populations on all networks."""
    figures: dict[str, float] = {}
    rows: list[tuple[str | float, ...]] = []
    comparisons: dict[str, Comparison] = {}
    others = [*(name for name in METHODS if name != OURS), EVERY_ID]
    ratios: dict[str, list[float]] = {"training": [], "looking up": []}
    over_runtime: dict[str, list[float]] = {"training": [], "looking up": []}
    gaps, kept = [], []
    for part in parts:
        for rate in RATES[program.short]:
            task = {"what": part, "rate": rate, "repeats": REPEATS[program.short], "data": str(program.options.data)}
            with tempfile.TemporaryDirectory() as folder:
                task["rendezvous"] = str(Path(folder) / "rendezvous")
                found = program.on_ranks(HOSTS, task, rate=rate, deadline_s=3600)
            for what, each in found.items():
                comparison = comparison_from_json(each["timed"])
                comparisons[f"{part}, {rate or 'one host'}, {what}"] = comparison
                timed = comparison.variants
                over = {name: 1 / comparison.ratio(name).median if name in timed else 1.0 for name in others}
                if EVERY_ID not in timed:
                    del over[EVERY_ID]
                theirs: float | str = "-"
                if RUNTIME in timed:
                    theirs = 1 / comparison.ratio(RUNTIME).median
                    over_runtime[what].append(theirs)
                about = each["about"]
                gap = about[OURS]["predicted_s"] / about[OURS]["least_s"] - 1
                bytes_left = about[OURS]["bytes"] / about.get("row_wise", about[OURS])["bytes"]
                key = f"{part}_{rate or 'one_host'}_{what}".replace(" ", "_")
                figures |= {f"{key}_over_best": min(over.values()), f"{key}_gap": gap, f"{key}_bytes": bytes_left}
                ratios[what].append(min(over.values()))
                gaps.append(gap)
                if EVERY_ID in about:
                    kept.append(about[OURS]["bytes"] / about[EVERY_ID]["bytes"])
                    figures[f"{key}_bytes_over_every_id"] = kept[-1]
                median = comparison.variants[OURS].median_s
                rows.append(
                    (
                        part,
                        rate or "one host",
                        what,
                        median * 1e3,
                        *(over.get(name, "-") for name in others),
                        theirs,
                        bytes_left,
                        gap,
                        about[OURS]["fullest"],
                    )
                )
    columns = (
        "tables",
        "rate",
        "step of",
        "oper ms",
        *others,
        RUNTIME,
        "bytes over row_wise",
        "over the bound",
        "memory used",
    )
    aims = {
        "training": Aim(
            f"training: {AIM_TRAINING:g} times the speed of the best other plan, on average",
            fmean(ratios["training"]) >= AIM_TRAINING,
        ),
        "looking_up": Aim(
            f"looking up: {AIM_LOOKUPS:g} times the speed of the best other plan, on average",
            fmean(ratios["looking up"]) >= AIM_LOOKUPS,
        ),
        "never_slower": Aim(
            f"nowhere below {AIM_LEAST:g} times the best other plan", min(map(min, ratios.values())) >= AIM_LEAST
        ),
        "gap": Aim(f"every plan within {AIM_BOUND:.0%} of the bound", max(gaps) <= AIM_BOUND),
    }
    for what, aim in AIM_RUNTIME.items():
        if over_runtime[what]:
            aims[f"over_torchrec_{what.replace(' ', '_')}"] = Aim(
                f"{what}: {aim:g} times the speed of TorchRec's runtime under its plan, on average",
                fmean(over_runtime[what]) >= aim,
            )
    if kept:
        aims["bytes"] = Aim(
            f"unpooled: {1 - AIM_BYTES:.0%} fewer bytes than cut by rows, asking for every id", max(kept) <= AIM_BYTES
        )
    return Findings(
        figures=figures,
        comparisons=comparisons,
        aims=aims,
        tables={"Seconds of a step over oper's": Table(columns=columns, rows=tuple(rows))},
    )


def measure(program: Program) -> Findings:
    """What was asked for."""
    chosen = program.chosen([part for part in PARTS if part not in REAL or has_data(program, part)], short=2)
    found = [exact(program)] if "exact" in chosen else []
    parts = [part for part in chosen if part not in {"exact", LOOKAHEAD}]
    if parts:
        found.append(measured(program, parts))
    if LOOKAHEAD in chosen:
        found.append(ahead(program))
    return Findings.joined(found)


def has_data(program: Program, part: str) -> bool:
    """Whether the log is there."""
    found: bool = (program.options.data / REAL[part]).is_file()
    return found


if __name__ == "__main__":
    run_benchmark(
        __file__,
        __doc__,
        measure,
        work=work,
        ranks=True,
        parts=PARTS,
        add_options=data_option("gowalla.npz and sessions_diginetica.npz", "recsys"),
    )
