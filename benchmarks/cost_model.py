"""How far off predicted times of tables and exchanges are, on tables, sets and numbers of ranks not seen before.

Computation: forward and backward pass of sets of 1 to 15 tables (`windrow pretrain-cost`), one thread. Models learn
from sets of one generated population, and are asked about sets of another one. "published" is NeuroShard's network (Zha
et al., MLSys 2023), "corrected" ours: times that add up, corrected by a network; "roof" is what it corrects.

Communication: all-to-alls of pooled vectors between emulated hosts, whose shares of the columns and whose starts differ
as NeuroShard draws them. The published network learns 8 of 10 exchanges of each number of ranks, and cannot be asked
about another; ours is the link model of a network measured once (`windrow network`), and learns nothing.

Errors are mean absolute percentage errors (MAPE), orders are compared by Kendall's tau. "noise" is how far repeats of
one set or exchange differ: half the distance of the quartiles.

    python benchmarks/cost_model.py [--short]
"""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from windrow.comm.connect import connect
from windrow.comm.link_probe import measure_links
from windrow.comm.links import links_from_json, links_to_json
from windrow.partition.tables.cost_model import Floats, roof_terms
from windrow.partition.tables.costs import exchange_seconds
from windrow.partition.tables.fitting import fit_compute_model, fit_roof, kendall_tau, percentage_error, split_sets
from windrow.recsys.table_profiler import ProfileSettings, profile_tables

Row: TypeAlias = tuple[str | float, ...]

SETS = {False: (1000, 200), True: (100, 50)}
"""To learn from, and of another population to be asked about."""
EPOCHS = {False: 300, True: 60}
EXCHANGES = {False: 300, True: 60}
HOSTS = {False: (2, 3, 4), True: (2,)}
RATE = "1gbit"
SAMPLES, TABLES, DIMS = 512, (10, 60), (4, 8, 16, 32, 64, 128)
SKEW_MS, REPEATS = (1, 20), 3
AIM_ERROR, AIM_TAU = 0.08, 0.95


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """Time tables in this process, or exchanges between ranks."""
    torch.set_num_threads(1)
    if task["what"] == "tables":
        found = profile_tables(Path(task["folder"]), ProfileSettings(sets=task["sets"], seed=task["seed"]))
        return {
            "features": [features.tolist() for features in found.features],
            "seconds": found.seconds.tolist(),
            "noise": found.noise.tolist(),
        }
    return exchanges(task["number"])


def exchanges(number: int) -> dict[str, Any]:
    """Drawn placements: columns of each rank, when it starts, and how long it takes both ways."""
    chance = np.random.default_rng(0)
    columns: list[list[float]] = []
    starts: list[list[float]] = []
    seconds: dict[str, list[Any]] = {"forward": [], "backward": []}
    with connect("mpi", deadline_s=300) as world:
        links = measure_links(world)
        for _ in range(number):
            dims = np.sort(chance.choice(DIMS, chance.integers(*TABLES)))[::-1]
            share, held = chance.random(), np.zeros(world.size)
            for dim in dims:
                held[chance.integers(world.size) if chance.random() < share else held.argmin()] += dim
            late = chance.integers(0, chance.integers(*SKEW_MS), world.size) / 1e3
            late -= late.min()
            columns.append(held.tolist())
            starts.append(late.tolist())
            vectors = [torch.ones(SAMPLES * int(dim)) for dim in held]
            for way, of_way in seconds.items():
                mine = vectors[world.rank]
                sent = [mine] * world.size if way == "forward" else vectors
                got = [torch.empty_like(part) for part in (vectors if way == "forward" else [mine] * world.size)]
                times = []
                for _ in range(REPEATS):
                    world.barrier(stage="start")
                    if way == "forward":
                        time.sleep(late[world.rank])
                    begun = time.perf_counter()
                    world.start_exchange(sent, got, stage="exchange").wait()
                    times.append(time.perf_counter() - begun)
                every = world.all_gather(torch.tensor(times, dtype=torch.float64), stage="times")
                of_way.append(np.stack([part.numpy() for part in every]).tolist())
        return {"links": links_to_json(links), "columns": columns, "starts": starts, **seconds}


def published_communication(inputs: Floats, seconds: Floats, learn: Floats, stop: Floats, epochs: int) -> Floats:
    """Seconds of each rank, [n, ranks], by NeuroShard's network of one number of ranks: 128-64-32-16 and ReLUs."""
    mean, deviation = inputs[learn].mean(axis=0), inputs[learn].std(axis=0) + 1e-6
    data = torch.from_numpy((inputs - mean) / deviation).float()
    target = torch.from_numpy(seconds * 1e3).float()
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for wide, narrow in zip((data.shape[1], 128, 64, 32), (128, 64, 32, 16), strict=True):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(16, target.shape[1]))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    best, kept = float("inf"), target
    for _ in range(epochs * 4):
        for part in torch.from_numpy(learn)[torch.randperm(len(learn))].split(32):
            loss = (network(data[part]) - target[part]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            found = network(data)
            error = float((found[stop] - target[stop]).square().mean())
        if error < best:
            best, kept = error, found
    return np.asarray(kept.double().numpy() / 1e3)


def errors(predicted: Floats, measured: Floats) -> tuple[float, float]:
    """MAPE and Kendall's tau."""
    return percentage_error(predicted, measured), kendall_tau(predicted.ravel(), measured.ravel())


def measure_computation(program: Program, folder: Path) -> tuple[dict[str, float], list[Row]]:
    """Learn from one population, ask about another."""
    numbers = SETS[program.short]
    found = [
        program.in_process(
            {"what": "tables", "folder": str(folder / str(seed)), "sets": sets, "seed": seed},
            threads=1,
            deadline_s=7200,
        )
        for seed, sets in enumerate(numbers)
    ]
    (sets, seconds), (asked, measured) = (
        ([np.array(features) for features in each["features"]], np.array(each["seconds"])) for each in found
    )
    noise = float(np.mean(found[1]["noise"]))
    learn, *_ = split_sets(len(sets), 0)
    roof = fit_roof([sets[place] for place in learn], seconds[learn])
    terms = np.stack([np.append(roof_terms(features).sum(axis=0), 1.0) for features in asked])
    predicted = {"roof": terms @ roof}
    for design in ("published", "corrected"):
        model = fit_compute_model(sets, seconds, design=design, origin={}, epochs=EPOCHS[program.short])
        predicted[design] = model.of_sets(asked)
    figures: dict[str, float] = {"noise": noise}
    rows: list[Row] = []
    for name, values in predicted.items():
        error, tau = errors(values, measured)
        figures |= {f"{name}_mape": error, f"{name}_tau": tau}
        rows.append((name, error, tau, noise))
    return figures, rows


def measure_communication(program: Program) -> tuple[dict[str, float], list[Row]]:
    """Exchanges of each number of ranks."""
    figures: dict[str, float] = {}
    rows: list[Row] = []
    for size in HOSTS[program.short]:
        task = {"what": "exchanges", "number": EXCHANGES[program.short]}
        found = program.on_ranks(size, task, rate=RATE, deadline_s=3600)
        links = links_from_json(found["links"], source="the ranks")
        columns, starts = np.array(found["columns"]), np.array(found["starts"])
        learn, stop, test = split_sets(len(columns), 0)
        for way in ("forward", "backward"):
            steps = np.array(found[way])
            measured = np.median(steps, axis=2)
            quartiles = np.percentile(steps, (25, 75), axis=2)
            noise = float(((quartiles[1] - quartiles[0]) / 2 / measured).mean())
            late = starts if way == "forward" else np.zeros_like(starts)
            inputs = np.hstack([columns, late]) if way == "forward" else columns
            theirs = published_communication(inputs, measured, learn, stop, EPOCHS[program.short])
            ours = np.stack(
                [
                    exchange_seconds(
                        links,
                        np.outer(held, np.ones(size)) * SAMPLES * 4
                        if way == "forward"
                        else np.outer(np.ones(size), held) * SAMPLES * 4,
                        begun,
                    )
                    for held, begun in zip(columns, late, strict=True)
                ]
            )
            row: list[str | float] = [size, way]
            for name, predicted in (("published", theirs), ("links", ours)):
                error, tau = errors(predicted[test], measured[test])
                figures |= {f"{way}_{size}_ranks_{name}_mape": error, f"{way}_{size}_ranks_{name}_tau": tau}
                row += [error, tau]
            rows.append((*row, noise))
    return figures, rows


def measure(program: Program) -> Findings:
    """Both."""
    with tempfile.TemporaryDirectory(prefix="cost_model-") as name:
        # Kept with what --resume keeps, so that a measurement goes on.
        folder = program.kept if program.options.resume else Path(name)
        figures, rows = measure_computation(program, folder)
    of_exchanges, exchange_rows = measure_communication(program)
    figures |= of_exchanges
    limit = max(AIM_ERROR, 2 * figures["noise"])
    return Findings(
        figures=figures,
        aims={
            "error": Aim(
                f"corrected: MAPE <= {AIM_ERROR:.0%}, or twice the noise if that is more ({limit:.1%})",
                figures["corrected_mape"] <= limit,
            ),
            "tau": Aim(f"corrected: Kendall's tau >= {AIM_TAU}", figures["corrected_tau"] >= AIM_TAU),
        },
        tables={
            "Computation, sets of another population": Table(
                columns=("model", "MAPE", "tau", "noise"), rows=tuple(rows)
            ),
            "All-to-alls on emulated hosts, 1 Gbit/s, held out": Table(
                columns=("ranks", "way", "published: MAPE", "tau", "links: MAPE", "tau ", "noise"),
                rows=tuple(exchange_rows),
            ),
        },
    )


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, ranks=True)
