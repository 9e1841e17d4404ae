"""windrow.recsys.log.readers: against splitting lines in Python."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from windrow.comm.errors import DataError
from windrow.recsys.log.readers import CRITEO_COLUMNS, CriteoLog


def slowly(line: str) -> dict[str, Any]:
    fields = line.rstrip("\r\n").split("\t")
    numbers = [int(field, 10 if place < 14 else 16) if field else None for place, field in enumerate(fields)]
    return dict(zip(CRITEO_COLUMNS, numbers, strict=True))


def line(changes: dict[int, str]) -> str:
    fields = ["1", *["-2"] * 13, *["0fAb"] * 26]
    for place, text in changes.items():
        fields[place] = text
    return "\t".join(fields)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("block_bytes", [300, 1 << 14, 1 << 23])
def test_rows_are_those_of_the_sample(shared_data: Path, size: int, block_bytes: int) -> None:
    path = shared_data / "recsys" / "criteo_sample" / "dev.tsv.gz"
    with gzip.open(path, "rt") as file:
        expected = [slowly(text) for text in file]
    log = CriteoLog([path], CRITEO_COLUMNS, block_bytes=block_bytes)
    found = [
        row for rank in range(size) for block in log.batches(rank, size) for row in block.batch.to_pylist()
    ]
    if size > 1:
        found.sort(key=str)
        expected.sort(key=str)
    assert found == expected


def test_columns_asked_for(tmp_path: Path) -> None:
    (tmp_path / "day_0").write_text(f"{line({})}\r\n{line({39: '', 1: ''})}")
    blocks = list(CriteoLog([tmp_path / "day_0"], ["C26", "label", "I1"]).batches())
    assert [row for block in blocks for row in block.batch.to_pylist()] == [
        {"label": 1, "I1": -2, "C26": 0xFAB},
        {"label": 1, "I1": None, "C26": None},
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (line({5: "x"}), r"field 6 \(I5\) is 'x', expected a whole number or nothing"),
        (line({20: "0g"}), r"field 21 \(C7\) is '0g', expected up to 16 hexadecimal digits"),
        (line({20: "0" * 17}), r"field 21 \(C7\)"),
        (line({3: "-"}), r"field 4 \(I3\) is '-'"),
        (line({}) + "\tff", "41 fields, expected 40"),
        ("1\t2", "2 fields, expected 40"),
        ("", "1 fields, expected 40"),
    ],
)
def test_bad_fields_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "train.txt").write_text(f"{line({})}\n{text}\n{line({})}\n")
    with pytest.raises(DataError, match=rf"train\.txt, line 2: {words}"):
        list(CriteoLog([tmp_path / "train.txt"], ["label"]).batches())
