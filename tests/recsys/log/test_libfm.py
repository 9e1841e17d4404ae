"""windrow.recsys.log.readers: against splitting lines in Python."""

import gzip
from pathlib import Path

import pytest

from windrow.comm.errors import DataError
from windrow.recsys.log.readers import LibfmLog


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("block_bytes", [5000, 1 << 23])
def test_rows_are_those_of_frappe(shared_data: Path, size: int, block_bytes: int) -> None:
    path = shared_data / "recsys" / "frappe" / "frappe.test.libfm.gz"
    log = LibfmLog([path], ["label", "field_0", "field_9", "ids", "values"], block_bytes=block_bytes)
    found = [
        row for rank in range(size) for block in log.batches(rank, size) for row in block.batch.to_pylist()
    ]
    expected = []
    with gzip.open(path, "rt") as file:
        for line in file:
            label, *pairs = line.split()
            ids = [int(pair.split(":")[0]) for pair in pairs]
            expected.append(
                {
                    "label": float(max(int(label), 0)),
                    "field_0": ids[0],
                    "field_9": ids[9],
                    "ids": ids,
                    "values": [float(pair.split(":")[1]) for pair in pairs],
                }
            )
    if size > 1:
        found.sort(key=str)
        expected.sort(key=str)
    assert found == expected


def test_lists_of_any_length(tmp_path: Path) -> None:
    (tmp_path / "a.libfm").write_text("1 3:0.5 7:-2\n0\n-1 5:1e-1 \r\n")
    blocks = list(LibfmLog([tmp_path / "a.libfm"], ["label", "ids", "values"]).batches())
    assert blocks[0].batch.to_pydict() == {
        "label": [1.0, 0.0, 0.0],
        "ids": [[3, 7], [], [5]],
        "values": [[0.5, -2.0], [], [pytest.approx(0.1)]],
    }
    with pytest.raises(DataError, match="line 2: 0 pairs, but line 1 has 2"):
        list(LibfmLog([tmp_path / "a.libfm"], ["label", "field_0"]).batches())


@pytest.mark.parametrize(
    "text", ["x 1:1", "1 a:1", "1 1:", "1 1", "1 1:1 2", "1 -1:1", "", "1 1:1e", "1 1:1x2:2"]
)
def test_bad_lines_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.libfm").write_text(f"1 1:1\n{text}\n0 1:1\n")
    with pytest.raises(DataError, match=r"a\.libfm, line 2: not understood near"):
        list(LibfmLog([tmp_path / "a.libfm"], ["label", "ids"]).batches())
