"""windrow.launch.explain_caches: the words around made-up figures."""

import dataclasses
from pathlib import Path

from windrow.launch.epoch_estimate import EpochTime, StepWork
from windrow.launch.explain_caches import Explanation, SizeEstimate, describe_explanation
from windrow.launch.recipe import make_recipe

RECIPE = make_recipe(
    {
        "name": "r",
        "store": "s",
        "graph": {"path": "g.npz"},
        "model": {"num_layers": 2},
        "sampler": {"fanouts": [7, 5]},
        "cache": {"memory_gib": 0.25},
    },
    source="r.toml",
    base=Path.cwd(),
)


def size(alpha: float, rows: float, *, timed: bool) -> SizeEstimate:
    time = EpochTime(processor_s=2.0, device_s=1.0, exchange_s=rows / 1e5, reduction_s=0.5) if timed else None
    return SizeEstimate(
        alpha=alpha,
        kept_rows=round(1000 * alpha),
        memory_bytes=round(40_000 * alpha),
        remote_rows=rows,
        remote_bytes=48 * rows,
        time=time,
    )


def explanation(*, timed: bool, device_s: float = 0.0) -> Explanation:
    none, some, everything = (size(a, r, timed=timed) for a, r in ((0.0, 4e5), (0.5, 1e5), (3.0, 0.0)))
    return Explanation(
        num_vertices=4000,
        num_parts=4,
        steps=12,
        input_rows=6e5,
        row_bytes=40,
        wire_row_bytes=20,
        work=StepWork(processor_s=0.025, device_s=device_s, gradient_bytes=1) if timed else None,
        pipelined=True,
        sizes=(none, some, everything),
        curve=(none, some, everything),
        knee=some,
        automatic=everything,
        everything=everything,
        chosen=some,
    )


def test_without_a_network_it_says_how_to_get_one() -> None:
    text = describe_explanation(explanation(timed=False), RECIPE, network="", computed="")
    assert text.startswith("4,000 vertices in 4 parts; 12 steps an epoch\nfanouts 7, 5; cache policy vip\n")
    assert "an epoch needs 600k rows; a row takes 40 B at home, 20 B in a cache and on the wire" in text
    assert "mpirun -n 4 windrow network" in text
    assert "exchange s" not in text
    lines = text.splitlines()
    header = next(index for index, line in enumerate(lines) if line.startswith("alpha"))
    assert lines[header + 2].split() == ["0", "0", "0", "B", "400k", "100", "%", "18.3", "MiB"]
    assert lines[header + 3].endswith("knee, recipe")
    assert "25 %" in lines[header + 3]
    assert lines[header + 4].endswith("auto, all")
    assert "cache.memory_gib = 0.25" in text
    assert "saves less than the average row" in text


def test_shares_are_of_alpha_0_whether_it_is_shown_or_not() -> None:
    found = explanation(timed=False)
    text = describe_explanation(
        dataclasses.replace(found, sizes=found.sizes[1:]), RECIPE, network="", computed=""
    )
    rows = [line for line in text.splitlines() if line.startswith(("0.5 ", "3 "))]
    assert ["25 %" in rows[0], "0 %" in rows[1], len(rows)] == [True, True, 2]


def test_with_a_network_both_times_are_shown() -> None:
    text = describe_explanation(explanation(timed=True), RECIPE, network="net.toml", computed="measured here")
    assert "network: net.toml; a step is 25 ms of work, measured here" in text
    lines = text.splitlines()
    header = next(index for index, line in enumerate(lines) if line.startswith("alpha"))
    assert lines[header + 2].split()[-3:] == ["4", "7.5", "4.5"]
    assert "within 1 % of the shortest" in text


def test_a_gpu_is_told_apart() -> None:
    text = describe_explanation(
        explanation(timed=True, device_s=0.003), RECIPE, network="n", computed="measured here"
    )
    assert "25 ms of work of the processor and 3 ms of the GPU" in text
