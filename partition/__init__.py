"""Where does a vertex live? Partitioners, the partition book, and the store on disk.

A name's module is imported when it is first used, so that files can be written and run folders opened without PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windrow.partition.book import PartitionBook
    from windrow.partition.options import PartitionOptions, available_memory_bytes, check_memory, estimate_memory
    from windrow.partition.partitioners import partition_graph
    from windrow.partition.quality import PartitionQuality, measure_quality
    from windrow.partition.store import PartitionStore, write_store

__all__ = [
    "PartitionBook",
    "PartitionOptions",
    "PartitionQuality",
    "PartitionStore",
    "available_memory_bytes",
    "check_memory",
    "estimate_memory",
    "measure_quality",
    "partition_graph",
    "write_store",
]

_MODULES = {
    "book": ("PartitionBook",),
    "options": ("PartitionOptions", "available_memory_bytes", "check_memory", "estimate_memory"),
    "partitioners": ("partition_graph",),
    "quality": ("PartitionQuality", "measure_quality"),
    "store": ("PartitionStore", "write_store"),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"windrow.partition.{module}"), name)
    raise AttributeError(f"module 'windrow.partition' has no attribute {name!r}")
