"""Where does a vertex live? Partitioners, the partition book, and the store on disk.

A name's module is imported when it is first used, so that files can be written and run folders opened without PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windrow.partition.book import PartitionBook
    from windrow.partition.options import PartitionOptions
    from windrow.partition.partitioners import partition_graph
    from windrow.partition.quality import PartitionQuality, measure_quality
    from windrow.partition.store import PartitionStore

__all__ = [
    "PartitionBook",
    "PartitionOptions",
    "PartitionQuality",
    "PartitionStore",
    "measure_quality",
    "partition_graph",
]

_LAZY = {
    "PartitionBook": "book",
    "PartitionOptions": "options",
    "PartitionQuality": "quality",
    "PartitionStore": "store",
    "measure_quality": "quality",
    "partition_graph": "partitioners",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(f"windrow.partition.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'windrow.partition' has no attribute {name!r}")
