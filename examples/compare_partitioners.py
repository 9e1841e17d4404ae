"""How much would travel? The three partitioners on one graph, with what each costs.

    python -P examples/compare_partitioners.py
    python -P examples/compare_partitioners.py examples/data/minesweeper.npz --parts 8

The last column is the share of the neighbours that live on another rank, which is what sampling has to
fetch: that of the rank with the largest share.
"""

import argparse
import time
from pathlib import Path

from windrow.gnn.readers import GraphOptions, read_graph
from windrow.partition import PartitionOptions, measure_quality, partition_graph
from windrow.partition.options import Method

METHODS: tuple[Method, ...] = ("metis", "fennel", "random")
TOLOKERS = Path(__file__).parent / "data" / "tolokers.npz"


def main(path: Path, num_parts: int) -> None:
    """Print one line for each partitioner."""
    graph = read_graph(GraphOptions(path=str(path)))
    indptr, indices = graph.indptr.numpy(), graph.indices.numpy()
    train_ids = graph.train_ids.numpy()
    print(f"{path.name}: {graph.num_vertices:,} vertices, {graph.num_edges:,} stored edges")
    print(f"{'method':<8} {'seconds':>8} {'cut edges':>10} {'heaviest / mean':>16} {'remote':>8}")
    for method in METHODS:
        start = time.perf_counter()
        options = PartitionOptions(num_parts=num_parts, method=method)
        parts = partition_graph(indptr, indices, options, train_ids=train_ids)
        seconds = time.perf_counter() - start
        quality = measure_quality(indptr, indices, parts, num_parts, train_ids=train_ids)
        heaviest, remote = max(quality.balance.values()), max(quality.remote_neighbour_fractions)
        print(f"{method:<8} {seconds:>8.2f} {quality.cut_edges:>10,} {heaviest:>16.3f} {remote:>8.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("graph", type=Path, nargs="?", default=TOLOKERS)
    parser.add_argument("--parts", type=int, default=4)
    arguments = parser.parse_args()
    main(arguments.graph, arguments.parts)
