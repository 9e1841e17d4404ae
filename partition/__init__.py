"""Where does a vertex live? Partitioners, the partition book, and the store on disk."""

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
