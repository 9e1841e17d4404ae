"""The page: panels put into one HTML file that needs nothing else, and no network."""

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from windrow.comm.errors import RecipeError
from windrow.launch.report.curves import curves_section
from windrow.launch.report.overview import comparison_section, headline, settings_table
from windrow.launch.report.panel import TEMPLATE, Panel, Section
from windrow.launch.report.placement import placement_section
from windrow.launch.report.ranks import (
    communication_section,
    locality_section,
    memory_section,
    stages_section,
    traffic_section,
)
from windrow.launch.report.read_run import ReportedRun
from windrow.training.journal import COLOURS

__all__ = ["build_page"]

TEMPLATES = Path(__file__).resolve().parent / "templates"


def build_page(runs: Sequence[ReportedRun], *, made: datetime | None = None) -> str:
    """Draw everything.

    Args:
        runs: at least one, each with another name.
        made: when, for the page's foot; now by default.

    Raises:
        RecipeError: Plotly, pandas or Jinja2 is not installed.
        StoreError: a placement.json is not what this version writes.
    """
    for library, name in (("plotly", "Plotly"), ("pandas", "pandas"), ("jinja2", "Jinja2")):
        try:
            import_module(library)
        except ImportError as error:
            raise RecipeError(
                f"windrow report needs {name}, which is not installed: pip install 'windrow[report]'"
            ) from error
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    # A browser reads every line end as this one before it compares the script with its hash.
    plotly_script = str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
    compared = [comparison_section(runs)] if len(runs) > 1 else []
    overall = [*compared, curves_section(runs)]
    kinds = (
        stages_section,
        communication_section,
        traffic_section,
        locality_section,
        memory_section,
        placement_section,
    )
    by_kind = [kind(runs) for kind in kinds]
    sections = [*overall, *by_kind]
    page_script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        title=_title(runs),
        headlines=[headline(run) for run in runs],
        overall=overall,
        by_kind=by_kind,
        sections=sections,
        settings=[(run.name, settings_table(run.recipe)) for run in runs],
        made=(made or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
        version=version("windrow"),
        colours=COLOURS,
        plot_ids={id(panel): name for name, panel in _plots(sections).items()},
        identity=id,
        style=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
        figures=Markup(_script_safe(_figures(sections))),
        plotly_script=Markup(plotly_script),
        page_script=Markup(page_script),
        script_hashes=Markup(" ".join(_hash(script) for script in (plotly_script, page_script))),
    )


def _title(runs: Sequence[ReportedRun]) -> str:
    names = [_run_title(run) for run in runs]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _run_title(run: ReportedRun) -> str:
    """The run's name, with its recipe's where that says more."""
    recipe = str(run.recipe.get("name", ""))
    return run.name if not recipe or recipe in run.name else f"{run.name} ({recipe})"


def _plots(sections: Sequence[Section]) -> dict[str, Panel]:
    """Name of a place on the page -> the panel whose figure is drawn there."""
    drawn = [panel for section in sections for panel in section.panels if panel.views]
    return {f"plot-{number}": panel for number, panel in enumerate(drawn)}


def _figures(sections: Sequence[Section]) -> str:
    """All figures as JSON: place -> figures, one per view; and the template of all, which each figure has only here."""
    figures = {}
    for name, panel in _plots(sections).items():
        figures[name] = [json.loads(view.to_json()) for view in panel.views.values()]
        for figure in figures[name]:
            figure["layout"].pop("template", None)
    return json.dumps({"template": TEMPLATE, "figures": figures}, allow_nan=False, separators=(",", ":"))


def _script_safe(text: str) -> str:
    """JSON that cannot end the element it stands in, whatever its strings say."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _hash(script: str) -> str:
    """A script as the page's security policy names it: no other one may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
