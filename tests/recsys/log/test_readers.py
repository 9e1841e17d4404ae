"""windrow.recsys.log.readers: formats against slow reading in Python, refusals, lines and threads."""

import csv
import gzip
import io
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from windrow.comm.errors import DataError, RecipeError
from windrow.recsys.log import readers
from windrow.recsys.log.readers import CRITEO_COLUMNS, RawBlock, read_criteo_ids, read_log
from windrow.recsys.log.readers_kernels import parse_criteo, parse_libfm


def blocks_of(log_format: Any, path: Path, columns: Any) -> list[RawBlock]:
    types = columns if isinstance(columns, dict) else dict.fromkeys(columns, "string")
    return list(read_log(log_format, [path], types))


def rows_of(log_format: Any, path: Path, columns: Any) -> list[dict[str, Any]]:
    return [row for block in blocks_of(log_format, path, columns) for row in block.batch.to_pylist()]


def test_interactions_are_no_samples() -> None:
    with pytest.raises(RecipeError, match="no labelled samples"):
        read_log("interactions", [], {})


def slow_criteo(line: str) -> dict[str, Any]:
    fields = line.rstrip("\r\n").split("\t")
    numbers = [int(field, 10 if place < 14 else 16) if field else None for place, field in enumerate(fields)]
    return dict(zip(CRITEO_COLUMNS, numbers, strict=True))


def test_categories_as_text_are_those_of_the_reader(tmp_path: Path) -> None:
    texts = ["05032141", "68fd1e64", "", "fFfFfFfFfFfFfFfF", "0"]
    (tmp_path / "a.txt").write_text("".join(f"{criteo_line({14: text})}\n" for text in texts))
    wanted = [row["C1"] for row in rows_of("criteo", tmp_path / "a.txt", ["C1"])]
    assert read_criteo_ids(pa.array([*texts, None])).to_pylist() == [*wanted, None]
    for wrong in ("68fd1e6g", "0" * 17, "-1"):
        with pytest.raises(DataError, match=f"'{wrong}' is no category of Criteo's"):
            read_criteo_ids(pa.array([wrong]))


def criteo_line(changes: dict[int, str]) -> str:
    fields = ["1", *["-2"] * 13, *["0fAb"] * 26]
    for place, text in changes.items():
        fields[place] = text
    return "\t".join(fields)


@pytest.mark.parametrize("block_bytes", [300, 1 << 14, 1 << 23])
def test_criteo_rows_are_those_of_the_sample(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", block_bytes)
    path = shared_data / "recsys" / "criteo_sample" / "dev.tsv.gz"
    with gzip.open(path, "rt") as file:
        expected = [slow_criteo(text) for text in file]
    assert rows_of("criteo", path, CRITEO_COLUMNS) == expected


def test_criteo_columns_asked_for(tmp_path: Path) -> None:
    (tmp_path / "day_0").write_text(f"{criteo_line({})}\r\n{criteo_line({39: '', 1: ''})}")
    assert rows_of("criteo", tmp_path / "day_0", ["C26", "label", "I1"]) == [
        {"label": 1, "I1": -2, "C26": 0xFAB},
        {"label": 1, "I1": None, "C26": None},
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (criteo_line({5: "x"}), r"field 6 \(I5\) is 'x', expected a whole number or nothing"),
        (criteo_line({20: "0g"}), r"field 21 \(C7\) is '0g', expected up to 16 hexadecimal digits"),
        (criteo_line({20: "0" * 17}), r"field 21 \(C7\)"),
        (criteo_line({3: "-"}), r"field 4 \(I3\) is '-'"),
        (criteo_line({}) + "\tff", "41 fields, expected 40"),
        ("1\t2", "2 fields, expected 40"),
        ("", "1 fields, expected 40"),
    ],
)
def test_bad_fields_of_criteo_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "train.txt").write_text(f"{criteo_line({})}\n{text}\n{criteo_line({})}\n")
    with pytest.raises(DataError, match=rf"train\.txt, line 2: {words}"):
        blocks_of("criteo", tmp_path / "train.txt", ["label"])


DECIMAL = st.integers(-(10**15), 10**15).map(str) | st.just("")
HEXADECIMAL = st.integers(0, 2**63 - 1).map("{:x}".format) | st.integers(0, 2**32).map("{:08X}".format) | st.just("")


@given(st.lists(st.tuples(DECIMAL, DECIMAL, HEXADECIMAL, HEXADECIMAL), min_size=1, max_size=20), st.booleans())
def test_any_field_of_criteo_is_that_of_python(rows: list[tuple[str, ...]], carriage_return: bool) -> None:
    ending = "\r\n" if carriage_return else "\n"
    data = np.frombuffer("".join("\t".join(row) + ending for row in rows).encode(), np.uint8)
    values = np.empty((4, len(rows)), np.int64)
    valid = np.zeros((4, (len(rows) + 7) // 8), np.uint8)
    assert parse_criteo(data, 1, values, valid) == (-1, -1)
    for line, row in enumerate(rows):
        for field, text in enumerate(row):
            assert values[field, line] == (int(text, 10 if field < 2 else 16) if text else 0)
            assert bool(valid[field, line // 8] >> (line % 8) & 1) == bool(text)


@pytest.mark.parametrize("block_bytes", [5000, 1 << 23])
def test_libfm_rows_are_those_of_frappe(shared_data: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", block_bytes)
    path = shared_data / "recsys" / "frappe" / "frappe.test.libfm.gz"
    expected = []
    with gzip.open(path, "rt") as file:
        for line in file:
            label, *pairs = line.split()
            ids = [int(pair.split(":")[0]) for pair in pairs]
            values = [float(pair.split(":")[1]) for pair in pairs]
            row = {"label": float(label), "field_0": ids[0], "field_9": ids[9]}
            expected.append(row | {"ids": ids, "values": values})
    assert rows_of("libfm", path, ["label", "field_0", "field_9", "ids", "values"]) == expected


def test_libfm_lists_of_any_length(tmp_path: Path) -> None:
    path = tmp_path / "a.libfm"
    path.write_text("1 3:0.5 7:-2\n0\n-1 5:1e-1 \r\n")
    (block,) = blocks_of("libfm", path, ["label", "ids", "values"])
    assert block.batch.to_pydict() == {
        "label": [1.0, 0.0, -1.0],
        "ids": [[3, 7], [], [5]],
        "values": [[0.5, -2.0], [], [pytest.approx(0.1)]],
    }
    with pytest.raises(DataError, match="line 2: 0 pairs, but line 1 has 2"):
        blocks_of("libfm", path, ["label", "field_0"])


def test_libfm_lines_of_all_files_have_as_many_pairs(tmp_path: Path) -> None:
    files = [tmp_path / "a.libfm", tmp_path / "b.libfm"]
    for file, line in zip(files, ("1 3:1 7:1", "0 3:1 7:1 9:1"), strict=True):
        file.write_text(f"{line}\n{line}\n")
    with pytest.raises(DataError, match=r"b\.libfm, line 1: 3 pairs, but .*a\.libfm, line 1 has 2; columns field_0"):
        list(read_log("libfm", files, {"field_0": "int64"}))
    assert len(list(read_log("libfm", files, {"ids": "int64"}))) == 2


@pytest.mark.parametrize("text", ["x 1:1", "1 a:1", "1 1:", "1 1", "1 1:1 2", "1 -1:1", "", "1 1:1e", "1 1:1x2:2"])
def test_bad_lines_of_libfm_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.libfm").write_text(f"1 1:1\n{text}\n0 1:1\n")
    with pytest.raises(DataError, match=r"a\.libfm, line 2: not understood near"):
        blocks_of("libfm", tmp_path / "a.libfm", ["label", "ids"])


NUMBER = (
    st.floats(-1e9, 1e9, width=32).map(repr) | st.integers(-1000, 1000).map(str) | st.sampled_from(["+.5", "2.", "1E3"])
)
PAIRS = st.lists(st.tuples(st.integers(0, 10**17), NUMBER), max_size=5)


@given(st.lists(st.tuples(st.sampled_from(["0", "1", "-1", "1.0"]), PAIRS), min_size=1, max_size=10))
def test_any_pair_of_libfm_is_that_of_python(rows: list[tuple[str, list[tuple[int, str]]]]) -> None:
    text = "".join(label + "".join(f" {index}:{value}" for index, value in pairs) + "\n" for label, pairs in rows)
    flat = [pair for _, pairs in rows for pair in pairs]
    labels, offsets = np.empty(len(rows)), np.empty(len(rows) + 1, np.int64)
    ids, weights = np.empty(len(flat), np.int64), np.empty(len(flat), np.float32)
    assert parse_libfm(np.frombuffer(text.encode(), np.uint8), labels, offsets, ids, weights) == (-1, -1)
    assert labels.tolist() == [float(label) for label, _ in rows]
    assert np.diff(offsets).tolist() == [len(pairs) for _, pairs in rows]
    assert ids.tolist() == [index for index, _ in flat]
    assert weights.tolist() == pytest.approx([float(value) for _, value in flat], rel=1e-6)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=8)
ROWS = st.lists(st.tuples(TEXT, st.integers(-9, 9) | st.just(""), TEXT), min_size=1, max_size=20)


@given(ROWS, st.integers(20, 200), st.booleans())
def test_csv_rows_are_those_of_the_file(rows: list[tuple[Any, ...]], block_bytes: int, tabs: bool) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t" if tabs else ",", lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(["name", "number", "other"])
    writer.writerows(rows)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "BLOCK_BYTES", block_bytes)
        path = Path(folder) / ("a.tsv" if tabs else "a.csv")
        path.write_text(text.getvalue(), encoding="utf-8", newline="")
        found = rows_of("csv", path, {"number": "float64", "name": "string"})
    # An empty text in quotes stands for itself.
    pairs = [(row["name"] or None, row["number"]) for row in found]
    assert pairs == [(name or None, None if number == "" else float(number)) for name, number, _ in rows]


def test_csv_places_and_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 6)
    (tmp_path / "a.csv").write_text(",a,b\n0,1,2\n1,3,4\n2,5,6\n")
    blocks = blocks_of("csv", tmp_path / "a.csv", {"b": "int64", "absent": "string"})
    assert [block.where(0).split(", ")[1] for block in blocks] == ["line 2", "line 3", "line 4"]
    assert blocks[0].columns_in_file == ("unnamed 0", "a", "b")
    assert blocks[0].batch.schema.names == ["b"]


def test_one_long_field_of_csv_among_short_lines(tmp_path: Path) -> None:
    """Longer than what Arrow parses at a time if it is not told otherwise."""
    short, long, before = f"1,{'x' * 60}\n", 5 << 19, 9000
    (tmp_path / "long.csv").write_text(f"a,b\n{short * before}2,{'y' * long}\n{short * 20_000}")
    lengths = [len(row["b"]) for row in rows_of("csv", tmp_path / "long.csv", ["b"])]
    assert lengths == [60] * before + [long] + [60] * 20_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n3\n", "lines 2 to 3: .*Expected 2 columns, got 1"),
        ("a,a\n1,2\n", r"line 1: the header names \['a'\] twice"),
        ("a,b\n", "has no lines of data"),
    ],
)
def test_bad_lines_of_csv_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(DataError, match=rf"bad\.csv.*{words}"):
        blocks_of("csv", tmp_path / "bad.csv", {"a": "float64"})


def test_a_block_of_csv_with_a_field_of_another_type_comes_as_text(tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text("a,b\n1,2\nx,4\n")
    (block,) = blocks_of("csv", tmp_path / "odd.csv", {"a": "float64"})
    assert block.batch.to_pydict() == {"a": ["1", "x"]}
    assert block.where(1).endswith("odd.csv, line 3")


def test_parquet_rows_and_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for number, (rows, group) in enumerate([(10, 3), (1, 1), (25, 7)]):
        files.append(tmp_path / f"{number}.parquet")
        table = pa.table({"a": range(100 * number, 100 * number + rows), "b": ["x"] * rows})
        parquet.write_table(table, files[-1], row_group_size=group)
    monkeypatch.setattr(readers, "BATCH_ROWS", 2)
    blocks = list(read_log("parquet", files, {"a": "string", "absent": "string"}))
    found = [value for block in blocks for value in block.batch.column("a").to_pylist()]
    assert found == [*range(10), 100, *range(200, 225)]
    assert blocks[1].where(0) == f"{files[0]}, row group 0, row 2"
    assert blocks[2].where(1) == f"{files[0]}, row group 1, row 1"
    assert blocks[0].columns_in_file == ("a", "b")


def test_damaged_and_empty_parquet_files_are_named(tmp_path: Path) -> None:
    def refused(name: str, words: str) -> None:
        with pytest.raises(DataError, match=words):
            blocks_of("parquet", tmp_path / name, ["a"])

    (tmp_path / "text.parquet").write_text("a,b\n1,2\n")
    refused("text.parquet", r"text\.parquet: no readable Parquet file")
    parquet.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "none.parquet")
    refused("none.parquet", r"none\.parquet has no rows")
    parquet.write_table(pa.Table.from_arrays([pa.array([1])] * 2, names=["a", "a"]), tmp_path / "twice.parquet")
    refused("twice.parquet", r"twice\.parquet has columns \['a'\] twice")
    parquet.write_table(pa.table({"a": range(25)}), tmp_path / "bits.parquet", row_group_size=7)
    whole = (tmp_path / "bits.parquet").read_bytes()
    # The first page; the footer is at the end.
    (tmp_path / "bits.parquet").write_bytes(whole[:4] + b"\xff" * 40 + whole[44:])
    refused("bits.parquet", r"bits\.parquet, row group 0, at or after row 0: cannot be read")


LINES = st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), min_size=1, max_size=20)


@given(
    files=st.lists(LINES, min_size=1, max_size=3),
    block_bytes=st.integers(1, 40),
    compressed=st.booleans(),
    ended=st.booleans(),
)
def test_the_lines_of_all_blocks_are_those_of_the_files(
    files: list[list[bytes]], block_bytes: int, compressed: bool, ended: bool
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "BLOCK_BYTES", block_bytes)
        paths, expected = [], []
        for number, lines in enumerate(files):
            text = b"header\r\n" + b"\n".join(lines) + (b"\n" if ended or not lines[-1] else b"")
            path = Path(name) / f"{number}.csv{'.gz' if compressed else ''}"
            path.write_bytes(gzip.compress(text) if compressed else text)
            paths.append(path)
            expected += [(path, number, line) for number, line in enumerate(lines, start=2)]
        found = []
        for block in readers._text_blocks(paths, has_header=True):
            assert block.header == b"header"
            assert block.data.endswith(b"\n")
            lines = block.data.split(b"\n")[:-1]
            assert len(lines) == block.count_lines()
            found += [(block.place.file, place, line) for place, line in enumerate(lines, start=block.place.first)]
        assert found == expected
        assert block.place.file_share == 1.0


def test_damaged_and_empty_files_are_named(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b"%d\n" % number for number in range(5000)))
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "noise.gz").write_bytes(random.Random(0).randbytes(100))
    (tmp_path / "bits.gz").write_bytes(whole[:300] + b"\xff\xff\xff" + whole[303:])
    for name in ("cut.gz", "noise.gz", "bits.gz"):
        with pytest.raises(DataError, match=rf"{name}: the compressed stream is damaged or cut short.*fetch"):
            list(readers._text_blocks([tmp_path / name]))
    # The last one is there, and its first page is not: reading it is an error of the system's.
    for path in (tmp_path / "absent.csv", tmp_path, Path("/proc/self/mem")):
        with pytest.raises(DataError, match=rf"{path}, line 1: cannot be read \(.*correct the path or"):
            list(readers._text_blocks([path]))
    (tmp_path / "header.csv").write_bytes(b"a,b\n")
    with pytest.raises(DataError, match=r"header\.csv has no lines of data"):
        list(readers._text_blocks([tmp_path / "header.csv"], has_header=True))
