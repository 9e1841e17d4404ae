"""Measure how long real embedding tables take: forward and backward pass of sets of tables on the device at hand.

Results are Parquet files of 50 sets each, written one after another, so that a measurement that was broken off goes on
where it was. A file says on which hardware and with which versions it was measured.
"""

import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from windrow.comm.errors import StoreError
from windrow.partition.atomic_writes import write_atomically
from windrow.partition.tables.access import draw_rows
from windrow.partition.tables.cost_model import FEATURES, Floats, piece_features
from windrow.partition.tables.plan import TableSpec
from windrow.partition.tables.population import draw_tables, draw_tasks
from windrow.recsys.tables.make import make_table_batch
from windrow.recsys.tables.options import TableOptions
from windrow.training.environment import hardware, package_versions
from windrow.training.shard_files import LocalTable

__all__ = ["MeasuredSets", "ProfileSettings", "make_step", "profile_tables", "read_measured", "time_steps"]

SETS_IN_A_FILE = 50
REFERENCE = tuple(
    TableSpec(name=f"reference_{number}", rows=200_000, dim=32, features=("f",), lookups_per_sample=8.0)
    for number in range(2)
)
"""What tells how fast the machine is just now."""
REFERENCE_SAMPLES, REFERENCE_REPEATS = 2048, 3


@dataclass(frozen=True, kw_only=True)
class ProfileSettings:
    """What is measured. The defaults take about an hour."""

    sets: int = 1500
    """Sets of tables."""
    tables: tuple[int, int] = (1, 15)
    """Least and most tables of a set, as NeuroShard's."""
    samples: tuple[int, ...] = (1024, 4096, 16384)
    """Samples of a minibatch of all ranks; each set has one of these."""
    most_bytes: float = float(1 << 30)
    """Of the tables of a set."""
    most_lookups: int = 1 << 20
    """Of a set in a minibatch; sets with more are drawn again."""
    warm_up: int = 2
    """Steps before measuring."""
    repeats: int = 3
    """Steps that are measured; the median counts."""
    visits: int = 3
    """Times that a set is measured so, others in between; the median counts."""
    max_dim: int = 128
    """Columns at most."""
    seed: int = 0
    """Of everything drawn."""


@dataclass(frozen=True, kw_only=True)
class MeasuredSets:
    """Sets of pieces, and what they took."""

    features: list[Floats]
    """[pieces, 22] of each set: `windrow.partition.tables.cost_model.FEATURES`."""
    seconds: Floats
    """[sets] median of the visits, at the machine's usual speed (`profile_tables`)."""
    noise: Floats
    """[sets] half the distance between the quartiles of the visits over the median."""
    origin: Mapping[str, Any]
    """Hardware, versions, threads."""


def make_step(
    specs: Sequence[TableSpec], samples: int, *, device: torch.device, options: TableOptions, seed: int = 0
) -> Callable[[], None]:
    """A step of some tables: lookups of all, and their backward pass with the optimiser in it.

    Rows are drawn as the tables' `access` says; each step looks the same ones up. Bags have the mean length of the
    table, rounded up or down at random.
    """
    chance = np.random.default_rng(seed)
    members = tuple(LocalTable(name=spec.name, rows=(0, spec.rows), columns=(0, spec.dim)) for spec in specs)
    batch = make_table_batch(
        options,
        members,
        tuple(range(len(specs))),
        table_rows={spec.name: spec.rows for spec in specs},
        device=device,
        seed=seed,
    )
    lengths = np.concatenate(
        [np.floor(spec.lookups_per_sample + chance.random(samples)).astype(np.int64) for spec in specs]
    )
    counts = lengths.reshape(len(specs), samples).sum(axis=1)
    drawn = [draw_rows(spec, int(number), chance) for spec, number in zip(specs, counts, strict=True)]
    values = torch.from_numpy(np.concatenate(drawn).astype(np.int32)).to(device)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)).to(device)
    gradient = torch.full((samples, sum(spec.dim for spec in specs)), 1e-3, device=device)

    def step() -> None:
        batch(values, offsets).backward(gradient)
        batch.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return step


def time_steps(step: Callable[[], None], *, warm_up: int = 2, repeats: int = 5) -> list[float]:
    """Seconds of each of some steps, after a few that do not count."""
    found = []
    for _ in range(warm_up + repeats):
        begun = time.perf_counter()
        step()
        found.append(time.perf_counter() - begun)
    return found[warm_up:]


def profile_tables(
    folder: Path,
    options: ProfileSettings | None = None,
    *,
    device: torch.device | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MeasuredSets:
    """Measure sets of tables of a generated population, or go on with that.

    A machine may be slower for minutes, when others use its memory or its clock changes. So a set that is always the
    same is timed before and after each, and times count at the speed at which that one takes its median in the first
    file; and all sets of a file are measured before the first of them is measured again.

    Args:
        folder: of the Parquet files; those of the same options and hardware that are there are kept.
        options: what is measured.
        device: of the tables; None for the CPU, with as many threads as PyTorch has now.
        progress: called with the sets measured so far and all.

    Raises:
        StoreError: the folder has measurements of other options, hardware or versions.
    """
    options, device = options or ProfileSettings(), device or torch.device("cpu")
    origin = _origin(options, device)
    folder.mkdir(parents=True, exist_ok=True)
    kept = read_measured(folder) if next(folder.glob("*.parquet"), None) else None
    if kept is not None and kept.origin != origin:
        raise StoreError(
            f"{folder} was measured with {dict(kept.origin)}, not with {origin}: name another folder, or delete it"
        )
    done = 0 if kept is None else len(kept.seconds)
    drawn = islice(_sets(options), done, options.sets)
    made = partial(make_step, device=device, options=TableOptions())
    timed = partial(time_steps, warm_up=options.warm_up)
    reference = made(REFERENCE, REFERENCE_SAMPLES)
    while done < options.sets:
        some = list(islice(drawn, SETS_IN_A_FILE))
        rows = [
            Row(np.concatenate([piece_features(spec, (0, spec.rows), spec.dim, samples) for spec in specs]), [], [])
            for specs, samples in some
        ]
        for visit in range(options.visits):
            for place, (specs, samples) in enumerate(some):
                before = timed(reference, repeats=REFERENCE_REPEATS)
                rows[place].seconds.append(timed(made(specs, samples, seed=done + place), repeats=options.repeats))
                after = timed(reference, repeats=REFERENCE_REPEATS)
                rows[place].references.append(float(np.median(before + after)))
                if progress is not None:
                    progress(done + (visit * len(some) + place + 1) // options.visits, options.sets)
        done += len(some)
        _write(folder / f"sets-{done:06d}.parquet", rows, origin)
    return read_measured(folder)


def _sets(options: ProfileSettings) -> Iterator[tuple[list[TableSpec], int]]:
    tables = draw_tables(856, options.seed, most_rows=1 << 23)
    tasks = draw_tasks(
        tables, sizes=options.tables, max_dim=options.max_dim, most_bytes=options.most_bytes, seed=options.seed
    )
    chance = np.random.default_rng(options.seed)
    for specs in tasks:
        samples = int(chance.choice(options.samples))
        if samples * sum(spec.lookups_per_sample for spec in specs) <= options.most_lookups:
            yield specs, samples


def _origin(options: ProfileSettings, device: torch.device) -> dict[str, Any]:
    """What times depend on, as JSON has it."""
    machine = hardware()
    names = ("torch", "numba", "fbgemm-gpu", "fbgemm-gpu-cpu")
    found: dict[str, Any] = {
        "processor": torch.cuda.get_device_name(device) if device.type == "cuda" else machine["processor"],
        "threads": torch.get_num_threads(),
        "versions": {name: number for name, number in package_versions().items() if name in names},
        "optimizer": TableOptions().optimizer,
        "precision": TableOptions().precision,
        "options": {name: value for name, value in vars(options).items() if name != "sets"},
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


class Row(NamedTuple):
    """What is written of a set: features [pieces, 22], seconds [visits][steps], and those of the reference [visits]."""

    features: Floats
    seconds: list[list[float]]
    references: list[float]


def _write(path: Path, rows: Sequence[Row], origin: Mapping[str, Any]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    columns = {
        "features": pa.array([row.features.ravel().tolist() for row in rows], pa.list_(pa.float64())),
        "seconds": pa.array([row.seconds for row in rows], pa.list_(pa.list_(pa.float64()))),
        "references": pa.array([row.references for row in rows], pa.list_(pa.float64())),
    }
    about = {"origin": json.dumps(origin), "columns of features": json.dumps(FEATURES)}
    buffer = io.BytesIO()
    parquet.write_table(pa.table(columns).replace_schema_metadata(about), buffer)
    write_atomically(path, buffer.getvalue())


def read_measured(folder: Path) -> MeasuredSets:
    """Read what `profile_tables` wrote.

    Raises:
        StoreError: there is nothing, it is damaged, or of several measurements.
    """
    import pyarrow as pa
    from pyarrow import parquet

    features, origins = [], []
    steps: list[list[list[float]]] = []
    references: list[Floats] = []
    for path in sorted(folder.glob("sets-*.parquet")):
        try:
            found = parquet.read_table(path)
            origins.append(json.loads(found.schema.metadata[b"origin"]))
            features += [np.array(row).reshape(-1, len(FEATURES)) for row in found["features"].to_pylist()]
            steps += found["seconds"].to_pylist()
            references.append(np.array(found["references"].to_pylist()))
        except (OSError, KeyError, TypeError, pa.ArrowInvalid) as error:
            raise StoreError(f"{path}: no measurements of tables ({error}): delete it and measure again") from error
    if not steps:
        raise StoreError(f"{folder}: no measurements of tables: write some by `windrow pretrain-cost --data {folder}`")
    if any(origin != origins[0] for origin in origins):
        raise StoreError(f"{folder}: measurements of several machines or settings: keep each in a folder of its own")
    # By the first file, so that times stay what they are when more sets are measured.
    speed = np.median(references[0]) / np.concatenate(references)
    low, middle, high = np.percentile(np.median(steps, axis=2) * speed, (25, 50, 75), axis=1)
    return MeasuredSets(features=features, seconds=middle, noise=(high - low) / 2 / middle, origin=origins[0])
