"""A run's checkpoints: which are kept, which one is used, and whether it fits the run that asks for it.

    checkpoints/epoch-00004-step-000000.ckpt      one of the last K
    checkpoints/epoch-00005-step-000000.ckpt      the latest
    checkpoints/epoch-00002-step-000000.ckpt      kept because it is the best so far

Where a model has embedding tables, a checkpoint has a folder beside it, with a file from each rank that holds some:

    checkpoints/epoch-00005-step-000000.tables/rank-00000.safetensors

The .ckpt names those files with their checksums. It is written last and deleted first, so that a folder without one
is a leftover. Nothing here communicates: rank 0 saves, every rank may load.
"""

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windrow.comm.errors import StoreError
from windrow.launch.checkpoint_file import (
    CheckpointHeader,
    read_checkpoint,
    read_header,
    write_checkpoint,
)
from windrow.partition.atomic_file import PARTIAL_PATTERN

__all__ = [
    "Checkpoint",
    "begin_checkpoint",
    "check_fits",
    "check_world_size",
    "load_best",
    "load_latest",
    "save_checkpoint",
    "tables_folder",
]

NAME = "epoch-{:05}-step-{:06}.ckpt"
PATTERN = "epoch-*-step-*.ckpt"
TABLES_PATTERN = "epoch-*-step-*.tables"
MOST_DIFFERENCES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint that was read and found intact."""

    path: Path
    """Its file."""
    header: CheckpointHeader
    """What it belongs to."""
    state: dict[str, Any]
    """What was saved, tensors on the CPU."""
    damaged: tuple[str, ...] = ()
    """Messages about newer checkpoints that were passed over; tell the user."""


def tables_folder(checkpoint: Path) -> Path:
    """Where the table shards of a checkpoint file are."""
    return checkpoint.with_suffix(".tables")


def begin_checkpoint(folder: Path, position: tuple[int, int], *, with_tables: bool) -> Path:
    """Make room for a checkpoint: what an interrupted save left behind is cleared.

    Args:
        folder: made if it is not there.
        position: (epoch, step).
        with_tables: make the folder for table shards, empty. A checkpoint of the same position is deleted first.

    Returns:
        The file that `save_checkpoint` will write.

    Raises:
        StoreError: a folder cannot be made.
    """
    path = folder / NAME.format(*position)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if with_tables:
            _delete(path)
        for tables in folder.glob(TABLES_PATTERN):
            if not tables.with_suffix(".ckpt").exists():
                shutil.rmtree(tables)
        if with_tables:
            tables_folder(path).mkdir()
    except OSError as error:
        raise StoreError(f"cannot make {folder}: {error.strerror}. Choose another run folder.") from error
    return path


def save_checkpoint(folder: Path, header: CheckpointHeader, state: Mapping[str, Any], *, keep: int) -> Path:
    """Write a checkpoint, then delete those that are no longer needed, later ones among them.

    A later one was passed over as damaged when the run was resumed; left there, it would push out those that are
    intact.

    Args:
        folder: as in `begin_checkpoint`, which was called before; the table shards that the header names are there.
        header: position and belonging; the position makes the name.
        state: tensors and plain values.
        keep: how many of the latest to keep, at least 1; the best is kept beside them.

    Returns:
        The file written.

    Raises:
        StoreError: the disk is full or not writable; all earlier checkpoints are still there.
    """
    path = folder / NAME.format(*header.position)
    write_checkpoint(path, header, state)
    for later in _newest_first(folder):
        if _position(later) > _position(path):
            _delete(later)
    _delete_unneeded(folder, keep)
    return path


def load_latest(folder: Path, *, damaged_tables: Mapping[Path, str] | None = None) -> Checkpoint:
    """Read the latest checkpoint that is intact.

    Args:
        folder: of the checkpoints.
        damaged_tables: checkpoints whose table shards were found damaged, with what to tell the user: passed over.

    Raises:
        StoreError: there is none; the message says what is wrong with each.
    """
    damaged: list[str] = []
    for path in _newest_first(folder):
        if damaged_tables and path in damaged_tables:
            damaged.append(damaged_tables[path])
            continue
        try:
            header, state = read_checkpoint(path)
        except StoreError as error:
            damaged.append(str(error))
            continue
        return Checkpoint(path=path, header=header, state=state, damaged=tuple(damaged))
    reasons = "".join(f"\n  {message}" for message in damaged)
    raise StoreError(f"no intact checkpoint in {folder}: start again without --resume.{reasons}")


def load_best(folder: Path) -> Checkpoint:
    """Read the checkpoint with the best validation metric.

    Raises:
        StoreError: none is marked as the best, or it is damaged.
    """
    path = _best(folder)
    if path is None:
        raise StoreError(
            f"no checkpoint in {folder} is marked as the best: was the run ever evaluated? If not, take the last one "
            "(--checkpoint latest)."
        )
    header, state = read_checkpoint(path)
    return Checkpoint(path=path, header=header, state=state)


def check_fits(
    header: CheckpointHeader, *, recipe: Mapping[str, Any], data_fingerprint: str, data: str
) -> None:
    """Refuse to go on with another recipe or other data.

    Args:
        header: of the checkpoint.
        recipe: the settings, of the run that resumes, that its weights depend on.
        data_fingerprint: of that run's graph or log.
        data: which of both, for messages.

    Raises:
        StoreError: names the first keys that differ, with both values, or says that the data do.
    """
    differing = [
        f"{key} was {_shown(old)} and is {_shown(new)}"
        for key, old, new in _differences(header.recipe, recipe)
    ]
    if differing:
        more = f" (and {len(differing) - MOST_DIFFERENCES} more)" if len(differing) > MOST_DIFFERENCES else ""
        raise StoreError(
            f"the checkpoint belongs to another recipe: {'; '.join(differing[:MOST_DIFFERENCES])}{more}. "
            "Resume with the recipe that the run began with (recipe.toml in its folder), or start a new run."
        )
    if header.data_fingerprint != data_fingerprint:
        raise StoreError(
            f"the checkpoint belongs to another {data}: its fingerprint was {header.data_fingerprint[:12]} and is "
            f"{data_fingerprint[:12]}. Resume with the store that the run began with, or start a new run."
        )


def check_world_size(header: CheckpointHeader, size: int, *, order: str) -> None:
    """Refuse to go on with another number of ranks where minibatches depend on it.

    Args:
        header: of the checkpoint.
        size: ranks of the run that resumes.
        order: the recipe's sampler.order.

    Raises:
        StoreError: the order is "local" and the sizes differ.
    """
    if order == "local" and header.world_size != size:
        raise StoreError(
            f'the checkpoint was written by {header.world_size} ranks, and with sampler.order = "local" minibatches '
            f"would be others on {size}: resume on {header.world_size} ranks, or start a new run."
        )


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob(PATTERN), key=_position, reverse=True)


def _position(path: Path) -> list[int]:
    """(epoch, step) of a checkpoint, from its name: as numbers, since they may outgrow the digits of a name."""
    return [int(digits) for digits in re.findall(r"\d+", path.name)]


def _best(folder: Path) -> Path | None:
    for path in _newest_first(folder):
        try:
            if read_header(path).best:
                return path
        except StoreError:
            continue
    return None


def _delete(path: Path) -> None:
    """Delete a checkpoint; killed in between, it leaves a folder that the next one clears."""
    path.unlink(missing_ok=True)
    if tables_folder(path).exists():
        shutil.rmtree(tables_folder(path))


def _delete_unneeded(folder: Path, keep: int) -> None:
    best = _best(folder)
    for path in _newest_first(folder)[keep:]:
        if path != best:
            _delete(path)
    for path in folder.glob(PARTIAL_PATTERN):
        path.unlink(missing_ok=True)


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, object, object]]:
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _differences(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}", before, after


def _shown(value: object) -> str:
    return "absent" if value is None else repr(value)
