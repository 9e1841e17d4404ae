"""The page: panels put into one HTML file that needs nothing else, and no network."""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from windrow.comm.errors import RecipeError
from windrow.launch.report.curves import curve_panels
from windrow.launch.report.overview import comparison_panels, headline, profile_panel, settings_table
from windrow.launch.report.panel import TEMPLATE
from windrow.launch.report.placement import placement_panel
from windrow.launch.report.ranks import communication_panel, locality_panel, memory_panel, stages_panel, traffic_panel
from windrow.launch.report.read_run import ReportedRun
from windrow.training.journal import COLOURS

__all__ = ["build_page"]

TEMPLATES = Path(__file__).resolve().parent / "templates"

PANELS = {
    "stages": stages_panel,
    "profile": profile_panel,
    "communication": communication_panel,
    "traffic": traffic_panel,
    "locality": locality_panel,
    "memory": memory_panel,
    "placement": placement_panel,
}
"""Section of the page -> what makes the panel that it has of each run."""


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
    import pandas as pd
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    # A browser reads every line end as this one before it compares the script with its hash.
    plotly_script = str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
    page_script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    panels = {
        "comparison": comparison_panels(runs) if len(runs) > 1 else [],
        "curves": curve_panels(runs),
        **{
            name: [replace(panel(run), title=run.name if len(runs) > 1 else "") for run in runs]
            for name, panel in PANELS.items()
        },
    }
    # Plotly's template of all figures is on the page once.
    figures = {
        f"{name}-{place}": [json.loads(view.update_layout(template=None).to_json()) for view in panel.views.values()]
        for name, of_section in panels.items()
        for place, panel in enumerate(of_section)
        if panel.views
    }
    data = json.dumps({"template": TEMPLATE, "figures": figures}, allow_nan=False, separators=(",", ":"))
    names = [_run_title(run) for run in runs]
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Else pandas cuts off what is longer than 50 letters.
    with pd.option_context("display.max_colwidth", None):
        return environment.get_template("page.html.j2").render(
            title=", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else ""),
            headlines=[headline(run) for run in runs],
            panels=panels,
            settings=settings_table(runs),
            made=(made or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
            version=version("windrow"),
            colours=COLOURS,
            style=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
            # No string in it can end the element that it stands in.
            figures=Markup(data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")),
            plotly_script=Markup(plotly_script),
            page_script=Markup(page_script),
            script_hashes=Markup(" ".join(_hash(script) for script in (plotly_script, page_script))),
        )


def _run_title(run: ReportedRun) -> str:
    """The run's name, with its recipe's where that says more."""
    recipe = str(run.recipe.get("name", ""))
    return run.name if not recipe or recipe in run.name else f"{run.name} ({recipe})"


def _hash(script: str) -> str:
    """A script as the page's security policy names it: no other one may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
