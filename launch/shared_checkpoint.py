"""Checkpoints that all ranks write and read together: each its own shards of the tables, rank 0 the rest.

every rank    checkpoints/epoch-00005-step-000000.tables/rank-00000.safetensors      tables, optimiser state
all agree     names and checksums, or the error of the rank that failed
rank 0        checkpoints/epoch-00005-step-000000.ckpt                               from here on it counts

The weights of a graph's model can be loaded on their own, whatever number of ranks it was trained on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from windrow.comm.errors import StoreError
from windrow.comm.world import World
from windrow.launch.checkpoint import (
    Checkpoint,
    CheckpointHeader,
    begin_checkpoint,
    load_best,
    load_latest,
    save_checkpoint,
    tables_folder,
)
from windrow.launch.recipe import Recipe

if TYPE_CHECKING:
    from windrow.recsys.tables.table import TableBatch

__all__ = ["WhichCheckpoint", "load_together", "load_weights", "restore_tables", "save_together"]

STAGE = "checkpoint"


def save_together(
    world: World,
    folder: Path,
    header: CheckpointHeader,
    state: Mapping[str, Any],
    tables: "Sequence[TableBatch] | None",
    *,
    keep: int,
) -> None:
    """Write a checkpoint. Collective; killed at any moment, it leaves the earlier ones intact.

    Args:
        world: all its ranks come here after the same step.
        folder: of the checkpoints; must agree, on a file system that all ranks share where there are tables.
        header: position and belonging, without table files; must agree.
        state: tensors and plain values that all ranks have in common; rank 0's are written.
        tables: what this rank holds of the embedding tables; None, on all ranks, for a model without any.
        keep: how many of the latest to keep; the best is kept beside them.

    Raises:
        StoreError: a rank could not write; the same on every rank, naming those that failed.
    """
    path: Path | None = None
    if world.rank == 0:
        path = begin_checkpoint(folder, header.position, with_tables=tables is not None)
    if tables is not None:
        # Nobody writes before the folder is there.
        path = world.broadcast_object(path, root=0, stage=STAGE)
        header = replace(header, table_files=_write_shards(world, tables_folder(path), tables))
    if world.rank == 0:
        save_checkpoint(folder, header, state, keep=keep)


def load_together(world: World, folder: Path, check: Callable[[CheckpointHeader], None]) -> Checkpoint:
    """Find the latest checkpoint that is intact, table shards included. Collective.

    Each file is read and checked by one rank: the ranks share them out.

    Args:
        world: any number of ranks.
        folder: of the checkpoints; only rank 0 looks there where there are no tables.
        check: raises where a checkpoint does not fit; rank 0 calls it.

    Returns:
        The same on every rank; what it says about tables is read by `restore_tables`.

    Raises:
        StoreError: there is none, or it does not fit.
    """
    damaged: dict[Path, str] = {}
    while True:
        checkpoint: Checkpoint | None = None
        if world.rank == 0:
            checkpoint = load_latest(folder, damaged_tables=damaged)
            check(checkpoint.header)
        checkpoint = world.broadcast_object(checkpoint, root=0, stage=STAGE)
        found = _find_damage(world, checkpoint)
        if not found:
            return checkpoint
        damaged[checkpoint.path] = "; ".join(found)


def restore_tables(checkpoint: Checkpoint, tables: "Iterable[TableBatch]") -> None:
    """Fill this rank's pieces of the tables, under whatever plan they were written; nobody else has to be present.

    Args:
        checkpoint: from `load_together`.
        tables: what this rank holds; every value and every optimiser state is overwritten.

    Raises:
        StoreError: a table or its optimiser state is not all there.
    """
    from windrow.recsys.tables.shard_files import ShardReader

    with ShardReader(tables_folder(checkpoint.path), checkpoint.header.table_files) as reader:
        for batch in tables:
            batch.load_state(
                replace(
                    part, tensor=reader.read(part.piece.name, part.piece.rows, part.piece.columns, part.name)
                )
                for part in batch.state()
            )


def _write_shards(world: World, folder: Path, tables: "Sequence[TableBatch]") -> dict[str, str]:
    """Write this rank's file; the checksums of all ranks' files by name. Collective."""
    written: dict[str, str] = {}
    failure = ""
    own = [part for batch in tables for part in batch.state() if world.rank == 0 or not part.replicated]
    name = f"rank-{world.rank:05}.safetensors"
    if own:
        from windrow.recsys.tables.shard_files import write_shard_file

        try:
            written[name] = write_shard_file(folder / name, own)
        except (OSError, StoreError) as error:
            failure = str(error.strerror if isinstance(error, OSError) and error.strerror else error)
    everyone = world.all_gather_object((written, failure), stage=STAGE)
    failures = [f"rank {rank}: {message}" for rank, (_, message) in enumerate(everyone) if message]
    if failures:
        raise StoreError(
            f"cannot write table shards to {folder}: {'; '.join(failures)}. Earlier checkpoints are intact: make "
            "room, or the folder writable, then go on with --resume."
        )
    files = {name: checksum for files, _ in everyone for name, checksum in files.items()}
    if world.rank == 0:
        _check_all_there(folder, files)
    return files


def _check_all_there(folder: Path, files: Iterable[str]) -> None:
    absent = [name for name in files if not (folder / name).is_file()]
    if absent:
        raise StoreError(
            f"rank 0 does not see {', '.join(absent)} in {folder}, which other ranks have written: put the run folder "
            "on a file system that all machines share"
        )


def _find_damage(world: World, checkpoint: Checkpoint) -> list[str]:
    """What is wrong with the table shards of a checkpoint, from all ranks. Collective."""
    files = checkpoint.header.table_files
    if not files:
        return []
    from windrow.recsys.tables.shard_files import check_shard_files

    mine = {name: files[name] for name in sorted(files)[world.rank :: world.size]}
    message = ""
    try:
        check_shard_files(tables_folder(checkpoint.path), mine)
    except StoreError as error:
        message = str(error)
    return [one for one in world.all_gather_object(message, stage=STAGE) if one]


WhichCheckpoint = Literal["best", "latest"]
"""That of the best epoch on the validation split, or the last one that is intact."""


def load_weights(
    world: World,
    folder: Path,
    which: WhichCheckpoint,
    *,
    recipe: Recipe,
    fingerprint: str,
    say: Callable[[str], None],
) -> tuple[int, dict[str, Any]]:
    """Read the weights of a graph's model. Collective; only rank 0 looks into the folder.

    Args:
        world: any number of ranks.
        folder: of the checkpoints.
        which: must agree.
        recipe: describes the model; where its store is does not matter.
        fingerprint: of the graph in that store.
        say: told about checkpoints that are damaged, on rank 0.

    Returns:
        Epochs that the model had been trained for, and its state dict, tensors on the CPU.

    Raises:
        StoreError: there is no such checkpoint, it is damaged, or of another model or graph.
    """
    weights: tuple[int, dict[str, Any]] | None = None
    if world.rank == 0:
        found = load_best(folder) if which == "best" else load_latest(folder)
        for message in found.damaged:
            say(f"windrow: passed over a damaged checkpoint: {message}")
        _check_fits(found, recipe, fingerprint)
        # The optimiser's state, which is twice as large, stays here.
        weights = found.header.epoch, found.state["trainer"]["model"]
    return world.broadcast_object(weights, root=0, stage="checkpoint")


def _check_fits(checkpoint: Checkpoint, recipe: Recipe, fingerprint: str) -> None:
    header = checkpoint.header
    if header.recipe.get("model") != recipe.decisive_settings()["model"]:
        raise StoreError(
            f"{checkpoint.path} holds another model than the recipe describes: leave its section [model] as "
            "recipe.toml in the run folder has it"
        )
    if header.data_fingerprint != fingerprint:
        raise StoreError(
            f"{recipe.store} holds another graph than the run was trained on: its fingerprint is "
            f"{fingerprint[:12]}, and that of the run's graph {header.data_fingerprint[:12]}. Partition the run's "
            "graph again, or name its store by --set store=..."
        )
