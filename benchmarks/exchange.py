"""How near the row exchange comes to the wire: fetched bytes per second over raw mpi4py Alltoallv and memory copy.

Two ranks each fetch rows that the other one holds, so that every byte travels; in one variant as many rows of their
own are asked for in between, which are copied too, and the result must be put in order. The baseline sends the same
number of bytes from one prepared buffer into another with ``MPI.Comm.Alltoallv``; it neither gathers rows nor puts
them in order. A memory copy of the same bytes is the floor of anything that writes them. GB/s counts the rows of the
other rank that end up in the result. The same rows are read from memory that both ranks map, as features are.

Windows: messages of one size from each rank to each other on 4 emulated hosts, by ``Alltoallv``, by sends and receives,
and one-sided, by ``Put`` and by ``Get`` into and out of an MPI window that is open all the time.

    python benchmarks/exchange.py [--short] [--only rows | windows]
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.harness.compare import Variant, compare
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Comparison, Findings, comparison_from_json, comparison_to_json
from windrow.caching.cached_store import CachedStore
from windrow.comm.connect import connect
from windrow.comm.fetch import fetch_rows
from windrow.comm.shared_memory import SharedRows
from windrow.comm.wire import Wire
from windrow.comm.world import World

RANKS = 2
FETCHED_BYTES = 32 << 20
ROW_BYTES = (64, 256, 512, 1024, 2048, 4096)
AIM_FROM_ROW_BYTES = 512
AIM, AIM_SHARED, AIM_WINDOWS = 0.8, 1.0, 0.95
RAW, COPY, FETCH = "raw Alltoallv", "memory copy", "fetch, random order"
HOSTS, RATES, MESSAGE_BYTES = 4, ("1gbit", "10gbit"), (4 << 10, 32 << 10, 256 << 10, 2 << 20)
TWO_SIDED, PUT, GET = "Isend, Irecv", "Put", "Get"
SHARED = "shared memory, random order"


def variants(world: World, row_bytes: int) -> dict[str, Variant]:
    """What is timed, each moving `FETCHED_BYTES` to each rank."""
    from mpi4py import MPI

    count = FETCHED_BYTES // row_bytes
    held = 2 * count
    chance = np.random.default_rng(world.rank)
    peer = 1 - world.rank
    rows = torch.from_numpy(chance.standard_normal((held, row_bytes // 4), dtype=np.float32))
    store = CachedStore(world, [0, held, 2 * held], rows, shared=SharedRows(world, rows, stage="rows"))
    wire, offsets = Wire(world, stage="rows"), [0, held, 2 * held]
    ids = torch.from_numpy(chance.choice(held, count, replace=False) + peer * held)
    ordered = ids.sort().values
    own = torch.from_numpy(chance.choice(held, count, replace=False) + world.rank * held)
    between = torch.cat([ids, own])[torch.from_numpy(chance.permutation(2 * count))]
    both = torch.empty((2 * count, row_bytes // 4))
    sent, out = rows[:count].clone(), torch.empty((count, row_bytes // 4))
    num_bytes = [0, 0]
    num_bytes[peer] = sent.nbytes
    sending = [sent.view(-1).view(torch.uint8).numpy(), (num_bytes, [0, 0]), MPI.BYTE]
    receiving = [out.view(-1).view(torch.uint8).numpy(), (num_bytes, [0, 0]), MPI.BYTE]
    functions: dict[str, Callable[[], object]] = {
        RAW: lambda: MPI.COMM_WORLD.Alltoallv(sending, receiving),
        COPY: lambda: out.copy_(sent),
        FETCH: lambda: fetch_rows(wire, offsets, rows, ids, out=out),
        SHARED: lambda: store.start(store.plan(ids)).finish(out),
        "shared memory, own rows between": lambda: store.start(store.plan(between)).finish(both),
        "fetch, sorted": lambda: fetch_rows(wire, offsets, rows, ordered, out=out),
        "fetch, own rows between": lambda: fetch_rows(wire, offsets, rows, between, out=both),
    }
    moved, rows_moved = FETCHED_BYTES * world.size, count * world.size
    return {name: Variant(run=run, bytes=moved, rows=rows_moved) for name, run in functions.items()}


def compare_windows(world: World, num_bytes: int, repeats: int) -> Mapping[str, Any]:
    """Messages of so many bytes from each rank to each other, in four ways."""
    from mpi4py import MPI

    job, size = MPI.COMM_WORLD, world.size
    others = [peer for peer in range(size) if peer != world.rank]
    window = MPI.Win.Allocate(size * num_bytes, comm=job)
    window.Lock_all()
    shown = np.frombuffer(window.tomemory(), np.uint8)  # type: ignore[call-overload]
    shown[:] = world.rank
    sent, received = np.full((size, num_bytes), world.rank, np.uint8), np.zeros((size, num_bytes), np.uint8)
    counts = [num_bytes * (peer != world.rank) for peer in range(size)]
    places = [num_bytes * peer for peer in range(size)]

    def two_sided() -> None:
        requests = [job.Irecv(received[peer], peer) for peer in others]
        MPI.Request.Waitall(requests + [job.Isend(sent[peer], peer) for peer in others])

    def put() -> None:
        for peer in others:
            window.Put(sent[peer], peer, world.rank * num_bytes)
        window.Flush_all()
        job.Barrier()  # Who gets it has to know that it is there.

    def get() -> None:
        for peer in others:
            window.Get(received[peer], peer, world.rank * num_bytes)
        window.Flush_all()
        job.Barrier()  # It may be written again.

    functions: dict[str, Callable[[], object]] = {
        RAW: lambda: job.Alltoallv([sent, (counts, places), MPI.BYTE], [received, (counts, places), MPI.BYTE]),
        TWO_SIDED: two_sided,
        PUT: put,
        GET: get,
    }
    moved = num_bytes * size * len(others)
    timed = {name: Variant(run=run, bytes=moved) for name, run in functions.items()}
    found = compare(timed, baseline=RAW, repeats=repeats, world=world)
    window.Unlock_all()
    window.Free()
    return comparison_to_json(found)


def work(task: Mapping[str, Any]) -> object:
    """Be one of the ranks."""
    torch.set_num_threads(1)
    if task["what"] == "windows":
        with connect("mpi", deadline_s=120) as world:
            return {size: compare_windows(world, size, task["repeats"]) for size in MESSAGE_BYTES}
    with connect("mpi", deadline_s=120) as world:
        return {
            row_bytes: comparison_to_json(
                compare(variants(world, row_bytes), baseline=RAW, repeats=task["repeats"], world=world)
            )
            for row_bytes in ROW_BYTES
        }


def measure(program: Program) -> Findings:
    """Time what was asked for."""
    parts = program.chosen(tuple(PARTS), short=len(PARTS))
    return Findings.joined([PARTS[part](program) for part in parts])


def windows(program: Program) -> Findings:
    """One-sided and two-sided messages on emulated hosts."""
    figures: dict[str, float] = {}
    comparisons: dict[str, Comparison] = {}
    for rate in RATES:
        found = program.on_ranks(HOSTS, {"what": "windows", "repeats": 9 if program.short else 41}, rate=rate)
        for size, values in found.items():
            compared = comparison_from_json(values)
            comparisons[f"{rate}, messages of {int(size) >> 10} KiB"] = compared
            for name in (TWO_SIDED, PUT, GET):
                key = f"windows_{rate}_{int(size) >> 10}_kib_{name.lower().replace(', ', '_')}_over_alltoallv"
                figures[key] = compared.ratio(name).median
    best = [max(compared.ratio(name).median for name in (PUT, GET)) for compared in comparisons.values()]
    aim = f"windows: Put or Get at >= {AIM_WINDOWS} of Alltoallv for all sizes"
    return Findings(figures=figures, aims={"windows": Aim(aim, min(best) >= AIM_WINDOWS)}, comparisons=comparisons)


def rows(program: Program) -> Findings:
    """Time everything on two ranks."""
    found = program.on_ranks(RANKS, {"what": "rows", "repeats": 9 if program.short else 41})
    comparisons = {int(row_bytes): comparison_from_json(values) for row_bytes, values in found.items()}
    figures: dict[str, float] = {}
    for row_bytes, compared in comparisons.items():
        key = f"fetch_{row_bytes}_byte_rows"
        figures[f"{key}_over_raw_ratio"] = compared.ratio(FETCH).median
        figures[f"{key}_over_copy_ratio"] = compared.ratio(FETCH, COPY).median
        figures[f"{key}_gigabytes_per_second"] = FETCHED_BYTES / compared.variants[FETCH].median_s / 1e9
        figures[f"shared_{row_bytes}_byte_rows_over_raw_ratio"] = compared.ratio(SHARED).median
    long_rows = [compared for row_bytes, compared in comparisons.items() if row_bytes >= AIM_FROM_ROW_BYTES]
    worst, worst_shared = (min(each.ratio(how).median for each in long_rows) for how in (FETCH, SHARED))
    figures["worst_from_512_bytes_over_raw_ratio"] = worst
    figures["worst_shared_from_512_bytes_over_raw_ratio"] = worst_shared
    aim = f"rows of {AIM_FROM_ROW_BYTES} bytes and up, random order: >= {{}} of raw Alltoallv"
    return Findings(
        figures=figures,
        aims={
            "raw": Aim(aim.format(AIM), worst >= AIM),
            "shared": Aim(f"from shared memory, {aim.format(AIM_SHARED)}", worst_shared >= AIM_SHARED),
        },
        comparisons={f"rows of {row_bytes} bytes": compared for row_bytes, compared in comparisons.items()},
    )


PARTS = {"rows": rows, "windows": windows}

if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work, ranks=True, parts=tuple(PARTS))
