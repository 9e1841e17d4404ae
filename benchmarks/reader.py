"""How near the log readers come to pyarrow's raw scan of the same files.

Each reader reads all columns of a generated file, in the blocks that `windrow prepare` takes them in; pyarrow scans
the file with `pyarrow.dataset` and its own choice of types, and throws the batches away (libfm's layout as text fields
with blanks between them). `BatchReader`, which training reads from, makes shuffled minibatches out of a prepared store
with multi-hot lists, as one rank; pyarrow scans the Parquet files of that store. Files are in the page cache, and both
sides may use all cores.

    python benchmarks/reader.py [--short]
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.compare import Variant, compare
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings
from windrow.comm.loopback import Loopback
from windrow.recsys.batches.batch_reader import BatchReader
from windrow.recsys.log.options import FeatureOptions, LogFormat, LogOptions, LogSplitOptions
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.readers import CRITEO_COLUMNS, TextType, read_log
from windrow.recsys.log.store import LogStore
from windrow.recsys.models.build import build_model
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.recommender import Recommender
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.tables.options import EmbeddingBagConfig, TableOptions
from windrow.recsys.task import RecommendationTask
from windrow.training.trainer import Trainer

if TYPE_CHECKING:
    from benchmarks.harness.result import Comparison

OURS, PYARROW = "windrow", "pyarrow"
AIM = 0.5
DISTINCT_LINES = 20_000
BATCH_SIZE = 8192
CSV_COLUMNS = (
    "timestamp",
    "item",
    "position",
    "click",
    "propensity",
    *(f"user_{number}" for number in range(4)),
    *(f"affinity_{number}" for number in range(8)),
)


def write_text(path: Path, lines: list[str], megabytes: int, header: str = "") -> int:
    """Write some lines over and over; how many lines there are."""
    block = "".join(lines).encode()
    repeats = max(megabytes * 1_000_000 // len(block), 1)
    with path.open("wb") as file:
        file.write(header.encode())
        for _ in range(repeats):
            file.write(block)
    return repeats * len(lines)


def criteo_lines(chance: np.random.Generator) -> list[str]:
    """Lines with the share of empty fields that Criteo's logs have, about a tenth."""
    lines = []
    for _ in range(DISTINCT_LINES):
        counts = chance.geometric(0.02, 13)
        categories = chance.integers(0, 2**32, 26)
        present = chance.random(39) > 0.1
        fields = [str(number) for number in counts] + [f"{number:08x}" for number in categories]
        kept = [field if there else "" for field, there in zip(fields, present, strict=True)]
        lines.append("\t".join(["1" if chance.random() < 0.25 else "0", *kept]) + "\n")
    return lines


def csv_lines(chance: np.random.Generator) -> list[str]:
    """Lines like Open Bandit's."""
    users = [f"{number:032x}" for number in range(300)]
    lines = []
    for second in range(DISTINCT_LINES):
        fields = [
            f"2019-11-24 {second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}.{second:06d}+00:00",
            str(chance.integers(80)),
            str(chance.integers(1, 4)),
            str(int(chance.random() < 0.005)),
            repr(float(chance.random())),
            *(users[chance.integers(300)] for _ in range(4)),
            *(f"{chance.integers(3)}.0" for _ in range(8)),
        ]
        lines.append(",".join(fields) + "\n")
    return lines


def libfm_lines(chance: np.random.Generator) -> list[str]:
    """Lines like Frappe's: ten fields."""
    return [
        " ".join(["1" if chance.random() < 0.33 else "-1", *(f"{index}:1" for index in chance.integers(0, 5383, 10))])
        + "\n"
        for _ in range(DISTINCT_LINES)
    ]


def write_parquet(path: Path, rows: int, chance: np.random.Generator) -> None:
    """A log of four ids, one list of ids and eight dense values."""
    import pyarrow as pa
    from pyarrow import parquet

    lengths = chance.integers(0, 20, rows)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    items = pa.array(chance.zipf(1.3, int(lengths.sum())) % 100_000)
    columns: dict[str, Any] = {
        "label": (chance.random(rows) < 0.2).astype(np.int8),
        **{f"id_{number}": chance.zipf(1.2, rows) % 1_000_000 for number in range(4)},
        "history": pa.ListArray.from_arrays(offsets, items),
        **{f"dense_{number}": chance.standard_normal(rows, dtype=np.float32) for number in range(8)},
    }
    parquet.write_table(pa.table(columns), path, row_group_size=1 << 16)


def read_all(log_format: LogFormat, path: Path, columns: Mapping[str, TextType], rows: int) -> Callable[[], None]:
    """Read a log to its end and count."""

    def read() -> None:
        found = sum(block.batch.num_rows for block in read_log(log_format, [path], columns))
        assert found == rows, f"{found} rows, expected {rows}"

    return read


def scan_all(files: list[Path], file_format: Any, rows: int) -> Callable[[], None]:
    """Scan files with pyarrow and count."""
    from pyarrow import dataset

    source = dataset.dataset([str(file) for file in files], format=file_format)

    def scan() -> None:
        found = sum(batch.num_rows for batch in source.to_batches())
        assert found == rows, f"{found} rows, expected {rows}"

    return scan


def text_format(delimiter: str, *, has_header: bool) -> Any:
    """How pyarrow takes a text file."""
    from pyarrow import csv, dataset

    return dataset.CsvFileFormat(
        parse_options=csv.ParseOptions(delimiter=delimiter),
        read_options=csv.ReadOptions(autogenerate_column_names=not has_header),
    )


def prepared(folder: Path, source: Path) -> LogStore:
    """Prepare the Parquet log for training."""
    log = LogOptions(
        paths=(source,),
        format="parquet",
        dense=tuple(f"dense_{number}" for number in range(8)),
        features={
            **{f"id_{number}": FeatureOptions(ids="hash", rows=100_000) for number in range(4)},
            "history": FeatureOptions(ids="rows", rows=100_000, multi_hot=True),
        },
    )
    return prepare_log(folder / "store", log, LogSplitOptions(fractions=(1.0, 0.0, 0.0)))


def train_all(store: LogStore) -> Callable[[], None]:
    """Make all minibatches of a first epoch, and look at none."""
    rows = store.split("train").rows

    def read() -> None:
        # A new reader: an old one still holds decoded rows of the epoch before.
        reader = BatchReader(store, "train", rank=0, size=1, batch_size=BATCH_SIZE)
        with reader.batches(epoch=0) as batches:
            found = sum(batch.num_samples for batch in batches)
        assert found == rows, f"{found} rows, expected {rows}"

    return read


def waiting_shares(store: LogStore) -> list[float]:
    """Share of the time that the trainer of a DLRM waits for minibatches, in its first and its second epoch."""
    options = TableOptions(dim=32)
    bags = EmbeddingBagCollection(
        [
            EmbeddingBagConfig(
                num_embeddings=feature.rows, embedding_dim=options.dim, name=feature.table, feature_names=[feature.name]
            )
            for feature in store.features
        ],
        optimizer=options,
    )
    shape = ModelOptions(bottom=(256,), top=(256, 128))
    dims = dict.fromkeys(bags.embedding_names, options.dim)
    model = build_model(shape, num_dense=len(store.dense), pooled_dims=dims, seed=0)
    trainer = Trainer(
        Loopback.single(),
        Recommender(bags, None, model),
        RecommendationTask(BatchReader(store, "train", rank=0, size=1, batch_size=BATCH_SIZE)),
        epochs=2,
        batch_size=BATCH_SIZE,
    )
    shares = []
    for epoch in range(2):
        trainer.stopwatch.reset()
        started = time.perf_counter()
        trainer.train_epoch(epoch)
        shares.append(trainer.stopwatch.seconds["read"] / (time.perf_counter() - started))
    trainer.close()
    return shares


def pairs(
    folder: Path, megabytes: int
) -> tuple[dict[str, tuple[Callable[[], None], Callable[[], None], int, int]], LogStore]:
    """For each reader: reading, pyarrow's scan, rows and bytes of the files; and the prepared store."""
    chance = np.random.default_rng(0)
    criteo, csv_file, libfm, columns = (folder / name for name in ("a.tsv", "a.csv", "a.libfm", "a.parquet"))
    found = {}

    rows = write_text(criteo, criteo_lines(chance), megabytes)
    scan = scan_all([criteo], text_format("\t", has_header=False), rows)
    read = read_all("criteo", criteo, dict.fromkeys(CRITEO_COLUMNS, "int64"), rows)
    found["criteo"] = (read, scan, rows, criteo.stat().st_size)

    rows = write_text(csv_file, csv_lines(chance), megabytes, ",".join(CSV_COLUMNS) + "\n")
    numbers = {"click", "propensity", *CSV_COLUMNS[9:]}
    types: dict[str, TextType] = {name: "float64" if name in numbers else "string" for name in CSV_COLUMNS}
    scan = scan_all([csv_file], text_format(",", has_header=True), rows)
    found["csv"] = (read_all("csv", csv_file, types, rows), scan, rows, csv_file.stat().st_size)

    rows = write_text(libfm, libfm_lines(chance), megabytes)
    fields: tuple[str, ...] = ("label", *(f"field_{number}" for number in range(10)))
    scan = scan_all([libfm], text_format(" ", has_header=False), rows)
    read = read_all("libfm", libfm, dict.fromkeys(fields, "float64"), rows)
    found["libfm"] = (read, scan, rows, libfm.stat().st_size)

    # About 160 bytes a row before compression.
    rows = megabytes * 1_000_000 // 160
    write_parquet(columns, rows, chance)
    names = ("label", *(f"id_{n}" for n in range(4)), "history", *(f"dense_{n}" for n in range(8)))
    scan = scan_all([columns], "parquet", rows)
    read = read_all("parquet", columns, dict.fromkeys(names, "float64"), rows)
    found["parquet"] = (read, scan, rows, columns.stat().st_size)

    store = prepared(folder, columns)
    files = list(store.split("train").files)
    num_bytes = sum(file.stat().st_size for file in files)
    found["prepared store"] = (train_all(store), scan_all(files, "parquet", rows), rows, num_bytes)
    return found, store


def measure(program: Program) -> Findings:
    """Time every reader against pyarrow's scan of its file, and a trainer's waiting for data."""
    megabytes, repeats = (40, 5) if program.short else (160, 9)
    figures: dict[str, float] = {}
    comparisons: dict[str, Comparison] = {}
    with tempfile.TemporaryDirectory() as folder:
        readers, store = pairs(Path(folder), megabytes)
        for name, (read, scan, rows, num_bytes) in readers.items():
            variants = {
                OURS: Variant(run=read, bytes=num_bytes, rows=rows),
                PYARROW: Variant(run=scan, bytes=num_bytes, rows=rows),
            }
            comparisons[name] = compared = compare(variants, baseline=PYARROW, repeats=repeats)
            key, seconds = name.replace(" ", "_"), compared.variants[OURS].median_s
            figures[f"{key}_over_pyarrow_ratio"] = compared.ratio(OURS).median
            figures[f"{key}_rows_per_second"] = rows / seconds
            figures[f"{key}_megabytes_per_second"] = num_bytes / seconds / 1e6
        first, second = waiting_shares(store)
    print(f"training waits for data {first:.1%} of its first epoch and {second:.1%} of its second")
    figures["trainer_waiting_first_epoch_share"] = first
    figures["trainer_waiting_second_epoch_share"] = second
    worst = min(value for key, value in figures.items() if key.endswith("_ratio"))
    figures["worst_over_pyarrow_ratio"] = worst
    aim = Aim(f"every reader >= {AIM} of pyarrow's raw scan of the same file", worst >= AIM)
    return Findings(figures=figures, aims={"raw_scan": aim}, comparisons=comparisons)


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure)
