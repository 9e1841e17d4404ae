"""How well measured links predict collectives: predicted over measured time of all-to-all and all-reduce.

On emulated clusters of 2 and 4 hosts at 1 and 10 Gbit/s: the links are measured, then collectives of `World` are timed
in turn, at six sizes from 1 KiB to 64 MiB for each rank, all-to-all with equal and with ragged parts. What the model
says comes from the links alone, whose probe runs before and times messages of 16 MiB at most. The share of the wire is
what the bytes of the busiest port take at the link's rate, over what was measured; frames of TCP over Ethernet leave
0.94 to 0.96 of it to data.

    python benchmarks/network.py [--short] [--hostfile FILE]
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness.compare import Variant, compare
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table, comparison_from_json, comparison_to_json
from windrow.comm.connect import connect
from windrow.comm.errors import RecipeError
from windrow.comm.link_model import predict_all_reduce, predict_all_to_all
from windrow.comm.link_probe import measure_links
from windrow.comm.links import links_to_json, seconds_per_byte
from windrow.comm.world import World
from windrow.training.terminal import byte_size

if TYPE_CHECKING:
    from benchmarks.harness.result import Comparison

SIZES_BYTES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 24, 1 << 26)
"""For each rank in all."""
LONG_BYTES = 1 << 22
"""From here on a run takes so long that it is repeated less often."""
SHARE_BYTES = 1 << 24

HOSTS = (2, 4)
RATES = ("1gbit", "10gbit")
WORST_ERROR_PERCENT = {2: 10.0, 4: 20.0}
"""Aim for the median over operations and sizes, by number of hosts. Four share two cores."""

EQUAL, RAGGED, REDUCE = "all-to-all, equal", "all-to-all, ragged", "all-reduce"


@dataclass(frozen=True)
class Point:
    """One operation at one size."""

    operation: str
    num_bytes: int
    measured_s: float
    predicted_s: float
    port_bytes: float
    """What the busiest port carries in one direction."""

    @property
    def error_percent(self) -> float:
        """By how much the prediction is off, whichever way."""
        return 100 * abs(self.predicted_s / self.measured_s - 1)

    def wire_share(self, rate: str) -> float:
        """Part of the link's rate that was reached."""
        return self.port_bytes * seconds_per_byte(rate) / self.measured_s


def byte_matrices(size: int, num_bytes: int) -> dict[str, NDArray[np.int64]]:
    """Bytes from each rank to each: in equal parts, and drawn at random so that some parts are many times others."""
    equal = np.full((size, size), num_bytes // size)
    drawn = np.random.default_rng(size).random((size, size)) ** 2
    return {EQUAL: equal, RAGGED: (drawn / drawn.sum() * num_bytes * size).astype(np.int64)}


def busiest_port(sent: NDArray[np.int64]) -> float:
    """Bytes of the rank that sends, or receives, most from others."""
    others = sent - np.diag(np.diag(sent))
    return float(max(others.sum(axis=0).max(), others.sum(axis=1).max()))


def exchange_variant(world: World, sent: NDArray[np.int64]) -> Variant:
    """An all-to-all by a byte matrix."""
    to, come = sent[world.rank].tolist(), sent[:, world.rank].tolist()
    send, out = torch.zeros(sum(to), dtype=torch.uint8), torch.zeros(sum(come), dtype=torch.uint8)
    moved = int(sent.sum() - np.trace(sent))
    return Variant(run=lambda: world.all_to_all(send, to, come, stage="measured", out=out), bytes=moved)


def reduction_variant(world: World, num_bytes: int) -> Variant:
    """A sum of float32."""
    summed = torch.zeros(num_bytes // torch.float32.itemsize)
    return Variant(run=lambda: world.all_reduce(summed, stage="measured"))


def work(task: Mapping[str, Any]) -> object:
    """Be one rank: measure the links, then the collectives."""
    torch.set_num_threads(1)
    found = []
    with connect("mpi", deadline_s=300) as world:
        links = measure_links(world)
        for num_bytes in SIZES_BYTES:
            matrices = byte_matrices(world.size, num_bytes)
            variants = {name: exchange_variant(world, sent) for name, sent in matrices.items()}
            variants[REDUCE] = reduction_variant(world, num_bytes)
            repeats = task["repeats"] if num_bytes < LONG_BYTES else task["long_repeats"]
            compared = compare(variants, baseline=EQUAL, repeats=repeats, world=world)
            predicted = {name: predict_all_to_all(links, sent) for name, sent in matrices.items()}
            predicted[REDUCE] = predict_all_reduce(links, num_bytes)
            ports = {name: busiest_port(sent) for name, sent in matrices.items()}
            ports[REDUCE] = 2 * num_bytes * (world.size - 1) / world.size
            points = [
                Point(name, num_bytes, measured.median_s, predicted[name], ports[name])
                for name, measured in compared.variants.items()
            ]
            found.append({"points": [asdict(point) for point in points], "compared": comparison_to_json(compared)})
    return {"links": links_to_json(links), "sizes": found}


def rows(points: list[Point], rate: str | None) -> list[dict[str, str | int | float | bool]]:
    """A line for each operation and size."""
    return [
        {
            "operation": point.operation,
            "bytes per rank": byte_size(point.num_bytes),
            "measured ms": point.measured_s * 1e3,
            "predicted ms": point.predicted_s * 1e3,
            "error %": round(point.error_percent, 1),
            "share of the wire": "" if rate is None else f"{point.wire_share(rate):.2f}",
        }
        for point in sorted(points, key=lambda point: (point.operation, point.num_bytes))
    ]


def settings(program: Program) -> list[tuple[int, str | None]]:
    """Numbers of hosts and rates; on machines of one's own all of them, at the rate that they have."""
    if program.hostfile is None:
        return [(hosts, rate) for hosts in HOSTS for rate in RATES]
    names = Path(program.hostfile).read_text(encoding="utf-8").split()
    if len(names) < 2:
        raise RecipeError(f"{program.hostfile} names {len(names)} machine(s): a network needs two")
    return [(len(names), None)]


def measure(program: Program) -> Findings:
    """Measure and predict on every network."""
    task = {"repeats": 15, "long_repeats": 3} if program.short else {"repeats": 41, "long_repeats": 9}
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    comparisons: dict[str, Comparison] = {}
    tables: dict[str, Table] = {}
    for hosts, rate in settings(program):
        found = program.on_ranks(hosts, task, rate=rate)
        points = [Point(**values) for each in found["sizes"] for values in each["points"]]
        title = f"{hosts} hosts, {rate or 'real network'}"
        lines = rows(points, rate)
        tables[title] = Table(columns=tuple(lines[0]), rows=tuple(tuple(line.values()) for line in lines))
        for each in found["sizes"]:
            size = byte_size(each["points"][0]["num_bytes"])
            comparisons[f"{title}, {size}"] = comparison_from_json(each["compared"])
        key = f"{hosts}_hosts_{rate or 'real'}"
        error = float(np.median([point.error_percent for point in points]))
        figures[f"{key}_median_error_percent"] = error
        figures[f"{key}_worst_error_percent"] = max(point.error_percent for point in points)
        limit = WORST_ERROR_PERCENT.get(hosts, max(WORST_ERROR_PERCENT.values()))
        aims[key] = Aim(f"{title}: median error <= {limit:g} %", error <= limit)
        if rate is not None:
            at_16_mib = [point for point in points if point.num_bytes == SHARE_BYTES]
            for point, name in zip(at_16_mib, ("all_to_all", "ragged_all_to_all", "all_reduce"), strict=True):
                figures[f"{key}_16_mib_{name}_wire_share"] = point.wire_share(rate)
    return Findings(figures=figures, aims=aims, comparisons=comparisons, tables=tables)


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, ranks=True)
