"""The ranks that prepare a log together, each with some of its files; a single process is one rank.

    files      A    B    C    D
    rank 0     A, B  staged  --+                     +-> rows of early times, or some sessions -> files of each split
    rank 1     C, D  staged  --+- dealt, if sorted --+-> rows of later times, or other sessions -> files of each split
                     counts of values -> vocabularies, each merged by one rank

What ranks tell one another goes by messages; rows and counts go through a working folder that all of them see. The
samples, their order, vocabularies and figures are those of one process, dense values that are made standard up to
rounding; only where files end differs.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.recsys.log.options import LogSplitOptions, split_by_hash
from windrow.recsys.log.staging import Staged, StagedLog, write_anew
from windrow.recsys.log.store import FILE_ROWS

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = ["Ranks"]

STAGE = "preparing the log"
SHARD_ROWS = 1 << 18
"""Samples to a shard: four row groups. The fewer, the nearer are the samples of a session within it; the more, the
larger are files."""

Value = TypeVar("Value")


ROUNDING = 1e-12
"""Of a mean in double precision, more than it is off by."""


class Ranks:
    """See the module. Methods are collective, unless they say otherwise.

    Args:
        world: whose ranks they are; None: this process alone.
        report: told, on rank 0, the name of a stage and the share of it that is done; None for nobody.

    Attributes:
        report: the same; tells nobody on other ranks.
        rank: of this process.
        size: how many there are.
        threads: that DuckDB may take on this one, an equal share of the machine's; None: all.
    """

    def __init__(self, world: "World | None", report: Callable[[str, float], None] | None) -> None:
        self._world = world
        self.rank, self.size = (0, 1) if world is None else (world.rank, world.size)
        self.report = report if report is not None and self.rank == 0 else lambda *_: None
        self.threads: int | None = None
        if world is not None and world.size > 1:
            from windrow.comm.hosts import cores_of_rank

            self.threads = cores_of_rank(world)

    def everyone(self, value: Value) -> list[Value]:
        """What each rank has for all, in rank order."""
        return [value] if self._world is None else self._world.all_gather_object(value, stage=STAGE)

    def meet(self) -> None:
        """Return once every rank has come here."""
        if self._world is not None:
            self._world.barrier(stage=STAGE)

    def own_files(self, groups: Sequence[Sequence[Path]]) -> list[list[Path]]:
        """This rank's files of each group: consecutive ones, ranks with about as many bytes. Not collective."""
        sizes = [[file.stat().st_size for file in files] for files in groups]
        total, before = sum(map(sum, sizes)), 0
        mine: list[list[Path]] = [[] for _ in groups]
        for files, of_files, own in zip(groups, sizes, mine, strict=True):
            for file, size in zip(files, of_files, strict=True):
                # Where the middle of the file is among all bytes.
                if (2 * before + size) * self.size // (2 * total) == self.rank:
                    own.append(file)
                before += size
        return mine

    def settle(self, path: Path, staged: Staged, split: LogSplitOptions, files: Sequence[Path]) -> tuple[int, bool]:
        """Bring the staged files of all ranks to one schema, and deal rows to splits by their number among all.

        `path` is this rank's, `files` are those of the log.

        Returns:
            How many rows there are on all ranks, and whether all are in order of time.

        Raises:
            DataError: a column holds other things on one rank than on another, or there are no rows.
        """
        from pyarrow import parquet

        schema = parquet.read_schema(path) if staged.rows else None
        told = self.everyone((staged, schema))
        present = [(some, of_some) for some, of_some in told if some.rows]
        if not present:
            raise DataError(f"{', '.join(map(str, files))}: there are no samples in the log")
        wanted = _common_schema(present)
        for name in present[0][0].kinds:
            kinds = {some.kinds[name] for some, _ in present}
            if len(kinds) > 1:
                raise DataError(f"column of {name!r} holds {' and '.join(sorted(kinds))}: give all files one of both")
        first = sum(some.rows for some, _ in told[: self.rank])
        if split.by == "hash" and not split.column and first > 0:
            write_anew([path] if staged.rows else [], path, wanted, _numbered(split, first))
        elif schema != wanted:
            write_anew([path] if staged.rows else [], path, wanted)
        spans = [some.times for some, _ in present]
        follow = all(one[1] <= other[0] for one, other in pairwise(spans))
        return sum(some.rows for some, _ in told), follow and all(some.in_order for some, _ in present)

    def times_of_rows(self, staged: StagedLog, rows: Sequence[int], *, in_order: bool) -> list[int]:
        """The times of the rows at some positions in the order of time, over all ranks."""
        if self.size == 1:
            return [staged.time_of_row(row, in_order=in_order) for row in rows]
        times = staged.sorted_times()
        spans = [span for span in self.everyone((int(times[0]), int(times[-1])) if len(times) else None) if span]
        least, most = min(first for first, _ in spans), max(last for _, last in spans)
        found = []
        for row in rows:
            low, high = least, most
            while low < high:
                middle = (low + high) // 2
                up_to = sum(self.everyone(int(np.searchsorted(times, middle, side="right"))))
                low, high = (low, middle) if up_to > row else (middle + 1, high)
            found.append(low)
        return found

    def deal_by_time(self, staged: StagedLog, rows: int, work: Path) -> None:
        """Give each rank the rows of a range of times, in the order of the log; `rows` are those of all."""
        if self.size > 1:
            bounds = [rows * rank // self.size for rank in range(1, self.size)]
            self.deal(staged, staged.ranges_of_times(self.times_of_rows(staged, bounds, in_order=False)), work)

    def deal(self, staged: StagedLog, destinations: npt.NDArray[np.integer], work: Path) -> None:
        """Give each rank the rows that all have for it, those of rank 0 first; `work` is a folder that all see."""
        folder = work / "dealt"
        folder.mkdir(exist_ok=True)
        staged.write_dealt(destinations, [folder / f"{self.rank}-{other}.parquet" for other in range(self.size)])
        self.meet()
        staged.read_dealt([folder / f"{other}-{self.rank}.parquet" for other in range(self.size)])

    def sums(self, counts: Mapping[int, int]) -> dict[int, int]:
        """Counts by key, added up over all ranks."""
        told = self.everyone(dict(counts))
        return {key: sum(some.get(key, 0) for some in told) for key in sorted({key for some in told for key in some})}

    def sort_by_session(
        self, staged: StagedLog, code: str, work: Path, *, shard: bool, cluster: bool, times: bool
    ) -> dict[int, tuple[int, ...]]:
        """Put all rows in the order of `StagedLog.sort_by_session`, each rank some: the rows of its shards by split.

        Args:
            staged: this rank's rows.
            code: that of a row's split, in SQL.
            work: a folder that all see.
            shard: whether sessions are dealt to shards of about `SHARD_ROWS` samples; else none are returned.
            cluster: whether they stand together.
            times: whether there are times that order rows.
        """
        self.report("sorting by session", 0.0)
        counts = self.sums(staged.rows_of_splits(code))
        shards = {split: -(-count // SHARD_ROWS) if shard else 1 for split, count in counts.items()}
        if self.size > 1:
            self.deal(staged, staged.ranges_of_sessions(code, shards, self.size, cluster=cluster), work)
        dealt = staged.sort_by_session(code, shards, cluster=cluster, times=times)
        return dealt if shard else {}

    def first_files(self, staged: StagedLog, code: str, shard_rows: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
        """The number of this rank's first file of each split, 0 if absent: how many the ranks before it write."""
        if self.size == 1:
            return {}
        rows = staged.rows_of_splits(code)
        files = {split: len(shard_rows[split]) if shard_rows else -(-rows[split] // FILE_ROWS) for split in rows}
        before = self.everyone(files)[: self.rank]
        return {split: sum(of_rank.get(split, 0) for of_rank in before) for split in files}

    def moments(self, found: Mapping[str, tuple[int, float, float]]) -> dict[str, tuple[float, float]]:
        """Mean and deviation of columns over all ranks, by each one's count, mean and variance.

        (0, 1) without values, and deviation 1 where all are equal. The sums are those of Chan, Golub and LeVeque
        (Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979).
        """
        told = self.everyone(dict(found))
        moments = {}
        for name in found:
            some = [of_rank[name] for of_rank in told if of_rank[name][0]]
            count, mean, variance = some[0] if some else (0, 0.0, 0.0)
            for more, of_more, deviates in some[1:]:
                total, apart = count + more, of_more - mean
                variance = (count * variance + more * deviates + apart**2 * count * more / total) / total
                count, mean = total, mean + apart * more / total
            deviation = float(np.sqrt(variance))
            # Means of equal numbers on several ranks differ by rounding.
            moments[name] = (mean, deviation if deviation > ROUNDING * abs(mean) else 1.0)
        return moments


def _common_schema(told: Sequence[tuple[Staged, Any]]) -> Any:
    """One with the types of all; a column without values on one rank takes that of others."""
    import pyarrow as pa

    fields = []
    for name in told[0][1].names:
        found = {schema.field(name).type for staged, schema in told if name in staged.known}
        kinds = sorted(map(str, found))
        if len(kinds) > 1:
            raise DataError(
                f"column of {name!r} holds {kinds[0]} in some files, but {kinds[1]} in others: give it one type in all"
            )
        fields.append(pa.field(name, found.pop() if found else told[0][1].field(name).type))
    return pa.schema(fields)


def _numbered(split: LogSplitOptions, first: int) -> Callable[[Any], Any]:
    """What deals rows of batches that follow one another to splits, by their numbers from `first` on."""
    import pyarrow as pa

    def deal(batch: Any) -> Any:
        nonlocal first
        numbers = np.arange(first, first + batch.num_rows)
        first += batch.num_rows
        codes = pa.array(split_by_hash(numbers, split.fractions, split.seed))
        return batch.set_column(batch.schema.get_field_index("split"), "split", codes)

    return deal
