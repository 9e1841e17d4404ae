"""How a graph is split: the recipe section, and how much memory that will need, told before it starts."""

import math
from collections.abc import Iterator, Mapping
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
CURES = {"METIS": 'partition.method = "fennel"', "vertex order": 'partition.order = "original"'}
"""What does without the parts of `estimate_memory`, and of more, whose names begin so."""
CONTROL_GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


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
    """Bytes that this process may still take: what the machine has free and its control groups allow.

    None where the operating system does not say (not Linux).
    """
    if not MEMORY_INFO.is_file():
        return None
    available = _numbers(MEMORY_INFO)["MemAvailable:"] * 1024
    return int(min([available, *(_left_of(limit, used) for limit, used in _limits())]))


def _limits() -> Iterator[tuple[Path, Path]]:
    """Files of limit and use of the control groups that this process is in, those above it too; they may be absent.

    Of version 2, and of version 1, which has a folder for memory.
    """
    lines = OWN_GROUPS.read_text(encoding="utf-8").splitlines() if OWN_GROUPS.is_file() else ["0::/"]
    for _, controllers, path in (line.split(":", 2) for line in lines):
        root, names = CONTROL_GROUPS, ("max", "current")
        if controllers:
            root, names = CONTROL_GROUPS / "memory", ("limit_in_bytes", "usage_in_bytes")
        if not controllers or "memory" in controllers.split(","):
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(root):
                    yield folder / f"memory.{names[0]}", folder / f"memory.{names[1]}"


def _left_of(limit: Path, used: Path) -> float:
    """Bytes that a control group still allows."""
    if not limit.is_file() or not used.is_file() or (text := limit.read_text(encoding="ascii").strip()) == "max":
        return math.inf
    # Copies of files that the group is charged for and that the kernel drops when memory is wanted.
    details = limit.with_name("memory.stat")
    dropped = _numbers(details) if details.is_file() else {}
    # With those of the groups inside it, which version 1 counts apart.
    copies = sum(dropped.get(f"total_{name}", dropped.get(name, 0)) for name in ("active_file", "inactive_file"))
    return max(int(text) - int(used.read_text(encoding="ascii")) + copies, 0)


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
    cures = [cure for name, cure in CURES.items() if any(part.startswith(name) for part in needed)]
    parts = ", ".join(f"{name} {_gigabytes(size)}" for name, size in needed.items())
    words = f"{_gigabytes(total)} ({parts})"
    if available_bytes is not None and total > available_bytes:
        raise DataError(
            f"partitioning needs about {words}, {_gigabytes(available_bytes)} are free: short of "
            f"{total - available_bytes} bytes; use {' and '.join(cures)}{', or ' * bool(cures)}a machine with more "
            "memory"
        )
    return words


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
