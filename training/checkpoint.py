"""A run's checkpoints: file format, which are kept, whether one fits the run that asks, and how all ranks write one.

    checkpoints/epoch-00004-step-000000.ckpt      one of the last K
    checkpoints/epoch-00005-step-000000.ckpt      the latest
    checkpoints/epoch-00002-step-000000.ckpt      kept because it is the best so far

A file is written atomically, and refused when a single bit of it is wrong::

    windrow-checkpoint                   what it is
    {"format_version": 1, "epoch": 4, ... "sha256": "9f..."}     a header of one line, for any tool to read
    ...                                  torch.save of {"state": ...}, loaded with weights_only

Where a model has embedding tables, a checkpoint has a folder beside it, with a file from each rank that holds some:

    every rank    checkpoints/epoch-00005-step-000000.tables/rank-00000.safetensors      tables, optimiser state
    all agree     names and checksums, or the error of the rank that failed
    rank 0        checkpoints/epoch-00005-step-000000.ckpt                               from here on it counts

The .ckpt names those files with their checksums. It is written last and deleted first, so that a folder without one
is a leftover.
"""

import dataclasses
import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from windrow.comm.errors import StoreError
from windrow.comm.options import NonNegativeInt, PathOption, PositiveInt, checked_dataclass
from windrow.comm.world import World
from windrow.partition.atomic_writes import PARTIAL_PATTERN, write_atomically
from windrow.training.shard_files import (
    ROW_IDS,
    LocalTable,
    ShardReader,
    StateTensor,
    StoredTables,
    check_shard_files,
    write_shard_file,
)
from windrow.training.terminal import byte_size

__all__ = [
    "FORMAT_VERSION",
    "Checkpoint",
    "CheckpointHeader",
    "CheckpointOptions",
    "WhichCheckpoint",
    "begin_checkpoint",
    "best_checkpoint",
    "check_fits",
    "load_checkpoint",
    "load_together",
    "read_checkpoint",
    "read_header",
    "restore_tables",
    "save_checkpoint",
    "save_together",
    "tables_folder",
    "write_checkpoint",
]

FORMAT_VERSION = 2
MAGIC = b"windrow-checkpoint\n"
LONGEST_HEADER_BYTES = 1 << 22
OUTSIDE_HEADER_CLASS = frozenset({"format_version", "payload_bytes", "sha256"})


WhichCheckpoint = Literal["best", "latest"]
"""That of the best epoch on the validation split, or the last one that is intact."""


@checked_dataclass
class CheckpointOptions:
    """When checkpoints are saved, how many are kept, and which weights a run starts from."""

    checkpoint_every_epochs: PositiveInt = 1
    """Epochs between two checkpoints; the last epoch always has one, and so has the best."""
    checkpoint_every_steps: NonNegativeInt = 0
    """Steps between two checkpoints inside an epoch, for epochs of hours; 0: only at the ends of epochs."""
    keep_checkpoints: PositiveInt = 2
    """How many of the latest checkpoints are kept; the best one is kept besides."""
    init_from: PathOption | None = None
    """Folder of another run, whose best weights a new run starts from (the last ones, where it was never measured).
    Of a log that continues its vocabularies (log.vocabularies_from), tables start with its rows and their optimiser
    state; rows and tables that it lacks, with first values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointHeader:
    """What a checkpoint belongs to, readable without loading it."""

    recipe: Mapping[str, Any]
    """The settings that the weights depend on, as nested dictionaries."""
    data_fingerprint: str
    """Digest of the user's graph or log."""
    epoch: int
    """Epochs finished."""
    step: int
    """Steps finished of the epoch after those; 0 at the end of an epoch."""
    world_size: int
    """Ranks of the run that wrote it."""
    best: bool = False
    """Whether the validation metric was the best so far."""
    table_files: Mapping[str, str] = field(default_factory=dict)
    """Files with the ranks' shards of embedding tables, in the folder beside the checkpoint: SHA-256 by name."""

    @property
    def position(self) -> tuple[int, int]:
        """(epoch, step), where training goes on."""
        return self.epoch, self.step


def write_checkpoint(path: Path, header: CheckpointHeader, state: Mapping[str, Any]) -> None:
    """Write a checkpoint into a folder that exists, whole or not at all; one copy of the state is in memory.

    Raises:
        StoreError: the disk is full or the folder cannot be written; no file is changed.
    """
    buffer = io.BytesIO()
    torch.save({"state": dict(state)}, buffer)
    payload = buffer.getbuffer()
    described = {"format_version": FORMAT_VERSION, **dataclasses.asdict(header), "payload_bytes": payload.nbytes}
    described["sha256"] = _digest(described, payload)
    start = MAGIC + json.dumps(described).encode() + b"\n"
    try:
        write_atomically(path, start, payload)
    except OSError as error:
        raise StoreError(
            f"cannot write a checkpoint of {byte_size(payload.nbytes)} to {path.parent}: {error.strerror}. Earlier "
            "checkpoints are intact: make room, or the folder writable, then go on with --resume."
        ) from error


def read_header(path: Path) -> CheckpointHeader:
    """Read a checkpoint's header only; the state after it is not checked. Raises as `read_checkpoint`."""
    return _read(path, with_payload=False)[0]


def read_checkpoint(path: Path) -> tuple[CheckpointHeader, dict[str, Any]]:
    """Read a checkpoint, checking every byte of its state; its tensors are on the CPU.

    Raises:
        StoreError: there is no checkpoint, it is damaged, or of another version.
    """
    header, payload = _read(path, with_payload=True)
    state: dict[str, Any] = torch.load(io.BytesIO(payload), weights_only=True, map_location="cpu")["state"]
    return header, state


def _read(path: Path, *, with_payload: bool) -> tuple[CheckpointHeader, bytes]:
    try:
        with path.open("rb") as file:
            magic, line = file.readline(len(MAGIC)), file.readline(LONGEST_HEADER_BYTES)
            payload = file.read() if with_payload else b""
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}. Name another checkpoint.") from error
    try:
        described = json.loads(line) if magic == MAGIC else {}
        version = described["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, "its header is not readable") from error
    if version != FORMAT_VERSION:
        raise StoreError(
            f"{path}: has checkpoint format {version}, but this version of windrow reads format "
            f"{FORMAT_VERSION}. Use the version of windrow that wrote it (environment.json in the run folder names it)."
        )
    known = {field.name for field in dataclasses.fields(CheckpointHeader)}
    if set(described) != known | OUTSIDE_HEADER_CLASS:
        raise _damaged(path, f"its header lacks or adds {sorted(set(described) ^ (known | OUTSIDE_HEADER_CLASS))}")
    # The number of bytes is below the checksum too.
    digest = described.pop("sha256")
    if with_payload and _digest(described, payload) != digest:
        raise _damaged(path, "its checksum differs from the one it was written with")
    return CheckpointHeader(**{name: described[name] for name in known}), payload


def _digest(described: Mapping[str, Any], payload: bytes | memoryview) -> str:
    """SHA-256 of header (without the digest itself) and payload."""
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    digest.update(payload)
    return digest.hexdigest()


def _damaged(path: Path, reason: str) -> StoreError:
    return StoreError(f"{path}: this checkpoint is damaged: {reason}. Delete it, so that an older one is used.")


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
    """Messages about newer checkpoints that were skipped."""


def tables_folder(checkpoint: Path) -> Path:
    """Where the table shards of a checkpoint file are."""
    return checkpoint.with_suffix(".tables")


def begin_checkpoint(folder: Path, position: tuple[int, int], *, with_tables: bool) -> Path:
    """Clear what an interrupted save left behind; the file that `save_checkpoint` will write for this (epoch, step).

    With tables, an empty folder for their shards is made, and a checkpoint of the same position deleted first.

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
    """Write a checkpoint after `begin_checkpoint`, then delete those beyond the latest `keep` and the best; its file.

    Later ones are deleted too: they were skipped as damaged when the run was resumed, and would push out those that
    are intact.

    Raises:
        StoreError: the disk is full or not writable; all earlier checkpoints are still there.
    """
    path = folder / NAME.format(*header.position)
    write_checkpoint(path, header, state)
    for later in _newest_first(folder):
        if _position(later) > _position(path):
            _delete(later)
    best = best_checkpoint(folder)
    for unneeded in _newest_first(folder)[keep:]:
        if unneeded != best:
            _delete(unneeded)
    for partial in folder.glob(PARTIAL_PATTERN):
        partial.unlink(missing_ok=True)
    return path


def load_checkpoint(
    folder: Path, which: WhichCheckpoint = "latest", *, damaged_tables: Mapping[Path, str] | None = None
) -> Checkpoint:
    """Read the best checkpoint, or the latest that is intact; not those of which `damaged_tables` says what is wrong.

    Raises:
        StoreError: there is none; the message says what is wrong with each.
    """
    best = best_checkpoint(folder) if which == "best" else None
    if which == "best" and best is None:
        raise StoreError(
            f"no checkpoint in {folder} is marked as the best: was the run ever evaluated? If not, take the last one "
            "(--checkpoint latest)."
        )
    damaged: list[str] = []
    for path in [best] if best else _newest_first(folder):
        if damaged_tables and path in damaged_tables:
            damaged.append(damaged_tables[path])
            continue
        try:
            header, state = read_checkpoint(path)
        except StoreError as error:
            if best:
                raise
            damaged.append(str(error))
        else:
            return Checkpoint(path=path, header=header, state=state, damaged=tuple(damaged))
    reasons = "".join(f"\n  {message}" for message in damaged)
    cure = "remove the folder, and start again without --resume" if damaged else "begin again there by --resume auto"
    raise StoreError(f"no intact checkpoint in {folder}: {cure}.{reasons}")


def check_fits(header: CheckpointHeader, *, recipe: Mapping[str, Any], data_fingerprint: str, data: str) -> None:
    """Refuse to go on with another recipe (the settings that weights depend on) or other data (a "graph" or "log").

    Raises:
        StoreError: names the first keys that differ, with both values, or says that the data do.
    """
    old, new = _flat(header.recipe), _flat(recipe)
    differing = []
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            before, after = (repr(flat[key]) if key in flat else "absent" for flat in (old, new))
            differing.append(f"{key} was {before} and is {after}")
    if differing:
        more = f" (and {len(differing) - MOST_DIFFERENCES} more)" if len(differing) > MOST_DIFFERENCES else ""
        raise StoreError(
            f"the checkpoint belongs to another recipe: {'; '.join(differing[:MOST_DIFFERENCES])}{more}. "
            "Use the recipe that the run began with (recipe.toml in its folder), or start a new run."
        )
    if header.data_fingerprint != data_fingerprint:
        raise StoreError(
            f"the checkpoint belongs to another {data}: its fingerprint was {header.data_fingerprint[:12]} and is "
            f"{data_fingerprint[:12]}. Use the store that the run began with (--set store=...), or start a new run."
        )


def _flat(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as ``section.key`` -> value; what is None is absent."""
    flat: dict[str, Any] = {}
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            # A file has lists for both.
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob(PATTERN), key=_position, reverse=True)


def _position(path: Path) -> list[int]:
    """(epoch, step) of a checkpoint, from its name: as numbers, since they may outgrow the digits of a name."""
    return [int(digits) for digits in re.findall(r"\d+", path.name)]


def best_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that is marked as the best; None where there is none."""
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


STAGE = "checkpoint"


def save_together(
    world: World,
    folder: Path,
    header: CheckpointHeader,
    state: Mapping[str, Any],
    tables: Sequence[StoredTables] | None,
    *,
    keep: int,
) -> None:
    """Write a checkpoint of the same step. Collective; killed at any moment, it leaves the earlier ones intact.

    Args:
        world: its ranks.
        folder: of the checkpoints; must agree, on a file system that all ranks share where there are tables.
        header: position and belonging, without table files; must agree.
        state: tensors and plain values that all ranks have in common; rank 0's are written.
        tables: what this rank holds of the embedding tables; None, on all ranks, for a model without any.
        keep: how many of the latest to keep; the best is kept beside them.

    Raises:
        StoreError: a rank could not write; the same on every rank, naming those that failed.
    """

    def begin() -> Path:
        return begin_checkpoint(folder, header.position, with_tables=tables is not None)

    def save(files: Mapping[str, str]) -> Path:
        if tables is None:
            begin()
        return save_checkpoint(folder, replace(header, table_files=files), state, keep=keep)

    files: Mapping[str, str] = {}
    if tables is not None:
        # Nobody writes before the folder is there.
        files = _write_shards(world, tables_folder(world.from_rank_0(begin, stage=STAGE)), tables)
    world.from_rank_0(lambda: save(files), stage=STAGE)


def load_together(
    world: World,
    folder: Path,
    check: Callable[[CheckpointHeader], None],
    which: WhichCheckpoint = "latest",
    *,
    weights_only: bool = False,
) -> Checkpoint:
    """Find a checkpoint that is intact, table shards included, on any number of ranks, and say what is not. Collective.

    Each file is read and checked by one rank; only rank 0 looks into the folder where there are no tables, and calls
    `check`, which raises where a checkpoint does not fit.

    Returns:
        The same on every rank; `restore_tables` reads the tables. With `weights_only` its state is the model's alone.

    Raises:
        StoreError: there is none, or it does not fit.
    """
    damaged: dict[Path, str] = {}

    def load() -> Checkpoint:
        found = load_checkpoint(folder, which, damaged_tables=damaged)
        check(found.header)
        return replace(found, state=found.state["trainer"]["model"]) if weights_only else found

    while True:
        checkpoint = world.from_rank_0(load, stage=STAGE)
        found = _find_damage(world, checkpoint)
        if not found:
            for message in checkpoint.damaged if world.rank == 0 else ():
                print(f"windrow: skipped a damaged checkpoint: {message}", flush=True)
            return checkpoint
        damaged[checkpoint.path] = "; ".join(found)
        if which == "best":
            raise StoreError(damaged[checkpoint.path])


def restore_tables(
    checkpoint: Checkpoint, tables: Iterable[StoredTables], *, grown: bool = False, weights_only: bool = False
) -> None:
    """Fill this rank's pieces of the tables, under whatever plan they were written; nobody else has to be present.

    Every value is overwritten and, but for `weights_only`, optimiser state. With `grown`, there may be more rows or
    tables than in the checkpoint, or another optimiser: what the checkpoint does not have stays as it is.

    Raises:
        StoreError: a table or its optimiser state is not all there; or a compressed table has another size.
    """
    with ShardReader(tables_folder(checkpoint.path), checkpoint.header.table_files) as reader:
        for batch in tables:
            parts = batch.state()
            ids = _ids_elsewhere(reader, parts)
            wanted = (part for part in parts if part.name != ROW_IDS and (part.is_value or not weights_only))
            batch.load_state(_stored(reader, part, ids.get(part.piece), grown=grown) for part in wanted)


def _ids_elsewhere(reader: ShardReader, parts: Sequence[StateTensor]) -> dict[LocalTable, Tensor]:
    """Ids of the pieces whose rows stand in another order in the files: StoreError where one of both has no ids."""
    ids = {part.piece: part.tensor for part in parts if part.name == ROW_IDS}
    for part in parts:
        name = part.piece.name
        if part.axes and name in reader.tables and (part.piece in ids) != (ROW_IDS in reader.contents(name)):
            raise StoreError(
                f"table {name!r} has {'no ' * (part.piece in ids)}row_ids in the checkpoint and "
                f"{'no ' * (part.piece not in ids)}row_ids here: make the collection as it was made for that run"
            )
    return {
        piece: own
        for piece, own in ids.items()
        if piece.name in reader.tables and not reader.read(piece.name, piece.rows, piece.columns, ROW_IDS).equal(own)
    }


def _stored(reader: ShardReader, part: StateTensor, ids: Tensor | None, *, grown: bool) -> StateTensor:
    """A tensor with the values that the files have of it; of these ids, where its rows stand elsewhere."""
    piece = part.piece
    start, stop = piece.rows
    if grown:
        dense = piece.name.rpartition(".")[0]
        if part.fixed and piece.name not in reader.tables and dense in reader.tables:
            raise StoreError(
                f"table {dense!r} is dense in the checkpoint and compressed now: windrow export --format safetensors "
                "writes its rows, and tables.pretrained takes them"
            )
        if piece.name not in reader.tables or part.name not in reader.contents(piece.name):
            return part
        rows = reader.shape(piece.name)[0]
        if part.fixed and rows != stop:
            raise StoreError(
                f"table {piece.name!r} has {rows} rows in the checkpoint and {stop} now: what compressed tables are "
                "computed from cannot grow. Keep their sizes and their compression, or begin without run.init_from"
            )
        stop = max(start, min(stop, rows))
    if ids is not None and part.axes:
        return replace(part, tensor=reader.read_ids(piece.name, ids, piece.columns, part.name))
    found = reader.read(piece.name, (start, stop), piece.columns, part.name)
    if "rows" in part.axes and stop < piece.rows[1]:
        found = torch.cat([found, part.tensor[stop - start :].to(found)])
    return replace(part, tensor=found)


def _write_shards(world: World, folder: Path, tables: Sequence[StoredTables]) -> dict[str, str]:
    """Write this rank's file; the checksums of all ranks' files by name. Collective."""
    written: dict[str, str] = {}
    failure = ""
    parts = [part for batch in tables for part in batch.state() if not part.is_copy]
    own = [part for part in parts if world.rank == 0 or not part.replicated]
    name = f"rank-{world.rank:05}.safetensors"
    if own:
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
    absent = world.from_rank_0(lambda: [name for name in files if not (folder / name).is_file()], stage=STAGE)
    if absent:
        raise StoreError(
            f"rank 0 does not see {', '.join(absent)} in {folder}, which other ranks have written: put the run folder "
            "on a file system that all machines share"
        )
    return files


def _find_damage(world: World, checkpoint: Checkpoint) -> list[str]:
    """What is wrong with the table shards of a checkpoint, from all ranks. Collective."""
    files = checkpoint.header.table_files
    if not files:
        return []
    mine = {name: files[name] for name in sorted(files)[world.rank :: world.size]}
    message = ""
    try:
        check_shard_files(tables_folder(checkpoint.path), mine)
    except StoreError as error:
        message = str(error)
    return [one for one in world.all_gather_object(message, stage=STAGE) if one]
