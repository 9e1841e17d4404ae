"""The folder benchmarks/: every script answers, make knows each, and the committed results are in order."""

import re
import runpy
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest

from benchmarks.harness.data_sets import data_option
from benchmarks.harness.markdown import PAGE, read_results, results_page

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "benchmarks").glob("*.py"))
RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_benchmark_answers_help(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert not end.value.code
    assert {"--short", "--save"} <= set(re.findall(r"--\w+", capsys.readouterr().out))


def test_users_say_where_the_data_are():
    parser = ArgumentParser()
    data_option("a graph")(parser)
    assert parser.parse_args(["--data", "here"]).data == Path("here")


def test_make_bench_runs_every_benchmark():
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    (listed,) = re.findall(r"^BENCHMARKS = (.*)$", text, re.MULTILINE)
    assert sorted(listed.split()) == [script.stem for script in SCRIPTS]


def test_committed_results_are_of_benchmarks_that_exist():
    if not RESULTS.is_dir():
        pytest.skip("no results are committed yet")
    assert {result.benchmark for result in read_results(RESULTS)} <= {script.stem for script in SCRIPTS}


def test_the_page_of_results_is_what_would_be_written_now():
    if not RESULTS.is_dir():
        pytest.skip("no results are committed yet")
    page = (RESULTS / PAGE).read_text(encoding="utf-8")
    assert page == results_page(read_results(RESULTS)), f"make bench writes {RESULTS / PAGE} anew"
