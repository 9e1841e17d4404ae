"""How a graph is split: the recipe section, and how much memory that will need, told before it starts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from windrow.comm.errors import DataError
from windrow.comm.options import NonNegativeFloat, NonNegativeInt, PositiveInt, checked_dataclass
from windrow.partition.constraints import SALIENT_CONSTRAINTS, check_constraint_names

__all__ = ["Method", "PartitionOptions", "VertexOrderName", "available_memory_bytes", "check_memory", "estimate_memory"]

Method = Literal["metis", "fennel", "random"]
VertexOrderName = Literal["vip", "original"]


@checked_dataclass
class PartitionOptions:
    """How to split a graph."""

    num_parts: PositiveInt = 2
    """Number of parts: one for each rank that will train."""
    method: Method = "metis"
    """metis: least cut, needs DGL and memory for the whole graph several times over; fennel: streaming, for graphs
    that METIS cannot hold; random: the baseline."""
    balance: tuple[str, ...] = SALIENT_CONSTRAINTS
    """What every part holds its share of: names out of train, validation, other, degree, vertices."""
    imbalance: NonNegativeFloat = 0.03
    """Tolerated excess of a part over the mean in each constraint: 0.03 for 3 %."""
    seed: int = 0
    """Seed of vertex orders and ties; equal options and seed give equal parts."""
    restarts: PositiveInt = 4
    """metis only: number of METIS runs, each on another vertex order, that are combined."""
    refine_cycles: NonNegativeInt = 4
    """metis only: largest number of V-cycles of each refinement; 0 takes METIS's best result as it is."""
    stream_passes: PositiveInt = 5
    """fennel only: passes over the vertices; 1 for plain streaming."""
    order: VertexOrderName = "vip"
    """How vertices stand inside a part. vip: those that minibatches of the part's rank need most often come first, so
    that any first share of a part's rows is the best to keep near; needs training vertices. original: as the user has
    them."""

    def __post_init__(self) -> None:
        check_constraint_names(self.balance)


METIS_BYTES_PER_EDGE, METIS_BYTES_PER_VERTEX = 120, 450
"""Of the undirected graph, METIS and the refinement at once, without vertex weights. Resident sets on graphs of
`benchmarks.harness.power_law`, stored in both directions, 2 to 10 M edges, 5 to 50 a vertex, 4 parts: the estimate is
0.99 to 1.17 of the peak, with communities 1.13 to 1.42. Stored in one direction an edge takes up to twice as much."""
METIS_PROCESS_BYTES = 420_000_000
"""METIS's process before it has a graph: Python with torch and DGL; measured."""
MEMORY_INFO = Path("/proc/meminfo")
CONTROL_GROUP = Path("/sys/fs/cgroup")


def estimate_memory(num_vertices: int, num_edges: int, options: PartitionOptions) -> dict[str, int]:
    """Peak memory of `partition_graph`, beyond indptr and indices, for N vertices and E edges: bytes by what for."""
    columns = max(len(options.balance), 1)
    parts = {"assignment and vertex weights": num_vertices * (4 + 8 * columns)}
    if options.method == "random":
        parts["random order"] = 41 * num_vertices
    if options.method == "metis" and options.num_parts > 1:
        parts["METIS process"] = METIS_PROCESS_BYTES
        per_vertex = METIS_BYTES_PER_VERTEX + 24 * columns
        parts["METIS and refinement"] = METIS_BYTES_PER_EDGE * num_edges + per_vertex * num_vertices
        parts["results to combine"] = 4 * num_vertices * (options.restarts + options.num_parts)
    return parts


def available_memory_bytes() -> int | None:
    """Bytes that this process may still take: what the machine has free and its control group allows.

    None where the operating system does not say (not Linux).
    """
    if not MEMORY_INFO.is_file():
        return None
    available = _numbers(MEMORY_INFO)["MemAvailable:"] * 1024
    limit, used, details = (CONTROL_GROUP / f"memory.{name}" for name in ("max", "current", "stat"))
    if limit.is_file() and used.is_file() and (text := limit.read_text(encoding="ascii").strip()) != "max":
        # Copies of files that the group is charged for and that the kernel drops when memory is wanted.
        dropped = _numbers(details) if details.is_file() else {}
        copies = dropped.get("active_file", 0) + dropped.get("inactive_file", 0)
        available = min(available, max(int(text) - int(used.read_text(encoding="ascii")) + copies, 0))
    return available


def _numbers(path: Path) -> dict[str, int]:
    """By the first word of each line the number that is the second."""
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return {words[0]: int(words[1]) for words in lines}


def check_memory(needed: Mapping[str, int], available_bytes: int | None) -> str:
    """Refuse a partitioning that will not fit.

    `needed` is from `estimate_memory`, `available_bytes` from `available_memory_bytes`; None: anything fits.

    Returns:
        What is needed, in words.

    Raises:
        DataError: with the shortfall in bytes and the cure.
    """
    total = sum(needed.values())
    parts = ", ".join(f"{name} {_gigabytes(size)}" for name, size in needed.items())
    words = f"{_gigabytes(total)} ({parts})"
    if available_bytes is not None and total > available_bytes:
        raise DataError(
            f"partitioning needs about {words}, {_gigabytes(available_bytes)} are free: short of "
            f'{total - available_bytes} bytes; use method = "fennel", or a machine with more memory'
        )
    return words


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
