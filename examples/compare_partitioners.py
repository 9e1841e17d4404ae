"""How much would travel? The three partitioners on one graph, with what each costs.

    python -P examples/compare_partitioners.py
    python -P examples/compare_partitioners.py examples/data/minesweeper.npz --parts 8

The last column is the share of a vertex's neighbours that live on another rank: what sampling has to fetch.
"""

import argparse
import time
from pathlib import Path

from windrow.gnn.readers import GraphOptions, read_graph
from windrow.partition import PartitionOptions, measure_quality, partition_with_options

__all__: list[str] = []

METHODS = ("metis", "fennel", "random")
TOLOKERS = Path(__file__).parent / "data" / "tolokers.npz"


def main(path: Path, num_parts: int) -> None:
    """Print one line for each partitioner."""
    graph = read_graph(GraphOptions(path=str(path)))
    indptr, indices = graph.indptr.numpy(), graph.indices.numpy()
    splits = {"train_ids": graph.train_ids.numpy(), "validation_ids": graph.validation_ids.numpy()}
    print(f"{path.name}: {graph.num_vertices:,} vertices, {graph.num_edges:,} stored edges, {num_parts} parts")
    print(f"{'method':<8} {'seconds':>8} {'edge cut':>10} {'heaviest part / mean':>21} {'remote neighbours':>18}")
    for method in METHODS:
        options = PartitionOptions(num_parts=num_parts, method=method)
        start = time.perf_counter()
        parts = partition_with_options(indptr, indices, options, **splits)
        seconds = time.perf_counter() - start
        quality = measure_quality(indptr, indices, parts, num_parts, **splits)
        heaviest, remote = max(quality.balance.values()), max(quality.remote_neighbour_fractions)
        print(f"{method:<8} {seconds:>8.2f} {quality.cut_edges:>10,} {heaviest:>21.3f} {remote:>18.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path, nargs="?", default=TOLOKERS)
    parser.add_argument("--parts", type=int, default=4)
    arguments = parser.parse_args()
    main(arguments.graph, arguments.parts)
