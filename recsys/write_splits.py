"""The samples of a store: rows of the staged log, mapped and dealt to train, validation and test in their order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.recsys.mapping import SampleMapper
from windrow.recsys.prefetch import prefetch
from windrow.recsys.sample_order import Cuts
from windrow.recsys.splits import SPLITS, LogSplitOptions, split_by_time
from windrow.recsys.store import ROW_GROUP_ROWS
from windrow.recsys.store_manifest import SplitEntry
from windrow.recsys.store_writer import SplitWriter

__all__ = ["check_splits", "write_splits"]


def write_splits(
    folder: Path,
    staged: Path,
    mapper: SampleMapper,
    cuts: Cuts,
    rows: int,
    report: Callable[[str, float], None],
    *,
    shard_rows: Mapping[int, Sequence[int]],
    clustered: bool,
    repeats: Sequence[tuple[str, str]],
) -> dict[str, SplitEntry]:
    """Map all rows of a staged log and write the splits.

    Args:
        folder: of the store.
        staged: the staged file.
        mapper: from values to ids.
        cuts: times at which validation and test begin; None where rows say their split.
        rows: of the staged file.
        report: told how far it is.
        shard_rows: for each split the samples of its files; empty where files are cut anywhere.
        clustered: whether the samples of a session are neighbours.
        repeats: see `windrow.recsys.store_writer.SplitWriter`.

    Returns:
        The entry of each split that has samples.
    """
    import contextlib

    done = 0
    with contextlib.ExitStack() as stack:
        writers = {
            name: stack.enter_context(
                SplitWriter(
                    folder, name, shard_rows=shard_rows.get(code, ()), clustered=clustered, repeats=repeats
                )
            )
            for code, name in enumerate(SPLITS)
        }
        for batch in prefetch(_batches(staged)):
            codes = _codes(batch, cuts)
            for code, name in enumerate(SPLITS):
                chosen = codes == code
                if chosen.any():
                    writers[name].write(mapper.map(_rows(batch, chosen), name))
            done += batch.num_rows
            report("mapping", done / rows)
    report("checksums", 0.0)
    entries: dict[str, SplitEntry] = {}
    for name, writer in writers.items():
        files = writer.files()
        if files:
            entries[name] = SplitEntry(
                rows=sum(file.rows for file in files), positives=mapper.counts.positives[name], files=files
            )
    return entries


def check_splits(entries: Mapping[str, SplitEntry], split: LogSplitOptions) -> None:
    """Refuse a log of which a split that was asked for has no samples.

    Args:
        entries: from `write_splits`.
        split: what was asked for.

    Raises:
        DataError: names the split and the cure.
    """
    for name in split.expected_splits():
        if name not in entries:
            sizes = ", ".join(f"{other} {entry.rows}" for other, entry in entries.items())
            together = ", where samples of one instant stay together" if split.by == "time" else ""
            raise DataError(
                f"the {name} split has no samples ({sizes}): give it a larger share in [split], other instants, or "
                f"more of a log{together}"
            )


def _batches(staged: Path) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(staged) as file:
        yield from file.iter_batches(ROW_GROUP_ROWS)


def _codes(batch: Any, cuts: Cuts) -> npt.NDArray[np.int8]:
    if cuts is None:
        codes: npt.NDArray[np.int8] = batch.column("split").to_numpy()
        return codes
    return split_by_time(batch.column("time").to_numpy(), cuts)


def _rows(batch: Any, chosen: npt.NDArray[np.bool_]) -> Any:
    import pyarrow as pa

    return batch if chosen.all() else batch.filter(pa.array(chosen))
