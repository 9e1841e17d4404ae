"""windrow.recsys.log.files: files and patterns."""

from pathlib import Path

import pytest

from windrow.comm.errors import DataError
from windrow.recsys.log.files import file_labels, resolve_files


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
    parts = [folder / "b" / f"part.{number}.parquet" for number in range(2)]
    assert list(file_labels(parts).values()) == ["part.0", "part.1"]
    deep = [folder / name for name in ("x/men/men.csv", "y/men/men.csv")]
    assert list(file_labels(deep).values()) == ["x/men/men", "y/men/men"]
    alike = [folder / "a.csv", folder / "a.csv.gz"]
    assert list(file_labels(alike).values()) == list(map(str, alike))


def test_what_cannot_be_read_is_refused(folder: Path) -> None:
    (folder / "empty.csv").write_text("")
    (folder / "link.csv.gz").symlink_to(folder / "b/men.csv.gz")
    for paths, words in (
        (["c.csv"], "no such file"),
        (["*.tsv"], "no file matches"),
        (["a"], "is a folder: name its files"),
        (["empty.csv"], "is empty"),
        (["a/men.csv.gz", "*/men.csv.gz"], "is named twice"),
        (["b/men.csv.gz", "a/../b/men.csv.gz"], r"/a/\.\./b/men.csv.gz, .*/b/men.csv.gz: a file is named twice"),
        (["b/men.csv.gz", "link.csv.gz"], "is named twice"),
        (["a" * 300], "cannot be looked up"),
    ):
        with pytest.raises(DataError, match=words):
            resolve_files([folder / path for path in paths])
