"""windrow.launch.commands.report: a page is written, and what is wrong is said."""

from collections.abc import Callable
from pathlib import Path

import pytest

from windrow.comm.errors import StoreError
from windrow.launch.cli import build_parser


def report_with(*arguments: object) -> int:
    parsed = build_parser().parse_args(["report", *map(str, arguments)])
    return int(parsed.run(parsed))


def test_a_page_is_written_and_named(
    make_run: Callable[[str, str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    runs = [make_run("graph", "one"), make_run("graph", "two")]
    assert report_with(*runs, "--out", out) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{out}: 2 runs, 4")
    assert shown.endswith(" MiB\n")
    assert "<title>one (graph-recipe), two (graph-recipe) · windrow report" in out.read_text()


def test_what_cannot_be_reported(make_run: Callable[[str, str], Path], tmp_path: Path) -> None:
    run = make_run("graph", "one")
    with pytest.raises(StoreError, match="is a folder: name a file in it"):
        report_with(run, "--out", tmp_path)
    with pytest.raises(StoreError, match=r"cannot write .*Choose another --out"):
        report_with(run, "--out", tmp_path / "missing" / "page.html")
    (run / "ranks.jsonl").write_text("{}\n")
    with pytest.raises(StoreError, match=r"ranks.jsonl, line 1"):
        report_with(run, "--out", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
