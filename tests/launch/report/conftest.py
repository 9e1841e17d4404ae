"""Fixtures for tests of the report: run folders of both kinds and a benchmark's result, made up; and a browser."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from windrow.launch.report.read_run import ReportedRun, read_run


@pytest.fixture
def run_of(make_run: Callable[..., Path]) -> Callable[..., ReportedRun]:
    """The same, and read it."""

    def read(kind: str, name: str, **options: Any) -> ReportedRun:
        return read_run(make_run(kind, name, **options), name=name)

    return read


@pytest.fixture(scope="session")
def screenshot() -> ModuleType:
    """The module tools/screenshot.py; a test that takes it is skipped where there is no browser."""
    file = Path(__file__).resolve().parents[3] / "tools" / "screenshot.py"
    spec = importlib.util.spec_from_file_location("windrow_screenshot", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    missing = module.missing_browser()
    if missing is not None:
        pytest.skip(missing)
    return module


@pytest.fixture(scope="session")
def browser(screenshot: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for all tests, since its start takes seconds."""
    with screenshot.Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browse(browser: Any) -> Callable[..., Any]:
    """Open a file in a window: ``browser = browse(page, width=390, height=844, dark=True)``."""

    def browse(page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> Any:
        browser.resize(width=width, height=height)
        browser.prefer(dark=dark)
        browser.complaints()
        browser.requests()
        browser.open(page)
        return browser

    return browse
