"""windrow.recsys.log.raw_blocks: files and patterns, lines whatever the blocks, threads that keep the order and end."""

import gzip
import itertools
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.recsys.log import raw_blocks
from windrow.recsys.log.raw_blocks import file_labels, ordered_map, resolve_files, text_blocks

LINES = st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), min_size=1, max_size=20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b/men.csv.gz", "b/women.csv.gz", "a/men.csv.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    return tmp_path


def test_patterns_are_resolved_by_name(folder: Path) -> None:
    expected = [folder / name for name in ("a/men.csv.gz", "b/men.csv.gz", "b/women.csv.gz")]
    assert resolve_files([folder / "*" / "*.csv.gz"]) == tuple(expected)
    assert resolve_files([folder / "**" / "*.gz"]) == tuple(expected)
    assert resolve_files([folder / "b/women.csv.gz", folder / "a" / "m?n.*"]) == (expected[2], expected[0])


def test_labels_are_names_and_folders_where_names_are_equal(folder: Path) -> None:
    both = [folder / "b/men.csv.gz", folder / "b/women.csv.gz"]
    assert list(file_labels(both).values()) == ["men", "women"]
    assert list(file_labels([*both, folder / "a/men.csv.gz"]).values()) == ["b/men", "b/women", "a/men"]


def test_what_cannot_be_read_is_refused(folder: Path) -> None:
    (folder / "empty.csv").write_text("")
    (folder / "link.csv.gz").symlink_to(folder / "b/men.csv.gz")
    for paths, words in (
        (["c.csv"], "no such file"),
        (["*.tsv"], "no file matches"),
        (["a"], "is a folder: name its files"),
        (["empty.csv"], "is empty"),
        (["a/men.csv.gz", "*/men.csv.gz"], "is named twice"),
        (
            ["b/men.csv.gz", "a/../b/men.csv.gz"],
            r"/a/\.\./b/men.csv.gz, .*/b/men.csv.gz: a file is named twice",
        ),
        (["b/men.csv.gz", "link.csv.gz"], "is named twice"),
        (["a" * 300], "cannot be looked up"),
    ):
        with pytest.raises(DataError, match=words):
            resolve_files([folder / path for path in paths])


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
        patch.setattr(raw_blocks, "BLOCK_BYTES", block_bytes)
        paths, expected = [], []
        for number, lines in enumerate(files):
            text = b"header\r\n" + b"\n".join(lines) + (b"\n" if ended or not lines[-1] else b"")
            path = Path(name) / f"{number}.csv{'.gz' if compressed else ''}"
            path.write_bytes(gzip.compress(text) if compressed else text)
            paths.append(path)
            expected += [(path, number, line) for number, line in enumerate(lines, start=2)]
        found = []
        for block in text_blocks(paths, has_header=True):
            assert block.header == b"header"
            assert block.data.endswith(b"\n")
            lines = block.data.split(b"\n")[:-1]
            assert len(lines) == block.num_lines
            found += [(block.file, place, line) for place, line in enumerate(lines, start=block.first_line)]
        assert found == expected
        assert block.file_share == 1.0


def test_damaged_and_empty_files_are_named(tmp_path: Path) -> None:
    import random

    whole = gzip.compress(b"".join(b"%d\n" % number for number in range(5000)))
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "noise.gz").write_bytes(random.Random(0).randbytes(100))
    (tmp_path / "bits.gz").write_bytes(whole[:300] + b"\xff\xff\xff" + whole[303:])
    for name in ("cut.gz", "noise.gz", "bits.gz"):
        with pytest.raises(DataError, match=rf"{name}: the compressed stream is damaged or cut short.*fetch"):
            list(text_blocks([tmp_path / name]))
    # The last one is there, and its first page is not: reading it is an error of the system's.
    for path in (tmp_path / "absent.csv", tmp_path, Path("/proc/self/mem")):
        with pytest.raises(DataError, match=rf"{path}, line 1: cannot be read \(.*correct the path or"):
            list(text_blocks([path]))
    (tmp_path / "header.csv").write_bytes(b"a,b\n")
    with pytest.raises(DataError, match=r"header\.csv has no lines of data"):
        list(text_blocks([tmp_path / "header.csv"], has_header=True))


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ordered map")]


def use_cores(patch: pytest.MonkeyPatch, cores: int) -> None:
    patch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))


@pytest.mark.parametrize("cores", [1, 2, 99])
def test_results_are_in_the_order_of_the_items(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    def slowly(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return number * number

    use_cores(monkeypatch, cores)
    assert list(ordered_map(slowly, range(30))) == [number**2 for number in range(30)]
    assert list(ordered_map(slowly, [])) == []
    assert own_threads() == []


def test_errors_come_after_the_results_before_them() -> None:
    results = ordered_map(lambda number: 6 // number, [1, 2, 3, 0, 1])
    assert [next(results) for _ in range(3)] == [6, 3, 2]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert own_threads() == []


def test_few_items_are_taken_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    use_cores(monkeypatch, 2)
    numbers = itertools.count()
    results = ordered_map(lambda number: number, numbers)
    next(results)
    assert next(numbers) == 3
    results.close()  # type: ignore[attr-defined]  # a generator
    assert own_threads() == []
