"""windrow.recsys.log.readers: against the csv module, on any ranks and blocks."""

import csv
import gzip
import io
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.recsys.log.readers import PARSE_BYTES, CSVLog

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=8)
ROWS = st.lists(st.tuples(TEXT, st.integers(-9, 9) | st.just(""), TEXT), min_size=1, max_size=20)


def rows_of(log: CSVLog, size: int) -> list[dict[str, Any]]:
    return [
        row for rank in range(size) for block in log.batches(rank, size) for row in block.batch.to_pylist()
    ]


@given(ROWS, st.integers(20, 200), st.integers(1, 3), st.booleans())
def test_rows_are_those_of_the_file(
    rows: list[tuple[Any, ...]], block_bytes: int, size: int, tabs: bool
) -> None:
    text = io.StringIO()
    writer = csv.writer(
        text, delimiter="\t" if tabs else ",", lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC
    )
    writer.writerow(["name", "number", "other"])
    writer.writerows(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("a.tsv" if tabs else "a.csv")
        path.write_text(text.getvalue(), encoding="utf-8", newline="")
        log = CSVLog([path], {"number": "float64", "name": "string"}, block_bytes=block_bytes)
        assert log.num_bytes == path.stat().st_size
        found = rows_of(log, size)
    # An empty text in quotes stands for itself.
    pairs = [(row["name"] or None, row["number"]) for row in found]
    expected = [(name or None, None if number == "" else float(number)) for name, number, _ in rows]
    assert pairs == expected if size == 1 else sorted(pairs, key=str) == sorted(expected, key=str)


def test_open_bandit(repository: Path) -> None:
    path = repository / "examples" / "data" / "open_bandit" / "random-men.csv.gz"
    log = CSVLog([path], {"click": "float64", "item_id": "string", "absent": "string"}, block_bytes=1 << 16)
    with gzip.open(path, "rt") as file:
        expected = [(float(row["click"]), row["item_id"]) for row in csv.DictReader(file)]
    found = [(row["click"], row["item_id"]) for row in rows_of(log, 1)]
    assert found == expected
    assert sorted((row["click"], row["item_id"]) for row in rows_of(log, 3)) == sorted(expected)


def test_places_and_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",a,b\n0,1,2\n1,3,4\n2,5,6\n")
    blocks = list(CSVLog([tmp_path / "a.csv"], {"b": "int64"}, block_bytes=6).batches())
    assert [block.where(0).split(", ")[1] for block in blocks] == ["line 2", "line 3", "line 4"]
    assert blocks[0].columns_in_file == ("unnamed 0", "a", "b")


@pytest.mark.parametrize("long", [PARSE_BYTES - 2, PARSE_BYTES, 5 * PARSE_BYTES // 2])
@pytest.mark.parametrize("before", [0, 1000, 9000])
def test_one_long_field_among_short_lines(tmp_path: Path, long: int, before: int) -> None:
    short = f"1,{'x' * 60}\n"
    (tmp_path / "long.csv").write_text(f"a,b\n{short * before}2,{'y' * long}\n{short * 20_000}")
    blocks = list(CSVLog([tmp_path / "long.csv"], {"b": "string"}).batches())
    lengths = [len(text) for block in blocks for text in block.batch["b"].to_pylist()]
    assert lengths == [60] * before + [long] + [60] * 20_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n3\n", "lines 2 to 3: .*Expected 2 columns, got 1"),
        ("a,a\n1,2\n", r"line 1: the header names \['a'\] twice"),
        ("a,b\n", "has no lines of data"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(DataError, match=rf"bad\.csv.*{words}"):
        list(CSVLog([tmp_path / "bad.csv"], {"a": "float64"}).batches())


def test_a_block_with_a_field_of_another_type_comes_as_text(tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text("a,b\n1,2\nx,4\n")
    (block,) = CSVLog([tmp_path / "odd.csv"], {"a": "float64"}).batches()
    assert block.batch.to_pydict() == {"a": ["1", "x"]}
    assert block.where(1).endswith("odd.csv, line 3")
