"""Edge cut of the METIS path on three graphs of the Walshaw archive, over the best known cut.

2 parts at 5 % imbalance are compared with the best known partition in the data files; 4 and 8 parts are printed
with all balances. Baseline beside it: METIS alone, one run, as DGL's build gives it.
"""

import time

import numpy as np
import numpy.typing as npt

from benchmarks.harness.data_sets import data_option
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from windrow.partition import PartitionOptions, PartitionQuality, measure_quality, partition_graph
from windrow.partition.refine import Adjacency, symmetric_adjacency

BEST_KNOWN = {"4elt": 137, "wing_nodal": 1668, "wave": 8524}
IMBALANCE = 0.05
AIM = 1.10


def measure(program: Program) -> Findings:
    """Partition each graph into 2, 4 and 8 parts and print cuts, balances and seconds."""
    restarts = 4 if program.short else 16
    rows: list[dict[str, object]] = []
    figures: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    for name, best_known in BEST_KNOWN.items():
        if not (program.options.data / f"{name}.npz").is_file():
            print(f"{name}: not measured, no {name}.npz in {program.options.data} (see --data)")
            aims[name] = Aim(f"{name}: cut <= {AIM:g}x best known (not measured: no data)", met=False)
            continue
        with np.load(program.options.data / f"{name}.npz", allow_pickle=False) as archive:
            graph, published = undirected(archive["edges"]), archive["best2way5"].astype(np.int32)
        if graph.cut(published) != best_known:
            raise SystemExit(f"{name}: the stored partition cuts {graph.cut(published)}, expected {best_known}")
        for num_parts in (2, 4, 8):
            once, _ = run(graph, num_parts, restarts=1, refine_cycles=0)
            ours, seconds = run(graph, num_parts, restarts=restarts, refine_cycles=4)
            cut, prefix = ours.cut_edges // 2, f"{name}_{num_parts}_parts"
            figures[f"{prefix}_cut_edges"] = cut
            figures[f"{prefix}_metis_once_cut_edges"] = once.cut_edges // 2
            figures[f"{prefix}_vertex_balance_ratio"] = ours.balance["vertices"]
            figures[f"{prefix}_degree_balance_ratio"] = ours.balance["degree"]
            figures[f"{prefix}_seconds"] = seconds
            rows.append(
                {
                    "graph": name,
                    "parts": num_parts,
                    "METIS once": once.cut_edges // 2,
                    "cut": cut,
                    "cut / best": f"{cut / best_known:.3f}" if num_parts == 2 else "",
                    "vertices": f"{ours.balance['vertices']:.3f}",
                    "degree": f"{ours.balance['degree']:.3f}",
                    "largest halo": max(ours.halo_sizes),
                    "seconds": f"{seconds:.1f}",
                }
            )
        reached = figures[f"{name}_2_parts_cut_edges"] / best_known
        figures[f"{name}_2_parts_over_best_known_ratio"] = reached
        balanced = figures[f"{name}_2_parts_vertex_balance_ratio"] <= 1 + IMBALANCE
        aims[name] = Aim(
            text=f"cut / best known ({best_known}) <= {AIM:.2f} for 2 parts at 5 % imbalance",
            met=reached <= AIM and balanced,
        )
    print(f"METIS once: one run in the file's vertex order. cut: {restarts} runs, refined and combined.")
    print("vertices, degree: heaviest part over the mean; vertices may reach 1.05, degree is not bounded.")
    return Findings(figures=figures, aims=aims, tables={"cuts": Table.from_rows(rows)})


def run(graph: Adjacency, num_parts: int, *, restarts: int, refine_cycles: int) -> tuple[PartitionQuality, float]:
    """Partition once; returns the quality report and the seconds taken."""
    start = time.perf_counter()
    options = PartitionOptions(
        num_parts=num_parts, imbalance=IMBALANCE, balance=("vertices",), restarts=restarts, refine_cycles=refine_cycles
    )  # fmt: skip
    assignment = partition_graph(graph.indptr, graph.indices, options)
    seconds = time.perf_counter() - start
    quality = measure_quality(graph.indptr, graph.indices, assignment, num_parts, balance=("vertices", "degree"))
    return quality, seconds


def undirected(edges: npt.NDArray[np.int32]) -> Adjacency:
    """The graph whose undirected edges are listed once each."""
    order = np.argsort(edges[:, 1], kind="stable")
    indptr = np.zeros(int(edges.max()) + 2, np.int64)
    np.cumsum(np.bincount(edges[:, 1], minlength=len(indptr) - 1), out=indptr[1:])
    return symmetric_adjacency(indptr, edges[order, 0])


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, add_options=data_option("the .npz graphs", "partition"))
