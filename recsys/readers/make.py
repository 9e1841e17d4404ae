"""The reader of each format."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from windrow.comm.errors import RecipeError
from windrow.recsys.log_options import LogFormat
from windrow.recsys.readers.criteo import CriteoLog
from windrow.recsys.readers.csv_log import CSVLog
from windrow.recsys.readers.libfm import LibfmLog
from windrow.recsys.readers.parquet_log import ParquetLog
from windrow.recsys.readers.raw_block import LogReader, TextType

__all__ = ["make_reader"]


def make_reader(log_format: LogFormat, files: Sequence[Path], columns: Mapping[str, TextType]) -> LogReader:
    """Open a log of samples.

    Args:
        log_format: of all files.
        files: that exist.
        columns: to read, and what fields of text are read as.

    Raises:
        RecipeError: the format holds no samples with labels.
    """
    if log_format == "csv":
        return CSVLog(files, columns)
    if log_format == "criteo":
        return CriteoLog(files, tuple(columns))
    if log_format == "libfm":
        return LibfmLog(files, tuple(columns))
    if log_format == "parquet":
        return ParquetLog(files, tuple(columns))
    raise RecipeError(
        f'format = "{log_format}" has no labelled samples: expected parquet, csv, criteo or libfm'
    )
