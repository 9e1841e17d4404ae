"""What columns take on disk in one order of samples or another: they are written and weighed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from windrow.recsys.batches.deduplication.survey_sample import SessionSample, read_rows
from windrow.recsys.log.store import ROW_GROUP_ROWS, LogSplit, SplitWriter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["StorageScales", "StorageSizes", "stored_bytes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageSizes:
    """Bytes on disk of a sample of the log, all columns, for each sample and in each order."""

    as_logged: float | None
    """In order of time, sessions interleaved; None where that order is not known any more."""
    sharded: float | None
    """Dealt to files by session (O1)."""
    clustered: float
    """Samples of a session next to one another (O2)."""


class StorageScales:
    """Reads columns of a sample, and weighs each in every order, one at a time.

    Args:
        split: of a prepared store.
        chosen: samples of it.
        num_files: files that sessions would be dealt to.
    """

    def __init__(self, split: LogSplit, chosen: SessionSample, num_files: int) -> None:
        self._split = split
        self._orders: dict[str, npt.NDArray[np.int64]] = {"clustered": chosen.rows}
        if chosen.as_logged is not None:
            self._orders["as_logged"] = chosen.as_logged
            sharded = chosen.sharded(num_files)
            if sharded is not None and num_files > 1:
                self._orders["sharded"] = sharded
        self._bytes = dict.fromkeys(self._orders, 0)

    def add(self, columns: list[str], *, of_feature: bool = False) -> Any:
        """Weigh columns.

        Args:
            columns: names.
            of_feature: whether they are the ids of a feature, and their weights where it has any: of those a clustered
                store leaves out what repeats.

        Returns:
            ``pyarrow.Table`` of them in clustered order.

        Raises:
            StoreError: a file cannot be read.
        """
        repeats = [(columns[0], "".join(columns[1:]))] if of_feature else []
        for name, rows in reversed(self._orders.items()):
            table = read_rows(self._split, columns, rows)
            clustered = name == "clustered"
            self._bytes[name] += stored_bytes(
                table, clustered=clustered, repeats=repeats if clustered else ()
            )
        return table

    def sizes(self) -> StorageSizes:
        """Bytes of what was weighed, for each sample."""
        each = {name: self._bytes[name] / len(rows) for name, rows in self._orders.items()}
        as_logged = each.get("as_logged")
        return StorageSizes(
            as_logged=as_logged, sharded=each.get("sharded", as_logged), clustered=each["clustered"]
        )


def stored_bytes(columns: Any, *, clustered: bool, repeats: Sequence[tuple[str, str]] = ()) -> int:
    """Write samples as a prepared store does, and see how large the files are.

    Args:
        columns: ``pyarrow.Table``: some columns of a prepared log, in the order of samples.
        clustered: whether the samples of a session are neighbours: they are compressed otherwise then.
        repeats: see `windrow.recsys.log.store.SplitWriter`.

    Returns:
        Bytes of all files, footers included.
    """
    with TemporaryDirectory(prefix="windrow-sizes-") as folder:
        with SplitWriter(Path(folder), "sample", clustered=clustered, repeats=repeats) as writer:
            for batch in columns.to_batches(max_chunksize=ROW_GROUP_ROWS):
                writer.write(batch)
        return sum(path.stat().st_size for path in Path(folder).rglob("*.parquet"))
