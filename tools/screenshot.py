"""Take a picture of a page in a real browser without a screen: Debian's chromium, driven by selenium.

    python tools/screenshot.py report.html report.png
    python tools/screenshot.py report.html phone.png --width 390 --height 844 --dark

Tests of pages use the same `Browser`. Where there is no browser, ``tools/install_browser.sh`` puts one there.
"""

import argparse
import base64
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Browser", "missing_browser"]

PHONE_WIDTH = 600
"""Pixels: narrower windows are shown as a phone shows them."""
LOAD_S = 60
"""Seconds that a page may take to load and to draw: it holds 5 MB of script, and machines may be busy."""
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
LOCAL_SCHEMES = ("file:", "data:", "blob:", "about:", "chrome:")


def missing_browser() -> str | None:
    """What keeps pages from being looked at here, with the cure; None where nothing does."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not on the PATH: run tools/install_browser.sh"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed: pip install -r requirements/dev.txt"
    return None


class Browser:
    """A browser with nothing in it but what it is told to open. A context manager.

    Args:
        profile: an empty folder for its files.
        width: of the window in pixels; below `PHONE_WIDTH` it is a phone's screen.
        height: of the window in pixels.
        dark: whether the user prefers dark colours.
    """

    def __init__(self, profile: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        from selenium.webdriver import Chrome, ChromeOptions
        from selenium.webdriver.chrome.service import Service

        options = ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={max(width, PHONE_WIDTH)},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
        """Selenium's own, for all that has no method here."""
        self.driver.set_page_load_timeout(LOAD_S)
        self.driver.set_script_timeout(LOAD_S)
        self.resize(width=width, height=height)
        self.prefer(dark=dark)

    def resize(self, *, width: int, height: int) -> None:
        """Give the window another size in pixels; below `PHONE_WIDTH` it is a phone's screen."""
        phone = width < PHONE_WIDTH
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": phone})

    def prefer(self, *, dark: bool, medium: str = "") -> None:
        """Choose the colours that the user prefers, and the medium: "print" for paper, "" for the screen."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": medium, "features": [scheme]})

    def open(self, page: Path) -> None:
        """Open a file and wait until it is loaded and, if it is a report, drawn."""
        self.driver.get(page.resolve().as_uri())
        drawn = "document.documentElement.dataset.drawn === 'true'"
        self.wait(f"return !document.getElementById('figures') || {drawn}")

    def wait(self, script: str) -> None:
        """Wait until JavaScript returns what is true; selenium's TimeoutException ends it after `LOAD_S`."""
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, LOAD_S).until(lambda _: self.ask(script))

    def ask(self, script: str, *values: Any) -> Any:
        """Run JavaScript in the page; returns what its "return" gives."""
        return self.driver.execute_script(script, *values)

    def complaints(self) -> list[str]:
        """Errors and warnings that the page has put on the console since the last call."""
        entries = self._log("browser")
        return [str(entry["message"]) for entry in entries if entry["level"] in {"SEVERE", "WARNING"}]

    def requests(self) -> list[str]:
        """Addresses that the page has asked for since the last call, files of this machine left out."""
        messages = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        asked = [
            str(message["params"]["request"]["url"])
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked if not url.startswith(LOCAL_SCHEMES)]

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write what is seen to a .png file: the whole page, or what fits the window."""
        options: dict[str, Any] = {"format": "png"}
        if whole:
            size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            options |= {"captureBeyondViewport": True, "clip": clip}
        taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", options)
        path.write_bytes(base64.b64decode(taken["data"]))

    def _log(self, kind: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.driver.get_log(kind)  # type: ignore[no-untyped-call]  # selenium's
        return entries

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def main(arguments: Sequence[str]) -> int:
    """Take one picture; the exit status is 1 where there is no browser."""
    parser = argparse.ArgumentParser(description="A picture of a page, as a browser shows it.")
    parser.add_argument("page", type=Path, help="an HTML file")
    parser.add_argument("picture", type=Path, help="the .png file to write")
    parser.add_argument("--width", type=int, default=1280, help="of the window in pixels; 390 is a phone")
    parser.add_argument("--height", type=int, default=900, help="of the window in pixels")
    parser.add_argument("--dark", action="store_true", help="as for a user who prefers dark colours")
    parser.add_argument("--fold", action="store_true", help="only what fits the window, not the whole page")
    options = parser.parse_args(arguments)
    missing = missing_browser()
    if missing is not None or not options.page.is_file():
        print(missing or f"{options.page}: no such file", file=sys.stderr)
        return 1
    size = {"width": options.width, "height": options.height}
    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder), **size, dark=options.dark) as browser:
        browser.open(options.page)
        browser.picture(options.picture, whole=not options.fold)
        complaints = browser.complaints()
    print("\n".join([f"{options.picture}: written", *complaints]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
