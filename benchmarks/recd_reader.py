"""Samples per second of the reader where lists are decoded, transformed and batched once each, over every time.

The log is a generated one with the published statistics of RecD (Zhao et al., MLSys 2023), prepared with the samples of
a session next to one another. Three readers make the same minibatches in the same order (sessions shuffled):

    plain          no groups: every sample has its lists, and transforms run on all
    groups         groups of features are held, transformed and given once (O3, O4)
    left out       the same, from a store that leaves out what the sample before has

In a first epoch all samples are decoded, to memory that the process did not have before; in later ones those that fit
in memory are there. Published: 1.79x. Files are in the page cache, readers may use all cores.

    python benchmarks/recd_reader.py [--short]
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchmarks.harness.compare import Variant, compare
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings
from windrow.comm.process import keep_freed_memory
from windrow.gnn.readers.table_files import release_freed_memory
from windrow.recsys.batches.batch_reader import BatchReader
from windrow.recsys.batches.row_groups import ColumnChoice, RowGroups
from windrow.recsys.batches.transforms import TransformOptions, Transforms
from windrow.recsys.log.options import FeatureOptions, LogOptions, LogSplitOptions
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.store import LogStore
from windrow.recsys.log.synthetic.generate import generate_log
from windrow.recsys.log.synthetic.options import recd

if TYPE_CHECKING:
    from benchmarks.harness.result import Comparison
    from windrow.recsys.log.synthetic.options import SessionLogOptions

PLAIN, WINDOW, GROUPS, LEFT_OUT = "plain", "plain, samples shuffled", "groups", "left out"
AIM = 2.0
PUBLISHED = 1.79
BATCH_SIZE = 4096
LENGTH_SCALE = 0.5
"""Of the published lists, which makes 250 ids a sample: the log then fits in memory decoded, for the later epochs."""
ROWS_SCALE = 0.1
WORTHWHILE = 0.5
"""Share of samples with the value of the one before, from which on a feature is in a group."""
HASH_ROWS = 1 << 16
KEEP_LAST = 40
ENOUGH_BYTES = 1 << 32
"""More than all samples take."""


@dataclass(frozen=True)
class Stores:
    """The same samples, prepared in two ways, and which features form groups."""

    full: LogStore
    left_out: LogStore
    groups: tuple[tuple[str, ...], ...]
    transforms: dict[str, TransformOptions]

    @property
    def rows(self) -> int:
        """Samples."""
        return self.full.split("train").rows

    def reader(self, kind: str, *, transformed: bool) -> BatchReader:
        """A reader that has read nothing yet."""
        store = self.left_out if kind == LEFT_OUT else self.full
        shuffle: Literal["window", "sessions"] = "window" if kind == WINDOW else "sessions"
        deduplicated = kind in (GROUPS, LEFT_OUT)
        return BatchReader(
            store,
            "train",
            rank=0,
            size=1,
            batch_size=BATCH_SIZE,
            shuffle=shuffle,
            memory_bytes=ENOUGH_BYTES,
            groups=self.groups if deduplicated else (),
            transforms=Transforms(self.transforms, store.features, store.dense) if transformed else None,
            transform_once=deduplicated,
        )


def prepare(folder: Path, samples: int) -> Stores:
    """Generate a log and prepare it twice."""
    options = recd(length_scale=LENGTH_SCALE, rows_scale=ROWS_SCALE)
    path = folder / "log.parquet"
    generate_log(path, options, samples=samples)
    lists = {feature.name for group in options.groups if group.mean_length for feature in group.features}
    log = LogOptions(
        paths=(path,),
        format="parquet",
        dense=options.dense,
        session="session",
        time="time",
        features={
            feature.name: FeatureOptions(ids="rows", rows=feature.rows, multi_hot=feature.name in lists)
            for feature in options.features
        },
    )
    split = LogSplitOptions(by="time", fractions=(1.0, 0.0, 0.0))
    full, left_out = (
        prepare_log(folder / name, log, split, cluster=True, leave_out_repeats=leave_out)
        for name, leave_out in (("full", False), ("left out", True))
    )
    path.unlink()
    return Stores(full, left_out, groups_of(options), transforms_of(options))


def groups_of(options: "SessionLogOptions") -> tuple[tuple[str, ...], ...]:
    """What changes together in the log, and mostly does not."""
    return tuple(
        tuple(feature.name for feature in group.features)
        for group in options.groups
        if group.features and group.unchanged >= WORTHWHILE
    )


def transforms_of(options: "SessionLogOptions") -> dict[str, TransformOptions]:
    """Lists cut and hashed, single ids hashed, two dense columns bucketised."""
    found = {
        feature.name: TransformOptions(
            hash_rows=HASH_ROWS, keep_last=KEEP_LAST if group.mean_length is not None else None
        )
        for group in options.groups
        for feature in group.features
    }
    boundaries = tuple(number / 4 for number in range(-8, 9))
    for name in ("user_age", "item_price"):
        found[f"{name}_bucket"] = TransformOptions(dense=name, bucketise=boundaries)
    return found


def read(reader: BatchReader, epoch: int) -> tuple[int, int]:
    """Make all minibatches of an epoch; how many rows of groups samples have, and how many are held."""
    rows = held = given = 0
    with reader.batches(epoch) as batches:
        for batch in batches:
            rows += batch.num_samples
            for group in batch.deduplicated:
                held += group.num_unique
                given += group.num_samples
    assert rows == reader.samples_per_epoch, f"{rows} samples, expected {reader.samples_per_epoch}"
    return given, held


class FirstEpochs:
    """Reads the first epoch with one new reader after the other.

    Memory of the last one goes back to the system before the next, so that none begins with pages that are there
    already, and freeing them is not timed.
    """

    def __init__(self, stores: Stores, kind: str, *, transformed: bool) -> None:
        self._stores = stores
        self._kind = kind
        self._transformed = transformed
        self._reader: BatchReader | None = None

    def renew(self) -> None:
        """Make a reader that has read nothing."""
        self._reader = None
        release_freed_memory()
        self._reader = self._stores.reader(self._kind, transformed=self._transformed)

    def __call__(self) -> None:
        """Read."""
        assert self._reader is not None
        read(self._reader, 0)


def first_epochs(stores: Stores, kind: str, *, transformed: bool) -> Variant:
    """Read the first epoch."""
    epochs = FirstEpochs(stores, kind, transformed=transformed)
    return Variant(run=epochs, before=epochs.renew, rows=stores.rows)


def later_epochs(stores: Stores, kind: str, *, transformed: bool) -> Variant:
    """Read one epoch after the other with one reader."""
    reader = stores.reader(kind, transformed=transformed)
    epochs = count()
    return Variant(run=lambda: read(reader, next(epochs)), rows=stores.rows)


def kept_bytes(stores: Stores, kind: str) -> int:
    """Memory that the samples take from one epoch to the next."""
    store = stores.left_out if kind == LEFT_OUT else stores.full
    choice = ColumnChoice(
        features=store.features, num_dense=len(store.dense), groups=() if kind == PLAIN else stores.groups
    )
    row_groups = RowGroups(store.split("train"), choice, memory_bytes=0)
    return sum(group.num_bytes for group, _, _ in row_groups.covering(0, stores.rows))


def decode(store: LogStore) -> Callable[[], int]:
    """Decode all columns that a reader needs, and do nothing with them; gives the bytes they take."""
    from pyarrow import parquet

    names = [feature.name for feature in store.features]

    def run() -> int:
        num_bytes = 0
        for path in store.split("train").files:
            with parquet.ParquetFile(path, memory_map=True, page_checksum_verification=True) as file:
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group, columns=["label", "dense", "session", *names])
                    num_bytes += table.nbytes
        return num_bytes

    return run


def measure(program: Program) -> Findings:
    """Time first and later epochs of each reader, with and without transforms, and what decoding alone takes."""
    # As in `windrow train`.
    keep_freed_memory()
    samples, repeats = (1 << 16, 5) if program.short else (3 << 16, 11)
    figures: dict[str, float] = {}
    comparisons: dict[str, Comparison] = {}
    with tempfile.TemporaryDirectory() as folder:
        stores = prepare(Path(folder), samples)
        for store, name in ((stores.full, "full"), (stores.left_out, "left_out")):
            files = store.split("train").files
            figures[f"{name}_stored_bytes_per_sample"] = sum(file.stat().st_size for file in files) / samples
            figures[f"{name}_decoded_bytes_per_sample"] = decode(store)() / samples
        given, held = read(stores.reader(GROUPS, transformed=False), 0)
        figures["dedupe_factor"] = given / held
        for kind in (PLAIN, GROUPS, LEFT_OUT):
            variant = kind.replace(" ", "_")
            figures[f"{variant}_kept_bytes_per_sample"] = kept_bytes(stores, kind) / samples
        timed = {
            "decoding alone": {
                PLAIN: Variant(run=decode(stores.full), rows=samples),
                LEFT_OUT: Variant(run=decode(stores.left_out), rows=samples),
            }
        }
        for transformed in (False, True):
            suffix = ", transforms" if transformed else ""
            timed[f"first epoch{suffix}"] = {
                kind: first_epochs(stores, kind, transformed=transformed) for kind in (PLAIN, WINDOW, GROUPS, LEFT_OUT)
            }
            timed[f"later epochs{suffix}"] = {
                kind: later_epochs(stores, kind, transformed=transformed) for kind in (PLAIN, WINDOW, GROUPS, LEFT_OUT)
            }
        for name, runs in timed.items():
            comparisons[name] = compared = compare(runs, baseline=PLAIN, repeats=repeats)
            key = name.replace(", ", "_").replace(" ", "_")
            for kind in runs:
                variant = kind.replace(", ", "_").replace(" ", "_")
                figures[f"{key}_{variant}_samples_per_second"] = samples / compared.variants[kind].median_s
                if kind != PLAIN:
                    figures[f"{key}_{variant}_over_plain_ratio"] = compared.ratio(kind).median
    published = figures["first_epoch_transforms_left_out_over_plain_ratio"]
    later = figures["later_epochs_left_out_over_plain_ratio"]
    return Findings(
        figures=figures,
        aims={
            "first_epoch": Aim(
                f"first epoch, transforms: >= {AIM} of the plain reader (published {PUBLISHED})", published >= AIM
            ),
            "later_epochs": Aim(f"later epochs: >= {AIM} of the plain reader", later >= AIM),
        },
        comparisons=comparisons,
    )


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure)
