"""What the page is made of: sections of panels, each a figure with views to choose from, or a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Panel", "Section", "Table", "View"]


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """One way to look at a panel's figure, in Plotly's terms."""

    label: str
    """What a reader chooses it by, where there are several."""
    data: Sequence[Mapping[str, Any]]
    """Plotly's traces; texts from files have gone through `windrow.launch.report.figure.plain`."""
    layout: Mapping[str, Any]
    """Plotly's layout, from `windrow.launch.report.figure.layout`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of text."""

    header: Sequence[str]
    """Names of the columns."""
    rows: Sequence[Sequence[str]]
    """As many cells each as there are columns; the first one names the row."""
    marked: frozenset[tuple[int, int]] = frozenset()
    """(row, column) of the cells that are shown in bold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """A box on the page: a figure, or a table, or why there is neither."""

    title: str
    """Heading of the box; empty where the section's says it all."""
    description: str = ""
    """What the figure shows, for those who do not see it."""
    views: Sequence[View] = ()
    """The figure; the first view is shown until another is chosen."""
    table: Table | None = None
    """A table, below the figure where there is one."""
    folded: str = ""
    """What the table is folded behind; empty for one that is seen at once."""
    note: str = ""
    """Small print below."""
    missing: str = ""
    """Why there is nothing to show; empty where there is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Panels under a common heading, side by side where the window is wide enough."""

    name: str
    """Of its anchor: lower case letters and hyphens."""
    title: str
    """Heading."""
    lead: str
    """One or two sentences: what is to be seen and where the numbers come from."""
    panels: Sequence[Panel]
    """At least one."""
    packed: bool = False
    """Whether panels fill columns from the top, where their heights differ much and rows mean nothing."""
