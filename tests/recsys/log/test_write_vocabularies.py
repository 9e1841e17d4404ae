"""windrow.recsys.log.prepare: tables of several features, and what is refused."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.comm.errors import DataError
from windrow.recsys.log.options import FeatureOptions, LogOptions, LogSplitOptions
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.store import LogStore


def samples(store: LogStore, split: str) -> list[dict[str, Any]]:
    return [row for file in store.split(split).files for row in parquet.read_table(file).to_pylist()]


def test_features_that_share_a_table_share_its_rows(tmp_path: Path) -> None:
    table = pa.table(
        {
            "label": [1, 0],
            "item": [7, 5],
            "history": [[5, 5, 9], None],
            "weights": [[0.1, 0.2, 0.3], None],
            "x": [1.0, 3.0],
        }
    )
    parquet.write_table(table, tmp_path / "log.parquet")
    features = {
        "item": FeatureOptions(),
        "history": FeatureOptions(multi_hot=True, weights="weights", max_length=2, table="item"),
    }
    log = LogOptions(
        paths=(tmp_path / "log.parquet",),
        format="parquet",
        features=features,
        dense=("x",),
        dense_transform="standard",
    )
    split = LogSplitOptions(fractions=(1.0, 0.0, 0.0))
    store = prepare_log(tmp_path / "store", log, split)
    assert store.vocabulary("item")["value"].to_pylist() == [5, 7, 9]
    first, second = samples(store, "train")
    assert first == {
        "label": 1.0,
        "dense": [-1.0],
        "item": 3,
        "history": [2, 4],
        "history.weights": pytest.approx([0.2, 0.3]),
    }
    assert second == {"label": 0.0, "dense": [1.0], "item": 2, "history": [], "history.weights": []}
    assert store.features[1].mean_ids("train", 2) == 1.0

    log = LogOptions(
        paths=log.paths,
        format="parquet",
        features={"item": FeatureOptions(), "x": FeatureOptions(column="names", table="item")},
    )
    parquet.write_table(table.append_column("names", [["a", "b"]]), tmp_path / "log.parquet")
    with pytest.raises(DataError, match="share table 'item', but hold int64 and string"):
        prepare_log(tmp_path / "mixed", log, split)
