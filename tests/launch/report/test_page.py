"""windrow.launch.report.page: one file, escaped, and drawn without complaint by a real browser."""

import re
import runpy
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from windrow.comm.errors import RecipeError
from windrow.launch.report.page import build_page
from windrow.launch.report.read_run import ReportedRun, read_run

HOSTILE = '<img src=x onerror="alert(1)">&amp;</script><script>alert(2)</script>%{y}'
PHONE = {"width": 390, "height": 844}
PAPER_WIDTH = 718
"""Pixels of an A4 page between margins of 1 cm."""


@pytest.fixture(scope="module")
def page(make_run_in: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, with names that try to break out."""
    folder = tmp_path_factory.mktemp("page")
    runs = [
        make_run_in(folder, "graph", "first", ranks=4, **{HOSTILE: HOSTILE}, model={"kind": HOSTILE}),
        make_run_in(folder, "log", "second", ranks=9),
    ]
    path = folder / "report.html"
    path.write_text(build_page([read_run(run, name=run.name) for run in runs]), encoding="utf-8")
    return path


def test_page_says_when_and_by_what_it_was_made(run_of: Callable[..., ReportedRun]) -> None:
    page = build_page([run_of("graph", "one")], made=datetime(2026, 1, 2, 3, 4, tzinfo=UTC))
    assert re.search(r"Made 2026-01-02 03:04 UTC by windrow \d+\.\d+", page)
    assert "<title>one (graph-recipe) · windrow report</title>" in page


def test_the_library_is_there_once_and_nothing_in_a_file_becomes_markup(page: Path) -> None:
    text = page.read_text()
    assert text.count("* plotly.js v") == 1
    assert "<img" not in text.replace("<image", "")[: text.index('id="figures"')]
    assert "alert(2)</script>" not in text
    assert "&lt;img src=x" in text


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", ["graph", "log"])
def test_a_run_alone(run_of: Callable[..., ReportedRun], kind: str, old: bool) -> None:
    page = build_page([run_of(kind, "one", old=old, epochs=1)])
    assert ("no ranks.jsonl" in page) == old
    assert ("no placement.json" in page) == old
    assert "Side by side" not in page


@pytest.mark.parametrize(("module", "name"), [("plotly", "Plotly"), ("pandas", "pandas"), ("jinja2", "Jinja2")])
def test_a_missing_library_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RecipeError, match=rf"needs {name}, .*pip install 'windrow\[report\]'"):
        build_page([])


@pytest.mark.parametrize("window", [{}, {"dark": True}, PHONE, {**PHONE, "dark": True}], ids=str)
def test_a_browser_draws_every_figure(
    page: Path, browse: Callable[..., Any], tmp_path: Path, window: dict[str, Any]
) -> None:
    browser = browse(page, **window)
    sizes = browser.ask(
        "return [...document.querySelectorAll('.plot')].map(plot => {"
        " const svg = plot.querySelector('svg.main-svg'); const box = svg ? svg.getBoundingClientRect() : null;"
        " return [plot.id, box ? box.width : 0, box ? box.height : 0, plot.querySelectorAll('path').length]; })"
    )
    assert len(sizes) > 10
    assert [size for size in sizes if min(size[1:3]) < 100 or size[3] == 0] == []
    assert browser.ask("return document.documentElement.scrollWidth") == window.get("width", 1280)
    assert browser.ask("return window.innerWidth") == window.get("width", 1280)
    background = browser.ask("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(18, 20, 23)" if window.get("dark") else "rgb(246, 246, 243)")
    picture = tmp_path / "page.png"
    browser.picture(picture)
    assert_not_blank(picture, width=window.get("width", 1280))
    assert browser.complaints() == []
    assert browser.requests() == []


def test_texts_of_files_are_shown_as_they_are(page: Path, browse: Callable[..., Any]) -> None:
    browser = browse(page)
    assert browser.ask("return document.images.length") == 0
    shown = browser.ask("return document.body.textContent")
    assert HOSTILE in shown


def test_another_view_is_drawn_when_it_is_chosen(page: Path, browse: Callable[..., Any]) -> None:
    browser = browse(page)
    plots = browser.ask("return [...document.querySelectorAll('select[data-plot]')].map(s => s.dataset.plot)")
    assert len(plots) > 8
    choose = (
        "const [name, index] = arguments; const plot = document.getElementById(name);"
        "const select = document.querySelector(`select[data-plot='${name}']`);"
        "select.value = String(index); select.dispatchEvent(new Event('change'));"
        "return [select.options.length, plot.layout.yaxis.title.text, JSON.stringify(plot.data[0])];"
    )
    for plot in plots:
        views = browser.ask(choose, plot, 0)[0]
        assert views > 1
        assert all(browser.ask(choose, plot, view)[2] for view in range(views))
    curves = browser.ask("return document.querySelector('#curves select[aria-label*=Other]').dataset.plot")
    assert [browser.ask(choose, curves, view)[1] for view in range(2)] == [
        "samples per second",
        "learning rate at the epoch's last step",
    ]
    traffic = browser.ask("return document.querySelector('#traffic select').dataset.plot")
    cell = "return document.getElementById(arguments[0]).calcdata[0][0].z[0][1]"
    found = [(browser.ask(choose, traffic, view), browser.ask(cell, traffic))[1] for view in range(2)]
    assert found == [2000, 1000]
    assert browser.complaints() == []


def test_colours_follow_the_user_and_paper_is_light(page: Path, browse: Callable[..., Any]) -> None:
    browser = browse(page)
    browser.prefer(dark=True)
    browser.wait("return document.querySelector('.plot')._fullLayout.font.color === '#e8e8e5'")
    ink = "return document.querySelector('.plot')._fullLayout.font.color"
    dark = browser.ask(ink)
    browser.ask("window.dispatchEvent(new Event('beforeprint'))")
    light = browser.ask(ink)
    browser.ask("window.dispatchEvent(new Event('afterprint'))")
    assert (dark, light, browser.ask(ink)) == ("#e8e8e5", "#1c1f23", "#e8e8e5")


@pytest.mark.parametrize("window", [{}, PHONE], ids=str)
def test_legends_leave_the_data_alone(page: Path, browse: Callable[..., Any], window: dict[str, Any]) -> None:
    browser = browse(page, **window)
    boxes = browser.ask(
        "return [...document.querySelectorAll('.plot')].filter(plot => plot.querySelector('.legend')).map(plot => ["
        " plot.querySelector('.legend').getBoundingClientRect().bottom,"
        " plot.querySelector('.nsewdrag').getBoundingClientRect().top])"
    )
    assert len(boxes) > 5
    assert [box for box in boxes if box[0] > box[1] + 1] == []


def test_figures_fit_the_paper(page: Path, browse: Callable[..., Any]) -> None:
    browser = browse(page)
    widths = "return [...document.querySelectorAll('.plot svg.main-svg')].map(svg => svg.getBoundingClientRect().width)"
    browser.ask("window.dispatchEvent(new Event('beforeprint'))")
    assert max(browser.ask(widths)) < PAPER_WIDTH
    browser.ask("window.dispatchEvent(new Event('afterprint'))")
    browser.ask("return 0")
    assert browser.ask("return document.querySelector('main').getBoundingClientRect().width") > PAPER_WIDTH


def assert_not_blank(picture: Path, *, width: int) -> None:
    """A picture that is as wide as the window, and has many colours."""
    from PIL import Image

    with Image.open(picture) as image:
        assert image.width == width
        assert image.height > 1000
        colours = image.convert("RGB").resize((200, 800)).getcolors(maxcolors=200 * 800)
    assert colours is not None
    assert len(colours) > 100
    assert max(count for count, _ in colours) < 0.95 * 200 * 800


def test_the_example_that_compares_runs(
    tmp_path: Path,
    repository: Path,
    make_run: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Best of 3 epochs; in each of them rank 0 sends 1000 bytes in each of two stages, rank 1 sends 2000."""
    runs = [make_run("graph", "tolokers-3"), make_run("log", "other-1", epochs=1)]
    recipe = runs[0] / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("graph-recipe", "tolokers"))
    page = tmp_path / "page.html"
    script = str(repository / "examples" / "compare_runs.py")
    monkeypatch.setattr(sys, "argv", [script, *map(str, runs), "--out", str(page)])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(script, run_name="__main__")
    _, header, first, second = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["run", "metric", "test", "seconds"]
    assert first.split()[:10] == ["tolokers-3", "roc_auc", "0.630", "4", "14%", "17.6", "KiB", "24.0", "KiB", "0.824:"]
    assert second.split() == ["other-1", "normalised_entropy", "11.000", "2", "14%", "5.9", "KiB", "8.0", "KiB", "-"]
    assert page.is_file()
