"""windrow.recsys.log.samples: what is left out of files, and splits without samples."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.comm.errors import DataError
from windrow.recsys.batches.arrow_columns import filled_in
from windrow.recsys.log.options import FeatureOptions, LogOptions, LogSplitOptions
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.samples import check_splits
from windrow.recsys.log.store import SplitEntry


def test_a_split_that_was_asked_for_has_samples() -> None:
    train = {"train": SplitEntry(rows=3, positives=1, files=())}
    check_splits(train, LogSplitOptions(fractions=(1.0, 0.0, 0.0)))
    with pytest.raises(DataError, match=r"the test split has no samples \(train 3\): give it a larger share"):
        check_splits(train, LogSplitOptions(fractions=(0.9, 0.0, 0.1)))
    with pytest.raises(DataError, match="samples of one instant stay together"):
        check_splits(train, LogSplitOptions(by="time"))


def test_repeats_that_are_left_out_are_those_of_the_sample_before(tmp_path: Path) -> None:
    rows = 3000
    path = tmp_path / "log.parquet"
    carts = [[row // 7, row // 7 + 1] for row in range(rows)]
    table = {"label": [row % 2 for row in range(rows)], "cart": carts, "item": list(range(rows))}
    parquet.write_table(pa.table({**table, "weight": [[0.5, row // 14] for row in range(rows)]}), path)
    features = {
        "cart": FeatureOptions(ids="rows", rows=rows, multi_hot=True, weights="weight"),
        "item": FeatureOptions(ids="rows", rows=rows),
    }
    log = LogOptions(paths=(path,), format="parquet", features=features)
    split = LogSplitOptions(fractions=(1.0, 0.0, 0.0))
    full, left_out = (
        prepare_log(tmp_path / name, log, split, leave_out_repeats=name == "left out")
        for name in ("full", "left out")
    )
    assert [feature.repeats_left_out for feature in full.features] == [False, False]
    assert [feature.repeats_left_out for feature in left_out.features] == [True, True]
    (whole,), (held,) = (
        [parquet.read_table(file) for file in store.split("train").files] for store in (full, left_out)
    )
    assert held["cart"].null_count == held["cart.weights"].null_count == rows - len(range(0, rows, 7))
    assert held["item"].null_count == 0
    assert filled_in(held).equals(whole)
