"""Rows in 1, 2, 4 or 8 bits an entry: how fast they are quantised and packed, unpacked and dequantised.

    python benchmarks/codec.py [--short]

Rows of float32, of 256 and 602 columns (hidden layers, features of Reddit's posts), are picked in random order from a
matrix that no cache holds, and quantised into a message, which is then dequantised into another matrix. Both take turns
with a plain copy of the matrix (`torch.Tensor.copy_`), and with picking the same rows as they are, on one thread and on
all. GB/s are of the float32 rows.

What it is for is the time that shorter messages save on the wire: bytes of the rows less bytes of the message, at 10
Gbit/s. Quantising and dequantising may take a third of it. The share is of one row, at the sender and at the receiver
one after another, as if nothing else could be done meanwhile. Rows in float32 would be picked and copied too: what is
left without that is what few bits add.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.harness.compare import Variant, compare, waited_for
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Comparison, Findings, Table, comparison_from_json, comparison_to_json
from windrow.comm.process import keep_freed_memory
from windrow.comm.quantize import dequantize, packed_offsets, quantize
from windrow.comm.rows import move_rows

COPY, PICK, ENCODE, DECODE = "copy", "pick", "quantise and pack", "unpack and dequantise"
COLUMNS = (256, 602)
BITS = (1, 2, 4, 8)
MATRIX_BYTES = {False: 256 << 20, True: 64 << 20}
"""Short form or not; caches of the last level are smaller."""
WIRE_BYTES_PER_S = 10e9 / 8
MOST_OF_SAVED = 1 / 3
SEED = 7
CPU = torch.device("cpu")


def timed(columns: int, bits: int, *, matrix_bytes: int, repeats: int, device: torch.device) -> Comparison:
    """Time both ways beside a copy."""
    chance = torch.Generator(device).manual_seed(SEED)
    rows = torch.randn(matrix_bytes // (4 * columns), columns, device=device, generator=chance)
    out, positions = torch.empty_like(rows), torch.randperm(len(rows), device=device, generator=chance)
    widths = torch.full((len(rows),), bits, dtype=torch.uint8, device=device)
    offsets = packed_offsets(widths, columns)
    message = torch.empty(int(offsets[-1]), dtype=torch.uint8, device=device)
    runs: dict[str, Callable[[], object]] = {
        COPY: partial(out.copy_, rows),
        PICK: partial(move_rows, rows, positions, out, None),
        ENCODE: partial(quantize, rows, positions, widths, offsets, message, key=SEED, row_ids=positions),
        DECODE: partial(dequantize, message, widths, offsets, out, None),
    }
    variants = {
        name: Variant(run=waited_for(run, device), bytes=rows.nbytes, rows=len(rows)) for name, run in runs.items()
    }
    return compare(variants, baseline=COPY, repeats=repeats)


def work(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Time all settings."""
    keep_freed_memory()
    found = []
    for threads in task["threads"]:
        torch.set_num_threads(threads)
        for columns in COLUMNS:
            for bits in BITS:
                one = timed(columns, bits, matrix_bytes=task["matrix_bytes"], repeats=task["repeats"], device=CPU)
                about = {"threads": threads, "columns": columns, "bits": bits}
                found.append(about | {"timed": comparison_to_json(one)})
    return found


def share_of_saved(comparison: Comparison, columns: int, bits: int, *, less: Sequence[str] = ()) -> float:
    """Time of both ways, less that of some variants, over what the wire saves; the median over rounds."""
    rows = comparison.variants[COPY].rows
    assert rows is not None, "all variants say how many"
    saved_bytes = rows * 4 * columns - int(packed_offsets(torch.full((rows,), bits, dtype=torch.uint8), columns)[-1])
    seconds, without = (
        np.sum([comparison.variants[name].seconds for name in names], axis=0) for names in ((ENCODE, DECODE), less)
    )
    return float(np.median(seconds - without) / (saved_bytes / WIRE_BYTES_PER_S))


def measure(program: Program) -> Findings:
    """Time everything in one process, which has as many threads as are ever used."""
    threads = sorted({1, len(os.sched_getaffinity(0))})
    task = {"threads": threads, "matrix_bytes": MATRIX_BYTES[program.short], "repeats": 31}
    figures: dict[str, float] = {}
    comparisons: dict[str, Comparison] = {}
    shares: dict[int, list[float]] = {count: [] for count in threads}
    rows = []
    for one in program.in_process(task, threads=max(threads)):
        comparison = comparison_from_json(one["timed"])
        count, columns, bits = one["threads"], one["columns"], one["bits"]
        comparisons[f"{columns} columns in {bits} bits, {count} thread(s)"] = comparison
        share = share_of_saved(comparison, columns, bits)
        added = share_of_saved(comparison, columns, bits, less=(PICK, COPY))
        shares[count].append(share)
        key = f"columns_{columns}_bits_{bits}_threads_{count}"
        speeds = {
            name: 1e-9 * matrix_bytes(comparison) / comparison.variants[name].median_s for name in comparison.variants
        }
        figures |= {
            f"{key}_quantise_gb_per_s": speeds[ENCODE],
            f"{key}_dequantise_gb_per_s": speeds[DECODE],
            f"{key}_of_wire_time_saved_ratio": share,
            f"{key}_added_of_wire_time_saved_ratio": added,
        }
        rows.append(
            {"columns": columns, "bits": bits, "threads": count}
            | {f"{name} GB/s": speed for name, speed in speeds.items()}
            | {f"{name} / copy": comparison.ratio(name).median for name in (PICK, ENCODE, DECODE)}
            | {"of wire time saved": share, "added": added}
        )
    aims = {
        f"threads_{count}": Aim(
            f"{count} thread(s): at most {MOST_OF_SAVED:.2f} of the time that 10 Gbit/s save, the worst counts",
            max(shares[count]) <= MOST_OF_SAVED,
        )
        for count in threads
    }
    tables = {"both ways, from memory": Table.from_rows(rows)}
    return Findings(figures=figures, aims=aims, comparisons=comparisons, tables=tables)


def matrix_bytes(comparison: Comparison) -> int:
    """Of the float32 rows."""
    count = comparison.variants[COPY].bytes
    assert count is not None, "all variants say how many"
    return count


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, work=work)
