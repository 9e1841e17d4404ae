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


def test_committed_results_are_of_benchmarks_that_exist_and_their_page_is_what_would_be_written_now():
    results = read_results(RESULTS)
    assert {result.benchmark for result in results} <= {script.stem for script in SCRIPTS}
    page = (RESULTS / PAGE).read_text(encoding="utf-8")
    assert page == results_page(results), f"make bench writes {RESULTS / PAGE} anew"
