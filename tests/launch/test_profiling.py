"""windrow.launch.profiling and the command: the table adds up, rules say what they should, real steps are measured."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.caching.selection import CacheOptions
from windrow.comm.launcher import launched_rank
from windrow.gnn.full_graph import FullGraphOptions
from windrow.gnn.partitioning import partition_to_store
from windrow.launch.cli import main
from windrow.launch.profiling import STAGES, advise, stage_rows
from windrow.launch.recipe import AnyRecipe, Recipe, make_recipe
from windrow.launch.recommendation_recipe import RecommendationRecipe, make_recommendation_recipe
from windrow.launch.settings import write_toml
from windrow.training.epoch_cost import RankCost

ClickRecipe = Callable[..., RecommendationRecipe]

GRAPH: dict[str, Any] = {"name": "tiny", "store": "store", "graph": {"path": "graph.npz"}}
EXCHANGES = {
    "features: rows": "fetch",
    "embedding bags: counts": "ids",
    "embedding bags: ids": "lookup",
    "embedding bags: vectors": "pooled",
    "embedding bags: gradients": "backward",
    "gradients": "wait",
    "loss": "wait",
}
"""What a rank waits for -> in which stage."""


def graph_recipe(**sections: Any) -> Recipe:
    return make_recipe(GRAPH | sections, source="tiny.toml", base=Path("/"))


def log_recipe(**sections: Any) -> RecommendationRecipe:
    log = {"paths": ["a.csv"], "format": "csv", "label": "click", "features": {"item": {}}}
    return make_recommendation_recipe(
        {"name": "clicks", "store": "store", "log": log, **sections}, source="clicks.toml", base=Path("/")
    )


# -------------------------------------------------------------------------------------------------------- the table

seconds = st.floats(1e-6, 1e3)
by_stage = st.dictionaries(st.sampled_from(STAGES[:-1]), seconds)


@given(
    stages=by_stage.filter(bool),
    half=st.none() | by_stage,
    waits=st.dictionaries(st.sampled_from(sorted(EXCHANGES)), seconds),
    products=by_stage,
    copies=by_stage,
    network=st.none() | seconds,
    steps=st.integers(1, 50),
    beside=st.sampled_from([set(), {"sample"}]),
)
def test_the_table_adds_up(
    stages: dict[str, float],
    half: dict[str, float] | None,
    waits: dict[str, float],
    products: dict[str, float],
    copies: dict[str, float],
    network: float | None,
    steps: int,
    beside: set[str],
) -> None:
    trains = [stage for stage in stages if stage not in beside]
    whole = sum(stages[stage] for stage in trains) * 1.25 + 0.5
    cost = RankCost(seconds=whole, stage_seconds=stages, waiting_seconds=waits)
    of_half = None if half is None else RankCost(seconds=2 * sum(half.values()), stage_seconds=half)
    rows = stage_rows(cost, of_half, steps, products_s=products, copies_s=copies, network_s=network, beside=beside)
    step = rows[-1]
    parts = [row for row in rows[:-1] if row["stage"] not in beside | {"network"}]
    assert step["stage"] == "step"
    assert [row["stage"] for row in parts] == [stage for stage in STAGES if stage in trains or stage == "rest"]
    assert step["ms"] == pytest.approx(1e3 * whole / steps, rel=0.01)
    for column in ("ms", "waiting ms", "fixed ms"):
        if column != "fixed ms" or half is not None:
            assert sum(row[column] for row in parts) == pytest.approx(step[column], rel=0.01, abs=1e-9)
    for row in parts:
        assert 0 <= row["waiting ms"] <= row["ms"]
        assert (
            row["fixed ms"] is None
            if half is None
            else 0 <= row["fixed ms"] <= row["ms"] - row["waiting ms"] + 0.02 * row["ms"]
        )
        floor = 1e3 * max(products.get(row["stage"], 0), copies.get(row["stage"], 0))
        assert row["floor ms"] == (pytest.approx(floor, rel=0.01) if floor else None)
        if floor and row["ms"]:
            assert row["floor %"] == pytest.approx(100 * row["floor ms"] / row["ms"], rel=0.02)
    floors = [sum(row["floor ms"] or 0 for row in parts), 1e3 * (network or 0)]
    assert (step["floor ms"] or 0) == pytest.approx(max(floors), rel=0.02)
    assert step["bound by"] in {row["bound by"] for row in parts}


@pytest.mark.parametrize(("exchange", "stage"), EXCHANGES.items())
def test_a_wait_belongs_to_the_stage_that_has_it(exchange: str, stage: str) -> None:
    stages = dict.fromkeys(STAGES[:-1], 1.0)
    cost = RankCost(seconds=11.0, stage_seconds=stages, waiting_seconds={exchange: 0.75})
    rows = stage_rows(cost, None, 1, products_s={}, copies_s={}, network_s=None, beside=set())
    assert {row["stage"] for row in rows[:-1] if row["waiting ms"]} == {stage}


BOUNDS: list[tuple[str, dict[str, Any]]] = [
    ("other work", {}),
    ("other work", {"products_s": {"backward": 0.4}, "copies_s": {"backward": 0.3}, "half": 0.6}),
    ("matrix products", {"products_s": {"backward": 0.6}, "copies_s": {"backward": 0.1}}),
    ("memory", {"products_s": {"backward": 0.1}, "copies_s": {"backward": 0.6}}),
    ("fixed cost", {"half": 0.9}),
    ("other ranks", {"waits": 0.6, "network_s": 0.2}),
    ("other ranks", {"waits": 0.6, "network_s": None}),
    ("network", {"waits": 0.6, "network_s": 0.4}),
]


@pytest.mark.parametrize(("by", "found"), BOUNDS)
def test_what_bounds_a_stage(by: str, found: dict[str, Any]) -> None:
    measured = {"products_s": {}, "copies_s": {}, "network_s": None} | found
    half, waits = measured.pop("half", 0.5), measured.pop("waits", 0.0)
    cost = RankCost(
        seconds=10.0, stage_seconds={"backward": 10.0}, waiting_seconds={"embedding bags: gradients": 10 * waits}
    )
    of_half = RankCost(seconds=10 * half, stage_seconds={"backward": 10 * half})
    rows = stage_rows(cost, of_half, 10, beside=set(), **measured)
    assert (rows[0]["bound by"], rows[-1]["bound by"]) == (by, by)


# ------------------------------------------------------------------------------------------------------------ advice


def rows_of(step: float = 100.0, **stages: dict[str, float]) -> list[dict[str, Any]]:
    """A table of what rules look at: milliseconds, by stage and column."""
    totals = {column: sum(row.get(column, 0.0) for row in stages.values()) for column in ("waiting ms", "fixed ms")}
    rows = [{"stage": stage.replace("_", " "), **row} for stage, row in stages.items()]
    return [*rows, {"stage": "step", "ms": step, "bound by": "other work", **totals}]


BOTH_WAIT = {"fetch": {"ms": 40.0, "waiting ms": 30.0}, "wait": {"ms": 20.0, "waiting ms": 20.0}}
POOLED_WAITS = {"pooled": {"ms": 40.0, "waiting ms": 30.0}}
BUSY = {"network": {"floor ms": 60.0}}
WAITS_FOR_SAMPLES = {"wait_for_samples": {"ms": 30.0}, "sample": {"ms": 40.0}, "forward": {"ms": 25.0}}

ADVICE: list[tuple[AnyRecipe, dict[str, dict[str, float]], int, list[str]]] = [
    (graph_recipe(), {}, 1, [r"^nothing stands out; .* is other work: smaller sampler.fanouts or model.hidden"]),
    (log_recipe(), {}, 1, [r"^nothing stands out; .* a smaller \[model\] or tables.dim, or more ranks$"]),
    (graph_recipe(), {"wait_for_samples": {"ms": 9.0}}, 4, ["^nothing stands out"]),
    (
        graph_recipe(),
        WAITS_FOR_SAMPLES,
        4,
        [r"^30 of 100 ms: sampling: pipeline.sampler_threads = 2$", "run.threads = 3"],
    ),
    (graph_recipe(), WAITS_FOR_SAMPLES, 1, [r"^70 of 100 ms: sampling: smaller sampler.fanouts"]),
    (graph_recipe(pipeline={"depth": 0}), {"sample": {"ms": 40.0}}, 1, [r"^40 of .*: pipeline.depth = 4$"]),
    (
        graph_recipe(),
        BOTH_WAIT | BUSY,
        1,
        [
            '^30 .* larger cache.alpha or cache.memory_gib, wire.vectors = "bf16"$',
            '^20 .* wire.sums = "bf16", larger tr',
        ],
    ),
    (
        graph_recipe(wire={"sums": "bf16"}, sampler={"storage": "fp16"}),
        BOTH_WAIT | BUSY,
        1,
        ["larger cache.alpha or cache.memory_gib$", "sums of gradients: larger training.batch_size$"],
    ),
    (
        graph_recipe(full_graph={"enabled": True}),
        BOTH_WAIT | BUSY,
        1,
        [
            r'^30 .*each other: full_graph.messages = "int8" or "adaptive"$',
            r'^20 .* wire.sums = "bf16", smaller model.hidden$',
        ],
    ),
    (graph_recipe(), BOTH_WAIT, 1, [r'^50 .* ranks that come later: sampler.order = "local", or fewer ranks']),
    (graph_recipe(sampler={"order": "local"}), BOTH_WAIT, 1, ["^50 .*: partition.balance, or"]),
    (log_recipe(), POOLED_WAITS, 1, ["^30 .*: another plan.planner, or"]),
    (log_recipe(), POOLED_WAITS | BUSY, 1, ['wire.vectors = "bf16", wire.gradients = "bf16", smaller tables.dim$']),
    (log_recipe(), {"read": {"ms": 20.0}}, 1, ["waiting for the reader: larger training.reader_memory_bytes"]),
    (
        log_recipe(),
        {"update": {"ms": 40.0, "fixed ms": 36.0}},
        1,
        ["^18 of 100 ms: what twice the training.batch_size"],
    ),
    (
        log_recipe(),
        {"forward": {"ms": 50.0, "floor ms": 31.0}},
        1,
        [r"^50 .* near its floor: only a smaller \[model\]"],
    ),
    (log_recipe(), {"forward": {"ms": 50.0, "floor ms": 29.0}}, 1, ["^nothing stands out"]),
    (log_recipe(run={"threads": 1}), {"forward": {"ms": 50.0}}, 4, ["^50 .* idle cores: run.threads = 4$"]),
]


@pytest.mark.parametrize(("recipe", "stages", "cores", "lines"), ADVICE)
def test_rules(recipe: AnyRecipe, stages: dict[str, dict[str, float]], cores: int, lines: list[str]) -> None:
    found = advise(rows_of(**stages), recipe, threads=1, cores=cores)
    assert len(found) == len(lines)
    for line, pattern in zip(found, lines, strict=True):
        assert re.search(pattern, line), line
    settings = recipe.settings()
    for section, key in re.findall(r"\b([a-z]+)\.([a-z_]+)\b", " ".join(found)):
        assert key in settings[section], f"{section}.{key} is no setting"


@given(st.dictionaries(st.sampled_from(["forward", "backward", "read", "wait", "ids"]), st.floats(0.1, 50)), seconds)
def test_at_most_three_lines_and_the_most_at_stake_first(at_stake: dict[str, float], network: float) -> None:
    stages = {stage: {"ms": ms, "waiting ms": ms / 2, "fixed ms": ms / 2} for stage, ms in at_stake.items()}
    lines = advise(rows_of(**stages, network={"floor ms": network}), log_recipe(), threads=1, cores=2)
    assert 1 <= len(lines) <= 3
    numbers = [float(line.split(" of ")[0]) for line in lines if line[0].isdigit()]
    assert numbers == sorted(numbers, reverse=True)
    assert all(number >= 9.9 for number in numbers)


# -------------------------------------------------------------------------------------------------------- real steps


def profiled(recipe: AnyRecipe, folder: Path, *options: str) -> dict[str, Any]:
    """What the command writes. Collective under mpirun."""
    file, out = folder / f"{recipe.name}-{launched_rank()}.toml", folder / f"{recipe.name}.json"
    write_toml(file, recipe.settings())
    assert main(["profile", str(file), "--steps", "3", "--json", str(out), *options]) == 0
    found: dict[str, Any] = json.loads(out.read_text()) if launched_rank() == 0 else {}
    return found


def small_graph(folder: Path, ranks: int) -> Recipe:
    sections = {
        "partition": {"num_parts": ranks, "method": "random"},
        "model": {"hidden": 8, "num_layers": 2},
        "sampler": {"fanouts": [4, 3]},
        "training": {"batch_size": 32},
        "run": {"threads": 1, "deadline_s": 60},
        "cache": {"alpha": 0.0},
    }
    return make_recipe(GRAPH | sections, source="tiny.toml", base=folder)


def small_data(folder: Path, graph_file: Path, prepare_clicks: Callable[[Path], None]) -> Recipe:
    """A store of two parts, and a prepared log. Collective: rank 0 makes them."""
    from mpi4py import MPI

    graph = small_graph(folder, 2)
    if launched_rank() == 0:
        shutil.copy(graph_file, folder)
        partition_to_store(graph)
        prepare_clicks(folder)
    MPI.COMM_WORLD.Barrier()
    return graph


OF_GRAPHS = ["sample", "wait for samples", "fetch", "forward", "backward", "wait", "update", "rest"]
OF_WHOLE_GRAPHS = ["forward", "backward", "wait", "update", "rest"]
OF_LOGS = ["read", "ids", "lookup", "forward", "pooled", "backward", "wait", "update", "rest"]


def check(found: dict[str, Any], stages: list[str], ranks: int) -> None:
    rows = {row["stage"]: row for row in found["stages"]}
    assert list(rows) == [*stages, *["network"] * (ranks > 1), "step"]
    assert ("which others wait for (ms of work by rank: " in found["about"]) == (ranks > 1)
    assert 1 <= len(found["advice"]) <= 4
    assert all(rows[stage]["floor ms"] > 0 for stage in ("forward", "backward", "update"))
    # Two products for each of the forward pass, but for the lowest layer's, whose input needs no gradient.
    assert 1 <= rows["backward"]["floor ms"] / rows["forward"]["floor ms"] <= 2
    assert rows["step"]["ms"] > 0
    if ranks > 1:
        assert rows["network"]["floor ms"] > 0


def test_one_rank(
    graph_file: Path,
    tmp_path: Path,
    click_recipe: ClickRecipe,
    prepare_clicks: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copy(graph_file, tmp_path)
    graph = small_graph(tmp_path, 1)
    partition_to_store(graph)
    found = profiled(graph, tmp_path)
    check(found, OF_GRAPHS, 1)
    printed = capsys.readouterr().out
    assert printed.startswith("tiny: means of 3 steps of 32; one large matrix product: ")
    assert all(line in printed for line in found["advice"])
    step = next(row for row in found["stages"] if row["stage"] == "step")
    assert re.search(rf"^step .* {step['ms']:.4g} ", printed, re.MULTILINE)
    # Everything one after another, and no smaller batch than one sample.
    alone = profiled(
        replace(graph, name="alone"), tmp_path, "--set", "pipeline.depth=0", "--set", "training.batch_size=1"
    )
    assert [row["stage"] for row in alone["stages"]] == [stage for stage in OF_GRAPHS if "wait for" not in stage] + [
        "step"
    ]
    assert {row["fixed ms"] for row in alone["stages"]} == {None}
    without_cache = replace(graph, name="whole", cache=CacheOptions())
    whole = profiled(without_cache, tmp_path, "--set", "full_graph.enabled=true")
    check(whole, OF_WHOLE_GRAPHS, 1)
    assert whole["about"].startswith("whole: means of 3 steps of the whole graph; ")
    prepare_clicks(tmp_path)
    check(profiled(click_recipe(tmp_path), tmp_path), OF_LOGS, 1)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parallel(2)
def test_two_ranks(
    graph_file: Path, shared_tmp_path: Path, click_recipe: ClickRecipe, prepare_clicks: Callable[[Path], None]
) -> None:
    graph = small_data(shared_tmp_path, graph_file, prepare_clicks)
    options = FullGraphOptions(enabled=True, messages="adaptive")
    whole = replace(graph, name="whole", cache=CacheOptions(), full_graph=options)
    with_bits = [*OF_WHOLE_GRAPHS[:-1], "assign bits", "rest"]
    recipes = ((graph, OF_GRAPHS), (whole, with_bits), (click_recipe(shared_tmp_path), OF_LOGS))
    for recipe, stages in recipes:
        found = profiled(recipe, shared_tmp_path)
        if launched_rank() == 0:
            check(found, stages, 2)


@pytest.mark.parametrize(("arguments", "told"), [(["--steps", "0"], "--steps 0: expected"), ([], "missing.toml")])
def test_wrong_use_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    assert main(["profile", "missing.toml", *arguments]) == 2
    assert told in capsys.readouterr().err
