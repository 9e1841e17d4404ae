"""Write a generated log as Parquet, in bounded memory at any size, and the recipe that fits it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from windrow.comm.errors import DataError, StoreError
from windrow.partition.atomic_writes import open_atomically
from windrow.recsys.batches.deduplication.options import WORTHWHILE_FACTOR, dedupe_factor
from windrow.recsys.batches.prefetch import prefetch
from windrow.recsys.log.synthetic.options import SampleOrder, SessionLogOptions
from windrow.recsys.log.synthetic.sessions import draw_samples, log_schema, sample_blocks

__all__ = ["generate_log", "recipe_groups", "session_log_recipe"]

ROW_GROUP_BYTES = 1 << 26
"""Of a row group before encoding: half of what engines for large logs usually have (128 MiB), since up to three are
held at a time here."""


def generate_log(
    path: Path,
    options: SessionLogOptions,
    *,
    samples: int,
    order: SampleOrder = "time",
    threads: int = 2,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write a log of sessions 0, 1, ... as one Parquet file; it appears whole or not at all.

    Columns: `label` int8, `session` int64, `time` int64 (microseconds since 1970), dense ones float32, one-id features
    int64, lists of int64. Compression is zstd; dictionaries for features with one id only, since they keep zstd from
    seeing lists that repeat.

    Args:
        path: file to write, or to replace.
        options: of the log.
        samples: that it has; the last session loses its last ones.
        order: of the samples.
        threads: that work out values.
        progress: told how many samples were written since the last time.

    Raises:
        DataError: there are no samples to write.
        StoreError: the file cannot be written.
    """
    from pyarrow import parquet

    if samples < 1:
        raise DataError(f"a log of {samples} samples: ask for at least 1")
    rows = _rows_per_group(options)
    single = ["label", *(f.name for group in options.groups if group.mean_length is None for f in group.features)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            open_atomically(path) as file,
            parquet.ParquetWriter(file, log_schema(options), compression="zstd", use_dictionary=single) as writer,
            ThreadPoolExecutor(max(1, threads)) as groups,
        ):
            blocks = sample_blocks(options, samples, order=order, block_rows=rows)
            for batch in prefetch((draw_samples(options, block, groups.map) for block in blocks), depth=1):
                writer.write_batch(batch, row_group_size=rows)
                if progress is not None:
                    progress(batch.num_rows)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error}. Choose another file.") from error


def _rows_per_group(options: SessionLogOptions) -> int:
    """Samples of a row group of `ROW_GROUP_BYTES`, a multiple of 1,024 and at most a million."""
    # Label, session and time, ids, dense values.
    sample_bytes = 1 + 8 + 8 + 8 * options.ids_per_sample() + 4 * len(options.dense)
    return min(max(int(ROW_GROUP_BYTES / sample_bytes) // 1024, 1), 1024) * 1024


def recipe_groups(options: SessionLogOptions) -> list[list[str]]:
    """The recipe's ``deduplication.groups``: those whose samples repeat often enough."""
    return [
        [feature.name for feature in group.features]
        for group in options.groups
        if group.features and dedupe_factor(options.samples_per_session, group.unchanged) > WORTHWHILE_FACTOR
    ]


def session_log_recipe(options: SessionLogOptions, *, log: str, store: str) -> dict[str, Any]:
    """A whole recipe, nested as in the file: of the log at `log` and the folder `store` for the prepared one."""
    return {
        "store": store,
        "log": {
            "paths": [log],
            "format": "parquet",
            "dense": list(options.dense),
            "time": "time",
            "session": "session",
            # Ids are rows of tables already.
            "features": {
                feature.name: {"ids": "rows", "rows": feature.rows}
                | ({} if group.mean_length is None else {"multi_hot": True})
                for group in options.groups
                for feature in group.features
            },
        },
        # Whole sessions: a sample of a session tells much of the others.
        "split": {"by": "hash", "column": "session", "fractions": [0.8, 0.1, 0.1]},
        "deduplication": {"groups": recipe_groups(options), "cluster": True},
        "tables": {"dim": 16},
        "training": {"batch_size": 4096, "shuffle": "sessions"},
    }
