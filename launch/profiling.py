"""Where the time of a training step goes, what this machine needs for it at least, and what would help.

    stage    waiting for the network or other ranks, and the rank's own work
    floor    its matrix products at the rate of one large product, or its bytes at the rate of a plain copy
    fixed    2 x own work with half the batch - own work: what a larger batch would not cost again

Floors are those of a roofline (Williams et al., CACM 52, 2009). Figures are those of the rank that waits least, as the
others wait for it: its stages add up to its step.
"""

import dataclasses
import gc
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from windrow.comm.hosts import cores_of_rank, gather_hosts
from windrow.comm.link_model import predict_all_reduce, predict_all_to_all
from windrow.comm.link_probe import ProbeOptions, measure_links
from windrow.comm.meter import Tracer
from windrow.comm.world import World
from windrow.gnn.full_graph import FullGraphTask
from windrow.gnn.task import GraphTask
from windrow.launch.known_links import kept_links
from windrow.launch.rank_process import joined_job
from windrow.launch.recipe import AnyRecipe, Recipe
from windrow.launch.training import make_trainer
from windrow.recsys.recommender import collections_of
from windrow.training.dense import linear, product_flops
from windrow.training.epoch_cost import RankCost, own_traffic, with_time
from windrow.training.trainer import Trainer

__all__ = ["AROUND", "advise", "profile", "run_steps", "stage_rows"]

STAGES = (
    *("sample", "wait for samples", "fetch", "read", "ids", "lookup", "forward", "pooled", "backward"),
    *("wait", "update", "assign bits", "rest"),
)
"""In the order of the table."""

WAITS = {"counts": "ids", "ids": "lookup", "vectors": "pooled", "rows": "forward", "gradients": "backward"}
"""What is exchanged for tables, or between layers -> the stage that waits for it."""

INSIDE = "halo"
"""A stage that is part of others."""

AROUND = 6
"""Steps before those that are measured, in which kernels compile and the pipeline fills; and after them, so that it
stays full."""

TIMED_S = 0.2
"""For each limit of the machine, at least; the fastest repeat counts."""

QUICK = ProbeOptions(sizes_bytes=(1 << 10, 1 << 14, 1 << 17, 1 << 20), seconds_per_size=0.02)
MOST_PROBED = 8
"""Ranks up to which links that are not known are measured, quickly: 0.2 s for each pair."""

NUMBERS_OF_UPDATE = {"adam": 7, "adagrad": 5, "sgd": 3}
"""Read and written for each weight: itself, its gradient, state of the optimiser."""

MOST, NEAR_FLOOR, WORTH, UNDISTURBED = 0.5, 0.6, 0.1, 0.8
"""Shares: of a stage, from which on something bounds it; of a floor, from which on only fewer flops help; of a step,
from which on advice is given; of a core, below which other programs had the rest."""


def profile(recipe: AnyRecipe, *, steps: int = 20) -> dict[str, Any]:
    """Train a few steps with half of the recipe's batch, if any, then with the whole; nothing is kept. Collective.

    Args:
        recipe: from `windrow.launch.recipe.load_any_recipe`; the same on every rank.
        steps: that are measured, from one epoch into the next where it has fewer.

    Returns:
        What JSON can hold, the same on every rank: "about", a line on what was measured, "stages" as of `stage_rows`,
        and "advice", its lines.

    Raises:
        WindrowError: the store or the recipe does not fit.
    """
    training, half = recipe.training, None
    has_minibatches = not _takes_whole_graph(recipe)
    with joined_job(recipe.run) as (world, device):
        if has_minibatches and training.batch_size > 1:
            smaller: Any = dataclasses.replace(training, batch_size=training.batch_size // 2)
            with make_trainer(world, dataclasses.replace(recipe, training=smaller), device) as trainer:
                half, _ = run_steps(trainer, steps)
            del trainer
            gc.collect()  # Tables of two trainers may be more than fits into memory.
        with make_trainer(world, recipe, device) as trainer:
            cost, processor_s = run_steps(trainer, steps)
            costs = world.all_gather_object(cost, stage="profile")
            flops, moved = _flops_of_products(trainer), _bytes_moved(trainer, costs, steps)
        if device.type != "cpu":
            flops, moved = {}, {}  # Stages do not wait for what they queue on a GPU.
        network_s = _network_s(world, device, costs, steps, has_all_reduce=recipe.wire.topology == "flat")
        world.barrier(stage="profile")  # Ranks share the machine as in training.
        flops_per_s = _product_rate(device, bf16=training.autocast == "bf16")
        rows = stage_rows(
            cost,
            half,
            steps,
            products_s={stage: number / flops_per_s for stage, number in flops.items()},
            copies_s={stage: _copy_s(num_bytes) for stage, num_bytes in moved.items()},
            network_s=network_s,
            beside={"sample"} if isinstance(recipe, Recipe) and recipe.pipeline.depth else set(),
        )
        cores = cores_of_rank(world)
        work_s = [one.seconds - sum(one.waiting_seconds.values()) for one in costs]
        advice = advise(rows, recipe, threads=torch.get_num_threads(), cores=cores)
        computing_share = processor_s / work_s[world.rank]
        if computing_share < UNDISTURBED:
            advice.insert(0, f"other programs took {1 - computing_share:.0%} of a core: measure on an idle machine")
        rank = int(np.argmax(work_s))
        work = ", ".join(f"{1e3 * seconds / steps:.3g}" for seconds in work_s)
        shown = f" on rank {rank}, which others wait for (ms of work by rank: {work})" if world.size > 1 else ""
        batch = f"{training.batch_size:,}" if has_minibatches else "the whole graph"
        about = f"{recipe.name}: means of {steps} steps of {batch}{shown}"
        about += f"; one large matrix product: {flops_per_s / 1e9:.3g} Gflop/s"
        found = {"about": about, "stages": rows, "advice": advice}
        return world.all_gather_object(found, stage="profile")[rank]


def stage_rows(
    cost: RankCost,
    half: RankCost | None,
    steps: int,
    *,
    products_s: Mapping[str, float],
    copies_s: Mapping[str, float],
    network_s: float | None,
    beside: set[str],
) -> list[dict[str, Any]]:
    """The table of one rank: milliseconds of one step on average, shares in percent; None where something is not known.

    Args:
        cost: of all measured steps together.
        half: of as many steps with half the batch; None: not measured.
        steps: how many.
        products_s: seconds of a step's matrix products at the machine's best rate, by stage.
        copies_s: seconds of a plain copy of the bytes that a step moves, by stage.
        network_s: seconds that the network needs for a step; None: not known.
        beside: stages that go on beside the thread that trains.

    Returns:
        A row for each stage of metrics.jsonl, for the "rest" that is in none, the "network", and the "step", the last.
    """
    own, waiting = _own_and_waiting(cost, steps, beside)
    own_of_half = _own_and_waiting(half, steps, beside)[0] if half else {}
    waits_s = sum(waiting.values())
    waits_for = "network" if (network_s or 0.0) > MOST * waits_s else "other ranks"
    step_s, floor_s, fixed_s, bounds = cost.seconds / steps, 0.0, 0.0, defaultdict[str, float](float)
    rows = []
    for stage in sorted(own, key=STAGES.index):
        seconds = own[stage] + waiting[stage]
        floor, floor_of = max((copies_s.get(stage, 0.0), "memory"), (products_s.get(stage, 0.0), "matrix products"))
        fixed = max(0.0, min(own[stage], 2 * own_of_half.get(stage, 0.0) - own[stage]))
        takes = {"sampling": seconds * ("sample" in stage), waits_for: waiting[stage], floor_of: floor}
        takes["fixed cost"] = fixed
        by = next((kind for kind, part in takes.items() if part > MOST * seconds), "other work")
        rows.append(_row(stage, step_s, (seconds, waiting[stage], fixed if half else None, floor or None), by))
        if stage not in beside:
            bounds[by] += seconds
            floor_s, fixed_s = floor_s + floor, fixed_s + fixed
    if network_s is not None:
        rows.append(_row("network", step_s, (None, None, None, network_s), ""))
    by, floor_s = max(bounds, key=lambda kind: bounds[kind]), max(floor_s, network_s or 0.0)
    return [*rows, _row("step", step_s, (step_s, waits_s, fixed_s if half else None, floor_s or None), by)]


def _own_and_waiting(cost: RankCost, steps: int, beside: set[str]) -> tuple[dict[str, float], defaultdict[str, float]]:
    """Seconds of each stage in a step: the rank's own, and those that it waited."""
    stages = {stage: seconds / steps for stage, seconds in cost.stage_seconds.items() if stage != INSIDE}
    measured = sum(seconds for stage, seconds in stages.items() if stage not in beside)
    stages["rest"] = max(0.0, cost.seconds / steps - measured)
    waiting = defaultdict[str, float](float)
    for exchange, seconds in cost.waiting_seconds.items():
        of, _, what = exchange.rpartition(": ")
        stage = "fetch" if of == "features" else WAITS.get(what, "wait") if of else "wait"
        waiting[stage] = min(waiting[stage] + seconds / steps, stages.get(stage, 0.0))
    return {stage: seconds - waiting[stage] for stage, seconds in stages.items()}, waiting


def _row(stage: str, step_s: float, times: tuple[float | None, ...], by: str) -> dict[str, Any]:
    """Times: seconds, and of them those of waiting and those that are fixed; the floor."""
    seconds, waits, fixed, floor = times
    return {
        "stage": stage,
        "ms": _rounded(seconds, 1e-3),
        "% of step": _rounded(seconds, step_s / 100),
        "waiting ms": _rounded(waits, 1e-3),
        "fixed ms": _rounded(fixed, 1e-3),
        "floor ms": _rounded(floor, 1e-3),
        "floor %": _rounded(floor, (seconds or 0.0) / 100),
        "bound by": by,
    }


def _rounded(value: float | None, unit: float) -> float | None:
    """To three digits, in a unit; None where there is no number, or no unit."""
    return None if value is None or unit <= 0 else float(f"{value / unit:.3g}")


def advise(rows: Sequence[Mapping[str, Any]], recipe: AnyRecipe, *, threads: int, cores: int) -> list[str]:
    """What to change, by rules: at most three, what has most of a step at stake first, nothing below a tenth of it.

    Args:
        rows: as of `stage_rows`.
        recipe: what is set now.
        threads: of each rank for computing.
        cores: that each rank has for itself.
    """
    named = {row["stage"]: row for row in rows}

    def ms(*stages: str, of: str = "ms") -> float:
        return sum(named.get(stage, {}).get(of) or 0.0 for stage in stages)

    def shorter(*kinds: str) -> list[str]:
        return [f'wire.{kind} = "bf16"' for kind in kinds if getattr(recipe.wire, kind) == "fp32"]

    step_ms, waits_ms, sums_ms = ms("step"), ms("step", of="waiting ms"), ms("wait", of="waiting ms")
    computes_ms, free = ms("forward", "backward"), cores - threads
    near_floor = ms("forward", "backward", of="floor ms") >= NEAR_FLOOR * computes_ms
    on_network = ms("network", of="floor ms") > MOST * waits_ms
    fewer_sums = ", ".join([*shorter("sums"), "larger training.batch_size"])
    if isinstance(recipe, Recipe) and _takes_whole_graph(recipe):
        even, less, data_ms, data = "partition.balance", "smaller model.hidden", 0.0, ""
        rounded = recipe.full_graph.messages != "wire"
        fewer_bytes = ["fewer full_graph.widths" if rounded else 'full_graph.messages = "int8" or "adaptive"']
        fewer_sums = ", ".join([*shorter("sums"), "smaller model.hidden"])
    elif isinstance(recipe, Recipe):
        even = 'sampler.order = "local"' if recipe.sampler.order == "global" else "partition.balance"
        fewer_bytes = [
            "larger cache.alpha or cache.memory_gib",
            *shorter("vectors") * (recipe.sampler.storage == "fp32"),
        ]
        less = "smaller sampler.fanouts or model.hidden"
        if recipe.pipeline.depth == 0:
            data_ms, data = ms("sample"), "sampling while nothing is computed: pipeline.depth = 4"
        else:
            free -= recipe.pipeline.sampler_threads
            data_ms = ms("wait for samples") + (ms("sample") / threads if free < 0 else 0.0)
            more = f"pipeline.sampler_threads = {recipe.pipeline.sampler_threads + 1}"
            more_fits = free > 0 and recipe.pipeline.topology == "replicated"
            data = f"sampling: {more if more_fits else 'smaller sampler.fanouts, or more cores for each rank'}"
    else:
        even, less = "another plan.planner", "a smaller [model] or tables.dim"
        fewer_bytes = [*shorter("vectors", "gradients"), "smaller tables.dim"]
        data_ms, data = ms("read"), "waiting for the reader: larger training.reader_memory_bytes, or more cores"
    rules = (
        (data_ms, data),
        (waits_ms * (not on_network), f"waiting for ranks that come later: {even}, or fewer ranks on each machine"),
        (on_network * (waits_ms - sums_ms), f"the network, for what ranks ask each other: {', '.join(fewer_bytes)}"),
        (on_network * sums_ms, f"the network, for sums of gradients: {fewer_sums}"),
        (ms("step", of="fixed ms") / 2, "what twice the training.batch_size would save (mind training.learning_rate)"),
        (near_floor * computes_ms, f"computing near its floor: only {less} or more ranks help"),
        ((free > 0) * computes_ms, f"computing beside idle cores: run.threads = {threads + free}"),
    )
    found = sorted((rule for rule in rules if rule[0] >= WORTH * step_ms), key=lambda rule: -rule[0])
    lines = [f"{at_stake:.3g} of {step_ms:.3g} ms: {text}" for at_stake, text in found[:3]]
    return lines or [f"nothing stands out; what takes most is {named['step']['bound by']}: {less}, or more ranks"]


def _takes_whole_graph(recipe: AnyRecipe) -> bool:
    return isinstance(recipe, Recipe) and recipe.full_graph.enabled


def run_steps(trainer: Trainer, steps: int) -> tuple[RankCost, float]:
    """Train `steps` steps between `AROUND` before and as many after, from one epoch into the next. Collective.

    Returns:
        What the steps between cost this rank, and the seconds that all threads of its process computed.
    """
    meter = trainer.world.meter
    assert meter is not None
    done, began, found = 0, (0.0, 0.0), (RankCost(), 0.0)

    def after_step(_: int) -> None:
        nonlocal done, began, found
        done, now = done + 1, (time.perf_counter(), time.process_time())
        if done == AROUND:
            meter.reset()
            trainer.stopwatch.reset()
            began = now
        elif done == AROUND + steps:
            traffic = own_traffic(trainer.world, trainer.task.traffic())
            found = with_time(traffic, now[0] - began[0], trainer.stopwatch.seconds), now[1] - began[1]

    while (left := steps + 2 * AROUND - done) > 0:
        epoch, first = divmod(done, trainer.steps_per_epoch)
        stop = min(trainer.steps_per_epoch, first + left)
        trainer.train_steps(epoch % trainer.options.epochs, range(first, stop), after_step)
    return found


def _flops_of_products(trainer: Trainer) -> dict[str, float]:
    """Flops of the matrix products of one step of this rank, forward and backward. Collective."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False, custom_mapping=product_flops())
    found = {"forward": 0.0, "backward": 0.0}

    class Stages(Tracer):
        def record(self, stage: str, *_: object, **__: object) -> None:
            if stage in found:
                found[stage] += counter.get_total_flops() - sum(found.values())

    trainer.stopwatch.tracer = Stages()
    with counter:
        trainer.train_step(0, 0)
    return found


def _bytes_moved(trainer: Trainer, costs: Sequence[RankCost], steps: int) -> dict[str, float]:
    """Bytes that this rank has to read and write in a step, by stage."""
    task, cost = trainer.task, costs[trainer.world.rank]
    weights = sum(weight.nbytes for weight in task.dense_parameters())
    found = {"update": NUMBERS_OF_UPDATE[trainer.options.optimizer] * weights / trainer.options.accumulate}
    if isinstance(task, FullGraphTask):
        return found
    if isinstance(task, GraphTask):
        # Rows are read as they travel, and written as float32; those that others asked for come on top.
        store = task.store
        row_bytes = store.codec.wire_row_bytes(store.row_shape, store.dtype) + 4 * store.row_shape.numel()
        rows = cost.rows_local + cost.rows_cached + cost.rows_shared + cost.rows_remote
        return found | {"fetch": (rows * row_bytes + 2 * sum(cost.bytes_sent.get("features: rows", ()))) / steps}
    # An owner looks up for all ranks, so that one of them has at least the mean; of pieces of tables the narrowest.
    rows = sum(one.rows_local + one.rows_remote for one in costs) // len(costs)
    value_bytes = min(spec.bytes_per_value for each in collections_of(trainer.model) for spec in each.specs)
    columns = min(shard["columns"] for each in task.placement()["tables"] for shard in each["shards"])
    return found | {"lookup": rows * columns * value_bytes / steps}


def _network_s(
    world: World, device: torch.device, costs: Sequence[RankCost], steps: int, *, has_all_reduce: bool
) -> float | None:
    """Predicted seconds that the network needs for a step: what ranks send each other in one go, and sums. Collective.

    By the links that ``windrow network`` measured, else by a quick look at them; None for one rank, or too many.
    """
    if world.size == 1:
        return None
    links = kept_links(world, gather_hosts(world), device)
    if links is None and world.size <= MOST_PROBED:
        links = measure_links(world, QUICK)
    if links is None:
        return None
    sent = np.array([np.sum([*one.bytes_sent.values(), [0] * world.size], axis=0) for one in costs])
    reduced = max(one.bytes_reduced for one in costs) * has_all_reduce
    return predict_all_to_all(links, sent / steps) + predict_all_reduce(links, reduced / steps)


def _product_rate(device: torch.device, *, bf16: bool) -> float:
    """Flops per second of one large matrix product."""
    rows, columns = 2048, 1024
    x, weight = torch.ones(rows, columns, device=device), torch.ones(columns, columns, device=device)
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        return 2 * rows * columns**2 / _fastest_s(lambda: linear(x, weight))


def _copy_s(num_bytes: float) -> float:
    """Seconds of a copy that reads and writes so many bytes in all, again and again: from as near as they fit."""
    source = torch.ones(max(1, int(num_bytes) // 2), dtype=torch.uint8)
    target = torch.empty_like(source)
    return _fastest_s(lambda: target.copy_(source))


def _fastest_s(operation: Callable[[], object]) -> float:
    """The fastest of several repeats; of a processor, as if no other program had its cores."""
    fastest, end = float("inf"), time.perf_counter() + TIMED_S
    while (began := time.perf_counter()) < end:
        computed = time.process_time()
        operation()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
            computed = float("-inf")
        took = time.perf_counter() - began, (time.process_time() - computed) / torch.get_num_threads()
        # A processor's clock may stand still for longer than a small copy takes.
        fastest = min((fastest, *(seconds for seconds in took if seconds > 0)))
    return fastest
