"""windrow.launch.commands.cluster_log: from the command line to a clustered log."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.launch.cli import main


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log" / "a.parquet"
    path.parent.mkdir()
    table = pa.table({"session": [2, 1, 2, None, 1, 2], "at": [5, 4, 3, 2, 1, 0], "name": list("abcdef")})
    parquet.write_table(table, path)
    return path.parent


def test_a_log_is_clustered(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["cluster-log", str(log), "--output", str(out), "--by", "session"]
    options = ["--time", "at", "--files", "1", "--memory", "0.25GiB", "--row-group-rows", "2"]
    assert main([*command, *options]) == 0
    said = capsys.readouterr().out
    assert "1 files, 3 row groups" in said
    assert "6 rows of 3 sessions, 2.00 rows to a session" in said
    assert "times larger" in said
    assert "clustered in" in said
    rows = parquet.read_table(out / "part-00000.parquet").to_pylist()
    assert [row["at"] for row in rows if row["session"] == 2] == [0, 3, 5]
    assert main([*command, *options]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*command, "--no-sort", "--files", "1", "--overwrite"]) == 0
    assert parquet.read_table(out / "part-00000.parquet")["name"].to_pylist() == list("abcdef")
    assert "note" not in capsys.readouterr().out


def test_a_log_that_repeats_becomes_smaller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = range(4000)
    viewed = [[row % 50 * 1000 + step * step for step in range(30)] for row in rows]
    table = pa.table({"session": [row % 50 for row in rows], "at": rows, "viewed": viewed})
    parquet.write_table(table, tmp_path / "a.parquet")
    command = ["cluster-log", str(tmp_path / "a.parquet"), "--output", str(tmp_path / "out")]
    assert main([*command, "--by", "session", "--time", "at"]) == 0
    assert "times smaller" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--by", "sesion", "--time", "at"], "Did you mean 'session'?"),
        (["--by", "session", "--time", "name"], "expected numbers, dates or times"),
        (
            ["--by", "session", "--time", "at", "--memory", "1MiB"],
            "memory_bytes = 1048576 must be an integer of at least 268435456",
        ),
        (
            ["--by", "session", "--time", "at", "--files", "0"],
            "files = 0 must be an integer of at least 1 and at most 100000",
        ),
    ],
)
def test_wrong_use_is_refused(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert main(["cluster-log", str(log), "--output", str(tmp_path / "out"), *options]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_order_of_rows_has_to_be_chosen(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["cluster-log", str(log), "--output", str(tmp_path / "out"), "--by", "session"]
    for options, words in (([], "one of the arguments --time"), (["--time", "at", "--no-sort"], "not allowed with")):
        with pytest.raises(SystemExit):
            main([*command, *options])
        assert words in capsys.readouterr().err
