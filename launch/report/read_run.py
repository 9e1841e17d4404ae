"""A run folder, read whole: what the panels are drawn from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windrow.comm.errors import StoreError
from windrow.launch.epoch_record import EpochRecord, best_record
from windrow.launch.metrics_log import read_records
from windrow.launch.report.rank_epochs import RankEpochs, read_rank_epochs
from windrow.launch.run_folder import open_run_folder
from windrow.launch.toml_file import read_toml

__all__ = ["ReportedRun", "read_run", "read_runs", "section"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedRun:
    """Everything about a run that is told."""

    name: str
    """What tells it from the other runs of the page: its folder's name, with parents where that is not enough."""
    path: Path
    """Its folder."""
    recipe: Mapping[str, Any]
    """All settings, as nested dictionaries."""
    starts: Sequence[Mapping[str, Any]]
    """What it ran on, one entry per start; empty where that was not recorded."""
    records: Sequence[EpochRecord]
    """One per finished epoch, at least one."""
    rank_epochs: RankEpochs
    """Epoch -> what each rank did in it; empty for a run that did not record it."""
    placement: Mapping[str, Any] | None
    """Where data lives; None for a run that did not record it."""
    finished: bool
    """Whether the run came to its end."""

    @property
    def best(self) -> EpochRecord | None:
        """The epoch with the best validation metric; None where nothing was evaluated."""
        return best_record(self.records)

    @property
    def num_ranks(self) -> int | None:
        """How many ranks trained; None where nothing tells."""
        if self.rank_epochs:
            return len(list(self.rank_epochs.values())[-1])
        placement = self.placement or {}
        if isinstance(placement.get("ranks"), list):
            return len(placement["ranks"])
        ranks = placement.get("world_size", section(self.recipe, "partition").get("num_parts"))
        return ranks if isinstance(ranks, int) else None

    @property
    def hosts(self) -> list[str]:
        """Names of the machines of the last epoch, each once."""
        if not self.rank_epochs:
            return []
        return list(dict.fromkeys(rank.host for rank in list(self.rank_epochs.values())[-1]))


def section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A dictionary inside another one; empty where there is none, or something else."""
    inner = values.get(name)
    return inner if isinstance(inner, Mapping) else {}


def read_runs(paths: Sequence[Path]) -> list[ReportedRun]:
    """Read several run folders and name them apart.

    Args:
        paths: the folders.

    Raises:
        StoreError: a folder is given twice, or as `read_run`.
    """
    resolved = [path.resolve() for path in paths]
    twice = next((path for path, same in zip(paths, resolved, strict=True) if resolved.count(same) > 1), None)
    if twice is not None:
        raise StoreError(f"{twice} is given twice: name each run once")
    names = ["/".join(path.parts[-_parts_needed(path, resolved) :]) for path in resolved]
    return [read_run(path, name=name) for path, name in zip(paths, names, strict=True)]


def read_run(path: Path, *, name: str) -> ReportedRun:
    """Read a run folder.

    Args:
        path: the folder.
        name: what the page calls it.

    Raises:
        StoreError: there is no run in it, no epoch of it is finished yet, or a file cannot be understood.
        RecipeError: its recipe.toml is not TOML.
    """
    folder = open_run_folder(path)
    try:
        records = read_records(folder.metrics_file)
        if not records:
            raise StoreError(
                f"{path}: no epoch of this run is finished yet, so there is nothing to show. Wait for the first line "
                f"of {folder.metrics_file.name}, or give another run."
            )
        starts = _read_json(folder.environment_file, list, "a list of starts")
        return ReportedRun(
            name=name,
            path=path,
            recipe=read_toml(folder.recipe_file),
            starts=[start for start in starts or () if isinstance(start, dict)],
            records=records,
            rank_epochs=_known_epochs(read_rank_epochs(folder.ranks_file), records),
            placement=_read_json(folder.placement_file, dict, "an object"),
            finished=folder.summary_file.is_file(),
        )
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: cannot be read: {error}. Give the folder of a run of yours.") from error


def _known_epochs(epochs: RankEpochs, records: Sequence[EpochRecord]) -> RankEpochs:
    """Those of finished epochs, in order: a run killed between two files may have written one line more."""
    return {record.epoch: epochs[record.epoch] for record in records if record.epoch in epochs}


def _parts_needed(path: Path, all_paths: Sequence[Path]) -> int:
    """How many of the last parts of a path tell it from the others."""
    for number in range(1, len(path.parts)):
        if sum(other.parts[-number:] == path.parts[-number:] for other in all_paths) == 1:
            return number
    return len(path.parts)


def _read_json(path: Path, kind: type, expected: str) -> Any:
    """The contents of a file of JSON; None where there is none."""
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StoreError(f"{path}: not valid JSON: {error}. Remove the file to go without it.") from error
    if not isinstance(values, kind):
        raise StoreError(
            f"{path}: expected {expected}, got {values!r:.60}. Remove the file to go without it."
        )
    return values
