"""Pictures of what each rank holds: parts of a graph, or rectangles of embedding tables."""

from collections.abc import Sequence

from windrow.comm.errors import StoreError
from windrow.launch.report.figure import run_title
from windrow.launch.report.graph_placement import graph_note, graph_views
from windrow.launch.report.panel import Panel, Section
from windrow.launch.report.read_run import ReportedRun
from windrow.launch.report.table_placement import table_note, table_views

__all__ = ["placement_section"]


def placement_section(runs: Sequence[ReportedRun]) -> Section:
    """One panel per run.

    Args:
        runs: at least one.

    Raises:
        StoreError: a placement.json is not what this version writes.
    """
    return Section(
        name="placement",
        title="Placement",
        lead="What each rank holds (placement.json), one colour per rank: of a graph its share of vertices, edges and "
        "features; of a click log the pieces of the embedding tables, weights and optimiser state together.",
        panels=[_panel(run, run_title(run.name, len(runs))) for run in runs],
    )


def _panel(run: ReportedRun, title: str) -> Panel:
    placement = run.placement
    if placement is None:
        return Panel(
            title=title,
            missing="Not recorded: this run has no placement.json, which older versions did not write.",
        )
    kind = placement.get("kind")
    try:
        if kind == "graph":
            return Panel(
                title=title,
                description=f"Bars: how vertices, edges and features of {run.name} are spread over its ranks.",
                views=graph_views(placement["ranks"]),
                note=graph_note(len(placement["ranks"])),
            )
        if kind == "log":
            return Panel(
                title=title,
                description=f"Bars: how the embedding tables of {run.name} are cut into pieces on its ranks.",
                views=table_views(placement["tables"], int(placement["world_size"])),
                note=table_note(placement["tables"]),
            )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise StoreError(
            f"{run.path / 'placement.json'}: not what this version of windrow writes "
            f"({type(error).__name__}: {error}). Remove the file to go without it."
        ) from error
    raise StoreError(
        f'{run.path / "placement.json"}: kind = {kind!r} is neither "graph" nor "log". Remove the file to go '
        "without it."
    )
