"""One folder per run: everything that a run leaves behind.

    runs/tolokers-1/
        recipe.toml          every setting of the run, defaults included
        environment.json     versions, hardware and commit, one entry for each start of the run
        placement.json       what each rank holds since the last start (windrow.training.task.Task)
        metrics.jsonl        one line per epoch (windrow.training.journal)
        ranks.jsonl          the same rank by rank: seconds, bytes to each other rank, rows, memory
        tensorboard/         the same for TensorBoard
        checkpoints/         (windrow.training.checkpoint)
        trackers.json        ids of this run in other programs (windrow.training.callbacks)
        trace.json           a timeline of the first epochs, where --trace asked for it (windrow.training.timeline)
        profile.json         where the time of a step goes, if windrow profile wrote it there (windrow.launch.profiling)
        predictions.parquet  what windrow predict wrote, where it was asked (windrow.launch.prediction)
        hidden.npy           the same with --hidden
        summary.json         the figures at the end
        plot.png             the curves

Nothing here communicates: rank 0 makes and fills the folder, the others only read.
"""

import itertools
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from windrow.comm.errors import StoreError
from windrow.partition.atomic_writes import write_atomically
from windrow.training.environment import describe

__all__ = ["RunFolder", "Start", "check_free", "create_run_folder", "next_run_folder", "open_run_folder", "write_json"]

Start: TypeAlias = Literal["new", "again", "resumed"]
"""How a run starts: in a folder of its own; in that of one that ended before its first checkpoint; or from one."""


class RunFolder:
    """The places inside a run folder; holds nothing open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe_file = path / "recipe.toml"
        self.environment_file = path / "environment.json"
        self.placement_file = path / "placement.json"
        self.metrics_file = path / "metrics.jsonl"
        self.ranks_file = path / "ranks.jsonl"
        self.tensorboard_folder = path / "tensorboard"
        self.trackers_file = path / "trackers.json"
        self.checkpoint_folder = path / "checkpoints"
        self.trace_file = path / "trace.json"
        self.profile_file = path / "profile.json"
        self.predictions_file = path / "predictions.parquet"
        self.hidden_file = path / "hidden.npy"
        self.summary_file = path / "summary.json"
        self.plot_file = path / "plot.png"

    def set_epochs(self, epochs: int) -> None:
        """Have the settings say that the run goes on for so many. Rank 0 alone calls it."""
        import tomli_w

        recipe = tomllib.loads(self.recipe_file.read_text(encoding="utf-8"))
        training = recipe.get("training", {})
        if training.get("epochs", epochs) != epochs:
            changed = recipe | {"training": training | {"epochs": epochs}}
            write_atomically(self.recipe_file, tomli_w.dumps(changed).encode())

    def next_start(self) -> Start:
        """How a run that is to go on here if it can starts."""
        if not self.recipe_file.is_file():
            return "new"
        is_resumed = self.summary_file.is_file() or any(self.checkpoint_folder.glob("*.ckpt"))
        return "resumed" if is_resumed else "again"

    def record_environment(self) -> None:
        """Add an entry for this start of the run to environment.json. Rank 0 alone calls it."""
        starts = json.loads(self.environment_file.read_text()) if self.environment_file.exists() else []
        write_json(self.environment_file, [*starts, describe()])


def next_run_folder(name: str, parent: Path = Path("runs")) -> Path:
    """The first of ``runs/<name>-1``, ``runs/<name>-2``, ... that does not exist."""
    return next(path for n in itertools.count(1) if not (path := parent / f"{name}-{n}").exists())


def check_free(path: Path) -> None:
    """Refuse a folder for a new run that holds something: StoreError."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        has_run = RunFolder(path).recipe_file.is_file()
        cure = f"Go on with its run (--resume {path}, or fit(resume=True)), name" if has_run else "Name"
        raise StoreError(f"{path} is already in use. {cure} another run folder, or remove it.")


def create_run_folder(path: Path, recipe: Mapping[str, Any], *, again: bool = False) -> RunFolder:
    """Make a folder for a new run with these settings, or take an empty one. Rank 0 alone calls it.

    Args:
        path: of the folder.
        recipe: its settings.
        again: take a folder in which a run was begun.

    Raises:
        StoreError: the folder is in use, or cannot be made.
    """
    if not again:
        check_free(path)
    import tomli_w

    folder = RunFolder(path)
    try:
        if again:
            for file in (folder.trackers_file, folder.trace_file):
                file.unlink(missing_ok=True)
        path.mkdir(parents=True, exist_ok=True)
        folder.recipe_file.write_text(tomli_w.dumps(recipe), encoding="utf-8")
        folder.record_environment()
    except OSError as error:
        raise StoreError(f"cannot make the run folder {path}: {error.strerror}. Choose another run folder.") from error
    return folder


def open_run_folder(path: Path) -> RunFolder:
    """Find the folder of an earlier run.

    Raises:
        StoreError: there is no run in it.
    """
    folder = RunFolder(path)
    if not folder.recipe_file.is_file():
        raise StoreError(f"{path} holds no run (there is no recipe.toml in it): give the folder of a run.")
    return folder


def write_json(file: Path, value: object) -> None:
    """Write one of a folder's files, whole or not at all: what JSON can hold. Rank 0 alone calls it."""
    write_atomically(file, (json.dumps(value, indent=2) + "\n").encode())
