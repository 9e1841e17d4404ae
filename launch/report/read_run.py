"""Read a run folder whole: what the panels are drawn from.

What each rank did in each epoch (ranks.jsonl) is checked, and summed up as panels need it.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from windrow.comm.errors import StoreError
from windrow.launch.settings import read_toml
from windrow.training.epoch_cost import RankCost, communication_share
from windrow.training.journal import EpochRecord, best_record, read_rank_records, read_records
from windrow.training.run_folder import open_run_folder

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "RankEpochs",
    "ReportedRun",
    "mean_traffic",
    "read_run",
    "read_runs",
    "section",
    "traffic_stages",
    "waiting_share",
]

RankEpochs = Mapping[int, Sequence[RankCost]]
"""Epoch -> what each rank did in it, by rank."""


def waiting_share(ranks: Sequence[RankCost]) -> float | None:
    """Share of the time of training spent waiting in collectives; None where unrecorded, or no time passed."""
    return communication_share(ranks) if any(rank.waiting_seconds for rank in ranks) else None


def traffic_stages(epochs: RankEpochs) -> list[str]:
    """Stages in which bytes went from rank to rank, those with the most bytes first."""
    totals = Counter[str]()
    for ranks in epochs.values():
        for rank in ranks:
            totals.update({stage: sum(row) for stage, row in rank.bytes_sent.items()})
    return [stage for stage, num_bytes in totals.most_common() if num_bytes]


def mean_traffic(epochs: RankEpochs, stages: Iterable[str]) -> list[list[float]]:
    """Bytes from rank to rank in an epoch, [from, to], of these stages together, on average over the epochs.

    Epochs with another number of ranks than the last one are skipped.
    """
    size = len(list(epochs.values())[-1])
    wanted, nothing = list(stages), [0] * size
    matrices = [
        [[rank.bytes_sent.get(stage, nothing) for stage in wanted] for rank in ranks]
        for ranks in epochs.values()
        if len(ranks) == size
    ]
    sent = np.asarray(matrices, np.float64).reshape(len(matrices), size, len(wanted), size)
    means: list[list[float]] = sent.sum(axis=2).mean(axis=0).tolist()
    return means


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
    def costs(self) -> list[RankCost]:
        """What all ranks did in all epochs."""
        return [rank for ranks in self.rank_epochs.values() for rank in ranks]

    def frame(self, columns: Callable[[RankCost], Mapping[str, float]]) -> "pd.DataFrame":
        """A row for each rank of each epoch, under (epoch, rank); what one of them lacks is 0."""
        import pandas as pd

        places = [(epoch, rank) for epoch, ranks in self.rank_epochs.items() for rank in range(len(ranks))]
        index = pd.MultiIndex.from_tuples(places, names=("epoch", "rank"))
        return pd.DataFrame([dict(columns(cost)) for cost in self.costs], index=index).fillna(0)

    def host(self, rank: int) -> str:
        """Name of the machine of a rank of the last epoch."""
        return list(self.rank_epochs.values())[-1][rank].host

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
        starts = _read_json(folder.environment_file, list, "a list of starts")
        return ReportedRun(
            name=name,
            path=path,
            recipe=read_toml(folder.recipe_file),
            starts=[start for start in starts or () if isinstance(start, dict)],
            records=records,
            rank_epochs={
                one.epoch: one.ranks
                for one in read_rank_records(folder.ranks_file)
                if one.ranks and one.epoch in finished
            },
            placement=_read_json(folder.placement_file, dict, "an object"),
            finished=folder.summary_file.is_file(),
        )
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: cannot be read: {error}. Give the folder of a run of yours.") from error


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
        raise StoreError(f"{path}: expected {expected}, got {values!r:.60}. Remove the file to go without it.")
    return values
