"""windrow.recsys.log.samples: the samples of sessions in prepared stores, which hold what unordered ones hold."""

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from windrow.comm.random import hash_ids
from windrow.recsys.log.options import FeatureOptions, LogOptions, LogSplitOptions
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.store import LogStore


def samples(store: LogStore, split: str) -> list[dict[str, Any]]:
    return [row for file in store.split(split).files for row in parquet.read_table(file).to_pylist()]


def session_log(path: Path, rows: int = 900) -> Path:
    """Sessions interleaved, times out of order and often equal."""
    draws = [hash_ids(key, np.arange(rows)) for key in (1, 2, 3)]
    text = [
        (int(draw % 2), int(time % 50), f"s{session % 40}", row)
        for row, (draw, time, session) in enumerate(zip(*draws, strict=True))
    ]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("label", "time", "session", "row"), *text])
    return path


SESSION_SPLITS = [
    LogSplitOptions(by="time", fractions=(0.7, 0.1, 0.2)),
    LogSplitOptions(by="hash", fractions=(0.7, 0.0, 0.3)),
]


@pytest.mark.parametrize("split", SESSION_SPLITS, ids=lambda split: split.by)
@pytest.mark.parametrize(("shard", "cluster"), [(False, True), (True, False), (True, True)])
def test_samples_of_a_session_stand_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: LogSplitOptions, *, shard: bool, cluster: bool
) -> None:
    monkeypatch.setattr("windrow.recsys.log.staging.SHARD_ROWS", 150)
    monkeypatch.setattr("windrow.recsys.log.clustering.log_files.MOST_BATCH_ROWS", 100)
    monkeypatch.setattr("windrow.recsys.log.staging.RUN_BYTES", 5000)
    monkeypatch.setattr("windrow.recsys.log.staging.BUCKET_BYTES", 3000)
    features = {"row": FeatureOptions(ids="rows", rows=900)}
    log = LogOptions(
        paths=(session_log(tmp_path / "log.csv"),),
        format="csv",
        time="time",
        session="session",
        features=features,
    )
    plain = prepare_log(tmp_path / "plain", log, split)
    store = prepare_log(tmp_path / "store", log, split, shard=shard, cluster=cluster)
    store.verify()
    assert plain.manifest.order == "log"
    assert store.manifest.order == ("sessions" if cluster else "session shards")
    assert store.manifest.origin["deduplication"] == {"shard": shard, "cluster": cluster}
    for name in plain.splits:
        before, after = samples(plain, name), samples(store, name)
        assert sorted(row["row"] for row in before) == sorted(row["row"] for row in after)
        if cluster:
            check_sessions(after)
        files = store.split(name).files
        assert len(files) == (-(-len(before) // 150) if shard else 1)
        if shard:
            held = [parquet.read_table(file) for file in files]
            sessions = [set(table["session"].to_pylist()) for table in held]
            assert sum(map(len, sessions)) == len(set().union(*sessions))
            if not cluster:
                place = {row["row"]: number for number, row in enumerate(before)}
                for table in held:
                    places = [place[row] for row in table["row"].to_pylist()]
                    assert places == sorted(places)


def check_sessions(rows: list[dict[str, Any]]) -> None:
    """Each session in one piece, in order of time and then of the log."""
    pieces = [list(piece) for _, piece in itertools.groupby(rows, key=lambda row: row["session"])]
    assert len(pieces) == len({row["session"] for row in rows})
    for piece in pieces:
        assert piece == sorted(piece, key=lambda row: (row["time"], row["row"]))


def test_sessions_without_times_keep_the_order_of_the_log(tmp_path: Path) -> None:
    path = session_log(tmp_path / "log.csv")
    features = {"row": FeatureOptions(ids="rows", rows=900)}
    log = LogOptions(paths=(path,), format="csv", session="session", features=features)
    store = prepare_log(tmp_path / "store", log, LogSplitOptions(fractions=(1.0, 0.0, 0.0)), cluster=True)
    check_sessions([{"time": 0, **row} for row in samples(store, "train")])
