"""How near the row exchange comes to the wire: fetched bytes per second over raw mpi4py Alltoallv and memory copy.

Two ranks each fetch rows that the other one holds, so that every byte travels; in one variant as many rows of their
own are asked for in between, which are copied too, and the result must be put in order. The baseline sends the same
number of bytes from one prepared buffer into another with ``MPI.Comm.Alltoallv``; it neither gathers rows nor puts
them in order. A memory copy of the same bytes is the floor of anything that writes them. GB/s counts the rows of the
other rank that end up in the result.

    python benchmarks/exchange.py [--short]
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from windrow.comm.connect import connect
from windrow.comm.exchange import RowExchange
from windrow.comm.world import World
from windrow.launch.benchmark import Aim, conclude, ratio, short_flag, table
from windrow.launch.memory import keep_freed_memory

RANKS = 2
FETCHED_BYTES = 32 << 20
ROW_BYTES = (64, 256, 512, 1024, 2048, 4096)
AIM_FROM_ROW_BYTES = 512
AIM = 0.8
VARIANTS = (
    "raw Alltoallv",
    "memory copy",
    "fetch, random order",
    "fetch, sorted",
    "fetch, own rows between",
    "fetch, 4 repeats each",
)


def make_variants(world: World, row_bytes: int) -> dict[str, Callable[[], object]]:
    """What is timed, each moving `FETCHED_BYTES` to this rank."""
    from mpi4py import MPI

    count = FETCHED_BYTES // row_bytes
    held = 2 * count
    chance = np.random.default_rng(world.rank)
    peer = 1 - world.rank
    rows = torch.from_numpy(chance.standard_normal((held, row_bytes // 4), dtype=np.float32))
    exchange = RowExchange(world, [0, held, 2 * held], rows)
    ids = torch.from_numpy(chance.choice(held, count, replace=False) + peer * held)
    ordered = ids.sort().values
    repeated = ids[torch.from_numpy(chance.permutation(np.arange(count) // 4))]
    own = torch.from_numpy(chance.choice(held, count, replace=False) + world.rank * held)
    between = torch.cat([ids, own])[torch.from_numpy(chance.permutation(2 * count))]
    both = torch.empty((2 * count, row_bytes // 4))
    sent, out = rows[:count].clone(), torch.empty((count, row_bytes // 4))
    num_bytes = [0, 0]
    num_bytes[peer] = sent.nbytes
    sending = [sent.view(-1).view(torch.uint8).numpy(), (num_bytes, [0, 0]), MPI.BYTE]
    receiving = [out.view(-1).view(torch.uint8).numpy(), (num_bytes, [0, 0]), MPI.BYTE]
    functions: tuple[Callable[[], object], ...] = (
        lambda: MPI.COMM_WORLD.Alltoallv(sending, receiving),
        lambda: out.copy_(sent),
        lambda: exchange.fetch(ids, unique=True, out=out),
        lambda: exchange.fetch(ordered, unique=True, out=out),
        lambda: exchange.fetch(between, unique=True, out=both),
        lambda: exchange.fetch(repeated),
    )
    return dict(zip(VARIANTS, functions, strict=True))


def time_together(
    world: World, variants: dict[str, Callable[[], object]], repeats: int
) -> dict[str, list[float]]:
    """Seconds until the slower rank is done, interleaved in rotating order; the first round is warm-up."""
    samples: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for turn in range(repeats + 1):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            world.barrier(stage="start")
            started = time.perf_counter()
            variants[name]()
            seconds = torch.tensor(time.perf_counter() - started)
            world.all_reduce(seconds, stage="seconds", op="max")
            if turn > 0:
                samples[name].append(float(seconds))
    return samples


def run_rank(output: Path, repeats: int) -> None:
    """Be one of the two ranks."""
    torch.set_num_threads(1)
    # As in `windrow train`.
    keep_freed_memory()
    with connect("mpi", deadline_s=120) as world:
        everything = {
            row_bytes: time_together(world, make_variants(world, row_bytes), repeats)
            for row_bytes in ROW_BYTES
        }
        if world.rank == 0:
            output.write_text(json.dumps(everything))


def main() -> None:
    """Launch the ranks, print, conclude."""
    parser = short_flag("Row exchange against raw Alltoallv and memory copy.")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    repeats = 9 if arguments.short else 41
    if arguments.worker:
        run_rank(arguments.worker, repeats)
        return
    mpirun = shutil.which("mpirun")
    assert mpirun is not None, "mpirun is not on the PATH: pip install mpich, or load your cluster's MPI"
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "samples.json"
        command = [mpirun, "-n", str(RANKS), sys.executable, "-P", __file__, "--worker", str(output)]
        subprocess.run([*command, *["--short"] * arguments.short], check=True, timeout=1200)
        measured: dict[str, dict[str, list[float]]] = json.loads(output.read_text())
    rows = []
    figures: dict[str, float] = {}
    worst = float("inf")
    for row_bytes, samples in measured.items():
        raw, copy = samples["raw Alltoallv"], samples["memory copy"]
        for name, seconds in samples.items():
            rows.append(
                {
                    "row bytes": int(row_bytes),
                    "what": name,
                    "GB/s": FETCHED_BYTES / float(np.median(seconds)) / 1e9,
                    "of raw": str(ratio(seconds, raw)),
                    "of copy": f"{ratio(seconds, copy).median:.2f}",
                }
            )
        fetched = samples["fetch, random order"]
        figures[f"fetch_{row_bytes}_byte_rows_over_raw_ratio"] = ratio(fetched, raw).median
        figures[f"fetch_{row_bytes}_byte_rows_over_copy_ratio"] = ratio(fetched, copy).median
        figures[f"fetch_{row_bytes}_byte_rows_gigabytes_per_second"] = (
            FETCHED_BYTES / float(np.median(fetched)) / 1e9
        )
        if int(row_bytes) >= AIM_FROM_ROW_BYTES:
            worst = min(worst, ratio(fetched, raw).median)
    print(table(rows))
    figures["worst_from_512_bytes_over_raw_ratio"] = worst
    aim = Aim(
        f"rows of {AIM_FROM_ROW_BYTES} bytes and up, random order: >= {AIM} of raw Alltoallv", worst >= AIM
    )
    conclude("exchange", figures, {"raw": aim}, save_to=arguments.save)


if __name__ == "__main__":
    main()
