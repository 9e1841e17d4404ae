"""How many bytes a log takes, in order of time over clustered by session, and which statistics of a log decide that.

Two logs: a generated one with the published statistics of production logs (`windrow.recsys.log.synthetic`), and samples
made of Diginetica's shopping sessions, every prefix of a session one. In order of time, samples of a session lie among
those of 10,000 others. Clustered, they are next to one another, as `windrow cluster-log` writes them; sharded (O1 alone
in RecD, Zhao et al., MLSys 2023), sessions are dealt to 64 files, each in order of time. Published: up to 3.71 times.

What a layout saves depends on how the other one is written, so three ratios are given for each codec:
    default   order of time as engines write by default (dictionaries, 1 MiB pages, zstd level 3), over cluster-log
    tuned     the smallest of all settings with 1 MiB pages, on each side
    wide      the smallest of all settings, pages of 8 MiB too: zstd then sees far enough back to find a session's
              samples among the others, at several times the work (not with --short)

    python benchmarks/recd_storage.py [--short]
"""

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.data_sets import DIGINETICA, data_option, interleaved, prefix_samples, read_sessions
from benchmarks.harness.program import Program, run_benchmark
from benchmarks.harness.result import Aim, Findings, Table
from benchmarks.harness.session_statistics import PUBLISHED as PUBLISHED_STATISTICS
from benchmarks.harness.session_statistics import expected_statistics, measured_statistics
from windrow.recsys.log.clustering.cluster_log import ClusterOptions, cluster_log
from windrow.recsys.log.synthetic.generate import generate_log
from windrow.recsys.log.synthetic.options import FeatureGroup, SessionLogOptions, recd

PUBLISHED = 3.71
SHARDS = 64
VARIED = 100_000
"""Samples of logs that differ in one statistic."""
MIB = 1 << 20
PAGE_BYTES, WIDE_PAGE_BYTES = MIB, 8 * MIB
SPLIT_ROW_GROUP_BYTES = (64 * MIB, 256 * MIB)
"""Of a row group in memory: half and twice what engines take by default."""


@dataclass(frozen=True)
class Setting:
    """How Parquet is written."""

    codec: str
    level: int | None = None
    dictionary: bool = True
    page_bytes: int = PAGE_BYTES
    row_group_bytes: int = 128 * MIB


DEFAULTS = {"snappy": Setting("snappy"), "zstd": Setting("zstd", 3)}
"""Of engines such as Spark."""


def settings(codec: str, *, short: bool) -> Iterator[Setting]:
    """All that are tried with a codec."""
    levels = (None,) if codec == "snappy" else (3,) if short else (3, 9)
    for level in levels:
        for dictionary in (True, False):
            yield Setting(codec, level, dictionary)
            if not short:
                for size in SPLIT_ROW_GROUP_BYTES:
                    yield Setting(codec, level, dictionary, row_group_bytes=size)
    if codec == "zstd" and not short:
        for dictionary in (True, False):
            yield Setting(codec, 9, dictionary, WIDE_PAGE_BYTES, 256 * MIB)


def written_bytes(rows: Any, setting: Setting) -> int:
    """Bytes that a table takes as Parquet."""
    import pyarrow as pa
    from pyarrow import parquet

    sink = pa.MockOutputStream()
    parquet.write_table(
        rows,
        sink,
        compression=setting.codec,
        compression_level=setting.level,
        use_dictionary=setting.dictionary,
        data_page_size=setting.page_bytes,
        dictionary_pagesize_limit=setting.page_bytes,
        row_group_size=max(1, setting.row_group_bytes * rows.num_rows // rows.nbytes),
    )
    return int(sink.size())


def bytes_of_settings(rows: Any, *, short: bool) -> dict[Setting, int]:
    """Bytes under every setting."""
    return {setting: written_bytes(rows, setting) for codec in DEFAULTS for setting in settings(codec, short=short)}


def smallest(found: dict[Setting, int], codec: str, *, page_bytes: int) -> tuple[int, Setting]:
    """The smallest of a codec, up to a page size."""
    return min(
        (
            (size, setting)
            for setting, size in found.items()
            if setting.codec == codec and setting.page_bytes <= page_bytes
        ),
        key=lambda pair: pair[0],
    )


def folder_bytes(folder: Path) -> int:
    """Of the Parquet files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def measure_log(
    name: str, log: Path, folder: Path, *, short: bool, figures: dict[str, float]
) -> list[dict[str, object]]:
    """Write one log in both orders under all settings; fills in figures."""
    from pyarrow import parquet

    clustered, sharded = folder / f"{name}-clustered", folder / f"{name}-sharded"
    cluster_log(ClusterOptions(inputs=(log,), output=clustered, by="session", time="time"))
    cluster_log(ClusterOptions(inputs=(log,), output=sharded, by="session", files=SHARDS))
    ours, apart = folder_bytes(clustered), folder_bytes(sharded)
    by_time = bytes_of_settings(parquet.read_table(log), short=short)
    by_session = bytes_of_settings(parquet.read_table(clustered), short=short)

    rows: list[dict[str, object]] = []

    def add(ratio: str, codec: str, before: tuple[int, str], after: tuple[int, str]) -> None:
        figures[f"{name}_{ratio}_{codec}_ratio"] = before[0] / after[0]
        rows.append(
            {
                "log": name,
                "ratio": ratio,
                "codec": codec,
                "order of time, MB": round(before[0] / 1e6, 3),
                "written as": before[1],
                "compared with, MB": round(after[0] / 1e6, 3),
                "written as ": after[1],
                "over": f"{before[0] / after[0]:.2f}",
            }
        )

    for codec, default in DEFAULTS.items():
        before = (by_time[default], described(default))
        plain = dataclasses.replace(default, dictionary=False)
        if codec == "zstd":
            add("default", codec, before, (ours, "cluster-log"))
            add("sharded", codec, before, (apart, f"cluster-log --no-sort --files {SHARDS}"))
        else:
            # cluster-log writes zstd: here its layout, without dictionaries as there, under the other codec.
            add("default", codec, before, (by_session[plain], described(plain)))
        tuned = [smallest(found, codec, page_bytes=PAGE_BYTES) for found in (by_time, by_session)]
        add("tuned", codec, *((size, described(setting)) for size, setting in tuned))
        if codec == "zstd" and not short:
            wide = [smallest(found, codec, page_bytes=WIDE_PAGE_BYTES) for found in (by_time, by_session)]
            add("wide", codec, *((size, described(setting)) for size, setting in wide))
    return rows


def described(setting: Setting) -> str:
    """In a few words."""
    level = "" if setting.level is None else f" {setting.level}"
    values = "dictionaries" if setting.dictionary else "plain"
    return (
        f"{setting.codec}{level}, {values}, pages {setting.page_bytes // MIB} MiB, "
        f"row groups {setting.row_group_bytes // MIB} MiB"
    )


def changed(options: SessionLogOptions, change: Callable[[FeatureGroup], FeatureGroup]) -> SessionLogOptions:
    """A log with every group of lists changed."""
    return dataclasses.replace(
        options, groups=tuple(group if group.mean_length is None else change(group) for group in options.groups)
    )


def what_matters(folder: Path, samples: int) -> list[dict[str, object]]:
    """The same ratio for logs that differ from the published statistics in one of them."""
    from pyarrow import parquet

    published = recd()
    logs = {
        "as published": published,
        "4 samples a session, not 16.5": dataclasses.replace(published, samples_per_session=4),
        "lists half as often unchanged": changed(
            published, lambda group: dataclasses.replace(group, unchanged=group.unchanged / 2)
        ),
        "no lists that move on by one": changed(published, lambda group: dataclasses.replace(group, shifted=0)),
        "lists a quarter as long": recd(length_scale=0.25),
        "tables a hundredth as large": recd(rows_scale=0.01),
    }
    rows: list[dict[str, object]] = []
    for name, options in logs.items():
        sizes = {}
        for order in ("time", "sessions"):
            path = folder / "one.parquet"
            generate_log(path, options, samples=samples, order=order)
            sizes[order] = written_bytes(parquet.read_table(path), Setting("zstd", 3, dictionary=order == "time"))
        rows.append(
            {
                "log": name,
                "unchanged ids, expected": f"{expected_statistics(options).unchanged_id_share:.1%}",
                "order of time, MB": round(sizes["time"] / 1e6, 2),
                "by sessions, MB": round(sizes["sessions"] / 1e6, 2),
                "over": f"{sizes['time'] / sizes['sessions']:.2f}",
            }
        )
    return rows


def measure(program: Program) -> Findings:
    """Count the bytes of both logs."""
    from pyarrow import parquet

    # Well above the sessions that are under way at a time: a shorter log is less mixed than a long one.
    samples = 150_000 if program.short else 400_000
    figures: dict[str, float] = {}
    rows: list[dict[str, object]] = []
    tables: dict[str, Table] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options, log = recd(), folder / "generated.parquet"
        generate_log(log, options, samples=samples)
        measured = measured_statistics(log, [feature.name for feature in options.features])
        statistics = []
        for key, value in PUBLISHED_STATISTICS.items():
            figures[f"generated_{key}"] = getattr(measured, key)
            statistics.append({"": key, "published": value, "generated": round(getattr(measured, key), 3)})
        rows += measure_log("generated", log, folder, short=program.short, figures=figures)
        log.unlink()

        if (program.options.data / DIGINETICA).is_file():
            log = folder / "diginetica.parquet"
            items, offsets = read_sessions(program.options.data / DIGINETICA)
            real = prefix_samples(items, offsets, max_sessions=40_000 if program.short else None)
            parquet.write_table(interleaved(real), log)
            rows += measure_log("diginetica", log, folder, short=program.short, figures=figures)
        else:
            print(f"diginetica: not measured, no {DIGINETICA} in {program.options.data} (see --data)")
        if not program.short:
            tables[f"zstd, default, logs of {VARIED:,} samples that differ in one statistic"] = Table.from_rows(
                what_matters(folder, VARIED)
            )
    default, tuned = (figures[f"generated_{kind}_zstd_ratio"] for kind in ("default", "tuned"))
    return Findings(
        figures=figures,
        aims={
            "default": Aim(
                f"generated log, engines' defaults with zstd over cluster-log >= {PUBLISHED}", default >= PUBLISHED
            ),
            "tuned": Aim(f"generated log, best settings on each side, 1 MiB pages >= {PUBLISHED}", tuned >= PUBLISHED),
        },
        tables={"statistics": Table.from_rows(statistics), "bytes": Table.from_rows(rows), **tables},
    )


if __name__ == "__main__":
    run_benchmark(__file__, __doc__, measure, add_options=data_option(DIGINETICA, "recsys"))
