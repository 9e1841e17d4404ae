"""windrow.launch.log_survey: the tables about a prepared log."""

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from windrow.launch.log_survey import log_summary
from windrow.recsys.log.options import FeatureOptions, LogOptions, LogSplitOptions
from windrow.recsys.log.prepare import prepare_log


def test_summary(tmp_path: Path) -> None:
    columns = {
        "label": [0, 1, 0, 0],
        "word": ["x", "y", "x", None],
        "tags": [[1, 2], [3], [], [4]],
        "p": [1.0, None] * 2,
    }
    parquet.write_table(pa.table(columns), tmp_path / "log.parquet")
    log = LogOptions(
        paths=(tmp_path / "log.parquet",),
        format="parquet",
        dense=("p",),
        features={
            "word": FeatureOptions(min_count=2),
            "tags": FeatureOptions(ids="hash", rows=1000, multi_hot=True),
        },
    )
    store = prepare_log(tmp_path / "store", log, LogSplitOptions(fractions=(1.0, 0.0, 0.0)))
    cells = [line.split() for line in log_summary(store)]
    assert cells[0] == ["split", "samples", "positives", "base", "rate", "files"]
    assert cells[2] == ["train", "4", "1", "0.2500", "1"]
    assert cells[4] == ["feature", "ids", "rows", "distinct", "missing", "unseen", "ids", "per", "sample"]
    assert cells[6] == ["word", "vocabulary", "3", "1", "1", "1", "1.00"]
    assert cells[7] == ["tags", "hash", "1,000", "-", "1", "-", "1.00"]
    assert cells[8] == ["missing", "dense", "values,", "now", "0:", "p", "2"]
    assert cells[9][2:] == ["in", str(store.path)]
