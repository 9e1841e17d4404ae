"""Read a run folder whole: what the panels are drawn from, as pandas frames and as what training wrote."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from windrow.comm.errors import StoreError
from windrow.launch.settings import read_toml
from windrow.training.epoch_cost import RankCost
from windrow.training.journal import EpochRecord, best_record, read_rank_records, read_records
from windrow.training.run_folder import open_run_folder

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ReportedRun", "read_run", "read_runs"]


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
    rank_epochs: Mapping[int, Sequence[RankCost]]
    """Epoch -> what each rank did in it; empty for a run that did not record it."""
    placement: Mapping[str, Any] | None
    """Where data lives; None for a run that did not record it."""
    finished: bool
    """Whether the run came to its end."""
    profile: Mapping[str, Any] | None = None
    """What `windrow.launch.profiling.profile` gives; None where nobody has put it there."""

    @property
    def best(self) -> EpochRecord | None:
        """The epoch with the best validation metric; None where nothing was evaluated."""
        return best_record(self.records)

    @property
    def costs(self) -> list[RankCost]:
        """What all ranks did in all epochs."""
        return [rank for ranks in self.rank_epochs.values() for rank in ranks]

    @property
    def last_ranks(self) -> Sequence[RankCost]:
        """What each rank did in the last epoch; empty for a run that did not record it."""
        return list(self.rank_epochs.values())[-1] if self.rank_epochs else ()

    def epoch_frame(self) -> "pd.DataFrame":
        """A row for each epoch, fields of `EpochRecord` as columns; its mappings as ``stage_seconds.NAME``."""
        import pandas as pd

        return pd.json_normalize([asdict(record) for record in self.records]).assign(run=self.name)

    def rank_frame(self, columns: Callable[[RankCost], Mapping[str, float]]) -> "pd.DataFrame":
        """A row for each rank of each epoch, under (epoch, rank); what one of them lacks is 0."""
        import pandas as pd

        places = [(epoch, rank) for epoch, ranks in self.rank_epochs.items() for rank in range(len(ranks))]
        index = pd.MultiIndex.from_tuples(places, names=("epoch", "rank"))
        return pd.DataFrame([dict(columns(cost)) for cost in self.costs], index=index).fillna(0)

    def traffic(self) -> dict[str, NDArray[np.float64]]:
        """Stage -> bytes [from, to] of an epoch on average, those with the most first; only those with any.

        Epochs with another number of ranks than the last one are left out.
        """
        size = len(self.last_ranks)
        epochs = [ranks for ranks in self.rank_epochs.values() if len(ranks) == size]
        stages = dict.fromkeys(stage for ranks in epochs for rank in ranks for stage in rank.bytes_sent)
        nothing = [0] * size
        means = {
            stage: np.mean([[rank.bytes_sent.get(stage, nothing) for rank in ranks] for ranks in epochs], axis=0)
            for stage in stages
        }
        return {
            stage: means[stage] for stage in sorted(means, key=lambda stage: -means[stage].sum()) if means[stage].any()
        }


def read_runs(paths: Sequence[Path]) -> list[ReportedRun]:
    """Read several run folders and name them apart.

    Raises:
        StoreError: a folder is given twice, or as `read_run`.
    """
    resolved = [path.resolve() for path in paths]
    twice = next((path for path, same in zip(paths, resolved, strict=True) if resolved.count(same) > 1), None)
    if twice is not None:
        raise StoreError(f"{twice} is given twice: name each run once")
    return [read_run(path, name=_shortest_name(path, resolved)) for path in resolved]


def _shortest_name(path: Path, all_paths: Sequence[Path]) -> str:
    """The last parts of a path, as many as tell it from the others."""
    names = ["/".join(path.parts[-number:]) for number in range(1, len(path.parts) + 1)]
    return next(name for name in names if sum(str(other).endswith(f"/{name}") for other in all_paths) == 1)


def read_run(path: Path, *, name: str) -> ReportedRun:
    """Read a run folder, which the page calls by this name.

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
        # A run killed between two files may have written one line more about its ranks.
        finished = {record.epoch for record in records}
        starts = _read_json(folder.environment_file, list, "a list of starts") or []
        return ReportedRun(
            name=name,
            path=path,
            recipe=read_toml(folder.recipe_file),
            starts=[start for start in starts if isinstance(start, dict)],
            records=records,
            rank_epochs={
                one.epoch: one.ranks
                for one in read_rank_records(folder.ranks_file)
                if one.ranks and one.epoch in finished
            },
            placement=_read_json(folder.placement_file, dict, "an object"),
            finished=folder.summary_file.is_file(),
            profile=_read_json(folder.profile_file, dict, "an object"),
        )
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: cannot be read: {error}. Give the folder of a run of yours.") from error


def _read_json(path: Path, kind: type, expected: str) -> Any:
    """The contents of a file of JSON; None where there is none."""
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StoreError(f"{path}: not valid JSON: {error}. Remove the file to go without it.") from error
    if not isinstance(values, kind):
        raise StoreError(f"{path}: expected {expected}, got {values!r:.60}. Remove the file to go without it.")
    return values
