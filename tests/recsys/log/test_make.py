"""windrow.recsys.log.readers: the reader of each format."""

import pytest

from windrow.comm.errors import RecipeError
from windrow.recsys.log.options import LogFormat
from windrow.recsys.log.readers import CriteoLog, CSVLog, LibfmLog, ParquetLog, make_reader


@pytest.mark.parametrize(
    ("log_format", "kind"),
    [("csv", CSVLog), ("criteo", CriteoLog), ("libfm", LibfmLog), ("parquet", ParquetLog)],
)
def test_each_format_has_its_reader(log_format: LogFormat, kind: type) -> None:
    assert isinstance(make_reader(log_format, [], {"label": "float64"}), kind)


def test_interactions_are_no_samples() -> None:
    with pytest.raises(RecipeError, match="no labelled samples"):
        make_reader("interactions", [], {})
