"""What `cluster_log` is asked to do."""

from dataclasses import dataclass
from pathlib import Path

from windrow.comm.errors import RecipeError

__all__ = ["LEAST_MEMORY_BYTES", "MOST_FILES", "ClusterOptions"]

LEAST_MEMORY_BYTES = 256 << 20
"""Below this, DuckDB cannot sort, and pieces become too small to read and write well."""
MOST_FILES = 100_000
"""Their names have five digits, and sort as their numbers do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterOptions:
    """A log to cluster, and how."""

    inputs: tuple[Path, ...]
    """Parquet files, patterns with * and ?, or folders, of which every *.parquet below counts."""
    output: Path
    """Folder to write; appears whole or not at all."""
    by: str
    """Column of sessions: whole numbers, text or bytes. Each row without one is a session of its own."""
    time: str = ""
    """Column that orders the rows of a session: numbers, dates or times; rows without one come last. Needed unless
    `sort` is off."""
    sort: bool = True
    """O2: rows of a session stand together, in order of time. Off: rows of a file stay in the order of the log (O1)."""
    files: int | None = None
    """Files to deal sessions to; "none" for one to each 256 MiB of the log."""
    row_group_rows: int | None = None
    """The most rows of a row group; "none" for as many as take 32 MiB in memory, up to 65,536."""
    memory_bytes: int = 2 << 30
    """What may be held in memory at a time, beside the program itself; the rest goes to the disk."""
    overwrite: bool = False
    """Whether a clustered log that is already there is replaced."""

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            RecipeError: an option is missing or out of range.
        """
        if not self.inputs:
            raise RecipeError("no log is named: give files, patterns or folders")
        if not self.by:
            raise RecipeError("the column of sessions is not named: give --by")
        if self.sort and not self.time:
            raise RecipeError(
                "rows of a session are put in order of time: name its column with --time, or turn this off with "
                "--no-sort"
            )
        if self.time and not self.sort:
            raise RecipeError(
                f"--time {self.time} orders the rows of a session, and --no-sort leaves rows in the order of the log: "
                "give one of them"
            )
        for option, value in (("files", self.files), ("row_group_rows", self.row_group_rows)):
            if value is not None and value < 1:
                raise RecipeError(f"{option} = {value}: expected at least 1")
        if self.files is not None and self.files > MOST_FILES:
            raise RecipeError(f"files = {self.files}: expected at most {MOST_FILES}")
        if self.memory_bytes < LEAST_MEMORY_BYTES:
            raise RecipeError(
                f"memory_bytes = {self.memory_bytes}: expected at least {LEAST_MEMORY_BYTES} (256 MiB)"
            )
