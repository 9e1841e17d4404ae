"""docs/settings.md says what the code does."""

import runpy
from pathlib import Path


def test_the_page_of_settings_is_up_to_date(repository: Path) -> None:
    page = (repository / "docs" / "settings.md").read_text(encoding="utf-8")
    written = runpy.run_path(str(repository / "tools" / "settings_reference.py"))["settings_reference"]()
    assert page == written, "run: python -P tools/settings_reference.py > docs/settings.md"
