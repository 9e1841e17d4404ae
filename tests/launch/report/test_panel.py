"""windrow.launch.report.panel: what a panel is by default, and that it cannot be changed."""

import dataclasses

import pytest

from windrow.launch.report.panel import Panel, Section, Table, View


def test_a_panel_is_empty_by_default() -> None:
    panel = Panel(title="Loss")
    assert (panel.views, panel.table, panel.missing, panel.folded) == ((), None, "", "")
    assert Table(header=("a",), rows=[]).marked == frozenset()


def test_nothing_changes_once_it_is_made() -> None:
    panel = Panel(title="Loss", views=[View(label="all", data=[], layout={})])
    section = Section(name="loss", title="Loss", lead="", panels=[panel])
    with pytest.raises(dataclasses.FrozenInstanceError):
        section.title = "Gain"
