"""docs/settings.md says what the code does."""

from pathlib import Path

from windrow.launch.settings_reference import settings_reference


def test_the_page_of_settings_is_up_to_date(repository: Path) -> None:
    page = (repository / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == settings_reference(), "run: python -m windrow.launch.settings_reference > docs/settings.md"
